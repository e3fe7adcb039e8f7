"""Plans of operations: their steps, the limits of each step, and the events by which the phase changes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any

from tapestry.apis.vclusters import Journal, Phase, Verb
from tapestry.vclusters.lifecycle import Event, start_event

E = Event
DEFAULT_DRAIN_SECONDS = 60
MAX_DRAIN_SECONDS = 24 * 3600


class Step(StrEnum):
    """One step of an operation. An engine may run it again after it was interrupted anywhere."""

    PLACE = "Place"
    """Choose the host cluster, and reserve nothing."""
    INSTALL = "Install"
    APPLY = "Apply"
    """Bring what exists to the desired state: limits, process, sync, ingress."""
    WAIT_READY = "WaitReady"
    SNAPSHOT = "Snapshot"
    DRAIN = "Drain"
    STOP = "Stop"
    START = "Start"
    RESUME_WORKLOADS = "ResumeWorkloads"
    PREFLIGHT = "Preflight"
    """Check that the snapshot is complete and fits, before anything is touched."""
    SAFETY_COPY = "SafetyCopy"
    RESTORE = "Restore"
    UNINSTALL = "Uninstall"
    VERIFY_REMOVED = "VerifyRemoved"
    DELETE_SNAPSHOTS = "DeleteSnapshots"


S = Step
TIMEOUTS: Mapping[Step, timedelta] = {
    S.PLACE: timedelta(minutes=1),
    S.INSTALL: timedelta(minutes=5),
    S.APPLY: timedelta(minutes=5),
    S.WAIT_READY: timedelta(minutes=5),
    S.SNAPSHOT: timedelta(minutes=10),
    S.STOP: timedelta(minutes=3),
    S.START: timedelta(minutes=5),
    S.RESUME_WORKLOADS: timedelta(minutes=5),
    S.PREFLIGHT: timedelta(minutes=1),
    S.SAFETY_COPY: timedelta(minutes=10),
    S.RESTORE: timedelta(minutes=10),
    S.UNINSTALL: timedelta(minutes=10),
    S.VERIFY_REMOVED: timedelta(minutes=10),
    S.DELETE_SNAPSHOTS: timedelta(minutes=10),
}
"""Time for each step, with all its attempts. That of a drain is an argument of the operation."""

COMPENSATED = frozenset({S.PLACE, S.INSTALL, S.SNAPSHOT, S.DRAIN, S.STOP, S.SAFETY_COPY, S.RESTORE})
"""Steps that the engine undoes if the operation fails later. The others leave nothing that a later operation minds."""


@dataclass(frozen=True)
class Plan:
    """Course of one operation. None instead of an event: the phase does not change then."""

    steps: tuple[Step, ...]
    start: Event | None
    success: Event
    failure: Event | None
    """The operation has failed, and not everything could be undone."""
    undone: Event | None
    """The operation has failed or was cancelled, and is undone."""
    after: Mapping[Step, Event] = field(default_factory=dict)
    """Events when a step is done, before the next one."""


def plan(verb: Verb, phase: Phase, arguments: Mapping[str, Any]) -> Plan | None:
    """Return the plan of an operation that starts in a phase; None if it may not start there."""
    start = start_event(verb, phase)
    if start is None:
        return None
    match verb:
        case Verb.CREATE:
            return creation(phase)
        case Verb.UPDATE:
            return Plan((S.APPLY, S.WAIT_READY), start, E.UPDATED, E.UPDATE_FAILED, E.UPDATE_FAILED)
        case Verb.SCALE:
            return Plan((S.APPLY, S.WAIT_READY), start, E.SCALED, E.SCALE_FAILED, E.SCALE_FAILED)
        case Verb.SUSPEND:
            return suspension(arguments)
        case Verb.RESUME:
            workloads = (S.RESUME_WORKLOADS,) if arguments.get("reconcileWorkloads", True) else ()
            return Plan((S.START, S.WAIT_READY, *workloads), start, E.RESUMED, E.RESUME_FAILED, E.RESUME_FAILED)
        case Verb.SNAPSHOT:
            ended = E.SNAPSHOT_OF_SUSPENDED_ENDED if phase is Phase.SUSPENDED else E.SNAPSHOT_ENDED
            return Plan((S.SNAPSHOT,), start, ended, E.SNAPSHOT_FAILED, ended)
        case Verb.RESTORE:
            return restoration(phase)
        case Verb.DELETE:
            snapshots = (S.DELETE_SNAPSHOTS,) if arguments.get("deleteSnapshots") else ()
            return Plan((S.UNINSTALL, S.VERIFY_REMOVED, *snapshots), start, E.DELETED, E.DELETE_FAILED, E.DELETE_FAILED)


def creation(phase: Phase) -> Plan:
    steps = (S.PLACE, S.INSTALL, S.WAIT_READY)
    if phase is Phase.ERROR:
        return Plan(steps, E.RETRY_REQUESTED, E.CONTROL_PLANE_READY, E.CREATE_FAILED, E.CREATE_FAILED)
    after = {S.PLACE: E.RESOURCES_ALLOCATED}
    return Plan(steps, None, E.CONTROL_PLANE_READY, E.CREATE_FAILED, E.CREATE_FAILED, after)


def suspension(arguments: Mapping[str, Any]) -> Plan:
    """Return the plan of a suspend. Without drain and snapshot, the phase changes once, when it is done."""
    snapshot = (S.SNAPSHOT,) if makes_snapshot(Verb.SUSPEND, arguments) else ()
    drain = (S.DRAIN,) if arguments.get("drainWorkloads") else ()
    steps = (*snapshot, *drain, S.STOP)
    if len(steps) == 1:
        return Plan(steps, None, E.SUSPEND_REQUESTED, E.CONTROL_PLANE_LOST, None)
    return Plan(steps, E.SUSPEND_WITH_STEPS_REQUESTED, E.SUSPENDED, E.SUSPEND_FAILED, E.SUSPEND_CANCELLED)


def makes_snapshot(verb: Verb, arguments: Mapping[str, Any]) -> bool:
    """Return whether an operation makes a snapshot."""
    return verb is Verb.SNAPSHOT or (verb is Verb.SUSPEND and bool(arguments.get("createSnapshot")))


def restoration(phase: Phase) -> Plan:
    """Return the plan of a restore: into a new cluster, a suspended one, or one that runs or has failed."""
    if phase is Phase.PENDING:
        new = (S.PLACE, S.PREFLIGHT, S.INSTALL, S.RESTORE, S.START, S.WAIT_READY)
        return Plan(new, E.RESTORE_REQUESTED, E.RESTORED, E.RESTORE_FAILED, E.RESTORE_FAILED)
    if phase is Phase.SUSPENDED:
        ended = E.RESTORED_SUSPENDED
        return Plan((S.PREFLIGHT, S.SAFETY_COPY, S.RESTORE), E.RESTORE_REQUESTED, ended, E.RESTORE_FAILED, ended)
    steps = (S.PREFLIGHT, S.SAFETY_COPY, S.STOP, S.RESTORE, S.START, S.WAIT_READY)
    undone = E.RESTORED if phase is Phase.RUNNING else E.RESTORE_FAILED
    return Plan(steps, E.RESTORE_REQUESTED, E.RESTORED, E.RESTORE_FAILED, undone)


def plan_of(journal: Journal) -> Plan:
    """Return the plan of a running operation."""
    found = plan(journal.verb, journal.phase_from, journal.arguments)
    assert found is not None  # it has started
    return found


def timeout(step: Step, arguments: Mapping[str, Any]) -> timedelta:
    if step is S.DRAIN:
        seconds = arguments.get("drainTimeoutSeconds") or DEFAULT_DRAIN_SECONDS
        return timedelta(seconds=min(seconds, MAX_DRAIN_SECONDS))
    return TIMEOUTS[step]
