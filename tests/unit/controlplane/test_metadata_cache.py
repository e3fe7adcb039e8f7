"""Tests of the metadata cache."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.apiserver.core.requests import APISERVER_USER
from tapestry.apiserver.core.store import Key, ObjectVersion
from tapestry.apiserver.handlers.server import Server
from tapestry.client.client import Client
from tapestry.client.discovery import served_resources
from tapestry.client.responses import ENCODER
from tapestry.controller import Manager
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.controlplane.metadata_cache import MetadataCache, metadata_of
from tapestry.kube.objects import Object, name_of
from tapestry.kube.resources import CONFIGMAPS, CRDS, DEPLOYMENTS, NAMESPACES, PODS, Resource

from .objects import WIDGETS, define, new_map, new_namespace, new_widget, widget_definition


class ChangeLog:
    """Records changes as lines that a test can wait for."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._changed = asyncio.Event()

    def __call__(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        what = "added" if old is None else "deleted" if new is None else "modified"
        self.lines.append(f"{resource.name} {name_of(new or old or {})} {what}")
        self._changed.set()

    async def wait_for_line(self, line: str) -> bool:
        async with asyncio.timeout(10):
            while line not in self.lines:
                self._changed.clear()
                await self._changed.wait()
        return True


@pytest.fixture
def changes() -> ChangeLog:
    return ChangeLog()


@pytest.fixture
def manager(server: Server) -> Manager:
    config = ManagerConfig(metrics=Metrics(address=""), probes=Probes(address=""))
    return Manager(config, lambda: InProcessTransport(server, APISERVER_USER), identity="test")


@pytest.fixture
async def metadata(server: Server, manager: Manager, changes: ChangeLog) -> AsyncIterator[MetadataCache]:
    cache = MetadataCache(manager, server.verbs.store, server.registry)
    cache.on_change(changes)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(cache.run())
        await cache.synced.wait()
        yield cache
        running.cancel()


async def test_served_resources_are_included_except_events(metadata: MetadataCache) -> None:
    included = {"configmaps", "deployments.apps", "namespaces", CRDS.name}
    assert all(metadata.resource_named(each) for each in included)
    excluded = {"events", "events.events.k8s.io", "tokenreviews.authentication.k8s.io", "bindings"}
    assert not any(metadata.resource_named(each) for each in excluded)
    assert metadata.resources_by_kind["apps", "Deployment"] == DEPLOYMENTS


async def test_resources_are_those_of_discovery(client: Client, metadata: MetadataCache) -> None:
    await define(client)
    await metadata.synced.wait()
    discovered = await served_resources(client)
    assert {each: set(verbs) for each, verbs in metadata.resources.items()} == discovered
    assert WIDGETS in discovered


async def test_objects_are_reported_by_metadata(client: Client, metadata: MetadataCache, changes: ChangeLog) -> None:
    await client.create(CONFIGMAPS, {**new_map("a", labels={"l": "v"}), "data": {"k": "v"}})
    assert await changes.wait_for_line("configmaps a added")
    cached = metadata.get(CONFIGMAPS, "default/a")
    assert cached is not None
    assert set(cached) == {"metadata"}
    assert set(cached["metadata"]) == {"name", "namespace", "uid", "resourceVersion"}


async def test_changes_are_reported_once_and_in_order(
    client: Client, metadata: MetadataCache, changes: ChangeLog
) -> None:
    created = await client.create(CONFIGMAPS, new_map("a"))
    await client.patch(CONFIGMAPS, created, {"data": {"k": "v"}})
    await client.delete(CONFIGMAPS, await client.get(CONFIGMAPS, "a", "default"))
    await metadata.synced.wait()
    about_a = [each for each in changes.lines if each.startswith("configmaps a ")]
    assert about_a == ["configmaps a added", "configmaps a modified", "configmaps a deleted"]


async def test_existing_objects_are_reported_at_the_start(
    client: Client, server: Server, manager: Manager, changes: ChangeLog
) -> None:
    owner = await client.create(CONFIGMAPS, new_map("owner"))
    await client.create(CONFIGMAPS, new_map("owned", owner))
    cache = MetadataCache(manager, server.verbs.store, server.registry)
    cache.on_change(changes)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(cache.run())
        await cache.synced.wait()
        assert "configmaps owned added" in changes.lines
        assert [name_of(each) for _, each in cache.dependents(owner)] == ["owned"]
        running.cancel()


async def test_stopped_cache_no_longer_follows_the_store(
    client: Client, server: Server, manager: Manager, changes: ChangeLog
) -> None:
    cache = MetadataCache(manager, server.verbs.store, server.registry)
    cache.on_change(changes)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(cache.run())
        await cache.synced.wait()
        running.cancel()
    await client.create(CONFIGMAPS, new_map("later"))
    assert cache.synced.is_set()  # a change would clear it
    assert "configmaps later added" not in changes.lines


async def test_dependents_follow_owner_references(client: Client, metadata: MetadataCache) -> None:
    one, two = [await client.create(CONFIGMAPS, new_map(each)) for each in ("one", "two")]
    owned = await client.create(CONFIGMAPS, new_map("owned", one))
    await metadata.synced.wait()
    assert [name_of(each) for _, each in metadata.dependents(one)] == ["owned"]
    owned = await client.patch(
        CONFIGMAPS, owned, {"metadata": {"ownerReferences": new_map("", two)["metadata"]["ownerReferences"]}}
    )
    await metadata.synced.wait()
    assert [name_of(each) for _, each in metadata.dependents(two)] == ["owned"]
    assert list(metadata.dependents(one)) == []
    await client.delete(CONFIGMAPS, owned)
    await metadata.synced.wait()
    assert metadata.dependent_keys(two) == []


async def test_namespaced_owner_has_no_dependents_elsewhere(client: Client, metadata: MetadataCache) -> None:
    await client.create(NAMESPACES, new_namespace("other"))
    owner = await client.create(CONFIGMAPS, new_map("owner"))
    await client.create(CONFIGMAPS, new_map("claimed", owner, namespace="other"))
    await metadata.synced.wait()
    assert list(metadata.dependents(owner)) == []


async def test_custom_resources_are_included_while_defined(
    client: Client, metadata: MetadataCache, changes: ChangeLog
) -> None:
    definition = await define(client)
    owner = await client.create(CONFIGMAPS, new_map("owner"))
    references = new_map("", owner)["metadata"]["ownerReferences"]
    await client.create(WIDGETS, new_widget("w", ownerReferences=references))
    assert await changes.wait_for_line("widgets.example.com w added")
    await metadata.synced.wait()
    assert metadata.dependent_keys(owner) == [Key("widgets.example.com", "default", "w")]
    await client.delete(CRDS, definition)
    deleting = await client.get(CRDS, name_of(definition))
    await client.patch(CRDS, deleting, {"metadata": {"finalizers": None}})  # before its objects are deleted
    assert await changes.wait_for_line("widgets.example.com w deleted")
    await metadata.synced.wait()
    assert metadata.resource_named("widgets.example.com") is None
    assert metadata.dependent_keys(owner) == []
    await client.create(CRDS, widget_definition())
    await metadata.synced.wait()
    assert changes.lines.count("widgets.example.com w added") == 2
    assert metadata.dependent_keys(owner) == [Key("widgets.example.com", "default", "w")]


async def test_objects_of_a_terminating_definition_are_included(
    client: Client, metadata: MetadataCache, changes: ChangeLog
) -> None:
    definition = await define(client)
    widget = await client.create(WIDGETS, new_widget("w"))
    await client.delete(CRDS, definition)
    await metadata.synced.wait()
    assert "widgets.example.com w deleted" not in changes.lines
    await client.delete(WIDGETS, widget)
    assert await changes.wait_for_line("widgets.example.com w deleted")


@given(st.dictionaries(st.text(min_size=1, max_size=8), st.integers(), max_size=5))
@settings(max_examples=20)
def test_only_ownership_metadata_is_decoded(data: dict[str, int]) -> None:
    metadata = {"name": "a", "namespace": "b", "uid": "c", "resourceVersion": "1"}
    owners = {"ownerReferences": [{"uid": "o"}], "finalizers": ["f"], "deletionTimestamp": "t"}
    bulk = {f"x{key}": value for key, value in data.items()}
    raw = ENCODER.encode({"metadata": {**metadata, **owners, **bulk}, "spec": data})
    assert metadata_of(ObjectVersion(Key("configmaps", "b", "a"), 1, raw, {})) == {"metadata": {**metadata, **owners}}


async def test_resources_use_the_preferred_version(client: Client) -> None:
    resources = await served_resources(client)
    assert resources[PODS] >= {"list", "watch", "delete", "patch"}
    assert NAMESPACES in resources
    assert Resource("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers") in resources
    assert not [each for each in resources if each.group == "autoscaling" and each.version == "v1"]
