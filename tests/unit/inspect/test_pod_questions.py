"""Questions about pods, and repairs, between two clusters with a syncer and without one; on virtual time."""

import asyncio

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.controller.testing import in_virtual_time, running_clock
from tapestry.inspect.queries import Queries
from tapestry.inspect.repair import RECHECK_DELAY, repair
from tapestry.inspect.snapshots import QueryError
from tapestry.kube.objects import Object, name_of, object_named, uid_of
from tapestry.kube.resources import CONFIGMAPS, LEASES, NODES, PODS, SECRETS
from tapestry.kube.times import micro_timestamp

from ..syncer.world import MAPPED, MOUNT, NODE, World, a_world, phase


def questions(world: World) -> Queries:
    return Queries(world.virtual, lambda _: world.down.connect(), running_clock().now())


async def add_unplaced(world: World, name: str, namespace: str = "default") -> None:
    pod = {
        **object_named(name, namespace),
        "spec": {"containers": [{"name": "c", "image": "busybox:1"}]},
        "status": {"phase": "Pending"},
    }
    await world.virtual.create(PODS, pod)


@in_virtual_time
async def test_pods_are_shown_with_their_twins_and_those_without_a_node_too() -> None:
    world = await a_world()
    async with world.syncer():
        await world.add_pod()
        await world.add_pod("other", namespace="shop")
        await add_unplaced(world, "new")
        await world.wait_for_pod(MAPPED)
        await world.start()
        await world.wait_for_pod(phase("Running"))
        new, work = await questions(world).pods("default")
        assert (work.name, work.phase, work.node, work.binding) == ("work", "Running", NODE, "east")
        assert work.twin == f"{MOUNT}/{name_of(await world.twin())}"
        assert (new.name, new.node, new.reason) == ("new", "", "Unscheduled")
        assert [each.name for each in await questions(world).pods(None)] == ["new", "work", "other"]
        assert [each.name for each in await questions(world).pods(None, "east")] == ["work", "other"]
        with pytest.raises(QueryError, match=r"there is no ClusterBinding west; known are: east"):
            await questions(world).pods(None, "west")


@in_virtual_time
async def test_a_pod_is_explained_from_both_clusters() -> None:
    world = await a_world()
    async with world.syncer():
        await world.add_pod()
        await world.wait_for_pod(MAPPED)
        await world.mark_unschedulable()
        await world.wait_for_pod(lambda pod: "Insufficient" in str(pod["status"]["conditions"]))
        answer = await questions(world).pod("default", "work")
        assert (answer.pod.reason, answer.pod.why) == (
            "UnschedulableBelow",
            "0/1 nodes are available: 1 Insufficient cpu.",
        )
        assert answer.deadline is not None
        assert (answer.twin_phase, answer.twin_node) == ("Pending", "")
        await world.start()
        await world.wait_for_pod(phase("Running"))
        answer = await questions(world).pod("default", "work")
        assert (answer.pod.state, answer.twin_phase, answer.twin_node) == ("Running", "Running", "n1")


@in_virtual_time
async def test_a_twin_that_is_gone_is_told_where_no_syncer_sees_it() -> None:
    world = await a_world()
    async with world.syncer():
        await world.add_pod()
        await world.wait_for_pod(MAPPED)
    await world.stop()
    assert (await questions(world).pod("default", "work")).pod.reason == "TwinLost"


@in_virtual_time
async def test_a_pod_on_a_node_of_the_virtual_cluster_itself_is_nothing_of_ours() -> None:
    world = await a_world()
    await world.virtual.create(NODES, object_named("n7"))
    await world.add_pod(node="n7")
    assert (await questions(world).pod("default", "work")).pod.reason == "NotLeased"
    await world.add_pod("late", node="n8")
    assert (await questions(world).pod("default", "late")).pod.reason == "NodeGone"


