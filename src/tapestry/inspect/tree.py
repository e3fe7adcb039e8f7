"""Tree of a virtual cluster: bindings, their nodes, and the pods on them."""

from collections.abc import Iterable

from tapestry.apis.clusterbindings import Binding
from tapestry.inspect.pods import PlacedPod, pod_status
from tapestry.inspect.snapshots import VirtualSnapshot
from tapestry.inspect.status import Printable, binding_status, node_status
from tapestry.kube.objects import Object, key_of, name_of


class PodLeaf(Printable, frozen=True):
    pod: str
    phase: str
    twin: str
    reason: str


class NodeBranch(Printable, frozen=True):
    node: str
    physical_node: str
    state: str
    pods: list[PodLeaf]


class BindingBranch(Printable, frozen=True):
    binding: str
    cluster_id: str
    phase: str
    leasing: str
    nodes: list[NodeBranch]


class Tree(Printable, frozen=True):
    virtual_cluster: str
    """UID of its kube-system namespace."""
    bindings: list[BindingBranch]


def binding_branch(snapshot: VirtualSnapshot, obj: Object, binding: Binding, nodes: Iterable[Object]) -> BindingBranch:
    status = binding_status(obj)
    return BindingBranch(
        binding=status.name,
        cluster_id=status.cluster_id,
        phase=status.phase,
        leasing=status.leasing,
        nodes=[node_branch(snapshot, node, binding) for node in sorted(nodes, key=name_of)],
    )


def node_branch(snapshot: VirtualSnapshot, node: Object, binding: Binding) -> NodeBranch:
    pods = sorted(snapshot.pods[name_of(node)], key=key_of)
    status = node_status(node, pods)
    return NodeBranch(
        node=status.name,
        physical_node=status.physical_node,
        state=status.state,
        pods=[pod_leaf(pod, node, binding) for pod in pods],
    )


def pod_leaf(pod: Object, node: Object, binding: Binding) -> PodLeaf:
    status = pod_status(PlacedPod(pod, node, binding))
    return PodLeaf(pod=key_of(pod), phase=status.phase, twin=status.twin, reason=status.reason)
