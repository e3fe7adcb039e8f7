"""What others write down here, in a table: namespaces, settings, events, leases, claims of devices, served groups."""

from datetime import datetime

from tapestry.apiserver.printing.prints import AGE, CREATED, NAME, Columns, Print, age, count, of, path
from tapestry.kube.conditions import find
from tapestry.kube.objects import Object, name_of, value_at


def event_about(event: Object) -> Object:
    return event.get("involvedObject") or event.get("regarding") or {}


def event_object(event: Object) -> str:
    about = event_about(event)
    return "/".join(filter(None, (about.get("kind", "").lower(), about.get("name"))))


def event_source(event: Object) -> str:
    """Who reported it, and where from."""
    source = event.get("source") or event.get("deprecatedSource") or {}
    who = source.get("component") or event.get("reportingComponent") or event.get("reportingController") or ""
    where = source.get("host") or event.get("reportingInstance") or ""
    return f"{who}, {where}" if where else who


def event_begin(event: Object, now: datetime) -> str:
    return age(event.get("firstTimestamp") or event.get("deprecatedFirstTimestamp") or event.get("eventTime"), now)


def event_end(event: Object, now: datetime) -> str:
    if (series := event.get("series")) is not None:
        return age(series.get("lastObservedTime"), now)
    last = event.get("lastTimestamp") or event.get("deprecatedLastTimestamp")
    return age(last, now) if last else event_begin(event, now)


def event_count(event: Object) -> int:
    if (series := event.get("series")) is not None:
        return int(series.get("count", 0))
    return event.get("count") or event.get("deprecatedCount") or 1


def claim_state(obj: Object) -> str:
    """What has become of a claim of devices."""
    states = ["deleted"] if "deletionTimestamp" in obj["metadata"] else []
    if value_at(obj, "status", "allocation") is None:
        return "".join(states) or "pending"
    states += ["allocated", "reserved"] if value_at(obj, "status", "reservedFor") else ["allocated"]
    return ",".join(states)


def service_of(obj: Object) -> str:
    about = value_at(obj, "spec", "service")
    return "Local" if about is None else f"{about.get('namespace', '')}/{about.get('name', '')}"


def available(obj: Object) -> str:
    found = find(value_at(obj, "status", "conditions"), "Available") or {}
    status, reason = found.get("status", "Unknown"), found.get("reason")
    return f"{status} ({reason})" if reason and status != "True" else str(status)


def healthy(field: str) -> Print:
    """What is known of a component, if anything is."""
    return Print(field.capitalize(), of(lambda obj: (find(obj.get("conditions"), "Healthy") or {}).get(field, "")))


def health(obj: Object) -> str:
    found = find(obj.get("conditions"), "Healthy")
    return "Unknown" if found is None else "Healthy" if found.get("status") == "True" else "Unhealthy"


COLUMNS: Columns = {
    "namespaces": (NAME, Print("Status", path("status", "phase")), AGE),
    "configmaps": (
        NAME,
        Print("Data", of(lambda obj: len(obj.get("data") or {}) + len(obj.get("binaryData") or {}))),
        AGE,
    ),
    "secrets": (NAME, Print("Type", path("type")), Print("Data", count("data")), AGE),
    "serviceaccounts": (NAME, Print("Secrets", count("secrets")), AGE),
    "events": (
        Print("Last Seen", event_end),
        Print("Type", path("type")),
        Print("Reason", path("reason")),
        Print("Object", of(event_object)),
        Print("Subobject", of(lambda obj: event_about(obj).get("fieldPath", "")), priority=1),
        Print("Source", of(event_source), priority=1),
        Print("Message", of(lambda obj: (obj.get("message") or obj.get("note") or "").strip())),
        Print("First Seen", event_begin, priority=1),
        Print("Count", of(event_count), priority=1),
        Print("Name", of(name_of), priority=1, format="name"),
    ),
    "leases.coordination.k8s.io": (NAME, Print("Holder", path("spec", "holderIdentity")), AGE),
    "runtimeclasses.node.k8s.io": (NAME, Print("Handler", path("handler")), AGE),
    "resourceclaims.resource.k8s.io": (NAME, Print("State", of(claim_state)), AGE),
    "resourceslices.resource.k8s.io": (
        NAME,
        Print("Node", path("spec", "nodeName")),
        Print("Driver", path("spec", "driver")),
        Print("Pool", path("spec", "pool", "name")),
        AGE,
    ),
    "customresourcedefinitions.apiextensions.k8s.io": (NAME, CREATED),
    "apiservices.apiregistration.k8s.io": (
        NAME,
        Print("Service", of(service_of)),
        Print("Available", of(available)),
        AGE,
    ),
    "componentstatuses": (NAME, Print("Status", of(health)), healthy("message"), healthy("error")),
}
