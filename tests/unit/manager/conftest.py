"""A virtual cluster with a running manager, and physical clusters by the server in a kubeconfig.

Everything runs in-process on virtual time.  The manager has leader election, so its writes are those of a leader.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec import structs

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.ownership import OWNED_RESOURCES as BELONGINGS
from tapestry.apis.policies import POLICIES
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.transport import Transport
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.config import Metrics, Probes
from tapestry.controller.testing import InProcessApi, VirtualClock, VirtualLoop, everything_allowed, running_clock
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import TransportError
from tapestry.kube.objects import Object, object_named, value_at
from tapestry.kube.resources import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    SIGNING_REQUESTS,
)
from tapestry.manager.app import SyncerCluster, install, with_election_namespace
from tapestry.manager.config import BindingsConfig

SYSTEM = keys.SYSTEM_NAMESPACE
OF_SYNCERS = (
    SERVICE_ACCOUNTS,
    ROLES,
    ROLE_BINDINGS,
    CLUSTER_ROLES,
    CLUSTER_ROLE_BINDINGS,
    DISRUPTION_BUDGETS,
    SERVICES,
    DEPLOYMENTS,
)
VIRTUAL = (
    *(CLUSTER_BINDINGS, POLICIES, NAMESPACES, SECRETS, NODES, PODS, EVENTS, LEASES, SIGNING_REQUESTS, *OF_SYNCERS),
    *(ADMISSION_POLICIES, ADMISSION_POLICY_BINDINGS, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES),
)
PHYSICAL = (NAMESPACES, *BELONGINGS)


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualLoop} if "world" in item.fixturenames else {"real": asyncio.new_event_loop}


def kubeconfig_of(server: str, token: str = "opaque") -> bytes:
    """Return a kubeconfig that is valid in a Secret."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "only",
            "clusters": [{"name": "only", "cluster": {"server": server}}],
            "users": [{"name": "only", "user": {"token": token}}],
            "contexts": [{"name": "only", "context": {"cluster": "only", "user": "only"}}],
        }
    ).encode()


def token_of(**claims: Any) -> str:
    """Return an unsigned JSON Web Token."""
    parts = ({"alg": "none"}, claims)
    encoded = (base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in parts)
    return ".".join([*encoded, "signature"])


class UnreachableTransport:
    """A transport to an unreachable cluster."""

    async def send(self, request: object) -> Any:
        raise TransportError(f"{request}: nobody is there", maybe_sent=False)

    async def close(self) -> None:
        return


