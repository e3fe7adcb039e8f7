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


class Waiting(NamedTuple):
    """How a key stands in line: fresh work first, then in the order of coming."""

    is_resync: bool
    number: int
    since: float


class TheFourPromises(RuleBasedStateMachine):
    """A queue against a model of it, under virtual time, with workers that take, give back and are cancelled.

    Every rule ends when all that it set off has happened, so the model need not know about turns of a loop.
    """

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.queue = Queue()
        self.takers: list[asyncio.Task[str]] = []
        self.numbers = itertools.count()
        # the model
        self.waiting: dict[str, Waiting] = {}
        self.working: set[str] = set()
        self.again: dict[str, float] = {}
        self.wishes: dict[str, tuple[float, int]] = {}
        self.failures: dict[str, int] = {}
        self.closed = False

    def teardown(self) -> None:
        self.runner.close()

    @property
    def now(self) -> float:
        return self.runner.get_loop().time()

    def calls(self, method: str, *args: object, **kwargs: object) -> object:
        """Call a method of the queue on its loop, and let what follows happen."""

        async def call() -> object:
            answer = getattr(self.queue, method)(*args, **kwargs)
            await settled()
            return answer

        return self.runner.run(call())

    # -- the model

    def added(self, key: str, *, is_resync: bool = False, since: float | None = None) -> None:
        before = self.waiting.get(key)
        if key in self.working:
            self.again.setdefault(key, self.now)
        elif before is None:
            self.waiting[key] = Waiting(is_resync, next(self.numbers), self.now if since is None else since)
        elif before.is_resync and not is_resync:
            self.waiting[key] = Waiting(False, next(self.numbers), before.since)

    def wished(self, key: str, seconds: float) -> None:
        due = self.now + seconds
        if key not in self.wishes or due < self.wishes[key][0]:
            self.wishes[key] = (due, next(self.numbers))

    def handed_out(self) -> None:
        """Waiting takers get what waits; the tasks are asked which keys they have."""
        expected = set()
        idle = len(self.takers)
        while self.waiting and idle:
            key = min(self.waiting, key=lambda key: self.waiting[key])
            del self.waiting[key]
            self.wishes.pop(key, None)
            self.working.add(key)
            expected.add(key)
            idle -= 1
        finished = [task for task in self.takers if task.done()]
        self.takers = [task for task in self.takers if not task.done()]
        assert {task.result() for task in finished} == expected
        assert len(finished) == len(expected)

    # -- what callers do

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
            self.wished(key, seconds)
        else:
            self.added(key)
        self.calls("add_after", key, seconds)
        self.handed_out()

    @precondition(lambda self: not self.closed)
    @rule(key=KEYS)
    def retry(self, key: str) -> None:
        pause = min(MAX_BACKOFF, INITIAL_BACKOFF * 2 ** self.failures.get(key, 0))
        self.failures[key] = self.failures.get(key, 0) + 1
        self.wished(key, pause)
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
            await settled()

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
        """Cancelled while it waits, or in the very moment in which a key would have woken it."""
        victim = self.takers.pop(data.draw(st.integers(0, len(self.takers) - 1)))

        async def cancel() -> None:
            if key is not None:
                self.queue.add(key)
            victim.cancel()
            await settled()

        if key is not None:
            self.added(key)
        self.runner.run(cancel())
        assert victim.cancelled()
        self.handed_out()

    @precondition(lambda self: not self.closed)
    @rule(seconds=st.integers(1, 400))
    def time_passes(self, seconds: int) -> None:
        until = self.now + seconds
        due = sorted((wish, key) for key, wish in self.wishes.items() if wish[0] <= until + 1e-6)
        for moment, fulfilled in itertools.groupby(due, lambda each: round(each[0][0], 3)):
            self.runner.run(asyncio.sleep(moment - self.now))
            for _, key in fulfilled:
                del self.wishes[key]
                self.added(key)
            self.handed_out()
        self.runner.run(asyncio.sleep(until - self.now))

    @precondition(lambda self: not self.closed)
    @rule()
    def close(self) -> None:
        self.calls("close")
        self.closed = True
        self.wishes = {}
        self.again = {}
        for task in self.takers:
            assert isinstance(task.exception(), QueueClosed)
        self.takers = []

    @precondition(lambda self: self.closed)
    @rule(key=KEYS)
    def use_it_all_the_same(self, key: str) -> None:
        before = len(self.queue)
        for method in ("add", "retry"):
            self.calls(method, key)
        self.calls("add_after", key, 5)
        self.runner.run(asyncio.sleep(10))
        assert len(self.queue) == before
        with pytest.raises(QueueClosed):
            self.runner.run(self.queue.take())

    # -- what holds at all times

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        assert len(self.queue) == len(self.waiting)
        if not self.closed:
            assert self.queue.delayed == len(self.wishes)
            assert {key: self.queue.failures(key) for key in self.failures} == self.failures

    @invariant()
    def the_age_is_that_of_the_key_in_front(self) -> None:
        front = min(self.waiting.values(), default=None)
        assert self.queue.age(self.now) == (self.now - front.since if front else 0)


