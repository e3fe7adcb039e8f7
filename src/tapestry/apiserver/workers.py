"""Workers: large work runs in a thread, so that the event loop answers other requests meanwhile.

The interpreter runs one thread at a time and changes between them every few milliseconds, so work in the thread slows
other requests down but does not block them.  Only functions that touch nothing but their arguments may run there: the
store belongs to the event loop.

    run_if_large(size, function, ...)   in the thread where `size` is large, or the work turns out to be
    make_room(size)                     wait until a large request may hold its objects in memory
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

from tapestry.apiserver.fairness import FairQueue
from tapestry.kube.budget import CURRENT_BUDGET, MAX_UNITS, Budget, SliceExceeded, checkpoint

P = ParamSpec("P")
T = TypeVar("T")

LARGE_BYTES = 16 << 10
"""Bytes of JSON from which on work is done in the thread."""
LARGE_LIST_BYTES = 128 << 10
"""The same of a list whose objects are read one by one: that takes less for each byte."""
LARGE_SELECTION = 1_000
"""Objects from which on a selector is asked in the thread."""
MEMORY_WAIT_BYTES = 256 << 10
"""Bytes of JSON from which on a request waits for room before its objects are read into memory."""
MEMORY_CAPACITY_BYTES = 3 << 20
"""Bytes of JSON that requests may hold in memory as objects, which take up to 50 times as much, at the same time."""
GC_RESUME_DELAY = 0.1
"""Seconds after its end by which the objects of a request are freed."""
MAX_GC_PAUSE = 30.0
"""Seconds after which the garbage collector looks at what is new, whatever is under way."""
THREAD_SWITCH_INTERVAL = 0.001
"""How often the interpreter changes threads while the thread works."""


class GarbageCollectorPause:
    """Keeps the cyclic garbage collector away while large requests are under way.

    It would look at all of their objects again and again, and nobody is served meanwhile.  What these requests leave
    behind has no cycles, so nearly all of it is freed without the collector.
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
"""There is one in a process."""


class Worker:
    """The thread.  Users take turns at it."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "large-requests")
        self._thread_queue, self.memory_queue = FairQueue(1), FairQueue(MEMORY_CAPACITY_BYTES)

    async def run(self, user: str, function: Callable[[], T]) -> T:
        """The result of the function, called in the thread in the caller's context."""
        context = copy_context()
        async with self._thread_queue.turn(user):
            return await asyncio.get_running_loop().run_in_executor(self._executor, context.run, self._call, function)

    def _call(self, function: Callable[[], T]) -> T:
        checkpoint()  # it may have waited for its turn too long
        usual = sys.getswitchinterval()
        sys.setswitchinterval(THREAD_SWITCH_INTERVAL)
        try:
            return function()
        finally:
            sys.setswitchinterval(usual)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


class RequestBudget(Budget):
    """The work of one request: its budget, and what it holds until it is answered."""

    __slots__ = ("_due", "_has_paused", "_held", "_is_cancelled", "user", "worker")

    def __init__(self, worker: Worker | None, user: str) -> None:
        self.left, self._floor, self._unchecked, self.is_over = MAX_UNITS, 0, 0, None  # as in `super`, without a call
        self.worker, self.user = worker, user
        self._due, self._is_cancelled = 0.0, False
        self._held: AsyncExitStack | None = None
        """What the request gives back at its end."""
        self._has_paused = False
        """Whether the garbage collector waits for its end."""

    def set_timeout(self, seconds: float) -> None:
        """Give the request so much time from now on."""
        self._due = time.monotonic() + seconds
        self.is_over = self._is_late

    def _is_late(self) -> bool:
        return self._is_cancelled or time.monotonic() >= self._due

    async def run(self, function: Callable[[], T]) -> T:
        """The result of a function, called in the thread; without one, at once."""
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
        """Give back what the request held; to call it again does nothing."""
        self._is_cancelled = True  # a thread that still works for it stops at its next checkpoint
        if self._has_paused:
            self._has_paused = False
            GC_PAUSE.resume()
        held, self._held = self._held, None
        if held is not None:
            await held.aclose()


def current_request_budget() -> RequestBudget | None:
    """The work of the request that is being served; None where all is done at once."""
    found = CURRENT_BUDGET.get()
    return found if isinstance(found, RequestBudget) else None


async def run_if_large(size: int, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """The result of a function of its arguments alone; `size` is that of what it looks at, in bytes of JSON.

    The function begins again where its work turns out to be more than a slice of the budget.
    """
    work = current_request_budget()
    if work is None:
        return function(*args, **named)
    if size < LARGE_BYTES:
        try:
            with work:
                return function(*args, **named)
        except SliceExceeded:
            pass
    return await work.run(lambda: function(*args, **named))


async def reserve_memory(size: int) -> None:
    """Wait until objects of that size may be read into memory; they may stay there until the request is answered."""
    work = current_request_budget()
    if work is not None:
        await work.reserve_memory(size)


def run_sync(step: Coroutine[Any, Any, T] | Awaitable[T]) -> T:
    """The result of a coroutine that never waits."""
    assert isinstance(step, Coroutine)
    try:
        step.send(None)
    except StopIteration as end:
        found: T = end.value
        return found
    step.close()
    raise RuntimeError("a step that runs in a thread must not wait")
