"""Usage of nodes and pods from the metrics API, as in `kubectl top`."""

from collections.abc import Iterable

from tapestry.client.client import Client
from tapestry.inspect.snapshots import QueryError
from tapestry.inspect.tables import table
from tapestry.kube.errors import NotFound, Unavailable
from tapestry.kube.objects import Object, name_of, namespace_of, value_at
from tapestry.kube.quantity import parse_quantity
from tapestry.kube.resources import NODE_METRICS, NODES, POD_METRICS

MIB = 1 << 20


async def usage_table(client: Client, what: str, namespace: str | None) -> str:
    """Return the table of `nodes` or `pods`; those of a namespace, or of all if it is None."""
    try:
        if what == "nodes":
            nodes = {name_of(each): each for each in await client.list(NODES)}
            return node_table(await client.list(NODE_METRICS), nodes)
        return pod_table(await client.list(POD_METRICS, namespace), has_namespace=namespace is None)
    except (NotFound, Unavailable):
        problem = "the cluster does not serve metrics.k8s.io"
        raise QueryError(f"{problem}; install metrics-server, or use `tapestry top`, which needs none") from None


def node_table(metrics: Iterable[Object], nodes: dict[str, Object]) -> str:
    rows = []
    for each in metrics:
        capacity = value_at(nodes.get(name_of(each)), "status", "allocatable", default={})
        cpu, memory = milli_cpu([each["usage"]]), mebibytes([each["usage"]])
        shares = share(cpu, milli_cpu([capacity])), share(memory, mebibytes([capacity]))
        rows.append((name_of(each), f"{cpu}m", shares[0], f"{memory}Mi", shares[1]))
    return table(["NAME", "CPU", "CPU%", "MEMORY", "MEMORY%"], sorted(rows))


def pod_table(metrics: Iterable[Object], *, has_namespace: bool) -> str:
    rows = []
    for each in metrics:
        used = [container["usage"] for container in each["containers"]]
        place = (namespace_of(each) or "",) if has_namespace else ()
        rows.append((*place, name_of(each), f"{milli_cpu(used)}m", f"{mebibytes(used)}Mi"))
    return table([*(["NAMESPACE"] if has_namespace else []), "NAME", "CPU", "MEMORY"], sorted(rows))


def milli_cpu(amounts: Iterable[Object]) -> int:
    return sum(-(-parse_quantity(each.get("cpu", "0")).nano // 10**6) for each in amounts)


def mebibytes(amounts: Iterable[Object]) -> int:
    return sum(parse_quantity(each.get("memory", "0")).nano // (MIB * 10**9) for each in amounts)


def share(used: int, total: int) -> str:
    return f"{100 * used // total}%" if total else "<unknown>"
