"""Leader election on virtual time: one API and several candidates, each with its own clock."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from prometheus_client import REGISTRY

from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controller.errors import NotLeading
from tapestry.controller.leader import Elector, LeaseDurations
from tapestry.controller.testing import InProcessApi, in_virtual_time, running_clock
from tapestry.kube.objects import Object, value_at, version_of
from tapestry.kube.resources import LEASES
from tapestry.kube.times import micro_timestamp

TERMS = LeaseDurations(lease_duration=15, renew_deadline=10, retry_period=2)


@dataclass
class Candidate:
    """An elector whose work records its start and end."""

    api: InProcessApi
    name: str
    history: list[str] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    began: asyncio.Event = field(default_factory=asyncio.Event)
    cut_off: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        clock = running_clock()
        self.transport = self.api.connect()
        self.elector = Elector(
            Client(self.transport),
            "default",
            "election",
            self.name,
            TERMS,
            on_loss=self.cut,
            monotonic=clock.monotonic,
            now=clock.now,
        )

    async def run(self) -> None:
        await self.elector.run(self.work)

    def cut(self) -> None:
        self.history.append("cut off")
        self.cut_off.set()

    async def work(self) -> None:
        self.history.append("began")
        self.began.set()
        try:
            await self.done.wait()
        except asyncio.CancelledError:
            self.history.append("cancelled")
            raise
        self.history.append("ended")


async def lease_of(api: InProcessApi) -> Object:
    return await Client(api).get(LEASES, "election", "default")


def new_api() -> InProcessApi:
    return InProcessApi([LEASES], now=running_clock().now)


@asynccontextmanager
async def standing(candidate: Candidate) -> AsyncIterator[None]:
    """Run a candidate for the duration of the context."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(candidate.run())
        yield
        task.cancel()


@in_virtual_time
async def test_one_candidate_leads_and_the_other_waits() -> None:
    api = new_api()
    first, second = Candidate(api, "first"), Candidate(api, "second")
    async with standing(first):
        await asyncio.sleep(1)
        async with standing(second):
            await asyncio.sleep(3600)
            assert first.elector.is_leading
            assert not second.elector.is_leading
            assert (first.history, second.history) == (["began"], [])


@in_virtual_time
async def test_standby_reports_that_it_does_not_lead() -> None:
    api = new_api()
    async with standing(Candidate(api, "first")):
        await asyncio.sleep(1)
        async with standing(second := Candidate(api, "second")):
            await asyncio.sleep(60)
            assert REGISTRY.get_sample_value("tapestry_is_leader", {"election": second.elector.name}) == 0


@in_virtual_time
async def test_lease_is_released_after_interrupted_renewal() -> None:
    api = new_api()
    first, second = Candidate(api, "first"), Candidate(api, "second")
    async with asyncio.TaskGroup() as group:
        group.create_task(first.run())
        await first.began.wait()
        standby = group.create_task(second.run())
        await asyncio.sleep(1)
        # The server has a renewal whose response the leader never read.
        lease = await lease_of(api)
        renewed = {**lease["spec"], "renewTime": micro_timestamp(running_clock().now())}
        await Client(api).replace(LEASES, {**lease, "spec": renewed})
        stopped = running_clock().monotonic()
        first.done.set()
        await second.began.wait()
        assert running_clock().monotonic() - stopped < 0.5
        standby.cancel()


@in_virtual_time
async def test_lease_is_released_when_work_is_done() -> None:
    api = new_api()
    first, second = Candidate(api, "first"), Candidate(api, "second")
    async with asyncio.TaskGroup() as group:
        group.create_task(first.run())
        await asyncio.sleep(5)
        standby = group.create_task(second.run())
        await asyncio.sleep(5)
        stopped_at = running_clock().monotonic()
        first.done.set()
        await second.began.wait()
        assert running_clock().monotonic() - stopped_at < 0.5
        assert first.history == ["began", "ended"]
        assert value_at(await lease_of(api), "spec", "leaseTransitions") == 1
        standby.cancel()


@in_virtual_time
async def test_expired_lease_is_taken_after_its_duration() -> None:
    api = new_api()
    first, second = Candidate(api, "first"), Candidate(api, "second")
    async with asyncio.TaskGroup() as group:
        leading = group.create_task(first.run())
        await asyncio.sleep(1)
        standby = group.create_task(second.run())
        await asyncio.sleep(60)
        dies_without_release(first)
        leading.cancel()
        died = running_clock().monotonic()
        await second.began.wait()
        took = running_clock().monotonic() - died
        assert TERMS.lease_duration - TERMS.retry_period <= took <= TERMS.lease_duration + 1
        standby.cancel()


