"""PhaseMachine: a reconciler for objects that pass through phases.

A machine is a table.  Each phase has a handler, the phases that may follow, a timeout and a number of retries.  A phase
without a handler is terminal: an object in it is not reconciled again.

    machine = PhaseMachine(REDIS_MIGRATIONS, "Pending", {
        "Pending":   Phase(pending, to=("Precheck",)),
        "Precheck":  Phase(precheck, to=("Migrate", "PreFailed"), retries=3, on_failure="PreFailed"),
        ...
        "Succeeded": Phase(),
    })

A handler is `async (obj) -> Next | Result | None`: the next phase, or stay and perhaps requeue.  The phase is in the
object's status and changes by one conditional patch, so after a crash the object resumes in the phase last written.  A
handler may run again and must be idempotent.  `status.conditions` keeps the history, with one condition per phase: True
while the object is in it, False with the time it left.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, NamedTuple

from msgspec import Meta

from tapestry.controller.controller import Controller, Result
from tapestry.controller.errors import NotLeading, Terminal
from tapestry.controller.manager import Manager
from tapestry.controller.store import Store
from tapestry.kube.api_types import ApiStruct, Conditions
from tapestry.kube.conditions import find_condition, new_condition, with_condition
from tapestry.kube.crds import InvalidSpec
from tapestry.kube.errors import Conflict, TransportError
from tapestry.kube.objects import Object, is_deleting, value_at, without_field
from tapestry.kube.resources import Resource
from tapestry.kube.times import parse_time


class Next(NamedTuple):
    """A transition to another phase.  The message explains it to readers of the status."""

    phase: str
    message: str = ""


Handler = Callable[[Object], Awaitable[Next | Result | None]]


@dataclass(frozen=True, slots=True)
class Phase:
    """One row of a machine's table.  Without a handler the phase is terminal."""

    handler: Handler | None = None
    to: tuple[str, ...] = ()
    timeout: float | None = None
    """Seconds in the phase, after which the object moves to `on_failure`."""
    retries: int | None = None
    """Failed attempts after which the object moves to `on_failure`.  None means unlimited."""
    on_failure: str = ""


class PhaseStatus(ApiStruct):
    """Status fields that a machine maintains.  Subclass it to add fields."""

    phase: Annotated[str, Meta(description="Current phase.")] = ""
    attempts: Annotated[int, Meta(description="Failed attempts in this phase.")] = 0
    observed_generation: Annotated[int, Meta(description="Generation last reconciled.")] = 0
    conditions: Conditions = ()


class PhaseMachine:
    """Moves the objects of one resource through the phases of a table."""

    def __init__(self, resource: Resource, initial: str, phases: Mapping[str, Phase]) -> None:
        self.resource = resource
        self.initial = initial
        self.phases = dict(phases)
        if errors := self._table_errors():
            raise ValueError(f"the phases of {resource.kind}: " + "; ".join(errors))

    def controller(self, manager: Manager, name: str) -> Controller:
        """Add a controller that runs this machine.  The caller adds watches of other objects that handlers wait for."""
        objects = manager.informer(self.resource)
        run = PhaseReconciler(
            self, manager, objects.store, lambda key, seconds: controller.queue.add_after(key, seconds)
        )
        controller = manager.controller(name, run.reconcile)
        controller.watch(objects, when=has_relevant_change)
        return controller

    def _table_errors(self) -> list[str]:
        errors = []
        if self.initial not in self.phases:
            errors.append(f"the initial phase {self.initial!r} is not in the table")
        for name, phase in self.phases.items():
            if (phase.handler is None) != (not phase.to):
                errors.append(f"{name}: needs both a handler and next phases, or neither")
            errors += [
                f"{name}: next phase {target!r} is not in the table" for target in phase.to if target not in self.phases
            ]
            if phase.on_failure and phase.on_failure not in phase.to:
                errors.append(f"{name}: on_failure {phase.on_failure!r} is not one of its next phases")
            if not phase.on_failure and (phase.timeout is not None or phase.retries is not None):
                errors.append(f"{name}: timeout and retries need on_failure")
        reachable = self._reachable()
        errors += [f"{name}: cannot be reached from {self.initial!r}" for name in self.phases if name not in reachable]
        return errors

    def _reachable(self) -> set[str]:
        reached, pending = set(), [self.initial]
        while pending:
            name = pending.pop()
            if name not in reached and name in self.phases:
                reached.add(name)
                pending.extend(self.phases[name].to)
        return reached


