"""Ends of pods and twins that a user or an owner requests."""

import asyncio

import pytest
from prometheus_client import REGISTRY

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.ownership import MAX_GRACE_SECONDS
from tapestry.client.watch import wait_for
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.objects import is_deleting, object_named, value_at
from tapestry.kube.resources import LEASES, NODES, PODS
from tapestry.syncer.config import SyncerLeaderElection

from ..world import MOUNT, World, forbidden, has_condition, new_world, phase, rejecting

ELECTION = SyncerLeaderElection(name="syncer")


async def grace_of_twin(world: World) -> int | None:
    found: int | None = value_at(await world.twin(), "metadata", "deletionGracePeriodSeconds")
    return found


def node_passes() -> float:
    outcomes = ("ok", "requeued", "error", "terminal")
    series = [{"controller": "nodes", "outcome": outcome} for outcome in outcomes]
    return sum(REGISTRY.get_sample_value("tapestry_reconcile_seconds_count", labels) or 0 for labels in series)


# -- deletion


@pytest.mark.parametrize(("own", "requested", "grace"), [(None, None, 30), (90, None, 90), (90, 5, 5)])
@in_virtual_time
async def test_deleted_pod_waits_for_twin_with_its_grace(own: int | None, requested: int | None, grace: int) -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod(**({} if own is None else {"terminationGracePeriodSeconds": own}))
        await world.delete_pod(grace=requested)
        await world.wait_for_twin(is_deleting)
        assert await grace_of_twin(world) == grace
        await asyncio.sleep(3)
        assert is_deleting(await world.pod())
        await world.stop()
        await world.wait_until_pod_is_gone()


@in_virtual_time
async def test_reported_twin_deletion_needs_no_read() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        await world.delete_pod()
        await world.wait_for_twin(is_deleting)
        world.down.requests.clear()
        await world.stop()
        await world.wait_until_pod_is_gone()
        assert [str(request) for request in world.down.requests if "/pods/" in request.path] == []


@in_virtual_time
async def test_pod_on_open_lease_needs_no_node_pass() -> None:
    world = await new_world()
    async with world.syncer():
        await asyncio.sleep(10)
        before = node_passes()
        await world.run_pod()
        await asyncio.sleep(5)
        await world.delete_pod()
        await world.wait_for_twin(is_deleting)
        await world.stop()
        await world.wait_until_pod_is_gone()
        assert node_passes() == before


@in_virtual_time
async def test_only_shorter_second_grace_is_propagated() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod(terminationGracePeriodSeconds=600)
        await world.delete_pod()
        await world.wait_for_twin(is_deleting)
        await world.delete_pod(grace=10)
        await asyncio.sleep(1)
        assert await grace_of_twin(world) == 10
        deletions = len(world.down.writes("DELETE"))
        await world.delete_pod(grace=300)
        await asyncio.sleep(1)
        assert await grace_of_twin(world) == 10
        assert len(world.down.writes("DELETE")) == deletions


@in_virtual_time
async def test_force_deleted_pod_deletes_its_twin() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        await world.delete_pod(grace=0)
        await world.wait_for_twin(is_deleting, timeout=1)
        assert await grace_of_twin(world) == 30


@in_virtual_time
async def test_finished_twin_stays_until_pod_deletion() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        await world.end("Succeeded")
        await world.wait_for_pod(phase("Succeeded"))
        await asyncio.sleep(3600)
        assert len(await world.twins()) == 1
        await world.delete_pod()
        await world.wait_until_twin_is_gone()


@in_virtual_time
async def test_pod_without_twin_is_deleted() -> None:
    world = await new_world()
    async with world.syncer():
        await world.add_pod(hostNetwork=True)
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "PodSecurity"))
        await world.delete_pod()
        await world.wait_until_pod_is_gone()


@pytest.mark.parametrize("end", ["Succeeded", None])
@in_virtual_time
async def test_pod_with_finalizer_reports_its_end(end: str | None) -> None:
    """Otherwise its node would wait forever, and a Job would wait for a kubelet that does not exist."""
    world = await new_world()
    async with world.syncer():
        await world.run_pod(metadata={"finalizers": ["example.com/held"]})
        await world.delete_pod()
        await world.wait_for_twin(is_deleting)
        if end:
            await world.end(end)
        await world.stop()
        await world.wait_for_pod(phase(end or "Failed"))
        await asyncio.sleep(60)
        writes_before = len(world.up.writes("/pods/"))
        await asyncio.sleep(3600)
        assert len(world.up.writes("/pods/")) == writes_before
        await world.virtual.patch(PODS, await world.pod(), {"metadata": {"finalizers": None}})
        await world.wait_until_pod_is_gone()


