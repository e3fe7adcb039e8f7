"""Table columns of workload controllers, jobs, autoscalers and disruption budgets."""

from collections.abc import Sequence
from datetime import datetime

from tapestry.apiserver.printing.table_columns import (
    AGE,
    BOOLEAN,
    INTEGER,
    NAME,
    NONE,
    UNKNOWN,
    UNSET,
    ColumnsByResource,
    TableColumn,
    age_since,
    computed_cell,
    container_columns,
    count_cell,
    human_duration,
    labels_text,
    selector_text,
    value_cell,
)
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object, controller_of, name_of, value_at
from tapestry.kube.times import parse_time


def ready_replicas(obj: Object) -> str:
    return f"{value_at(obj, 'status', 'readyReplicas', default=0)}/{value_at(obj, 'spec', 'replicas', default=0)}"


def job_status(job: Object) -> str:
    terminal = next((type for type in JOB_TERMINAL_CONDITIONS if is_condition_true(job, type)), "")
    if terminal or "deletionTimestamp" in job["metadata"]:
        return terminal or "Terminating"
    return next((type for type in JOB_STATE_CONDITIONS if is_condition_true(job, type)), "Running")


JOB_TERMINAL_CONDITIONS = ("Complete", "Failed")
JOB_STATE_CONDITIONS = ("Suspended", "FailureTarget", "SuccessCriteriaMet")


def job_completions(job: Object) -> str:
    succeeded, completions = value_at(job, "status", "succeeded", default=0), value_at(job, "spec", "completions")
    if completions is not None:
        return f"{succeeded}/{completions}"
    parallelism = value_at(job, "spec", "parallelism", default=0)
    return f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"


def job_duration(job: Object, now: datetime) -> str:
    start, end = value_at(job, "status", "startTime"), value_at(job, "status", "completionTime")
    if not start:
        return ""
    return human_duration(((parse_time(end) if end else now) - parse_time(start)).total_seconds())


def suspend_text(job: Object) -> str:
    return str(value_at(job, "spec", "suspend", default=UNSET)).capitalize()


def last_schedule(job: Object, now: datetime) -> str:
    scheduled = value_at(job, "status", "lastScheduleTime")
    return age_since(scheduled, now) if scheduled else NONE


def controller_name(obj: Object) -> str:
    owner = controller_of(obj)
    if owner is None:
        return NONE
    group = owner["apiVersion"].rpartition("/")[0]
    kind = ".".join(filter(None, (owner["kind"], group))).lower()
    return f"{kind}/{owner['name']}"


# -- autoscalers


