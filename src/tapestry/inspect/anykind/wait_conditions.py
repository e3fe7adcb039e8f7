"""Conditions of `tapestry k wait`: a condition, a value at a path, creation or deletion."""

from collections.abc import Callable
from typing import Any

from tapestry.apiserver.printing import jsonpath
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, uid_of, value_at

WaitCondition = Callable[[Object | None], bool]
CONDITION_FORMS = "condition=TYPE[=STATUS], jsonpath={.PATH}[=VALUE], create or delete"


def parse_wait_condition(text: str, now: Object | None) -> WaitCondition:
    """Return a predicate for `text`; "delete" means deletion of the object `now`."""
    form, _, rest = text.partition("=")
    if form == "delete" and not rest:
        uid = uid_of(now) if now is not None else ""
        return lambda obj: obj is None or uid_of(obj) != uid
    if form == "create" and not rest:
        return lambda obj: obj is not None
    if form == "condition" and rest:
        type, _, status = rest.partition("=")
        return lambda obj: obj is not None and has_condition(obj, type, status or "True")
    if form == "jsonpath" and rest:
        path, value = path_and_value(rest)
        jsonpath.parse_path(path)  # report an invalid path now
        return lambda obj: obj is not None and has_value_at_path(obj, path, value)
    raise ValueError(f"--for {text!r}: not {CONDITION_FORMS}")


def has_condition(obj: Object, type: str, status: str) -> bool:
    """Return whether a condition has that status for the current generation."""
    conditions = value_at(obj, "status", "conditions", default=[])
    named = next((each["type"] for each in conditions if each["type"].lower() == type.lower()), type)
    found = find_condition(conditions, named)
    if found is None or found.get("observedGeneration", 0) < required_generation(obj, found):
        return False
    return str(found.get("status", "")).lower() == status.lower()


def required_generation(obj: Object, condition: Object) -> int:
    """Return the generation that a condition must have observed; 0 if it does not report one."""
    return int(obj["metadata"].get("generation") or 0) if "observedGeneration" in condition else 0


def path_and_value(text: str) -> tuple[str, str | None]:
    """Split `{.status.phase}=Running`, with or without braces; without a value, any value matches."""
    if text.startswith("{"):
        path, brace, rest = text.partition("}")
        if not brace:
            raise ValueError(f"--for jsonpath={text}: missing closing brace")
        return path[1:], rest[1:] if rest.startswith("=") else None
    path, equals, value = text.partition("=")
    return path, value if equals else None


def has_value_at_path(obj: Object, path: str, value: str | None) -> bool:
    found = jsonpath.find_all(obj, path)
    return bool(found) if value is None else any(text_of(each) == value for each in found)


def text_of(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
