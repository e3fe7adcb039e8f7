"""Orphan twins: deleted after confirmation and at a limited rate."""

import asyncio
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from tapestry.apis import keys
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.objects import is_deleting, object_named
from tapestry.kube.resources import NODES, PODS
from tapestry.syncer.topdown.orphans import CONFIRMATION_DELAY, DELETION_PERIOD, MAX_DELETIONS, OrphanTracker

from ..world import World, new_world

TWICE = CONFIRMATION_DELAY.total_seconds()
NOW = datetime(2024, 1, 1, tzinfo=UTC)


def test_twin_of_observed_deletion_is_deleted_at_once() -> None:
    orphans = OrphanTracker()
    orphans.mark_pod_deleted("u1")
    assert orphans.record_sighting("u1", NOW) is None


def test_sighting_restarts_after_pod_or_twin_returns() -> None:
    orphans = OrphanTracker()
    orphans.record_sighting("u1", NOW)
    orphans.forget("u1")
    later = NOW + CONFIRMATION_DELAY
    assert orphans.record_sighting("u1", later) == later + CONFIRMATION_DELAY


@given(st.lists(st.integers(0, 100), min_size=MAX_DELETIONS, max_size=3 * MAX_DELETIONS))
def test_deletions_per_minute_are_limited_and_complete(pauses: list[int]) -> None:
    orphans, deleted = OrphanTracker(), []
    due = [(NOW + timedelta(seconds=sum(pauses[:number])), f"u{number}") for number in range(len(pauses))]
    while due:
        due.sort()
        now, uid = due.pop(0)
        again = orphans.record_sighting(uid, now)
        if again is None:
            deleted.append(now)
        else:
            assert again > now
            due.append((again, uid))
    assert len(deleted) == len(pauses)
    assert all(
        later - earlier >= DELETION_PERIOD for earlier, later in zip(deleted, deleted[MAX_DELETIONS:], strict=False)
    )


# -- in a running syncer


async def create_orphan(world: World, name: str) -> None:
    """Create a twin whose pod is deleted while no syncer runs."""
    await world.virtual.delete(PODS, object_named(name, "default"), grace_seconds=0)


@in_virtual_time
async def test_safety_rule_2_orphan_is_deleted_after_second_sighting() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
    await create_orphan(world, "work")
    async with world.syncer():
        await asyncio.sleep(TWICE - 1)
        assert not is_deleting(await world.twin())
        await asyncio.sleep(2)
        assert is_deleting(await world.twin())


@in_virtual_time
async def test_safety_rule_2_orphan_deletions_are_limited() -> None:
    world = await new_world()
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "500"}
    status = {"status": {"capacity": amounts, "allocatable": amounts}}
    await world.physical.patch(NODES, object_named("n1"), status, subresource="status")
    names = [f"p{number}" for number in range(MAX_DELETIONS + 20)]
    async with world.syncer():
        for name in names:
            await world.add_pod(name)
        await asyncio.sleep(10)
        assert len(await world.twins()) == len(names)
    for name in names:
        await create_orphan(world, name)
    async with world.syncer():
        await asyncio.sleep(TWICE + 5)
        assert len(await world.twins()) == 20
        await asyncio.sleep(DELETION_PERIOD.total_seconds())
        assert await world.twins() == []


@in_virtual_time
async def test_safety_rule_1_imitated_twin_is_never_changed() -> None:
    world = await new_world()
    claims = {
        keys.VIRTUAL_POD_NAMESPACE: "default",
        keys.VIRTUAL_POD_NAME: "gone",
        keys.VIRTUAL_POD_UID: "gone",
    }
    place = await world.twin_ref("gone")
    metadata = {**place["metadata"], "annotations": claims, "labels": {keys.MANAGED_BY: keys.TAPESTRY}}
    foreign = await world.physical.create(
        PODS, {"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}}
    )
    async with world.syncer():
        await asyncio.sleep(10 * TWICE)
        assert await world.twins() == [foreign]
