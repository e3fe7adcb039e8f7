"""What is leased, what pods request of it, and what they use: of clusters, virtual nodes or pods, the busiest first."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tapestry.inspect.metrics import ZERO_USAGE, BindingUsage, UsageReader
from tapestry.inspect.queries import Queries
from tapestry.inspect.snapshots import VirtualSnapshot, read_virtual_cluster
from tapestry.inspect.status import Printable, physical_node_name, total_requests
from tapestry.inspect.tables import EMPTY_CELL, fitted_table, resource_text, table
from tapestry.kube.objects import Object, name_of, namespace_of, uid_of
from tapestry.kube.pod_requests import occupies_node
from tapestry.kube.quantity import ResourceList, parse_quantity
from tapestry.syncer.virtual_nodes import leased_amounts

RESOURCES = ("cpu", "memory")
Order = Literal["cpu", "memory", "name"]


class Load(Printable, frozen=True, kw_only=True):
    """Amounts of one thing."""

    name: str
    binding: str
    requested: dict[str, str]
    used: dict[str, str] | None
    """None where nobody measures it."""


class LeasedLoad(Load, frozen=True, kw_only=True):
    """Amounts of something that is lent."""

    leased: dict[str, str]
    pods: int


class ClusterLoad(LeasedLoad, frozen=True, kw_only=True):
    cluster_id: str
    nodes: int


class NodeLoad(LeasedLoad, frozen=True, kw_only=True):
    physical_node: str


class PodLoad(Load, frozen=True, kw_only=True):
    namespace: str
    node: str


@dataclass(frozen=True)
class UsageReport:
    """Everything that is lent by some bindings, with what was measured of it."""

    facts: VirtualSnapshot
    bindings: list[Object]
    usage: Mapping[str, BindingUsage]
    """By the UID of the binding."""

    def clusters(self) -> list[ClusterLoad]:
        return [self.cluster(each) for each in self.bindings]

    def cluster(self, binding: Object) -> ClusterLoad:
        nodes = self.facts.nodes_of(uid_of(binding))
        pods = [pod for node in nodes for pod in self.pods_on(node)]
        leased = sum(map(leased_amounts, nodes), ResourceList())
        return ClusterLoad(
            name=name_of(binding),
            binding=name_of(binding),
            cluster_id=binding["spec"]["clusterID"],
            nodes=len(nodes),
            pods=len(pods),
            leased=leased.texts(),
            requested=(ZERO_USAGE + total_requests(pods)).texts(),
            used=self.used_amounts(binding, pods),
        )

    def nodes(self) -> list[NodeLoad]:
        return [self.node(node, each) for each in self.bindings for node in self.facts.nodes_of(uid_of(each))]

    def node(self, node: Object, binding: Object) -> NodeLoad:
        pods = self.pods_on(node)
        return NodeLoad(
            name=name_of(node),
            binding=name_of(binding),
            physical_node=physical_node_name(node),
            pods=len(pods),
            leased=leased_amounts(node).texts(),
            requested=(ZERO_USAGE + total_requests(pods)).texts(),
            used=self.used_amounts(binding, pods),
        )

    def pods(self, namespace: str | None) -> list[PodLoad]:
        return [
            PodLoad(
                name=name_of(pod),
                namespace=namespace_of(pod) or "",
                node=name_of(node),
                binding=name_of(each),
                requested=(ZERO_USAGE + total_requests([pod])).texts(),
                used=self.used_amounts(each, [pod]),
            )
            for each in self.bindings
            for node in self.facts.nodes_of(uid_of(each))
            for pod in self.pods_on(node)
            if namespace in (None, namespace_of(pod))
        ]

    def pods_on(self, node: Object) -> list[Object]:
        return [pod for pod in self.facts.pods[name_of(node)] if occupies_node(pod)]

    def used_amounts(self, binding: Object, pods: Iterable[Object]) -> dict[str, str] | None:
        found = self.usage[uid_of(binding)].total(pods)
        return None if found is None else found.texts()

    def missing_usage_messages(self) -> list[str]:
        """A sentence for each binding of whose pods nobody knows what they use."""
        missing = [(name_of(each), self.usage[uid_of(each)].error) for each in self.bindings]
        return [f"what pods of {name} use is not shown: {why}" for name, why in missing if why]


async def usage_report(queries: Queries, reader: UsageReader, binding: str | None) -> UsageReport:
    facts = await read_virtual_cluster(queries.client)
    chosen = queries.selected_bindings(facts, binding)
    return UsageReport(facts, chosen, await reader.usage_by_binding(facts, chosen))


def sorted_loads(found: Iterable[Any], order: Order) -> list[Any]:
    """By what is used of a resource or, where nobody knows, requested; names decide between equals."""

    def amount(load: Load) -> int:
        return parse_quantity((load.requested if load.used is None else load.used).get(order, "0")).nano

    named = sorted(found, key=lambda load: (load.binding, load.name))
    return named if order == "name" else sorted(named, key=amount, reverse=True)


# -- as text


def loads_table(found: Sequence[Load], *, wide: bool = False) -> str:
    """One line for each: what is used, requested and, of what is lent, leased.

    Wide, with each of them in a column of its own, shares of what is leased, and what else is requested.
    """
    if not found:
        return "nothing is lent, or nothing runs on it; `tapestry status` says what there is"
    lines = [[*name_cells(each, wide=wide), *(amount_cells(each) if wide else summary_cells(each))] for each in found]
    header, rows = [title for title, _ in lines[0]], [[cell for _, cell in line] for line in lines]
    if wide:
        return table(header, rows)
    note = "USED/REQUESTED/LEASED" if isinstance(found[0], LeasedLoad) else "USED/REQUESTED"
    return f"{fitted_table(header, rows, droppable_columns(found))}\n\n{note}; - is not measured"


def droppable_columns(found: Sequence[Load]) -> Sequence[str]:
    """Columns to do without on a narrow terminal: a namespace that all pods share first."""
    pods = [each for each in found if isinstance(each, PodLoad)]
    if not pods:
        return ()
    return ("NAMESPACE", "NODE") if len({each.namespace for each in pods}) == 1 else ("NODE",)


Cell = tuple[str, object]
"""Below its title."""


def name_cells(load: Load, *, wide: bool) -> list[Cell]:
    match load:
        case ClusterLoad():
            return [("CLUSTER", load.name), ("NODES", load.nodes), ("PODS", load.pods)]
        case NodeLoad():
            return [("NODE", load.name), *([("CLUSTER", load.binding)] if wide else []), ("PODS", load.pods)]
        case PodLoad():
            return [("NAMESPACE", load.namespace), ("POD", load.name), ("NODE", load.node)]
    raise TypeError(f"{type(load).__name__} is nothing that is shown")


def summary_cells(load: Load) -> Iterator[Cell]:
    """`120m/1500m/4`: what is used, requested, and leased."""
    for resource in RESOURCES:
        parts = [load.used, load.requested, *([load.leased] if isinstance(load, LeasedLoad) else [])]
        yield (
            resource.upper(),
            "/".join(EMPTY_CELL if part is None else resource_text(part, resource) or "0" for part in parts),
        )


def amount_cells(load: Load) -> Iterator[Cell]:
    for resource in RESOURCES:
        if isinstance(load, LeasedLoad):
            yield f"LEASED-{resource.upper()}", resource_text(load.leased, resource)
        for part, found in (("REQUESTED", load.requested), ("USED", load.used)):
            yield f"{part}-{resource.upper()}", resource_text(found or {}, resource)
            if isinstance(load, LeasedLoad):
                yield f"{part}%", percent_text(found, load.leased, resource)
    yield "OTHER", other_resources_text(load)


def percent_text(part: dict[str, str] | None, whole: dict[str, str], resource: str) -> str:
    leased = parse_quantity(whole.get(resource, "0")).nano
    if part is None or not leased:
        return ""
    return f"{100 * parse_quantity(part.get(resource, '0')).nano / leased:.0f}%"


def other_resources_text(load: Load) -> str:
    """`nvidia.com/gpu=2/8`: requested, of what is leased."""
    whole = load.leased if isinstance(load, LeasedLoad) else {}
    found = [name for name in {**whole, **load.requested} if name not in (*RESOURCES, "pods")]
    return ",".join(f"{name}={'/'.join(requested_and_leased(name, load.requested, whole))}" for name in found)


def requested_and_leased(name: str, requested: dict[str, str], whole: dict[str, str]) -> list[str]:
    return [requested.get(name, "0"), *([whole[name]] if name in whole else [])]
