"""Leased, requested and used resources of clusters, virtual nodes and pods."""

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
    """Requested and used amounts of one object."""

    name: str
    binding: str
    requested: dict[str, str]
    used: dict[str, str] | None
    """Used amounts; None if they are not measured."""


class LeasedLoad(Load, frozen=True, kw_only=True):
    """Amounts of a leased object."""

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
    """Everything that some bindings lease, with its usage."""

    facts: VirtualSnapshot
    bindings: list[Object]
    usage: Mapping[str, BindingUsage]

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
        """Return a message for each binding whose usage is unknown."""
        missing = [(name_of(each), self.usage[uid_of(each)].error) for each in self.bindings]
        return [f"the usage of the pods of {name} is not shown: {why}" for name, why in missing if why]


async def usage_report(queries: Queries, reader: UsageReader, binding: str | None) -> UsageReport:
    facts = await read_virtual_cluster(queries.client)
    bindings = queries.selected_bindings(facts, binding)
    return UsageReport(facts, bindings, await reader.usage_by_binding(facts, bindings))


def sorted_loads(found: Iterable[Any], order: Order) -> list[Any]:
    """Sort by used amount or, if unknown, by requested amount; equal ones by name."""

    def amount(load: Load) -> int:
        return parse_quantity((load.requested if load.used is None else load.used).get(order, "0")).nano

    named = sorted(found, key=lambda load: (load.binding, load.name))
    return named if order == "name" else sorted(named, key=amount, reverse=True)


# -- as text


def loads_table(found: Sequence[Load], *, wide: bool = False) -> str:
    """Return one row per load with used, requested and leased amounts.

    The wide form has separate columns, percentages of the leased amounts, and other resources.
    """
    if not found:
        return "nothing is lent, or nothing runs on it; `tapestry status` shows the bindings"
    lines = [[*name_cells(each, wide=wide), *(amount_cells(each) if wide else summary_cells(each))] for each in found]
    header, rows = [title for title, _ in lines[0]], [[cell for _, cell in line] for line in lines]
    if wide:
        return table(header, rows)
    note = "USED/REQUESTED/LEASED" if isinstance(found[0], LeasedLoad) else "USED/REQUESTED"
    return f"{fitted_table(header, rows, droppable_columns(found))}\n\n{note}; - is not measured"


def droppable_columns(found: Sequence[Load]) -> Sequence[str]:
    """Return the columns to drop on a narrow terminal; a namespace shared by all pods is first."""
    pods = [each for each in found if isinstance(each, PodLoad)]
    if not pods:
        return ()
    return ("NAMESPACE", "NODE") if len({each.namespace for each in pods}) == 1 else ("NODE",)


Cell = tuple[str, object]
"""Column title and value."""


def name_cells(load: Load, *, wide: bool) -> list[Cell]:
    match load:
        case ClusterLoad():
            return [("CLUSTER", load.name), ("NODES", load.nodes), ("PODS", load.pods)]
        case NodeLoad():
            return [("NODE", load.name), *([("CLUSTER", load.binding)] if wide else []), ("PODS", load.pods)]
        case PodLoad():
            return [("NAMESPACE", load.namespace), ("POD", load.name), ("NODE", load.node)]
    raise TypeError(f"{type(load).__name__} is not a printable load")


def summary_cells(load: Load) -> Iterator[Cell]:
    """Yield `120m/1500m/4`: used, requested and leased."""
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
    """Return `nvidia.com/gpu=2/8`: requested and leased."""
    whole = load.leased if isinstance(load, LeasedLoad) else {}
    found = [name for name in {**whole, **load.requested} if name not in (*RESOURCES, "pods")]
    return ",".join(f"{name}={'/'.join(requested_and_leased(name, load.requested, whole))}" for name in found)


def requested_and_leased(name: str, requested: dict[str, str], whole: dict[str, str]) -> list[str]:
    return [requested.get(name, "0"), *([whole[name]] if name in whole else [])]
