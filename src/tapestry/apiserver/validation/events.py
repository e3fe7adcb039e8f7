"""Events, which are about an object of their own namespace, and once written only count on."""

from collections.abc import Iterator

from tapestry.apiserver.customs.structural import Fault
from tapestry.apiserver.validation import names
from tapestry.apiserver.validation.faults import invalid, matching, required, unchanged
from tapestry.kube.objects import Object

LIMITS = {"reportingInstance": 128, "action": 128, "reason": 128}
MESSAGE_LIMIT = 1024
OLD_FIELDS = {"firstTimestamp": "deprecatedFirstTimestamp", "lastTimestamp": "deprecatedLastTimestamp"}
FIXED = ("reason", "type", "action", "related", "reportingController", "reportingInstance", "eventTime")


def is_new(obj: Object) -> bool:
    """Whether an event is written as events.k8s.io has it, whose rules are stricter."""
    return bool(obj["apiVersion"] != "v1")


def event(obj: Object, _: str = "") -> Iterator[Fault]:
    yield from place(obj)
    if is_new(obj):
        yield from modern(obj)


def place(obj: Object) -> Iterator[Fault]:
    """What both forms have in common."""
    namespace = obj["metadata"].get("namespace", "")
    about = (obj.get("involvedObject") or obj.get("regarding") or {}).get("namespace", "")
    if not obj.get("eventTime"):
        if about != namespace and (about or namespace != "default"):
            yield invalid("involvedObject.namespace", about, "does not match event.namespace")
        return
    if not about and namespace not in ("default", "kube-system"):
        yield invalid("involvedObject.namespace", about, "does not match event.namespace")
    field = "reportingController" if is_new(obj) else "reportingComponent"
    if not obj.get(field):
        yield required(field)
    yield from matching(names.qualified)(obj.get(field, ""), field)
    for name, limit in LIMITS.items():
        if not obj.get(name):
            yield required(name)
        elif len(obj[name]) > limit:
            yield invalid(name, "", f"can have at most {limit} characters")
    if len(obj.get("message") or obj.get("note") or "") > MESSAGE_LIMIT:
        yield invalid("message", "", f"can have at most {MESSAGE_LIMIT} characters")


def modern(obj: Object) -> Iterator[Fault]:
    yield from series(obj)
    if not obj.get("eventTime"):
        yield required("eventTime")
    if obj.get("type") not in ("Normal", "Warning"):
        yield invalid("type", "", f"has invalid value: {obj.get('type', '')}")
    for shown, field in {**OLD_FIELDS, "count": "deprecatedCount", "source": "deprecatedSource"}.items():
        if obj.get(field):
            yield invalid(shown, "", "needs to be unset")


def series(obj: Object) -> Iterator[Fault]:
    if (found := obj.get("series")) is not None:
        if found.get("count", 0) < 2:
            yield invalid("series.count", "", "should be at least 2")
        if not found.get("lastObservedTime"):
            yield required("series.lastObservedTime")


def changed_event(old: Object, new: Object) -> Iterator[Fault]:
    yield from place(new)
    if not is_new(new):
        return
    if old.get("series") != new.get("series"):
        yield from series(new)
    yield from unchanged(old.get("regarding"), new.get("regarding"), "involvedObject")
    yield from unchanged(old.get("note"), new.get("note"), "message")
    for field in FIXED:
        yield from unchanged(old.get(field), new.get(field), field)
