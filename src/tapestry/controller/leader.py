"""Leader election on a Lease, with a fence that a sleeping leader cannot slip past.

The clocks of two machines are never compared.  A candidate measures, on its own monotonic clock, how long the Lease has
not changed; only after a whole lease duration does it take over.  It watches the Lease, so a released one is taken at
once.  The leader may write until `renew_deadline` after the *start* of its last renewal that succeeded: less than the
lease duration, so it stops before anybody else can begin.

The fence is asked before each write and reads the clock itself.  A process that was stopped and continued therefore
writes nothing, whichever of its tasks wakes first.  When leadership is lost, every connection of the leader's client is
cut before anything else runs; then the work is cancelled, and the process campaigns on.
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
    """Seconds.  A lease nobody renewed for `lease` is free; its holder writes for `deadline` after a renewal."""

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
    """Campaigns for one Lease and runs the leader's work while it holds it."""

    client: Client
    """Not fenced: the election is what the fence stands on."""
    namespace: str
    name: str
    identity: str
    durations: LeaseDurations = LeaseDurations()
    on_loss: Callable[[], None] = lambda: None
    """Called first of all when leadership is lost: cuts the leader's connections."""
    owner: Object | None = None
    """What the Lease goes with when it is deleted."""
    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _may_write_until: float = field(default=float("-inf"), init=False)
    _held: Object | None = field(default=None, init=False)
    """The Lease as we last wrote it, while we lead."""
    _observed: Object | None = field(default=None, init=False)
    """The Lease as we last saw it, and since when it has not changed, on our clock."""
    _observed_at: float = field(default=0.0, init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @property
    def is_leading(self) -> bool:
        return self.monotonic() < self._may_write_until

    @property
    def is_cut_off(self) -> bool:
        """Whether this process led last, as far as it knows, and may not write: it could not renew its Lease."""
        return not self.is_leading and self._observed is not None and holder_of(self._observed) == self.identity

    def fence(self) -> None:
        """Raise NotLeading unless this process may write at this very moment."""
        if not self.is_leading:
            raise NotLeading(f"{self.identity} does not lead {self.namespace}/{self.name}")

    async def run(self, work: Work) -> None:
        """Campaign, lead, campaign again.  Returns, with the Lease released, when `work` returns of its own accord."""
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
        """Follow the Lease and note, on our own clock, when it last changed."""
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
        """Wait until the Lease is free, and take it."""
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
        """Seconds until the Lease may be taken, as far as we have seen.

        One that we lost and nobody took is free for us: what we did under it has been cut off.
        """
        if self._observed is None or holder_of(self._observed) in ("", self.identity):
            return 0.0
        lasts = float(value_at(self._observed, "spec", "leaseDurationSeconds", default=self.durations.lease_duration))
        return self._observed_at + lasts - self.monotonic()

    async def _lead(self, work: Work) -> bool:
        """Run `work` while the Lease is renewed; whether it ended by itself."""
        log.info("leading", election=self.name, identity=self.identity)
        ELECTIONS.labels(self.name, "won").inc()
        IS_LEADER.labels(self.name).set(1)
        working = asyncio.create_task(work(), name=f"lead-{self.name}")
        try:
            while self.is_leading and not working.done():
                await asyncio.wait([working], timeout=min(self.durations.retry_period, self._attempt_timeout()))
                # Asked again after the wait: whoever slept through the deadline must not renew, but campaign.
                if self.is_leading and not working.done():
                    await self._renew()
            if working.done():
                working.result()
                return True
        finally:
            IS_LEADER.labels(self.name).set(0)
            if not self.is_leading:
                self._may_write_until = float("-inf")
                self.on_loss()
            if not working.done():
                working.cancel()
                await asyncio.wait([working])
        log.error("lost the lead; campaigning on", election=self.name, identity=self.identity)
        ELECTIONS.labels(self.name, "lost").inc()
        return False

    async def _acquire(self) -> bool:
        """Make the Lease ours as it was last seen; whether nobody was quicker."""
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
            taken = {**self._observed, "metadata": {**self._observed["metadata"], **owners}, "spec": spec}
            return await self._write("take", self.client.replace, taken)
        metadata = {"name": self.name, "namespace": self.namespace, **owners}
        lease = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
        return await self._write("take", self.client.create, lease)

    async def _renew(self) -> None:
        """Hold the Lease for longer; again, if it has changed and is still ours: a renewal thought lost had arrived."""
        held = self._held
        if not await self._renew_held() and self._held is not held:
            await self._renew_held()

    async def _renew_held(self) -> bool:
        """Renew the Lease as we last knew it: if it has changed since, this is a Conflict."""
        assert self._held is not None
        spec = {**self._held["spec"], "renewTime": micro_timestamp(self.now())}
        return await self._write("renew", self.client.replace, {**self._held, "spec": spec})

    async def _write(self, what: str, verb: Callable[[Resource, Object], Awaitable[Object]], lease: Object) -> bool:
        """Write the Lease; whether that worked.  The right to write counts from before the request."""
        started = self.monotonic()
        try:
            async with asyncio.timeout(self._attempt_timeout()):
                self._held = await verb(LEASES, lease)
        except Conflict:
            await self._read_lease()
            return False
        except (KubeError, TimeoutError) as error:
            log.warning("election failed", election=self.name, doing=what, error=str(error) or "no answer in time")
            ELECTIONS.labels(self.name, "failed").inc()
            return False
        self._may_write_until = started + self.durations.renew_deadline
        return True

    def _attempt_timeout(self) -> float:
        """Seconds for one attempt: a dead connection must leave time for another, a leader must not be late."""
        left = self._may_write_until - self.monotonic()
        return min(self.durations.renew_deadline / 2, left if left > 0 else self.durations.renew_deadline)

    async def _read_lease(self) -> None:
        """Read the Lease as it is; if it is somebody else's, we lead no more."""
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
        """Give up the Lease, so that the next leader need not wait until it expires.

        A renewal that was cancelled may have reached the server: the Lease is then read again and released as it is.
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
            log.warning(
                "could not release the lease; the next leader waits for it", election=self.name, error=str(error)
            )
        else:
            log.info("released the lease", election=self.name, identity=self.identity)


def released_lease(lease: Object) -> Object:
    """The same Lease without a holder."""
    return {**lease, "spec": {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}}


def holder_of(lease: Object) -> str:
    """Whose the Lease is; nobody's where it was released."""
    return str(value_at(lease, "spec", "holderIdentity", default=""))
