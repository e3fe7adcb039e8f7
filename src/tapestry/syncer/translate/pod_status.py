"""What comes back of a twin: its status, as far as it is on a list, and as far as it can be true.

What comes from below is data from a stranger.  Of a status only known fields are shown, texts are cut, addresses that
would lead a caller astray are left out, and a phase never runs backwards.  Conditions that only the virtual cluster
knows (readiness gates, our own) are not touched.
"""

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from tapestry.apis import keys
from tapestry.kube.conditions import find
from tapestry.kube.digests import digest_of
from tapestry.kube.objects import Object, name_of, namespace_of, uid_of, value_at
from tapestry.kube.times import timestamp

FROM_BELOW = frozenset(
    {
        *("PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"),
        *("PodResizePending", "PodResizeInProgress"),
    }
)
"""Conditions that a kubelet or a scheduler sets: the twin's are the pod's."""
DISRUPTED = "DisruptionTarget"
"""Set above (reclaimed) or below (preempted, evicted): the twin's counts where it has one."""
RANKS = {"Pending": 0, "Running": 1, "Succeeded": 2, "Failed": 2}
TERMINAL = frozenset({"Succeeded", "Failed"})
CONTAINER_LISTS = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
CONTAINER_FIELDS = (
    *("name", "state", "lastState", "ready", "restartCount", "image", "imageID", "containerID", "started"),
    *("allocatedResources", "resources", "volumeMounts", "user", "stopSignal"),
)
MAPPING = (keys.PHYSICAL_POD_NAMESPACE, keys.PHYSICAL_POD_NAME, keys.PHYSICAL_POD_UID, keys.LAST_SYNC_TIME)
"""The annotations that tell people where a pod runs."""
LONGEST_TEXT = 4096
"""Bytes."""
MOST_CONTAINERS = 256
MOST_ADDRESSES = 8


def shown(status: Object | None) -> Object:
    """The part of a pod's status that is shown from below, made harmless; the same again when done twice."""
    source = status if isinstance(status, dict) else {}
    found: dict[str, Any] = {"phase": phase if (phase := source.get("phase")) in RANKS else "Pending"}
    for field in ("reason", "message", "startTime"):
        if isinstance(text := source.get(field), str) and text:
            found[field] = cut(text)
    found["conditions"] = shown_conditions(source.get("conditions"))
    found |= shown_addresses(source)
    for field in CONTAINER_LISTS:
        if isinstance(listed := source.get(field), list) and listed:
            found[field] = [shown_container(each) for each in listed[:MOST_CONTAINERS] if isinstance(each, dict)]
    return found


def shown_conditions(conditions: object) -> list[Object]:
    listed = conditions if isinstance(conditions, list) else []
    known: dict[str, Object] = {}
    for each in listed:
        type = each.get("type") if isinstance(each, dict) else None
        if type in FROM_BELOW or type == DISRUPTED:
            known[type] = shown_condition(each)
    return [known[type] for type in sorted(known)]


def shown_condition(condition: Object) -> Object:
    """Probe times and generations are those of another object: they would be a write each, and wrong."""
    texts = ("type", "status", "reason", "message", "lastTransitionTime")
    return {field: cut(text) for field in texts if isinstance(text := condition.get(field), str) and text}


