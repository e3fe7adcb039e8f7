"""What makes pods, in a table: controllers, jobs, autoscalers and disruption budgets."""

from collections.abc import Sequence
from datetime import datetime

from tapestry.apiserver.printing.prints import (
    AGE,
    BOOLEAN,
    INTEGER,
    NAME,
    NONE,
    UNKNOWN,
    UNSET,
    Columns,
    Print,
    age,
    containers,
    count,
    duration,
    of,
    pairs,
    path,
    selector,
)
from tapestry.kube.conditions import is_true
from tapestry.kube.objects import Object, controller_of, name_of, value_at
from tapestry.kube.times import parse_time


def replicas(obj: Object) -> str:
    return f"{value_at(obj, 'status', 'readyReplicas', default=0)}/{value_at(obj, 'spec', 'replicas', default=0)}"


def job_status(job: Object) -> str:
    ended = next((type for type in JOB_ENDS if is_true(job, type)), "")
    if ended or "deletionTimestamp" in job["metadata"]:
        return ended or "Terminating"
    return next((type for type in JOB_STATES if is_true(job, type)), "Running")


JOB_ENDS = ("Complete", "Failed")
JOB_STATES = ("Suspended", "FailureTarget", "SuccessCriteriaMet")


def job_completions(job: Object) -> str:
    done, wanted = value_at(job, "status", "succeeded", default=0), value_at(job, "spec", "completions")
    if wanted is not None:
        return f"{done}/{wanted}"
    parallel = value_at(job, "spec", "parallelism", default=0)
    return f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"


def job_duration(job: Object, now: datetime) -> str:
    start, end = value_at(job, "status", "startTime"), value_at(job, "status", "completionTime")
    if not start:
        return ""
    return duration(((parse_time(end) if end else now) - parse_time(start)).total_seconds())


def suspended(job: Object) -> str:
    return str(value_at(job, "spec", "suspend", default=UNSET)).capitalize()


def last_schedule(job: Object, now: datetime) -> str:
    moment = value_at(job, "status", "lastScheduleTime")
    return age(moment, now) if moment else NONE


def controller_name(obj: Object) -> str:
    owner = controller_of(obj)
    if owner is None:
        return NONE
    group = owner["apiVersion"].rpartition("/")[0]
    kind = ".".join(filter(None, (owner["kind"], group))).lower()
    return f"{kind}/{owner['name']}"


# -- autoscalers


