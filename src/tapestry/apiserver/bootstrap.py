"""Creation of the objects that every cluster starts with: system namespaces and bootstrap roles."""

from tapestry.apiserver.access import bootstrap_roles
from tapestry.apiserver.access.rbac import GROUP, RBAC_PLURALS
from tapestry.apiserver.requests import Target, User, WriteRequest
from tapestry.apiserver.resource_registry import ResourceInfo
from tapestry.apiserver.server import Server
from tapestry.kube.errors import AlreadyExists
from tapestry.kube.objects import Object

APISERVER_USER = User("system:apiserver", ("system:masters",))
BOOTSTRAP_USER = User("system:apiserver", ("system:masters",))
"""The same user during startup. Admission webhooks are not called for its writes, since they may not run yet."""
REQUEST_HEADERS = {
    "requestheader-allowed-names": '["front-proxy-client"]',
    "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
    "requestheader-group-headers": '["X-Remote-Group"]',
    "requestheader-username-headers": '["X-Remote-User"]',
}
"""Allowed names of front proxies, and the headers in which they send the user."""
SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


async def install(server: Server) -> None:
    """Create all missing bootstrap objects."""
    for name in SYSTEM_NAMESPACES:
        await create_if_missing(server, "", "namespaces", namespace_object(name))
    await bootstrap_roles.install(
        server.verbs, {plural: served_resource(server, GROUP, plural) for plural in RBAC_PLURALS}
    )


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
    await create_or_replace(server, "", "configmaps", {"metadata": metadata, "data": data})


def served_resource(server: Server, group: str, plural: str) -> ResourceInfo:
    row = server.registry.get(group, "v1", plural)
    assert row is not None, f"{plural} are served"
    return row
