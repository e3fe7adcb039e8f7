"""What comes back of a twin: its status, as far as it is on a list, and as far as it can be true.

What comes from below is data from a stranger.  Of a status only known fields are shown, each of them only if it is what
Kubernetes has there; texts are cut, addresses that would lead a caller astray are left out, and a phase never runs
backwards.  Conditions that only the virtual cluster knows (readiness gates, our own) are not touched.

What is shown has the very form in which an API server gives it back.  So a digest tells whether there is anything to
write, and what was written once is not written again.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from tapestry.apis import keys
from tapestry.kube.conditions import find_condition
from tapestry.kube.digests import digest_of
from tapestry.kube.objects import Object, name_of, namespace_of, uid_of, value_at
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

SCHEDULED = "PodScheduled"
GATED = "SchedulingGated"
GATED_BELOW = "SchedulingGatedBelow"
"""The pod itself has no gate: its twin was given one by somebody in the physical cluster."""
GATED_MESSAGE = "a scheduling gate that was added in the physical cluster holds the pod back there"
TWIN_CONDITIONS = frozenset(
    {
        *(SCHEDULED, "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"),
        *("PodResizePending", "PodResizeInProgress"),
    }
)
"""Conditions that a kubelet or a scheduler sets: the twin's are the pod's."""
DISRUPTED = "DisruptionTarget"
"""Set above (reclaimed) or below (preempted, evicted): the twin's counts where it has one."""
SYNCED_CONDITIONS = TWIN_CONDITIONS | {DISRUPTED}
CONDITION_STATUSES = ("True", "False", "Unknown")
RANKS = {"Pending": 0, "Running": 1, "Succeeded": 2, "Failed": 2}
CONTAINER_LISTS = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
"""In the order of `LISTS`, whose containers they are about."""
MAPPING = (keys.PHYSICAL_POD_NAMESPACE, keys.PHYSICAL_POD_NAME, keys.PHYSICAL_POD_UID, keys.LAST_SYNC_TIME)
"""The annotations that tell people where a pod runs."""
MAX_CONTAINER_STATUS_BYTES = 96 * 1024
"""Bytes of JSON that containers may take; more are not shown at all.  With all else a status stays below 256 KiB."""
MAX_CONTAINERS = 256
MAX_ADDRESSES = 8
MAX_RESOURCES = 32
UNSET: Object = {"reason": None, "message": None, "lastTransitionTime": None}
"""In a patch, the fields of a condition that need not be set."""


def sanitized_pod_status(status: object) -> Object:
    """The part of a pod's status that is shown from below, made harmless; the same again when done twice."""
    source = as_object(status)
    phase = source.get("phase")
    found: dict[str, Any] = {
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
        found | containers
        if not containers or len(msgspec.json.encode(containers)) <= MAX_CONTAINER_STATUS_BYTES
        else found
    )


