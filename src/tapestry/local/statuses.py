"""The status of a pod as a kubelet gives it, from what is known of its containers.  Pure.

container_status   what is said of one container
pod_status         the phase and the conditions that come of all of them
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from tapestry.kube.objects import Object, is_deleting, value_at
from tapestry.kube.pods import TERMINAL_PHASES, is_sidecar
from tapestry.kube.times import timestamp

SIGTERM_EXIT_CODE = 143
"""What a program that does not listen to SIGTERM ends with."""


class ContainerStatuses(NamedTuple):
    """What is said of the containers of a pod, in the order of its spec."""

    main: Sequence[Object]
    init: Sequence[Object] = ()
    ephemeral: Sequence[Object] = ()


class PodAddresses(NamedTuple):
    """Where a pod runs; a pod whose containers have yet to come has no address of its own."""

    host_ip: str
    pod_ip: str = ""


# -- containers


def waiting_state(reason: str, message: str = "") -> Object:
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def running_state(since: datetime) -> Object:
    return {"running": {"startedAt": timestamp(since)}}


def terminated_state(code: int, started: datetime, finished: datetime, message: str = "") -> Object:
    found = {
        "exitCode": code,
        "reason": "Error" if code else "Completed",
        "startedAt": timestamp(started),
        "finishedAt": timestamp(finished),
    }
    return {"terminated": {**found, **({"message": message} if message else {})}}


def container_status(
    spec: Object, state: Object, identity: str, restarts: int = 0, last: Object | None = None, *, ready: bool = False
) -> Object:
    """`ready` is for those that run; `identity` names this run of the container."""
    resources = spec.get("resources") or {}
    started = "running" in state
    return {
        "name": spec["name"],
        "image": spec.get("image", ""),
        "imageID": "",
        **({"containerID": identity} if "waiting" not in state else {}),
        "ready": ready,
        "started": started,
        "restartCount": restarts,
        "state": state,
        "lastState": last or {},
        "resources": resources,
        **({"allocatedResources": resources["requests"]} if started and resources.get("requests") else {}),
    }


def restart_policy(pod: Object) -> str:
    policy: str = pod["spec"].get("restartPolicy") or "Always"
    return policy


def exit_code(status: Object) -> int | None:
    """What a container ended with, if it has and nobody starts it again."""
    code: int | None = value_at(status, "state", "terminated", "exitCode")
    return code


# -- pods


def pod_status(pod: Object, statuses: ContainerStatuses, addresses: PodAddresses, now: datetime) -> Object:
    """The whole status, to be laid over what there is: what others say of the pod stays."""
    phase = phase_of(pod, statuses)
    before = value_at(pod, "status", "startTime")
    return {
        "phase": phase,
        "startTime": before or timestamp(now),
        "hostIP": addresses.host_ip,
        "hostIPs": [{"ip": addresses.host_ip}],
        **({"podIP": addresses.pod_ip, "podIPs": [{"ip": addresses.pod_ip}]} if addresses.pod_ip else {}),
        **observed_generation(pod),
        "conditions": pod_conditions(pod, statuses, phase, now, has_network=bool(addresses.pod_ip)),
        "containerStatuses": list(statuses.main),
        **({"initContainerStatuses": list(statuses.init)} if statuses.init else {}),
        **({"ephemeralContainerStatuses": list(statuses.ephemeral)} if statuses.ephemeral else {}),
    }


def observed_generation(pod: Object) -> Object:
    generation = pod["metadata"].get("generation")
    return {"observedGeneration": generation} if generation else {}


def status_differs(current: Object, status: Object) -> bool:
    """Whether a pod that has one status would change by the other being laid over it."""
    shown = {**current, "conditions": conditions_without_nulls(current)}
    return any(value != shown.get(field) for field, value in status.items())


def conditions_without_nulls(status: Object) -> list[Object]:
    """The conditions of a pod, without what nobody said: kube-apiserver shows a lastProbeTime that is null."""
    return [{key: value for key, value in each.items() if value is not None} for each in status.get("conditions") or ()]


def failed_pod_status(
    pod: Object, reason: str, message: str, statuses: ContainerStatuses, addresses: PodAddresses, now: datetime
) -> Object:
    """The status of a pod that is over, whatever its containers say."""
    status = pod_status(pod, statuses, addresses, now)
    why = pod_conditions(pod, statuses, "Failed", now, has_network=bool(addresses.pod_ip))
    return {**status, "phase": "Failed", "reason": reason, "message": message, "conditions": why}


def phase_of(pod: Object, statuses: ContainerStatuses) -> str:
    policy, is_over = restart_policy(pod), is_deleting(pod)
    if not is_initialized(pod, statuses):
        broken = any(exit_code(each) for each in statuses.init)
        return "Failed" if broken and (policy == "Never" or is_over) else "Pending"
    codes = [exit_code(each) for each in statuses.main]
    if any(code is None for code in codes):
        begun = all("waiting" not in each["state"] or each["lastState"] for each in statuses.main)
        return "Running" if begun else "Pending"
    helped = any("running" in each["state"] for each in statuses.init)  # by a sidecar, which has yet to end
    if helped or (policy == "Always" and not is_over):
        return "Running"
    if not any(codes):
        return "Succeeded"
    return "Failed" if policy == "Never" or is_over else "Running"


def is_initialized(pod: Object, statuses: ContainerStatuses) -> bool:
    return not incomplete_init_containers(pod, statuses)


def incomplete_init_containers(pod: Object, statuses: ContainerStatuses) -> list[str]:
    """The init containers that have yet to end well; a sidecar has only to start."""
    specs = {each["name"]: each for each in pod["spec"].get("initContainers") or ()}
    return [
        each["name"]
        for each in statuses.init
        if not (
            each["started"] or each["lastState"] or exit_code(each) is not None
            if is_sidecar(specs[each["name"]])
            else exit_code(each) == 0
        )
    ]


def pod_conditions(
    pod: Object, statuses: ContainerStatuses, phase: str, now: datetime, *, has_network: bool
) -> list[Object]:
    """As a kubelet has them; those of others stay, and what was so stays so since then."""
    before = {each["type"]: each for each in conditions_without_nulls(pod.get("status") or {})}
    completed = "PodCompleted" if phase == "Succeeded" else ""
    missing = incomplete_init_containers(pod, statuses)
    listed = f"containers with incomplete status: [{' '.join(missing)}]"
    initialized = ("ContainersNotInitialized", listed) if missing else (completed, "")
    containers = unready_containers(pod, statuses, phase)
    pod_ready = containers or unready_gates(pod, before)
    found = [
        new_condition("PodReadyToStartContainers", has_network and phase not in TERMINAL_PHASES),
        new_condition("Initialized", not missing, *initialized),
        new_condition("Ready", pod_ready is None, *(pod_ready or ())),
        new_condition("ContainersReady", containers is None, *(containers or ())),
        before.get("PodScheduled") or new_condition("PodScheduled", True),
    ]
    ours = {each["type"] for each in found}
    others = [each for type, each in before.items() if type not in ours]
    return [*others, *(with_transition_time(each, before.get(each["type"]), now) for each in found)]


def new_condition(type: str, holds: bool, reason: str = "", message: str = "") -> Object:
    found = {"type": type, "status": str(holds)}
    return found | ({"reason": reason} if reason else {}) | ({"message": message} if message else {})


def with_transition_time(new: Object, before: Object | None, now: datetime) -> Object:
    if before is not None and before["status"] == new["status"]:
        return {**new, "lastTransitionTime": before.get("lastTransitionTime") or timestamp(now)}
    return {**new, "lastTransitionTime": timestamp(now)}


def unready_containers(pod: Object, statuses: ContainerStatuses, phase: str) -> tuple[str, str] | None:
    if phase in TERMINAL_PHASES:
        return ("PodCompleted" if phase == "Succeeded" else "PodFailed", "")
    sidecars = {each["name"] for each in pod["spec"].get("initContainers") or () if is_sidecar(each)}
    watched = (*(each for each in statuses.init if each["name"] in sidecars), *statuses.main)
    names = [each["name"] for each in watched if not each["ready"]]
    return ("ContainersNotReady", f"containers with unready status: [{' '.join(names)}]") if names else None


def unready_gates(pod: Object, before: Mapping[str, Object]) -> tuple[str, str] | None:
    why = []
    for gate in (each["conditionType"] for each in pod["spec"].get("readinessGates") or ()):
        if gate not in before:
            why.append(f'corresponding condition of pod readiness gate "{gate}" does not exist.')
        elif before[gate]["status"] != "True":
            why.append(f'the status of pod readiness gate "{gate}" is not "True", but {before[gate]["status"]}')
    return ("ReadinessGatesNotReady", ", ".join(why)) if why else None
