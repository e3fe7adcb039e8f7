"""Pure functions that decide which pods of a StatefulSet to create and delete next.

Each pod has an ordinal, which determines its name and volumes. By default, pods are created in ascending order, each
when all before it are available, and deleted in descending order. Each step depends only on the observed state.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from tapestry.controlplane.workloads import owned_pods
from tapestry.controlplane.workloads.controller_revisions import CONTROLLER_REVISION_HASH
from tapestry.kube.objects import Object, is_deleting, labels_of, name_of, owner_reference, uid_of, value_at
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.quantity import scaled_value

POD_NAME = "statefulset.kubernetes.io/pod-name"
POD_INDEX = "apps.kubernetes.io/pod-index"


@dataclass(frozen=True, slots=True)
class StatefulStep:
    """Ordinals of pods to create, and pods to delete."""

    to_create: Sequence[int] = ()
    to_delete: Sequence[Object] = ()


@dataclass(frozen=True, slots=True)
class RevisionNames:
    current: str
    update: str


def start_ordinal(stateful_set: Object) -> int:
    start: int = value_at(stateful_set, "spec", "ordinals", "start", default=0)
    return start


def ordinals_of(stateful_set: Object) -> range:
    start = start_ordinal(stateful_set)
    return range(start, start + stateful_set["spec"].get("replicas", 1))


def ordinal_of(stateful_set: Object, pod: Object) -> int | None:
    """Return the ordinal of a pod, or None if its name does not belong to the set."""
    match = re.fullmatch(r"(.+)-(0|[1-9]\d*)", name_of(pod))
    return int(match[2]) if match is not None and match[1] == name_of(stateful_set) else None


def partition_of(stateful_set: Object) -> int:
    """Return the first ordinal that gets the update revision."""
    partition: int = value_at(stateful_set, "spec", "updateStrategy", "rollingUpdate", "partition", default=0)
    return start_ordinal(stateful_set) + partition


def is_healthy(pod: Object, min_ready: timedelta, now: datetime) -> bool:
    return owned_pods.is_active(pod) and owned_pods.is_available(pod, min_ready, now)


def revision_of(pod: Object) -> str:
    return labels_of(pod).get(CONTROLLER_REVISION_HASH, "")


# -- steps


def next_stateful_step(
    stateful_set: Object, pods: Mapping[int, Object], revisions: RevisionNames, now: datetime
) -> StatefulStep:
    """Return the next step. `pods` are by ordinal."""
    ordinals, min_ready = ordinals_of(stateful_set), owned_pods.min_ready_time(stateful_set)
    surplus = [pods[ordinal] for ordinal in sorted(pods, reverse=True) if ordinal not in ordinals]
    failing = [pods[ordinal] for ordinal in sorted(pods) if not is_healthy(pods[ordinal], min_ready, now)]
    if stateful_set["spec"].get("podManagementPolicy") == "Parallel":
        step = parallel_step(ordinals, pods, surplus)
    else:
        step = ordered_step(ordinals, pods, surplus, failing)
    return step if step is not None else StatefulStep(to_delete=pods_to_update(stateful_set, pods, revisions, failing))


def parallel_step(ordinals: range, pods: Mapping[int, Object], surplus: Sequence[Object]) -> StatefulStep | None:
    """Return the next step of a set without pod order, or None if nothing is to be done."""
    missing = list(islice((ordinal for ordinal in ordinals if ordinal not in pods), owned_pods.BURST_REPLICAS))
    terminated = [pods[ordinal] for ordinal in sorted(pods) if ordinal in ordinals and is_pod_terminal(pods[ordinal])]
    to_delete = [pod for pod in (*terminated, *surplus) if not is_deleting(pod)]
    return StatefulStep(missing, to_delete) if missing or to_delete else None


def ordered_step(
    ordinals: range, pods: Mapping[int, Object], surplus: Sequence[Object], unhealthy: Sequence[Object]
) -> StatefulStep | None:
    """Return the next step of an ordered set, or None if all pods are healthy and none is surplus."""
    for ordinal in ordinals:
        if ordinal not in pods:
            return StatefulStep([ordinal])
        if is_pod_terminal(pods[ordinal]) and not is_deleting(pods[ordinal]):
            return StatefulStep(to_delete=[pods[ordinal]])
        if pods[ordinal] in unhealthy:
            return StatefulStep()
    if not surplus:
        return None
    last = surplus[0]
    must_wait = is_deleting(last) or (last in unhealthy and last is not unhealthy[0])
    return StatefulStep() if must_wait else StatefulStep(to_delete=[last])


def pods_to_update(
    stateful_set: Object, pods: Mapping[int, Object], revisions: RevisionNames, unhealthy: Sequence[Object]
) -> list[Object]:
    """Return pods to replace with the update revision, the highest ordinal first.

    At most `maxUnavailable` pods are unavailable at a time. Unhealthy pods can always be replaced.
    """
    strategy = stateful_set["spec"].get("updateStrategy") or {}
    if strategy.get("type") == "OnDelete":
        return []
    ordinals = ordinals_of(stateful_set)
    limit = scaled_value(value_at(strategy, "rollingUpdate", "maxUnavailable", default=1), len(ordinals), math.ceil)
    allowed = max(limit, 1) - sum(ordinal not in pods or pods[ordinal] in unhealthy for ordinal in ordinals)
    outdated = []
    for ordinal in reversed(ordinals):
        pod = pods.get(ordinal)
        if ordinal < partition_of(stateful_set) or pod is None:
            continue
        if revision_of(pod) == revisions.update or is_deleting(pod):
            continue
        if pod in unhealthy:
            outdated.append(pod)
        elif allowed > 0:
            outdated.append(pod)
            allowed -= 1
    return outdated


def revision_for(stateful_set: Object, ordinal: int, revisions: RevisionNames) -> str:
    """Return the name of the revision from which a pod with this ordinal is created."""
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
    claim_volumes = {each["name"] for each in claims}
    volumes = [*claims, *(each for each in pod["spec"].get("volumes") or () if each["name"] not in claim_volumes)]
    network_identity = {"hostname": name, "subdomain": stateful_set["spec"].get("serviceName") or ""}
    spec = {**pod["spec"], **network_identity, **({"volumes": volumes} if volumes else {})}
    return {**pod, "metadata": {**pod["metadata"], "labels": labels}, "spec": spec}


def identity_labels(name: str, ordinal: int) -> dict[str, str]:
    return {POD_NAME: name, POD_INDEX: str(ordinal)}


def claim_templates(stateful_set: Object) -> Sequence[Object]:
    return stateful_set["spec"].get("volumeClaimTemplates") or ()


def claim_name(template: str, pod: str) -> str:
    return f"{template}-{pod}"


def claims_of(stateful_set: Object, pod: str) -> list[Object]:
    selector_labels = value_at(stateful_set, "spec", "selector", "matchLabels", default={})
    claims = []
    for template in claim_templates(stateful_set):
        metadata = template["metadata"]
        copied = {key: metadata[key] for key in ("annotations", "finalizers") if metadata.get(key)}
        name = claim_name(name_of(template), pod)
        labels = {**labels_of(template), **selector_labels}
        identity = {"name": name, "namespace": stateful_set["metadata"].get("namespace"), "labels": labels}
        claims.append({"metadata": {**copied, **identity}, "spec": template["spec"]})
    return claims


def claim_owner_references(
    stateful_set: Object, claim: Object, pod: Object | None, *, is_retained: bool
) -> list[Object]:
    """Return the owners with which a claim is deleted. `is_retained`: the pod's ordinal is still desired."""
    policy = stateful_set["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
    own_uids = {uid_of(each) for each in (stateful_set, pod) if each is not None}
    owners = [each for each in claim["metadata"].get("ownerReferences") or () if each["uid"] not in own_uids]
    if any(each.get("controller") for each in owners):
        return owners  # an object can have only one controller
    if not is_retained and policy.get("whenScaled") == "Delete":
        return [*owners, owner_reference(pod)] if pod is not None else owners
    if policy.get("whenDeleted") == "Delete":
        return [*owners, owner_reference(stateful_set)]
    return owners


# -- status


def stateful_set_status(
    stateful_set: Object, pods: Sequence[Object], revisions: RevisionNames, now: datetime
) -> Object:
    min_ready = owned_pods.min_ready_time(stateful_set)
    ready = [pod for pod in pods if value_at(pod, "status", "phase") == "Running" and owned_pods.is_ready(pod)]
    remaining = [pod for pod in pods if not is_deleting(pod)]
    replicas = stateful_set["spec"].get("replicas", 1)
    counts = {
        "replicas": len(pods),
        "readyReplicas": len(ready),
        "availableReplicas": sum(owned_pods.is_available(pod, min_ready, now) for pod in ready),
        "currentReplicas": sum(revision_of(pod) == revisions.current for pod in remaining),
        "updatedReplicas": sum(revision_of(pod) == revisions.update for pod in remaining),
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
