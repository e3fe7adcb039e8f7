"""PhaseMachine: a reconciler for objects that walk through phases.

A machine is a table: for each phase the handler that works in it, the phases it may go to, how long it may take and how
often it may fail.  A phase without a handler is terminal: an object that reached it is never worked on again.

    machine = PhaseMachine(REDIS_MIGRATIONS, "Pending", {
        "Pending":   Phase(pending, to=("Precheck",)),
        "Precheck":  Phase(precheck, to=("Migrate", "PreFailed"), retries=3, on_failure="PreFailed"),
        ...
        "Succeeded": Phase(),
    })

A handler is `async (obj) -> Next | Result | None`: the next phase, or stay and perhaps look again later.  The phase
lives in the object's status and moves by one conditional patch, so a crash at any point resumes in the phase last
written: a handler may run again and must be idempotent.  `status.conditions` keeps the history, one condition a phase:
True while the object is in it, False with the time it left.
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
    """Go to another phase; the message says why, to whoever reads the status."""

    phase: str
    message: str = ""


Handler = Callable[[Object], Awaitable[Next | Result | None]]


@dataclass(frozen=True, slots=True)
class Phase:
    """One row of a machine's table.  Without a handler the phase is terminal."""

    handler: Handler | None = None
    to: tuple[str, ...] = ()
    timeout: float | None = None
    """Seconds from entering the phase, after which it goes to `on_failure`."""
    retries: int | None = None
    """Failed attempts after which it goes to `on_failure`; None tries for ever."""
    on_failure: str = ""


class PhaseStatus(ApiStruct):
    """What a machine keeps in the status of an object; extend it with fields of your own."""

    phase: Annotated[str, Meta(description="Where the object is on its way.")] = ""
    attempts: Annotated[int, Meta(description="Failed attempts in this phase.")] = 0
    observed_generation: Annotated[int, Meta(description="The generation last worked on.")] = 0
    conditions: Conditions = ()


class PhaseMachine:
    """Moves the objects of one resource through the phases of a table."""

    def __init__(self, resource: Resource, initial: str, phases: Mapping[str, Phase]) -> None:
        self.resource = resource
        self.initial = initial
        self.phases = dict(phases)
        if complaints := self._table_errors():
            raise ValueError(f"the phases of {resource.kind}: " + "; ".join(complaints))

    def controller(self, manager: Manager, name: str) -> Controller:
        """A controller that runs this machine; let it watch what else its handlers wait for."""
        objects = manager.informer(self.resource)
        run = PhaseReconciler(
            self, manager, objects.store, lambda key, seconds: controller.queue.add_after(key, seconds)
        )
        controller = manager.controller(name, run.reconcile)
        controller.watch(objects, when=has_relevant_change)
        return controller

    def mermaid(self) -> str:
        """The machine as a Mermaid state diagram."""
        lines = ["stateDiagram-v2", f"    [*] --> {self.initial}"]
        for name, phase in self.phases.items():
            lines += [f"    {name} --> {target}" for target in phase.to]
            if phase.handler is None:
                lines.append(f"    {name} --> [*]")
        return "\n".join(lines)

    def _table_errors(self) -> list[str]:
        found = []
        if self.initial not in self.phases:
            found.append(f"the initial phase {self.initial!r} is not in the table")
        for name, phase in self.phases.items():
            if (phase.handler is None) != (not phase.to):
                found.append(f"{name}: a phase has a handler and phases to go to, or neither")
            found += [
                f"{name}: goes to {target!r}, which is not in the table"
                for target in phase.to
                if target not in self.phases
            ]
            if phase.on_failure and phase.on_failure not in phase.to:
                found.append(f"{name}: on_failure is {phase.on_failure!r}, where it may not go")
            if not phase.on_failure and (phase.timeout is not None or phase.retries is not None):
                found.append(f"{name}: a timeout or a number of retries needs an on_failure")
        reachable = self._reachable()
        found += [f"{name}: cannot be reached from {self.initial!r}" for name in self.phases if name not in reachable]
        return found

    def _reachable(self) -> set[str]:
        found, edge = set(), [self.initial]
        while edge:
            name = edge.pop()
            if name not in found and name in self.phases:
                found.add(name)
                edge.extend(self.phases[name].to)
        return found


