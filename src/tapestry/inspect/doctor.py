"""Health checks of the virtual cluster and its bindings, judged by `findings`.

The checks stop if the API server does not respond or does not serve Tapestry's kinds.  A check that is forbidden
becomes a finding, and the others continue.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.names import syncer_lease_name, syncer_name
from tapestry.apis.policies import POLICIES
from tapestry.apis.release import install_command
from tapestry.client.client import Client
from tapestry.client.discovery import is_served
from tapestry.client.transport import Request
from tapestry.inspect import findings
from tapestry.inspect.anykind.resource_mapper import send_request
from tapestry.inspect.findings import Finding
from tapestry.inspect.queries import Queries
from tapestry.inspect.snapshots import ClusterUnreadable, gather_all, physical_client
from tapestry.kube.errors import Forbidden, KubeError
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import DEPLOYMENTS, LEASES, NAMESPACES, SECRETS, Resource
from tapestry.manager.location import MANAGER_NAME, manager_namespace


@dataclass(frozen=True)
class Doctor:
    """Run the checks with the user's permissions."""

    queries: Queries
    now: Callable[[], datetime]
    namespace: str = keys.SYSTEM_NAMESPACE
    """Namespace of the manager and the syncers."""

    @property
    def client(self) -> Client:
        return self.queries.client

    async def findings(self) -> list[Finding]:
        return [each async for each in self._iter_findings()]

    async def _iter_findings(self) -> AsyncIterator[Finding]:
        try:
            for each in await self.check_server():
                yield each
            missing = [each.name for each in (CLUSTER_BINDINGS, POLICIES) if not await is_served(self.client, each)]
        except KubeError as error:
            advice = "check that it is running and the kubeconfig is right; --kubeconfig and --context select another"
            yield Finding("API server", "wrong", " ".join(str(error).split()), advice)
            return
        if missing:
            advice = f"`{install_command('tapestry k apply')}` installs them"
            yield Finding("kinds", "wrong", f"the server does not serve {' and '.join(missing)}", advice)
            return
        yield Finding("kinds", "ok", "ClusterBinding and ResourceLeasingPolicy are served")
        found = replace(self, namespace=await manager_namespace(self.client))
        checks = (found.manager, found.bindings, found.nodes, found.policies, found.safeguards, found.marks)
        # concurrent, so an unreachable cluster delays only once
        for results in await gather_all(*map(run_check, checks)):
            for each in results:
                yield each

    async def check_server(self) -> list[Finding]:
        """Check that the server responds, its version and its clock."""
        response = await send_request(self.client, Request("GET", "/version"))
        version = msgspec.json.decode(response.body).get("gitVersion", "an unknown version")
        date = response.headers.get("date")
        time = parsedate_to_datetime(date).astimezone(UTC) if date else None
        return [Finding("API server", "ok", f"version {version}"), *findings.clock_findings(time, self.now())]

    async def manager(self) -> Iterable[Finding]:
        found = findings.manager_finding(await self.find_object(DEPLOYMENTS, MANAGER_NAME))
        advice = f"`tapestry k get pods -n {self.namespace}` shows whether it runs"
        lease = await self.find_object(LEASES, MANAGER_NAME)
        return [found, findings.leader_finding("manager", lease, self.now(), advice)]

    async def bindings(self) -> Iterable[Finding]:
        bound, unreachable = await gather_all(self.queries.bindings(), self.queries.unreachable_bindings())
        results = list(findings.binding_findings(bound, {each.name for each in unreachable}, self.now()))
        for each in bound:
            lease = await self.find_object(LEASES, syncer_lease_name(each.name))
            advice = f"`tapestry k logs -n {self.namespace} deployment/{syncer_name(each.cluster_id)}` says why"
            results.append(findings.leader_finding(f"syncer of {each.name}", lease, self.now(), advice))
        return results

    async def nodes(self) -> Iterable[Finding]:
        return findings.node_findings(await self.queries.nodes())

    async def policies(self) -> Iterable[Finding]:
        return findings.policy_findings(*await self.queries.policies())

    async def safeguards(self) -> Iterable[Finding]:
        """Check the mount namespace of each binding; skip unreadable clusters."""
        bindings = await self.client.list(CLUSTER_BINDINGS)
        namespaces = await gather_all(*map(self.mount_namespace, bindings))
        pairs = zip(bindings, namespaces, strict=True)
        return [findings.safeguard_finding(*each) for each in pairs if each[1] is not None]

    async def mount_namespace(self, binding: Object) -> Object | None:
        """Return the mount namespace of a binding; None if it is missing or unreadable."""
        name = value_at(binding, "spec", "mountNamespace", default="")
        try:
            async with physical_client(self.client, binding, self.queries.connect) as client:
                found = await client.list(NAMESPACES, fields=f"metadata.name={name}")
        except ClusterUnreadable:
            return None
        return found[0] if found else None

    async def marks(self) -> Iterable[Finding]:
        return findings.leftover_findings(await self.client.list(SECRETS, self.namespace))

    async def find_object(self, resource: Resource, name: str) -> Object | None:
        return await self.client.find(resource, name, self.namespace)


async def run_check(check: Callable[[], Coroutine[Any, Any, Iterable[Finding]]]) -> list[Finding]:
    """Return the findings of one check, or a warning if it is forbidden."""
    about = check.__name__
    try:
        return list(await check())
    except Forbidden as error:
        return [Finding(about, "warning", f"could not be checked: {error.message}", "use another account")]