def metric_targets(obj: Object) -> str:
    """Return the current and target value of each metric of an autoscaler."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    if (target := spec.get("targetCPUUtilizationPercentage")) is not None:  # autoscaling/v1
        return f"cpu: {percent_text(status.get('currentCPUUtilizationPercentage'), UNKNOWN)}/{target}%"
    current: Sequence[Object] = status.get("currentMetrics") or []
    targets = [
        metric_target(each, current[index] if index < len(current) else {})
        for index, each in enumerate(spec.get("metrics") or ())
    ]
    more = f" + {len(targets) - 2} more..." if len(targets) > 2 else ""
    return ", ".join(targets[:2]) + more or NONE


def metric_target(metric: Object, current: Object) -> str:
    field = METRIC_FIELDS.get(metric.get("type", ""))
    if field is None:
        return "<unknown type>"
    source, observed = metric.get(field) or {}, (current.get(field) or {}).get("current") or {}
    target, is_resource = source.get("target") or {}, field in ("resource", "containerResource")
    head = f"{source.get('name')}: " if is_resource else ""
    if (average := target.get("averageValue")) is not None:
        tail = " (avg)" if field in ("object", "external") else ""
        return f"{head}{observed.get('averageValue', UNKNOWN)}/{average}{tail}"
    if is_resource:
        utilization = percent_text(observed.get("averageUtilization"), UNKNOWN)
        return f"{head}{utilization}/{percent_text(target.get('averageUtilization'), '<auto>')}"
    return f"{observed.get('value', UNKNOWN)}/{target.get('value', '<nil>')}"


METRIC_FIELDS = {
    "Resource": "resource",
    "ContainerResource": "containerResource",
    "Pods": "pods",
    "Object": "object",
    "External": "external",
}


def percent_text(value: int | None, default: str) -> str:
    return default if value is None else f"{value}%"


def scale_target(obj: Object) -> str:
    reference = value_at(obj, "spec", "scaleTargetRef", default={})
    return f"{reference.get('kind', '')}/{reference.get('name', '')}"


CONTAINER_COLUMNS = container_columns("spec", "template", "spec", "containers")
SELECTOR_COLUMN = TableColumn(
    "Selector", computed_cell(lambda obj: selector_text(value_at(obj, "spec", "selector"))), priority=1
)
LABEL_SELECTOR_COLUMN = TableColumn(
    "Selector", computed_cell(lambda obj: labels_text(value_at(obj, "spec", "selector"))), priority=1
)
cron_job_selector = computed_cell(lambda obj: selector_text(value_at(obj, "spec", "jobTemplate", "spec", "selector")))
REPLICA_COLUMNS = (
    NAME,
    TableColumn("Desired", value_cell("spec", "replicas", default=0), INTEGER),
    TableColumn("Current", value_cell("status", "replicas", default=0), INTEGER),
    TableColumn("Ready", value_cell("status", "readyReplicas", default=0), INTEGER),
    AGE,
    *CONTAINER_COLUMNS,
)

SCALE_COLUMNS = (
    TableColumn("Name", computed_cell(name_of)),
    TableColumn("Desired", value_cell("spec", "replicas", default=0), INTEGER),
    TableColumn("Available", value_cell("status", "replicas", default=0), INTEGER),
    AGE,
)
"""Columns of the Scale subresource of any workload."""
COLUMNS: ColumnsByResource = {
    "deployments.apps": (
        NAME,
        TableColumn("Ready", computed_cell(ready_replicas)),
        TableColumn("Up-to-date", value_cell("status", "updatedReplicas", default=0)),
        TableColumn("Available", value_cell("status", "availableReplicas", default=0)),
        AGE,
        *CONTAINER_COLUMNS,
        SELECTOR_COLUMN,
    ),
    "replicasets.apps": (*REPLICA_COLUMNS, SELECTOR_COLUMN),
    "replicationcontrollers": (*REPLICA_COLUMNS, LABEL_SELECTOR_COLUMN),
    "statefulsets.apps": (NAME, TableColumn("Ready", computed_cell(ready_replicas)), AGE, *CONTAINER_COLUMNS),
    "daemonsets.apps": (
        NAME,
        TableColumn("Desired", value_cell("status", "desiredNumberScheduled", default=0), INTEGER),
        TableColumn("Current", value_cell("status", "currentNumberScheduled", default=0), INTEGER),
        TableColumn("Ready", value_cell("status", "numberReady", default=0), INTEGER),
        TableColumn("Up-to-date", value_cell("status", "updatedNumberScheduled", default=0), INTEGER),
        TableColumn("Available", value_cell("status", "numberAvailable", default=0), INTEGER),
        TableColumn(
            "Node Selector",
            computed_cell(lambda obj: labels_text(value_at(obj, "spec", "template", "spec", "nodeSelector"))),
        ),
        AGE,
        *CONTAINER_COLUMNS,
        SELECTOR_COLUMN,
    ),
    "jobs.batch": (
        NAME,
        TableColumn("Status", computed_cell(job_status)),
        TableColumn("Completions", computed_cell(job_completions)),
        TableColumn("Duration", job_duration),
        AGE,
        *CONTAINER_COLUMNS,
        SELECTOR_COLUMN,
    ),
    "cronjobs.batch": (
        NAME,
        TableColumn("Schedule", value_cell("spec", "schedule")),
        TableColumn("Timezone", value_cell("spec", "timeZone", default=NONE)),
        TableColumn("Suspend", computed_cell(suspend_text), BOOLEAN),
        TableColumn("Active", count_cell("status", "active"), INTEGER),
        TableColumn("Last Schedule", last_schedule),
        AGE,
        *container_columns("spec", "jobTemplate", "spec", "template", "spec", "containers"),
        TableColumn("Selector", cron_job_selector, priority=1),
    ),
    "podtemplates": (
        NAME,
        *container_columns("template", "spec", "containers", priority=0),
        TableColumn(
            "Pod Labels", computed_cell(lambda obj: labels_text(value_at(obj, "template", "metadata", "labels")))
        ),
    ),
    "controllerrevisions.apps": (
        NAME,
        TableColumn("Controller", computed_cell(controller_name)),
        TableColumn("Revision", value_cell("revision", default=0)),
        AGE,
    ),
    "horizontalpodautoscalers.autoscaling": (
        NAME,
        TableColumn("Reference", computed_cell(scale_target)),
        TableColumn("Targets", computed_cell(metric_targets)),
        TableColumn("MinPods", computed_cell(lambda obj: str(value_at(obj, "spec", "minReplicas", default=UNSET)))),
        TableColumn("MaxPods", value_cell("spec", "maxReplicas", default=0)),
        TableColumn("Replicas", value_cell("status", "currentReplicas", default=0)),
        AGE,
    ),
    "poddisruptionbudgets.policy": (
        NAME,
        TableColumn(
            "Min Available", computed_cell(lambda obj: str(value_at(obj, "spec", "minAvailable", default="N/A")))
        ),
        TableColumn(
            "Max Unavailable", computed_cell(lambda obj: str(value_at(obj, "spec", "maxUnavailable", default="N/A")))
        ),
        TableColumn("Allowed Disruptions", value_cell("status", "disruptionsAllowed", default=0), INTEGER),
        AGE,
    ),
}
