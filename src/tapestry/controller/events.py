"""Recorder of Kubernetes Events, shown in `kubectl describe`.

Recording never waits and never fails a reconcile: one task writes the events from a bounded buffer.  Repeated events
increase the count of one Event.  Many events with one reason about one object are combined.  A token bucket limits the
events about one object.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, NamedTuple, TypeVar

from tapestry.client.client import Client
from tapestry.controller.errors import NotLeading
from tapestry.controller.metrics import EVENTS_DROPPED
from tapestry.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from tapestry.kube.names import hashed_name
from tapestry.kube.objects import Object, object_reference, value_at
from tapestry.kube.resources import EVENTS
from tapestry.kube.times import timestamp
from tapestry.process.logs import logger

log = logger(__name__)

BUFFER_SIZE = 1000
CACHE_SIZE = 4096
"""Maximum number of cached events and objects for aggregation."""
MAX_SIMILAR_EVENTS = 10
"""Number of messages with one reason about one object before they are combined."""
BURST, REFILL_SECONDS = 25, 300.0
"""Token bucket of one object: its size, and the seconds per new token."""
MAX_MESSAGE_LENGTH = 1024

K = TypeVar("K")
V = TypeVar("V")
EventType = Literal["Normal", "Warning"]


class PendingEvent(NamedTuple):
    """An event that is not written yet."""

    reference: Object
    type: EventType
    reason: str
    message: str


@dataclass(slots=True)
class TokenBucket:
    tokens: float
    refilled_at: float


@dataclass(slots=True)
class Recorder:
    """Record events through `client`.  The task `run` writes them."""

    client: Client
    component: str
    instance: str = ""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _pending: deque[PendingEvent] = field(default_factory=deque, init=False)
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _closed: bool = field(default=False, init=False)
    _written: OrderedDict[tuple[str, ...], Object] = field(default_factory=OrderedDict, init=False)
    _messages: OrderedDict[tuple[str, ...], set[str]] = field(default_factory=OrderedDict, init=False)
    _token_buckets: OrderedDict[str, TokenBucket] = field(default_factory=OrderedDict, init=False)

    def normal(self, obj: Object, reason: str, message: str) -> None:
        self._add(PendingEvent(object_reference(obj), "Normal", reason, message))

    def warning(self, obj: Object, reason: str, message: str) -> None:
        self._add(PendingEvent(object_reference(obj), "Warning", reason, message))

    def _add(self, event: PendingEvent) -> None:
        if len(self._pending) >= BUFFER_SIZE:
            EVENTS_DROPPED.labels("buffer full").inc()
            return
        self._pending.append(event)
        self._wake.set()

    async def run(self) -> None:
        """Write recorded events until cancelled, or until closed and empty."""
        while True:
            await self._flush()
            if self._closed:
                return
            self._wake.clear()
            await self._wake.wait()

    def close(self) -> None:
        """Make `run` return after it has written the events recorded so far."""
        self._closed = True
        self._wake.set()

    async def _flush(self) -> None:
        while self._pending:
            event = self._aggregated(self._pending.popleft())
            if not self._take_token(event):
                EVENTS_DROPPED.labels("too many about one object").inc()
                continue
            try:
                await self._write(event)
            except (KubeError, NotLeading) as error:
                EVENTS_DROPPED.labels(type(error).__name__).inc()
                log.debug("event not recorded", reason=event.reason, error=str(error))

    def _aggregated(self, event: PendingEvent) -> PendingEvent:
        key = (involved_uid(event), event.type, event.reason)
        messages = cached_value(self._messages, key, set)
        if len(messages) < MAX_SIMILAR_EVENTS:
            messages.add(event.message)
        if event.message in messages:
            return event
        return event._replace(message=f"(combined from similar events): {event.message}")

    def _take_token(self, event: PendingEvent) -> bool:
        now = asyncio.get_running_loop().time()
        bucket = cached_value(self._token_buckets, involved_uid(event), lambda: TokenBucket(BURST, now))
        bucket.tokens = min(BURST, bucket.tokens + (now - bucket.refilled_at) / REFILL_SECONDS)
        bucket.refilled_at = now
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True

    async def _write(self, event: PendingEvent) -> None:
        combined = event.message.startswith("(combined")
        identity = (involved_uid(event), event.type, event.reason, "" if combined else event.message)
        existing = self._written.get(identity)
        if existing is not None:
            count = value_at(existing, "count", default=1) + 1
            patch = {
                "count": count,
                "message": truncated_message(event.message),
                "lastTimestamp": timestamp(self.now()),
            }
            try:
                self._written[identity] = await self.client.patch(EVENTS, existing, patch)
                return
            except (NotFound, Conflict):  # it expired (after an hour), or a lost response had changed it
                del self._written[identity]
        try:
            created = await self.client.create(EVENTS, self._event(event))
        except AlreadyExists:  # same event within a second after eviction from the cache
            return
        cached_value(self._written, identity, lambda: created)

    def _event(self, event: PendingEvent) -> Object:
        now = timestamp(self.now())
        reference = event.reference
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": hashed_name(
                    reference["name"], involved_uid(event), event.reason, event.message, self.instance, now
                ),
                "namespace": reference.get("namespace", "default"),
            },
            "involvedObject": reference,
            "type": event.type,
            "reason": event.reason,
            "message": truncated_message(event.message),
            "source": {"component": self.component, "host": self.instance},
            "reportingComponent": self.component,
            "reportingInstance": self.instance,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def involved_uid(event: PendingEvent) -> str:
    return str(event.reference.get("uid") or event.reference.get("name", ""))


def truncated_message(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE_LENGTH else message[: MAX_MESSAGE_LENGTH - 3] + "..."


def cached_value(cache: OrderedDict[K, V], key: K, default: Callable[[], V]) -> V:
    """Return the value of `key`, created if missing.  Evict the least recently used value when the cache is full."""
    value = cache.get(key)
    if value is None:
        value = cache[key] = default()
        if len(cache) > CACHE_SIZE:
            cache.popitem(last=False)
    cache.move_to_end(key)
    return value
