"""Namespaces watched for ConfigMaps and Secrets, and their timeout, on virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from tapestry.client.client import Client
from tapestry.controller.store import Store
from tapestry.controller.testing import InProcessApi, in_virtual_time, running_clock
from tapestry.kube.objects import Object, key_of, object_named
from tapestry.kube.resources import CONFIGMAPS, SECRETS
from tapestry.syncer.cache_transforms import dependency_namespace
from tapestry.syncer.topdown.source_cache import IDLE_TIMEOUT, SourceCache


class Namespaces:
    """A virtual cluster with pods of ours."""

    def __init__(self) -> None:
        self.api = InProcessApi([CONFIGMAPS, SECRETS], now=running_clock().now)
        self.client = Client(self.api.connect())
        self.pods = Store({"namespace": dependency_namespace})
        self.notifications: list[tuple[str, bool, bool]] = []
        self.known: list[str] = []
        pods: Any = SimpleNamespace(store=self.pods)
        reads, now = Client(self.api.connect()), running_clock().now
        self.sources = SourceCache(pods, reads, now, self.record, self.known.append)

    def record(self, key: str, old: Object | None, new: Object | None) -> None:
        self.notifications.append((key, old is not None, new is not None))

    def add_pod(self, pod: Object) -> None:
        self.pods.put(key_of(pod), pod)

    async def add(self, namespace: str, name: str) -> None:
        await self.client.create(CONFIGMAPS, {**object_named(name, namespace), "data": {"k": "v"}})

    async def reconcile(self, namespace: str) -> float | None:
        """Reconcile a namespace; return the seconds until the next pass."""
        result = await self.sources.reconcile(namespace)
        await asyncio.sleep(0.1)
        at = result.requeue_at if result is not None else None
        return None if at is None else round((at - running_clock().now()).total_seconds())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each.run()) for each in self.sources.informers.values()]
            yield
            for task in tasks:
                task.cancel()


def new_pod(name: str, namespace: str, phase: str = "Running") -> Object:
    return {**object_named(name, namespace), "status": {"phase": phase}}


@in_virtual_time
async def test_namespace_is_synced_after_its_first_pod() -> None:
    world = Namespaces()
    await world.add("shop", "settings")
    async with world.running():
        assert await world.reconcile("shop") is None
        assert not world.sources.is_synced("configmaps/shop/settings")
        world.add_pod(new_pod("web", "shop"))
        assert await world.reconcile("shop") is None
        assert world.sources.is_synced("configmaps/shop/settings")
        assert world.sources.get("configmaps/shop/settings") is not None
        assert world.sources.get("secrets/shop/settings") is None
        assert not world.sources.is_synced("configmaps/bank/settings")
        assert world.sources.get("configmaps/bank/settings") is None
        assert set(world.known) == {"shop"}


@in_virtual_time
async def test_changes_of_sources_are_reported() -> None:
    world = Namespaces()
    world.add_pod(new_pod("web", "shop"))
    async with world.running():
        await world.reconcile("shop")
        await world.add("shop", "settings")
        await world.client.patch(CONFIGMAPS, object_named("settings", "shop"), {"data": {"k": "w"}})
        await world.client.delete(CONFIGMAPS, object_named("settings", "shop"))
        await world.add("bank", "settings")
        await asyncio.sleep(1)
        key = "configmaps/shop/settings"
        assert world.notifications == [(key, False, True), (key, True, True), (key, True, False)]


@in_virtual_time
async def test_namespace_is_watched_after_its_last_pod() -> None:
    world = Namespaces()
    world.add_pod(new_pod("web", "shop"))
    async with world.running():
        await world.reconcile("shop")
        world.add_pod(new_pod("web", "shop", "Succeeded"))
        assert await world.reconcile("shop") == IDLE_TIMEOUT.total_seconds()
        await asyncio.sleep(IDLE_TIMEOUT.total_seconds() / 2)
        world.add_pod(new_pod("next", "shop"))
        assert await world.reconcile("shop") is None
        world.pods.remove(key_of(new_pod("next", "shop")))
        await world.reconcile("shop")
        await asyncio.sleep(IDLE_TIMEOUT.total_seconds())
        assert await world.reconcile("shop") is None
        assert not world.sources.is_synced("configmaps/shop/settings")
        await world.add("shop", "settings")
        await asyncio.sleep(1)
        assert world.notifications == []


@in_virtual_time
async def test_system_pods_watch_nothing() -> None:
    world = Namespaces()
    world.add_pod(new_pod("proxy", "kube-system"))
    async with world.running():
        assert await world.reconcile("kube-system") is None
        assert not world.sources.is_synced("configmaps/kube-system/proxy")
