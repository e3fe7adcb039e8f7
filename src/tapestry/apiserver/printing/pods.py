"""Pods and nodes in a table: how far a pod has come is told in one word, which takes a look at its containers."""

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
    """How far some containers have come; `reason` is what keeps them from going on, if anything does."""

    reason: str = ""
    ready: int = 0
    restarts: int = 0
    last_restart: str = ""


def containers_summary(pod: Object) -> ContainersSummary:
    """Of a pod whose first containers are still at work, theirs; else that of its containers and of its sidecars."""
    status = pod.get("status") or {}
    begun, sidecars = init_containers_summary(pod)
    if begun.reason and not is_condition_true(pod, "Initialized"):
        return begun
    statuses = status.get("containerStatuses") or []
    states = [(each, each.get("state") or {}) for each in statuses]
    running = sum(bool(each.get("ready")) and is_running(state) for each, state in states)
    counted = restart_summary([*sidecars, *statuses])
    reason = next(
        (word for _, state in states if (word := container_state_reason(state))),
        begun.reason or pod_reason_or_phase(pod),
    )
    if reason == "Completed" and running:
        reason = "Running" if is_condition_true(pod, "Ready") else "NotReady"
    return ContainersSummary(reason, begun.ready + running, *counted)


def init_containers_summary(pod: Object) -> tuple[ContainersSummary, list[Object]]:
    """How far the containers that run first have come, and the statuses of those among them that stay."""
    containers = value_at(pod, "spec", "initContainers", default=[])
    staying = {each["name"] for each in containers if each.get("restartPolicy") == "Always"}
    seen: list[Object] = []
    reason, ready = "", 0
    for number, each in enumerate(value_at(pod, "status", "initContainerStatuses", default=[])):
        seen.append(each)
        state = each.get("state") or {}
        if state.get("terminated") is not None and not state["terminated"].get("exitCode"):
            continue
        if each["name"] in staying and each.get("started"):
            ready += bool(each.get("ready"))
            continue
        word = container_state_reason(state)
        reason = f"Init:{word}" if word not in ("", "PodInitializing") else f"Init:{number}/{len(containers)}"
        break
    return ContainersSummary(reason, ready, *restart_summary(seen)), [each for each in seen if each["name"] in staying]


def is_running(state: Object) -> bool:
    return state.get("running") is not None and state.get("terminated") is None and not container_state_reason(state)


def container_state_reason(state: Object) -> str:
    """Why a container waits, or how it ended."""
    if reason := value_at(state, "waiting", "reason", default=""):
        return str(reason)
    if (ended := state.get("terminated")) is None:
        return ""
    signal = f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"
    return str(ended.get("reason") or signal)


def restart_summary(statuses: Sequence[Object]) -> tuple[int, str]:
    """How often they were started again, and when last."""
    ends = [value_at(each, "lastState", "terminated", "finishedAt", default="") for each in statuses]
    return sum(each.get("restartCount", 0) for each in statuses), max(ends, default="")


def pod_reason_or_phase(pod: Object) -> str:
    """What is said of the pod itself."""
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
    first = value_at(pod, "spec", "initContainers", default=[])
    total = len(value_at(pod, "spec", "containers", default=[]))
    total += sum(each.get("restartPolicy") == "Always" for each in first)
    return f"{containers_summary(pod).ready}/{total}"


def pod_restarts(pod: Object, now: datetime) -> str:
    found = containers_summary(pod)
    when = f" ({age_since(found.last_restart, now)} ago)" if found.restarts and found.last_restart else ""
    return f"{found.restarts}{when}"


def readiness_gates(pod: Object) -> str:
    listed = [each.get("conditionType", "") for each in value_at(pod, "spec", "readinessGates", default=[])]
    return f"{sum(is_condition_true(pod, each) for each in listed)}/{len(listed)}" if listed else NONE


def completed_condition(pod: Object) -> Object:
    """What the row of a pod has beside its cells, once the pod will not run again."""
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
    words = ["Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"]
    if value_at(node, "spec", "unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def node_roles(node: Object) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = labels_of(node)
    roles = {key.removeprefix(prefix) for key in labels if key.startswith(prefix)}
    roles.add(labels.get("kubernetes.io/role", ""))
    return ",".join(sorted(roles - {""})) or NONE


def node_address(kind: str) -> Callable[[Object], str]:
    def show(node: Object) -> str:
        addresses = value_at(node, "status", "addresses", default=[])
        return next((each["address"] for each in addresses if each.get("type") == kind), NONE)

    return show


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
