"""PhaseMachine: a reconciler for objects that pass through phases.

A machine is a table.  Each phase has a handler, the phases that may follow, a timeout and a number of retries.  A phase
without a handler is terminal: an object in it is not reconciled again.

    machine = PhaseMachine(REDIS_MIGRATIONS, "Pending", {
        "Pending":   Phase(pending, to=("Precheck",)),
        "Precheck":  Phase(precheck, to=("Migrate", "PreFailed"), retries=3, on_failure="PreFailed"),
        ...
        "Succeeded": Phase(),
        "Deleting":  Phase(clean_up, to=("Deleted",)),
        "Deleted":   Phase(),
    })

A handler is `async (obj) -> Next | Result | None`: the next phase, or stay and perhaps requeue.  The phase is in the
object's status and changes by one conditional patch, so after a crash the object resumes in the phase last written.  A
handler may run again and must be idempotent.  `status.conditions` keeps the history, with one condition per phase: True
while the object is in it, False with the time it left.

With a phase `Deleting`, every object gets a finalizer before any handler runs.  When the object is deleted, it enters
`Deleting` from any phase.  A terminal phase after that removes the finalizer, and the object disappears.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from msgspec import Meta

from tapestry.controller.controller import Controller, Result
from tapestry.controller.errors import NotLeading, Terminal
from tapestry.controller.manager import Manager
from tapestry.controller.phase_table import DELETING, Next, Phase, PhaseTable
from tapestry.controller.store import Store
from tapestry.kube.api_types import ApiStruct, Conditions
from tapestry.kube.conditions import find_condition, new_condition, with_condition
from tapestry.kube.crds import InvalidSpec
from tapestry.kube.errors import Conflict, KubeError, TransportError
from tapestry.kube.objects import Object, is_deleting, value_at, without_field
from tapestry.kube.resources import Resource
from tapestry.kube.times import MICROSECOND, SECOND, parse_time, timestamp

MAX_ERROR_LENGTH = 1024
"""Characters of an error that the status shows."""


class PhaseStatus(ApiStruct):
    """Status fields that a machine maintains.  Subclass it to add fields."""

    phase: Annotated[str, Meta(description="Current phase.")] = ""
    deadline: Annotated[datetime, Meta(description="Time at which the phase fails.")] | None = None
    attempts: Annotated[int, Meta(description="Failed attempts in this phase, if retries are limited.")] = 0
    retries: Annotated[int, Meta(description="Failed attempts that are retried.")] | None = None
    last_error: Annotated[str, Meta(description="Error of the last attempt in this phase.")] | None = None
    observed_generation: Annotated[int, Meta(description="Generation last reconciled.")] = 0
    conditions: Conditions = ()


class PhaseMachine:
    """Move the objects of one resource through the phases of a table."""

    def __init__(self, resource: Resource, initial: str, phases: Mapping[str, Phase]) -> None:
        self.resource = resource
        self.table = PhaseTable(initial, dict(phases))
        self.finalizer = f"{resource.name}/phases"
        self.deletion_phases = frozenset(self.table.reachable(DELETING))
        if errors := self.table.errors():
            raise ValueError(f"the phases of {resource.kind}: " + "; ".join(errors))

    def controller(self, manager: Manager, name: str) -> Controller:
        """Add a controller that runs this machine.  The caller adds watches of other objects that handlers wait for."""
        objects = manager.informer(self.resource)
        run = PhaseReconciler(
            self, manager, objects.store, lambda key, seconds: controller.queue.add_after(key, seconds)
        )
        controller = manager.controller(name, run.reconcile)
        controller.watch(objects, when=has_relevant_change)
        manager.phase_tables[name] = self.table
        return controller


@dataclass(frozen=True, slots=True)
class PhaseReconciler:
    """Reconcile the objects of one machine in a manager."""

    machine: PhaseMachine
    manager: Manager
    objects: Store
    requeue_after: Callable[[str, float], None]
    """Called with a key and seconds, whatever the reconcile returns: a failed attempt must not delay a timeout."""

    async def reconcile(self, key: str) -> Result | None:
        obj = self.objects.get(key)
        if obj is None:
            return None
        table = self.machine.table
        name = value_at(obj, "status", "phase") or table.initial
        if not await self._ensure_finalizer(obj, name):
            return None
        phase = table.phases.get(name)
        if phase is None or (name in self.machine.deletion_phases) != is_deleting(obj):
            of = "an object that is not being deleted" if phase else "the machine"
            raise Terminal("UnknownPhase", f"{key}: status.phase is {name!r}, which is not a phase of {of}")
        if phase.handler is None:
            return None
        if (phase.timeout, phase.retries) != (None, None) and not value_at(obj, "status", "phase"):
            await self._write(obj, {"phase": name, **entry_status(phase, entered_at(obj, name))})
            return None  # the change of the status leads to the next reconcile
        remaining = None
        if phase.timeout is not None:
            remaining = (deadline_of(obj, name, phase.timeout) - self.manager.now()).total_seconds()
            if remaining > 0:
                self.requeue_after(key, remaining)
        outcome = await self._outcome(phase, obj, remaining)
        if isinstance(outcome, Next):
            if outcome.phase not in phase.to:
                message = f"from {name} to {outcome.phase}; the machine allows {', '.join(phase.to)}"
                self.manager.events.warning(obj, "IllegalTransition", message)
                raise Terminal("IllegalTransition", message)
            await self._transition(obj, name, outcome)
            return None
        return outcome

    async def _ensure_finalizer(self, obj: Object, name: str) -> bool:
        """Add or remove the finalizer, or start the deletion.  Return True if there was nothing to do.

        After a write, the change of the object leads to the next reconcile.
        """
        finalizers, ours, deletion = finalizers_of(obj), self.machine.finalizer, self.machine.deletion_phases
        if not is_deleting(obj):
            if deletion and ours not in finalizers:
                await self._write_finalizers(obj, [*finalizers, ours])
                return False
            return True
        if ours not in finalizers:
            return False  # nothing to clean up, or all is cleaned up and others hold the object
        if not deletion or (name in deletion and self.machine.table.phases[name].handler is None):
            await self._write_finalizers(obj, [each for each in finalizers if each != ours])
            return False
        if name not in deletion:
            await self._transition(obj, name, Next(DELETING))
        return name in deletion

    async def _outcome(self, phase: Phase, obj: Object, remaining: float | None) -> Next | Result | None:
        """Return the handler's result within `remaining` seconds, or the transition after a timeout or failure."""
        assert phase.handler is not None
        timed_out = Next(phase.on_failure, f"not done within {phase.timeout or 0:g} s", reason="TimedOut")
        if remaining is not None and remaining <= 0:
            return timed_out
        try:
            async with asyncio.timeout(remaining) as deadline:
                return await phase.handler(obj)
        except (Conflict, TransportError, NotLeading):
            raise  # not a failure of the phase
        except Exception as error:
            if deadline.expired():
                return timed_out
            if isinstance(error, Terminal | InvalidSpec) and phase.on_failure:
                message = error.message if isinstance(error, Terminal) else str(error)
                return Next(phase.on_failure, message[:MAX_ERROR_LENGTH], reason="Failed")
            if (failed := await self._count_failure(phase, obj, error)) is None:
                raise
            return failed

    async def _count_failure(self, phase: Phase, obj: Object, error: Exception) -> Next | None:
        """Show a failed attempt in the status.  Return the transition after the last attempt."""
        text = (str(error) or type(error).__name__)[:MAX_ERROR_LENGTH]
        attempts = value_at(obj, "status", "attempts", default=0) + 1
        if phase.retries is not None and attempts > phase.retries:
            message = f"failed {attempts} times, the last error: {text}"
            return Next(phase.on_failure, message, reason="RetriesExhausted")
        # Unlimited attempts are not counted, which would be one more write for each of them.
        counted = {"attempts": attempts} if phase.retries is not None else {}
        if counted or value_at(obj, "status", "lastError") != text:
            with suppress(KubeError):  # the error of the handler is the one to report
                await self._write(obj, {**counted, "lastError": text})
        return None

    async def _transition(self, obj: Object, name: str, step: Next) -> None:
        await self._write(obj, transition_status(self.machine.table, obj, name, step, self.manager.now()))
        message = f"{name} -> {step.phase}" + (f": {step.message}" if step.message else "")
        self.manager.events.normal(obj, f"Phase{step.phase}", message)

    async def _write(self, obj: Object, status: Object) -> None:
        status = {**status, "observedGeneration": obj["metadata"].get("generation", 0)}
        await self.manager.client.patch(self.machine.resource, obj, {"status": status}, subresource="status")

    async def _write_finalizers(self, obj: Object, finalizers: list[str]) -> None:
        await self.manager.client.patch(self.machine.resource, obj, {"metadata": {"finalizers": finalizers or None}})


