"""Pod status from a twin: sanitizing, and the patches that write it to the virtual pod.

The status of a twin is untrusted. Only known fields are copied, each only if it is valid in Kubernetes. Texts are
truncated, misleading addresses are dropped, and a phase never goes backwards. Conditions that only the virtual cluster
knows (readiness gates, our own) are not touched.

The result has the form in which an API server returns it. So a digest shows whether a write is needed, and nothing is
written twice.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from tapestry.apis import keys
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, digest_of, name_of, namespace_of, uid_of, value_at
from tapestry.kube.pods import CONTAINER_FIELDS, is_pod_terminal
from tapestry.kube.times import timestamp
from tapestry.syncer.translate.sanitize import (
    as_list,
    as_object,
    is_int32,
    routable_address,
    sanitized_amount,
    sanitized_text,
    sanitized_time,
    text_fields,
    time_fields,
    truncate_text,
)
from tapestry.syncer.views import VirtualPod

SCHEDULED = "PodScheduled"
GATED = "SchedulingGated"
GATED_BELOW = "SchedulingGatedBelow"
"""The pod itself has no gate: its twin got one in the physical cluster."""
GATED_MESSAGE = "a scheduling gate that was added in the physical cluster holds the pod back there"
TWIN_CONDITIONS = frozenset(
    {
        *(SCHEDULED, "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"),
        *("PodResizePending", "PodResizeInProgress"),
    }
)
"""Conditions set by a kubelet or scheduler, which are copied from the twin."""
DISRUPTED = "DisruptionTarget"
"""Set in the virtual cluster (reclaimed) or in the physical one (preempted, evicted); the twin's takes precedence."""
SYNCED_CONDITIONS = TWIN_CONDITIONS | {DISRUPTED}
SUSPENDED = "Suspended"
"""Reason of Mapped=False while the workloads of the binding are drained, and until the pod has a twin again."""
SUSPENDED_MESSAGE = "the workloads are drained: the pod runs when they are resumed"
CONDITION_STATUSES = ("True", "False", "Unknown")
RANKS = {"Pending": 0, "Running": 1, "Succeeded": 2, "Failed": 2}
CONTAINER_LISTS = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
"""In the order of `CONTAINER_FIELDS`, the containers that they describe."""
DECIDED_FIELDS = ("phase", "reason", "message", "startTime", "hostIP", "podIP", *CONTAINER_LISTS)
"""Fields of the status that a patch sets or removes, besides the lists of addresses and the conditions."""
MAPPING = (keys.PHYSICAL_POD_NAMESPACE, keys.PHYSICAL_POD_NAME, keys.PHYSICAL_POD_UID, keys.LAST_SYNC_TIME)
"""Annotations that tell users where a pod runs."""
MAX_CONTAINER_STATUS_BYTES = 96 * 1024
"""Limit of container statuses in bytes of JSON; larger ones are dropped. The whole status stays below 256 KiB."""
MAX_CONTAINERS = 256
MAX_ADDRESSES = 8
MAX_RESOURCES = 32
UNSET: Object = {"reason": None, "message": None, "lastTransitionTime": None}
"""Fields of a condition that a patch removes unless they are set."""


def sanitized_pod_status(status: object) -> Object:
    """Return the part of a twin's status that is copied, sanitized. Sanitizing again changes nothing."""
    source = as_object(status)
    phase = source.get("phase")
    sanitized: dict[str, Any] = {
        "phase": phase if isinstance(phase, str) and phase in RANKS else "Pending",
        **text_fields(source, "reason", "message"),
        **time_fields(source, "startTime"),
        "conditions": sanitized_pod_conditions(source.get("conditions")),
        **sanitized_pod_addresses(source),
    }
    containers = {
        field: listed
        for field in CONTAINER_LISTS
        if field in source and (listed := sanitized_container_statuses(source[field]))
    }
    return (
        sanitized | containers
        if not containers or len(msgspec.json.encode(containers)) <= MAX_CONTAINER_STATUS_BYTES
        else sanitized
    )


