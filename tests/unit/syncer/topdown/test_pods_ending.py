"""How pods and their twins end by somebody's word: a user's, or an owner's."""

import asyncio

import pytest
from prometheus_client import REGISTRY

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.client.waiting import wait_for
from tapestry.controller.config import LeaderElection
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.objects import is_deleting, object_named, value_at
from tapestry.kube.resources import LEASES, NODES, PODS

from ..world import MOUNT, World, a_world, forbidden, phase, refusing, said

ELECTION = LeaderElection(enabled=True, name="syncer")


async def grace_of_twin(world: World) -> int | None:
    found: int | None = value_at(await world.twin(), "metadata", "deletionGracePeriodSeconds")
    return found


def node_passes() -> float:
    outcomes = ("ok", "requeued", "error", "terminal")
    series = [{"controller": "nodes", "outcome": outcome} for outcome in outcomes]
    return sum(REGISTRY.get_sample_value("tapestry_reconcile_seconds_count", labels) or 0 for labels in series)


# -- deleted above


@pytest.mark.parametrize(("own", "asked", "grace"), [(None, None, 30), (90, None, 90), (90, 5, 5)])
@in_virtual_time
async def test_a_deleted_pod_goes_after_its_twin_which_has_the_same_time_to_stop(
    own: int | None, asked: int | None, grace: int
) -> None:
    world = await a_world()
    async with world.syncer():
        await world.run_pod(**({} if own is None else {"terminationGracePeriodSeconds": own}))
        await world.delete_pod(grace=asked)
        await world.wait_for_twin(is_deleting)
        assert await grace_of_twin(world) == grace
        await asyncio.sleep(3)
        assert is_deleting(await world.pod())
        await world.stop()
        await world.wait_until_pod_is_gone()


@in_virtual_time
async def test_a_reported_deletion_of_a_twin_needs_no_further_read() -> None:
    world = await a_world()
    async with world.syncer():
        await world.run_pod()
        await world.delete_pod()
        await world.wait_for_twin(is_deleting)
        world.down.asked.clear()
        await world.stop()
        await world.wait_until_pod_is_gone()
        assert [str(request) for request in world.down.asked if "/pods/" in request.path] == []


@in_virtual_time
async def test_a_pod_on_an_open_lease_calls_for_no_pass_over_its_node() -> None:
    world = await a_world()
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
async def test_a_second_deletion_that_is_more_urgent_is_passed_on_and_one_that_is_not_is_not() -> None:
    world = await a_world()
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
async def test_a_pod_that_is_deleted_by_force_takes_its_twin_along() -> None:
    world = await a_world()
    async with world.syncer():
        await world.run_pod()
        await world.delete_pod(grace=0)
        await world.wait_for_twin(is_deleting, timeout=1)
        assert await grace_of_twin(world) == 30


@in_virtual_time
async def test_a_finished_twin_is_kept_for_its_logs_until_its_pod_is_deleted() -> None:
    world = await a_world()
    async with world.syncer():
        await world.run_pod()
        await world.end("Succeeded")
        await world.wait_for_pod(phase("Succeeded"))
        await asyncio.sleep(3600)
        assert len(await world.twins()) == 1
        await world.delete_pod()
        await world.wait_until_twin_is_gone()


@in_virtual_time
async def test_a_pod_that_never_had_a_twin_goes_when_it_is_deleted() -> None:
    world = await a_world()
    async with world.syncer():
        await world.add_pod(hostNetwork=True)
        await world.wait_for_pod(said(keys.ACCEPTED_CONDITION, "False", "PodSecurity"))
        await world.delete_pod()
        await world.wait_until_pod_is_gone()


@pytest.mark.parametrize("end", ["Succeeded", None])
@in_virtual_time
async def test_a_pod_that_somebody_holds_by_a_finalizer_says_that_it_has_ended(end: str | None) -> None:
    """Else its node would be held for ever, and a Job would wait for a word from a kubelet that there is not."""
    world = await a_world()
    async with world.syncer():
        await world.run_pod(metadata={"finalizers": ["example.com/held"]})
        await world.delete_pod()
        await world.wait_for_twin(is_deleting)
        if end:
            await world.end(end)
        await world.stop()
        await world.wait_for_pod(phase(end or "Failed"))
        await asyncio.sleep(60)
        asked = len(world.up.writes("/pods/"))
        await asyncio.sleep(3600)
        assert len(world.up.writes("/pods/")) == asked
        await world.virtual.patch(PODS, await world.pod(), {"metadata": {"finalizers": None}})
        await world.wait_until_pod_is_gone()


