"""Pure functions that decide which nodes get a pod of a DaemonSet, and which pods to replace.

A node gets a pod if its labels match and its taints are tolerated. Each pod has a node affinity for its node, and the
scheduler checks the resources.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from tapestry.controlplane.scheduler.pod_info import REQUIRED
from tapestry.controlplane.workloads import owned_pods
from tapestry.controlplane.workloads.controller_revisions import CONTROLLER_REVISION_HASH
from tapestry.kube.objects import Object, annotations_of, is_deleting, labels_of, name_of, uid_of, value_at
from tapestry.kube.pods import is_pod_terminal, is_tolerated
from tapestry.kube.quantity import scaled_value
from tapestry.kube.selectors import node_selector
from tapestry.kube.times import parse_time

TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
POD_GENERATION = "pod-template-generation"
NO_EXECUTE_TOLERATIONS = {"not-ready": "NoExecute", "unreachable": "NoExecute"}
NO_SCHEDULE_TOLERATIONS = ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
FAILED_POD_BACKOFF = timedelta(seconds=10)
"""Minimum age of a failed pod before it is replaced, because its node may reject the next one, too."""


class DaemonFit(NamedTuple):
    """Eligibility of a node for a DaemonSet."""

    should_run: bool
    """True if the node should have a pod."""
    should_continue_running: bool
    """True if an existing pod may stay on the node."""


@dataclass(frozen=True, slots=True)
class DaemonStep:
    """Nodes on which to create a pod, pods to delete, and the time of the next reconcile."""

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
    tolerations = tolerations_of(spec)
    effects = {
        each["effect"] for each in value_at(node, "spec", "taints", default=()) if not is_tolerated(each, tolerations)
    }
    return DaemonFit(not effects & {"NoSchedule", "NoExecute"}, "NoExecute" not in effects)


def tolerations_of(spec: Object) -> list[Object]:
    """Return the tolerations of the template and those that every daemon pod has."""
    effects = {**NO_EXECUTE_TOLERATIONS, **dict.fromkeys(NO_SCHEDULE_TOLERATIONS, "NoSchedule")}
    if spec.get("hostNetwork"):
        effects["network-unavailable"] = "NoSchedule"
    defaults = [
        {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": effect}
        for name, effect in effects.items()
    ]
    own = [each for each in spec.get("tolerations") or () if each not in defaults]
    return [*own, *defaults]


def target_node(pod: Object) -> str | None:
    """Return the node on which the pod runs, or for which it is intended."""
    if name := value_at(pod, "spec", "nodeName"):
        return str(name)
    for term in value_at(pod, "spec", "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms", default=()):
        for each in term.get("matchFields") or ():
            if each["key"] == "metadata.name" and each["operator"] == "In" and len(each["values"]) == 1:
                return str(each["values"][0])
    return None


def pods_by_node(pods: Iterable[Object]) -> dict[str, list[Object]]:
    by_node: dict[str, list[Object]] = {}
    for pod in pods:
        if (node := target_node(pod)) is not None:
            by_node.setdefault(node, []).append(pod)
    return by_node


# -- pods


def daemon_pod(daemon_set: Object, node: str, revision_hash: str, is_free: owned_pods.IsFree) -> Object:
    """Return a pod for a node, labelled with the hash of its revision."""
    template = daemon_set["spec"]["template"]
    name = next(each for each in daemon_pod_names(daemon_set, node, revision_hash) if is_free(each))
    pod = owned_pods.pod_from_template(template, daemon_set, name)
    labels = {**labels_of(pod), CONTROLLER_REVISION_HASH: revision_hash}
    if generation := annotations_of(daemon_set).get(TEMPLATE_GENERATION):
        labels[POD_GENERATION] = generation
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    affinity = template["spec"].get("affinity") or {}
    nodes = {**(affinity.get("nodeAffinity") or {}), REQUIRED: {"nodeSelectorTerms": [{"matchFields": [field]}]}}
    scheduling = {"affinity": {**affinity, "nodeAffinity": nodes}, "tolerations": tolerations_of(template["spec"])}
    return {**pod, "metadata": {**pod["metadata"], "labels": labels}, "spec": {**pod["spec"], **scheduling}}


def daemon_pod_names(daemon_set: Object, node: str, revision_hash: str) -> Iterator[str]:
    number = 0
    while True:
        suffix = owned_pods.name_suffix(uid_of(daemon_set), node, revision_hash, number)
        yield f"{name_of(daemon_set)[: owned_pods.MAX_BASE_LENGTH]}-{suffix}"
        number += 1


def is_updated(pod: Object, revision_hash: str) -> bool:
    return labels_of(pod).get(CONTROLLER_REVISION_HASH) == revision_hash


# -- steps


@dataclass(frozen=True, slots=True)
class UpdateLimits:
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
    """Return the next step. `pods` are by node, `revision_hash` is that of the current template."""
    rolls = value_at(daemon_set, "spec", "updateStrategy", "type", default="RollingUpdate") == "RollingUpdate"
    limits = update_limits(daemon_set, sum(fit.should_run for fit in nodes.values())) if rolls else UpdateLimits(0, 0)
    to_create: list[str] = []
    to_delete: list[Object] = []
    times: list[datetime] = []
    to_keep: dict[str, list[Object]] = {}
    for node in sorted(nodes.keys() | pods.keys()):
        fit, existing = (
            nodes.get(node),
            [pod for pod in pods.get(node, ()) if owned_pods.is_active(pod) or not has_fully_terminated(pod)],
        )
        surplus = unwanted_pods(existing, fit, revision_hash, now, is_surging=limits.max_surge > 0)
        to_delete += surplus
        if fit is None or not fit.should_run:
            continue
        live = [pod for pod in existing if not is_deleting(pod)]
        if not live and (limits.max_surge or not existing):
            to_create.append(node)
        to_keep[node] = [pod for pod in live if pod not in surplus and owned_pods.is_active(pod)]
        times += [replacement_time(pod) for pod in live if pod not in surplus and not owned_pods.is_active(pod)]
    update = rolling_update_step(daemon_set, to_keep, revision_hash, limits, now) if rolls else DaemonStep()
    return DaemonStep([*to_create, *update.to_create], [*to_delete, *update.to_delete], min(times, default=None))


def has_fully_terminated(pod: Object) -> bool:
    return is_deleting(pod) and is_pod_terminal(pod)


def unwanted_pods(
    pods: Sequence[Object], fit: DaemonFit | None, revision_hash: str, now: datetime, *, is_surging: bool
) -> list[Object]:
    """Return pods that must not be on their node, regardless of their revision."""
    remaining = [pod for pod in pods if not is_deleting(pod)]
    if fit is None:
        return [pod for pod in remaining if not value_at(pod, "spec", "nodeName")]
    if not fit.should_continue_running:
        return remaining
    terminated = [pod for pod in remaining if not owned_pods.is_active(pod) and replacement_time(pod) <= now]
    active = sorted(filter(owned_pods.is_active, remaining), key=oldest_first)
    return [*terminated, *surplus_daemon_pods(active, revision_hash, is_surging=is_surging)]


def replacement_time(pod: Object) -> datetime:
    if value_at(pod, "status", "phase") == "Succeeded":
        return parse_time(pod["metadata"]["creationTimestamp"])
    return parse_time(pod["metadata"]["creationTimestamp"]) + FAILED_POD_BACKOFF


def oldest_first(pod: Object) -> tuple[bool, str, str]:
    return not value_at(pod, "spec", "nodeName"), pod["metadata"]["creationTimestamp"], name_of(pod)


def surplus_daemon_pods(alive: Sequence[Object], revision_hash: str, *, is_surging: bool) -> list[Object]:
    """Return surplus pods of a node. During a surge, it may have one old and one updated pod."""
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
    """Return the next step of a rolling update. `pods_to_keep` are by node."""
    min_ready = owned_pods.min_ready_time(daemon_set)

    def is_up(pod: Object | None) -> bool:
        return pod is not None and owned_pods.is_available(pod, min_ready, now)

    pairs = {
        node: (
            next((pod for pod in pods if is_updated(pod, revision_hash)), None),
            next((pod for pod in pods if not is_updated(pod, revision_hash)), None),
        )
        for node, pods in pods_to_keep.items()
    }
    outdated = {node: old for node, (new, old) in pairs.items() if new is None and old is not None}
    broken = {node: old for node, old in outdated.items() if not is_up(old)}
    healthy = [node for node in outdated if node not in broken]
    if limits.max_surge:
        surging = [(new, old) for new, old in pairs.values() if new is not None and old is not None]
        replaced = [old for new, old in surging if is_up(new) or not owned_pods.is_ready(old)]
        allowed = max(limits.max_surge - (len(surging) - len(replaced)), 0)
        return DaemonStep([*broken, *healthy[:allowed]], replaced)
    unavailable = len(broken) + sum(not is_up(new) for node, (new, _) in pairs.items() if node not in outdated)
    allowed = max(limits.max_unavailable - unavailable, 0)
    return DaemonStep((), [*broken.values(), *(outdated[node] for node in healthy[:allowed])])


# -- status


def daemon_set_status(
    daemon_set: Object,
    nodes: Mapping[str, DaemonFit],
    pods: Mapping[str, Sequence[Object]],
    revision_hash: str,
    now: datetime,
) -> Object:
    desired = [node for node, fit in nodes.items() if fit.should_run]
    first = [min(pods[node], key=oldest_first) for node in desired if pods.get(node)]
    min_ready = owned_pods.min_ready_time(daemon_set)
    available = sum(owned_pods.is_available(pod, min_ready, now) for pod in first)
    updated = sum(is_updated(pod, revision_hash) for pod in first)
    status = {
        "desiredNumberScheduled": len(desired),
        "currentNumberScheduled": len(first),
        "numberMisscheduled": sum(bool(pods.get(node)) for node, fit in nodes.items() if not fit.should_run),
        "numberReady": sum(map(owned_pods.is_ready, first)),
        "updatedNumberScheduled": updated,
        "numberAvailable": available,
        "numberUnavailable": len(desired) - available,
        "observedGeneration": daemon_set["metadata"].get("generation", 0),
    }
    always = ("desiredNumberScheduled", "currentNumberScheduled", "numberMisscheduled", "numberReady")
    return {key: count for key, count in status.items() if count or key in always}