# -- reclaim


@in_virtual_time
async def test_reclaimed_pod_has_the_maximum_grace() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod(terminationGracePeriodSeconds=3600)
        await world.physical.patch(
            NODES, object_named("n1"), {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
        )
        await world.wait_for_twin(is_deleting, timeout=2)
        assert await grace_of_twin(world) == MAX_GRACE_SECONDS
        assert await world.condition("DisruptionTarget") == ("True", "Reclaimed")
        await world.stop()
        await world.wait_until_pod_is_gone()


@in_virtual_time
async def test_twins_are_reclaimed_while_virtual_cluster_is_unreachable() -> None:
    world = await new_world()
    async with world.syncer():
        for name in ("a", "b"):
            await world.run_pod(name)
        pods = [await world.pod(name) for name in ("a", "b")]
        world.up.cut()
        await world.physical.patch(
            NODES, object_named("n1"), {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
        )
        for name in ("a", "b"):
            await world.wait_for_twin(is_deleting, name, timeout=2)
            await world.stop(name)
        await asyncio.sleep(600)
        assert [await world.pod(name) for name in ("a", "b")] == pods
        world.up.restore()
        async with asyncio.TaskGroup() as group:
            observed = [group.create_task(world.wait_for_pod(is_deleting, name, timeout=300)) for name in ("a", "b")]
        assert all(has_condition("DisruptionTarget", "True", "Reclaimed")(pod.result()) for pod in observed)
        for name in ("a", "b"):
            await world.wait_until_pod_is_gone(name)
        assert await world.twins() == []


@in_virtual_time
async def test_safety_rule_4_last_leader_reclaims_while_virtual_unreachable() -> None:
    world = await new_world()
    async with world.syncer(leader_election=ELECTION) as parts:
        await world.run_pod()
        world.up.cut()
        await asyncio.sleep(3600)
        assert parts.manager.elector is not None
        assert not parts.manager.elector.is_leading
        await world.change_pod({"metadata": {"labels": {"any": "change"}}})
        assert not is_deleting(await world.twin())
        await world.physical.patch(
            NODES, object_named("n1"), {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
        )
        await world.wait_for_twin(is_deleting, timeout=2)
        await world.stop()
        world.up.restore()
        marked = await world.wait_for_pod(is_deleting, timeout=300)
        assert has_condition("DisruptionTarget", "True", "Reclaimed")(marked)
        await world.wait_until_pod_is_gone()


@in_virtual_time
async def test_safety_rule_4_former_leader_with_successor_deletes_nothing() -> None:
    world = await new_world()
    async with world.syncer(leader_election=ELECTION):
        await world.run_pod()
        lease = await world.virtual.get(LEASES, "syncer", keys.SYSTEM_NAMESPACE)
        spec = {**lease["spec"], "holderIdentity": "another", "leaseDurationSeconds": 3600}
        await world.virtual.replace(LEASES, {**lease, "spec": spec})
        await asyncio.sleep(30)
        world.up.cut()
        await world.physical.patch(
            NODES, object_named("n1"), {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
        )
        await asyncio.sleep(600)
        assert not is_deleting(await world.twin())
        world.up.restore()


@in_virtual_time
async def test_failed_twin_deletion_does_not_block_others() -> None:
    world = await new_world()
    async with world.syncer():
        for name in ("a", "b"):
            await world.run_pod(name)
        world.up.cut()
        held = (await world.twin_ref("a"))["metadata"]["name"]
        world.down.rejection = rejecting("DELETE", held, forbidden("a webhook says no"))
        await world.physical.patch(
            NODES, object_named("n1"), {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
        )
        await world.wait_for_twin(is_deleting, "b", timeout=2)
        assert not is_deleting(await world.twin("a"))


@in_virtual_time
async def test_unbinding_deletes_exactly_our_objects() -> None:
    world = await new_world()
    foreign = await world.physical.create(
        PODS, {**object_named("foreign", MOUNT), "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}}
    )
    async with world.syncer():
        await world.run_pod("running")
        await world.run_pod("finished")
        await world.end("Succeeded", "finished")
        await world.wait_for_pod(phase("Succeeded"), "finished")
        await world.virtual.delete(CLUSTER_BINDINGS, object_named("east"))
        await world.wait_for_twin(is_deleting, "running")
        await world.stop("running")
        await wait_for(world.virtual, CLUSTER_BINDINGS, "east", until=lambda obj: obj is None, timeout=60)
    assert await world.twins() == [foreign]
