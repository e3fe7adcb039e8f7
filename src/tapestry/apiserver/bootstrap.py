"""Creation of the objects that every cluster starts with: system namespaces and bootstrap roles."""

import asyncio
from contextlib import suppress

import msgspec

from tapestry.apiserver.access.bootstrap_roles import bootstrap_objects, initial_objects, reconciled_object
from tapestry.apiserver.access.rbac import GROUP, RBAC_PLURALS
from tapestry.apiserver.core.requests import BOOTSTRAP_USER, Target, WriteRequest
from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.apiserver.core.storage_codec import encode_for_storage
from tapestry.apiserver.core.store import Key, VersionConflict
from tapestry.apiserver.handlers import writes
from tapestry.apiserver.handlers.server import Server
from tapestry.apiserver.handlers.verbs import Verbs
from tapestry.kube.errors import AlreadyExists
from tapestry.kube.objects import Object

FRONT_PROXY_CLIENT = "front-proxy-client"
"""Common name of the certificate with which the server calls aggregated API servers."""
REQUEST_HEADERS = {
    "requestheader-allowed-names": f'["{FRONT_PROXY_CLIENT}"]',
    "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
    "requestheader-group-headers": '["X-Remote-Group"]',
    "requestheader-username-headers": '["X-Remote-User"]',
}
"""Allowed names of front proxies, and the headers in which they send the user."""
SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


async def install(server: Server) -> None:
    """Create all missing bootstrap objects."""
    infos = {f"{plural}.{GROUP}": served_resource(server, GROUP, plural) for plural in RBAC_PLURALS}
    async with asyncio.TaskGroup() as group:  # concurrent writes are stored in few transactions
        for name in SYSTEM_NAMESPACES:
            group.create_task(create_if_missing(server, "", "namespaces", namespace_object(name)))
        for key, desired in bootstrap_objects().items():
            group.create_task(ensure_object(server.verbs, infos[key.resource], key, desired))


async def ensure_object(verbs: Verbs, info: ResourceInfo, key: Key, desired: Object) -> None:
    """Create or reconcile one role or binding. Unchanged objects are not written.

    Bypasses the pipeline, so that a hundred objects do not delay the start.
    """
    version = verbs.store.get(*key)
    with suppress(VersionConflict):  # another server on the same storage does the same
        if version is not None:
            existing: Object = msgspec.json.decode(version.raw)
            result = reconciled_object(existing, desired)
            if result is existing:
                return
            if result is not None:
                await verbs.store.put(key, version, encode_for_storage(info, result))
                return
            await verbs.store.delete(key, version, encode_for_storage(info, existing))
        kind = {"apiVersion": info.resource.api_version, "kind": info.resource.kind}
        created = writes.created_object(info, {**kind, **initial_objects()[key]}, uid=verbs.new_uid(), now=verbs.now())
        await verbs.store.put(key, None, encode_for_storage(info, created))


def namespace_object(name: str) -> Object:
    labels = {"kubernetes.io/metadata.name": name}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"finalizers": ["kubernetes"]}}


async def create_if_missing(server: Server, group: str, plural: str, obj: Object) -> None:
    row = served_resource(server, group, plural)
    target = Target(row, obj["metadata"].get("namespace", ""))
    if server.verbs.store.get(row.storage, target.namespace, obj["metadata"]["name"]) is not None:
        return
    try:
        await server.verbs.create(WriteRequest("create", target, BOOTSTRAP_USER, {}), obj)
    except AlreadyExists:
        return


async def create_or_replace(server: Server, group: str, plural: str, obj: Object) -> None:
    """Create the object, or replace the existing one."""
    row = served_resource(server, group, plural)
    namespace, name = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
    if server.verbs.store.get(row.storage, namespace, name) is None:
        await create_if_missing(server, group, plural, obj)
    else:
        await server.verbs.replace(WriteRequest("update", Target(row, namespace, name), BOOTSTRAP_USER, {}), obj)


async def publish_client_cas(server: Server, client_cas: str, front_proxy_ca: str) -> None:
    """Publish the client CAs in the ConfigMap that extension API servers read, as Kubernetes does.

    `front_proxy_ca` must differ from the CAs of users: holders of its certificates can act as any user.
    """
    metadata = {"name": "extension-apiserver-authentication", "namespace": "kube-system"}
    data = {"client-ca-file": client_cas, "requestheader-client-ca-file": front_proxy_ca, **REQUEST_HEADERS}
    current = server.verbs.store.get("configmaps", metadata["namespace"], metadata["name"])
    if current is not None and msgspec.json.decode(current.raw).get("data") == data:
        return
    await create_or_replace(server, "", "configmaps", {"metadata": metadata, "data": data})


def served_resource(server: Server, group: str, plural: str) -> ResourceInfo:
    row = server.registry.get(group, "v1", plural)
    assert row is not None, f"{plural} are served"
    return row
