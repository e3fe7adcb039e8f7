"""Table columns of pods and nodes, with the one-word pod status computed from container statuses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tapestry.apiserver.printing.table_columns import (
    AGE,
    NAME,
    NONE,
    UNKNOWN,
    ColumnsByResource,
    TableColumn,
    age_since,
    computed_cell,
    value_cell,
)
from tapestry.kube.conditions import find_condition, is_condition_true
from tapestry.kube.objects import Object, labels_of, value_at

TERMINAL_PHASE_MESSAGES = {"Succeeded": "The pod has completed successfully.", "Failed": "The pod failed."}


@dataclass(frozen=True, slots=True)
class ContainersSummary:
    """State of a group of containers. `reason` says why they are not running, if they are not."""

    reason: str = ""
    ready: int = 0
    restarts: int = 0
    last_restart: str = ""


def containers_summary(pod: Object) -> ContainersSummary:
    """Summary of the init containers while they run, else of the containers and the sidecars."""
    status = pod.get("status") or {}
    init, sidecars = init_containers_summary(pod)
    if init.reason and not is_condition_true(pod, "Initialized"):
        return init
    statuses = status.get("containerStatuses") or []
    states = [(each, each.get("state") or {}) for each in statuses]
    running = sum(bool(each.get("ready")) and is_running(state) for each, state in states)
    restarts = restart_summary([*sidecars, *statuses])
    reason = next(
        (state_reason for _, state in states if (state_reason := container_state_reason(state))),
        init.reason or pod_reason_or_phase(pod),
    )
    if reason == "Completed" and running:
        reason = "Running" if is_condition_true(pod, "Ready") else "NotReady"
    return ContainersSummary(reason, init.ready + running, *restarts)


def init_containers_summary(pod: Object) -> tuple[ContainersSummary, list[Object]]:
    """Return the summary of the init containers and the statuses of the sidecars among them."""
    containers = value_at(pod, "spec", "initContainers", default=[])
    sidecars = {each["name"] for each in containers if each.get("restartPolicy") == "Always"}
    started: list[Object] = []
    reason, ready = "", 0
    for index, each in enumerate(value_at(pod, "status", "initContainerStatuses", default=[])):
        started.append(each)
        state = each.get("state") or {}
        if state.get("terminated") is not None and not state["terminated"].get("exitCode"):
            continue
        if each["name"] in sidecars and each.get("started"):
            ready += bool(each.get("ready"))
            continue
        word = container_state_reason(state)
        reason = f"Init:{word}" if word not in ("", "PodInitializing") else f"Init:{index}/{len(containers)}"
        break
    return ContainersSummary(reason, ready, *restart_summary(started)), [
        each for each in started if each["name"] in sidecars
    ]


def is_running(state: Object) -> bool:
    return state.get("running") is not None and state.get("terminated") is None and not container_state_reason(state)


def container_state_reason(state: Object) -> str:
    """Reason why a container waits or has terminated."""
    if reason := value_at(state, "waiting", "reason", default=""):
        return str(reason)
    if (ended := state.get("terminated")) is None:
        return ""
    signal = f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"
    return str(ended.get("reason") or signal)


def restart_summary(statuses: Sequence[Object]) -> tuple[int, str]:
    """Return the number of restarts and the time of the last one."""
    finish_times = [value_at(each, "lastState", "terminated", "finishedAt", default="") for each in statuses]
    return sum(each.get("restartCount", 0) for each in statuses), max(finish_times, default="")


def pod_reason_or_phase(pod: Object) -> str:
    status = pod.get("status") or {}
    scheduled = find_condition(status.get("conditions"), "PodScheduled") or {}
    if scheduled.get("reason") == "SchedulingGated":
        return "SchedulingGated"
    return str(status.get("reason") or status.get("phase") or "")


def pod_status(pod: Object) -> str:
    if "deletionTimestamp" in pod["metadata"]:
        if value_at(pod, "status", "reason") == "NodeLost":
            return "Unknown"
        if value_at(pod, "status", "phase") not in TERMINAL_PHASE_MESSAGES:
            return "Terminating"
    return containers_summary(pod).reason or pod_reason_or_phase(pod)


def ready_containers(pod: Object) -> str:
    init_containers = value_at(pod, "spec", "initContainers", default=[])
    total = len(value_at(pod, "spec", "containers", default=[]))
    total += sum(each.get("restartPolicy") == "Always" for each in init_containers)
    return f"{containers_summary(pod).ready}/{total}"


def pod_restarts(pod: Object, now: datetime) -> str:
    summary = containers_summary(pod)
    last_restart = f" ({age_since(summary.last_restart, now)} ago)" if summary.restarts and summary.last_restart else ""
    return f"{summary.restarts}{last_restart}"


def readiness_gates(pod: Object) -> str:
    gates = [each.get("conditionType", "") for each in value_at(pod, "spec", "readinessGates", default=[])]
    return f"{sum(is_condition_true(pod, each) for each in gates)}/{len(gates)}" if gates else NONE


def completed_condition(pod: Object) -> Object:
    """Return the `Completed` condition of the table row of a terminated pod, or nothing."""
    phase = value_at(pod, "status", "phase")
    if phase not in TERMINAL_PHASE_MESSAGES:
        return {}
    return {
        "conditions": [
            {"type": "Completed", "status": "True", "reason": phase, "message": TERMINAL_PHASE_MESSAGES[phase]}
        ]
    }


# -- nodes


def node_status(node: Object) -> str:
    ready = find_condition(value_at(node, "status", "conditions"), "Ready")
    states = ["Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"]
    if value_at(node, "spec", "unschedulable"):
        states.append("SchedulingDisabled")
    return ",".join(states)


def node_roles(node: Object) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = labels_of(node)
    roles = {key.removeprefix(prefix) for key in labels if key.startswith(prefix)}
    roles.add(labels.get("kubernetes.io/role", ""))
    return ",".join(sorted(roles - {""})) or NONE


def node_address(kind: str) -> Callable[[Object], str]:
    def address(node: Object) -> str:
        addresses = value_at(node, "status", "addresses", default=[])
        return next((each["address"] for each in addresses if each.get("type") == kind), NONE)

    return address


COLUMNS: ColumnsByResource = {
    "pods": (
        NAME,
        TableColumn("Ready", computed_cell(ready_containers)),
        TableColumn("Status", computed_cell(pod_status)),
        TableColumn("Restarts", pod_restarts),
        AGE,
        TableColumn("IP", value_cell("status", "podIPs", 0, "ip", default=NONE), priority=1),
        TableColumn("Node", value_cell("spec", "nodeName", default=NONE), priority=1),
        TableColumn("Nominated Node", value_cell("status", "nominatedNodeName", default=NONE), priority=1),
        TableColumn("Readiness Gates", computed_cell(readiness_gates), priority=1),
    ),
    "nodes": (
        NAME,
        TableColumn("Status", computed_cell(node_status)),
        TableColumn("Roles", computed_cell(node_roles)),
        AGE,
        TableColumn("Version", value_cell("status", "nodeInfo", "kubeletVersion")),
        TableColumn("Internal-IP", computed_cell(node_address("InternalIP")), priority=1),
        TableColumn("External-IP", computed_cell(node_address("ExternalIP")), priority=1),
        TableColumn("OS-Image", value_cell("status", "nodeInfo", "osImage", default=UNKNOWN), priority=1),
        TableColumn("Kernel-Version", value_cell("status", "nodeInfo", "kernelVersion", default=UNKNOWN), priority=1),
        TableColumn(
            "Container-Runtime",
            value_cell("status", "nodeInfo", "containerRuntimeVersion", default=UNKNOWN),
            priority=1,
        ),
    ),
}
