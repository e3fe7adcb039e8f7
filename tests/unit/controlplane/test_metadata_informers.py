"""Tests of the metadata informers."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tapestry.apiserver.core.requests import APISERVER_USER
from tapestry.apiserver.handlers.server import Server
from tapestry.client.client import Client
from tapestry.client.discovery import served_resources
from tapestry.controller import Manager
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.controlplane.metadata_informers import MetadataInformers
from tapestry.kube.objects import Object, name_of
from tapestry.kube.resources import CONFIGMAPS, CRDS, NAMESPACES, PODS, Resource

from .objects import WIDGETS, define, new_map, new_widget


class ChangeLog:
    """Records changes as lines that a test can wait for."""

    def __init__(self) -> None:
        self.lines: set[str] = set()
        self._changed = asyncio.Event()

    def __call__(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        self.lines.add(f"{resource.name} {name_of(new or old or {})} {'added' if old is None else 'deleted'}")
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
async def informers(server: Server, changes: ChangeLog) -> AsyncIterator[MetadataInformers]:
    config = ManagerConfig(metrics=Metrics(address=""), probes=Probes(address=""))
    manager = Manager(config, lambda: InProcessTransport(server, APISERVER_USER), identity="test")
    created: list[MetadataInformers] = []

    async def wait_forever(_: str) -> None:
        await asyncio.Event().wait()

    def setup(each: Manager) -> None:
        created.append(MetadataInformers(each))
        created[0].on_change(changes)
        each.controller("idle", wait_forever)

    manager.register("everything", setup)
    manager.setup()
    async with asyncio.TaskGroup() as group:
        group.create_task(manager.run())
        await created[0].synced.wait()
        yield created[0]
        manager.stop()


async def test_served_resources_are_watched_except_events(informers: MetadataInformers) -> None:
    watched = set(informers.informers)
    assert {"configmaps", "deployments.apps", "namespaces", CRDS.name} <= watched
    assert not {"events", "events.events.k8s.io", "tokenreviews.authentication.k8s.io", "bindings"} & watched
    assert informers.resources_by_kind["apps", "Deployment"].plural == "deployments"


async def test_each_resource_is_watched_once_by_metadata(
    client: Client, informers: MetadataInformers, changes: ChangeLog
) -> None:
    assert len({each.name for each in informers.resources}) == len(informers.resources)
    await client.create(CONFIGMAPS, {**new_map("a", labels={"l": "v"}), "data": {"k": "v"}})
    assert await changes.wait_for_line("configmaps a added")
    cached = informers.informers["configmaps"].store.get("default/a")
    assert cached is not None
    assert set(cached) == {"metadata"}
    assert set(cached["metadata"]) == {"name", "namespace", "uid", "resourceVersion"}


async def test_custom_resources_are_watched_while_defined(
    client: Client, informers: MetadataInformers, changes: ChangeLog
) -> None:
    definition = await define(client)
    await client.create(WIDGETS, new_widget("w"))
    assert await changes.wait_for_line("widgets.example.com w added")
    await informers.synced.wait()
    assert WIDGETS in informers.resources
    await client.delete(CRDS, definition)
    deleting = await client.get(CRDS, name_of(definition))
    await client.patch(CRDS, deleting, {"metadata": {"finalizers": None}})  # before its objects are deleted
    assert await changes.wait_for_line("widgets.example.com w deleted")
    assert "widgets.example.com" not in informers.informers


async def test_resources_use_the_preferred_version(client: Client) -> None:
    resources = await served_resources(client)
    assert resources[PODS] >= {"list", "watch", "delete", "patch"}
    assert NAMESPACES in resources
    assert Resource("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers") in resources
    assert not [each for each in resources if each.group == "autoscaling" and each.version == "v1"]