def sanitized_pod_conditions(conditions: object) -> list[Object]:
    """The first condition of each type, by type.

    That a pod has a node was said above before there was a twin: only that its twin has none is news.  Probe times and
    generations are those of another object: they would be a write each, and wrong.
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
    """Of each family one address, the first of which is the one."""
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
    """The first status of each container that has a name."""
    known: dict[str, Object] = {}
    for each in map(as_object, as_list(statuses)[:MAX_CONTAINERS]):
        name = sanitized_text(each.get("name"))
        if name and name not in known:
            known[name] = sanitized_container_status(name, each)
    return list(known.values())


def sanitized_container_status(name: str, status: Mapping[str, Any]) -> Object:
    restarts = status.get("restartCount")
    found: dict[str, Any] = {
        "name": name,
        "ready": status.get("ready") is True,
        "restartCount": restarts if is_int32(restarts) and restarts > 0 else 0,
        "image": sanitized_text(status.get("image")),
        "imageID": sanitized_text(status.get("imageID")),
        **text_fields(status, "containerID"),
    }
    for field in ("state", "lastState"):
        if state := sanitized_container_state(as_object(status.get(field))):
            found[field] = state
    if isinstance(started := status.get("started"), bool):
        found["started"] = started
    if amounts := sanitized_resources(status.get("allocatedResources")):
        found["allocatedResources"] = amounts
    resources = as_object(status.get("resources"))
    if asked := {
        kind: amounts for kind in ("limits", "requests") if (amounts := sanitized_resources(resources.get(kind)))
    }:
        found["resources"] = asked
    return found


def sanitized_container_state(state: Mapping[str, Any]) -> Object:
    """The one state that a container is in; an end without an exit code is none."""
    ended, running, waiting = (state.get(kind) for kind in ("terminated", "running", "waiting"))
    if isinstance(ended, dict) and is_int32(ended.get("exitCode")):
        found = {"exitCode": ended["exitCode"], **text_fields(ended, "reason", "message", "containerID")}
        if is_int32(signal := ended.get("signal")) and signal:
            found["signal"] = signal
        return {"terminated": found | time_fields(ended, "startedAt", "finishedAt")}
    if isinstance(running, dict):
        return {"running": time_fields(running, "startedAt")}
    return {"waiting": text_fields(waiting, "reason", "message")} if isinstance(waiting, dict) else {}


def sanitized_resources(resources: object) -> dict[str, str]:
    listed = list(as_object(resources).items())[:MAX_RESOURCES]
    return {name: amount for name, value in listed if (amount := sanitized_amount(name, value))}


# -- What the caches keep: a virtual pod without the status that we show, a twin with nothing else.


def reduced_status(status: object) -> Object:
    """A virtual pod's status as we need it: its phase, the conditions that are not from below, and a digest of the
    rest."""
    visible = sanitized_pod_status(status)
    conditions = map(as_object, as_list(as_object(status).get("conditions")))
    return {
        "phase": visible["phase"],
        "conditions": [without_nulls(each) for each in conditions if str(each.get("type")) not in TWIN_CONDITIONS],
        "types": [each["type"] for each in visible["conditions"] if each["type"] in TWIN_CONDITIONS],
        "scheduled": is_scheduled(status),
        "shown": digest_of(visible),
    }


def is_scheduled(status: object) -> bool:
    """Whether a scheduler bound the pod: one that was created with its node has no such condition before its twin."""
    conditions = map(as_object, as_list(as_object(status).get("conditions")))
    return any(each.get("type") == SCHEDULED and each.get("status") == "True" for each in conditions)


def without_nulls(condition: Mapping[str, Any]) -> Object:
    """A condition without its nulls, which servers add to what they are given."""
    return {field: value for field, value in condition.items() if value is not None}


def mapped_uid(pod: Object) -> str | None:
    """The UID of the twin that the pod has, or had."""
    status = pod.get("status") or {}
    condition = find_condition(status.get("conditions"), keys.MAPPED_CONDITION)
    return condition.get("message") if condition is not None and condition.get("status") == "True" else None


def virtual_status_patch(
    pod: Object, twin: Object, status: Object, now: datetime, resize: Object | None = None
) -> Object | None:
    """The strategic merge patch, for the virtual pod's status, that shows its twin's; None where nothing changes.

    `pod` has its status `reduced`; `status` is the twin's, as `shown`.  `resize` is the condition of a resize that the
    twin has not been told of.
    """
    if is_pod_terminal(pod):
        return None
    conditions = with_readiness_gates(pod, [gated_condition(each) for each in status["conditions"]])
    if find_condition(conditions, DISRUPTED) is None and (
        marked := find_condition(pod["status"]["conditions"], DISRUPTED)
    ):
        conditions = sanitized_pod_conditions([*conditions, marked])
    if resize is not None:
        conditions = sanitized_pod_conditions([resize, *conditions])
    wanted = {**status, "phase": later_phase(pod["status"]["phase"], status["phase"]), "conditions": conditions}
    wanted = without_unknown_containers(pod["spec"], wanted)
    is_new = mapped_uid(pod) != uid_of(twin)
    if not is_new and digest_of(wanted) == pod["status"]["shown"]:
        return None
    fields = ("phase", "reason", "message", "startTime", "hostIP", "podIP", *CONTAINER_LISTS)
    found = {field: wanted.get(field) for field in fields}
    for field in ("hostIPs", "podIPs"):
        found[field] = [{"$patch": "replace"}, *wanted[field]] if field in wanted else None
    changes = condition_changes(pod, conditions, now)
    found["conditions"] = changes
    if is_new:
        found["conditions"] = [
            *changes,
            mapped_condition(uid_of(twin), now),
            *scheduled_condition(changes),
            *accepted_removal(pod),
        ]
    return {"metadata": {"annotations": mapping_annotations(twin, now)}, "status": found}


def without_unknown_containers(spec: Object, status: Object) -> Object:
    """`status` without what it says of containers that the pod does not have: who added them below is told below."""
    found = dict(status)
    for field, containers in zip(CONTAINER_LISTS, CONTAINER_FIELDS, strict=True):
        names = {each["name"] for each in spec.get(containers) or ()}
        listed = [each for each in found.pop(field, ()) if each["name"] in names]
        if listed:
            found[field] = listed
    return found


def later_phase(before: str, after: str) -> str:
    return after if RANKS[after] >= RANKS.get(before, 0) else before


def with_readiness_gates(pod: Object, conditions: list[Object]) -> list[Object]:
    """`conditions` with Ready as the pod's readiness gates have it: a kubelet below knows nothing of them."""
    gates = [str(gate.get("conditionType")) for gate in pod["spec"].get("readinessGates") or ()]
    ready = find_condition(conditions, "Ready")
    if not gates or ready is None or ready["status"] != "True":
        return conditions
    said = [find_condition([*conditions, *pod["status"]["conditions"]], gate) or {} for gate in gates]
    shut = [gate for gate, condition in zip(gates, said, strict=True) if condition.get("status") != "True"]
    if shut:
        message = truncate_text("not true yet: " + ", ".join(shut))
        verdict = {**ready, "status": "False", "reason": "ReadinessGatesNotReady", "message": message}
    else:  # ready since the last of them was
        latest = max(sanitized_time(condition.get("lastTransitionTime")) for condition in (ready, *said))
        verdict = ready | ({"lastTransitionTime": latest} if latest else {})
    return [verdict if each is ready else each for each in conditions]


