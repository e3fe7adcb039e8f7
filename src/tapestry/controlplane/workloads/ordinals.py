"""Ordinals: which pods of a StatefulSet come next, and which go.  Pure.

Each pod has a number, and with it a name and volumes that are its own for ever.  Unless the set says otherwise, pods
come in the order of their numbers, each when all before it work, and go in the opposite order.  Each step is decided
from what there is.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from tapestry.controlplane.workloads import members
from tapestry.controlplane.workloads.revisions import HASH
from tapestry.controlplane.workloads.rollouts import share
from tapestry.kube.objects import Object, is_deleting, labels_of, name_of, owner_reference, uid_of, value_at
from tapestry.kube.pods import is_over

POD_NAME = "statefulset.kubernetes.io/pod-name"
POD_INDEX = "apps.kubernetes.io/pod-index"


@dataclass(frozen=True, slots=True)
class Step:
    """What to do now: numbers whose pods are to be made, and pods that are to go."""

    make: Sequence[int] = ()
    leave: Sequence[Object] = ()


@dataclass(frozen=True, slots=True)
class Revisions:
    """Names of the template that a set comes from and of the one that it goes to."""

    current: str
    update: str


def start_of(stateful_set: Object) -> int:
    start: int = value_at(stateful_set, "spec", "ordinals", "start", default=0)
    return start


def numbers_of(stateful_set: Object) -> range:
    start = start_of(stateful_set)
    return range(start, start + stateful_set["spec"].get("replicas", 1))


def number_of(stateful_set: Object, pod: Object) -> int | None:
    """The pod's number; None where its name is none of the set's."""
    found = re.fullmatch(r"(.+)-(0|[1-9]\d*)", name_of(pod))
    return int(found[2]) if found is not None and found[1] == name_of(stateful_set) else None


def partition_of(stateful_set: Object) -> int:
    """The first number that is to have the new template."""
    kept: int = value_at(stateful_set, "spec", "updateStrategy", "rollingUpdate", "partition", default=0)
    return start_of(stateful_set) + kept


def patience_of(stateful_set: Object) -> timedelta:
    return timedelta(seconds=stateful_set["spec"].get("minReadySeconds", 0))


def works(pod: Object, patience: timedelta, now: datetime) -> bool:
    return members.is_active(pod) and members.is_available(pod, patience, now)


def revision_of(pod: Object) -> str:
    return labels_of(pod).get(HASH, "")


# -- steps


def next_step(stateful_set: Object, pods: Mapping[int, Object], revisions: Revisions, now: datetime) -> Step:
    """What to do now; `pods` are by their numbers."""
    numbers, patience = numbers_of(stateful_set), patience_of(stateful_set)
    beyond = [pods[number] for number in sorted(pods, reverse=True) if number not in numbers]
    broken = [pods[number] for number in sorted(pods) if not works(pods[number], patience, now)]
    if stateful_set["spec"].get("podManagementPolicy") == "Parallel":
        step = all_at_once(numbers, pods, beyond)
    else:
        step = one_by_one(numbers, pods, beyond, broken)
    return step if step is not None else Step(leave=outdated(stateful_set, pods, revisions, broken))


def all_at_once(numbers: range, pods: Mapping[int, Object], beyond: Sequence[Object]) -> Step | None:
    """Who comes and goes in a set that knows no order; None where nobody does."""
    missing = list(islice((number for number in numbers if number not in pods), members.AT_ONCE))
    ended = [pods[number] for number in sorted(pods) if number in numbers and is_over(pods[number])]
    leave = [pod for pod in (*ended, *beyond) if not is_deleting(pod)]
    return Step(missing, leave) if missing or leave else None


def one_by_one(
    numbers: range, pods: Mapping[int, Object], beyond: Sequence[Object], broken: Sequence[Object]
) -> Step | None:
    """Who comes or goes next in a set that knows one; None where all that are wanted work and there are no others."""
    for number in numbers:
        if number not in pods:
            return Step([number])
        if is_over(pods[number]) and not is_deleting(pods[number]):
            return Step(leave=[pods[number]])
        if pods[number] in broken:
            return Step()
    if not beyond:
        return None
    last = beyond[0]
    waits = is_deleting(last) or (last in broken and last is not broken[0])
    return Step() if waits else Step(leave=[last])


def outdated(
    stateful_set: Object, pods: Mapping[int, Object], revisions: Revisions, broken: Sequence[Object]
) -> list[Object]:
    """Pods that are to come back with the new template: the last first, and never so many that too few work.

    A pod that does not work anyway can always go.
    """
    strategy = stateful_set["spec"].get("updateStrategy") or {}
    if strategy.get("type") == "OnDelete":
        return []
    numbers = numbers_of(stateful_set)
    most = share(value_at(strategy, "rollingUpdate", "maxUnavailable", default=1), len(numbers), math.ceil)
    spare = max(most, 1) - sum(number not in pods or pods[number] in broken for number in numbers)
    found = []
    for number in reversed(numbers):
        pod = pods.get(number)
        if number < partition_of(stateful_set) or pod is None:
            continue
        if revision_of(pod) == revisions.update or is_deleting(pod):
            continue
        if pod in broken:
            found.append(pod)
        elif spare > 0:
            found.append(pod)
            spare -= 1
    return found


def revision_for(stateful_set: Object, number: int, revisions: Revisions) -> str:
    """The template that a pod of that number is made of."""
    rolling = value_at(stateful_set, "spec", "updateStrategy", "type", default="RollingUpdate") == "RollingUpdate"
    return revisions.current if rolling and number < partition_of(stateful_set) else revisions.update


# -- pods and their volumes


def pod_of(stateful_set: Object, template: Object, number: int, revision: str) -> Object:
    name = f"{name_of(stateful_set)}-{number}"
    pod = members.pod_from(template, stateful_set, name)
    labels = {**labels_of(pod), **identity(name, number), HASH: revision}
    claims = [
        {"name": each, "persistentVolumeClaim": {"claimName": claim_name(each, name)}}
        for each in map(name_of, templates_of(stateful_set))
    ]
    named = {each["name"] for each in claims}
    volumes = [*claims, *(each for each in pod["spec"].get("volumes") or () if each["name"] not in named)]
    place = {"hostname": name, "subdomain": stateful_set["spec"].get("serviceName") or ""}
    spec = {**pod["spec"], **place, **({"volumes": volumes} if volumes else {})}
    return {**pod, "metadata": {**pod["metadata"], "labels": labels}, "spec": spec}


def identity(name: str, number: int) -> dict[str, str]:
    return {POD_NAME: name, POD_INDEX: str(number)}


def templates_of(stateful_set: Object) -> Sequence[Object]:
    return stateful_set["spec"].get("volumeClaimTemplates") or ()


def claim_name(template: str, pod: str) -> str:
    return f"{template}-{pod}"


def claims_of(stateful_set: Object, pod: str) -> list[Object]:
    """The claims of a pod of that name, to be created."""
    chosen = value_at(stateful_set, "spec", "selector", "matchLabels", default={})
    found = []
    for template in templates_of(stateful_set):
        metadata = template["metadata"]
        kept = {key: metadata[key] for key in ("annotations", "finalizers") if metadata.get(key)}
        name = claim_name(name_of(template), pod)
        labels = {**labels_of(template), **chosen}
        place = {"name": name, "namespace": stateful_set["metadata"].get("namespace"), "labels": labels}
        found.append({"metadata": {**kept, **place}, "spec": template["spec"]})
    return found


def owners_of_claim(stateful_set: Object, claim: Object, pod: Object | None, *, stays: bool) -> list[Object]:
    """Who is to own a claim: with whom it goes.  `stays` is whether the pod's number is still wanted."""
    policy = stateful_set["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
    ours = {uid_of(each) for each in (stateful_set, pod) if each is not None}
    owners = [each for each in claim["metadata"].get("ownerReferences") or () if each["uid"] not in ours]
    if not stays and policy.get("whenScaled") == "Delete":
        return [*owners, owner_reference(pod)] if pod is not None else owners
    if policy.get("whenDeleted") == "Delete":
        return [*owners, owner_reference(stateful_set)]
    return owners


# -- telling


def status_of(stateful_set: Object, pods: Sequence[Object], revisions: Revisions, now: datetime) -> Object:
    patience = patience_of(stateful_set)
    running = [pod for pod in pods if value_at(pod, "status", "phase") == "Running" and members.is_ready(pod)]
    staying = [pod for pod in pods if not is_deleting(pod)]
    replicas = stateful_set["spec"].get("replicas", 1)
    counts = {
        "replicas": len(pods),
        "readyReplicas": len(running),
        "availableReplicas": sum(members.is_available(pod, patience, now) for pod in running),
        "currentReplicas": sum(revision_of(pod) == revisions.current for pod in staying),
        "updatedReplicas": sum(revision_of(pod) == revisions.update for pod in staying),
    }
    current = revisions.current
    is_rolling = value_at(stateful_set, "spec", "updateStrategy", "type", default="RollingUpdate") == "RollingUpdate"
    if is_rolling and counts["replicas"] == counts["readyReplicas"] == counts["updatedReplicas"] == replicas:
        current, counts["currentReplicas"] = revisions.update, replicas
    return {
        **{key: count for key, count in counts.items() if count or key in ("replicas", "availableReplicas")},
        "currentRevision": current,
        "updateRevision": revisions.update,
        "collisionCount": value_at(stateful_set, "status", "collisionCount", default=0),
        "observedGeneration": stateful_set["metadata"].get("generation", 0),
    }