@dataclass(frozen=True, slots=True)
class PhaseReconciler:
    """A machine at work in a manager."""

    machine: PhaseMachine
    manager: Manager
    objects: Store
    requeue_after: Callable[[str, float], None]
    """After so many seconds, whatever the pass comes to: an attempt that fails must not put off a timeout."""

    async def reconcile(self, key: str) -> Result | None:
        obj = self.objects.get(key)
        if obj is None or is_deleting(obj):
            return None
        name = value_at(obj, "status", "phase") or self.machine.initial
        phase = self.machine.phases.get(name)
        if phase is None:
            raise Terminal("UnknownPhase", f"{key}: status.phase is {name!r}, which the machine does not have")
        if phase.handler is None:
            return None
        left = None
        if phase.timeout is not None:
            left = phase.timeout - (self.manager.now() - entered_at(obj, name)).total_seconds()
            if left > 0:
                self.requeue_after(key, left)
        outcome = await self._outcome(phase, obj, left)
        if isinstance(outcome, Next):
            await self._transition(obj, name, outcome)
            return None
        return outcome

    async def _outcome(self, phase: Phase, obj: Object, left: float | None) -> Next | Result | None:
        """What the handler says within the seconds that are `left`, or where its lateness or its failures lead."""
        assert phase.handler is not None
        if left is not None and left <= 0:
            return Next(phase.on_failure, f"not done within {phase.timeout:g} s")
        try:
            async with asyncio.timeout(left) as patience:
                return await phase.handler(obj)
        except (Conflict, TransportError, NotLeading):
            raise  # nothing that the phase did wrong
        except Exception as error:
            if patience.expired():
                return Next(phase.on_failure, f"not done within {phase.timeout:g} s")
            if isinstance(error, Terminal | InvalidSpec) and phase.on_failure:
                return Next(phase.on_failure, error.message if isinstance(error, Terminal) else str(error))
            if phase.retries is None:
                raise
            return await self._count_failure(phase, obj, error)

    async def _count_failure(self, phase: Phase, obj: Object, error: Exception) -> Next:
        """Count a failed attempt; it is raised again unless it was the last."""
        attempts = value_at(obj, "status", "attempts", default=0) + 1
        assert phase.retries is not None
        if attempts > phase.retries:
            return Next(phase.on_failure, f"failed {attempts} times, at last: {error}")
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
        left = new_condition(name, False, f"To{step.phase}", step.message)
        come = new_condition(step.phase, True, "Entered", step.message)
        for each in (left, come):
            conditions = with_condition(conditions, each, now)
        await self._write(obj, {"phase": step.phase, "attempts": 0, "conditions": conditions})
        message = f"{name} -> {step.phase}" + (f": {step.message}" if step.message else "")
        self.manager.events.normal(obj, f"Phase{step.phase}", message)

    async def _write(self, obj: Object, status: Object) -> None:
        status["observedGeneration"] = obj["metadata"].get("generation", 0)
        await self.manager.client.patch(self.machine.resource, obj, {"status": status}, subresource="status")


def entered_at(obj: Object, phase: str) -> datetime:
    """When the object came into the phase; into its first one it was born."""
    found = find_condition(value_at(obj, "status", "conditions", default=[]), phase)
    return parse_time(found["lastTransitionTime"] if found else obj["metadata"]["creationTimestamp"])


def has_relevant_change(old: Object | None, new: Object | None) -> bool:
    """Whether more changed than the count of failed attempts: that was our own write, and must not end the pause."""
    return old is None or new is None or without_counters(old) != without_counters(new)


def without_counters(obj: Object) -> Object:
    for path in (("metadata", "resourceVersion"), ("status", "attempts"), ("status", "observedGeneration")):
        obj = without_field(obj, *path)
    return obj