def transition_status(table: PhaseTable, obj: Object, name: str, step: Next, now: datetime) -> Object:
    """Return the patch of the status for a step from the phase `name`."""
    own = step.status or {}
    exited = [new_condition(name, False, f"To{step.phase}", step.message)] if name in table.phases else []
    entered = new_condition(step.phase, True, step.reason, step.message)
    conditions = value_at(obj, "status", "conditions", default=[])
    for condition in (*own.get("conditions", ()), *exited, entered):
        conditions = with_condition(conditions, condition, now)
    entry = entry_status(table.phases[step.phase], now)
    return {**own, "phase": step.phase, **entry, "conditions": conditions}


def entry_status(phase: Phase, entered: datetime) -> Object:
    """Return the limits of a phase and a new count of attempts, as a patch of the status."""
    deadline = None
    if phase.timeout is not None:  # rounded up to a second
        deadline = timestamp(entered + timedelta(seconds=phase.timeout) + SECOND - MICROSECOND)
    return {"deadline": deadline, "retries": phase.retries, "attempts": 0, "lastError": None}


def deadline_of(obj: Object, name: str, timeout: float) -> datetime:
    """Return the deadline in the status.  Objects that entered the phase without one have it from the table."""
    deadline = value_at(obj, "status", "deadline")
    return parse_time(deadline) if deadline else entered_at(obj, name) + timedelta(seconds=timeout)


def entered_at(obj: Object, phase: str) -> datetime:
    """Return the time at which the object entered the phase.  The initial phase starts at creation."""
    condition = find_condition(value_at(obj, "status", "conditions", default=[]), phase)
    return parse_time(condition["lastTransitionTime"] if condition else obj["metadata"]["creationTimestamp"])


def finalizers_of(obj: Object) -> list[str]:
    return obj["metadata"].get("finalizers") or []


def has_relevant_change(old: Object | None, new: Object | None) -> bool:
    """Return whether more changed than our own record of failed attempts, which must not end the backoff."""
    return old is None or new is None or without_attempts(old) != without_attempts(new)


def without_attempts(obj: Object) -> Object:
    obj = without_field(obj, "metadata", "resourceVersion")
    for field in ("attempts", "lastError", "observedGeneration"):
        obj = without_field(obj, "status", field)
    return obj
