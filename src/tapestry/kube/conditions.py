"""Status conditions: create, find and update them.

A condition is a dict in `status.conditions`. Its `lastTransitionTime` is the time of the last status change. A new
reason or message does not change it.
"""

from collections.abc import Iterable
from datetime import datetime

from tapestry.kube.objects import Object, value_at
from tapestry.kube.times import timestamp


def new_condition(
    type: str, status: bool | None, reason: str, message: str = "", *, observed_generation: int | None = None
) -> Object:
    """Return a condition without `lastTransitionTime`, which `with_condition` sets. A status of None means Unknown.

    `observed_generation` is the `metadata.generation` that the condition was observed for.
    """
    condition: Object = {
        "type": type,
        "status": "Unknown" if status is None else str(status),
        "reason": reason,
        "message": message,
    }
    if observed_generation is not None:
        condition["observedGeneration"] = observed_generation
    return condition


def with_condition(conditions: list[Object] | None, new: Object, now: datetime) -> list[Object]:
    """Return `conditions` with `new` in place of the condition of its type, or at the end.

    Return the same list if nothing changes, so that callers can skip the write. If the status changes, the new
    `lastTransitionTime` is that of `new` if it has one, else `now`.
    """
    before = conditions or []
    old = find_condition(before, new["type"])
    source = old if old is not None and old.get("status") == new["status"] else new
    entry = {**new, "lastTransitionTime": source.get("lastTransitionTime") or timestamp(now)}
    if old is None:
        return [*before, entry]
    if entry == old:
        return before
    return [entry if each is old else each for each in before]


def find_condition(conditions: Iterable[Object] | None, type: str) -> Object | None:
    return next((each for each in conditions or () if each.get("type") == type), None)


def is_condition_true(obj: Object, type: str) -> bool:
    """Return True if the condition has the status True. Unknown and missing conditions are not true."""
    condition = find_condition(value_at(obj, "status", "conditions"), type)
    return condition is not None and condition.get("status") == "True"


def is_condition_false(obj: Object, type: str) -> bool:
    """Return True if the condition has the status False. Unknown and missing conditions are not false."""
    condition = find_condition(value_at(obj, "status", "conditions"), type)
    return condition is not None and condition.get("status") == "False"
