"""What is there before anybody asked for it: the namespaces and roles without which nothing works."""

from tapestry.apiserver.requests import Target, User
from tapestry.apiserver.rows import Row
from tapestry.apiserver.server import Server
from tapestry.apiserver.verbs import Request
from tapestry.kube.errors import AlreadyExists
from tapestry.kube.objects import Object

SYSTEM = User("system:apiserver", ("system:masters",))
NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


async def install(server: Server) -> None:
    """Have everything that is missing of it."""
    for name in NAMESPACES:
        await have(server, "", "namespaces", namespace(name))


def namespace(name: str) -> Object:
    labels = {"kubernetes.io/metadata.name": name}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"finalizers": ["kubernetes"]}}


async def have(server: Server, group: str, plural: str, obj: Object) -> None:
    row = server.rows.get(group, "v1", plural)
    assert isinstance(row, Row), f"{plural} are served"
    target = Target(row, obj["metadata"].get("namespace", ""))
    if server.verbs.store.get(row.storage, target.namespace, obj["metadata"]["name"]) is not None:
        return
    try:
        await server.verbs.create(Request("create", target, SYSTEM, {}), obj)
    except AlreadyExists:
        return
