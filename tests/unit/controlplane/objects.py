"""Objects for tests of the control plane controllers."""

from contextlib import aclosing
from typing import Any

from tapestry.client.client import Client
from tapestry.client.watch import Changes, ListPage, Watch, wait_for
from tapestry.controller import Manager
from tapestry.controller.testing.connection import Connection
from tapestry.controlplane.metadata_cache import MetadataCache
from tapestry.kube.objects import Object, owner_reference
from tapestry.kube.resources import CRDS, EVENTS, Resource

WIDGETS = Resource("example.com", "v1", "Widget", "widgets")
FINALIZER = "example.com/test"


def new_namespace(name: str) -> Object:
    return {"metadata": {"name": name}}


def new_map(name: str, *owners: Object, namespace: str = "default", blocking: bool = True, **metadata: Any) -> Object:
    references = [owner_reference(each, controller=False, block_deletion=blocking) for each in owners]
    return {"metadata": {"name": name, "namespace": namespace, "ownerReferences": references, **metadata}}


def new_pod(name: str, namespace: str = "default", **spec: Any) -> Object:
    containers = [{"name": "c", "image": "nginx"}]
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"containers": containers, **spec}}


def new_widget(name: str, namespace: str = "default", **metadata: Any) -> Object:
    identity = {"apiVersion": WIDGETS.api_version, "kind": WIDGETS.kind}
    return {**identity, "metadata": {"name": name, "namespace": namespace, **metadata}}


def widget_definition() -> Object:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    names = {"plural": "widgets", "kind": "Widget"}
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": "widgets.example.com"}, "spec": spec}


def perturbed_metadata(manager: Manager) -> MetadataCache:
    """Return the metadata cache of the server to which the manager of a perturbation scenario connects."""
    transport: Any = manager.reads.transport
    while not isinstance(transport, Connection):
        transport = transport.api
    return MetadataCache(manager, transport.server.verbs.store, transport.server.registry)


async def define(client: Client) -> Object:
    return await client.create(CRDS, widget_definition())


async def wait_until_gone(client: Client, resource: Resource, name: str, namespace: str | None = None) -> None:
    await wait_for(client, resource, name, namespace, until=lambda obj: obj is None, timeout=10)


async def wait_for_event(client: Client, reason: str) -> Object:
    async with aclosing(Watch(client, EVENTS, "default", "", f"reason={reason}").events()) as events:
        async for event in events:
            match event:
                case ListPage([found, *_]):
                    return found
                case Changes([(_, found), *_]):
                    return found
    raise AssertionError("the watch ended")
