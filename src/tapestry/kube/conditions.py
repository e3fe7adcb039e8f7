"""Conditions: what is true of an object now, since when, and why.

A condition is a dict in `status.conditions`.  Its `lastTransitionTime` is the moment its status last changed, so a new
reason or message leaves it alone.
"""

from collections.abc import Iterable
from datetime import datetime

from tapestry.kube.objects import Object, value_at
from tapestry.kube.times import timestamp


def new_condition(
    type: str, status: bool | None, reason: str, message: str = "", *, observed_generation: int | None = None
) -> Object:
    """A condition without its time, which `with_condition` knows; a status of None is Unknown.

    `observed_generation` is the `metadata.generation` that the claim is about.
    """
    found: Object = {
        "type": type,
        "status": "Unknown" if status is None else str(status),
        "reason": reason,
        "message": message,
    }
    if observed_generation is not None:
        found["observedGeneration"] = observed_generation
    return found


def with_condition(conditions: list[Object] | None, new: Object, now: datetime) -> list[Object]:
    """`conditions` with `new` in the place of the one of its type, or at the end.

    The same list comes back when that changes nothing: there is nothing to write then.  Where the status changes, it
    does so at the `lastTransitionTime` of `new`, if it has one, or now.
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
    """The condition of that type; None where nobody has set it yet."""
    return next((each for each in conditions or () if each.get("type") == type), None)


def is_condition_true(obj: Object, type: str) -> bool:
    """Whether the object has the condition with status True; Unknown and missing are not true."""
    found = find_condition(value_at(obj, "status", "conditions"), type)
    return found is not None and found.get("status") == "True"