@dataclass
class World:
    clock: VirtualClock
    api: InProcessApi
    client: Client
    """Client of all other users of the virtual cluster."""
    clusters: dict[str, InProcessApi] = field(default_factory=dict)
    """Physical clusters by server.  A missing one is unreachable."""
    connected_servers: list[str] = field(default_factory=list)
    """The servers that were connected to, in order."""

    # -- actions of users

    async def add_cluster(self, server: str, *denied: str) -> str:
        """Add a physical cluster that denies some permissions, as in `list nodes`.  Return its identity."""

        def review(body: Object) -> Object:
            attributes = value_at(body, "spec", "resourceAttributes", default={})
            group = ".metrics.k8s.io" if attributes.get("group") == "metrics.k8s.io" else ""
            return {"allowed": f"{attributes['verb']} {attributes['resource']}{group}" not in denied}

        api = InProcessApi(PHYSICAL, now=self.clock.now, review=review if denied else everything_allowed)
        self.clusters[server] = api
        created = await Client(api.connect()).create(NAMESPACES, {**object_named("kube-system")})
        return str(created["metadata"]["uid"])

    async def add_secret(self, name: str, data: Mapping[str, bytes], namespace: str = SYSTEM) -> Object:
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        return await self.client.create(SECRETS, {**object_named(name, namespace), "data": encoded})

    async def add_binding(self, name: str, **spec: Any) -> Object:
        given = {
            "clusterID": name,
            "secretRef": {"name": name, "namespace": SYSTEM},
            "mountNamespace": "leased",
            **spec,
        }
        return await self.client.create(CLUSTER_BINDINGS, {**object_named(name), "spec": given})

    async def join(self, name: str, server: str = "https://east.example", **spec: Any) -> Object:
        """Create everything needed to bind a cluster.  Return the binding once it is Ready."""
        if server not in self.clusters:
            await self.add_cluster(server)
        await self.add_secret(name, {"kubeconfig": kubeconfig_of(server)})
        await self.add_binding(name, **spec)
        return await self.reaches(name, "Ready")

    async def patch(self, name: str, patch: Object, **options: Any) -> Object:
        return await self.client.patch(CLUSTER_BINDINGS, object_named(name), patch, **options)

    async def annotate(self, name: str, key: str, value: str) -> Object:
        return await self.patch(name, {"metadata": {"annotations": {key: value}}})

    async def set_finalizers(self, name: str, *finalizers: str) -> Object:
        return await self.patch(name, {"metadata": {"finalizers": list(finalizers)}})

    async def unbind(self, name: str) -> None:
        await self.client.delete(CLUSTER_BINDINGS, object_named(name))

    async def wait(self, seconds: float) -> None:
        """Let everything happen within that time."""
        await asyncio.sleep(seconds)

    # -- results

    async def binding(self, name: str) -> Object:
        return await self.client.get(CLUSTER_BINDINGS, name)

    async def reaches(self, name: str, phase: str, reason: str = "") -> Object:
        """Wait for a phase and reason of the binding, and return it."""

        def is_there(obj: Object | None) -> bool:
            ready = find_condition(value_at(obj, "status", "conditions"), "Ready") or {}
            return value_at(obj, "status", "phase") == phase and (not reason or ready.get("reason") == reason)

        found = await wait_for(self.client, CLUSTER_BINDINGS, name, until=is_there, timeout=3600)
        assert found is not None
        return found

    async def condition(self, name: str, type: str) -> tuple[str, str]:
        """Return status and reason of a binding's condition."""
        found = find_condition(value_at(await self.binding(name), "status", "conditions"), type) or {}
        return found.get("status", ""), found.get("reason", "")

    async def message(self, name: str, type: str = "Ready") -> str:
        return str(
            (find_condition(value_at(await self.binding(name), "status", "conditions"), type) or {}).get("message")
        )

    async def is_gone(self, name: str) -> None:
        await wait_for(self.client, CLUSTER_BINDINGS, name, until=lambda obj: obj is None, timeout=3600)

    async def deployment(self, name: str = "tapestry-syncer-east") -> Object:
        found = await wait_for(self.client, DEPLOYMENTS, name, SYSTEM, until=bool, timeout=3600)
        assert found is not None
        return found

    async def of_syncers(self) -> list[str]:
        """Return the objects of syncers, as `Kind name`."""
        return [
            f"{resource.kind} {obj['metadata']['name']}"
            for resource in OF_SYNCERS
            for obj in await self.client.list(resource)
        ]

    async def reasons(self) -> list[str]:
        """Return the reasons of all events so far, in order."""
        await asyncio.sleep(1)
        events = await self.client.list(EVENTS)
        return [
            event["reason"] for event in sorted(events, key=lambda event: int(event["metadata"]["resourceVersion"]))
        ]

    # -- the manager

    def connect(self, access: Access) -> Transport:
        self.connected_servers.append(access.server)
        api = self.clusters.get(access.server)
        return api.connect() if api is not None else UnreachableTransport()  # type: ignore[return-value]

    @asynccontextmanager
    async def running(
        self, config: BindingsConfig | None = None, syncer_cluster: SyncerCluster | None = None
    ) -> AsyncIterator[Manager]:
        """Run a manager and stop it at the end."""
        quiet = structs.replace(config or BindingsConfig(), metrics=Metrics(address=""), probes=Probes(address=""))
        manager = Manager(
            with_election_namespace(quiet),
            self.api.connect,
            identity=f"manager-{self.clock.monotonic()}",
            now=self.clock.now,
            monotonic=self.clock.monotonic,
        )
        manager.register(
            "bindings", lambda each: install(quiet, each, connect=self.connect, syncer_cluster=syncer_cluster)
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(manager.run())
            yield manager
            manager.stop()

    kubeconfig = staticmethod(kubeconfig_of)
    token = staticmethod(token_of)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    clock = running_clock()
    api = InProcessApi(VIRTUAL, now=clock.now)
    client = Client(api.connect())
    await client.create(NAMESPACES, object_named("kube-system"))
    yield World(clock, api, client)
    await client.close()


@pytest.fixture
def new_kubeconfig() -> Callable[..., bytes]:
    """Return a function: a kubeconfig by server and token."""
    return kubeconfig_of


@pytest.fixture
def new_token() -> Callable[..., str]:
    """Return a function: a token by its claims."""
    return token_of
