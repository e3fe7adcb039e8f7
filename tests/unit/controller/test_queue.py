import asyncio
import itertools
import tracemalloc
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tapestry.controller.queue import INITIAL_BACKOFF, MAX_BACKOFF, Queue, QueueClosed
from tapestry.controller.testing.clock import VirtualClock, VirtualLoop

KEYS = st.sampled_from(["a", "b", "c", "d"])


class WaitingKey(NamedTuple):
    """Position of a key in the queue: fresh keys first, then in order of addition."""

    is_resync: bool
    number: int
    since: float


class QueueModel(RuleBasedStateMachine):
    """A queue compared with a model on virtual time, with workers that take, finish and are cancelled.

    Every rule ends when all its effects have happened, so the model need not know about loop iterations.
    """

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.queue = Queue()
        self.takers: list[asyncio.Task[str]] = []
        self.numbers = itertools.count()
        # the model
        self.waiting: dict[str, WaitingKey] = {}
        self.working: set[str] = set()
        self.again: dict[str, float] = {}
        self.delays: dict[str, tuple[float, int]] = {}
        self.failures: dict[str, int] = {}
        self.closed = False

    def teardown(self) -> None:
        self.runner.close()

    @property
    def now(self) -> float:
        return self.runner.get_loop().time()

    def calls(self, method: str, *args: object, **kwargs: object) -> object:
        """Call a method of the queue on its loop, and let its effects happen."""

        async def call() -> object:
            answer = getattr(self.queue, method)(*args, **kwargs)
            await let_loop_run()
            return answer

        return self.runner.run(call())

    # -- the model

    def added(self, key: str, *, is_resync: bool = False, since: float | None = None) -> None:
        before = self.waiting.get(key)
        if key in self.working:
            self.again.setdefault(key, self.now)
        elif before is None:
            self.waiting[key] = WaitingKey(is_resync, next(self.numbers), self.now if since is None else since)
        elif before.is_resync and not is_resync:
            self.waiting[key] = WaitingKey(False, next(self.numbers), before.since)

    def model_add_after(self, key: str, seconds: float) -> None:
        due = self.now + seconds
        if key not in self.delays or due < self.delays[key][0]:
            self.delays[key] = (due, next(self.numbers))

    def handed_out(self) -> None:
        """Give waiting keys to waiting takers in the model.  The tasks tell which keys they have."""
        expected = set()
        idle = len(self.takers)
        while self.waiting and idle:
            key = min(self.waiting, key=lambda key: self.waiting[key])
            del self.waiting[key]
            self.delays.pop(key, None)
            self.working.add(key)
            expected.add(key)
            idle -= 1
        finished = [task for task in self.takers if task.done()]
        self.takers = [task for task in self.takers if not task.done()]
        assert {task.result() for task in finished} == expected
        assert len(finished) == len(expected)

    # -- rules

    @precondition(lambda self: not self.closed)
    @rule(key=KEYS, resync=st.booleans())
    def add(self, key: str, resync: bool) -> None:
        self.added(key, is_resync=resync)
        self.calls("add", key, resync=resync)
        self.handed_out()

    @precondition(lambda self: not self.closed)
    @rule(key=KEYS, seconds=st.integers(0, 400))
    def add_after(self, key: str, seconds: int) -> None:
        if seconds:
            self.model_add_after(key, seconds)
        else:
            self.added(key)
        self.calls("add_after", key, seconds)
        self.handed_out()

    @precondition(lambda self: not self.closed)
    @rule(key=KEYS)
    def retry(self, key: str) -> None:
        pause = min(MAX_BACKOFF, INITIAL_BACKOFF * 2 ** self.failures.get(key, 0))
        self.failures[key] = self.failures.get(key, 0) + 1
        self.model_add_after(key, pause)
        assert self.calls("retry", key) == pause

    @precondition(lambda self: not self.closed)
    @rule(key=KEYS)
    def forget(self, key: str) -> None:
        self.failures.pop(key, None)
        self.calls("forget", key)

    @precondition(lambda self: not self.closed and len(self.takers) < 4)
    @rule()
    def take(self) -> None:
        async def start() -> None:
            self.takers.append(asyncio.create_task(self.queue.take()))
            await let_loop_run()

        self.runner.run(start())
        self.handed_out()

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.working)))
        self.working.discard(key)
        since = self.again.pop(key, None)
        if since is not None and not self.closed:
            self.added(key, since=since)
        self.calls("done", key)
        self.handed_out()

    @precondition(lambda self: self.takers)
    @rule(data=st.data(), key=st.none() | KEYS)
    def cancel_a_taker(self, data: st.DataObject, key: str | None) -> None:
        """Cancel a taker while it waits, or at the moment a key wakes it."""
        victim = self.takers.pop(data.draw(st.integers(0, len(self.takers) - 1)))

        async def cancel() -> None:
            if key is not None:
                self.queue.add(key)
            victim.cancel()
            await let_loop_run()

        if key is not None:
            self.added(key)
        self.runner.run(cancel())
        assert victim.cancelled()
        self.handed_out()

    @precondition(lambda self: not self.closed)
    @rule(seconds=st.integers(1, 400))
    def time_passes(self, seconds: int) -> None:
        until = self.now + seconds
        due = sorted((when, key) for key, when in self.delays.items() if when[0] <= until + 1e-6)
        for moment, fulfilled in itertools.groupby(due, lambda each: round(each[0][0], 3)):
            self.runner.run(asyncio.sleep(moment - self.now))
            for _, key in fulfilled:
                del self.delays[key]
                self.added(key)
            self.handed_out()
        self.runner.run(asyncio.sleep(until - self.now))

    @precondition(lambda self: not self.closed)
    @rule()
    def close(self) -> None:
        self.calls("close")
        self.closed = True
        self.delays = {}
        self.again = {}
        for task in self.takers:
            assert isinstance(task.exception(), QueueClosed)
        self.takers = []

    @precondition(lambda self: self.closed)
    @rule(key=KEYS)
    def use_after_close(self, key: str) -> None:
        before = len(self.queue)
        for method in ("add", "retry"):
            self.calls(method, key)
        self.calls("add_after", key, 5)
        self.runner.run(asyncio.sleep(10))
        assert len(self.queue) == before
        with pytest.raises(QueueClosed):
            self.runner.run(self.queue.take())

    # -- invariants

    @invariant()
    def queue_equals_model(self) -> None:
        assert len(self.queue) == len(self.waiting)
        if not self.closed:
            assert self.queue.delayed == len(self.delays)
            assert {key: self.queue.failures(key) for key in self.failures} == self.failures

    @invariant()
    def age_is_that_of_first_key(self) -> None:
        front = min(self.waiting.values(), default=None)
        assert self.queue.age(self.now) == (self.now - front.since if front else 0)


