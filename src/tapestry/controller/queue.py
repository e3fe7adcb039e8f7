"""The work queue: which keys want attention, and when.

Four properties hold, whatever callers do:
- a key that waits is held once, however often it is added;
- a key is in the hands of one worker at a time; added meanwhile, it comes again after `done`;
- fresh work goes before resync work, and each in the order it came;
- a key that failed comes back after a pause that doubles each time, up to five minutes; fresh work does not wait.
"""

import asyncio
import heapq
import itertools
from collections import OrderedDict, deque
from typing import NamedTuple

INITIAL_BACKOFF = 0.01
MAX_BACKOFF = 300.0
MAX_STALE_ENTRIES = 100
"""Wishes that no longer count and are not worth the search; keys that wish often and far ahead leave many."""


class QueueClosed(Exception):
    """The queue takes and gives no more work."""


class DelayedKey(NamedTuple):
    """A key to be looked at when it is due; of two that are due at once, the first made goes first."""

    due: float
    number: int
    key: str


class Queue:
    """A queue of keys, for one event loop; every time is that of the loop."""

    def __init__(self, *, initial_backoff: float = INITIAL_BACKOFF, max_backoff: float = MAX_BACKOFF) -> None:
        self._initial_backoff, self._max_backoff = initial_backoff, max_backoff
        self._fresh: OrderedDict[str, float] = OrderedDict()  # key -> since when it waits
        self._resync: OrderedDict[str, float] = OrderedDict()
        self._dirty: dict[str, float] = {}  # added while a worker has it
        self._processing: dict[str, float] = {}  # key in hand -> since when it had waited
        self._failures: dict[str, int] = {}
        self._delayed: list[DelayedKey] = []
        self._due: dict[str, DelayedKey] = {}  # key -> the one wish that counts
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._takers: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        """Keys that could be worked on now."""
        return len(self._fresh) + len(self._resync)

    @property
    def delayed(self) -> int:
        return len(self._due)

    def age(self, now: float) -> float:
        """Seconds that the key in front has waited; `now` is the loop's time, for metrics are read in a thread."""
        return now - next(iter((self._fresh or self._resync).values()), now)

    def add(self, key: str, *, resync: bool = False) -> None:
        """Have `key` looked at as soon as a worker is free."""
        if self._closed:
            return
        if key in self._processing:
            self._dirty.setdefault(key, self._now())
        elif key in self._fresh or (resync and key in self._resync):
            return
        elif resync:
            self._resync[key] = self._now()
            self._wake()
        else:
            self._fresh[key] = self._resync.pop(key, self._now())
            self._wake()

    def add_after(self, key: str, seconds: float) -> None:
        """Have `key` looked at in `seconds`, or sooner if it is added otherwise; the earliest wish counts."""
        if self._closed:
            return
        if seconds <= 0:
            self.add(key)
            return
        wish = DelayedKey(self._now() + seconds, next(self._numbers), key)
        if key in self._due and self._due[key].due <= wish.due:
            return
        self._due[key] = wish
        heapq.heappush(self._delayed, wish)
        if len(self._delayed) > 2 * len(self._due) + MAX_STALE_ENTRIES:
            self._delayed = sorted(self._due.values())
        if self._delayed[0] is wish:
            self._set_timer()

    def retry(self, key: str) -> float:
        """Have a key that failed looked at again after its pause, which is returned."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        pause = min(self._max_backoff, self._initial_backoff * 2.0 ** min(failures, 40))
        self.add_after(key, pause)
        return pause

    def forget(self, key: str) -> None:
        """`key` did not fail: its next failure is its first."""
        self._failures.pop(key, None)

    def failures(self, key: str) -> int:
        return self._failures.get(key, 0)

    async def take(self) -> str:
        """The next key, now in the caller's hands until `done`; raises Closed at the end."""
        while not (self._fresh or self._resync or self._closed):
            taker = asyncio.get_running_loop().create_future()
            self._takers.append(taker)
            try:
                await taker
            except asyncio.CancelledError:
                # Woken and cancelled at once: the next in line must not miss the call.
                if taker.done() and not taker.cancelled():
                    self._wake()
                raise
            finally:
                if not taker.done():
                    self._takers.remove(taker)
        if self._closed:
            raise QueueClosed
        key, since = (self._fresh or self._resync).popitem(last=False)
        self._due.pop(key, None)  # whoever wished for a later look is served by this one
        self._processing[key] = since
        return key

    def queued_at(self, key: str) -> float:
        """When the key, now in somebody's hands, was added: the loop's time."""
        return self._processing[key]

    def done(self, key: str) -> None:
        """Give `key` back; it is queued again if it was added meanwhile."""
        self._processing.pop(key, None)
        since = self._dirty.pop(key, None)
        if since is not None and not self._closed:
            self._fresh[key] = since
            self._wake()

    def close(self) -> None:
        """End it: waiting workers get Closed, keys in hand may still be given back."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for taker in self._takers:
            if not taker.done():
                taker.set_result(None)
        self._takers.clear()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _wake(self) -> None:
        while self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                return

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = (
            asyncio.get_running_loop().call_at(self._delayed[0].due, self._add_due_keys) if self._delayed else None
        )

    def _add_due_keys(self) -> None:
        self._timer = None
        now = self._now()
        # The loop may call a timer up to its clock's resolution early.
        while self._delayed and self._delayed[0].due <= now + 0.001:
            wish = heapq.heappop(self._delayed)
            if self._due.get(wish.key) is wish:
                del self._due[wish.key]
                self.add(wish.key)
        self._set_timer()
