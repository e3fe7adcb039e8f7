"""Everything: each resource that is served is followed, for as long as it is."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tapestry.apiserver.bootstrap import APISERVER_USER
from tapestry.apiserver.server import Server
from tapestry.client.client import Client
from tapestry.client.discovery import served_resources
from tapestry.controller import Manager
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.controlplane.metadata_informers import MetadataInformers
from tapestry.kube.objects import Object, name_of
from tapestry.kube.resources import CONFIGMAPS, CRDS, NAMESPACES, PODS, Resource

from .objects import WIDGETS, a_map, a_widget, define


class Notes:
    """What came and went, for a test to wait for."""

    def __init__(self) -> None:
        self.lines: set[str] = set()
        self._news = asyncio.Event()

    def __call__(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        self.lines.add(f"{resource.name} {name_of(new or old or {})} {'came' if old is None else 'went'}")
        self._news.set()

    async def wait_for_line(self, line: str) -> bool:
        async with asyncio.timeout(10):
            while line not in self.lines:
                self._news.clear()
                await self._news.wait()
        return True


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
async def everything(server: Server, notes: Notes) -> AsyncIterator[MetadataInformers]:
    config = ManagerConfig(metrics=Metrics(address=""), probes=Probes(address=""))
    manager = Manager(config, lambda: InProcessTransport(server, APISERVER_USER), identity="test")
    found: list[MetadataInformers] = []

    async def wait_for_ever(_: str) -> None:
        await asyncio.Event().wait()

    def setup(each: Manager) -> None:
        found.append(MetadataInformers(each))
        found[0].on_change(notes)
        each.controller("idle", wait_for_ever)

    manager.register("everything", setup)
    manager.setup()
    async with asyncio.TaskGroup() as group:
        group.create_task(manager.run())
        await found[0].synced.wait()
        yield found[0]
        manager.stop()


async def test_what_is_served_is_followed_except_for_events(everything: MetadataInformers) -> None:
    followed = set(everything.informers)
    assert {"configmaps", "deployments.apps", "namespaces", CRDS.name} <= followed
    assert not {"events", "events.events.k8s.io", "tokenreviews.authentication.k8s.io", "bindings"} & followed
    assert everything.resources_by_kind["apps", "Deployment"].plural == "deployments"


async def test_each_resource_is_followed_in_one_version_and_by_its_metadata(
    client: Client, everything: MetadataInformers, notes: Notes
) -> None:
    assert len({each.name for each in everything.resources}) == len(everything.resources)
    await client.create(CONFIGMAPS, {**a_map("a", labels={"l": "v"}), "data": {"k": "v"}})
    assert await notes.wait_for_line("configmaps a came")
    kept = everything.informers["configmaps"].store.get("default/a")
    assert kept is not None
    assert set(kept) == {"metadata"}
    assert set(kept["metadata"]) == {"name", "namespace", "uid", "resourceVersion"}


async def test_custom_resources_come_and_go_with_their_definition(
    client: Client, everything: MetadataInformers, notes: Notes
) -> None:
    definition = await define(client)
    await client.create(WIDGETS, a_widget("w"))
    assert await notes.wait_for_line("widgets.example.com w came")
    await everything.synced.wait()
    assert WIDGETS in everything.resources
    await client.delete(CRDS, definition)
    going = await client.get(CRDS, name_of(definition))
    await client.patch(CRDS, going, {"metadata": {"finalizers": None}})  # without its objects having gone before
    assert await notes.wait_for_line("widgets.example.com w went")
    assert "widgets.example.com" not in everything.informers


async def test_resources_are_named_in_the_version_that_the_server_prefers(client: Client) -> None:
    resources = await served_resources(client)
    assert resources[PODS] >= {"list", "watch", "delete", "patch"}
    assert NAMESPACES in resources
    assert Resource("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers") in resources
    assert not [each for each in resources if each.group == "autoscaling" and each.version == "v1"]
