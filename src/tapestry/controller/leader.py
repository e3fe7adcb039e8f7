"""Leader election on a Lease, with a fence that rejects writes of a former leader.

The clocks of two machines are never compared.  A candidate measures with its own monotonic clock how long the Lease has
not changed.  It acquires the Lease only after a full lease duration.  It watches the Lease, so it acquires a released
one at once.  The leader may write until `renew_deadline` after the *start* of its last successful renewal.  This is
less than the lease duration, so it stops before another leader starts.

The fence is called before each write and reads the clock.  So a process that was suspended and resumed writes nothing,
whichever of its tasks runs first.  When leadership is lost, every connection of the leader's client is cut before
anything else runs.  Then the work is cancelled, and the process campaigns again.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tapestry.client.client import Client
from tapestry.client.watch import Changes, ListPage, Watch
from tapestry.controller.errors import NotLeading
from tapestry.controller.metrics import ELECTIONS, IS_LEADER
from tapestry.kube.errors import Conflict, KubeError, NotFound
from tapestry.kube.objects import Object, owner_reference, value_at, version_of
from tapestry.kube.resources import LEASES, Resource
from tapestry.kube.times import micro_timestamp
from tapestry.process.logs import logger

log = logger(__name__)


Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class LeaseDurations:
    """Seconds: the holder may write for `renew_deadline`, the Lease is free after `lease_duration` without renewal."""

    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry_period < self.renew_deadline < self.lease_duration:
            raise ValueError(
                f"leaderElection: retry {self.retry_period:g} < deadline {self.renew_deadline:g}"
                f" < lease {self.lease_duration:g} must hold"
            )
        if self.lease_duration != int(self.lease_duration):
            raise ValueError(f"leaderElection: lease must be whole seconds, got {self.lease_duration:g}")


@dataclass(slots=True)
class Elector:
    """Campaign for one Lease and run the leader's work while it holds it."""

    client: Client
    """Not fenced, because the fence depends on the election."""
    namespace: str
    name: str
    identity: str
    durations: LeaseDurations = LeaseDurations()
    on_loss: Callable[[], None] = lambda: None
    """Called first when leadership is lost.  Cuts the leader's connections."""
    owner: Object | None = None
    """Owner of the Lease: when it is deleted, so is the Lease."""
    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _may_write_until: float = field(default=float("-inf"), init=False)
    _held: Object | None = field(default=None, init=False)
    """The Lease as last written, while leading."""
    _observed: Object | None = field(default=None, init=False)
    """The Lease as last observed.  `_observed_at` is the monotonic time of its last change."""
    _observed_at: float = field(default=0.0, init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @property
    def is_leading(self) -> bool:
        return self.monotonic() < self._may_write_until

    @property
    def is_cut_off(self) -> bool:
        """True if this process is the last known holder of the Lease but could not renew it."""
        return not self.is_leading and self._observed is not None and holder_of(self._observed) == self.identity

    def fence(self) -> None:
        """Raise NotLeading unless this process may write now."""
        if not self.is_leading:
            raise NotLeading(f"{self.identity} does not lead {self.namespace}/{self.name}")

    async def run(self, work: Work) -> None:
        """Campaign and lead, repeatedly.  Return with the Lease released when `work` returns."""
        IS_LEADER.labels(self.name).set(0)
        async with asyncio.TaskGroup() as group:
            observer = group.create_task(self._watch_lease(), name=f"observe-{self.name}")
            try:
                done = False
                while not done:
                    await self._campaign()
                    done = await self._lead(work)
            finally:
                observer.cancel()
                await self._release()

    async def _watch_lease(self) -> None:
        """Watch the Lease and record the monotonic time of its last change."""
        watch = Watch(self.client, LEASES, self.namespace, fields=f"metadata.name={self.name}")
        async with aclosing(watch.events()) as events:
            async for event in events:
                match event:
                    case Changes(changes):
                        type, lease = changes[-1]
                        self._observe_lease(None if type == "DELETED" else lease)
                    case ListPage([lease, *_]):
                        self._observe_lease(lease)

    def _observe_lease(self, lease: Object | None) -> None:
        if lease is None or self._observed is None or version_of(lease) != version_of(self._observed):
            self._observed, self._observed_at = lease, self.monotonic()
            self._changed.set()

    async def _campaign(self) -> None:
        """Wait until the Lease is free, and acquire it."""
        while True:
            self._changed.clear()
            wait = self._seconds_until_free()
            if wait <= 0:
                if await self._acquire():
                    return
                wait = self.durations.retry_period * random.uniform(0.5, 1.0)
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _seconds_until_free(self) -> float:
        """Return the seconds until the Lease may be acquired.

        A Lease that this process held last is free at once: its connections have been cut.
        """
        if self._observed is None or holder_of(self._observed) in ("", self.identity):
            return 0.0
        length = float(value_at(self._observed, "spec", "leaseDurationSeconds", default=self.durations.lease_duration))
        return self._observed_at + length - self.monotonic()

    async def _lead(self, work: Work) -> bool:
        """Run `work` while the Lease is renewed.  Return whether it completed."""
        log.info("leader lease acquired", election=self.name, identity=self.identity)
        ELECTIONS.labels(self.name, "won").inc()
        IS_LEADER.labels(self.name).set(1)
        task = asyncio.create_task(work(), name=f"lead-{self.name}")
        try:
            while self.is_leading and not task.done():
                await asyncio.wait([task], timeout=min(self.durations.retry_period, self._attempt_timeout()))
                # Check again after the wait: a process suspended past the deadline must not renew, but campaign.
                if self.is_leading and not task.done():
                    await self._renew()
            if task.done():
                task.result()
                return True
        finally:
            IS_LEADER.labels(self.name).set(0)
            if not self.is_leading:
                self._may_write_until = float("-inf")
                self.on_loss()
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        log.error("leader lease lost, campaigning again", election=self.name, identity=self.identity)
        ELECTIONS.labels(self.name, "lost").inc()
        return False

    async def _acquire(self) -> bool:
        """Write the last observed Lease with this holder.  Return whether that succeeded."""
        now = micro_timestamp(self.now())
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(self.durations.lease_duration),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": value_at(self._observed, "spec", "leaseTransitions", default=-1) + 1,
        }
        owners = (
            {"ownerReferences": [owner_reference(self.owner, controller=False, block_deletion=False)]}
            if self.owner
            else {}
        )
        if self._observed is not None:
            lease = {**self._observed, "metadata": {**self._observed["metadata"], **owners}, "spec": spec}
            return await self._write("take", self.client.replace, lease)
        metadata = {"name": self.name, "namespace": self.namespace, **owners}
        lease = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
        return await self._write("take", self.client.create, lease)

    async def _renew(self) -> None:
        """Renew the Lease.  Retry once if it changed and is still ours: a renewal without a response was applied."""
        held = self._held
        if not await self._renew_held() and self._held is not held:
            await self._renew_held()

    async def _renew_held(self) -> bool:
        """Renew the Lease at the version last written.  Raises no error: a Conflict returns False."""
        assert self._held is not None
        spec = {**self._held["spec"], "renewTime": micro_timestamp(self.now())}
        return await self._write("renew", self.client.replace, {**self._held, "spec": spec})

    async def _write(self, action: str, verb: Callable[[Resource, Object], Awaitable[Object]], lease: Object) -> bool:
        """Write the Lease.  Return whether that succeeded.  The renew deadline counts from before the request."""
        started = self.monotonic()
        try:
            async with asyncio.timeout(self._attempt_timeout()):
                self._held = await verb(LEASES, lease)
        except Conflict:
            await self._read_lease()
            return False
        except (KubeError, TimeoutError) as error:
            problem = str(error) or "timed out"
            log.warning("leader lease request failed", election=self.name, doing=action, error=problem)
            ELECTIONS.labels(self.name, "failed").inc()
            return False
        self._may_write_until = started + self.durations.renew_deadline
        return True

    def _attempt_timeout(self) -> float:
        """Return the timeout of one attempt: short enough for a second attempt, and not past the deadline."""
        remaining = self._may_write_until - self.monotonic()
        return min(self.durations.renew_deadline / 2, remaining if remaining > 0 else self.durations.renew_deadline)

    async def _read_lease(self) -> None:
        """Read the Lease.  Stop leading if it has another holder."""
        try:
            async with asyncio.timeout(self.durations.retry_period):
                lease = await self.client.get(LEASES, self.name, self.namespace)
        except NotFound:
            lease = None
        except (KubeError, TimeoutError):
            return
        self._observe_lease(lease)
        if lease is not None and holder_of(lease) == self.identity:
            self._held = lease
        else:
            self._may_write_until = float("-inf")

    async def _release(self) -> None:
        """Release the Lease, so that the next leader need not wait until it expires.

        A cancelled renewal may have reached the server.  Then the Lease is read again and released.
        """
        if self._held is None or not self.is_leading:
            return
        self._may_write_until = float("-inf")
        try:
            async with asyncio.timeout(self.durations.retry_period):
                try:
                    await self.client.replace(LEASES, released_lease(self._held))
                except Conflict:
                    lease = await self.client.get(LEASES, self.name, self.namespace)
                    if holder_of(lease) == self.identity:
                        await self.client.replace(LEASES, released_lease(lease))
        except (KubeError, TimeoutError) as error:
            log.warning("leader lease release failed", election=self.name, error=str(error))
        else:
            log.info("leader lease released", election=self.name, identity=self.identity)


def released_lease(lease: Object) -> Object:
    return {**lease, "spec": {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}}


def holder_of(lease: Object) -> str:
    """Return the identity of the holder, or "" if the Lease was released."""
    return str(value_at(lease, "spec", "holderIdentity", default=""))
