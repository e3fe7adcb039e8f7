"""Worker thread for large requests, so that the event loop serves other requests meanwhile.

The interpreter runs one thread at a time and switches between them every few milliseconds, so work in the thread slows
other requests down but does not block them. Only functions that depend on nothing but their arguments may run there:
the store belongs to the event loop.

    run_if_large(size, function, ...)   run in the thread if `size` is large, or if the work exceeds a slice
    StreamWork.run_if_large(...)        the same for a stream, after the request that started it
    reserve_memory(size)                wait until a large request may hold its objects in memory
"""

import asyncio
import gc
import math
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from contextvars import copy_context
from copy import copy
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from tapestry.apiserver.core.fairness import FairQueue, LimitedQueue, NestedQueue, Queue, turn
from tapestry.apiserver.core.shared_capacity import SharedCapacity
from tapestry.kube.budget import CURRENT_BUDGET, MAX_UNITS, Budget, DeadlineExceeded, SliceExceeded, checkpoint
from tapestry.process.work_meter import CURRENT_METER

P = ParamSpec("P")
T = TypeVar("T")

LARGE_BYTES = 16 << 10
"""Size in bytes of JSON from which work runs in the thread."""
LARGE_LIST_BYTES = 128 << 10
"""Size in bytes from which a list is processed in the thread; its objects are decoded one by one."""
LARGE_SELECTION = 1_000
"""Number of objects from which a selector is evaluated in the thread."""
MEMORY_WAIT_BYTES = 256 << 10
"""Size in bytes of JSON from which a request reserves memory before it is decoded."""
MEMORY_CAPACITY_BYTES = 3 << 20
"""Bytes of JSON that requests may hold decoded at the same time; decoded objects take up to 50 times as much."""
GC_RESUME_DELAY = 0.1
"""Seconds after the end of a request until its objects are freed."""
MAX_GC_PAUSE = 30.0
"""Seconds after which young objects are collected even if large requests are in flight."""
STREAM_STEP_SECONDS = 60.0
"""Maximum seconds of one step of a stream."""
SHARED_MEMORY_BYTES = 4 * MEMORY_CAPACITY_BYTES
"""The same for all servers of a process, if there are several."""
THREAD_SWITCH_INTERVAL = 0.001
"""Thread switch interval in seconds while a worker thread runs."""
SHARED_WORK = 4
"""Requests of servers that share threads may use the work of other requests divided by this."""


class GarbageCollectorPause:
    """Pause the cyclic garbage collector while large requests are in flight.

    The collector would scan all of their objects repeatedly and block the event loop. The objects of these requests
    have no cycles, so nearly all of them are freed without the collector.
    """

    def __init__(self) -> None:
        self._requests = 0
        self._since = 0.0

    def pause(self) -> None:
        if not self._requests:
            self._since = time.monotonic()
            gc.disable()
        self._requests += 1

    def resume(self) -> None:
        self._requests -= 1
        if not self._requests:
            asyncio.get_running_loop().call_later(GC_RESUME_DELAY, self._enable)
        elif time.monotonic() - self._since > MAX_GC_PAUSE:
            self._since = time.monotonic()
            gc.collect(0)

    def _enable(self) -> None:
        if not self._requests:
            gc.enable()


GC_PAUSE = GarbageCollectorPause()
"""The instance of this process."""


class SwitchInterval:
    """Switch threads more often while worker threads run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._normal = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._running:
                self._normal = sys.getswitchinterval()
                sys.setswitchinterval(THREAD_SWITCH_INTERVAL)
            self._running += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._running -= 1
            if not self._running:
                sys.setswitchinterval(self._normal)


SWITCH_INTERVAL = SwitchInterval()
"""The instance of this process."""


class Worker:
    """The worker threads. Users take turns in them."""

    max_units = MAX_UNITS
    """Work that one request may use."""

    def __init__(self, threads: int = 1) -> None:
        self._executor = ThreadPoolExecutor(threads, "large-requests")
        self.thread_queue: Queue = FairQueue(threads)
        self.memory_queue: Queue = FairQueue(MEMORY_CAPACITY_BYTES)
        self._shared_memory = SharedCapacity(SHARED_MEMORY_BYTES)

    def share(self, owner: str) -> "Worker":
        """Return the worker for the requests of one server. It uses one thread at a time, in turn with others."""
        share = copy(self)
        share.max_units = MAX_UNITS // SHARED_WORK
        share.thread_queue = NestedQueue(self.thread_queue, owner, 1)
        share.memory_queue = LimitedQueue(self._shared_memory, owner, MEMORY_CAPACITY_BYTES)
        return share

    async def run(self, user: str, function: Callable[[], T]) -> T:
        """Return the result of the function, called in the thread in the caller's context."""
        context = copy_context()
        await self.thread_queue.acquire(user)
        try:
            result = asyncio.get_running_loop().run_in_executor(self._executor, context.run, self._call, function)
        except BaseException:
            self.thread_queue.release()
            raise
        # not when this task continues, because others wait for the thread and the task may have to wait for its turn
        result.add_done_callback(lambda _: self.thread_queue.release())
        try:
            return await result
        finally:
            del result  # an error refers to this frame, and the future to the error: a cycle with the whole request

    def _call(self, function: Callable[[], T]) -> T:
        checkpoint()  # the deadline may have passed while it waited
        started = time.thread_time_ns()
        try:
            with SWITCH_INTERVAL:
                return function()
        finally:
            if (meter := CURRENT_METER.get()) is not None:
                meter.thread_ns += time.thread_time_ns() - started

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


