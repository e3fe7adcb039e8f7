"""The state machine of virtual clusters: phases, events and the transitions between them.

A phase changes only by an event, and `TRANSITIONS` has all of them. `PUBLISHED` are the edges of the published state
machine; all other edges are additions. The module also has the rules that follow from the table: which verb may start
in which phase, and which verb may wait for another one to end.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum

from tapestry.apis.vclusters import Phase, Verb

P = Phase


class Event(StrEnum):
    """Cause of a transition."""

    CREATE_REQUESTED = "CreateRequested"
    RESOURCES_ALLOCATED = "ResourcesAllocated"
    CONTROL_PLANE_READY = "ControlPlaneReady"
    CREATE_FAILED = "CreateFailed"
    RETRY_REQUESTED = "RetryRequested"
    SCALE_REQUESTED = "ScaleRequested"
    SCALED = "Scaled"
    SCALE_FAILED = "ScaleFailed"
    UPDATE_REQUESTED = "UpdateRequested"
    UPDATED = "Updated"
    UPDATE_FAILED = "UpdateFailed"
    SUSPEND_REQUESTED = "SuspendRequested"
    """Suspend without drain and snapshot, which takes one step."""
    SUSPEND_WITH_STEPS_REQUESTED = "SuspendWithStepsRequested"
    SUSPENDED = "Suspended"
    SUSPEND_CANCELLED = "SuspendCancelled"
    """The drain has exceeded its time, or the user has cancelled the operation."""
    SUSPEND_FAILED = "SuspendFailed"
    RESUME_REQUESTED = "ResumeRequested"
    RESUMED = "Resumed"
    RESUME_FAILED = "ResumeFailed"
    SNAPSHOT_REQUESTED = "SnapshotRequested"
    SNAPSHOT_ENDED = "SnapshotEnded"
    """The snapshot of a running cluster is ready, or has failed while its control plane is healthy."""
    SNAPSHOT_OF_SUSPENDED_ENDED = "SnapshotOfSuspendedEnded"
    SNAPSHOT_FAILED = "SnapshotFailed"
    RESTORE_REQUESTED = "RestoreRequested"
    RESTORED = "Restored"
    RESTORED_SUSPENDED = "RestoredSuspended"
    RESTORE_FAILED = "RestoreFailed"
    CONTROL_PLANE_LOST = "ControlPlaneLost"
    RECOVERED = "Recovered"
    DELETE_REQUESTED = "DeleteRequested"
    FORCED_DELETE_REQUESTED = "ForcedDeleteRequested"
    DELETE_FAILED = "DeleteFailed"
    DELETED = "Deleted"


E = Event
Edge = tuple[Phase | None, Phase | None]
"""From and to. None is the state before the first phase, and after the last one."""

TRANSITIONS: Mapping[Phase | None, Mapping[Event, Phase | None]] = {
    None: {E.CREATE_REQUESTED: P.PENDING},
    P.PENDING: {
        E.RESOURCES_ALLOCATED: P.CREATING,
        E.CREATE_FAILED: P.ERROR,
        E.RESTORE_REQUESTED: P.RESTORING,
        E.DELETE_REQUESTED: P.DELETING,
    },
    P.CREATING: {
        E.CONTROL_PLANE_READY: P.RUNNING,
        E.CREATE_FAILED: P.ERROR,
        E.DELETE_REQUESTED: P.DELETING,
    },
    P.RUNNING: {
        E.SCALE_REQUESTED: P.SCALING,
        E.UPDATE_REQUESTED: P.UPDATING,
        E.SUSPEND_REQUESTED: P.SUSPENDED,
        E.SUSPEND_WITH_STEPS_REQUESTED: P.SUSPENDING,
        E.SNAPSHOT_REQUESTED: P.SNAPSHOTTING,
        E.RESTORE_REQUESTED: P.RESTORING,
        E.CONTROL_PLANE_LOST: P.ERROR,
        E.DELETE_REQUESTED: P.DELETING,
    },
    P.SCALING: {E.SCALED: P.RUNNING, E.SCALE_FAILED: P.ERROR, E.DELETE_REQUESTED: P.DELETING},
    P.UPDATING: {E.UPDATED: P.RUNNING, E.UPDATE_FAILED: P.ERROR, E.DELETE_REQUESTED: P.DELETING},
    P.SUSPENDING: {
        E.SUSPENDED: P.SUSPENDED,
        E.SUSPEND_CANCELLED: P.RUNNING,
        E.SUSPEND_FAILED: P.ERROR,
        E.DELETE_REQUESTED: P.DELETING,
    },
    P.SUSPENDED: {
        E.RESUME_REQUESTED: P.RESUMING,
        E.SNAPSHOT_REQUESTED: P.SNAPSHOTTING,
        E.RESTORE_REQUESTED: P.RESTORING,
        E.DELETE_REQUESTED: P.DELETING,
    },
    P.RESUMING: {E.RESUMED: P.RUNNING, E.RESUME_FAILED: P.ERROR, E.DELETE_REQUESTED: P.DELETING},
    P.SNAPSHOTTING: {
        E.SNAPSHOT_ENDED: P.RUNNING,
        E.SNAPSHOT_OF_SUSPENDED_ENDED: P.SUSPENDED,
        E.SNAPSHOT_FAILED: P.ERROR,
        E.DELETE_REQUESTED: P.DELETING,
    },
    P.RESTORING: {
        E.RESTORED: P.RUNNING,
        E.RESTORED_SUSPENDED: P.SUSPENDED,
        E.RESTORE_FAILED: P.ERROR,
        E.DELETE_REQUESTED: P.DELETING,
    },
    P.ERROR: {
        E.RECOVERED: P.RUNNING,
        E.RETRY_REQUESTED: P.CREATING,
        E.UPDATE_REQUESTED: P.UPDATING,
        E.RESUME_REQUESTED: P.RESUMING,
        E.RESTORE_REQUESTED: P.RESTORING,
        E.FORCED_DELETE_REQUESTED: P.DELETING,
    },
    P.DELETING: {E.DELETED: None, E.DELETE_FAILED: P.ERROR},
}

PUBLISHED: frozenset[Edge] = frozenset(
    {
        (None, P.PENDING),
        (P.PENDING, P.CREATING),
        *((P.CREATING, to) for to in (P.RUNNING, P.ERROR)),
        *((P.RUNNING, to) for to in (P.SCALING, P.UPDATING, P.SUSPENDED, P.SNAPSHOTTING, P.RESTORING, P.DELETING)),
        *((busy, P.RUNNING) for busy in (P.SCALING, P.UPDATING, P.RESUMING, P.SNAPSHOTTING, P.RESTORING)),
        *((busy, P.ERROR) for busy in (P.SCALING, P.UPDATING, P.RESUMING, P.SNAPSHOTTING, P.RESTORING)),
        *((P.SUSPENDED, to) for to in (P.RESUMING, P.DELETING)),
        *((P.ERROR, to) for to in (P.DELETING, P.RUNNING)),
        (P.DELETING, None),
    }
)
"""Edges of the published state machine: 23 between phases, the first one and the last one."""

STARTS: Mapping[Verb, tuple[Event, ...]] = {
    Verb.CREATE: (E.RESOURCES_ALLOCATED, E.RETRY_REQUESTED),
    Verb.UPDATE: (E.UPDATE_REQUESTED,),
    Verb.SCALE: (E.SCALE_REQUESTED,),
    Verb.SUSPEND: (E.SUSPEND_REQUESTED,),
    Verb.RESUME: (E.RESUME_REQUESTED,),
    Verb.SNAPSHOT: (E.SNAPSHOT_REQUESTED,),
    Verb.RESTORE: (E.RESTORE_REQUESTED,),
    Verb.DELETE: (E.DELETE_REQUESTED, E.FORCED_DELETE_REQUESTED),
}
"""Events by which an operation starts. A suspend with steps starts where one without steps does."""

WAITS_FOR: Mapping[Verb, frozenset[Verb]] = {
    Verb.UPDATE: frozenset({Verb.UPDATE, Verb.SCALE, Verb.RESUME}),
    Verb.SCALE: frozenset({Verb.UPDATE, Verb.SCALE, Verb.RESUME}),
    Verb.SUSPEND: frozenset({Verb.UPDATE, Verb.SCALE, Verb.RESUME, Verb.SNAPSHOT}),
    Verb.RESUME: frozenset({Verb.SUSPEND}),
    Verb.SNAPSHOT: frozenset({Verb.UPDATE, Verb.SCALE, Verb.RESUME, Verb.SNAPSHOT}),
}
"""Running verbs that a verb waits for. A delete waits for none: it ends the running operation."""


class IllegalTransition(ValueError):
    """Error if an event does not occur in a phase."""

    def __init__(self, phase: Phase | None, event: Event) -> None:
        super().__init__(f"{event} does not occur in the phase {phase}")


def transition(phase: Phase | None, event: Event) -> Phase | None:
    """Return the phase after an event. Raises IllegalTransition."""
    try:
        return TRANSITIONS[phase][event]
    except KeyError:
        raise IllegalTransition(phase, event) from None


def is_legal(before: Phase | None, after: Phase | None) -> bool:
    """Return whether one event leads from a phase to another."""
    return after in TRANSITIONS.get(before, {}).values()


def edges() -> Iterator[Edge]:
    for before, events in TRANSITIONS.items():
        for after in events.values():
            yield before, after


def start_event(verb: Verb, phase: Phase) -> Event | None:
    """Return the event by which an operation starts in a phase; None if it may not start there."""
    return next((event for event in STARTS[verb] if event in TRANSITIONS[phase]), None)


def allowed_phases(verb: Verb) -> list[Phase]:
    """Return the phases in which an operation may start."""
    return [phase for phase in Phase if start_event(verb, phase) is not None]


def may_wait(verb: Verb, running: Verb) -> bool:
    """Return whether an operation waits until a running one has ended; otherwise it is rejected."""
    return running in WAITS_FOR.get(verb, ())


def reported_phase(phase: Phase, *, is_compatible: bool) -> Phase:
    """Return the phase that a client sees. A client of the published contract does not know SUSPENDING."""
    return P.RUNNING if is_compatible and phase is P.SUSPENDING else phase


def mermaid() -> str:
    """Return a drawing of the state machine."""
    lines = ["stateDiagram-v2"]
    for before, events in TRANSITIONS.items():
        for event, after in events.items():
            lines.append(f"    {node(before)} --> {node(after)} : {event}")
    return "\n".join(lines)


def node(phase: Phase | None) -> str:
    return phase.name if phase is not None else "[*]"
