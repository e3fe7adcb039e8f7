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

from tapestry.controlplane.workloads import owned_pods
from tapestry.controlplane.workloads.controller_revisions import CONTROLLER_REVISION_HASH
from tapestry.controlplane.workloads.rollouts import scaled_value
from tapestry.kube.objects import Object, is_deleting, labels_of, name_of, owner_reference, uid_of, value_at
from tapestry.kube.pods import is_pod_terminal

POD_NAME = "statefulset.kubernetes.io/pod-name"
POD_INDEX = "apps.kubernetes.io/pod-index"


@dataclass(frozen=True, slots=True)
class StatefulStep:
    """What to do now: numbers whose pods are to be made, and pods that are to go."""

    to_create: Sequence[int] = ()
    to_delete: Sequence[Object] = ()


@dataclass(frozen=True, slots=True)
class RevisionNames:
    """Names of the template that a set comes from and of the one that it goes to."""

    current: str
    update: str


def start_ordinal(stateful_set: Object) -> int:
    start: int = value_at(stateful_set, "spec", "ordinals", "start", default=0)
    return start


def ordinals_of(stateful_set: Object) -> range:
    start = start_ordinal(stateful_set)
    return range(start, start + stateful_set["spec"].get("replicas", 1))


def ordinal_of(stateful_set: Object, pod: Object) -> int | None:
    """The pod's number; None where its name is none of the set's."""
    found = re.fullmatch(r"(.+)-(0|[1-9]\d*)", name_of(pod))
    return int(found[2]) if found is not None and found[1] == name_of(stateful_set) else None


def partition_of(stateful_set: Object) -> int:
    """The first number that is to have the new template."""
    kept: int = value_at(stateful_set, "spec", "updateStrategy", "rollingUpdate", "partition", default=0)
    return start_ordinal(stateful_set) + kept


def stateful_set_min_ready(stateful_set: Object) -> timedelta:
    return timedelta(seconds=stateful_set["spec"].get("minReadySeconds", 0))


def is_healthy(pod: Object, min_ready: timedelta, now: datetime) -> bool:
    return owned_pods.is_active(pod) and owned_pods.is_available(pod, min_ready, now)


def revision_of(pod: Object) -> str:
    return labels_of(pod).get(CONTROLLER_REVISION_HASH, "")


# -- steps


def next_stateful_step(
    stateful_set: Object, pods: Mapping[int, Object], revisions: RevisionNames, now: datetime
) -> StatefulStep:
    """What to do now; `pods` are by their numbers."""
    numbers, patience = ordinals_of(stateful_set), stateful_set_min_ready(stateful_set)
    beyond = [pods[number] for number in sorted(pods, reverse=True) if number not in numbers]
    broken = [pods[number] for number in sorted(pods) if not is_healthy(pods[number], patience, now)]
    if stateful_set["spec"].get("podManagementPolicy") == "Parallel":
        step = parallel_step(numbers, pods, beyond)
    else:
        step = ordered_step(numbers, pods, beyond, broken)
    return step if step is not None else StatefulStep(to_delete=pods_to_update(stateful_set, pods, revisions, broken))


def parallel_step(ordinals: range, pods: Mapping[int, Object], surplus: Sequence[Object]) -> StatefulStep | None:
    """Who comes and goes in a set that knows no order; None where nobody does."""
    missing = list(islice((number for number in ordinals if number not in pods), owned_pods.BURST_REPLICAS))
    ended = [pods[number] for number in sorted(pods) if number in ordinals and is_pod_terminal(pods[number])]
    leave = [pod for pod in (*ended, *surplus) if not is_deleting(pod)]
    return StatefulStep(missing, leave) if missing or leave else None


def ordered_step(
    ordinals: range, pods: Mapping[int, Object], surplus: Sequence[Object], broken: Sequence[Object]
) -> StatefulStep | None:
    """Who comes or goes next in a set that knows one; None where all that are wanted work and there are no others."""
    for number in ordinals:
        if number not in pods:
            return StatefulStep([number])
        if is_pod_terminal(pods[number]) and not is_deleting(pods[number]):
            return StatefulStep(to_delete=[pods[number]])
        if pods[number] in broken:
            return StatefulStep()
    if not surplus:
        return None
    last = surplus[0]
    waits = is_deleting(last) or (last in broken and last is not broken[0])
    return StatefulStep() if waits else StatefulStep(to_delete=[last])


