"""Pod and container statuses as a kubelet reports them. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from tapestry.kube.objects import Object, is_deleting, value_at
from tapestry.kube.pods import TERMINAL_PHASES, is_sidecar
from tapestry.kube.times import timestamp

SIGTERM_EXIT_CODE = 143
"""Exit code of a program that SIGTERM ends."""


class ContainerStatuses(NamedTuple):
    main: Sequence[Object]
    init: Sequence[Object] = ()
    ephemeral: Sequence[Object] = ()


class PodAddresses(NamedTuple):
    """Addresses of a pod; a pod whose containers have not started has no pod IP."""

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
    """Return a container status; `ready` applies to running containers, `identity` names this run."""
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
    code: int | None = value_at(status, "state", "terminated", "exitCode")
    return code


# -- pods


def pod_status(pod: Object, statuses: ContainerStatuses, addresses: PodAddresses, now: datetime) -> Object:
    """Return the status to merge into the current one; fields of others are kept."""
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
    """Return whether merging `status` would change the current status."""
    normalized = {**current, "conditions": conditions_without_nulls(current)}
    return any(value != normalized.get(field) for field, value in status.items())


def conditions_without_nulls(status: Object) -> list[Object]:
    """Return the conditions without null fields: kube-apiserver returns lastProbeTime as null."""
    return [{key: value for key, value in each.items() if value is not None} for each in status.get("conditions") or ()]


def failed_pod_status(
    pod: Object, reason: str, message: str, statuses: ContainerStatuses, addresses: PodAddresses, now: datetime
) -> Object:
    status = pod_status(pod, statuses, addresses, now)
    conditions = pod_conditions(pod, statuses, "Failed", now, has_network=bool(addresses.pod_ip))
    return {**status, "phase": "Failed", "reason": reason, "message": message, "conditions": conditions}


def phase_of(pod: Object, statuses: ContainerStatuses) -> str:
    policy, is_over = restart_policy(pod), is_deleting(pod)
    if not is_initialized(pod, statuses):
        has_failed = any(exit_code(each) for each in statuses.init)
        return "Failed" if has_failed and (policy == "Never" or is_over) else "Pending"
    codes = [exit_code(each) for each in statuses.main]
    if any(code is None for code in codes):
        have_started = all("waiting" not in each["state"] or each["lastState"] for each in statuses.main)
        return "Running" if have_started else "Pending"
    sidecar_runs = any("running" in each["state"] for each in statuses.init)  # a sidecar has not ended yet
    if sidecar_runs or (policy == "Always" and not is_over):
        return "Running"
    if not any(codes):
        return "Succeeded"
    return "Failed" if policy == "Never" or is_over else "Running"


def is_initialized(pod: Object, statuses: ContainerStatuses) -> bool:
    return not incomplete_init_containers(pod, statuses)


def incomplete_init_containers(pod: Object, statuses: ContainerStatuses) -> list[str]:
    """Return the init containers that have not succeeded; a sidecar only has to start."""
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
    """Return the conditions as a kubelet sets them; foreign conditions and transition times are kept."""
    before = {each["type"]: each for each in conditions_without_nulls(pod.get("status") or {})}
    completed = "PodCompleted" if phase == "Succeeded" else ""
    missing = incomplete_init_containers(pod, statuses)
    message = f"containers with incomplete status: [{' '.join(missing)}]"
    initialized = ("ContainersNotInitialized", message) if missing else (completed, "")
    containers = unready_containers(pod, statuses, phase)
    pod_ready = containers or unready_gates(pod, before)
    found = [
        new_condition("PodReadyToStartContainers", has_network and phase not in TERMINAL_PHASES),
        new_condition("Initialized", not missing, *initialized),
        new_condition("Ready", pod_ready is None, *(pod_ready or ())),
        new_condition("ContainersReady", containers is None, *(containers or ())),
        before.get("PodScheduled") or new_condition("PodScheduled", True),
    ]
    own_types = {each["type"] for each in found}
    others = [each for type, each in before.items() if type not in own_types]
    return [*others, *(with_transition_time(each, before.get(each["type"]), now) for each in found)]


def new_condition(type: str, value: bool, reason: str = "", message: str = "") -> Object:
    found = {"type": type, "status": str(value)}
    return found | ({"reason": reason} if reason else {}) | ({"message": message} if message else {})


def with_transition_time(new: Object, before: Object | None, now: datetime) -> Object:
    if before is not None and before["status"] == new["status"]:
        return {**new, "lastTransitionTime": before.get("lastTransitionTime") or timestamp(now)}
    return {**new, "lastTransitionTime": timestamp(now)}


def unready_containers(pod: Object, statuses: ContainerStatuses, phase: str) -> tuple[str, str] | None:
    if phase in TERMINAL_PHASES:
        return ("PodCompleted" if phase == "Succeeded" else "PodFailed", "")
    sidecars = {each["name"] for each in pod["spec"].get("initContainers") or () if is_sidecar(each)}
    checked = (*(each for each in statuses.init if each["name"] in sidecars), *statuses.main)
    names = [each["name"] for each in checked if not each["ready"]]
    return ("ContainersNotReady", f"containers with unready status: [{' '.join(names)}]") if names else None


def unready_gates(pod: Object, before: Mapping[str, Object]) -> tuple[str, str] | None:
    messages = []
    for gate in (each["conditionType"] for each in pod["spec"].get("readinessGates") or ()):
        if gate not in before:
            messages.append(f'corresponding condition of pod readiness gate "{gate}" does not exist.')
        elif before[gate]["status"] != "True":
            messages.append(f'the status of pod readiness gate "{gate}" is not "True", but {before[gate]["status"]}')
    return ("ReadinessGatesNotReady", ", ".join(messages)) if messages else None
