"""Virtual time for tests: an event loop whose clock jumps to the next timer.

`run(main())` is `asyncio.run` on such a loop.  The decorator `@in_virtual_time` runs one test on such a loop.  Code
under test uses asyncio's sleeps, timers and timeouts as usual, and takes the wall clock as `now: Callable[[],
datetime]`; `running_clock().now` advances with the loop.  A week of retries takes only the time of its callbacks, in
the same order on every run.

Sockets, pipes and `call_soon_threadsafe` work as on any loop.  Ready callbacks run before any timer, but no timer waits
for other threads or processes: a timeout on their work expires at once.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")

START = datetime(2024, 1, 1, tzinfo=UTC)  # a Monday, at midnight
MAX_TURNS = 1_000_000  # loop iterations, about ten seconds of real time


class Spinning(AssertionError):
    """The loop exceeded its limit of iterations: something polls, or the main coroutine waits forever."""


class VirtualClock:
    """The time of one VirtualLoop."""

    def __init__(self, start: datetime = START) -> None:
        if start.tzinfo is None:
            raise ValueError(f"start: {start} has no time zone; add one, for example UTC")
        self._start = start.astimezone(UTC)
        self._elapsed = 0.0

    def now(self) -> datetime:
        """Return the virtual wall-clock time in UTC."""
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        """Return the virtual seconds since the loop was created, as `loop.time()` does."""
        return self._elapsed

    def _advance(self, seconds: float) -> None:
        self._elapsed += seconds


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time.  After `turns` iterations, `run_until_complete` raises Spinning."""

    def __init__(self, start: datetime = START, *, turns: int = MAX_TURNS) -> None:
        self.clock = VirtualClock(start)
        super().__init__(_JumpingSelector(self.clock, turns))
        # A timer fires within this many seconds of its time.  After a few months of virtual time, a float cannot
        # represent the usual nanosecond, and a timer would never fire.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self.clock.monotonic()

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002
        # A timeout would expire at once, before the threads could end.
        await super().shutdown_default_executor()


class _JumpingSelector(selectors.DefaultSelector):
    """The selector of the loop.  Instead of waiting for a timer, it advances the clock."""

    def __init__(self, clock: VirtualClock, turns: int) -> None:
        super().__init__()
        self._clock = clock
        self._turns = turns
        self._left = turns

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._count_turn()
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            return super().select(None)
        self._clock._advance(timeout)
        return []

    def _count_turn(self) -> None:
        self._left -= 1
        if self._left < 0:
            self._left = self._turns  # allow cancelling the tasks and closing the loop
            raise Spinning(
                f"not done after {self._turns} iterations of the loop, at {self._clock.now().isoformat()}: "
                "something polls forever, or a periodic timer runs while the main coroutine waits forever"
            )


def run(main: Coroutine[Any, Any, T], *, start: datetime = START, turns: int = MAX_TURNS) -> T:
    """Run `main` on a new VirtualLoop and return its result.

    As with `asyncio.run`, remaining tasks are cancelled and awaited, and the loop is closed.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(start, turns=turns)) as runner:
        return runner.run(main)


def in_virtual_time(test_coroutine: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Decorate a test coroutine to run on a new VirtualLoop."""

    @wraps(test_coroutine)
    def test(*args: Any, **kwargs: Any) -> None:
        run(test_coroutine(*args, **kwargs))

    return test


def running_clock() -> VirtualClock:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise RuntimeError(f"{type(loop).__name__} runs on real time; call this from a coroutine given to run()")
    return loop.clock