async def settled() -> None:
    """Some turns of the loop, in which no time passes."""
    for _ in range(10):
        await asyncio.sleep(0)


TestTheFourPromises = TheFourPromises.TestCase


async def drained(queue: Queue) -> list[str]:
    return [await queue.take() for _ in range(len(queue))]


async def test_a_key_that_waits_is_held_once(virtual_time: VirtualClock) -> None:
    queue = Queue()
    for key in ("a", "b", "a", "a"):
        queue.add(key)
    assert await drained(queue) == ["a", "b"]


async def test_a_key_in_the_hands_of_a_worker_comes_again_only_after_it_is_done(virtual_time: VirtualClock) -> None:
    queue = Queue()
    queue.add("a")
    assert await queue.take() == "a"
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert await queue.take() == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_fresh_work_goes_before_resync_work(virtual_time: VirtualClock) -> None:
    queue = Queue()
    for key in ("r1", "r2", "r3"):
        queue.add(key, resync=True)
    for key in ("f1", "r2", "f2"):
        queue.add(key)
    assert await drained(queue) == ["f1", "r2", "f2", "r1", "r3"]


async def test_a_resync_does_not_push_fresh_work_back(virtual_time: VirtualClock) -> None:
    queue = Queue()
    queue.add("a")
    queue.add("b")
    queue.add("a", resync=True)
    assert await drained(queue) == ["a", "b"]


async def test_pauses_double_up_to_five_minutes(virtual_time: VirtualClock) -> None:
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


async def test_a_thousand_failures_do_not_overflow_the_pause(virtual_time: VirtualClock) -> None:
    queue = Queue()
    assert [queue.retry("a") for _ in range(2000)][-1] == 300.0


async def test_fresh_work_does_not_wait_for_the_pause_after_a_failure(virtual_time: VirtualClock) -> None:
    queue = Queue()
    for _ in range(16):
        queue.retry("a")
    queue.add("a")
    assert await queue.take() == "a"
    assert virtual_time.monotonic() == 0


async def test_the_earliest_wish_counts(virtual_time: VirtualClock) -> None:
    queue = Queue()
    for seconds in (30, 10, 20):
        queue.add_after("a", seconds)
    assert await queue.take() == "a"
    assert virtual_time.monotonic() == 10
    queue.done("a")
    await asyncio.sleep(60)
    assert len(queue) == 0


async def test_a_look_now_serves_whoever_wished_for_one_later(virtual_time: VirtualClock) -> None:
    queue = Queue()
    queue.add("a")
    await queue.take()
    queue.add("a")  # while a worker has it
    queue.add_after("a", 60)
    queue.done("a")
    await queue.take()
    queue.done("a")
    await asyncio.sleep(120)
    assert len(queue) == 0


async def test_a_wish_is_kept_when_a_resync_is_held_up_by_fresh_work(virtual_time: VirtualClock) -> None:
    queue = Queue()
    queue.add_after("a", 5)
    queue.add("a", resync=True)
    queue.add("b")
    await asyncio.sleep(6)
    queue.add("c")
    assert await drained(queue) == ["b", "a", "c"]


async def test_a_wish_during_a_pass_counts_from_then(virtual_time: VirtualClock) -> None:
    queue = Queue()
    queue.add("a")
    await queue.take()
    queue.add_after("a", 10)
    queue.done("a")
    assert await queue.take() == "a"
    assert virtual_time.monotonic() == 10


async def test_wishes_that_were_overtaken_do_not_pile_up(virtual_time: VirtualClock) -> None:
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
    assert held < 100_000  # some 20 bytes for each of them
    assert await queue.take() == "a"
    assert virtual_time.monotonic() == 86400


async def test_a_worker_cancelled_as_it_is_woken_passes_the_call_on(virtual_time: VirtualClock) -> None:
    queue = Queue()
    first, second = asyncio.create_task(queue.take()), asyncio.create_task(queue.take())
    await asyncio.sleep(1)
    queue.add("a")
    first.cancel()
    assert await second == "a"
    assert first.cancelled()


async def test_closing_ends_waiting_workers_and_lets_keys_in_hand_be_given_back(virtual_time: VirtualClock) -> None:
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
