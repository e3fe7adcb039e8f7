"""What is there before anybody asked for it: the namespaces and roles without which nothing works."""

from tapestry.apiserver.access import bootstrap_roles
from tapestry.apiserver.access.rbac import GROUP, KINDS
from tapestry.apiserver.requests import Target, User
from tapestry.apiserver.rows import Row
from tapestry.apiserver.server import Server
from tapestry.apiserver.verbs import Request
from tapestry.kube.errors import AlreadyExists
from tapestry.kube.objects import Object

SYSTEM = User("system:apiserver", ("system:masters",))
STARTING = User("system:apiserver", ("system:masters",))
"""The same, while it has its own things in order: webhooks, which may not be up yet, have no say in that."""
REQUEST_HEADERS = {
    "requestheader-allowed-names": '["front-proxy-client"]',
    "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
    "requestheader-group-headers": '["X-Remote-Group"]',
    "requestheader-username-headers": '["X-Remote-User"]',
}
"""What a proxy is called, and in which headers it names the user."""
NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


async def install(server: Server) -> None:
    """Have everything that is missing of it."""
    for name in NAMESPACES:
        await have(server, "", "namespaces", namespace(name))
    await bootstrap_roles.install(server.verbs, {plural: row_of(server, GROUP, plural) for plural in KINDS})


def namespace(name: str) -> Object:
    labels = {"kubernetes.io/metadata.name": name}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"finalizers": ["kubernetes"]}}


async def have(server: Server, group: str, plural: str, obj: Object) -> None:
    row = row_of(server, group, plural)
    target = Target(row, obj["metadata"].get("namespace", ""))
    if server.verbs.store.get(row.storage, target.namespace, obj["metadata"]["name"]) is not None:
        return
    try:
        await server.verbs.create(Request("create", target, STARTING, {}), obj)
    except AlreadyExists:
        return


async def keep(server: Server, group: str, plural: str, obj: Object) -> None:
    """Have an object just like that, whatever stood in its place."""
    row = row_of(server, group, plural)
    namespace, name = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
    if server.verbs.store.get(row.storage, namespace, name) is None:
        await have(server, group, plural, obj)
    else:
        await server.verbs.replace(Request("update", Target(row, namespace, name), STARTING, {}), obj)


async def publish_authorities(server: Server, authorities: str, front_proxies: str) -> None:
    """Let others know clients as the server does, by certificates of these CAs: where Kubernetes has them, too.

    `front_proxies` is the CA of proxies that name the user in headers.  It has to be another one than those of users:
    whoever has a certificate of it can be anybody.
    """
    metadata = {"name": "extension-apiserver-authentication", "namespace": "kube-system"}
    data = {"client-ca-file": authorities, "requestheader-client-ca-file": front_proxies, **REQUEST_HEADERS}
    await keep(server, "", "configmaps", {"metadata": metadata, "data": data})


def row_of(server: Server, group: str, plural: str) -> Row:
    row = server.rows.get(group, "v1", plural)
    assert row is not None, f"{plural} are served"
    return row
