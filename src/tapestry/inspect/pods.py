"""Pods of the virtual cluster, as far as they are to run on leased nodes: where they are, why they wait or ended."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec import structs

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.inspect.placement import Obstacle, obstacles
from tapestry.inspect.status import Printable, creation_time, physical_node_name
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, is_deleting, name_of, namespace_of, uid_of, value_at
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.times import parse_time
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.translate.allowed_metadata import uncopied_keys, uncopied_message
from tapestry.syncer.translate.pod_status import CONTAINER_LISTS, DISRUPTED, GATED_BELOW, SCHEDULED, mapped_uid
from tapestry.syncer.translate.pods import SYSTEM_NAMESPACES, is_excluded, twin_name

DEFAULT_CONFIG = SyncerConfig()
WAITING_TIMEOUTS = {
    "RefusedBelow": timedelta(seconds=DEFAULT_CONFIG.refusal_seconds),
    "UnschedulableBelow": timedelta(seconds=DEFAULT_CONFIG.unschedulable_seconds),
    GATED_BELOW: timedelta(seconds=DEFAULT_CONFIG.unschedulable_seconds),
}
"""How long a pod may wait for such a reason, unless its syncer was told otherwise."""

ADVICE = {
    "Unscheduled": "see what bars the nodes",
    "NoNodes": "`tapestry status` says why no node is lent",
    "NotLeased": "nothing that Tapestry could tell: see `kubectl describe pod`",
    "NodeGone": "nothing: the virtual cluster removes pods of nodes that are gone, and their controllers make others",
    "NotSeen": "see whether its syncer is at work: `tapestry status`, and the syncer's log",
    "SystemNamespace": "nothing: pods of system namespaces are for nodes of the virtual cluster itself",
    "DaemonSet": (
        f"annotate its template with {keys.RUNNING_DAEMONSET}=true, "
        "or set runningDaemonsetByDefault in the ClusterBinding"
    ),
    "PodSecurity": "change the fields that are named, or have the operator choose another podSecurity for the binding",
    "ConfigMapMissing": "create it; the pod then runs by itself",
    "SecretMissing": "create it; the pod then runs by itself",
    "SecretRefused": "use a Secret of another type",
    "ServiceAccountMissing": "create it; the pod then runs by itself",
    "TokenRefused": "see the message: the virtual API server gives the account no such token",
    "ServiceNotMapped": "nothing, unless it lasts: then the syncer's log says what the Service lacks",
    "ClaimMissing": "create the claim; the pod then runs by itself",
    "ClaimNotBound": "see the claim: it needs a volume before it can cross",
    "VolumeNotAllowed": "have the operator name the driver and class in the binding's allowedVolumes, or use another",
    "VolumeGoing": "nothing, unless it lasts: then somebody below holds what has to go",
    "NameTaken": "have the owner of the physical cluster delete what has the name",
    "NotPermitted": "`tapestry join` again gives the syncer what it lacks below",
    "RefusedBelow": "see the message: a quota, a limit or a webhook of the physical cluster does not want the pod",
    "UnschedulableBelow": (
        "see the message of the physical scheduler: the pod does not fit its node now; it fails in the end, "
        "and its controller makes another"
    ),
    GATED_BELOW: (
        "ask the owner of the physical cluster which controller there adds scheduling gates to pods (Kueue does), "
        "and have it leave the mount namespace alone; the pod fails in the end"
    ),
    "Tainted": "tolerate the taint with the effect that it has on the physical node, or use other nodes",
    "TwinLost": "nothing: its syncer ends the pod as soon as it sees that",
    "Reclaimed": "nothing: its controller makes another; without one, create it again",
    "PhysicalPodLost": "ask the owner of the physical cluster who deleted it; the pod is never run twice",
    "Evicted": "nothing: its controller makes another; without one, create it again",
    "Preempted": "nothing: owners' pods go first; its controller makes another",
}
"""What to do about a reason."""


class PodStatus(Printable, frozen=True):
    namespace: str
    name: str
    phase: str
    """Of the pod or, while it is being deleted, `Terminating`."""
    node: str
    physical_node: str
    binding: str
    twin: str
    """`namespace/name` of the pod below; empty where there is none yet."""
    state: str
    """`Waiting`, `Running`, `Leaving`, `Succeeded` or `Failed`."""
    reason: str
    why: str
    created: datetime


class PodExplanation(Printable, frozen=True):
    """One answer: where the pod is, why it waits or ended, and what to do."""

    pod: PodStatus
    todo: str
    twin_phase: str
    twin_node: str
    """Where the twin runs, as the physical cluster says."""
    deadline: datetime | None
    """When a pod that waits fails, if its syncer has the usual patience."""
    nodes: int
    """How many virtual nodes there are, for a pod that has none."""
    free_nodes: int
    """How many of these nothing bars."""
    obstacles: tuple[Obstacle, ...]
    unseen: str
    """Why the physical cluster could not be looked into."""
    notes: tuple[str, ...] = ()
    """What does not reach the pod there."""


@dataclass(frozen=True)
class PodDiagnosis:
    state: str
    reason: str = ""
    why: str = ""


@dataclass(frozen=True)
class PlacedPod:
    """A pod, and what the virtual cluster knows of where it is."""

    pod: Object
    node: Object | None = None
    """The virtual node that it is bound to, if that exists."""
    binding: Binding | None = None
    is_on_unleased_node: bool = False
    """Whether its node is one of the virtual cluster itself."""

    @property
    def twin(self) -> str:
        if self.binding is None or mapped_uid(self.pod) is None:
            return ""
        return f"{self.binding.spec.mount_namespace}/{twin_name(self.pod, self.binding)}"


@dataclass(frozen=True)
class TwinLookup:
    """What a look into the physical cluster found."""

    twin: Object | None = None
    error: str = ""
    """Why there was none."""
    succeeded: bool = False


def pod_status(placed_pod: PlacedPod) -> PodStatus:
    pod, said = placed_pod.pod, pod_diagnosis(placed_pod)
    return PodStatus(
        namespace=namespace_of(pod) or "",
        name=name_of(pod),
        phase="Terminating" if is_deleting(pod) else value_at(pod, "status", "phase", default="Pending"),
        node=value_at(pod, "spec", "nodeName", default=""),
        physical_node=physical_node_name(placed_pod.node) if placed_pod.node else "",
        binding=placed_pod.binding.name if placed_pod.binding else "",
        twin=placed_pod.twin,
        state=said.state,
        reason=said.reason,
        why=said.why,
        created=creation_time(pod),
    )


def pod_diagnosis(placed_pod: PlacedPod) -> PodDiagnosis:
    """How a pod is, as the virtual cluster tells it."""
    pod = placed_pod.pod
    if is_pod_terminal(pod):
        return ended_pod_diagnosis(pod)
    if is_deleting(pod):
        return terminating_pod_diagnosis(pod)
    if placed_pod.is_on_unleased_node:
        why = f"its node, {pod['spec']['nodeName']}, is one of the virtual cluster itself, and not lent"
        return PodDiagnosis("Running" if pod["status"]["phase"] == "Running" else "Waiting", "NotLeased", why)
    if not value_at(pod, "spec", "nodeName"):
        said = pod_condition(pod, SCHEDULED)
        return PodDiagnosis("Waiting", "Unscheduled", said.get("message") or "no scheduler has looked at it yet")
    if placed_pod.node is None or placed_pod.binding is None:
        return PodDiagnosis("Waiting", "NodeGone", f"there is no node {pod['spec']['nodeName']} any more")
    return bound_pod_diagnosis(pod, placed_pod.binding)


def bound_pod_diagnosis(pod: Object, binding: Binding) -> PodDiagnosis:
    """How a pod is that has a virtual node."""
    mapped, accepted = pod_condition(pod, keys.MAPPED_CONDITION), pod_condition(pod, keys.ACCEPTED_CONDITION)
    if mapped.get("status") == "True":
        return mapped_pod_diagnosis(pod)
    if is_excluded(pod, binding):
        if namespace_of(pod) in SYSTEM_NAMESPACES:
            return PodDiagnosis("Waiting", "SystemNamespace", "pods of system namespaces are not run below")
        return PodDiagnosis("Waiting", "DaemonSet", "pods of DaemonSets are not run below unless that is asked for")
    for said in (accepted, mapped):
        if said.get("status") == "False":
            return PodDiagnosis("Waiting", said.get("reason", ""), said.get("message", ""))
    return PodDiagnosis("Waiting", "NotSeen", "the syncer of its node has yet to look at it")


def mapped_pod_diagnosis(pod: Object) -> PodDiagnosis:
    """How a pod is that has a twin."""
    if value_at(pod, "status", "phase") == "Running":
        refused = pod_condition(pod, keys.ACCEPTED_CONDITION)
        return PodDiagnosis("Running", refused.get("reason", ""), refused.get("message", ""))
    unplaced = pod_condition(pod, SCHEDULED)
    if unplaced.get("reason") == GATED_BELOW:
        return PodDiagnosis("Waiting", GATED_BELOW, unplaced.get("message") or "")
    if unplaced.get("status") == "False":
        return PodDiagnosis("Waiting", "UnschedulableBelow", unplaced.get("message") or "it was not scheduled below")
    for field in CONTAINER_LISTS:
        for each in value_at(pod, "status", field, default=[]):
            if stuck := value_at(each, "state", "waiting"):
                why = stuck.get("message") or f"container {each.get('name')} waits"
                return PodDiagnosis("Waiting", stuck.get("reason") or "ContainerWaiting", why)
    return PodDiagnosis("Waiting", "Starting", "its twin has yet to start")


def ended_pod_diagnosis(pod: Object) -> PodDiagnosis:
    status = pod["status"]
    if status["phase"] == "Succeeded":
        return PodDiagnosis("Succeeded")
    disrupted = pod_condition(pod, DISRUPTED)
    why = "; ".join(filter(None, (status.get("message"), disrupted.get("message"))))
    return PodDiagnosis("Failed", status.get("reason") or disrupted.get("reason") or "Error", why or exit_messages(pod))


def exit_messages(pod: Object) -> str:
    """How containers ended that did not end well."""
    found = []
    for field in CONTAINER_LISTS:
        for each in value_at(pod, "status", field, default=[]):
            done = value_at(each, "state", "terminated", default={})
            if done.get("exitCode"):
                reason = f" ({done['reason']})" if done.get("reason") else ""
                found.append(f"container {each.get('name')} ended with {done['exitCode']}{reason}")
    return "; ".join(found)


def terminating_pod_diagnosis(pod: Object) -> PodDiagnosis:
    disrupted = pod_condition(pod, DISRUPTED)
    if disrupted.get("status") == "True":
        return PodDiagnosis("Leaving", disrupted.get("reason", ""), disrupted.get("message", ""))
    return PodDiagnosis("Leaving", "Deleted", "it was deleted, and goes when its twin has ended")


def pod_condition(pod: Object, type: str) -> Object:
    return find_condition(value_at(pod, "status", "conditions"), type) or {}


def pod_explanation(
    placed_pod: PlacedPod,
    lookup: TwinLookup,
    nodes: Sequence[Object],
    pods: Mapping[str, Iterable[Object]],
    next_opening: datetime | None,
) -> PodExplanation:
    """Where a pod is and why; `nodes` are all virtual nodes with the `pods` on them, for one that has none."""
    status = pod_status(placed_pod)
    if is_twin_lost(placed_pod, lookup):
        why = f"its twin {status.twin} is gone, or another one is there now"
        status = with_diagnosis(status, PodDiagnosis("Waiting", "TwinLost", why))
    unplaced = status.reason == "Unscheduled"
    if unplaced and not nodes:
        status = with_diagnosis(status, PodDiagnosis("Waiting", "NoNodes", "there is no virtual node"))
    barring, free = obstacles(placed_pod.pod, nodes, pods, next_opening) if unplaced else ((), 0)
    return PodExplanation(
        pod=status,
        todo=ADVICE.get(status.reason, ""),
        twin_phase=value_at(lookup.twin, "status", "phase", default=""),
        twin_node=value_at(lookup.twin, "spec", "nodeName", default=""),
        deadline=waiting_deadline(placed_pod.pod, status),
        nodes=len(nodes) if unplaced else 0,
        free_nodes=free,
        obstacles=barring,
        unseen=lookup.error,
        notes=pod_notes(placed_pod),
    )


def pod_notes(placed_pod: PlacedPod) -> tuple[str, ...]:
    """What a pod with a virtual node cannot count on below."""
    if placed_pod.binding is None or is_pod_terminal(placed_pod.pod):
        return ()
    found = []
    if uncopied := uncopied_keys(placed_pod.pod, placed_pod.binding):
        found.append(uncopied_message(uncopied))
    spec = placed_pod.binding.spec
    if namespace_of(placed_pod.pod) in spec.service_namespaces and not spec.virtual_endpoints.dns:
        found.append("it knows the Services that had an address when it was created; headless and later ones need DNS")
    return tuple(found)


def is_twin_lost(placed_pod: PlacedPod, lookup: TwinLookup) -> bool:
    """Whether the pod should have a twin and has not, as a look below showed."""
    had = mapped_uid(placed_pod.pod)
    if not lookup.succeeded or had is None or is_pod_terminal(placed_pod.pod) or is_deleting(placed_pod.pod):
        return False
    return lookup.twin is None or uid_of(lookup.twin) != had


def with_diagnosis(status: PodStatus, diagnosis: PodDiagnosis) -> PodStatus:
    return structs.replace(status, state=diagnosis.state, reason=diagnosis.reason, why=diagnosis.why)


def waiting_deadline(pod: Object, status: PodStatus) -> datetime | None:
    """When a pod fails that waits for want of room."""
    patience = WAITING_TIMEOUTS.get(status.reason)
    if patience is None or status.state != "Waiting":
        return None
    conditions = (keys.MAPPED_CONDITION,) if status.reason == "RefusedBelow" else (keys.MAPPED_CONDITION, SCHEDULED)
    since = [pod_condition(pod, each).get("lastTransitionTime") for each in conditions]
    return max(parse_time(each) for each in since if each) + patience if any(since) else None
