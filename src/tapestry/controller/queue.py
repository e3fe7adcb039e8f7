"""The work queue of a controller: keys to reconcile, with deduplication, delays and backoff.

It guarantees:
- a waiting key is in the queue once, however often it is added
- only one worker at a time processes a key; if it is added meanwhile, it is queued again after `done`
- fresh keys come before resync keys, each in the order they were added
- a failed key is queued again after a backoff that doubles each time, up to five minutes; a new change does not wait
"""

import asyncio
import heapq
import itertools
from collections import OrderedDict, deque
from typing import NamedTuple

INITIAL_BACKOFF = 0.01
MAX_BACKOFF = 300.0
MAX_STALE_ENTRIES = 100
"""Stale heap entries that are tolerated before the heap is rebuilt."""


class QueueClosed(Exception):
    """The queue was closed."""


class DelayedKey(NamedTuple):
    """A key with its due time.  Entries with the same due time keep their order."""

    due: float
    number: int
    key: str


class Queue:
    """A queue of keys for one event loop.  All times are `loop.time()`."""

    def __init__(self, *, initial_backoff: float = INITIAL_BACKOFF, max_backoff: float = MAX_BACKOFF) -> None:
        self._initial_backoff, self._max_backoff = initial_backoff, max_backoff
        self._fresh: OrderedDict[str, float] = OrderedDict()  # key -> time it was added
        self._resync: OrderedDict[str, float] = OrderedDict()
        self._dirty: dict[str, float] = {}  # added while being processed
        self._processing: dict[str, float] = {}  # key -> time it was added
        self._failures: dict[str, int] = {}
        self._failing: dict[str, float] = {}  # key -> time at which the first of its failed changes was added
        self._delayed: list[DelayedKey] = []
        self._due: dict[str, DelayedKey] = {}  # key -> its earliest entry
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._takers: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        """Return the number of keys that are ready."""
        return len(self._fresh) + len(self._resync)

    @property
    def delayed(self) -> int:
        return len(self._due)

    def has_work(self, seconds: float) -> bool:
        """Return whether a key is ready or in processing, or due in `seconds`."""
        end = self._now() + seconds
        return bool(self or self._processing) or any(each.due <= end for each in self._due.values())

    def age(self, now: float) -> float:
        """Return the seconds that the first key has waited.  `now` is the loop's time: metrics are read in a thread."""
        return now - next(iter((self._fresh or self._resync).values()), now)

    def lag(self, now: float) -> float:
        """Return the seconds since the oldest change that is not handled, or not successfully.

        `now` is the loop's time. Resync keys that wait are no changes.
        """
        groups = self._fresh, self._dirty, self._processing, self._failing
        return now - min((since for each in groups for since in list(each.values())), default=now)

    def add(self, key: str, *, resync: bool = False) -> None:
        """Queue `key` for the next free worker."""
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
        """Queue `key` in `seconds`.  Of several calls, the earliest time counts."""
        if self._closed:
            return
        if seconds <= 0:
            self.add(key)
            return
        entry = DelayedKey(self._now() + seconds, next(self._numbers), key)
        if key in self._due and self._due[key].due <= entry.due:
            return
        self._due[key] = entry
        heapq.heappush(self._delayed, entry)
        if len(self._delayed) > 2 * len(self._due) + MAX_STALE_ENTRIES:
            self._delayed = sorted(self._due.values())
        if self._delayed[0] is entry:
            self._set_timer()

    def retry(self, key: str) -> float:
        """Queue a failed key after its backoff.  Return the backoff in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self._failing.setdefault(key, self._processing.get(key, self._now()))
        pause = min(self._max_backoff, self._initial_backoff * 2.0 ** min(failures, 40))
        self.add_after(key, pause)
        return pause

    def forget(self, key: str) -> None:
        """Reset the backoff of `key`."""
        self._failures.pop(key, None)
        self._failing.pop(key, None)

    def failures(self, key: str) -> int:
        return self._failures.get(key, 0)

    async def wait_for_key(self) -> None:
        """Wait until a key is ready.  Raise QueueClosed after `close`."""
        while not (self._fresh or self._resync or self._closed):
            taker = asyncio.get_running_loop().create_future()
            self._takers.append(taker)
            try:
                await taker
            except asyncio.CancelledError:
                # Woken and cancelled at the same time: pass the wake-up on to the next taker.
                if taker.done() and not taker.cancelled():
                    self._wake()
                raise
            finally:
                if not taker.done():
                    self._takers.remove(taker)
        if self._closed:
            raise QueueClosed

    async def take(self) -> str:
        """Return the next key, which the caller must pass to `done`.  Raise QueueClosed after `close`."""
        await self.wait_for_key()
        key, since = (self._fresh or self._resync).popitem(last=False)
        self._due.pop(key, None)  # this reconcile also covers a delayed one
        self._processing[key] = since
        return key

    def queued_at(self, key: str) -> float:
        """Return the time at which a key in processing was added."""
        return self._processing[key]

    def done(self, key: str) -> None:
        """Finish processing `key`.  It is queued again if it was added meanwhile."""
        self._processing.pop(key, None)
        since = self._dirty.pop(key, None)
        if since is not None and not self._closed:
            self._fresh[key] = since
            self._wake()

    def close(self) -> None:
        """Close the queue.  Waiting workers get QueueClosed, keys in processing may still be passed to `done`."""
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
        # The loop may call a timer early, by up to the resolution of its clock.
        while self._delayed and self._delayed[0].due <= now + 0.001:
            entry = heapq.heappop(self._delayed)
            if self._due.get(entry.key) is entry:
                del self._due[entry.key]
                self.add(entry.key)
        self._set_timer()