@in_virtual_time
async def test_of_a_pod_that_is_gone_the_last_words_are_told() -> None:
    world = await a_world()
    async with world.syncer():
        await world.add_pod()
        await world.wait_for_pod(MAPPED)
        await world.physical.patch(
            NODES, object_named("n1"), {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
        )
        await world.wait_until_pod_is_gone()
    with pytest.raises(QueryError, match=r"no pod default/work any more; last told of it was Reclaimed: .*kill switch"):
        await questions(world).pod("default", "work")
    with pytest.raises(QueryError, match=r"no pod default/nobody; `tapestry pods -A`"):
        await questions(world).pod("default", "nobody")


@in_virtual_time
async def test_the_tree_has_bindings_with_nodes_with_pods() -> None:
    world = await a_world("east", "west")
    async with world.syncer("east"), world.syncer("west"):
        await world.add_pod()
        await world.wait_for_pod(MAPPED)
        tree = await questions(world).tree(None)
        assert [(each.binding, [node.node for node in each.nodes]) for each in tree.bindings] == [
            ("east", [NODE]),
            ("west", ["vnode-west-n1"]),
        ]
        (leaf,) = tree.bindings[0].nodes[0].pods
        assert (leaf.pod, leaf.twin) == ("default/work", f"{MOUNT}/{name_of(await world.twin())}")
        assert [each.binding for each in (await questions(world).tree("west")).bindings] == ["west"]


# -- repairs


async def a_pod_with_everything(world: World) -> None:
    await world.virtual.create(CONFIGMAPS, {**object_named("settings", "default"), "data": {"k": "v"}})
    await world.add_pod(volumes=[{"name": "s", "configMap": {"name": "settings"}}])
    await world.wait_for_pod(MAPPED)


async def below(world: World) -> list[str]:
    objects: list[Object] = [*await world.twins(), *await world.physical.list(CONFIGMAPS, MOUNT)]
    return sorted(name_of(each) for each in objects)


@in_virtual_time
async def test_where_all_is_well_there_is_nothing_to_repair() -> None:
    world = await a_world()
    async with world.syncer():
        await a_pod_with_everything(world)
        assert await repair(questions(world), None, dry_run=False) == ([], [])


@in_virtual_time
async def test_what_is_left_of_a_pod_is_removed_where_no_syncer_does_so() -> None:
    world = await a_world()
    async with world.syncer():
        await a_pod_with_everything(world)
    await world.add_foreign_pod("foreign", "n1")
    await world.physical.create(CONFIGMAPS, object_named("foreign", MOUNT))
    await world.delete_pod(grace=0)
    found, _ = await repair(questions(world), "east", dry_run=True)
    assert sorted(each.resource for each in found) == ["configmaps", "pods"]
    assert not any(each.mended for each in found)
    assert {each.remedy for each in found} == {"`tapestry repair` without --dry-run, again if there is much of it"}
    assert len(await below(world)) == 3
    before = running_clock().monotonic()
    found, _ = await repair(questions(world), "east", dry_run=False)
    assert running_clock().monotonic() - before == RECHECK_DELAY
    assert [each.mended for each in found] == [True, True]
    assert await below(world) == ["foreign"]
    assert len(await world.physical.list(PODS, "default")) == 1


@in_virtual_time
async def test_what_only_a_syncer_can_mend_is_told_with_whether_there_is_one() -> None:
    world = await a_world()
    async with world.syncer():
        await a_pod_with_everything(world)
    await world.stop()
    (finding,), _ = await repair(questions(world), "east", dry_run=False)
    assert (finding.invariant, finding.key, finding.message) == ("Twins", "default/work", "its twin is gone")
    assert (finding.mended, finding.remedy) == (False, "the syncer of the binding, which seems to be at work")
    await asyncio.sleep(3600)
    (finding,), _ = await repair(questions(world), "east", dry_run=False)
    assert "none seems to be at work" in finding.remedy
    spec = {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": micro_timestamp(running_clock().now())}
    await world.virtual.create(LEASES, {**object_named("tapestry-syncer-east", keys.SYSTEM_NAMESPACE), "spec": spec})
    (finding,), _ = await repair(questions(world), "east", dry_run=False)
    assert finding.remedy.endswith("which is at work as me")
    await asyncio.sleep(60)
    (finding,), _ = await repair(questions(world), "east", dry_run=False)
    assert "but nobody holds Lease" in finding.remedy


@in_virtual_time
async def test_what_is_only_under_way_is_no_finding() -> None:
    world = await a_world()
    async with world.syncer():
        await a_pod_with_everything(world)
        await world.physical.delete(CONFIGMAPS, (await world.physical.list(CONFIGMAPS, MOUNT))[0])
        assert await repair(questions(world), "east", dry_run=False) == ([], [])


@in_virtual_time
async def test_a_twin_that_lost_its_marks_gets_them_back() -> None:
    world = await a_world()
    async with world.syncer(check_seconds=0):
        await a_pod_with_everything(world)
        await world.set_twin({"metadata": {"annotations": {keys.VIRTUAL_POD_NAME: "x"}}})
        (finding,), _ = await repair(questions(world), "east", dry_run=False)
        assert (finding.side, finding.mended) == ("physical", True)
        assert await repair(questions(world), "east", dry_run=False) == ([], [])


@in_virtual_time
async def test_clusters_that_cannot_be_looked_into_are_told_of() -> None:
    world = await a_world("east", "west")
    async with world.syncer("east"):
        await world.virtual.delete(SECRETS, object_named("west", keys.SYSTEM_NAMESPACE))
        found, (sentence,) = await repair(questions(world), None, dry_run=False)
        assert found == []
        assert sentence.startswith("west was not looked at: ")
        binding = await world.virtual.get(CLUSTER_BINDINGS, "east")
        assert uid_of(binding)
        await world.virtual.patch(CLUSTER_BINDINGS, binding, {"metadata": {"finalizers": ["x/y"]}})
        await world.virtual.delete(CLUSTER_BINDINGS, object_named("east"))
        _, (sentence,) = await repair(questions(world), "east", dry_run=False)
        assert "is being deleted" in sentence