def dies_without_release(candidate: Candidate) -> None:
    candidate.elector._may_write_until = float("-inf")


@in_virtual_time
async def test_safety_rule_4_fence_allows_writes_only_while_leading() -> None:
    api = new_api()
    candidate = Candidate(api, "first")
    with pytest.raises(NotLeading, match="first does not lead default/election"):
        candidate.elector.fence()
    async with standing(candidate):
        await asyncio.sleep(1)
        candidate.elector.fence()
    with pytest.raises(NotLeading):
        candidate.elector.fence()


@in_virtual_time
async def test_safety_rule_4_cut_off_leader_stops_before_lease_expires() -> None:
    api = new_api()
    leader = Candidate(api, "first")
    async with standing(leader):
        await asyncio.sleep(30)
        leader.elector.client = Client(Unreachable())
        cut = running_clock().monotonic()
        await leader.cut_off.wait()
        assert running_clock().monotonic() - cut <= TERMS.renew_deadline
        await asyncio.sleep(1)
        assert leader.history == ["began", "cut off", "cancelled"]  # connections first, then the work


@in_virtual_time
async def test_safety_rule_4_suspended_leader_does_not_take_lease_back() -> None:
    """It observes the new leader's Lease first, and could renew on top of that."""
    api = new_api()
    sleeper, successor = Candidate(api, "sleeper"), Candidate(api, "successor")
    async with standing(sleeper):
        await asyncio.sleep(1)
        sleeper.elector._may_write_until = running_clock().monotonic()  # it resumes after its deadline
        stolen = await lease_of(api)
        stolen["spec"]["holderIdentity"] = "successor"
        await Client(api).replace(LEASES, stolen)
        async with standing(successor):
            await asyncio.sleep(TERMS.lease_duration - 1)
            assert value_at(await lease_of(api), "spec", "holderIdentity") == "successor"
            assert not sleeper.elector.is_leading


@in_virtual_time
async def test_edited_lease_of_leader_remains() -> None:
    api = new_api()
    leader = Candidate(api, "first")
    async with standing(leader):
        await asyncio.sleep(5)
        lease = await lease_of(api)
        lease["metadata"]["labels"] = {"touched": "yes"}
        await Client(api).replace(LEASES, lease)
        await asyncio.sleep(60)
        assert leader.elector.is_leading
        assert leader.history == ["began"]


@in_virtual_time
async def test_unconfirmed_renewal_is_repeated_at_once() -> None:
    """Its own renewal conflicts with the next.  Waiting for the next period could exceed the deadline."""
    api = new_api()
    leader = Candidate(api, "first")
    async with standing(leader):
        await asyncio.sleep(5)
        late = await lease_of(api)
        await Client(api).replace(LEASES, {**late, "spec": {**late["spec"], "renewTime": None}})
        version = (await lease_of(api))["metadata"]["resourceVersion"]
        began = running_clock().monotonic()
        await wait_for(
            Client(api),
            LEASES,
            "election",
            "default",
            until=lambda lease: lease is not None and version_of(lease) != version,
            timeout=60,
        )
        assert running_clock().monotonic() - began <= TERMS.retry_period


@in_virtual_time
async def test_suspended_leader_leads_again_if_lease_is_free() -> None:
    api = new_api()
    sleeper = Candidate(api, "sleeper")
    async with standing(sleeper):
        await asyncio.sleep(5)
        sleeper.elector._may_write_until = running_clock().monotonic()  # it resumes after its deadline
        await sleeper.cut_off.wait()
        await asyncio.sleep(1)
        assert sleeper.history == ["began", "cut off", "cancelled", "began"]


@in_virtual_time
async def test_lost_leader_campaigns_again() -> None:
    api = new_api()
    leader = Candidate(api, "first")
    async with standing(leader):
        await asyncio.sleep(5)
        lease = await lease_of(api)
        lease["spec"]["holderIdentity"] = "usurper"
        await Client(api).replace(LEASES, lease)
        await asyncio.sleep(60)
        assert leader.history == ["began", "cut off", "cancelled", "began"]


@pytest.mark.parametrize("terms", [(10, 15, 2), (15, 10, 12), (15, 10, 0)])
def test_durations_that_allow_two_leaders_are_rejected(terms: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="must hold"):
        LeaseDurations(*terms)


class Unreachable:
    """A network that drops everything."""

    async def send(self, _: object) -> object:
        await asyncio.sleep(3600)
        raise AssertionError

    def abort(self) -> None: ...