def targets(obj: Object) -> str:
    """What an autoscaler has and wants of each of its metrics."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    if (wanted := spec.get("targetCPUUtilizationPercentage")) is not None:  # the form of its first version
        return f"cpu: {percent(status.get('currentCPUUtilizationPercentage'), UNKNOWN)}/{wanted}%"
    current: Sequence[Object] = status.get("currentMetrics") or []
    found = [
        target(each, current[number] if number < len(current) else {})
        for number, each in enumerate(spec.get("metrics") or ())
    ]
    more = f" + {len(found) - 2} more..." if len(found) > 2 else ""
    return ", ".join(found[:2]) + more or NONE


def target(metric: Object, current: Object) -> str:
    field = METRICS.get(metric.get("type", ""))
    if field is None:
        return "<unknown type>"
    about, now = metric.get(field) or {}, (current.get(field) or {}).get("current") or {}
    wanted, is_resource = about.get("target") or {}, field in ("resource", "containerResource")
    head = f"{about.get('name')}: " if is_resource else ""
    if (average := wanted.get("averageValue")) is not None:
        tail = " (avg)" if field in ("object", "external") else ""
        return f"{head}{now.get('averageValue', UNKNOWN)}/{average}{tail}"
    if is_resource:
        utilization = percent(now.get("averageUtilization"), UNKNOWN)
        return f"{head}{utilization}/{percent(wanted.get('averageUtilization'), '<auto>')}"
    return f"{now.get('value', UNKNOWN)}/{wanted.get('value', '<nil>')}"


METRICS = {
    "Resource": "resource",
    "ContainerResource": "containerResource",
    "Pods": "pods",
    "Object": "object",
    "External": "external",
}


def percent(value: int | None, otherwise: str) -> str:
    return otherwise if value is None else f"{value}%"


def reference(obj: Object) -> str:
    about = value_at(obj, "spec", "scaleTargetRef", default={})
    return f"{about.get('kind', '')}/{about.get('name', '')}"


TEMPLATE = containers("spec", "template", "spec", "containers")
SELECTOR = Print("Selector", of(lambda obj: selector(value_at(obj, "spec", "selector"))), priority=1)
LABELS = Print("Selector", of(lambda obj: pairs(value_at(obj, "spec", "selector"))), priority=1)
CRON_SELECTOR = of(lambda obj: selector(value_at(obj, "spec", "jobTemplate", "spec", "selector")))
OF_REPLICAS = (
    NAME,
    Print("Desired", path("spec", "replicas", default=0), INTEGER),
    Print("Current", path("status", "replicas", default=0), INTEGER),
    Print("Ready", path("status", "readyReplicas", default=0), INTEGER),
    AGE,
    *TEMPLATE,
)

SCALE = (
    Print("Name", of(name_of)),
    Print("Desired", path("spec", "replicas", default=0), INTEGER),
    Print("Available", path("status", "replicas", default=0), INTEGER),
    AGE,
)
"""Of the scale of any of them."""
COLUMNS: Columns = {
    "deployments.apps": (
        NAME,
        Print("Ready", of(replicas)),
        Print("Up-to-date", path("status", "updatedReplicas", default=0)),
        Print("Available", path("status", "availableReplicas", default=0)),
        AGE,
        *TEMPLATE,
        SELECTOR,
    ),
    "replicasets.apps": (*OF_REPLICAS, SELECTOR),
    "replicationcontrollers": (*OF_REPLICAS, LABELS),
    "statefulsets.apps": (NAME, Print("Ready", of(replicas)), AGE, *TEMPLATE),
    "daemonsets.apps": (
        NAME,
        Print("Desired", path("status", "desiredNumberScheduled", default=0), INTEGER),
        Print("Current", path("status", "currentNumberScheduled", default=0), INTEGER),
        Print("Ready", path("status", "numberReady", default=0), INTEGER),
        Print("Up-to-date", path("status", "updatedNumberScheduled", default=0), INTEGER),
        Print("Available", path("status", "numberAvailable", default=0), INTEGER),
        Print("Node Selector", of(lambda obj: pairs(value_at(obj, "spec", "template", "spec", "nodeSelector")))),
        AGE,
        *TEMPLATE,
        SELECTOR,
    ),
    "jobs.batch": (
        NAME,
        Print("Status", of(job_status)),
        Print("Completions", of(job_completions)),
        Print("Duration", job_duration),
        AGE,
        *TEMPLATE,
        SELECTOR,
    ),
    "cronjobs.batch": (
        NAME,
        Print("Schedule", path("spec", "schedule")),
        Print("Timezone", path("spec", "timeZone", default=NONE)),
        Print("Suspend", of(suspended), BOOLEAN),
        Print("Active", count("status", "active"), INTEGER),
        Print("Last Schedule", last_schedule),
        AGE,
        *containers("spec", "jobTemplate", "spec", "template", "spec", "containers"),
        Print("Selector", CRON_SELECTOR, priority=1),
    ),
    "podtemplates": (
        NAME,
        *containers("template", "spec", "containers", priority=0),
        Print("Pod Labels", of(lambda obj: pairs(value_at(obj, "template", "metadata", "labels")))),
    ),
    "controllerrevisions.apps": (
        NAME,
        Print("Controller", of(controller_name)),
        Print("Revision", path("revision", default=0)),
        AGE,
    ),
    "horizontalpodautoscalers.autoscaling": (
        NAME,
        Print("Reference", of(reference)),
        Print("Targets", of(targets)),
        Print("MinPods", of(lambda obj: str(value_at(obj, "spec", "minReplicas", default=UNSET)))),
        Print("MaxPods", path("spec", "maxReplicas", default=0)),
        Print("Replicas", path("status", "currentReplicas", default=0)),
        AGE,
    ),
    "poddisruptionbudgets.policy": (
        NAME,
        Print("Min Available", of(lambda obj: str(value_at(obj, "spec", "minAvailable", default="N/A")))),
        Print("Max Unavailable", of(lambda obj: str(value_at(obj, "spec", "maxUnavailable", default="N/A")))),
        Print("Allowed Disruptions", path("status", "disruptionsAllowed", default=0), INTEGER),
        AGE,
    ),
}