class RequestBudget(Budget):
    """Work budget of one request, and the resources that it holds until it ends."""

    __slots__ = ("_due", "_has_paused", "_held", "_is_cancelled", "user", "worker")

    def __init__(self, worker: Worker | None, user: str) -> None:
        # as in `super`, without a call
        units = worker.max_units if worker is not None else MAX_UNITS
        self.remaining, self._floor, self._unchecked, self.is_expired = units, 0, 0, None
        self.worker, self.user = worker, user
        self._due, self._is_cancelled = math.inf, False
        self._held: AsyncExitStack | None = None
        """Resources to release at the end of the request."""
        self._has_paused = False
        """True while this request pauses the garbage collector."""

    def set_timeout(self, seconds: float) -> None:
        """Set the deadline of the request, in seconds from now, unless it has an earlier one."""
        self._due = min(self._due, time.monotonic() + seconds)

    def check(self) -> None:
        # not by `is_expired`: a method of this object would be a reference cycle in each request
        self._unchecked = 0
        if self._is_cancelled or time.monotonic() >= self._due:
            raise DeadlineExceeded

    @property
    def is_ended(self) -> bool:
        return self._is_cancelled

    async def run(self, function: Callable[[], T]) -> T:
        """Return the result of a function, called in the worker thread if there is one."""
        if self.worker is None:
            return function()
        if not self._has_paused:
            self._has_paused = True
            GC_PAUSE.pause()
        return await self.worker.run(self.user, function)

    async def reserve_memory(self, size: int) -> None:
        if self._held is None and self.worker is not None and size >= MEMORY_WAIT_BYTES:
            self._held = AsyncExitStack()
            await self._held.enter_async_context(turn(self.worker.memory_queue, self.user, size))

    async def end(self) -> None:
        """Release the resources of the request. Calling it again has no effect."""
        self._is_cancelled = True  # stops the worker thread at its next checkpoint
        if self._has_paused:
            self._has_paused = False
            GC_PAUSE.resume()
        held, self._held = self._held, None
        if held is not None:
            await held.aclose()


def current_request_budget() -> RequestBudget | None:
    """Return the budget of the current request; None outside of requests."""
    result = CURRENT_BUDGET.get()
    return result if isinstance(result, RequestBudget) else None


async def run_if_large(size: int, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Return the result of a function that depends only on its arguments; `size` is the input size in bytes of JSON.

    The function is restarted in the thread if its work exceeds a slice of the budget.
    """
    budget = current_request_budget()
    if budget is None:
        return function(*args, **named)
    if size < LARGE_BYTES:
        try:
            with budget:
                return function(*args, **named)
        except SliceExceeded:
            pass
    return await budget.run(lambda: function(*args, **named))


@dataclass(frozen=True, slots=True)
class StreamWork:
    """Run the steps of a stream, which lasts longer than the request that started it. Each has its own budget."""

    worker: Worker | None
    user: str

    @classmethod
    def of_current_request(cls) -> "StreamWork":
        budget = current_request_budget()
        return cls(None, "") if budget is None else cls(budget.worker, budget.user)

    async def run_if_large(self, size: int, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        budget = RequestBudget(self.worker, self.user)
        budget.set_timeout(STREAM_STEP_SECONDS)
        reset_token = CURRENT_BUDGET.set(budget)
        try:
            return await run_if_large(size, function, *args, **named)
        finally:
            await budget.end()
            CURRENT_BUDGET.reset(reset_token)


async def reserve_memory(size: int) -> None:
    """Wait until objects of that size may be decoded; the reservation lasts until the request ends."""
    budget = current_request_budget()
    if budget is not None:
        await budget.reserve_memory(size)


def run_sync(step: Coroutine[Any, Any, T] | Awaitable[T]) -> T:
    """Return the result of a coroutine that never waits."""
    assert isinstance(step, Coroutine)
    try:
        step.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    step.close()
    raise RuntimeError("a step that runs in a thread must not wait")