async def let_loop_run() -> None:
    """Run some iterations of the loop without advancing the time."""
    for _ in range(10):
        await asyncio.sleep(0)


TestQueueModel = QueueModel.TestCase


async def drained(queue: Queue) -> list[str]:
    return [await queue.take() for _ in range(len(queue))]


async def test_waiting_key_is_queued_once(virtual_time: VirtualClock) -> None:
    queue = Queue()
    for key in ("a", "b", "a", "a"):
        queue.add(key)
    assert await drained(queue) == ["a", "b"]


async def test_key_in_processing_is_queued_again_after_done(virtual_time: VirtualClock) -> None:
    queue = Queue()
    queue.add("a")
    assert await queue.take() == "a"
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert await queue.take() == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_fresh_keys_come_before_resync_keys(virtual_time: VirtualClock) -> None:
    queue = Queue()
    for key in ("r1", "r2", "r3"):
        queue.add(key, resync=True)
    for key in ("f1", "r2", "f2"):
        queue.add(key)
    assert await drained(queue) == ["f1", "r2", "f2", "r1", "r3"]


async def test_resync_does_not_delay_fresh_keys(virtual_time: VirtualClock) -> None:
    queue = Queue()
    queue.add("a")
    queue.add("b")
    queue.add("a", resync=True)
    assert await drained(queue) == ["a", "b"]


async def test_backoff_doubles_up_to_five_minutes(virtual_time: VirtualClock) -> None:
    queue = Queue()
    pauses = []
    for _ in range(20):
        pauses.append(queue.retry("a"))
        before = virtual_time.monotonic()
        assert await queue.take() == "a"
        assert virtual_time.monotonic() - before == pytest.approx(pauses[-1])
        queue.done("a")
    assert pauses[:4] == [0.01, 0.02, 0.04, 0.08]
    assert pauses[-5:] == [300.0] * 5
    queue.forget("a")
    assert queue.retry("a") == 0.01