# -- taken back


@in_virtual_time
async def test_a_reclaimed_pod_has_its_own_time_to_stop_but_no_more_than_thirty_seconds_and_says_why() -> None:
    world = await a_world()
    async with world.syncer():
        await world.run_pod(terminationGracePeriodSeconds=3600)
        await world.physical.patch(
            NODES, object_named("n1"), {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
        )
        await world.wait_for_twin(is_deleting, timeout=2)
        assert await grace_of_twin(world) == 30
        assert await world.condition("DisruptionTarget") == ("True", "Reclaimed")
        await world.stop()
        await world.wait_until_pod_is_gone()


@in_virtual_time
async def test_where_the_virtual_cluster_cannot_be_told_twins_go_in_time_and_pods_are_marked_later() -> None:
    world = await a_world()
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
        world.up.mend()
        async with asyncio.TaskGroup() as group:
            seen = [group.create_task(world.wait_for_pod(is_deleting, name, timeout=300)) for name in ("a", "b")]
        assert all(said("DisruptionTarget", "True", "Reclaimed")(pod.result()) for pod in seen)
        for name in ("a", "b"):
            await world.wait_until_pod_is_gone(name)
        assert await world.twins() == []


@in_virtual_time
async def test_rule_4_whoever_led_last_frees_nodes_in_time_while_nobody_reaches_the_virtual_cluster() -> None:
    world = await a_world()
    async with world.syncer(leader_election=ELECTION) as site:
        await world.run_pod()
        world.up.cut()
        await asyncio.sleep(3600)
        assert site.manager.elector is not None
        assert not site.manager.elector.is_leading
        await world.change_pod({"metadata": {"labels": {"any": "change"}}})
        assert not is_deleting(await world.twin())
        await world.physical.patch(
            NODES, object_named("n1"), {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
        )
        await world.wait_for_twin(is_deleting, timeout=2)
        await world.stop()
        world.up.mend()
        marked = await world.wait_for_pod(is_deleting, timeout=300)
        assert said("DisruptionTarget", "True", "Reclaimed")(marked)
        await world.wait_until_pod_is_gone()


@in_virtual_time
async def test_rule_4_whoever_knows_of_another_leader_ends_no_twin() -> None:
    world = await a_world()
    async with world.syncer(leader_election=ELECTION):
        await world.run_pod()
        lease = await world.virtual.get(LEASES, "syncer", "default")
        spec = {**lease["spec"], "holderIdentity": "another", "leaseDurationSeconds": 3600}
        await world.virtual.replace(LEASES, {**lease, "spec": spec})
        await asyncio.sleep(30)
        world.up.cut()
        await world.physical.patch(
            NODES, object_named("n1"), {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
        )
        await asyncio.sleep(600)
        assert not is_deleting(await world.twin())
        world.up.mend()


@in_virtual_time
async def test_a_twin_that_cannot_be_taken_back_just_then_keeps_no_other() -> None:
    world = await a_world()
    async with world.syncer():
        for name in ("a", "b"):
            await world.run_pod(name)
        world.up.cut()
        held = (await world.twin_place("a"))["metadata"]["name"]
        world.down.refusal = refusing("DELETE", held, forbidden("a webhook says no"))
        await world.physical.patch(
            NODES, object_named("n1"), {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
        )
        await world.wait_for_twin(is_deleting, "b", timeout=2)
        assert not is_deleting(await world.twin("a"))


@in_virtual_time
async def test_the_end_of_a_binding_leaves_nothing_of_ours_and_everything_of_others() -> None:
    world = await a_world()
    stranger = await world.physical.create(
        PODS, {**object_named("stranger", MOUNT), "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}}
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
    assert await world.twins() == [stranger]