def sanitized_pod_conditions(conditions: object) -> list[Object]:
    """Return the first condition of each type, sorted by type.

    PodScheduled=True is known before there is a twin; only False is copied. Probe times and generations belong to
    another object and would cause needless writes.
    """
    known: dict[str, Object] = {}
    for each in map(as_object, as_list(conditions)):
        type, status = each.get("type"), each.get("status")
        if not isinstance(type, str) or type not in SYNCED_CONDITIONS or type in known:
            continue
        if status not in CONDITION_STATUSES or (type == SCHEDULED and status == "True"):
            continue
        known[type] = {
            "type": type,
            "status": status,
            **text_fields(each, "reason", "message"),
            **time_fields(each, "lastTransitionTime"),
        }
    return [known[type] for type in sorted(known)]


def sanitized_pod_addresses(status: Mapping[str, Any]) -> Object:
    """Return one routable address of each family; the first is the primary one."""
    found: Object = {}
    for one, many in (("hostIP", "hostIPs"), ("podIP", "podIPs")):
        if one not in status and many not in status:
            continue
        listed = [as_object(each).get("ip") for each in as_list(status.get(many))[:MAX_ADDRESSES]]
        families: dict[bool, str] = {}
        for text in (status.get(one), *listed):
            if ip := routable_address(text):
                families.setdefault(":" in ip, ip)
        if families:
            addresses = list(families.values())
            found |= {one: addresses[0], many: [{"ip": ip} for ip in addresses]}
    return found


def sanitized_container_statuses(statuses: object) -> list[Object]:
    """Return the first status of each container that has a name."""
    known: dict[str, Object] = {}
    for each in map(as_object, as_list(statuses)[:MAX_CONTAINERS]):
        name = sanitized_text(each.get("name"))
        if name and name not in known:
            known[name] = sanitized_container_status(name, each)
    return list(known.values())


def sanitized_container_status(name: str, status: Mapping[str, Any]) -> Object:
    restarts = status.get("restartCount")
    sanitized: dict[str, Any] = {
        "name": name,
        "ready": status.get("ready") is True,
        "restartCount": restarts if is_int32(restarts) and restarts > 0 else 0,
        "image": sanitized_text(status.get("image")),
        "imageID": sanitized_text(status.get("imageID")),
        **text_fields(status, "containerID"),
    }
    for field in ("state", "lastState"):
        if state := sanitized_container_state(as_object(status.get(field))):
            sanitized[field] = state
    if isinstance(started := status.get("started"), bool):
        sanitized["started"] = started
    if amounts := sanitized_resources(status.get("allocatedResources")):
        sanitized["allocatedResources"] = amounts
    resources = as_object(status.get("resources"))
    if declared := {
        kind: amounts for kind in ("limits", "requests") if (amounts := sanitized_resources(resources.get(kind)))
    }:
        sanitized["resources"] = declared
    return sanitized


def sanitized_container_state(state: Mapping[str, Any]) -> Object:
    """Return the one state of a container; a termination without an exit code is invalid."""
    terminated, running, waiting = (state.get(kind) for kind in ("terminated", "running", "waiting"))
    if isinstance(terminated, dict) and is_int32(terminated.get("exitCode")):
        found = {"exitCode": terminated["exitCode"], **text_fields(terminated, "reason", "message", "containerID")}
        if is_int32(signal := terminated.get("signal")) and signal:
            found["signal"] = signal
        return {"terminated": found | time_fields(terminated, "startedAt", "finishedAt")}
    if isinstance(running, dict):
        return {"running": time_fields(running, "startedAt")}
    return {"waiting": text_fields(waiting, "reason", "message")} if isinstance(waiting, dict) else {}


def sanitized_resources(resources: object) -> dict[str, str]:
    listed = list(as_object(resources).items())[:MAX_RESOURCES]
    return {name: amount for name, value in listed if (amount := sanitized_amount(name, value))}


# -- Patches of virtual pods.


def mapped_uid(pod: Object) -> str | None:
    """Return the UID of the twin that the pod has or had."""
    status = pod.get("status") or {}
    condition = find_condition(status.get("conditions"), keys.MAPPED_CONDITION)
    return condition.get("message") if condition is not None and condition.get("status") == "True" else None


