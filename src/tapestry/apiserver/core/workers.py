"""Worker thread for large requests, so that the event loop serves other requests meanwhile.

The interpreter runs one thread at a time and switches between them every few milliseconds, so work in the thread slows
other requests down but does not block them. Only functions that depend on nothing but their arguments may run there:
the store belongs to the event loop.

    run_if_large(size, function, ...)   run in the thread if `size` is large, or if the work exceeds a slice
    reserve_memory(size)                wait until a large request may hold its objects in memory
"""

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from contextvars import copy_context
from typing import Any, ParamSpec, TypeVar

from tapestry.apiserver.core.fairness import FairQueue
from tapestry.kube.budget import CURRENT_BUDGET, MAX_UNITS, Budget, SliceExceeded, checkpoint

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
THREAD_SWITCH_INTERVAL = 0.001
"""Thread switch interval in seconds while the worker thread runs."""


class GarbageCollectorPause:
    """Pauses the cyclic garbage collector while large requests are in flight.

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


class Worker:
    """The worker thread. Users take turns in it."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "large-requests")
        self._thread_queue, self.memory_queue = FairQueue(1), FairQueue(MEMORY_CAPACITY_BYTES)

    async def run(self, user: str, function: Callable[[], T]) -> T:
        """Return the result of the function, called in the thread in the caller's context."""
        context = copy_context()
        async with self._thread_queue.turn(user):
            return await asyncio.get_running_loop().run_in_executor(self._executor, context.run, self._call, function)

    def _call(self, function: Callable[[], T]) -> T:
        checkpoint()  # the deadline may have passed while it waited
        interval = sys.getswitchinterval()
        sys.setswitchinterval(THREAD_SWITCH_INTERVAL)
        try:
            return function()
        finally:
            sys.setswitchinterval(interval)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


class RequestBudget(Budget):
    """Work budget of one request, and the resources that it holds until it ends."""

    __slots__ = ("_due", "_has_paused", "_held", "_is_cancelled", "user", "worker")

    def __init__(self, worker: Worker | None, user: str) -> None:
        # as in `super`, without a call
        self.remaining, self._floor, self._unchecked, self.is_expired = MAX_UNITS, 0, 0, None
        self.worker, self.user = worker, user
        self._due, self._is_cancelled = 0.0, False
        self._held: AsyncExitStack | None = None
        """Resources to release at the end of the request."""
        self._has_paused = False
        """True while this request pauses the garbage collector."""

    def set_timeout(self, seconds: float) -> None:
        """Set the deadline of the request, in seconds from now."""
        self._due = time.monotonic() + seconds
        self.is_expired = self._is_late

    def _is_late(self) -> bool:
        return self._is_cancelled or time.monotonic() >= self._due

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
            await self._held.enter_async_context(self.worker.memory_queue.turn(self.user, size))

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
