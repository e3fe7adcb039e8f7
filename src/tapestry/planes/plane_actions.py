"""Decisions about a plane, from its record and its state in this process."""

from enum import Enum, StrEnum, auto

from tapestry.apis.planes import PlaneSpec
from tapestry.kube.objects import Object, is_deleting, value_at
from tapestry.planes.plane_set import PlaneState


class Ownership(Enum):
    """Relation of a process to a plane."""

    HELD = auto()
    CLAIMABLE = auto()
    """No process holds it, and this one is to take it."""
    TO_RELEASE = auto()
    """This process holds it, and another one is to take it."""
    OTHER = auto()
    """Another process holds it, or is to take it."""


def ownership(
    plane: Object, wanted: str, process: str, *, is_candidate: bool, is_named_only: bool = False
) -> Ownership:
    """Return the relation of `process` to a plane, which the process `wanted` is to hold, or any if that is empty.

    `is_candidate` is true for the process that takes the plane if no process holds it and its record names none.
    """
    holder = value_at(plane, "status", "holder", default="")
    if holder == process:
        is_wanted = wanted == process or (not wanted and not is_named_only)
        return Ownership.HELD if is_wanted or is_deleting(plane) else Ownership.TO_RELEASE
    is_named = wanted == process or (is_candidate and (not wanted or is_deleting(plane)))
    return Ownership.CLAIMABLE if not holder and is_named else Ownership.OTHER


class PlaneAction(StrEnum):
    NOTHING = "nothing"
    ADD = "add without opening"
    OPEN = "open"
    REOPEN = "close and open with another configuration"
    SUSPEND = "suspend"


RUNNING_STATES = frozenset({PlaneState.OPENING, PlaneState.OPEN})


def next_action(
    plane: Object, spec: PlaneSpec, state: PlaneState | None, *, is_config_changed: bool = False
) -> PlaneAction:
    """Return the next action for a plane that this process holds. `state` is None if it is not in its PlaneSet yet."""
    if spec.state == "Suspended":
        return PlaneAction.NOTHING if state is PlaneState.SUSPENDED else PlaneAction.SUSPEND
    if is_config_changed and state in RUNNING_STATES:
        return PlaneAction.REOPEN
    if state in RUNNING_STATES or state is PlaneState.ASLEEP:
        return PlaneAction.NOTHING
    if state is None and spec.idle_seconds and value_at(plane, "status", "phase") == PlaneState.ASLEEP:
        return PlaneAction.ADD  # it slept before the process restarted
    return PlaneAction.OPEN
