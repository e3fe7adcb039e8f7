"""A world for controller tests: an in-process API, a client, managers and virtual time.

A test with the fixture `world` or `virtual_time` runs on a VirtualLoop.  Sleeping lets all pending work finish, and
then advances the clock.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client import REGISTRY

from tapestry.client.client import Client
from tapestry.client.transport import Transport
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controller.controller import Reconcile
from tapestry.controller.manager import Manager, Setup
from tapestry.controller.testing.api import InProcessApi, specimen
from tapestry.controller.testing.clock import VirtualClock, VirtualLoop, running_clock
from tapestry.kube.objects import Object, object_named
from tapestry.kube.resources import CONFIGMAPS, EVENTS, JOBS, LEASES, NODES, PODS, Resource

WIDGETS = Resource("example.com", "v1", "Widget", "widgets")
RESOURCES = (WIDGETS, PODS, NODES, CONFIGMAPS, JOBS, EVENTS, LEASES)


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    is_virtual = "virtual_time" in item.fixturenames
    return {"virtual": VirtualLoop} if is_virtual else {"real": asyncio.new_event_loop}


@pytest.fixture
async def virtual_time() -> VirtualClock:
    """Return the clock of the running loop."""
    return running_clock()


@pytest.fixture
def widgets() -> Resource:
    """Return a custom resource with a status."""
    return WIDGETS


@dataclass(frozen=True)
class World:
    """A server, and `client` for all other users of it."""

    clock: VirtualClock
    api: InProcessApi
    client: Client
    widgets: Resource = WIDGETS

    async def add(self, resource: Resource, name: str, namespace: str | None = "default", **fields: Any) -> Object:
        """Create an object.  Metadata fields, for example `labels`, go into its metadata, others to the top level."""
        parts = ("labels", "annotations", "ownerReferences", "finalizers")
        metadata = {part: fields.pop(part) for part in parts if part in fields}
        obj = specimen(resource, name, namespace if resource.namespaced else None, **metadata)
        return await self.client.create(resource, {**obj, **fields})

    async def get(self, resource: Resource, name: str, namespace: str | None = "default") -> Object:
        return await self.client.get(resource, name, namespace if resource.namespaced else None)

    async def set_status(self, resource: Resource, name: str, **status: Any) -> Object:
        target = object_named(name, "default" if resource.namespaced else None)
        return await self.client.patch(resource, target, {"status": status}, subresource="status")

    async def events(self) -> list[Object]:
        return await self.client.list(EVENTS)

    def manager(
        self,
        *setups: Setup,
        identity: str = "first",
        keep: Callable[[Object], bool] | None = None,
        connect: Callable[[], Transport] | None = None,
        **settings: Any,
    ) -> Manager:
        """Return a manager without listeners, unless `settings` override it."""
        quiet = {"metrics": Metrics(address=""), "probes": Probes(address="")}
        config = ManagerConfig(**{**quiet, **settings})
        manager = Manager(
            config,
            connect or self.api.connect,
            identity=identity,
            keep=keep,
            now=self.clock.now,
            monotonic=self.clock.monotonic,
        )
        for number, setup in enumerate(setups):
            manager.register(f"setup-{number}", setup)
        return manager

    def widget_manager(self, reconcile: Reconcile, **settings: Any) -> Manager:
        """Return a manager with one controller, `widgets`, that reconciles each changed Widget."""

        def setup(manager: Manager) -> None:
            manager.controller("widgets", reconcile).watch(manager.informer(WIDGETS))

        return self.manager(setup, **settings)

    @asynccontextmanager
    async def running(self, *managers: Manager) -> AsyncIterator[None]:
        """Run the managers and stop them at the end."""
        async with asyncio.TaskGroup() as group:
            for manager in managers:
                group.create_task(manager.run())
            await asyncio.sleep(1)
            yield
            for manager in managers:
                manager.stop()


@pytest.fixture
async def world(virtual_time: VirtualClock) -> AsyncIterator[World]:
    api = InProcessApi(RESOURCES, now=virtual_time.now)
    client = Client(api.connect())
    yield World(virtual_time, api, client)
    await client.close()


@pytest.fixture
def growth() -> Callable[..., float]:
    """Return a function: the growth of a metric since its first call, by name and labels."""
    seen: dict[tuple[str, ...], float] = {}

    def since(metric: str, **labels: str) -> float:
        value = REGISTRY.get_sample_value(metric, labels) or 0.0
        key = (metric, *sorted(labels.items()))
        return value - seen.setdefault(key, value)

    return since