def shown_addresses(status: Object) -> Object:
    found: Object = {}
    for one, many in (("hostIP", "hostIPs"), ("podIP", "podIPs")):
        listed = status.get(many)
        others = [each.get("ip") for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
        addresses = list(dict.fromkeys(ip for ip in (status.get(one), *others[:MOST_ADDRESSES]) if is_address(ip)))
        if addresses:
            found |= {one: addresses[0], many: [{"ip": ip} for ip in addresses]}
    return found


def is_address(text: object) -> bool:
    return isinstance(text, str) and leads_somewhere(text)


@lru_cache(maxsize=4096)
def leads_somewhere(text: str) -> bool:
    """Whether an address can be that of a pod: not one that means something else to whoever calls it."""
    try:
        ip = ip_address(text)
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    ip = mapped or ip
    return not (ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_unspecified)


def shown_container(status: Object) -> Object:
    return {field: cut_all(status[field]) for field in CONTAINER_FIELDS if status.get(field) is not None}


def cut_all(value: Any) -> Any:
    """`value` with every text in it cut."""
    if isinstance(value, str):
        return cut(value)
    if isinstance(value, dict):
        return {str(key): cut_all(each) for key, each in value.items()}
    if isinstance(value, list):
        return [cut_all(each) for each in value[:MOST_CONTAINERS]]
    return value


def cut(text: str) -> str:
    if len(text) <= LONGEST_TEXT // 4:
        return text
    return text.encode(errors="ignore")[:LONGEST_TEXT].decode(errors="ignore")


# -- What the caches keep: a virtual pod without the status that we show, a twin with nothing else.


def reduced(status: Object | None) -> Object:
    """A virtual pod's status as we need it: its phase, the conditions that are not from below, and a digest of the
    rest."""
    conditions: list[Object] = (status or {}).get("conditions") or []
    return {
        "phase": (status or {}).get("phase") or "Pending",
        "conditions": [each for each in conditions if each.get("type") not in FROM_BELOW],
        "types": [each["type"] for each in conditions if each.get("type") in FROM_BELOW],
        "shown": digest_of(shown(status)),
    }


def mapped_uid(pod: Object) -> str | None:
    """The UID of the twin that the pod has, or had."""
    condition = find(value_at(pod, "status", "conditions"), keys.MAPPED)
    return condition["message"] if condition is not None and condition.get("status") == "True" else None


def is_over(pod: Object) -> bool:
    """Whether the pod has ended; it never runs again."""
    return value_at(pod, "status", "phase") in TERMINAL


def to_virtual(pod: Object, twin: Object, status: Object, now: datetime) -> Object | None:
    """The strategic merge patch, for the virtual pod's status, that shows its twin's; None where nothing changes.

    `pod` has its status `reduced`; `status` is the twin's, as `shown`.
    """
    if is_over(pod):
        return None
    wanted = {**status, "phase": onward(pod["status"]["phase"], status["phase"])}
    wanted["conditions"] = with_gates(pod, status["conditions"])
    if find(wanted["conditions"], DISRUPTED) is None and (marked := find(pod["status"]["conditions"], DISRUPTED)):
        wanted["conditions"] = shown_conditions([*wanted["conditions"], marked])
    is_new = mapped_uid(pod) != uid_of(twin)
    if not is_new and digest_of(wanted) == pod["status"]["shown"]:
        return None
    found = {field: wanted.get(field) for field in ("phase", "reason", "message", "startTime", "hostIP", "podIP")}
    found |= {field: wanted[field] for field in CONTAINER_LISTS if field in wanted}
    found |= {field: [{"$patch": "replace"}, *wanted[field]] for field in ("hostIPs", "podIPs") if field in wanted}
    ours = [mapped(uid_of(twin), now)] if is_new else []
    found["conditions"] = [*condition_changes(pod, wanted["conditions"]), *ours]
    return {"metadata": {"annotations": mapping(twin, now)}, "status": found}


def onward(before: str, after: str) -> str:
    return after if RANKS[after] >= RANKS.get(before, 0) else before


def with_gates(pod: Object, conditions: list[Object]) -> list[Object]:
    """`conditions` with Ready as the pod's readiness gates have it: a kubelet below knows nothing of them."""
    gates = [gate.get("conditionType") for gate in pod["spec"].get("readinessGates") or ()]
    shut = [gate for gate in gates if not is_open(pod, gate)]
    ready = find(conditions, "Ready")
    if not shut or ready is None or ready.get("status") != "True":
        return conditions
    waiting = {
        **ready,
        "status": "False",
        "reason": "ReadinessGatesNotReady",
        "message": "not true yet: " + ", ".join(map(str, shut)),
    }
    return [waiting if each is ready else each for each in conditions]


def is_open(pod: Object, gate: object) -> bool:
    condition = find(value_at(pod, "status", "conditions"), str(gate))
    return condition is not None and condition.get("status") == "True"


def condition_changes(pod: Object, wanted: list[Object]) -> list[Object]:
    kept = {each["type"] for each in wanted}
    gone: Iterable[str] = (type for type in pod["status"].get("types", ()) if type not in kept)
    return [*wanted, *({"$patch": "delete", "type": type} for type in gone)]


def mapped(uid: str, now: datetime) -> Object:
    """The condition that says a pod has a twin, and which: from here on a missing twin is a lost one."""
    moment = timestamp(now)
    return {
        "type": keys.MAPPED,
        "status": "True",
        "reason": "Mapped",
        "message": uid,
        "lastTransitionTime": moment,
    }


def mapping(twin: Object, now: datetime) -> dict[str, str]:
    """Where the pod runs, for people."""
    return dict(zip(MAPPING, (namespace_of(twin) or "", name_of(twin), uid_of(twin), timestamp(now)), strict=True))


# -- What we say of a pod ourselves.


def told(type: str, reason: str, message: str, now: datetime) -> Object:
    """The patch that sets a condition of ours to False."""
    said = {
        "type": type,
        "status": "False",
        "reason": reason,
        "message": cut(message),
        "lastTransitionTime": timestamp(now),
    }
    return {"status": {"conditions": [said]}}


def ended(reason: str, message: str) -> Object:
    """The patch that makes a pod Failed, for good."""
    return {"status": {"phase": "Failed", "reason": reason, "message": cut(message)}}


DISRUPTIONS: dict[str, str] = {
    "PreemptionByScheduler": "Preempted",
    "EvictionByEvictionAPI": "Evicted",
    "DeletionByTaintManager": "Evicted",
    "TerminationByKubelet": "Evicted",
    "Reclaimed": "Reclaimed",
}


def reason_of_loss(pod: Object) -> str:
    """Why a twin is gone, as far as anybody said so before it went."""
    condition = find(value_at(pod, "status", "conditions"), DISRUPTED) or {}
    return DISRUPTIONS.get(condition.get("reason", ""), "PhysicalPodLost")
