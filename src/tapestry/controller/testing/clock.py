"""Time that costs nothing: an event loop whose clock jumps to the next timer instead of waiting for it.

`run(main())` is `asyncio.run` on such a loop, and a test under `@in_virtual_time` has one of its own.  Code under test
sleeps, sets timers and deadlines through asyncio as it always does, and takes the wall clock as
`now: Callable[[], datetime]`; `running_clock().now` moves with the loop.  A week of retries passes in the time that its
callbacks take, in the same order on every run.

Sockets, pipes and `call_soon_threadsafe` work as on any loop.  What is ready goes before any timer, but no timer waits
for what is still under way elsewhere: a deadline set on the work of a thread or of another process passes at once.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")

START = datetime(2024, 1, 1, tzinfo=UTC)  # a Monday, at midnight
MAX_TURNS = 1_000_000  # of the loop; some ten seconds of real time


class Spinning(AssertionError):
    """The loop has turned very often and its main coroutine is not done: something polls, or waits for nothing."""


class VirtualClock:
    """The time of one VirtualLoop."""

    def __init__(self, start: datetime = START) -> None:
        if start.tzinfo is None:
            raise ValueError(f"start: {start} has no time zone; give it one, such as UTC")
        self._start = start.astimezone(UTC)
        self._elapsed = 0.0

    def now(self) -> datetime:
        """The virtual wall clock, in UTC."""
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        """Virtual seconds since the loop was made; the same as `loop.time()`."""
        return self._elapsed

    def _advance(self, seconds: float) -> None:
        self._elapsed += seconds


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time.  After `turns` turns it raises Spinning out of `run_until_complete`."""

    def __init__(self, start: datetime = START, *, turns: int = MAX_TURNS) -> None:
        self.clock = VirtualClock(start)
        super().__init__(_JumpingSelector(self.clock, turns))
        # A timer is due within this many seconds of its time.  The usual nanosecond is lost in a float after a few
        # months, and a timer that is due now would never fire.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self.clock.monotonic()

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002
        # A deadline would pass in an instant, before the threads had a chance to end.
        await super().shutdown_default_executor()


class _JumpingSelector(selectors.DefaultSelector):
    """Where an event loop waits; here the wait for a timer moves the clock instead."""

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
            self._left = self._turns  # so that the tasks can be cancelled and the loop closed
            raise Spinning(
                f"not done after {self._turns} turns of the loop, at {self._clock.now().isoformat()}: "
                "something polls without end, or a periodic timer runs while the main coroutine waits for nothing"
            )


def run(main: Coroutine[Any, Any, T], *, start: datetime = START, turns: int = MAX_TURNS) -> T:
    """The result of `main`, run on a VirtualLoop of its own.

    Tasks that `main` leaves behind are cancelled and awaited, and the loop is closed, as `asyncio.run` does.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(start, turns=turns)) as runner:
        return runner.run(main)


def in_virtual_time(test_coroutine: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine, as a plain one that runs it on a VirtualLoop of its own."""

    @wraps(test_coroutine)
    def test(*args: Any, **kwargs: Any) -> None:
        run(test_coroutine(*args, **kwargs))

    return test


def running_clock() -> VirtualClock:
    """The clock of the VirtualLoop that runs the caller."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise RuntimeError(f"{type(loop).__name__} runs on real time; call this from a coroutine given to run()")
    return loop.clock
