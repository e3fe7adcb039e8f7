"""Status and explanation of pods on leased nodes: placement, reasons for waiting or ending, the tree of a cluster."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec import structs

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.excluded_pods import is_excluded, is_system_namespace
from tapestry.inspect.placement import Obstacle, obstacles
from tapestry.inspect.snapshots import VirtualSnapshot
from tapestry.inspect.status import Printable, binding_status, creation_time, node_status, physical_node_name
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, is_deleting, key_of, name_of, namespace_of, uid_of, value_at
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.times import parse_time
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.translate.allowed_metadata import uncopied_keys, uncopied_message
from tapestry.syncer.translate.pod_status import CONTAINER_LISTS, DISRUPTED, GATED_BELOW, SCHEDULED, mapped_uid
from tapestry.syncer.translate.pods import twin_name

DEFAULT_CONFIG = SyncerConfig()
WAITING_TIMEOUTS = {
    "RefusedBelow": timedelta(seconds=DEFAULT_CONFIG.refusal_seconds),
    "UnschedulableBelow": timedelta(seconds=DEFAULT_CONFIG.unschedulable_seconds),
    GATED_BELOW: timedelta(seconds=DEFAULT_CONFIG.unschedulable_seconds),
}
"""Longest time that a pod waits for a reason, with the default syncer configuration."""

ADVICE = {
    "Unscheduled": "see the obstacles on the nodes",
    "NoNodes": "`tapestry status` shows why no node is leased",
    "NotLeased": "Tapestry does not manage this node; see `kubectl describe pod`",
    "NodeGone": "nothing: the virtual cluster deletes pods of deleted nodes, and their controllers create new ones",
    "NotSeen": "check that its syncer is running: `tapestry status`, and the syncer's log",
    "SystemNamespace": "nothing: pods of system namespaces run only on the virtual cluster's own nodes",
    "DaemonSet": (
        f"annotate its template with {keys.RUNNING_DAEMONSET}=true, "
        "or set runningDaemonsetByDefault in the ClusterBinding"
    ),
    "PodSecurity": "change the named fields, or ask the operator for another podSecurity of the binding",
    "ConfigMapMissing": "create it; the pod then starts automatically",
    "SecretMissing": "create it; the pod then starts automatically",
    "SecretRefused": "use a Secret of another type",
    "ServiceAccountMissing": "create it; the pod then starts automatically",
    "TokenRefused": "see the message: the virtual API server does not issue such a token",
    "ServiceNotMapped": "wait; if it persists, see the syncer's log",
    "ClaimMissing": "create the claim; the pod then starts automatically",
    "ClaimNotBound": "see the claim: it needs a bound volume first",
    "ClaimNotOwned": "delete the claim, or give the pod or its ephemeral volume another name",
    "VolumeNotAllowed": "ask the operator to add the driver and class to the binding's allowedVolumes, or use another",
    "VolumeGoing": "wait; if it persists, a finalizer in the physical cluster blocks the deletion",
    "ClaimLostBelow": "delete the pods that mount the claim; new ones get the volume again",
    "ClaimPendingBelow": "ask the owner of the physical cluster why the named claim is not bound there",
    "NameTaken": "ask the owner of the physical cluster to delete the object with this name",
    "NotGranted": "check that the manager runs, and see its log",
    "NotPermitted": "run `tapestry join` again to grant the syncer the missing permissions",
    "PhysicalServerError": "see the message: the physical API server or one of its webhooks fails; the syncer retries",
    "RefusedBelow": "see the message: a quota, a limit or a webhook of the physical cluster rejects the pod",
    "UnschedulableBelow": (
        "see the message of the physical scheduler: the pod does not fit its node now; it fails after a while, "
        "and its controller creates another"
    ),
    GATED_BELOW: (
        "ask the owner of the physical cluster which controller there adds scheduling gates to pods (Kueue does), "
        "and to exclude the mount namespace; the pod fails after a while"
    ),
    "Tainted": "tolerate the taint with its effect on the physical node, or use other nodes",
    "TwinLost": "nothing: its syncer fails the pod when it notices",
    "Reclaimed": "nothing: its controller creates another; without one, create it again",
    "PhysicalPodLost": "ask the owner of the physical cluster who deleted it; a pod never runs twice",
    "Evicted": "nothing: its controller creates another; without one, create it again",
    "Preempted": "nothing: the owner's pods have priority; its controller creates another",
}


class PodStatus(Printable, frozen=True):
    namespace: str
    name: str
    phase: str
    """Phase of the pod, or `Terminating` while it is being deleted."""
    node: str
    physical_node: str
    binding: str
    twin: str
    """`namespace/name` of the twin; empty if there is none yet."""
    state: str
    """`Waiting`, `Running`, `Leaving`, `Succeeded` or `Failed`."""
    reason: str
    why: str
    created: datetime


class PodExplanation(Printable, frozen=True):
    """Placement of a pod, why it waits or ended, and advice."""

    pod: PodStatus
    todo: str
    twin_phase: str
    twin_node: str
    """Node of the twin, according to the physical cluster."""
    deadline: datetime | None
    """Time when a waiting pod fails, with the default syncer configuration."""
    nodes: int
    """Number of virtual nodes, for a pod without a node."""
    free_nodes: int
    """Number of these without obstacles."""
    obstacles: tuple[Obstacle, ...]
    unseen: str
    """Reason why the physical cluster could not be read."""
    notes: tuple[str, ...] = ()
    """Features that are missing for the pod in the physical cluster."""


@dataclass(frozen=True)
class PodDiagnosis:
    state: str
    reason: str = ""
    why: str = ""


@dataclass(frozen=True)
class PlacedPod:
    """A pod and its placement, as the virtual cluster knows it."""

    pod: Object
    node: Object | None = None
    """The virtual node that it is bound to, if that exists."""
    binding: Binding | None = None
    is_on_unleased_node: bool = False
    """True if its node belongs to the virtual cluster itself."""

    @property
    def twin(self) -> str:
        if self.binding is None or mapped_uid(self.pod) is None:
            return ""
        return f"{self.binding.spec.mount_namespace}/{twin_name(self.pod, self.binding)}"


@dataclass(frozen=True)
class TwinLookup:
    """Result of reading the twin from the physical cluster."""

    twin: Object | None = None
    error: str = ""
    """Reason why the twin could not be read."""
    succeeded: bool = False


def pod_status(placed_pod: PlacedPod) -> PodStatus:
    pod, diagnosis = placed_pod.pod, pod_diagnosis(placed_pod)
    return PodStatus(
        namespace=namespace_of(pod) or "",
        name=name_of(pod),
        phase="Terminating" if is_deleting(pod) else value_at(pod, "status", "phase", default="Pending"),
        node=value_at(pod, "spec", "nodeName", default=""),
        physical_node=physical_node_name(placed_pod.node) if placed_pod.node else "",
        binding=placed_pod.binding.name if placed_pod.binding else "",
        twin=placed_pod.twin,
        state=diagnosis.state,
        reason=diagnosis.reason,
        why=diagnosis.why,
        created=creation_time(pod),
    )


def pod_diagnosis(placed_pod: PlacedPod) -> PodDiagnosis:
    """Return the state of a pod as the virtual cluster reports it."""
    pod = placed_pod.pod
    if is_pod_terminal(pod):
        return ended_pod_diagnosis(pod)
    if is_deleting(pod):
        return terminating_pod_diagnosis(pod)
    if placed_pod.is_on_unleased_node:
        why = f"its node, {pod['spec']['nodeName']}, belongs to the virtual cluster itself and is not leased"
        return PodDiagnosis("Running" if pod["status"]["phase"] == "Running" else "Waiting", "NotLeased", why)
    if not value_at(pod, "spec", "nodeName"):
        scheduled = pod_condition(pod, SCHEDULED)
        return PodDiagnosis("Waiting", "Unscheduled", scheduled.get("message") or "no scheduler has processed it yet")
    if placed_pod.node is None or placed_pod.binding is None:
        return PodDiagnosis("Waiting", "NodeGone", f"node {pod['spec']['nodeName']} no longer exists")
    return bound_pod_diagnosis(pod, placed_pod.binding)


def bound_pod_diagnosis(pod: Object, binding: Binding) -> PodDiagnosis:
    """Return the state of a pod on a virtual node."""
    mapped, accepted = pod_condition(pod, keys.MAPPED_CONDITION), pod_condition(pod, keys.ACCEPTED_CONDITION)
    if mapped.get("status") == "True":
        return mapped_pod_diagnosis(pod)
    if is_excluded(pod, binding):
        if is_system_namespace(namespace_of(pod) or "", binding.manager_namespace):
            return PodDiagnosis("Waiting", "SystemNamespace", "pods of system namespaces do not get twins")
        return PodDiagnosis("Waiting", "DaemonSet", "pods of DaemonSets do not get twins by default")
    for condition in (accepted, mapped):
        if condition.get("status") == "False":
            return PodDiagnosis("Waiting", condition.get("reason", ""), condition.get("message", ""))
    return PodDiagnosis("Waiting", "NotSeen", "the syncer of its node has not processed it yet")


def mapped_pod_diagnosis(pod: Object) -> PodDiagnosis:
    """Return the state of a pod with a twin."""
    if value_at(pod, "status", "phase") == "Running":
        accepted = pod_condition(pod, keys.ACCEPTED_CONDITION)
        return PodDiagnosis("Running", accepted.get("reason", ""), accepted.get("message", ""))
    volumes, scheduled = pod_condition(pod, keys.VOLUMES_CONDITION), pod_condition(pod, SCHEDULED)
    if volumes.get("status") == "False":
        return PodDiagnosis("Waiting", volumes.get("reason", ""), volumes.get("message", ""))
    if scheduled.get("reason") == GATED_BELOW:
        return PodDiagnosis("Waiting", GATED_BELOW, scheduled.get("message") or "")
    if scheduled.get("status") == "False":
        return PodDiagnosis("Waiting", "UnschedulableBelow", scheduled.get("message") or "its twin is not scheduled")
    for field in CONTAINER_LISTS:
        for each in value_at(pod, "status", field, default=[]):
            if waiting := value_at(each, "state", "waiting"):
                why = waiting.get("message") or f"container {each.get('name')} waits"
                return PodDiagnosis("Waiting", waiting.get("reason") or "ContainerWaiting", why)
    return PodDiagnosis("Waiting", "Starting", "its twin has not started yet")


def ended_pod_diagnosis(pod: Object) -> PodDiagnosis:
    status = pod["status"]
    if status["phase"] == "Succeeded":
        return PodDiagnosis("Succeeded")
    disrupted = pod_condition(pod, DISRUPTED)
    why = "; ".join(filter(None, (status.get("message"), disrupted.get("message"))))
    return PodDiagnosis("Failed", status.get("reason") or disrupted.get("reason") or "Error", why or exit_messages(pod))


def exit_messages(pod: Object) -> str:
    """Describe the containers that ended with an error."""
    found = []
    for field in CONTAINER_LISTS:
        for each in value_at(pod, "status", field, default=[]):
            terminated = value_at(each, "state", "terminated", default={})
            if terminated.get("exitCode"):
                reason = f" ({terminated['reason']})" if terminated.get("reason") else ""
                found.append(f"container {each.get('name')} ended with {terminated['exitCode']}{reason}")
    return "; ".join(found)


def terminating_pod_diagnosis(pod: Object) -> PodDiagnosis:
    disrupted = pod_condition(pod, DISRUPTED)
    if disrupted.get("status") == "True":
        return PodDiagnosis("Leaving", disrupted.get("reason", ""), disrupted.get("message", ""))
    return PodDiagnosis("Leaving", "Deleted", "it was deleted, and disappears when its twin has ended")


def pod_condition(pod: Object, type: str) -> Object:
    return find_condition(value_at(pod, "status", "conditions"), type) or {}


def pod_explanation(
    placed_pod: PlacedPod,
    lookup: TwinLookup,
    nodes: Sequence[Object],
    pods: Mapping[str, Iterable[Object]],
    next_opening: datetime | None,
) -> PodExplanation:
    """Explain a pod; `nodes` are all virtual nodes with the `pods` on them, for a pod without a node."""
    status = pod_status(placed_pod)
    if is_twin_lost(placed_pod, lookup):
        why = f"its twin {status.twin} is gone or was replaced"
        status = with_diagnosis(status, PodDiagnosis("Waiting", "TwinLost", why))
    is_unscheduled = status.reason == "Unscheduled"
    if is_unscheduled and not nodes:
        status = with_diagnosis(status, PodDiagnosis("Waiting", "NoNodes", "there is no virtual node"))
    found_obstacles, free = obstacles(placed_pod.pod, nodes, pods, next_opening) if is_unscheduled else ((), 0)
    return PodExplanation(
        pod=status,
        todo=ADVICE.get(status.reason, ""),
        twin_phase=value_at(lookup.twin, "status", "phase", default=""),
        twin_node=value_at(lookup.twin, "spec", "nodeName", default=""),
        deadline=waiting_deadline(placed_pod.pod, status),
        nodes=len(nodes) if is_unscheduled else 0,
        free_nodes=free,
        obstacles=found_obstacles,
        unseen=lookup.error,
        notes=pod_notes(placed_pod),
    )


def pod_notes(placed_pod: PlacedPod) -> tuple[str, ...]:
    """Return the limitations of a pod in the physical cluster."""
    if placed_pod.binding is None or is_pod_terminal(placed_pod.pod):
        return ()
    found = []
    if uncopied := uncopied_keys(placed_pod.pod, placed_pod.binding):
        found.append(uncopied_message(uncopied))
    spec = placed_pod.binding.spec
    if namespace_of(placed_pod.pod) in spec.service_namespaces and not spec.virtual_endpoints.dns:
        found.append("it knows only Services with an address at its creation; headless and later Services need DNS")
    return tuple(found)


def is_twin_lost(placed_pod: PlacedPod, lookup: TwinLookup) -> bool:
    """Return whether the pod should have a twin, but the physical cluster has none."""
    expected_uid = mapped_uid(placed_pod.pod)
    if not lookup.succeeded or expected_uid is None or is_pod_terminal(placed_pod.pod) or is_deleting(placed_pod.pod):
        return False
    return lookup.twin is None or uid_of(lookup.twin) != expected_uid


def with_diagnosis(status: PodStatus, diagnosis: PodDiagnosis) -> PodStatus:
    return structs.replace(status, state=diagnosis.state, reason=diagnosis.reason, why=diagnosis.why)


def waiting_deadline(pod: Object, status: PodStatus) -> datetime | None:
    """Return the time when a pod fails that waits for capacity."""
    timeout = WAITING_TIMEOUTS.get(status.reason)
    if timeout is None or status.state != "Waiting":
        return None
    conditions = (keys.MAPPED_CONDITION,) if status.reason == "RefusedBelow" else (keys.MAPPED_CONDITION, SCHEDULED)
    since = [pod_condition(pod, each).get("lastTransitionTime") for each in conditions]
    return max(parse_time(each) for each in since if each) + timeout if any(since) else None


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
