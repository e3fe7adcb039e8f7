"""Scheduler of the work of planes on the event loop that they share.

The work of a plane is the steps of its tasks: requests, watches, controllers and its store. A step is what a task does
until it waits. Each step is measured. In one iteration of the event loop, steps run at once for a slice of time. If the
iteration takes longer, the loop is saturated: further steps wait, and run in the next iterations by deficit round robin
over the planes. So the steps of a plane with little work do not wait for all the work of another. While only one plane
has work, the slice is longer. The management API comes first: its steps never wait.

Steps of a plane that uses more than half of its share (`LoopShares`) come last while others have work: one step of all
such planes runs in an iteration, if no other step waits. So they delay others by one step, however many wait. The plane
does not starve, because its recent share falls meanwhile. A plane that uses more than its share starts no requests.

A step cannot be interrupted. Parsing of HTTP and TLS are callbacks of the event loop and no steps.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context
from math import inf
from types import coroutine
from typing import Any, TypeVar

from tapestry.client.metrics import RESOURCE_LABEL
from tapestry.planes.deficit_round_robin import DeficitRoundRobin, Flow
from tapestry.planes.loop_shares import LoopShares
from tapestry.planes.plane_metrics import built_in_label
from tapestry.process.work_meter import CURRENT_METER, WorkMeter

T = TypeVar("T")

SLICE_NS, LONG_SLICE_NS = 2_000_000, 20_000_000
"""Time in one iteration of the event loop after which steps wait, and the same while only one plane has work."""
QUANTUM_NS = 1_000_000
"""Time that a plane may use in one round while others wait."""
IDLE_NS = 500_000
"""Time without a step after which the event loop is not saturated."""
CONTENTION_NS = 100_000_000
"""Time for which a plane is expected to have more work after a step."""
LAST_PART = 0.5
"""Part of its share beyond which the steps of a plane come last."""
ONE_STEP_NS = 1
"""Time in one iteration for the planes that come last: the queue returns at least one step."""
USED_PART_NS = 1_000_000
"""Time for which the measured part of a share is used."""

Steps = DeficitRoundRobin[asyncio.Future[None]]


class WorkScheduler:
    """Schedule the steps of all planes of an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        """Create the scheduler. `clock` returns nanoseconds."""
        self._loop, self.clock = loop, clock
        self._queue: Steps = DeficitRoundRobin(QUANTUM_NS)
        self._last_queue: Steps = DeficitRoundRobin(QUANTUM_NS)
        """Steps of planes that come last."""
        self.shares = LoopShares()
        self._is_iteration_tracked = False
        self._contended_until = 0
        self.last: PlaneWork | None = None
        """Plane of the last step that was the first of its plane in a slice."""
        self.slice_end = 0
        """Time at which the current slice ends."""
        self.last_end = 0
        """Time at which the last step ended."""

    def install(self) -> None:
        """Measure all tasks that are created from now on in the context of a plane."""
        self._loop.set_task_factory(create_task)

    def turn(self, plane: "PlaneWork", now: int) -> asyncio.Future[None] | None:
        """Return what a step must wait for, or None if it runs at once, as do those until `plane.runs_until`."""
        if self.last is not plane:
            if self.last is not None:
                self._contended_until = now + CONTENTION_NS
            self.last = plane
        if self.used_part(plane, now) > LAST_PART and now <= self._contended_until:
            if not self._is_iteration_tracked:
                self._track_iteration(now)
            return self._wait(plane)
        if now > self.slice_end or plane.waiting:
            if self._is_iteration_tracked:
                return self._late_turn(plane, now)
            if now - self.last_end < IDLE_NS:
                self._track_iteration(now)  # iterations in which less than a slice has passed are not of interest
            else:
                self.slice_end = now + SLICE_NS  # to track each iteration of a loop with little to do would cost more
        plane.runs_until = self.slice_end
        return None

    def _late_turn(self, plane: "PlaneWork", now: int) -> asyncio.Future[None] | None:
        is_alone = now > self._contended_until and now < self.slice_end - SLICE_NS + LONG_SLICE_NS
        if plane.comes_first or (is_alone and not plane.waiting):
            return None
        return self._wait(plane)

    def _wait(self, plane: "PlaneWork") -> asyncio.Future[None]:
        plane.waits += 1
        plane.runs_until = 0  # until none waits
        result = self._loop.create_future()
        (self._last_queue if plane.used_part > LAST_PART else self._queue).push(plane, result)
        return result

    def used_part(self, plane: "PlaneWork", now: int) -> float:
        """Return which part of its share a plane has recently used. Its steps change the queue if that says so."""
        if now >= plane.used_part_until:
            plane.used_part_until = now + USED_PART_NS
            came_last, plane.used_part = plane.used_part > LAST_PART, self.shares.used_part(plane, now)
            if came_last and plane.used_part <= LAST_PART:
                self._last_queue.move(plane, self._queue)
            elif not came_last and plane.used_part > LAST_PART:
                self._queue.move(plane, self._last_queue)
        return plane.used_part

    def _track_iteration(self, now: int) -> None:
        self._is_iteration_tracked = True
        self.slice_end = now + SLICE_NS
        self._loop.call_soon(self._end_iteration)

    def _end_iteration(self) -> None:
        """Let waiting steps run in the next iteration. This runs after all steps of the current one."""
        steps = self._queue.take(SLICE_NS) if self._queue.has_owners else []
        if self._last_queue.has_owners:
            now = self.clock()
            steps = steps or self._last_queue.take(ONE_STEP_NS if now <= self._contended_until else SLICE_NS)
            for plane in self._last_queue.owners:
                assert isinstance(plane, PlaneWork)
                self.used_part(plane, now)  # it falls while the plane waits
        for step in steps:
            if not step.done():  # it may be cancelled
                step.set_result(None)
        if steps:
            self._track_iteration(self.clock())
        else:
            self._is_iteration_tracked = False


