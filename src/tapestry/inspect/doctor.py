"""The doctor: looks at all that can be seen of a world, and has `findings` judge it.

Where nothing answers, or our kinds are not known, there is no more to look at.  What one may not see is told, and is no
reason to stop.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.names import syncer_election, syncer_name
from tapestry.apis.policies import POLICIES
from tapestry.client.client import Client
from tapestry.client.discovery import serves
from tapestry.client.transport import Request
from tapestry.inspect import findings
from tapestry.inspect.anykind.kinds import asked
from tapestry.inspect.facts import together
from tapestry.inspect.findings import Finding
from tapestry.inspect.questions import Questions
from tapestry.inspect.safeguards import safeguards
from tapestry.kube.errors import Forbidden, KubeError
from tapestry.kube.objects import Object
from tapestry.kube.resources import DEPLOYMENTS, LEASES, SECRETS, Resource
from tapestry.manager.installation import NAME

HOME = keys.SYSTEM_NAMESPACE
INSTALL = "`tapestry manifests | tapestry k apply -f -` makes them known"


@dataclass(frozen=True)
class Doctor:
    """Asks with the rights of whoever asks."""

    questions: Questions
    now: Callable[[], datetime]

    @property
    def client(self) -> Client:
        return self.questions.client

    async def findings(self) -> list[Finding]:
        return [each async for each in self._all()]

    async def _all(self) -> AsyncIterator[Finding]:
        try:
            for each in await self.server():
                yield each
            missing = [each.name for each in (CLUSTER_BINDINGS, POLICIES) if not await serves(self.client, each)]
        except KubeError as error:
            advice = "is it up, and the kubeconfig the right one? --kubeconfig and --context choose another"
            yield Finding("API server", "wrong", " ".join(str(error).split()), advice)
            return
        if missing:
            yield Finding("kinds", "wrong", f"the server does not know {' and '.join(missing)}", INSTALL)
            return
        yield Finding("kinds", "ok", "ClusterBinding and ResourceLeasingPolicy are known")
        looks = (self.manager, self.bindings, self.nodes, self.policies, self.safeguards, self.marks)
        for found in await together(*map(seen, looks)):  # at the same time: a cluster that is silent costs one wait
            for each in found:
                yield each

    async def server(self) -> list[Finding]:
        """That it answers, as what, and what time it has."""
        answer = await asked(self.client, Request("GET", "/version"))
        version = msgspec.json.decode(answer.body).get("gitVersion", "an unknown version")
        told = answer.headers.get("date")
        theirs = parsedate_to_datetime(told).astimezone(UTC) if told else None
        return [Finding("API server", "ok", f"answers as {version}"), *findings.clock(theirs, self.now())]

    async def manager(self) -> Iterable[Finding]:
        found = findings.deployment(await self.object(DEPLOYMENTS, NAME))
        look = f"`tapestry k get pods -n {HOME}` shows whether it runs"
        lease = await self.object(LEASES, NAME)
        return [found, findings.leader("manager", lease, self.now(), look)]

    async def bindings(self) -> Iterable[Finding]:
        bound, silent = await together(self.questions.bindings(), self.questions.silent())
        told = list(findings.bindings(bound, {each.name for each in silent}, self.now()))
        for each in bound:
            lease = await self.object(LEASES, syncer_election(each.name))
            look = f"`tapestry k logs -n {HOME} deployment/{syncer_name(each.cluster_id)}` says why"
            told.append(findings.leader(f"syncer of {each.name}", lease, self.now(), look))
        return told

    async def nodes(self) -> Iterable[Finding]:
        return findings.nodes(await self.questions.nodes())

    async def policies(self) -> Iterable[Finding]:
        return findings.policies(*await self.questions.policies())

    async def safeguards(self) -> Iterable[Finding]:
        return await safeguards(self.client, self.questions.connect)

    async def marks(self) -> Iterable[Finding]:
        return findings.marks(await self.client.list(SECRETS, HOME))

    async def object(self, resource: Resource, name: str) -> Object | None:
        return await self.client.find(resource, name, HOME)


async def seen(look: Callable[[], Coroutine[Any, Any, Iterable[Finding]]]) -> list[Finding]:
    """What one look found; or that we may not look."""
    about = look.__name__
    try:
        return list(await look())
    except Forbidden as error:
        return [Finding(about, "warning", f"could not be looked at: {error.message}", "ask with more rights")]
