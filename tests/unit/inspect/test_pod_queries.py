"""Queries about pods, and repairs, on two clusters with and without a syncer, in virtual time."""

import asyncio

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.controller.testing import in_virtual_time, running_clock
from tapestry.inspect.queries import Queries
from tapestry.inspect.repair import RECHECK_DELAY, repair
from tapestry.inspect.snapshots import QueryError
from tapestry.kube.objects import Object, name_of, object_named, uid_of
from tapestry.kube.resources import CLUSTER_ROLE_BINDINGS, CONFIGMAPS, LEASES, NODES, PODS, SECRETS
from tapestry.kube.times import micro_timestamp
from tapestry.manager.installation import installation_objects

from ..syncer.world import MAPPED, MOUNT, NODE, World, new_world, phase


def queries_on(world: World) -> Queries:
    return Queries(world.virtual, lambda _: world.down.connect(), running_clock().now())


async def add_unscheduled(world: World, name: str, namespace: str = "default") -> None:
    pod = {
        **object_named(name, namespace),
        "spec": {"containers": [{"name": "c", "image": "busybox:1"}]},
        "status": {"phase": "Pending"},
    }
    await world.virtual.create(PODS, pod)


@in_virtual_time
async def test_pods_are_listed_with_twins_and_without_node() -> None:
    world = await new_world()
    async with world.syncer():
        await world.add_pod()
        await world.add_pod("other", namespace="shop")
        await add_unscheduled(world, "new")
        await world.wait_for_pod(MAPPED)
        await world.start()
        await world.wait_for_pod(phase("Running"))
        new, work = await queries_on(world).pods("default")
        assert (work.name, work.phase, work.node, work.binding) == ("work", "Running", NODE, "east")
        assert work.twin == f"{MOUNT}/{name_of(await world.twin())}"
        assert (new.name, new.node, new.reason) == ("new", "", "Unscheduled")
        assert [each.name for each in await queries_on(world).pods(None)] == ["new", "work", "other"]
        assert [each.name for each in await queries_on(world).pods(None, "east")] == ["work", "other"]
        with pytest.raises(QueryError, match=r"there is no ClusterBinding west; known are: east"):
            await queries_on(world).pods(None, "west")


@in_virtual_time
async def test_pod_is_explained_from_both_clusters() -> None:
    world = await new_world()
    async with world.syncer():
        await world.add_pod()
        await world.wait_for_pod(MAPPED)
        await world.mark_unschedulable()
        await world.wait_for_pod(lambda pod: "Insufficient" in str(pod["status"]["conditions"]))
        explanation = await queries_on(world).pod("default", "work")
        assert (explanation.pod.reason, explanation.pod.why) == (
            "UnschedulableBelow",
            "0/1 nodes are available: 1 Insufficient cpu.",
        )
        assert explanation.deadline is not None
        assert (explanation.twin_phase, explanation.twin_node) == ("Pending", "")
        await world.start()
        await world.wait_for_pod(phase("Running"))
        explanation = await queries_on(world).pod("default", "work")
        assert (explanation.pod.state, explanation.twin_phase, explanation.twin_node) == ("Running", "Running", "n1")


@in_virtual_time
async def test_lost_twin_is_reported_without_syncer() -> None:
    world = await new_world()
    async with world.syncer():
        await world.add_pod()
        await world.wait_for_pod(MAPPED)
    await world.stop()
    assert (await queries_on(world).pod("default", "work")).pod.reason == "TwinLost"


@in_virtual_time
async def test_pod_on_unleased_node_is_not_ours() -> None:
    world = await new_world()
    await world.virtual.create(NODES, object_named("n7"))
    await world.add_pod(node="n7")
    assert (await queries_on(world).pod("default", "work")).pod.reason == "NotLeased"
    await world.add_pod("late", node="n8")
    assert (await queries_on(world).pod("default", "late")).pod.reason == "NodeGone"


