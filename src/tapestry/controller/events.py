"""Events: what people see of a controller in `kubectl describe`.

Recording never waits and never fails a reconcile: events go through a bounded buffer to one task.  The same event about
the same object is one Event whose count grows; many events of one reason about one object become one that says so; an
object that is talked about too much is talked about less.
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
"""Events and objects remembered for aggregation."""
MAX_SIMILAR_EVENTS = 10
"""Messages of one reason about one object, after which they are combined."""
BURST, REFILL_SECONDS = 25, 300.0
"""Events about one object at once, and the seconds after which it earns one more."""
MAX_MESSAGE_LENGTH = 1024

K = TypeVar("K")
V = TypeVar("V")
EventType = Literal["Normal", "Warning"]


class PendingEvent(NamedTuple):
    """Something to say about an object."""

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
    """Records events through `client`; `run` must be running for anything to reach the server."""

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
        """Write what is recorded, until cancelled, or closed and empty."""
        while True:
            await self._flush()
            if self._closed:
                return
            self._wake.clear()
            await self._wake.wait()

    def close(self) -> None:
        """Let `run` end when it has written what is recorded so far."""
        self._closed = True
        self._wake.set()

    async def _flush(self) -> None:
        while self._pending:
            fact = self._aggregated(self._pending.popleft())
            if not self._take_token(fact):
                EVENTS_DROPPED.labels("too many about one object").inc()
                continue
            try:
                await self._write(fact)
            except (KubeError, NotLeading) as error:
                EVENTS_DROPPED.labels(type(error).__name__).inc()
                log.debug("event not recorded", reason=fact.reason, error=str(error))

    def _aggregated(self, event: PendingEvent) -> PendingEvent:
        about = (involved_uid(event), event.type, event.reason)
        messages = cached_value(self._messages, about, set)
        if len(messages) < MAX_SIMILAR_EVENTS:
            messages.add(event.message)
        if event.message in messages:
            return event
        return event._replace(message=f"(combined from similar events): {event.message}")

    def _take_token(self, event: PendingEvent) -> bool:
        now = asyncio.get_running_loop().time()
        allowance = cached_value(self._token_buckets, involved_uid(event), lambda: TokenBucket(BURST, now))
        allowance.tokens = min(BURST, allowance.tokens + (now - allowance.refilled_at) / REFILL_SECONDS)
        allowance.refilled_at = now
        if allowance.tokens < 1:
            return False
        allowance.tokens -= 1
        return True

    async def _write(self, event: PendingEvent) -> None:
        combined = event.message.startswith("(combined")
        identity = (involved_uid(event), event.type, event.reason, "" if combined else event.message)
        before = self._written.get(identity)
        if before is not None:
            count = value_at(before, "count", default=1) + 1
            patch = {
                "count": count,
                "message": truncated_message(event.message),
                "lastTimestamp": timestamp(self.now()),
            }
            try:
                self._written[identity] = await self.client.patch(EVENTS, before, patch)
                return
            except (NotFound, Conflict):  # it expired (events live an hour), or an answer was lost and it moved on
                del self._written[identity]
        try:
            created = await self.client.create(EVENTS, self._event(event))
        except AlreadyExists:  # two within a second, of a recorder that forgot: the first stands for both
            return
        cached_value(self._written, identity, lambda: created)

    def _event(self, event: PendingEvent) -> Object:
        now = timestamp(self.now())
        about = event.reference
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": hashed_name(
                    about["name"], involved_uid(event), event.reason, event.message, self.instance, now
                ),
                "namespace": about.get("namespace", "default"),
            },
            "involvedObject": about,
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
    """The value under `key`, made where there is none; the longest unused is forgotten."""
    value = cache.get(key)
    if value is None:
        value = cache[key] = default()
        if len(cache) > CACHE_SIZE:
            cache.popitem(last=False)
    cache.move_to_end(key)
    return value
