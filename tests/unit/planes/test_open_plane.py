"""Tests of an open plane."""

import asyncio
import gc
import os
import weakref
from collections.abc import Iterator
from contextlib import aclosing, closing
from pathlib import Path

import pytest

from tapestry.apiserver.assembly import ServerThreads
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import APISERVER_USER, Call
from tapestry.client.client import Client
from tapestry.client.watch import Synced, Watch, wait_for
from tapestry.controlplane.app import OPTIONAL_CONTROLLERS
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.objects import Object
from tapestry.kube.resources import CRDS, ENDPOINTS, PODS, RESOURCE_QUOTAS, SERVICE_ACCOUNTS, SERVICES, Resource
from tapestry.planes.open_plane import OpenPlane, open_plane

WIDGETS = Resource("example.com", "v1", "Widget", "widgets")
DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def widget_definition() -> Object:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    names = {"plural": "widgets", "kind": "Widget"}
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": "widgets.example.com"}, "spec": spec}


async def use(plane: OpenPlane) -> None:
    """Create objects, read documents and watch."""
    client = Client(InProcessTransport(plane.opened.request_handler, APISERVER_USER))
    await wait_for(client, SERVICE_ACCOUNTS, "default", "default", until=lambda obj: obj is not None, timeout=10)
    spec = {"containers": [{"name": "c", "image": "nginx"}]}
    await client.create(PODS, {"metadata": {"generateName": "p", "namespace": "default"}, "spec": spec})
    if await client.find(CRDS, "widgets.example.com") is None:
        await client.create(CRDS, widget_definition())
    identity = {"apiVersion": WIDGETS.api_version, "kind": WIDGETS.kind}
    await client.create(WIDGETS, {**identity, "metadata": {"generateName": "w", "namespace": "default"}})
    for path in ("/apis", "/openapi/v2", "/openapi/v3", "/openapi/v3/apis/example.com/v1"):
        await plane.opened.request_handler.handle(Call("GET", path, {}, {"accept": DISCOVERY}, b"", APISERVER_USER))
    async with aclosing(Watch(client, PODS, "default").events()) as events:
        async for event in events:
            if isinstance(event, Synced):
                break


async def open_and_close(folder: Path, threads: ServerThreads) -> list[weakref.ref[object]]:
    """Use a plane with all controllers, and return references to its parts."""
    config = ApiServerConfig(file_rootpath=str(folder), controllers=["*", *OPTIONAL_CONTROLLERS])
    async with open_plane("a", config, threads) as plane:
        await use(plane)
        parts = plane.manager, plane.opened.store, plane.opened.server.registry, plane.opened.server.documents.documents
        return [weakref.ref(each) for each in parts]


@pytest.fixture
def _no_garbage_collection() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.usefixtures("_no_garbage_collection")
async def test_closed_plane_is_freed_without_garbage_collection(tmp_path: Path) -> None:
    with closing(ServerThreads()) as threads:
        for _ in range(2):
            references = await open_and_close(tmp_path, threads)
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(threads.log_writers, int)  # until its thread has forgotten the closed store
            assert [each() for each in references] == [None] * len(references)


async def test_plane_opens_and_closes_without_leaving_descriptors(tmp_path: Path) -> None:
    with closing(ServerThreads()) as threads:
        await open_and_close(tmp_path, threads)
        before = os.listdir("/proc/self/fd")
        await open_and_close(tmp_path, threads)
        assert os.listdir("/proc/self/fd") == before


async def test_idle_plane_has_few_tasks(tmp_path: Path) -> None:
    config = ApiServerConfig(file_rootpath=str(tmp_path))
    with closing(ServerThreads()) as threads:
        before = len(asyncio.all_tasks())
        async with open_plane("a", config, threads) as plane:
            await use(plane)
            assert len(asyncio.all_tasks()) - before < 40


async def test_plane_publishes_the_address_of_its_listener(tmp_path: Path) -> None:
    config = ApiServerConfig(file_rootpath=str(tmp_path), secure_address="203.0.113.7:6444")
    with closing(ServerThreads()) as threads:
        async with open_plane("a", config, threads) as plane:
            client = Client(InProcessTransport(plane.opened.request_handler, APISERVER_USER))
            service = await client.get(SERVICES, "kubernetes", "default")
            (subset,) = (await client.get(ENDPOINTS, "kubernetes", "default"))["subsets"]
    assert service["spec"]["ports"][0]["targetPort"] == 6444
    assert (subset["addresses"][0]["ip"], subset["ports"][0]["port"]) == ("203.0.113.7", 6444)


async def test_plane_opens_although_its_tenant_rejects_the_service(tmp_path: Path) -> None:
    config = ApiServerConfig(file_rootpath=str(tmp_path))
    with closing(ServerThreads()) as threads:
        async with open_plane("a", config, threads) as plane:
            client = Client(InProcessTransport(plane.opened.request_handler, APISERVER_USER))
            quota = {"metadata": {"name": "none", "namespace": "default"}, "spec": {"hard": {"count/services": "0"}}}
            await client.create(RESOURCE_QUOTAS, quota)
            await client.delete(SERVICES, await client.get(SERVICES, "kubernetes", "default"))
        async with open_plane("a", config, threads) as plane:
            client = Client(InProcessTransport(plane.opened.request_handler, APISERVER_USER))
            assert await client.find(SERVICES, "kubernetes", "default") is None
