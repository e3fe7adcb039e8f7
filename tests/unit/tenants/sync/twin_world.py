"""Test world of twins: a plane and a host cluster in process, and a syncer with the controllers of some kinds."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, Binding, binding_of
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.transport import Transport
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.config import Metrics, Probes
from tapestry.controller.testing import InProcessApi, running_clock
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, object_named, value_at
from tapestry.kube.resources import EVENTS, Resource
from tapestry.syncer.components import Syncer, build_components
from tapestry.syncer.config import SyncerConfig, SyncerLeaderElection
from tapestry.syncer.switchable_transport import SwitchableTransport

from ...syncer.world import A_DAY, SERVED, Link, LinkTransport

BINDING, PLANE, MOUNT = "green", "plane-green", "tenant-green"
CONFIG = SyncerConfig(
    name=BINDING,
    binding=BINDING,
    leader_election=SyncerLeaderElection(enabled=False),
    metrics=Metrics(address=""),
    probes=Probes(address=""),
)
Wire = Callable[[Syncer], object]


async def add_binding(plane: Client, **spec: Any) -> None:
    """Create the binding of the tenant."""
    given = {"clusterID": BINDING, "virtualCluster": PLANE, "hostCluster": "host", "mountNamespace": MOUNT, **spec}
    await plane.create(CLUSTER_BINDINGS, {**object_named(BINDING), "spec": given})


async def the_binding(plane: Client) -> Binding:
    return binding_of(await plane.get(CLUSTER_BINDINGS, BINDING), PLANE)


async def build_twin_syncer(manager: Manager, host: Transport, wire: Wire) -> Syncer:
    """Register a syncer with the controllers that `wire` adds. The setup of a scenario of the perturbation driver."""
    binding = await wait_for(manager.reads, CLUSTER_BINDINGS, BINDING, until=bool, timeout=A_DAY)
    assert binding is not None
    monotonic = running_clock().monotonic
    transports = SwitchableTransport(lambda _: host, monotonic), SwitchableTransport(lambda _: host, monotonic)
    for each in transports:
        await each.switch_to(Access(server="https://host"))
    secret = {"secretRef": {"name": "unused", "namespace": "unused"}}  # which bindings of leased clusters have
    binding = {**binding, "spec": {**binding["spec"], **secret}}
    syncer = build_components(CONFIG, manager, binding, PLANE, transports)
    manager.register("twins", lambda _: wire(syncer))
    return syncer


def is_about(*resources: Resource) -> Callable[[str], bool]:
    """Select the calls to disturb: those to some resources, and not the events."""
    paths = tuple(f"/{each.plural}" for each in resources)
    return lambda call: any(each in call for each in paths)


@dataclass
class SyncerLink(Link):
    """Connection of the syncer to its plane, in which it writes what others may not."""

    def connect(self) -> Transport:
        self._transports.append(LinkTransport(self, self.api.connect(as_syncer=True)))
        return self._transports[-1]


@dataclass
class TwinWorld:
    """A plane and a host cluster. The test's own clients are never rejected or cut."""

    plane: Client
    host: Client
    up: Link
    down: Link
    started: list[Syncer] = field(default_factory=list)

    @asynccontextmanager
    async def syncer(self, wire: Wire) -> AsyncIterator[Syncer]:
        """Run a syncer with the controllers that `wire` adds."""
        clock = running_clock()
        manager = Manager(CONFIG, self.up.connect, identity=BINDING, now=clock.now, monotonic=clock.monotonic)
        syncer = await build_twin_syncer(manager, self.down.connect(), wire)
        async with asyncio.TaskGroup() as group:
            group.create_task(manager.run())
            await asyncio.sleep(1)
            yield syncer
            manager.stop()

    async def set_binding(self, **spec: Any) -> None:
        await self.plane.patch(CLUSTER_BINDINGS, object_named(BINDING), {"spec": spec})
        await asyncio.sleep(1)

    async def events(self, reason: str) -> list[str]:
        """Return the messages of the events in the plane with a reason."""
        return [each["message"] for each in await self.plane.list(EVENTS) if each["reason"] == reason]

    async def twins(self, resource: Resource) -> list[Object]:
        return await self.host.list(resource, MOUNT)


async def new_twin_world(**spec: Any) -> TwinWorld:
    """Create both clusters and the binding; `spec` is part of the binding."""
    plane = InProcessApi(SERVED, now=running_clock().now, seed=0, is_plane=True)
    host = InProcessApi(SERVED, now=running_clock().now, seed=1)
    world = TwinWorld(Client(plane.connect()), Client(host.connect()), SyncerLink(plane), Link(host))
    await add_binding(world.plane, **spec)
    return world


def condition(obj: Object, type: str) -> tuple[str, str] | None:
    """Return the status and the reason of a condition."""
    found = find_condition(value_at(obj, "status", "conditions"), type)
    return (found["status"], found["reason"]) if found else None