@in_virtual_time
async def test_deleted_pod_reports_its_last_event() -> None:
    world = await new_world()
    async with world.syncer():
        await world.add_pod()
        await world.wait_for_pod(MAPPED)
        await world.physical.patch(
            NODES, object_named("n1"), {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
        )
        await world.wait_until_pod_is_gone()
    with pytest.raises(QueryError, match=r"no pod default/work any more; its last event was Reclaimed: .*kill switch"):
        await queries_on(world).pod("default", "work")
    with pytest.raises(QueryError, match=r"no pod default/nobody; `tapestry pods -A`"):
        await queries_on(world).pod("default", "nobody")


@in_virtual_time
async def test_tree_has_bindings_nodes_and_pods() -> None:
    world = await new_world("east", "west")
    async with world.syncer("east"), world.syncer("west"):
        await world.add_pod()
        await world.wait_for_pod(MAPPED)
        tree = await queries_on(world).tree(None)
        assert [(each.binding, [node.node for node in each.nodes]) for each in tree.bindings] == [
            ("east", [NODE]),
            ("west", ["vnode-west-n1"]),
        ]
        (leaf,) = tree.bindings[0].nodes[0].pods
        assert (leaf.pod, leaf.twin) == ("default/work", f"{MOUNT}/{name_of(await world.twin())}")
        assert [each.binding for each in (await queries_on(world).tree("west")).bindings] == ["west"]


# -- repairs


async def new_pod_with_everything(world: World) -> None:
    await world.virtual.create(CONFIGMAPS, {**object_named("settings", "default"), "data": {"k": "v"}})
    await world.add_pod(volumes=[{"name": "s", "configMap": {"name": "settings"}}])
    await world.wait_for_pod(MAPPED)


async def physical_pods(world: World) -> list[str]:
    objects: list[Object] = [*await world.twins(), *await world.physical.list(CONFIGMAPS, MOUNT)]
    return sorted(name_of(each) for each in objects)


@in_virtual_time
async def test_consistent_clusters_need_no_repair() -> None:
    world = await new_world()
    async with world.syncer():
        await new_pod_with_everything(world)
        assert await repair(queries_on(world), None, dry_run=False) == ([], [])


@in_virtual_time
async def test_leftovers_of_pod_are_deleted_without_syncer() -> None:
    world = await new_world()
    async with world.syncer():
        await new_pod_with_everything(world)
    await world.add_foreign_pod("foreign", "n1")
    await world.physical.create(CONFIGMAPS, object_named("foreign", MOUNT))
    await world.delete_pod(grace=0)
    found, _ = await repair(queries_on(world), "east", dry_run=True)
    assert sorted(each.resource for each in found) == ["configmaps", "pods"]
    assert not any(each.fixed for each in found)
    assert {each.remedy for each in found} == {"`tapestry repair` without --dry-run, repeated if there are many"}
    assert len(await physical_pods(world)) == 3
    before = running_clock().monotonic()
    found, _ = await repair(queries_on(world), "east", dry_run=False)
    assert running_clock().monotonic() - before == RECHECK_DELAY
    assert [each.fixed for each in found] == [True, True]
    assert await physical_pods(world) == ["foreign"]
    assert len(await world.physical.list(PODS, "default")) == 1


@in_virtual_time
async def test_findings_for_syncer_name_its_state() -> None:
    world = await new_world()
    async with world.syncer():
        await new_pod_with_everything(world)
    await world.stop()
    (finding,), _ = await repair(queries_on(world), "east", dry_run=False)
    assert (finding.invariant, finding.key, finding.message) == ("Twins", "default/work", "its twin is gone")
    assert (finding.fixed, finding.remedy) == (False, "the syncer of the binding, which seems to be running")
    await asyncio.sleep(3600)
    (finding,), _ = await repair(queries_on(world), "east", dry_run=False)
    assert "none seems to be running" in finding.remedy
    spec = {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": micro_timestamp(running_clock().now())}
    await world.virtual.create(LEASES, {**object_named("tapestry-syncer-east", keys.SYSTEM_NAMESPACE), "spec": spec})
    (finding,), _ = await repair(queries_on(world), "east", dry_run=False)
    assert finding.remedy.endswith("which is running as me")
    await asyncio.sleep(60)
    (finding,), _ = await repair(queries_on(world), "east", dry_run=False)
    assert "has no holder: see its Deployment" in finding.remedy
    for obj in installation_objects(namespace="grid"):
        if obj["kind"] == CLUSTER_ROLE_BINDINGS.kind:
            await world.virtual.create(CLUSTER_ROLE_BINDINGS, obj)
    spec["renewTime"] = micro_timestamp(running_clock().now())
    await world.virtual.create(LEASES, {**object_named("tapestry-syncer-east", "grid"), "spec": spec})
    (finding,), _ = await repair(queries_on(world), "east", dry_run=False)
    assert finding.remedy.endswith("which is running as me")


@in_virtual_time
async def test_transient_inconsistency_is_no_finding() -> None:
    world = await new_world()
    async with world.syncer():
        await new_pod_with_everything(world)
        await world.physical.delete(CONFIGMAPS, (await world.physical.list(CONFIGMAPS, MOUNT))[0])
        assert await repair(queries_on(world), "east", dry_run=False) == ([], [])


@in_virtual_time
async def test_twin_gets_lost_labels_back() -> None:
    world = await new_world()
    async with world.syncer(check_seconds=0):
        await new_pod_with_everything(world)
        await world.set_twin({"metadata": {"annotations": {keys.VIRTUAL_POD_NAME: "x"}}})
        (finding,), _ = await repair(queries_on(world), "east", dry_run=False)
        assert (finding.side, finding.fixed) == ("physical", True)
        assert await repair(queries_on(world), "east", dry_run=False) == ([], [])


@in_virtual_time
async def test_unreadable_clusters_are_reported() -> None:
    world = await new_world("east", "west")
    async with world.syncer("east"):
        await world.virtual.delete(SECRETS, object_named("west", keys.SYSTEM_NAMESPACE))
        found, (sentence,) = await repair(queries_on(world), None, dry_run=False)
        assert found == []
        assert sentence.startswith("west was not checked: ")
        binding = await world.virtual.get(CLUSTER_BINDINGS, "east")
        assert uid_of(binding)
        await world.virtual.patch(CLUSTER_BINDINGS, binding, {"metadata": {"finalizers": ["x/y"]}})
        await world.virtual.delete(CLUSTER_BINDINGS, object_named("east"))
        _, (sentence,) = await repair(queries_on(world), "east", dry_run=False)
        assert "is being deleted" in sentence