@dataclass(frozen=True, slots=True)
class PhaseReconciler:
    """Reconciles the objects of one machine in a manager."""

    machine: PhaseMachine
    manager: Manager
    objects: Store
    requeue_after: Callable[[str, float], None]
    """Called with a key and seconds, whatever the reconcile returns: a failed attempt must not delay a timeout."""

    async def reconcile(self, key: str) -> Result | None:
        obj = self.objects.get(key)
        if obj is None or is_deleting(obj):
            return None
        name = value_at(obj, "status", "phase") or self.machine.initial
        phase = self.machine.phases.get(name)
        if phase is None:
            raise Terminal("UnknownPhase", f"{key}: status.phase is {name!r}, which is not a phase of the machine")
        if phase.handler is None:
            return None
        remaining = None
        if phase.timeout is not None:
            remaining = phase.timeout - (self.manager.now() - entered_at(obj, name)).total_seconds()
            if remaining > 0:
                self.requeue_after(key, remaining)
        outcome = await self._outcome(phase, obj, remaining)
        if isinstance(outcome, Next):
            await self._transition(obj, name, outcome)
            return None
        return outcome

    async def _outcome(self, phase: Phase, obj: Object, remaining: float | None) -> Next | Result | None:
        """Return the handler's result within `remaining` seconds, or the transition after a timeout or failure."""
        assert phase.handler is not None
        if remaining is not None and remaining <= 0:
            return Next(phase.on_failure, f"not done within {phase.timeout:g} s")
        try:
            async with asyncio.timeout(remaining) as deadline:
                return await phase.handler(obj)
        except (Conflict, TransportError, NotLeading):
            raise  # not a failure of the phase
        except Exception as error:
            if deadline.expired():
                return Next(phase.on_failure, f"not done within {phase.timeout:g} s")
            if isinstance(error, Terminal | InvalidSpec) and phase.on_failure:
                return Next(phase.on_failure, error.message if isinstance(error, Terminal) else str(error))
            if phase.retries is None:
                raise
            return await self._count_failure(phase, obj, error)

    async def _count_failure(self, phase: Phase, obj: Object, error: Exception) -> Next:
        """Count a failed attempt.  Raise the error again unless it was the last attempt."""
        attempts = value_at(obj, "status", "attempts", default=0) + 1
        assert phase.retries is not None
        if attempts > phase.retries:
            return Next(phase.on_failure, f"failed {attempts} times, the last error: {error}")
        await self._write(obj, {"attempts": attempts})
        raise error

    async def _transition(self, obj: Object, name: str, step: Next) -> None:
        if step.phase not in self.machine.phases[name].to:
            allowed = ", ".join(self.machine.phases[name].to)
            message = f"from {name} to {step.phase}; the machine allows {allowed}"
            self.manager.events.warning(obj, "IllegalTransition", message)
            raise Terminal("IllegalTransition", message)
        now = self.manager.now()
        conditions = value_at(obj, "status", "conditions", default=[])
        exited = new_condition(name, False, f"To{step.phase}", step.message)
        entered = new_condition(step.phase, True, "Entered", step.message)
        for condition in (exited, entered):
            conditions = with_condition(conditions, condition, now)
        await self._write(obj, {"phase": step.phase, "attempts": 0, "conditions": conditions})
        message = f"{name} -> {step.phase}" + (f": {step.message}" if step.message else "")
        self.manager.events.normal(obj, f"Phase{step.phase}", message)

    async def _write(self, obj: Object, status: Object) -> None:
        status["observedGeneration"] = obj["metadata"].get("generation", 0)
        await self.manager.client.patch(self.machine.resource, obj, {"status": status}, subresource="status")


def entered_at(obj: Object, phase: str) -> datetime:
    """Return the time at which the object entered the phase.  The initial phase starts at creation."""
    condition = find_condition(value_at(obj, "status", "conditions", default=[]), phase)
    return parse_time(condition["lastTransitionTime"] if condition else obj["metadata"]["creationTimestamp"])


def has_relevant_change(old: Object | None, new: Object | None) -> bool:
    """Return whether more changed than our own count of failed attempts, which must not end the backoff."""
    return old is None or new is None or without_counters(old) != without_counters(new)


def without_counters(obj: Object) -> Object:
    for path in (("metadata", "resourceVersion"), ("status", "attempts"), ("status", "observedGeneration")):
        obj = without_field(obj, *path)
    return obj
