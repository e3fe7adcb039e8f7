"""Validation of Events of both APIs (v1 and events.k8s.io)."""

from collections.abc import Iterator

from tapestry.apiserver.core import names
from tapestry.apiserver.core.faults import (
    Fault,
    format_validator,
    invalid_value,
    required_value,
    validate_immutable_field,
)
from tapestry.kube.objects import Object

MAX_FIELD_LENGTHS = {"reportingInstance": 128, "action": 128, "reason": 128}
MAX_MESSAGE_LENGTH = 1024
DEPRECATED_FIELDS = {"firstTimestamp": "deprecatedFirstTimestamp", "lastTimestamp": "deprecatedLastTimestamp"}
IMMUTABLE_FIELDS = ("reason", "type", "action", "related", "reportingController", "reportingInstance", "eventTime")


def is_events_v1(obj: Object) -> bool:
    """Return True for an event of events.k8s.io, which has stricter rules."""
    return bool(obj["apiVersion"] != "v1")


def validate_event(obj: Object, _: str = "") -> Iterator[Fault]:
    yield from validate_event_common(obj)
    if is_events_v1(obj):
        yield from validate_events_v1(obj)


def validate_event_common(obj: Object) -> Iterator[Fault]:
    """Validate the rules that both APIs share."""
    namespace = obj["metadata"].get("namespace", "")
    involved = (obj.get("involvedObject") or obj.get("regarding") or {}).get("namespace", "")
    if not obj.get("eventTime"):
        if involved != namespace and (involved or namespace != "default"):
            yield invalid_value("involvedObject.namespace", involved, "does not match event.namespace")
        return
    if not involved and namespace not in ("default", "kube-system"):
        yield invalid_value("involvedObject.namespace", involved, "does not match event.namespace")
    field = "reportingController" if is_events_v1(obj) else "reportingComponent"
    if not obj.get(field):
        yield required_value(field)
    yield from format_validator(names.qualified_name_errors)(obj.get(field, ""), field)
    for name, limit in MAX_FIELD_LENGTHS.items():
        if not obj.get(name):
            yield required_value(name)
        elif len(obj[name]) > limit:
            yield invalid_value(name, "", f"can have at most {limit} characters")
    if len(obj.get("message") or obj.get("note") or "") > MAX_MESSAGE_LENGTH:
        yield invalid_value("message", "", f"can have at most {MAX_MESSAGE_LENGTH} characters")


def validate_events_v1(obj: Object) -> Iterator[Fault]:
    yield from validate_series(obj)
    if not obj.get("eventTime"):
        yield required_value("eventTime")
    if obj.get("type") not in ("Normal", "Warning"):
        yield invalid_value("type", "", f"has invalid value: {obj.get('type', '')}")
    for reported, field in {**DEPRECATED_FIELDS, "count": "deprecatedCount", "source": "deprecatedSource"}.items():
        if obj.get(field):
            yield invalid_value(reported, "", "needs to be unset")


def validate_series(obj: Object) -> Iterator[Fault]:
    if (series := obj.get("series")) is not None:
        if series.get("count", 0) < 2:
            yield invalid_value("series.count", "", "should be at least 2")
        if not series.get("lastObservedTime"):
            yield required_value("series.lastObservedTime")


def validate_event_update(old: Object, new: Object) -> Iterator[Fault]:
    yield from validate_event_common(new)
    if not is_events_v1(new):
        return
    if old.get("series") != new.get("series"):
        yield from validate_series(new)
    yield from validate_immutable_field(old.get("regarding"), new.get("regarding"), "involvedObject")
    yield from validate_immutable_field(old.get("note"), new.get("note"), "message")
    for field in IMMUTABLE_FIELDS:
        yield from validate_immutable_field(old.get(field), new.get(field), field)
