"""Daemons: which nodes a DaemonSet has a pod on, and what its pods are to become next.  Pure.

A node has the pod unless its labels or its taints say that it cannot; whether there is room is the scheduler's matter,
to whom each pod says which node it is for.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from tapestry.controlplane.scheduler.asked import REQUIRED
from tapestry.controlplane.workloads import members
from tapestry.controlplane.workloads.revisions import HASH
from tapestry.controlplane.workloads.rollouts import share
from tapestry.kube.objects import Object, annotations_of, is_deleting, labels_of, name_of, uid_of, value_at
from tapestry.kube.pods import is_over
from tapestry.kube.selectors import node_selector
from tapestry.kube.taints import is_tolerated
from tapestry.kube.times import parse_time

GENERATION = "deprecated.daemonset.template.generation"
POD_GENERATION = "pod-template-generation"
STAYS_ON = {"not-ready": "NoExecute", "unreachable": "NoExecute"}
GOES_TO = ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
PAUSE = timedelta(seconds=10)
"""How long a pod is there at least before it is replaced for having failed: its node may refuse the next one, too."""


class Fit(NamedTuple):
    """What a node is to a DaemonSet."""

    wanted: bool
    """Whether it should have a pod."""
    allowed: bool
    """Whether it may keep one."""


@dataclass(frozen=True, slots=True)
class Step:
    """What to do now: nodes that are to get a pod, pods that are to go, and when to look again."""

    make: Sequence[str] = ()
    leave: Sequence[Object] = ()
    again: datetime | None = None


# -- nodes


def fit_of(daemon_set: Object, node: Object) -> Fit:
    spec = daemon_set["spec"]["template"]["spec"]
    if spec.get("nodeName") not in (None, "", name_of(node)):
        return Fit(False, False)
    if not (spec.get("nodeSelector") or {}).items() <= labels_of(node).items():
        return Fit(False, False)
    required = value_at(spec, "affinity", "nodeAffinity", REQUIRED)
    if required is not None and not node_selector(required).matches(node):
        return Fit(False, False)
    held = tolerations_of(spec)
    effects = {each["effect"] for each in value_at(node, "spec", "taints", default=()) if not is_tolerated(each, held)}
    return Fit(not effects & {"NoSchedule", "NoExecute"}, "NoExecute" not in effects)


def tolerations_of(spec: Object) -> list[Object]:
    """What a template tolerates, and what every daemon does: trouble of its node is its own."""
    known = {**STAYS_ON, **dict.fromkeys(GOES_TO, "NoSchedule")}
    if spec.get("hostNetwork"):
        known["network-unavailable"] = "NoSchedule"
    added = [
        {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": effect} for name, effect in known.items()
    ]
    own = [each for each in spec.get("tolerations") or () if each not in added]
    return [*own, *added]


def node_of(pod: Object) -> str | None:
    """The node that the pod is on, or is for."""
    if name := value_at(pod, "spec", "nodeName"):
        return str(name)
    for term in value_at(pod, "spec", "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms", default=()):
        for each in term.get("matchFields") or ():
            if each["key"] == "metadata.name" and each["operator"] == "In" and len(each["values"]) == 1:
                return str(each["values"][0])
    return None


def by_node(pods: Iterable[Object]) -> dict[str, list[Object]]:
    found: dict[str, list[Object]] = {}
    for pod in pods:
        if (node := node_of(pod)) is not None:
            found.setdefault(node, []).append(pod)
    return found


# -- pods


def pod_of(daemon_set: Object, node: str, mark: str, is_free: members.IsFree) -> Object:
    """A pod for a node, of the template that has the mark."""
    template = daemon_set["spec"]["template"]
    name = next(each for each in names(daemon_set, node, mark) if is_free(each))
    pod = members.pod_from(template, daemon_set, name)
    labels = {**labels_of(pod), HASH: mark}
    if generation := annotations_of(daemon_set).get(GENERATION):
        labels[POD_GENERATION] = generation
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    affinity = template["spec"].get("affinity") or {}
    nodes = {**(affinity.get("nodeAffinity") or {}), REQUIRED: {"nodeSelectorTerms": [{"matchFields": [field]}]}}
    place = {"affinity": {**affinity, "nodeAffinity": nodes}, "tolerations": tolerations_of(template["spec"])}
    return {**pod, "metadata": {**pod["metadata"], "labels": labels}, "spec": {**pod["spec"], **place}}


def names(daemon_set: Object, node: str, mark: str) -> Iterator[str]:
    number = 0
    while True:
        suffix = members.suffix_of(uid_of(daemon_set), node, mark, number)
        yield f"{name_of(daemon_set)[: members.LONGEST_BASE]}-{suffix}"
        number += 1


def is_new(pod: Object, mark: str) -> bool:
    return labels_of(pod).get(HASH) == mark


def patience_of(daemon_set: Object) -> timedelta:
    return timedelta(seconds=daemon_set["spec"].get("minReadySeconds", 0))


# -- steps


@dataclass(frozen=True, slots=True)
class Limits:
    """How far an update may go at a time, in nodes."""

    unavailable: int
    surge: int


def limits_of(daemon_set: Object, nodes: int) -> Limits:
    rolling = value_at(daemon_set, "spec", "updateStrategy", "rollingUpdate", default={})
    surge = share(rolling.get("maxSurge", 0), nodes, math.ceil)
    unavailable = share(rolling.get("maxUnavailable", 1), nodes, math.ceil)
    return Limits(unavailable if unavailable or surge else 1, surge)


def next_step(
    daemon_set: Object, nodes: Mapping[str, Fit], pods: Mapping[str, Sequence[Object]], mark: str, now: datetime
) -> Step:
    """What to do now; `pods` are by their nodes, `mark` is that of the present template."""
    rolls = value_at(daemon_set, "spec", "updateStrategy", "type", default="RollingUpdate") == "RollingUpdate"
    limits = limits_of(daemon_set, sum(fit.wanted for fit in nodes.values())) if rolls else Limits(0, 0)
    make: list[str] = []
    leave: list[Object] = []
    moments: list[datetime] = []
    kept: dict[str, list[Object]] = {}
    for node in sorted(nodes.keys() | pods.keys()):
        fit, found = nodes.get(node), [pod for pod in pods.get(node, ()) if members.is_active(pod) or not is_gone(pod)]
        going = leaving(found, fit, mark, now, is_surging=limits.surge > 0)
        leave += going
        if fit is None or not fit.wanted:
            continue
        staying = [pod for pod in found if not is_deleting(pod)]
        if not staying and (limits.surge or not found):
            make.append(node)
        kept[node] = [pod for pod in staying if pod not in going and members.is_active(pod)]
        moments += [replaced_at(pod) for pod in staying if pod not in going and not members.is_active(pod)]
    more = update(daemon_set, kept, mark, limits, now) if rolls else Step()
    return Step([*make, *more.make], [*leave, *more.leave], min(moments, default=None))


def is_gone(pod: Object) -> bool:
    return is_deleting(pod) and is_over(pod)


def leaving(found: Sequence[Object], fit: Fit | None, mark: str, now: datetime, *, is_surging: bool) -> list[Object]:
    """Pods that have no business on their node, whatever the template."""
    staying = [pod for pod in found if not is_deleting(pod)]
    if fit is None:
        return [pod for pod in staying if not value_at(pod, "spec", "nodeName")]
    if not fit.allowed:
        return staying
    ended = [pod for pod in staying if not members.is_active(pod) and replaced_at(pod) <= now]
    alive = sorted(filter(members.is_active, staying), key=oldest_first)
    return [*ended, *surplus(alive, mark, is_surging=is_surging)]


def replaced_at(pod: Object) -> datetime:
    if value_at(pod, "status", "phase") == "Succeeded":
        return parse_time(pod["metadata"]["creationTimestamp"])
    return parse_time(pod["metadata"]["creationTimestamp"]) + PAUSE


def oldest_first(pod: Object) -> tuple[bool, str, str]:
    return not value_at(pod, "spec", "nodeName"), pod["metadata"]["creationTimestamp"], name_of(pod)


def surplus(alive: Sequence[Object], mark: str, *, is_surging: bool) -> list[Object]:
    """Pods that a node has too many of; while an update surges it may have one of each kind."""
    if not is_surging:
        return list(alive[1:])
    new = [pod for pod in alive if is_new(pod, mark)]
    old = [pod for pod in alive if not is_new(pod, mark)]
    return [*new[1:], *old[1:]]


def update(daemon_set: Object, kept: Mapping[str, Sequence[Object]], mark: str, limits: Limits, now: datetime) -> Step:
    """What brings the present template to more nodes; `kept` are pods that stay, by nodes that should have one."""
    patience = patience_of(daemon_set)

    def works(pod: Object | None) -> bool:
        return pod is not None and members.is_available(pod, patience, now)

    pairs = {
        node: (
            next((pod for pod in pods if is_new(pod, mark)), None),
            next((pod for pod in pods if not is_new(pod, mark)), None),
        )
        for node, pods in kept.items()
    }
    outdated = {node: old for node, (new, old) in pairs.items() if new is None and old is not None}
    broken = {node: old for node, old in outdated.items() if not works(old)}
    healthy = [node for node in outdated if node not in broken]
    if limits.surge:
        both = [(new, old) for new, old in pairs.values() if new is not None and old is not None]
        done = [old for new, old in both if works(new) or not members.is_ready(old)]
        room = max(limits.surge - (len(both) - len(done)), 0)
        return Step([*broken, *healthy[:room]], done)
    unavailable = len(broken) + sum(not works(new) for node, (new, _) in pairs.items() if node not in outdated)
    room = max(limits.unavailable - unavailable, 0)
    return Step((), [*broken.values(), *(outdated[node] for node in healthy[:room])])


# -- telling


def status_of(
    daemon_set: Object, nodes: Mapping[str, Fit], pods: Mapping[str, Sequence[Object]], mark: str, now: datetime
) -> Object:
    wanted = [node for node, fit in nodes.items() if fit.wanted]
    first = [min(pods[node], key=oldest_first) for node in wanted if pods.get(node)]
    patience = patience_of(daemon_set)
    available = sum(members.is_available(pod, patience, now) for pod in first)
    updated = sum(is_new(pod, mark) for pod in first)
    found = {
        "desiredNumberScheduled": len(wanted),
        "currentNumberScheduled": len(first),
        "numberMisscheduled": sum(bool(pods.get(node)) for node, fit in nodes.items() if not fit.wanted),
        "numberReady": sum(map(members.is_ready, first)),
        "updatedNumberScheduled": updated,
        "numberAvailable": available,
        "numberUnavailable": len(wanted) - available,
        "observedGeneration": daemon_set["metadata"].get("generation", 0),
    }
    always = ("desiredNumberScheduled", "currentNumberScheduled", "numberMisscheduled", "numberReady")
    return {key: count for key, count in found.items() if count or key in always}
