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
from tapestry.kube.objects import Object, reference_to, value_at
from tapestry.kube.resources import EVENTS
from tapestry.kube.times import timestamp
from tapestry.process.logs import logger

log = logger(__name__)

BUFFER = 1000
REMEMBERED = 4096
"""Events and objects remembered for aggregation."""
SIMILAR = 10
"""Messages of one reason about one object, after which they are combined."""
BURST, REFILL_SECONDS = 25, 300.0
"""Events about one object at once, and the seconds after which it earns one more."""
LONGEST_MESSAGE = 1024

K = TypeVar("K")
V = TypeVar("V")
EventType = Literal["Normal", "Warning"]


class Fact(NamedTuple):
    """Something to say about an object."""

    reference: Object
    type: EventType
    reason: str
    message: str


@dataclass(slots=True)
class Allowance:
    left: float
    at: float


@dataclass(slots=True)
class Recorder:
    """Records events through `client`; `run` must be running for anything to reach the server."""

    client: Client
    component: str
    instance: str = ""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _facts: deque[Fact] = field(default_factory=deque, init=False)
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _closed: bool = field(default=False, init=False)
    _written: OrderedDict[tuple[str, ...], Object] = field(default_factory=OrderedDict, init=False)
    _messages: OrderedDict[tuple[str, ...], set[str]] = field(default_factory=OrderedDict, init=False)
    _allowances: OrderedDict[str, Allowance] = field(default_factory=OrderedDict, init=False)

    def normal(self, obj: Object, reason: str, message: str) -> None:
        self._add(Fact(reference_to(obj), "Normal", reason, message))

    def warning(self, obj: Object, reason: str, message: str) -> None:
        self._add(Fact(reference_to(obj), "Warning", reason, message))

    def _add(self, fact: Fact) -> None:
        if len(self._facts) >= BUFFER:
            EVENTS_DROPPED.labels("buffer full").inc()
            return
        self._facts.append(fact)
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
        while self._facts:
            fact = self._combined(self._facts.popleft())
            if not self._allowed(fact):
                EVENTS_DROPPED.labels("too many about one object").inc()
                continue
            try:
                await self._write(fact)
            except (KubeError, NotLeading) as error:
                EVENTS_DROPPED.labels(type(error).__name__).inc()
                log.debug("event not recorded", reason=fact.reason, error=str(error))

    def _combined(self, fact: Fact) -> Fact:
        about = (uid(fact), fact.type, fact.reason)
        messages = remembered(self._messages, about, set)
        if len(messages) < SIMILAR:
            messages.add(fact.message)
        if fact.message in messages:
            return fact
        return fact._replace(message=f"(combined from similar events): {fact.message}")

    def _allowed(self, fact: Fact) -> bool:
        now = asyncio.get_running_loop().time()
        allowance = remembered(self._allowances, uid(fact), lambda: Allowance(BURST, now))
        allowance.left = min(BURST, allowance.left + (now - allowance.at) / REFILL_SECONDS)
        allowance.at = now
        if allowance.left < 1:
            return False
        allowance.left -= 1
        return True

    async def _write(self, fact: Fact) -> None:
        combined = fact.message.startswith("(combined")
        identity = (uid(fact), fact.type, fact.reason, "" if combined else fact.message)
        before = self._written.get(identity)
        if before is not None:
            count = value_at(before, "count", default=1) + 1
            patch = {"count": count, "message": shortened(fact.message), "lastTimestamp": timestamp(self.now())}
            try:
                self._written[identity] = await self.client.patch(EVENTS, before, patch)
                return
            except (NotFound, Conflict):  # it expired (events live an hour), or an answer was lost and it moved on
                del self._written[identity]
        try:
            created = await self.client.create(EVENTS, self._event(fact))
        except AlreadyExists:  # two within a second, of a recorder that forgot: the first stands for both
            return
        remembered(self._written, identity, lambda: created)

    def _event(self, fact: Fact) -> Object:
        now = timestamp(self.now())
        about = fact.reference
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": hashed_name(about["name"], uid(fact), fact.reason, fact.message, self.instance, now),
                "namespace": about.get("namespace", "default"),
            },
            "involvedObject": about,
            "type": fact.type,
            "reason": fact.reason,
            "message": shortened(fact.message),
            "source": {"component": self.component, "host": self.instance},
            "reportingComponent": self.component,
            "reportingInstance": self.instance,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def uid(fact: Fact) -> str:
    return str(fact.reference.get("uid") or fact.reference.get("name", ""))


def shortened(message: str) -> str:
    return message if len(message) <= LONGEST_MESSAGE else message[: LONGEST_MESSAGE - 3] + "..."


def remembered(memory: OrderedDict[K, V], key: K, default: Callable[[], V]) -> V:
    """The value under `key`, made where there is none; the longest unused is forgotten."""
    value = memory.get(key)
    if value is None:
        value = memory[key] = default()
        if len(memory) > REMEMBERED:
            memory.popitem(last=False)
    memory.move_to_end(key)
    return value