class PlaneWork(Flow[asyncio.Future[None]]):
    """Work of one plane, or of the management API, which comes first."""

    __slots__ = ("comes_first", "runs_until", "scheduler", "total", "used_part", "used_part_until", "waits")

    def __init__(self, scheduler: WorkScheduler, plane_id: str, *, comes_first: bool = False) -> None:
        super().__init__({"plane": plane_id})
        self.scheduler, self.comes_first = scheduler, comes_first
        self.waits = 0
        """Number of steps that had to wait."""
        self.runs_until = 0
        """Time until which steps run at once."""
        self.used_part = 0.0
        """Part of its share that the plane has recently used."""
        self.used_part_until: float = inf if comes_first else 0
        """Time until which this figure is used."""
        self.total = WorkMeter() if comes_first else scheduler.shares.total
        """Work of all planes that have a share."""

    def may_start(self) -> bool:
        """Return whether another request may start: not while the plane uses more than its share."""
        return self.scheduler.used_part(self, self.scheduler.clock()) <= 1

    def run(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Run a coroutine as work of the plane. It may be awaited in any task, whose steps are measured once."""
        return work if CURRENT_METER.get() is self else measured(work, self)

    def context(self) -> Context:
        """Return a context for new tasks of the plane."""
        context = Context()  # not that of the caller, which may belong to another plane
        context.run(CURRENT_METER.set, self)
        context.run(RESOURCE_LABEL.set, built_in_label)
        return context


Work = Coroutine[Any, Any, T] | Generator[Any, None, T]


def create_task(loop: asyncio.AbstractEventLoop, work: Work[T], **options: Any) -> asyncio.Task[T]:
    """Create a task, whose steps are measured if it belongs to a plane."""
    context: Context | None = options.get("context")
    meter = context.get(CURRENT_METER) if context is not None else CURRENT_METER.get()
    if isinstance(meter, PlaneWork):
        work = run_measured(work, meter)
    return asyncio.Task(work, loop=loop, **options)


async def run_measured(work: Work[T], plane: PlaneWork) -> T:
    return await measured(work, plane)


@coroutine
def measured(work: Work[T], plane: PlaneWork) -> Generator[Any, None, T]:
    """Run a coroutine, each step of it when it is its turn, and measure its steps."""
    send, scheduler = work.send, plane.scheduler
    clock, total = scheduler.clock, plane.total
    error: BaseException | None = None
    previous = CURRENT_METER.set(plane)
    while True:
        started = clock()
        if started > plane.runs_until and error is None:
            turn = scheduler.turn(plane, started)
            if turn is not None:
                try:
                    yield from turn
                except BaseException as cancellation:  # noqa: BLE001  the coroutine gets it
                    error = cancellation
                started = clock()
        try:
            waits_for = send(None) if error is None else work.throw(error)
        except StopIteration as end:
            scheduler.last_end = ended = clock()
            plane.count_step(ended - started)
            total.count_step(ended - started)
            CURRENT_METER.reset(previous)
            error = None
            result: T = end.value
            return result
        except BaseException:
            scheduler.last_end = ended = clock()
            plane.count_step(ended - started)
            total.count_step(ended - started)
            CURRENT_METER.reset(previous)
            error = None  # it refers to this frame
            raise
        scheduler.last_end = ended = clock()
        plane.count_step(ended - started)
        total.count_step(ended - started)
        error = None
        try:
            yield waits_for
        except BaseException as raised:  # noqa: BLE001  the coroutine gets it, even GeneratorExit
            error = raised
        waits_for = None  # a future refers to its error, and the error to this frame