async def test_thousand_failures_do_not_overflow_the_backoff(virtual_time: VirtualClock) -> None:
    queue = Queue()
    assert [queue.retry("a") for _ in range(2000)][-1] == 300.0


async def test_fresh_key_does_not_wait_for_backoff(virtual_time: VirtualClock) -> None:
    queue = Queue()
    for _ in range(16):
        queue.retry("a")
    queue.add("a")
    assert await queue.take() == "a"
    assert virtual_time.monotonic() == 0


async def test_earliest_delay_counts(virtual_time: VirtualClock) -> None:
    queue = Queue()
    for seconds in (30, 10, 20):
        queue.add_after("a", seconds)
    assert await queue.take() == "a"
    assert virtual_time.monotonic() == 10
    queue.done("a")
    await asyncio.sleep(60)
    assert len(queue) == 0


async def test_immediate_reconcile_covers_delayed_one(virtual_time: VirtualClock) -> None:
    queue = Queue()
    queue.add("a")
    await queue.take()
    queue.add("a")  # while being processed
    queue.add_after("a", 60)
    queue.done("a")
    await queue.take()
    queue.done("a")
    await asyncio.sleep(120)
    assert len(queue) == 0


async def test_delay_remains_while_resync_waits(virtual_time: VirtualClock) -> None:
    queue = Queue()
    queue.add_after("a", 5)
    queue.add("a", resync=True)
    queue.add("b")
    await asyncio.sleep(6)
    queue.add("c")
    assert await drained(queue) == ["b", "a", "c"]


async def test_delay_during_processing_counts_from_then(virtual_time: VirtualClock) -> None:
    queue = Queue()
    queue.add("a")
    await queue.take()
    queue.add_after("a", 10)
    queue.done("a")
    assert await queue.take() == "a"
    assert virtual_time.monotonic() == 10


async def test_stale_delays_do_not_accumulate(virtual_time: VirtualClock) -> None:
    queue = Queue()
    tracemalloc.start()
    try:
        for _ in range(5000):
            queue.add("a")
            await queue.take()
            queue.add_after("a", 86400)
            queue.done("a")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100_000  # about 20 bytes each
    assert await queue.take() == "a"
    assert virtual_time.monotonic() == 86400


async def test_cancelled_taker_passes_its_wakeup_on(virtual_time: VirtualClock) -> None:
    queue = Queue()
    first, second = asyncio.create_task(queue.take()), asyncio.create_task(queue.take())
    await asyncio.sleep(1)
    queue.add("a")
    first.cancel()
    assert await second == "a"
    assert first.cancelled()


async def test_close_ends_waiting_workers(virtual_time: VirtualClock) -> None:
    queue = Queue()
    queue.add("a")
    await queue.take()
    queue.add_after("b", 5)
    waiting = asyncio.create_task(queue.take())
    await asyncio.sleep(1)
    queue.close()
    with pytest.raises(QueueClosed):
        await waiting
    queue.add("a")
    queue.done("a")
    await asyncio.sleep(10)
    assert len(queue) == 0
    with pytest.raises(QueueClosed):
        await queue.take()


async def test_queue_has_work_while_keys_are_ready_or_due(virtual_time: VirtualClock) -> None:
    queue = Queue()
    assert not queue.has_work(100)
    queue.add("a")
    assert queue.has_work(0)
    await queue.take()
    assert queue.has_work(0)
    queue.done("a")
    assert not queue.has_work(100)
    queue.add_after("b", 60)
    assert not queue.has_work(59)
    assert queue.has_work(60)


async def test_lag_counts_from_the_first_change_until_success(virtual_time: VirtualClock) -> None:
    queue = Queue()
    queue.add("a")
    for _ in range(3):
        await queue.take()
        await asyncio.sleep(10)
        queue.retry("a")
        queue.done("a")
    assert queue.lag(virtual_time.monotonic()) >= 30
    await queue.take()
    queue.forget("a")
    queue.done("a")
    queue.add("b", resync=True)
    await asyncio.sleep(10)
    assert queue.lag(virtual_time.monotonic()) == 0