def is_suspended(pod: Object) -> bool:
    """Return whether the pod was marked because the workloads of its binding are drained, see `topdown/draining`."""
    status = pod.get("status") or {}
    condition = find_condition(status.get("conditions"), keys.MAPPED_CONDITION) or {}
    return condition.get("status") == "False" and condition.get("reason") == SUSPENDED


def virtual_status_patch(
    pod: VirtualPod, twin: Object, status: Object, now: datetime, resize: Object | None = None
) -> Object | None:
    """Return the strategic merge patch that writes the twin's status to the pod; None if nothing changes.

    `status` is the sanitized one of the twin. `resize` is the condition of a resize that was not passed on to the twin.
    """
    obj, own = pod.object, pod.object["status"]
    if is_pod_terminal(obj):
        return None
    conditions = with_readiness_gates(obj, [gated_condition(each) for each in status["conditions"]])
    if find_condition(conditions, DISRUPTED) is None and (marked := find_condition(own["conditions"], DISRUPTED)):
        conditions = sanitized_pod_conditions([*conditions, marked])
    if resize is not None:
        conditions = sanitized_pod_conditions([resize, *conditions])
    wanted = {**status, "phase": later_phase(own["phase"], status["phase"]), "conditions": conditions}
    wanted = without_unknown_containers(obj["spec"], wanted)
    is_new = mapped_uid(obj) != uid_of(twin)
    if not is_new and digest_of(wanted) == pod.status_digest:
        return None
    found = {field: wanted.get(field) for field in DECIDED_FIELDS}
    for field in ("hostIPs", "podIPs"):
        found[field] = [{"$patch": "replace"}, *wanted[field]] if field in wanted else None
    changes = condition_changes(pod, conditions, now)
    found["conditions"] = changes
    if is_new:
        found["conditions"] = [
            *changes,
            mapped_condition(uid_of(twin), now),
            *scheduled_condition(changes),
            *accepted_removal(obj),
        ]
    return {"metadata": {"annotations": mapping_annotations(twin, now)}, "status": found}


def without_unknown_containers(spec: Object, status: Object) -> Object:
    """Remove the statuses of containers that the pod does not have: they were added in the physical cluster."""
    result = dict(status)
    for field, containers in zip(CONTAINER_LISTS, CONTAINER_FIELDS, strict=True):
        names = {each["name"] for each in spec.get(containers) or ()}
        listed = [each for each in result.pop(field, ()) if each["name"] in names]
        if listed:
            result[field] = listed
    return result


def later_phase(before: str, after: str) -> str:
    return after if RANKS[after] >= RANKS.get(before, 0) else before


def with_readiness_gates(pod: Object, conditions: list[Object]) -> list[Object]:
    """Set Ready according to the pod's readiness gates, which the physical kubelet does not know."""
    gates = [str(gate.get("conditionType")) for gate in pod["spec"].get("readinessGates") or ()]
    ready = find_condition(conditions, "Ready")
    if not gates or ready is None or ready["status"] != "True":
        return conditions
    gate_conditions = [find_condition([*conditions, *pod["status"]["conditions"]], gate) or {} for gate in gates]
    not_ready = [
        gate for gate, condition in zip(gates, gate_conditions, strict=True) if condition.get("status") != "True"
    ]
    if not_ready:
        message = truncate_text("not true yet: " + ", ".join(not_ready))
        result = {**ready, "status": "False", "reason": "ReadinessGatesNotReady", "message": message}
    else:  # ready since the last of them became true
        latest = max(sanitized_time(condition.get("lastTransitionTime")) for condition in (ready, *gate_conditions))
        result = ready | ({"lastTransitionTime": latest} if latest else {})
    return [result if each is ready else each for each in conditions]


def gated_condition(condition: Object) -> Object:
    """Replace the reason SchedulingGated, which would refer to the pod's own gates."""
    if condition["type"] != SCHEDULED or condition.get("reason") != GATED:
        return condition
    return {**condition, "reason": GATED_BELOW, "message": GATED_MESSAGE}


def condition_changes(pod: VirtualPod, wanted: list[Object], now: datetime) -> list[Object]:
    """Return the patch of the pod's conditions to `wanted`. A patch merges fields, so missing ones are set to null."""
    wanted_types = {each["type"] for each in wanted}
    removed = [type for type in pod.synced_conditions if type not in wanted_types]
    return [
        *({**UNSET, **each} for each in wanted),
        *(
            {**UNSET, "type": SCHEDULED, "status": "True", "lastTransitionTime": timestamp(now)}
            if type == SCHEDULED
            else {"$patch": "delete", "type": type}
            for type in removed
        ),
    ]