def gated_condition(condition: Object) -> Object:
    """A condition of a twin as its pod shows it: a reason that speaks of the pod's own gates would mislead."""
    if condition["type"] != SCHEDULED or condition.get("reason") != GATED:
        return condition
    return {**condition, "reason": GATED_BELOW, "message": GATED_MESSAGE}


def condition_changes(pod: Object, wanted: list[Object], now: datetime) -> list[Object]:
    """What makes the pod's conditions from below `wanted`.  Fields are merged, so what is not set has to be unset."""
    kept = {each["type"] for each in wanted}
    gone = [type for type in pod["status"]["types"] if type not in kept]
    return [
        *({**UNSET, **each} for each in wanted),
        *(
            {**UNSET, "type": SCHEDULED, "status": "True", "lastTransitionTime": timestamp(now)}
            if type == SCHEDULED
            else {"$patch": "delete", "type": type}
            for type in gone
        ),
    ]


def scheduled_condition(changes: list[Object]) -> list[Object]:
    """That the pod has a node, if nothing else is said of it: no scheduler does so where it came with one."""
    return [] if find_condition(changes, SCHEDULED) else [{"type": SCHEDULED, "status": "True"}]


def accepted_removal(pod: Object) -> list[Object]:
    """What takes back that the pod had to wait: it has a twin now."""
    is_said = find_condition(pod["status"]["conditions"], keys.ACCEPTED_CONDITION) is not None
    return [{"type": keys.ACCEPTED_CONDITION, "$patch": "delete"}] if is_said else []


def mapped_condition(uid: str, now: datetime) -> Object:
    """The condition that says a pod has a twin, and which: from here on a missing twin is a lost one."""
    moment = timestamp(now)
    return {
        "type": keys.MAPPED_CONDITION,
        "status": "True",
        "reason": "Mapped",
        "message": uid,
        "lastTransitionTime": moment,
    }


def mapping_annotations(twin: Object, now: datetime) -> dict[str, str]:
    """Where the pod runs, for people."""
    return dict(zip(MAPPING, (namespace_of(twin) or "", name_of(twin), uid_of(twin), timestamp(now)), strict=True))


# -- What we say of a pod ourselves.


def false_condition_patch(type: str, reason: str, message: str, now: datetime) -> Object:
    """The patch that sets a condition of ours to False."""
    said = {
        "type": type,
        "status": "False",
        "reason": reason,
        "message": truncate_text(message),
        "lastTransitionTime": timestamp(now),
    }
    return {"status": {"conditions": [said]}}


def failed_status_patch(reason: str, message: str, disrupted_at: datetime | None = None) -> Object:
    """The patch that makes a pod Failed, for good; with a time, also that its node was lost to it then."""
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
    """Why a twin is gone, as far as anybody said so before it went."""
    condition = find_condition(value_at(pod, "status", "conditions"), DISRUPTED) or {}
    return DISRUPTIONS.get(condition.get("reason", ""), "PhysicalPodLost")
