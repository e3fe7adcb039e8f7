"""Tables: what `kubectl get` prints, made by the server.

Most columns are a path into the object; those of pods, workloads, nodes and a few others take a little thought, and
come out as Kubernetes' own do: people and scripts read them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tapestry.apiserver.columns import BINDING_WIDE, OTHERS
from tapestry.apiserver.jsonpath import JsonPathError, first
from tapestry.apiserver.prints import (
    AGE,
    CREATED,
    INTEGER,
    NAME,
    NONE,
    UNKNOWN,
    UNSET,
    Print,
    age,
    count,
    duration,
    of,
    path,
)
from tapestry.apiserver.rows import Row
from tapestry.kube.conditions import find, is_true
from tapestry.kube.objects import Object, labels_of, name_of, value_at
from tapestry.kube.times import parse_time

# -- pods


def pod_ready(pod: Object) -> str:
    statuses = [*sidecar_statuses(pod), *value_at(pod, "status", "containerStatuses", default=[])]
    ready = sum(bool(each.get("ready")) for each in statuses)
    total = len(value_at(pod, "spec", "containers", default=[])) + len(sidecars(pod))
    return f"{ready}/{total}"


def sidecars(pod: Object) -> list[Object]:
    return [
        each for each in value_at(pod, "spec", "initContainers", default=[]) if each.get("restartPolicy") == "Always"
    ]


def sidecar_statuses(pod: Object) -> list[Object]:
    names = {each["name"] for each in sidecars(pod)}
    return [each for each in value_at(pod, "status", "initContainerStatuses", default=[]) if each["name"] in names]


def pod_status(pod: Object) -> str:
    """One word for what a pod is doing: the first trouble that can be found, else its phase."""
    status = pod.get("status") or {}
    reason: str = status.get("reason") or status.get("phase") or ""
    if any(each.get("reason") == "SchedulingGated" for each in status.get("conditions") or ()):
        reason = "SchedulingGated"
    initializing = init_trouble(pod)
    if initializing:
        reason = initializing
    else:
        reason = container_trouble(status.get("containerStatuses") or [], reason, is_ready=is_true(pod, "Ready"))
    if "deletionTimestamp" in pod["metadata"]:
        if status.get("reason") == "NodeLost":
            return "Unknown"
        return reason if status.get("phase") in ("Succeeded", "Failed") else "Terminating"
    return reason


def init_trouble(pod: Object) -> str:
    containers = value_at(pod, "spec", "initContainers", default=[])
    always = {each["name"] for each in containers if each.get("restartPolicy") == "Always"}
    for number, each in enumerate(value_at(pod, "status", "initContainerStatuses", default=[])):
        state = each.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting")
        if ended is not None and ended.get("exitCode", 0) == 0:
            continue
        if each["name"] in always and each.get("started"):
            continue
        if ended is not None:
            return "Init:" + (ended.get("reason") or exit_word(ended))
        if waiting is not None and waiting.get("reason") not in (None, "", "PodInitializing"):
            return f"Init:{waiting['reason']}"
        return f"Init:{number}/{len(containers)}"
    return ""


def exit_word(ended: Object) -> str:
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


def container_trouble(statuses: Sequence[Object], reason: str, *, is_ready: bool) -> str:
    running = False
    for each in reversed(statuses):
        state = each.get("state") or {}
        waiting, ended = state.get("waiting"), state.get("terminated")
        if waiting is not None and waiting.get("reason"):
            reason = waiting["reason"]
        elif ended is not None:
            reason = ended.get("reason") or exit_word(ended)
        elif each.get("ready") and state.get("running") is not None:
            running = True
    if reason == "Completed" and running:
        return "Running" if is_ready else "NotReady"
    return reason


def pod_restarts(pod: Object, now: datetime) -> str:
    statuses = [*sidecar_statuses(pod), *value_at(pod, "status", "containerStatuses", default=[])]
    count = sum(each.get("restartCount", 0) for each in statuses)
    ends = [end for each in statuses if (end := value_at(each, "lastState", "terminated", "finishedAt"))]
    return f"{count} ({age(max(ends), now)} ago)" if count and ends else str(count)


# -- the others that take thought


def node_status(node: Object) -> str:
    ready = find(value_at(node, "status", "conditions"), "Ready")
    words = ["Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"]
    if value_at(node, "spec", "unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def node_roles(node: Object) -> str:
    prefix = "node-role.kubernetes.io/"
    roles = sorted(key.removeprefix(prefix) for key in labels_of(node) if key.startswith(prefix))
    return ",".join(role for role in roles if role) or NONE


def node_address(kind: str) -> Callable[[Object], str]:
    def show(node: Object) -> str:
        addresses = value_at(node, "status", "addresses", default=[])
        return next((each["address"] for each in addresses if each.get("type") == kind), NONE)

    return show


def replicas(obj: Object) -> str:
    return f"{value_at(obj, 'status', 'readyReplicas', default=0)}/{value_at(obj, 'spec', 'replicas', default=1)}"


def template(field: str) -> Callable[[Object], str]:
    def show(obj: Object) -> str:
        containers = value_at(obj, "spec", "template", "spec", "containers", default=[])
        return ",".join(str(each.get(field, "")) for each in containers)

    return show


def job_status(job: Object) -> str:
    for type, word in (("Complete", "Complete"), ("Failed", "Failed"), ("Suspended", "Suspended")):
        if is_true(job, type):
            return word
    return "Terminating" if "deletionTimestamp" in job["metadata"] else "Running"


def job_completions(job: Object) -> str:
    done, wanted = value_at(job, "status", "succeeded", default=0), value_at(job, "spec", "completions")
    if wanted is not None:
        return f"{done}/{wanted}"
    parallel = value_at(job, "spec", "parallelism", default=1)
    return f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"


def job_duration(job: Object, now: datetime) -> str:
    start, end = value_at(job, "status", "startTime"), value_at(job, "status", "completionTime")
    if not start:
        return ""
    return duration(((parse_time(end) if end else now) - parse_time(start)).total_seconds())


def service_ports(service: Object) -> str:
    ports = value_at(service, "spec", "ports", default=[])
    shown = [
        f"{each['port']}{':' + str(each['nodePort']) if each.get('nodePort') else ''}/{each.get('protocol', 'TCP')}"
        for each in ports
    ]
    return ",".join(shown) or NONE


def service_external(service: Object) -> str:
    spec = service.get("spec") or {}
    match spec.get("type", "ClusterIP"):
        case "ExternalName":
            return str(spec.get("externalName", NONE))
        case "LoadBalancer":
            points = value_at(service, "status", "loadBalancer", "ingress", default=[])
            shown = [str(each.get("ip") or each.get("hostname")) for each in points] + spec.get("externalIPs", [])
            return ",".join(shown) or "<pending>"
    return ",".join(spec.get("externalIPs") or ()) or NONE


def selector_text(obj: Object) -> str:
    selector = value_at(obj, "spec", "selector", default={})
    pairs = selector.get("matchLabels", selector if "matchExpressions" not in selector else {})
    return ",".join(f"{key}={value}" for key, value in sorted(pairs.items())) or NONE


def event_object(event: Object) -> str:
    about = event_about(event)
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def event_about(event: Object) -> Object:
    return event.get("involvedObject") or event.get("regarding") or {}


def event_source(event: Object) -> str:
    """Who reported it, and where from."""
    source = event.get("source") or event.get("deprecatedSource") or {}
    who = source.get("component") or event.get("reportingComponent") or event.get("reportingController") or ""
    where = source.get("host") or event.get("reportingInstance") or ""
    return ", ".join(filter(None, (who, where)))


def event_begin(event: Object, now: datetime) -> str:
    return age(event.get("firstTimestamp") or event.get("deprecatedFirstTimestamp") or event.get("eventTime"), now)


def event_count(event: Object) -> int:
    """How often it happened."""
    found: int = (
        value_at(event, "series", "count", default=0) or event.get("count") or event.get("deprecatedCount") or 1
    )
    return found


def claim_volume(claim: Object) -> str:
    return str(value_at(claim, "spec", "volumeName", default=""))


ACCESS = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def access_modes(*steps: str) -> Callable[[Object], str]:
    return lambda obj: ",".join(ACCESS.get(each, each) for each in value_at(obj, *steps, default=[]))


def volume_claim(volume: Object) -> str:
    about = value_at(volume, "spec", "claimRef")
    return f"{about.get('namespace')}/{about.get('name')}" if about else ""


WORKLOAD_WIDE = (
    Print("Containers", of(template("name")), wide=True),
    Print("Images", of(template("image")), wide=True),
    Print("Selector", of(selector_text), wide=True),
)


def of_jobs(column: Print) -> Callable[[Object, datetime], Any]:
    """The same, of the jobs that a cron job makes."""
    return lambda obj, now: column.show(value_at(obj, "spec", "jobTemplate", default={}), now)


COLUMNS: Mapping[str, tuple[Print, ...]] = {
    **OTHERS,
    "pods": (
        NAME,
        Print("Ready", of(pod_ready)),
        Print("Status", of(pod_status)),
        Print("Restarts", pod_restarts),
        AGE,
        Print("IP", path("status", "podIP", default=NONE), wide=True),
        Print("Node", path("spec", "nodeName", default=NONE), wide=True),
        Print("Nominated Node", path("status", "nominatedNodeName", default=NONE), wide=True),
        Print(
            "Readiness Gates",
            of(lambda pod: gates(pod)),
            wide=True,
        ),
    ),
    "nodes": (
        NAME,
        Print("Status", of(node_status)),
        Print("Roles", of(node_roles)),
        AGE,
        Print("Version", path("status", "nodeInfo", "kubeletVersion")),
        Print("Internal-IP", of(node_address("InternalIP")), wide=True),
        Print("External-IP", of(node_address("ExternalIP")), wide=True),
        Print("OS-Image", path("status", "nodeInfo", "osImage", default=UNKNOWN), wide=True),
        Print("Kernel-Version", path("status", "nodeInfo", "kernelVersion", default=UNKNOWN), wide=True),
        Print("Container-Runtime", path("status", "nodeInfo", "containerRuntimeVersion", default=UNKNOWN), wide=True),
    ),
    "namespaces": (NAME, Print("Status", path("status", "phase")), AGE),
    "configmaps": (
        NAME,
        Print("Data", of(lambda obj: len(obj.get("data") or {}) + len(obj.get("binaryData") or {}))),
        AGE,
    ),
    "secrets": (NAME, Print("Type", path("type")), Print("Data", count("data")), AGE),
    "serviceaccounts": (NAME, Print("Secrets", count("secrets")), AGE),
    "services": (
        NAME,
        Print("Type", path("spec", "type", default="ClusterIP")),
        Print("Cluster-IP", path("spec", "clusterIP", default=NONE)),
        Print("External-IP", of(service_external)),
        Print("Port(s)", of(service_ports)),
        AGE,
        Print("Selector", of(selector_text), wide=True),
    ),
    "deployments.apps": (
        NAME,
        Print("Ready", of(replicas)),
        Print("Up-to-date", path("status", "updatedReplicas", default=0)),
        Print("Available", path("status", "availableReplicas", default=0)),
        AGE,
        *WORKLOAD_WIDE,
    ),
    "replicasets.apps": (
        NAME,
        Print("Desired", path("spec", "replicas", default=0), INTEGER),
        Print("Current", path("status", "replicas", default=0), INTEGER),
        Print("Ready", path("status", "readyReplicas", default=0), INTEGER),
        AGE,
        *WORKLOAD_WIDE,
    ),
    "replicationcontrollers": (
        NAME,
        Print("Desired", path("spec", "replicas", default=0), INTEGER),
        Print("Current", path("status", "replicas", default=0), INTEGER),
        Print("Ready", path("status", "readyReplicas", default=0), INTEGER),
        AGE,
        *WORKLOAD_WIDE,
    ),
    "statefulsets.apps": (NAME, Print("Ready", of(replicas)), AGE, *WORKLOAD_WIDE[:2]),
    "daemonsets.apps": (
        NAME,
        Print("Desired", path("status", "desiredNumberScheduled", default=0), INTEGER),
        Print("Current", path("status", "currentNumberScheduled", default=0), INTEGER),
        Print("Ready", path("status", "numberReady", default=0), INTEGER),
        Print("Up-to-date", path("status", "updatedNumberScheduled", default=0), INTEGER),
        Print("Available", path("status", "numberAvailable", default=0), INTEGER),
        Print("Node Selector", of(lambda obj: node_selector(obj))),
        AGE,
        *WORKLOAD_WIDE,
    ),
    "jobs.batch": (
        NAME,
        Print("Status", of(job_status)),
        Print("Completions", of(job_completions)),
        Print("Duration", job_duration),
        AGE,
        *WORKLOAD_WIDE,
    ),
    "cronjobs.batch": (
        NAME,
        Print("Schedule", path("spec", "schedule")),
        Print("Timezone", path("spec", "timeZone", default=NONE)),
        Print("Suspend", of(lambda obj: str(value_at(obj, "spec", "suspend", default=False)).capitalize()), "boolean"),
        Print("Active", count("status", "active"), INTEGER),
        Print("Last Schedule", lambda obj, now: last_schedule(obj, now)),
        AGE,
        *(replace(each, show=of_jobs(each)) for each in WORKLOAD_WIDE),
    ),
    "events": (
        Print("Last Seen", lambda obj, now: age(obj.get("lastTimestamp") or obj.get("eventTime"), now)),
        Print("Type", path("type")),
        Print("Reason", path("reason")),
        Print("Object", of(event_object)),
        Print("Subobject", of(lambda obj: event_about(obj).get("fieldPath", "")), wide=True),
        Print("Source", of(event_source), wide=True),
        Print("Message", of(lambda obj: str(obj.get("message") or obj.get("note") or "").strip())),
        Print("First Seen", event_begin, wide=True),
        Print("Count", of(event_count), wide=True),
        Print("Name", of(name_of), wide=True, format="name"),
    ),
    "persistentvolumes": (
        NAME,
        Print("Capacity", path("spec", "capacity", "storage")),
        Print("Access Modes", of(access_modes("spec", "accessModes"))),
        Print("Reclaim Policy", path("spec", "persistentVolumeReclaimPolicy")),
        Print("Status", path("status", "phase")),
        Print("Claim", of(volume_claim)),
        Print("StorageClass", path("spec", "storageClassName")),
        Print("VolumeAttributesClass", path("spec", "volumeAttributesClassName", default=UNSET)),
        Print("Reason", path("status", "reason")),
        AGE,
        Print("VolumeMode", path("spec", "volumeMode", default=UNSET), wide=True),
    ),
    "persistentvolumeclaims": (
        NAME,
        Print("Status", path("status", "phase")),
        Print("Volume", of(claim_volume)),
        Print("Capacity", path("status", "capacity", "storage")),
        Print("Access Modes", of(access_modes("status", "accessModes"))),
        Print("StorageClass", path("spec", "storageClassName")),
        Print("VolumeAttributesClass", path("spec", "volumeAttributesClassName", default=UNSET)),
        AGE,
        Print("VolumeMode", path("spec", "volumeMode", default=UNSET), wide=True),
    ),
    "leases.coordination.k8s.io": (NAME, Print("Holder", path("spec", "holderIdentity")), AGE),
    "priorityclasses.scheduling.k8s.io": (
        NAME,
        Print("Value", path("value", default=0), INTEGER),
        Print("Global-Default", path("globalDefault", default=False), "boolean"),
        AGE,
        Print("PreemptionPolicy", path("preemptionPolicy")),
    ),
    "storageclasses.storage.k8s.io": (
        NAME,
        Print("Provisioner", path("provisioner")),
        Print("ReclaimPolicy", path("reclaimPolicy", default="Delete")),
        Print("VolumeBindingMode", path("volumeBindingMode", default="Immediate")),
        Print("AllowVolumeExpansion", path("allowVolumeExpansion", default=False)),
        AGE,
    ),
    "customresourcedefinitions.apiextensions.k8s.io": (NAME, CREATED),
    "roles.rbac.authorization.k8s.io": (NAME, CREATED),
    "clusterroles.rbac.authorization.k8s.io": (NAME, CREATED),
    **dict.fromkeys(
        (f"{each}.rbac.authorization.k8s.io" for each in ("rolebindings", "clusterrolebindings")),
        (NAME, Print("Role", of(lambda obj: role(obj))), AGE, *BINDING_WIDE),
    ),
}


def gates(pod: Object) -> str:
    listed = [each.get("conditionType") for each in value_at(pod, "spec", "readinessGates", default=[])]
    return f"{sum(is_true(pod, str(each)) for each in listed)}/{len(listed)}" if listed else NONE


def node_selector(obj: Object) -> str:
    pairs = value_at(obj, "spec", "template", "spec", "nodeSelector", default={})
    return ",".join(f"{key}={value}" for key, value in sorted(pairs.items())) or NONE


def last_schedule(obj: Object, now: datetime) -> str:
    moment = value_at(obj, "status", "lastScheduleTime")
    return age(moment, now) if moment else NONE


def role(binding: Object) -> str:
    return f"{binding['roleRef']['kind']}/{binding['roleRef']['name']}"


def columns(row: Row) -> Sequence[Print]:
    """The columns of a resource."""
    if row.is_custom:
        return (NAME, *(custom_column(each.name, each.path, each.type, wide=each.priority > 0) for each in row.columns))
    return COLUMNS.get(row.storage, (NAME, AGE))


def custom_column(name: str, source: str, type: str, *, wide: bool) -> Print:
    """A column that a definition asks for; a date is shown as an age."""

    def show(obj: Object, now: datetime) -> Any:
        try:
            found = first(obj, source)
        except JsonPathError:
            return None
        if found is None:
            return None
        if type == "date":
            return age(str(found), now)
        return found if isinstance(found, bool | int | float) and type != "string" else text(found)

    return Print(name, show, type if type != "date" else "date", wide)


def text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def table(row: Row, objects: Iterable[Object], metadata: Object, include: str, *, heads: bool = True) -> Object:
    """A Table of `objects`; each row has the object with it as far as `include` says."""
    shown, now = columns(row), datetime.now(UTC)
    found: Object = {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [head(each) for each in shown] if heads else None,
        "rows": [
            {"cells": [each.show(obj, now) for each in shown], "object": included(obj, include)} for obj in objects
        ],
    }
    return found if heads else {key: value for key, value in found.items() if key != "columnDefinitions"}


def head(column: Print) -> Object:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": column.description or column.name,
        "priority": int(column.wide),
    }


def included(obj: Object, include: str) -> Object | None:
    if include == "None":
        return None
    return obj if include == "Object" else partial(obj)


def partial(obj: Object) -> Object:
    """The metadata of an object, as an object."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
