"""Watches of ConfigMaps and Secrets, and their timeout, on virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tapestry.apis import keys
from tapestry.client.client import Client
from tapestry.controller.store import Store
from tapestry.controller.testing import InProcessApi, in_virtual_time, running_clock
from tapestry.kube.errors import Forbidden
from tapestry.kube.objects import Object, key_of, object_named
from tapestry.kube.resources import CONFIGMAPS, SECRETS
from tapestry.syncer.cache_transforms import dependency_namespace
from tapestry.syncer.grants import MIN_PAUSE
from tapestry.syncer.topdown import source_cache
from tapestry.syncer.topdown.source_cache import IDLE_TIMEOUT, POLL_SECONDS, SourceCache

from ..world import Link


class Namespaces:
    """A virtual cluster with pods of ours."""

    def __init__(self) -> None:
        self.api = InProcessApi([CONFIGMAPS, SECRETS], now=running_clock().now)
        self.client = Client(self.api.connect())
        self.pods = Store({"namespace": lambda pod: dependency_namespace(pod, keys.SYSTEM_NAMESPACE)})
        self.notifications: list[tuple[str, bool, bool]] = []
        self.known: list[str] = []
        self.requeued: list[str] = []
        self.secrets: set[str] = set()
        """Scopes of Secrets that pods use."""
        self.link = Link(self.api)
        reads, now = Client(self.link.connect()), running_clock().now
        self.sources = SourceCache(self.is_used, reads, now, self.record, self.known.append, self.requeued.append)

    def is_used(self, scope: str) -> bool:
        kind, _, target = scope.partition("/")
        return scope in self.secrets if kind == "secrets" else any(self.pods.iter_by("namespace", target))

    def record(self, key: str, old: Object | None, new: Object | None) -> None:
        self.notifications.append((key, old is not None, new is not None))

    def add_pod(self, pod: Object) -> None:
        self.pods.put(key_of(pod), pod)

    async def add(self, namespace: str, name: str) -> None:
        await self.client.create(CONFIGMAPS, {**object_named(name, namespace), "data": {"k": "v"}})

    async def reconcile(self, scope: str) -> float | None:
        """Reconcile a scope, by default the ConfigMaps of a namespace; return the seconds until the next pass."""
        result = await self.sources.reconcile(scope if "/" in scope else f"configmaps/{scope}")
        await asyncio.sleep(0.1)
        if result is not None and result.requeue_after is not None:
            return result.requeue_after
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
        assert set(world.known) == {"configmaps/shop"}


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


async def add_secret(world: Namespaces, name: str) -> None:
    await world.client.create(SECRETS, {**object_named(name, "shop"), "data": {"k": "dg=="}})


@in_virtual_time
async def test_each_secret_is_watched_by_its_name() -> None:
    world = Namespaces()
    await add_secret(world, "password")
    await add_secret(world, "other")
    async with world.running():
        world.secrets.add("secrets/shop/password")
        assert await world.reconcile("secrets/shop/password") is None
        assert world.sources.get("secrets/shop/password") is not None
        assert not world.sources.is_synced("secrets/shop/other")
        await world.client.patch(SECRETS, object_named("password", "shop"), {"data": {"k": "dw=="}})
        await world.client.patch(SECRETS, object_named("other", "shop"), {"data": {"k": "dw=="}})
        await asyncio.sleep(1)
        key = "secrets/shop/password"
        assert world.notifications == [(key, False, True), (key, True, True)]
        assert {each.path for each in world.link.requests} == {"/api/v1/namespaces/shop/secrets/password"}


@in_virtual_time
async def test_secrets_over_the_limit_are_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_cache, "MAX_WATCHED_SECRETS", 1)
    world = Namespaces()
    async with world.running():
        world.secrets |= {"secrets/shop/first", "secrets/shop/second"}
        assert await world.reconcile("secrets/shop/first") is None
        assert await world.reconcile("secrets/shop/second") == POLL_SECONDS
        assert world.sources.is_synced("secrets/shop/second")
        assert world.sources.get("secrets/shop/second") is None
        await add_secret(world, "second")
        assert await world.reconcile("secrets/shop/second") == POLL_SECONDS
        assert world.sources.get("secrets/shop/second") is not None
        assert world.notifications == [("secrets/shop/second", False, True)]
        world.secrets.clear()
        await world.reconcile("secrets/shop/second")
        await asyncio.sleep(IDLE_TIMEOUT.total_seconds())
        await world.reconcile("secrets/shop/second")
        assert not world.sources.is_synced("secrets/shop/second")


@in_virtual_time
async def test_watch_starts_once_it_is_allowed() -> None:
    world = Namespaces()
    world.add_pod(new_pod("web", "shop"))
    world.link.rejection = lambda _: Forbidden(403, "Forbidden", "not yet")
    async with world.running():
        assert await world.reconcile("shop") == MIN_PAUSE
        assert not world.sources.is_synced("configmaps/shop/settings")
        world.link.rejection = lambda _: None
        assert await world.reconcile("shop") is None
        assert world.sources.is_synced("configmaps/shop/settings")
