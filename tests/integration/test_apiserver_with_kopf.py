"""kopf on our API server: an operator with finalizers, owned objects and events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.watch import Changes, Watch, wait_for
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import CONFIGMAPS, CRDS, EVENTS, Resource

from .servers import OwnServer

kopf = pytest.importorskip("kopf", reason="kopf is not installed: make bench installs it")

GREETINGS = Resource("example.com", "v1", "Greeting", "greetings")
VERSION = {
    "name": "v1",
    "served": True,
    "storage": True,
    "subresources": {"status": {}},
    "schema": {
        "openAPIV3Schema": {
            "type": "object",
            "properties": {
                "spec": {"type": "object", "properties": {"name": {"type": "string"}}},
                "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        }
    },
}
DEFINITION = {
    "metadata": {"name": "greetings.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "greetings", "kind": "Greeting"},
        "versions": [VERSION],
    },
}


def the_operator(server: OwnServer, seen: list[str]) -> Any:
    """Registry of an operator that keeps a ConfigMap with the text of each greeting."""
    registry = kopf.OperatorRegistry()
    place: Any = {"registry": registry}

    @kopf.on.login(**place)
    def login(**_: Any) -> Any:
        return kopf.ConnectionInfo(server=server.url, ca_path=str(server.ca), token=server.token)

    @kopf.on.create("example.com", "v1", "greetings", **place)
    async def create(spec: Any, body: Any, patch: Any, **_: Any) -> None:
        child = {"metadata": {"name": "text", "namespace": "default"}, "data": {"text": f"hello {spec['name']}"}}
        kopf.adopt(child, owner=body)
        async with client_of(server) as client:
            await client.create(CONFIGMAPS, child)
        kopf.info(body, reason="Greeted", message=f"hello {spec['name']}")
        patch.status["greeted"] = spec["name"]

    @kopf.on.update("example.com", "v1", "greetings", field="spec.name", **place)
    async def update(new: str, patch: Any, **_: Any) -> None:
        patch.status["greeted"] = new

    @kopf.on.delete("example.com", "v1", "greetings", **place)
    async def delete(name: str, **_: Any) -> None:
        seen.append(f"{name} deleted")

    return registry


@asynccontextmanager
async def client_of(server: OwnServer) -> AsyncIterator[Client]:
    client = Client(HttpTransport(load_access([server.kubeconfig], environ={})))
    try:
        yield client
    finally:
        await client.close()


def greeted(name: str) -> Any:
    return lambda obj: value_at(obj, "status", "greeted") == name


async def test_kopf_operator_works_as_on_kubernetes(tmp_path: Path) -> None:
    seen: list[str] = []
    with OwnServer(tmp_path / "data") as server:
        async with client_of(server) as client:
            await client.create(CRDS, DEFINITION)
            stop = asyncio.Event()
            settings = kopf.OperatorSettings()
            async with asyncio.TaskGroup() as group:
                group.create_task(
                    kopf.operator(
                        registry=the_operator(server, seen),
                        settings=settings,
                        standalone=True,
                        clusterwide=True,
                        stop_flag=stop,
                    )
                )
                await check_greeting_lifecycle(client)
                stop.set()
    assert seen == ["g deleted"]


async def wait_for_event_reason(client: Client, name: str) -> str:
    """Wait for an event about the object `name` and return its reason."""
    watch = Watch(client, EVENTS, "default", fields=f"involvedObject.name={name}")
    async with asyncio.timeout(20), aclosing(watch.events()) as changes:
        async for each in changes:
            found = [obj for _, obj in each.changes] if isinstance(each, Changes) else getattr(each, "items", ())
            for event in found:
                return str(event["reason"])
    raise AssertionError("a watch has no end")


async def check_greeting_lifecycle(client: Client) -> None:
    greeting: Object = {
        "apiVersion": "example.com/v1",
        "kind": "Greeting",
        "metadata": {"name": "g", "namespace": "default"},
    }
    made = await client.create(GREETINGS, {**greeting, "spec": {"name": "ann"}})
    found = await wait_for(client, GREETINGS, "g", "default", until=greeted("ann"))
    assert found is not None
    assert found["metadata"]["finalizers"] == ["kopf.zalando.org/KopfFinalizerMarker"]
    child = await client.get(CONFIGMAPS, "text", "default")
    assert child["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    await client.patch(GREETINGS, {"metadata": {"name": "g", "namespace": "default"}}, {"spec": {"name": "bob"}})
    await wait_for(client, GREETINGS, "g", "default", until=greeted("bob"))
    assert await wait_for_event_reason(client, "g") == "Greeted"
    await client.delete(GREETINGS, {"metadata": {"name": "g", "namespace": "default"}})
    await wait_for(client, GREETINGS, "g", "default", until=lambda obj: obj is None)
    await wait_for(client, CONFIGMAPS, "text", "default", until=lambda obj: obj is None)  # our own garbage collector
