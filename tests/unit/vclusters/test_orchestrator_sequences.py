"""Random sequences of requests, faults and kills never leave the state machine of virtual clusters."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.apis.vclusters import VCLUSTERS, Phase, Verb
from tapestry.kube.objects import name_of
from tapestry.kube.times import timestamp
from tapestry.vclusters.plans import Step

from .fake_engine import Faults
from .orchestrator_world import World

MANY = 10_000
"""Number of waits after which each step has exceeded its time."""

FAULTS = st.builds(
    Faults,
    kills_before=st.integers(0, 2),
    kills_after=st.integers(0, 2),
    errors=st.integers(0, 2),
    waits=st.sampled_from((0, 0, 1, 3, MANY)),
    kills_after_undo=st.integers(0, 1),
    undo_errors=st.sampled_from((0, 0, 1, MANY)),
    is_impossible=st.booleans(),
)
REQUESTS = st.tuples(
    st.sampled_from(Verb),
    st.fixed_dictionaries({}, optional={"drainWorkloads": st.booleans(), "createSnapshot": st.booleans()}),
)
ACTIONS = st.one_of(
    REQUESTS,
    st.tuples(st.just("passes"), st.integers(1, 8)),
    st.tuples(st.just("faults"), st.dictionaries(st.sampled_from(Step), FAULTS, max_size=4)),
    st.tuples(st.just("minutes"), st.integers(1, 12)),
    st.tuples(st.just("expire"), st.integers(0, 30)),
    st.tuples(st.just("kill"), st.tuples(st.integers(0, 6), st.booleans())),
    st.tuples(st.sampled_from(["idle", "cancel", "restart", "unhealthy", "healthy"]), st.none()),
)


async def act(world: World, action: Any, argument: Any) -> None:
    match action:
        case Verb():
            if action is not Verb.CREATE:
                await world.request(action, **argument)
        case "passes":
            for _ in range(argument):
                await world.reconcile()
        case "minutes":
            world.time += timedelta(minutes=argument)
        case "cancel":
            await world.cancel()
        case "expire":
            await expire(world, argument)
        case "idle":
            faults = world.engine.faults.values()
            if not any(each.is_impossible or MANY in (each.waits, each.undo_errors) for each in faults):
                await world.run_until_idle()
        case _:
            disturb(world, action, argument)


def disturb(world: World, action: str, argument: Any) -> None:
    match action:
        case "faults":
            world.engine.faults = argument
        case "kill":
            world.transport.requests_left, world.transport.is_after = argument
        case "restart":
            world.restart()
        case "unhealthy":
            world.engine.unhealthy = set(world.engine.clusters)
        case "healthy":
            world.engine.unhealthy = set()


async def expire(world: World, minutes: int) -> None:
    found = await world.vcluster()
    if found is not None:
        time = timestamp(world.time + timedelta(minutes=minutes))
        await world.client.patch(VCLUSTERS, found, {"spec": {"expireTime": time}})


async def run_sequence(created: Verb, actions: list[tuple[Any, Any]]) -> list[Phase | None]:
    """Run random requests and faults, then delete what is left, and return the phases.

    The world checks every change of the phase.
    """
    world = World()
    await world.create(created, snapshotId="s")
    for action, argument in actions:
        await act(world, action, argument)
    world.engine.faults, world.engine.unhealthy = {}, set()
    world.transport.requests_left = None
    await world.run_until_idle()
    found = await world.vcluster()
    if found is not None:
        status = found["status"]
        cluster = world.engine.clusters.get(found["metadata"]["uid"])
        assert status.get("journal") is None
        assert status["phase"] in (Phase.RUNNING, Phase.SUSPENDED, Phase.ERROR)
        if status["phase"] != Phase.ERROR:
            assert cluster is not None
            assert cluster.is_running is (status["phase"] == Phase.RUNNING)
        assert len(status["outbox"]) <= 50
        await world.request(Verb.DELETE)
        await world.run_until_idle()
    assert await world.vcluster() is None
    assert not world.engine.clusters
    names = [name_of(each) for each in await world.records()]
    assert len(names) == len(set(names)) <= world.requests + 1  # an expiry
    return world.phases


CREATIONS = st.sampled_from((Verb.CREATE, Verb.RESTORE))


@settings(max_examples=500, deadline=None)
@given(CREATIONS, st.lists(ACTIONS, max_size=12))
def test_random_sequences_stay_in_the_state_machine(created: Verb, actions: list[tuple[Any, Any]]) -> None:
    assert asyncio.run(run_sequence(created, actions))[-1] is None


@pytest.mark.long
@pytest.mark.timeout(1800)
@settings(max_examples=10_000, deadline=None)
@given(CREATIONS, st.lists(ACTIONS, max_size=16))
def test_ten_thousand_sequences_stay_in_the_state_machine(created: Verb, actions: list[tuple[Any, Any]]) -> None:
    assert asyncio.run(run_sequence(created, actions))[-1] is None
