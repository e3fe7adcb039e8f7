"""Daemons: which nodes a DaemonSet has a pod on, and what its pods are to become next.  Pure.

A node has the pod unless its labels or its taints say that it cannot; whether there is room is the scheduler's matter,
to whom each pod says which node it is for.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from tapestry.controlplane.scheduler.pod_info import REQUIRED
from tapestry.controlplane.workloads import owned_pods
from tapestry.controlplane.workloads.controller_revisions import CONTROLLER_REVISION_HASH
from tapestry.controlplane.workloads.rollouts import scaled_value
from tapestry.kube.objects import Object, annotations_of, is_deleting, labels_of, name_of, uid_of, value_at
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.selectors import node_selector
from tapestry.kube.taints import is_tolerated
from tapestry.kube.times import parse_time

TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
POD_GENERATION = "pod-template-generation"
NO_EXECUTE_TOLERATIONS = {"not-ready": "NoExecute", "unreachable": "NoExecute"}
NO_SCHEDULE_TOLERATIONS = ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
FAILED_POD_BACKOFF = timedelta(seconds=10)
"""How long a pod is there at least before it is replaced for having failed: its node may refuse the next one, too."""


class DaemonFit(NamedTuple):
    """What a node is to a DaemonSet."""

    should_run: bool
    """Whether it should have a pod."""
    should_continue_running: bool
    """Whether it may keep one."""


@dataclass(frozen=True, slots=True)
class DaemonStep:
    """What to do now: nodes that are to get a pod, pods that are to go, and when to look again."""

    to_create: Sequence[str] = ()
    to_delete: Sequence[Object] = ()
    requeue_at: datetime | None = None


# -- nodes


def daemon_fit(daemon_set: Object, node: Object) -> DaemonFit:
    spec = daemon_set["spec"]["template"]["spec"]
    if spec.get("nodeName") not in (None, "", name_of(node)):
        return DaemonFit(False, False)
    if not (spec.get("nodeSelector") or {}).items() <= labels_of(node).items():
        return DaemonFit(False, False)
    required = value_at(spec, "affinity", "nodeAffinity", REQUIRED)
    if required is not None and not node_selector(required).matches(node):
        return DaemonFit(False, False)
    held = tolerations_of(spec)
    effects = {each["effect"] for each in value_at(node, "spec", "taints", default=()) if not is_tolerated(each, held)}
    return DaemonFit(not effects & {"NoSchedule", "NoExecute"}, "NoExecute" not in effects)


def tolerations_of(spec: Object) -> list[Object]:
    """What a template tolerates, and what every daemon does: trouble of its node is its own."""
    known = {**NO_EXECUTE_TOLERATIONS, **dict.fromkeys(NO_SCHEDULE_TOLERATIONS, "NoSchedule")}
    if spec.get("hostNetwork"):
        known["network-unavailable"] = "NoSchedule"
    added = [
        {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": effect} for name, effect in known.items()
    ]
    own = [each for each in spec.get("tolerations") or () if each not in added]
    return [*own, *added]


def target_node(pod: Object) -> str | None:
    """The node that the pod is on, or is for."""
    if name := value_at(pod, "spec", "nodeName"):
        return str(name)
    for term in value_at(pod, "spec", "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms", default=()):
        for each in term.get("matchFields") or ():
            if each["key"] == "metadata.name" and each["operator"] == "In" and len(each["values"]) == 1:
                return str(each["values"][0])
    return None


def pods_by_node(pods: Iterable[Object]) -> dict[str, list[Object]]:
    found: dict[str, list[Object]] = {}
    for pod in pods:
        if (node := target_node(pod)) is not None:
            found.setdefault(node, []).append(pod)
    return found


# -- pods


def daemon_pod(daemon_set: Object, node: str, revision_hash: str, is_free: owned_pods.IsFree) -> Object:
    """A pod for a node, of the template that has the mark."""
    template = daemon_set["spec"]["template"]
    name = next(each for each in daemon_pod_names(daemon_set, node, revision_hash) if is_free(each))
    pod = owned_pods.pod_from_template(template, daemon_set, name)
    labels = {**labels_of(pod), CONTROLLER_REVISION_HASH: revision_hash}
    if generation := annotations_of(daemon_set).get(TEMPLATE_GENERATION):
        labels[POD_GENERATION] = generation
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    affinity = template["spec"].get("affinity") or {}
    nodes = {**(affinity.get("nodeAffinity") or {}), REQUIRED: {"nodeSelectorTerms": [{"matchFields": [field]}]}}
    place = {"affinity": {**affinity, "nodeAffinity": nodes}, "tolerations": tolerations_of(template["spec"])}
    return {**pod, "metadata": {**pod["metadata"], "labels": labels}, "spec": {**pod["spec"], **place}}


def daemon_pod_names(daemon_set: Object, node: str, revision_hash: str) -> Iterator[str]:
    number = 0
    while True:
        suffix = owned_pods.name_suffix(uid_of(daemon_set), node, revision_hash, number)
        yield f"{name_of(daemon_set)[: owned_pods.MAX_BASE_LENGTH]}-{suffix}"
        number += 1


def is_updated(pod: Object, revision_hash: str) -> bool:
    return labels_of(pod).get(CONTROLLER_REVISION_HASH) == revision_hash


def daemon_set_min_ready(daemon_set: Object) -> timedelta:
    return timedelta(seconds=daemon_set["spec"].get("minReadySeconds", 0))


# -- steps


@dataclass(frozen=True, slots=True)
class UpdateLimits:
    """How far an update may go at a time, in nodes."""

    max_unavailable: int
    max_surge: int


def update_limits(daemon_set: Object, nodes: int) -> UpdateLimits:
    rolling = value_at(daemon_set, "spec", "updateStrategy", "rollingUpdate", default={})
    surge = scaled_value(rolling.get("maxSurge", 0), nodes, math.ceil)
    unavailable = scaled_value(rolling.get("maxUnavailable", 1), nodes, math.ceil)
    return UpdateLimits(unavailable if unavailable or surge else 1, surge)


def next_daemon_step(
    daemon_set: Object,
    nodes: Mapping[str, DaemonFit],
    pods: Mapping[str, Sequence[Object]],
    revision_hash: str,
    now: datetime,
) -> DaemonStep:
    """What to do now; `pods` are by their nodes, `mark` is that of the present template."""
    rolls = value_at(daemon_set, "spec", "updateStrategy", "type", default="RollingUpdate") == "RollingUpdate"
    limits = update_limits(daemon_set, sum(fit.should_run for fit in nodes.values())) if rolls else UpdateLimits(0, 0)
    make: list[str] = []
    leave: list[Object] = []
    moments: list[datetime] = []
    kept: dict[str, list[Object]] = {}
    for node in sorted(nodes.keys() | pods.keys()):
        fit, found = (
            nodes.get(node),
            [pod for pod in pods.get(node, ()) if owned_pods.is_active(pod) or not has_fully_terminated(pod)],
        )
        going = unwanted_pods(found, fit, revision_hash, now, is_surging=limits.max_surge > 0)
        leave += going
        if fit is None or not fit.should_run:
            continue
        staying = [pod for pod in found if not is_deleting(pod)]
        if not staying and (limits.max_surge or not found):
            make.append(node)
        kept[node] = [pod for pod in staying if pod not in going and owned_pods.is_active(pod)]
        moments += [replacement_time(pod) for pod in staying if pod not in going and not owned_pods.is_active(pod)]
    more = rolling_update_step(daemon_set, kept, revision_hash, limits, now) if rolls else DaemonStep()
    return DaemonStep([*make, *more.to_create], [*leave, *more.to_delete], min(moments, default=None))


def has_fully_terminated(pod: Object) -> bool:
    return is_deleting(pod) and is_pod_terminal(pod)


def unwanted_pods(
    pods: Sequence[Object], fit: DaemonFit | None, revision_hash: str, now: datetime, *, is_surging: bool
) -> list[Object]:
    """Pods that have no business on their node, whatever the template."""
    staying = [pod for pod in pods if not is_deleting(pod)]
    if fit is None:
        return [pod for pod in staying if not value_at(pod, "spec", "nodeName")]
    if not fit.should_continue_running:
        return staying
    ended = [pod for pod in staying if not owned_pods.is_active(pod) and replacement_time(pod) <= now]
    alive = sorted(filter(owned_pods.is_active, staying), key=oldest_first)
    return [*ended, *surplus_daemon_pods(alive, revision_hash, is_surging=is_surging)]


def replacement_time(pod: Object) -> datetime:
    if value_at(pod, "status", "phase") == "Succeeded":
        return parse_time(pod["metadata"]["creationTimestamp"])
    return parse_time(pod["metadata"]["creationTimestamp"]) + FAILED_POD_BACKOFF


def oldest_first(pod: Object) -> tuple[bool, str, str]:
    return not value_at(pod, "spec", "nodeName"), pod["metadata"]["creationTimestamp"], name_of(pod)


def surplus_daemon_pods(alive: Sequence[Object], revision_hash: str, *, is_surging: bool) -> list[Object]:
    """Pods that a node has too many of; while an update surges it may have one of each kind."""
    if not is_surging:
        return list(alive[1:])
    new = [pod for pod in alive if is_updated(pod, revision_hash)]
    old = [pod for pod in alive if not is_updated(pod, revision_hash)]
    return [*new[1:], *old[1:]]


def rolling_update_step(
    daemon_set: Object,
    pods_to_keep: Mapping[str, Sequence[Object]],
    revision_hash: str,
    limits: UpdateLimits,
    now: datetime,
) -> DaemonStep:
    """What brings the present template to more nodes; `kept` are pods that stay, by nodes that should have one."""
    patience = daemon_set_min_ready(daemon_set)

    def works(pod: Object | None) -> bool:
        return pod is not None and owned_pods.is_available(pod, patience, now)

    pairs = {
        node: (
            next((pod for pod in pods if is_updated(pod, revision_hash)), None),
            next((pod for pod in pods if not is_updated(pod, revision_hash)), None),
        )
        for node, pods in pods_to_keep.items()
    }
    outdated = {node: old for node, (new, old) in pairs.items() if new is None and old is not None}
    broken = {node: old for node, old in outdated.items() if not works(old)}
    healthy = [node for node in outdated if node not in broken]
    if limits.max_surge:
        both = [(new, old) for new, old in pairs.values() if new is not None and old is not None]
        done = [old for new, old in both if works(new) or not owned_pods.is_ready(old)]
        room = max(limits.max_surge - (len(both) - len(done)), 0)
        return DaemonStep([*broken, *healthy[:room]], done)
    unavailable = len(broken) + sum(not works(new) for node, (new, _) in pairs.items() if node not in outdated)
    room = max(limits.max_unavailable - unavailable, 0)
    return DaemonStep((), [*broken.values(), *(outdated[node] for node in healthy[:room])])


# -- telling


def daemon_set_status(
    daemon_set: Object,
    nodes: Mapping[str, DaemonFit],
    pods: Mapping[str, Sequence[Object]],
    revision_hash: str,
    now: datetime,
) -> Object:
    wanted = [node for node, fit in nodes.items() if fit.should_run]
    first = [min(pods[node], key=oldest_first) for node in wanted if pods.get(node)]
    patience = daemon_set_min_ready(daemon_set)
    available = sum(owned_pods.is_available(pod, patience, now) for pod in first)
    updated = sum(is_updated(pod, revision_hash) for pod in first)
    found = {
        "desiredNumberScheduled": len(wanted),
        "currentNumberScheduled": len(first),
        "numberMisscheduled": sum(bool(pods.get(node)) for node, fit in nodes.items() if not fit.should_run),
        "numberReady": sum(map(owned_pods.is_ready, first)),
        "updatedNumberScheduled": updated,
        "numberAvailable": available,
        "numberUnavailable": len(wanted) - available,
        "observedGeneration": daemon_set["metadata"].get("generation", 0),
    }
    always = ("desiredNumberScheduled", "currentNumberScheduled", "numberMisscheduled", "numberReady")
    return {key: count for key, count in found.items() if count or key in always}