def scheduled_condition(changes: list[Object]) -> list[Object]:
    """Return PodScheduled=True unless the patch sets it: no scheduler does so for a pod created with a node."""
    return [] if find_condition(changes, SCHEDULED) else [{"type": SCHEDULED, "status": "True"}]


def accepted_removal(pod: Object) -> list[Object]:
    """Return the patch that removes the Accepted condition of a pod that had to wait."""
    is_present = find_condition(pod["status"]["conditions"], keys.ACCEPTED_CONDITION) is not None
    return [{"type": keys.ACCEPTED_CONDITION, "$patch": "delete"}] if is_present else []


def mapped_condition(uid: str, now: datetime) -> Object:
    """Return the condition that records the pod's twin: if that twin is missing later, it is lost."""
    moment = timestamp(now)
    return {
        "type": keys.MAPPED_CONDITION,
        "status": "True",
        "reason": "Mapped",
        "message": uid,
        "lastTransitionTime": moment,
    }


def mapping_annotations(twin: Object, now: datetime) -> dict[str, str]:
    return dict(zip(MAPPING, (namespace_of(twin) or "", name_of(twin), uid_of(twin), timestamp(now)), strict=True))


# -- Statuses that the syncer decides itself.


def false_condition_patch(type: str, reason: str, message: str, now: datetime) -> Object:
    """Return the patch that sets one of our conditions to False."""
    condition = {
        "type": type,
        "status": "False",
        "reason": reason,
        "message": truncate_text(message),
        "lastTransitionTime": timestamp(now),
    }
    return {"status": {"conditions": [condition]}}


def suspended_status_patch(pod: VirtualPod, now: datetime, message: str = SUSPENDED_MESSAGE) -> Object:
    """Return the patch that marks a pod as suspended and resets its status to that of a pod that never started."""
    obj, moment = pod.object, timestamp(now)
    cleared = (*DECIDED_FIELDS, "hostIPs", "podIPs")
    patch = false_condition_patch(keys.MAPPED_CONDITION, SUSPENDED, message, now)
    [condition] = patch["status"]["conditions"]
    changes = [each for each in condition_changes(pod, [], now) if each["type"] != SCHEDULED or pod.node]
    if find_condition(obj["status"]["conditions"], DISRUPTED) is not None:
        changes.append({"$patch": "delete", "type": DISRUPTED})
    if not pod.node:
        unscheduled = {"type": SCHEDULED, "status": "False", "reason": SUSPENDED, "message": message}
        changes.append({**unscheduled, "lastTransitionTime": moment})
    return {
        "metadata": {"annotations": dict.fromkeys(MAPPING)},
        "status": {**dict.fromkeys(cleared), "phase": "Pending", "conditions": [*changes, condition]},
    }


def failed_status_patch(reason: str, message: str, disrupted_at: datetime | None = None) -> Object:
    """Return the patch that sets a pod to Failed; `disrupted_at` adds the DisruptionTarget condition."""
    status: Object = {"phase": "Failed", "reason": reason, "message": truncate_text(message)}
    if disrupted_at is not None:
        moment = timestamp(disrupted_at)
        condition = {"type": DISRUPTED, "status": "True", "reason": reason, "message": truncate_text(message)}
        status["conditions"] = [{**condition, "lastTransitionTime": moment}]
    return {"status": status}


DISRUPTIONS: dict[str, str] = {
    "PreemptionByScheduler": "Preempted",
    "EvictionByEvictionAPI": "Evicted",
    "DeletionByTaintManager": "Evicted",
    "TerminationByKubelet": "Evicted",
    "Reclaimed": "Reclaimed",
}


def loss_reason(pod: Object) -> str:
    """Return why a twin was lost, according to its last conditions."""
    condition = find_condition(value_at(pod, "status", "conditions"), DISRUPTED) or {}
    return DISRUPTIONS.get(condition.get("reason", ""), "PhysicalPodLost")