def pods_to_update(
    stateful_set: Object, pods: Mapping[int, Object], revisions: RevisionNames, broken: Sequence[Object]
) -> list[Object]:
    """Pods that are to come back with the new template: the last first, and never so many that too few work.

    A pod that does not work anyway can always go.
    """
    strategy = stateful_set["spec"].get("updateStrategy") or {}
    if strategy.get("type") == "OnDelete":
        return []
    numbers = ordinals_of(stateful_set)
    most = scaled_value(value_at(strategy, "rollingUpdate", "maxUnavailable", default=1), len(numbers), math.ceil)
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


def revision_for(stateful_set: Object, ordinal: int, revisions: RevisionNames) -> str:
    """The template that a pod of that number is made of."""
    rolling = value_at(stateful_set, "spec", "updateStrategy", "type", default="RollingUpdate") == "RollingUpdate"
    return revisions.current if rolling and ordinal < partition_of(stateful_set) else revisions.update


# -- pods and their volumes


def stateful_pod(stateful_set: Object, template: Object, ordinal: int, revision: str) -> Object:
    name = f"{name_of(stateful_set)}-{ordinal}"
    pod = owned_pods.pod_from_template(template, stateful_set, name)
    labels = {**labels_of(pod), **identity_labels(name, ordinal), CONTROLLER_REVISION_HASH: revision}
    claims = [
        {"name": each, "persistentVolumeClaim": {"claimName": claim_name(each, name)}}
        for each in map(name_of, claim_templates(stateful_set))
    ]
    named = {each["name"] for each in claims}
    volumes = [*claims, *(each for each in pod["spec"].get("volumes") or () if each["name"] not in named)]
    place = {"hostname": name, "subdomain": stateful_set["spec"].get("serviceName") or ""}
    spec = {**pod["spec"], **place, **({"volumes": volumes} if volumes else {})}
    return {**pod, "metadata": {**pod["metadata"], "labels": labels}, "spec": spec}


def identity_labels(name: str, ordinal: int) -> dict[str, str]:
    return {POD_NAME: name, POD_INDEX: str(ordinal)}


def claim_templates(stateful_set: Object) -> Sequence[Object]:
    return stateful_set["spec"].get("volumeClaimTemplates") or ()


def claim_name(template: str, pod: str) -> str:
    return f"{template}-{pod}"


def claims_of(stateful_set: Object, pod: str) -> list[Object]:
    """The claims of a pod of that name, to be created."""
    chosen = value_at(stateful_set, "spec", "selector", "matchLabels", default={})
    found = []
    for template in claim_templates(stateful_set):
        metadata = template["metadata"]
        kept = {key: metadata[key] for key in ("annotations", "finalizers") if metadata.get(key)}
        name = claim_name(name_of(template), pod)
        labels = {**labels_of(template), **chosen}
        place = {"name": name, "namespace": stateful_set["metadata"].get("namespace"), "labels": labels}
        found.append({"metadata": {**kept, **place}, "spec": template["spec"]})
    return found


def claim_owner_references(
    stateful_set: Object, claim: Object, pod: Object | None, *, is_retained: bool
) -> list[Object]:
    """Who is to own a claim: with whom it goes.  `stays` is whether the pod's number is still wanted."""
    policy = stateful_set["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
    ours = {uid_of(each) for each in (stateful_set, pod) if each is not None}
    owners = [each for each in claim["metadata"].get("ownerReferences") or () if each["uid"] not in ours]
    if not is_retained and policy.get("whenScaled") == "Delete":
        return [*owners, owner_reference(pod)] if pod is not None else owners
    if policy.get("whenDeleted") == "Delete":
        return [*owners, owner_reference(stateful_set)]
    return owners


# -- telling


def stateful_set_status(
    stateful_set: Object, pods: Sequence[Object], revisions: RevisionNames, now: datetime
) -> Object:
    patience = stateful_set_min_ready(stateful_set)
    running = [pod for pod in pods if value_at(pod, "status", "phase") == "Running" and owned_pods.is_ready(pod)]
    staying = [pod for pod in pods if not is_deleting(pod)]
    replicas = stateful_set["spec"].get("replicas", 1)
    counts = {
        "replicas": len(pods),
        "readyReplicas": len(running),
        "availableReplicas": sum(owned_pods.is_available(pod, patience, now) for pod in running),
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
