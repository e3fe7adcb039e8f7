"""Informers for a changing set of namespaces."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tapestry.client.client import Client
from tapestry.controller import Informer
from tapestry.controller.testing import InProcessApi, in_virtual_time, running_clock
from tapestry.kube.objects import key_of, object_named
from tapestry.kube.resources import SERVICES
from tapestry.syncer.topdown.namespace_informers import NamespaceInformers


class FollowedCluster:
    """A cluster whose Services are watched, and the observed changes."""

    def __init__(self) -> None:
        self.client = Client(InProcessApi([SERVICES], now=running_clock().now).connect())
        self.seen: list[str] = []
        self.following = NamespaceInformers(self.informer)

    def informer(self, namespace: str) -> Informer:
        informer = Informer(self.client, SERVICES, namespace=namespace)
        informer.on_change(lambda _, new: self.seen.append(key_of(new)) if new is not None else None)
        return informer

    async def follow(self, *namespaces: str) -> None:
        self.following.set_namespaces(namespaces)
        await asyncio.sleep(1)

    async def add(self, *keys: str) -> None:
        for key in keys:
            namespace, name = key.split("/")
            await self.client.create(SERVICES, {**object_named(name, namespace), "spec": {"ports": [{"port": 80}]}})
        await asyncio.sleep(1)


@asynccontextmanager
async def followed_cluster() -> AsyncIterator[FollowedCluster]:
    story = FollowedCluster()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(story.following.run())
        yield story
        running.cancel()


@in_virtual_time
async def test_only_current_namespaces_are_watched() -> None:
    async with followed_cluster() as story:
        await story.add("a/one", "b/one")
        assert story.seen == []
        await story.follow("a")
        await story.add("a/two", "b/two")
        assert story.seen == ["a/one", "a/two"]
        await story.follow("b")
        await story.add("a/three", "b/three")
        assert story.seen[2:] == ["b/one", "b/two", "b/three"]


@in_virtual_time
async def test_namespace_added_again_gets_new_informer() -> None:
    async with followed_cluster() as story:
        await story.add("a/one")
        for namespaces in (["a"], [], ["a"]):
            await story.follow(*namespaces)
        assert story.seen == ["a/one", "a/one"]


@in_virtual_time
async def test_remaining_namespace_keeps_its_informer() -> None:
    async with followed_cluster() as story:
        await story.add("a/one")
        await story.follow("a")
        informer = story.following.synced_informer("a")
        await story.follow("b", "a")
        assert story.following.synced_informer("a") is informer
        assert story.seen == ["a/one"]


@in_virtual_time
async def test_unsynced_namespace_has_no_objects() -> None:
    async with followed_cluster() as story:
        await story.add("a/one", "b/one")
        story.following.set_namespaces(["a"])
        assert story.following.synced_informer("a") is None
        assert story.following.get("a/one") is None
        assert story.following.objects() is None
        await asyncio.sleep(1)
        assert story.following.get("a/one") is not None
        assert story.following.get("b/one") is None
        assert list(story.following.keys()) == ["a/one"]
        assert [key_of(obj) for obj in story.following.objects() or ()] == ["a/one"]
