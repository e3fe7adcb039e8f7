"""Table columns of namespaces, config maps, secrets, events, leases, resource claims and API services."""

from datetime import datetime

from tapestry.apiserver.printing.table_columns import (
    AGE,
    CREATED,
    NAME,
    ColumnsByResource,
    TableColumn,
    age_since,
    computed_cell,
    count_cell,
    value_cell,
)
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, name_of, value_at


def involved_object(event: Object) -> Object:
    return event.get("involvedObject") or event.get("regarding") or {}


def event_object(event: Object) -> str:
    reference = involved_object(event)
    return "/".join(filter(None, (reference.get("kind", "").lower(), reference.get("name"))))


def event_source(event: Object) -> str:
    source = event.get("source") or event.get("deprecatedSource") or {}
    component = source.get("component") or event.get("reportingComponent") or event.get("reportingController") or ""
    host = source.get("host") or event.get("reportingInstance") or ""
    return f"{component}, {host}" if host else component


def event_first_seen(event: Object, now: datetime) -> str:
    return age_since(
        event.get("firstTimestamp") or event.get("deprecatedFirstTimestamp") or event.get("eventTime"), now
    )


def event_last_seen(event: Object, now: datetime) -> str:
    if (series := event.get("series")) is not None:
        return age_since(series.get("lastObservedTime"), now)
    last = event.get("lastTimestamp") or event.get("deprecatedLastTimestamp")
    return age_since(last, now) if last else event_first_seen(event, now)


def event_count(event: Object) -> int:
    if (series := event.get("series")) is not None:
        return int(series.get("count", 0))
    return event.get("count") or event.get("deprecatedCount") or 1


def resource_claim_state(obj: Object) -> str:
    states = ["deleted"] if "deletionTimestamp" in obj["metadata"] else []
    if value_at(obj, "status", "allocation") is None:
        return "".join(states) or "pending"
    states += ["allocated", "reserved"] if value_at(obj, "status", "reservedFor") else ["allocated"]
    return ",".join(states)


def api_service_backend(obj: Object) -> str:
    service = value_at(obj, "spec", "service")
    return "Local" if service is None else f"{service.get('namespace', '')}/{service.get('name', '')}"


def api_service_availability(obj: Object) -> str:
    condition = find_condition(value_at(obj, "status", "conditions"), "Available") or {}
    status, reason = condition.get("status", "Unknown"), condition.get("reason")
    return f"{status} ({reason})" if reason and status != "True" else str(status)


def component_health_column(field: str) -> TableColumn:
    """Column with a field of a component's Healthy condition; empty without a condition."""
    return TableColumn(
        field.capitalize(),
        computed_cell(lambda obj: (find_condition(obj.get("conditions"), "Healthy") or {}).get(field, "")),
    )


def component_health(obj: Object) -> str:
    condition = find_condition(obj.get("conditions"), "Healthy")
    return "Unknown" if condition is None else "Healthy" if condition.get("status") == "True" else "Unhealthy"


COLUMNS: ColumnsByResource = {
    "namespaces": (NAME, TableColumn("Status", value_cell("status", "phase")), AGE),
    "configmaps": (
        NAME,
        TableColumn("Data", computed_cell(lambda obj: len(obj.get("data") or {}) + len(obj.get("binaryData") or {}))),
        AGE,
    ),
    "secrets": (NAME, TableColumn("Type", value_cell("type")), TableColumn("Data", count_cell("data")), AGE),
    "serviceaccounts": (NAME, TableColumn("Secrets", count_cell("secrets")), AGE),
    "events": (
        TableColumn("Last Seen", event_last_seen),
        TableColumn("Type", value_cell("type")),
        TableColumn("Reason", value_cell("reason")),
        TableColumn("Object", computed_cell(event_object)),
        TableColumn("Subobject", computed_cell(lambda obj: involved_object(obj).get("fieldPath", "")), priority=1),
        TableColumn("Source", computed_cell(event_source), priority=1),
        TableColumn("Message", computed_cell(lambda obj: (obj.get("message") or obj.get("note") or "").strip())),
        TableColumn("First Seen", event_first_seen, priority=1),
        TableColumn("Count", computed_cell(event_count), priority=1),
        TableColumn("Name", computed_cell(name_of), priority=1, format="name"),
    ),
    "leases.coordination.k8s.io": (NAME, TableColumn("Holder", value_cell("spec", "holderIdentity")), AGE),
    "runtimeclasses.node.k8s.io": (NAME, TableColumn("Handler", value_cell("handler")), AGE),
    "resourceclaims.resource.k8s.io": (NAME, TableColumn("State", computed_cell(resource_claim_state)), AGE),
    "resourceslices.resource.k8s.io": (
        NAME,
        TableColumn("Node", value_cell("spec", "nodeName")),
        TableColumn("Driver", value_cell("spec", "driver")),
        TableColumn("Pool", value_cell("spec", "pool", "name")),
        AGE,
    ),
    "customresourcedefinitions.apiextensions.k8s.io": (NAME, CREATED),
    "apiservices.apiregistration.k8s.io": (
        NAME,
        TableColumn("Service", computed_cell(api_service_backend)),
        TableColumn("Available", computed_cell(api_service_availability)),
        AGE,
    ),
    "componentstatuses": (
        NAME,
        TableColumn("Status", computed_cell(component_health)),
        component_health_column("message"),
        component_health_column("error"),
    ),
}
