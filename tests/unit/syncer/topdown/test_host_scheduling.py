"""Pods that the scheduler of a host cluster places: their twins, Nodes and bindings, and leases that end meanwhile."""

import asyncio
from collections.abc import Callable

import pytest

from tapestry.apis import keys
from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.apis.ownership import MAX_GRACE_SECONDS
from tapestry.apis.policies import POLICIES
from tapestry.controller.testing import in_virtual_time, perturb, running_clock
from tapestry.kube.objects import Object, annotations_of, is_deleting, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import NAMESPACES, NODES, PODS
from tapestry.tenants.host_connection import SHARED_NAMESPACE

from ...syncer.world import Gate
from ...tenants.tenant_world import (
    HOST,
    Story,
    Tenants,
    TenantWorld,
    candidates,
    condition,
    has_candidates,
    has_condition,
    has_phase,
    is_about,
    is_on,
    message,
    new_world,
    tenant_scenario,
)

pytestmark = pytest.mark.timeout(600)  # hundreds of replays
MINUTE = 60.0
LATER = {"timeWindows": [{"start": "00:20", "end": "01:00"}]}
AT_FIRST = {"timeWindows": [{"start": "00:00", "end": "00:20"}]}
RECLAIM_NOW = {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
RECLAIM_ENDED = {"metadata": {"annotations": {keys.RECLAIM: None}}}
CORDON = {"spec": {"unschedulable": True}}
UNCORDON = {"spec": {"unschedulable": None}}
UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/2 nodes are available: 2 Insufficient cpu.",
    "lastTransitionTime": "2024-01-01T00:00:00Z",
}


async def sleep_until(minutes: float) -> None:
    """Sleep until a time after midnight, when the clock of the test started."""
    await asyncio.sleep(minutes * MINUTE - running_clock().monotonic())


async def nodes_of(world: TenantWorld, plane: str = "blue") -> list[str]:
    return [name_of(each) for each in await world.planes[plane].list(NODES)]


# -- placement


@in_virtual_time
async def test_pod_runs_where_the_host_placed_its_twin() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        await world.add_pod()
        twin = await world.wait_for_twin(timeout=60)
        assert candidates(twin) == ["n1", "n2"]
        assert await nodes_of(world) == []
        await world.place("n2")
        await world.start()
        pod = await world.wait_for_pod(has_phase("Running"), timeout=5)
        assert pod["spec"]["nodeName"] == "n2"
        assert condition(pod, keys.MAPPED_CONDITION) == ("True", "Mapped")
        assert await nodes_of(world) == ["n2"]
        assert len(world.down.writes("/pods")) == 1


@in_virtual_time
async def test_unneeded_node_goes_after_its_last_pod() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        await world.run_pod()
        await world.delete_pod(grace=0)
        await world.stop()
        await asyncio.sleep(30)
        assert await nodes_of(world) == ["n1"]
        await asyncio.sleep(60)
        assert await nodes_of(world) == []


@in_virtual_time
async def test_message_of_the_host_reaches_pod_once() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        await world.add_pod()
        await world.wait_for_twin(timeout=60)
        await world.set_twin_status(conditions=[UNSCHEDULABLE])
        await world.wait_for_pod(has_condition("PodScheduled", "False", "Unschedulable"), timeout=5)
        assert "Insufficient cpu" in message(await world.pod(), "PodScheduled")
        writes = world.plane_links["blue"].writes("PATCH", "/pods/work/status")
        await asyncio.sleep(10 * MINUTE)
        assert world.plane_links["blue"].writes("PATCH", "/pods/work/status") == writes
        assert not is_deleting(await world.twin()), "a pod that the host cannot place waits"


@in_virtual_time
async def test_pod_that_matches_no_node_waits_for_one() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        await world.add_pod(nodeSelector={"disk": "ssd"})
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "NodeNotMatched"), timeout=5)
        await world.add_node("n3", disk="ssd")
        twin = await world.wait_for_twin(timeout=5)
        assert candidates(twin) == ["n3"]


@in_virtual_time
async def test_twin_is_replaced_when_candidates_change() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        await world.add_pod()
        first = await world.wait_for_twin(timeout=60)
        await world.change_node("n1", CORDON)
        second = await world.wait_for_twin(has_candidates("n2"), timeout=5)
        assert uid_of(second) != uid_of(first)
        await world.change_node("n1", UNCORDON)
        await world.wait_for_twin(has_candidates("n1", "n2"), timeout=5)
        assert condition(await world.pod(), keys.MAPPED_CONDITION) is None


@in_virtual_time
async def test_unchanged_candidates_keep_the_twin() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        await world.add_pod()
        twin = await world.wait_for_twin(timeout=60)
        await world.change_node("n1", {"metadata": {"labels": {"seen": "yes"}}})
        await world.set_policy(forceReclaim=True)
        await asyncio.sleep(60)
        assert uid_of(await world.twin()) == uid_of(twin)


@in_virtual_time
async def test_twin_that_the_owner_deleted_is_created_again() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        await world.add_pod()
        first = await world.wait_for_twin(timeout=60)
        await world.stop()
        second = await world.wait_for_twin(lambda twin: uid_of(twin) != uid_of(first), timeout=5)
        await world.place("n1")
        await world.wait_for_pod(is_on("n1"), timeout=5)
        await world.stop()
        await world.wait_for_pod(has_phase("Failed"), timeout=5)
        await asyncio.sleep(60)
        assert await world.twins() == [], "a bound pod ends with its twin"
        assert second


@in_virtual_time
async def test_pod_deleted_before_placement_leaves_nothing() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        await world.add_pod()
        await world.wait_for_twin(timeout=60)
        await world.delete_pod()
        await world.wait_until_pod_is_gone()
        await world.wait_until_twin_is_gone()
        await world.add_pod()
        await world.wait_for_twin(timeout=5)


@in_virtual_time
async def test_finished_twin_on_closed_node_ends_its_pod() -> None:
    """The host placed, ran and finished the twin while no process of the plane did."""
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        await world.add_pod(restartPolicy="Never")
        twin = await world.wait_for_twin(timeout=60)
    await world.place("n1")
    await world.set_twin_status(phase="Succeeded")
    await world.change_node("n1", RECLAIM_NOW)
    async with world.process():
        await world.wait_for_pod(has_phase("Succeeded"), timeout=60)
        assert uid_of(await world.twin()) == uid_of(twin), "the pod has run once"


# -- the rules of the owner


@in_virtual_time
async def test_safety_rule_10_host_twin_starts_within_window() -> None:
    world = await new_world("blue", policy=LATER)
    async with world.process():
        await world.wait_until_ready()
        await world.add_pod()
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "NoNodes"), timeout=5)
        assert "2024-01-01T00:20:00Z" in message(await world.pod(), keys.ACCEPTED_CONDITION)
        await sleep_until(19)
        assert await world.twins() == []
        await sleep_until(21)
        assert len(await world.twins()) == 1


@in_virtual_time
async def test_safety_rule_10_host_unplaced_twin_goes_at_edge() -> None:
    world = await new_world("blue", policy=AT_FIRST)
    async with world.process():
        await world.wait_until_ready()
        await world.add_pod()
        await world.wait_for_twin(timeout=60)
        await sleep_until(19.9)
        assert len(await world.twins()) == 1
        await sleep_until(20.01)
        assert await world.twins() == []
        assert condition(await world.pod(), keys.ACCEPTED_CONDITION) == ("False", "NoNodes")


@in_virtual_time
async def test_safety_rule_10_host_twin_keeps_open_candidates() -> None:
    """Only the nodes whose window ends are taken from the candidates."""
    world = await new_world("blue")
    await world.set_policy(nodeSelector=named("n1"))
    spec = {"cluster": HOST, "nodeSelector": named("n2"), **AT_FIRST}
    await world.management.create(POLICIES, {**object_named("n2"), "spec": spec})
    async with world.process():
        await world.wait_until_ready()
        await world.add_pod()
        await world.wait_for_twin(has_candidates("n1", "n2"), timeout=60)
        await sleep_until(21)
        assert candidates(await world.twin()) == ["n1"]


@in_virtual_time
async def test_safety_rule_10_host_named_node_must_be_open() -> None:
    """A pod that is created with a node is admitted like one on a virtual node."""
    world = await new_world("blue", policy=LATER)
    async with world.process():
        await world.wait_until_ready()
        await world.add_pod(nodeName="n1", tolerations=[{"operator": "Exists"}])
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "OutOfTimeWindows"), timeout=60)
        await sleep_until(19)
        assert await world.twins() == []
        await sleep_until(21)
        assert len(await world.twins()) == 1


@pytest.mark.parametrize("closing", ["window", "kill switch", "cordon", "namespace", "policy"])
@in_virtual_time
async def test_safety_rule_10_host_placed_twin_ends_on_closed_node(closing: str) -> None:
    """The host places the twin, and the node closes before the pod is bound."""
    world = await new_world("blue", policy=AT_FIRST)
    async with world.process():
        await world.wait_until_ready()
        await world.add_pod(terminationGracePeriodSeconds=600)
        twin = await world.wait_for_twin(timeout=60)
        gate = Gate("POST", "/nodes")
        world.plane_links["blue"].before = gate
        await sleep_until(19)
        await world.place("n1")
        await gate.reached()
        await close(world, closing)
        gate.open()
        ended = await world.wait_for_twin(is_deleting, timeout=5)
        assert uid_of(ended) == uid_of(twin)
        assert ended["metadata"]["deletionGracePeriodSeconds"] <= MAX_GRACE_SECONDS
        await asyncio.sleep(5)
        assert not (await world.pod())["spec"].get("nodeName")
        await world.stop()
        await asyncio.sleep(5)
        assert not any("n1" in candidates(each) for each in await world.twins())


async def close(world: TenantWorld, closing: str) -> None:
    if closing == "window":
        await sleep_until(21)
    elif closing == "kill switch":
        await world.change_node("n1", RECLAIM_NOW)
    elif closing == "cordon":
        await world.change_node("n1", CORDON)
    elif closing == "namespace":
        await world.host.patch(NAMESPACES, object_named(await world.namespace()), RECLAIM_NOW)
    elif closing == "policy":
        await world.set_policy(cluster="elsewhere")
    await asyncio.sleep(1)


@pytest.mark.parametrize("place", ["namespace", "all tenants"])
@in_virtual_time
async def test_safety_rule_10_host_kill_switch_ends_all_twins(place: str) -> None:
    """The owner reclaims from one tenant, or from all: every twin is being deleted within two seconds."""
    world = await new_world("blue")
    await world.host.create(NAMESPACES, object_named(SHARED_NAMESPACE))
    async with world.process():
        await world.wait_until_ready()
        await world.run_pod("placed", terminationGracePeriodSeconds=600)
        await world.add_pod("waiting")
        await world.wait_for_twin(name="waiting", timeout=60)
        name = SHARED_NAMESPACE if place == "all tenants" else await world.namespace()
        await world.host.patch(NAMESPACES, object_named(name), RECLAIM_NOW)
        await asyncio.sleep(2)
        assert [each["metadata"]["deletionGracePeriodSeconds"] for each in await world.twins()] == [MAX_GRACE_SECONDS]
        await world.stop("placed")
        await asyncio.sleep(10 * MINUTE)
        assert await world.twins() == []
        assert condition(await world.pod("waiting"), keys.ACCEPTED_CONDITION) == ("False", "NoNodes")
        await world.host.patch(NAMESPACES, object_named(name), RECLAIM_ENDED)
        await world.wait_for_twin(name="waiting", timeout=5)


@in_virtual_time
async def test_safety_rule_10_host_unselected_nodes_are_not_used() -> None:
    """The HostCluster, the binding and its sync each select nodes."""
    world = await new_world("blue", nodes=4, nodeSelector=named("n1", "n2", "n3"))
    await world.set_binding(sync={"nodeSelector": named("n2", "n3", "n4")})
    await world.management.patch(HOST_CLUSTERS, object_named(HOST), {"spec": {"nodeSelector": named("n1", "n3", "n4")}})
    async with world.process():
        await world.wait_until_ready()
        await world.add_pod()
        await world.wait_for_twin(has_candidates("n3"), timeout=60)
        patch = {"spec": {"nodeSelector": named("n1", "n2", "n4")}}
        await world.management.patch(HOST_CLUSTERS, object_named(HOST), patch)
        await world.wait_for_twin(has_candidates("n2"), timeout=5)


def named(*names: str) -> Object:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]} for name in names]
    return {"nodeSelectorTerms": terms}


# -- several tenants


@in_virtual_time
async def test_safety_rule_11_tenants_use_their_own_namespaces() -> None:
    """Pods of the same name in two planes have twins of their own, and end without the other."""
    world = await new_world("blue", "green")
    async with world.process():
        for plane in ("blue", "green"):
            await world.wait_until_ready(plane)
            await world.run_pod(plane=plane)
        uids = {plane: uid_of(await world.twin(plane=plane)) for plane in ("blue", "green")}
        assert await world.namespace("blue") != await world.namespace("green")
        await world.delete_pod(plane="blue", grace=0)
        await world.wait_for_twin(is_deleting, plane="blue", timeout=5)
        await world.stop(plane="blue")
        await asyncio.sleep(10 * MINUTE)
        assert await world.twins("blue") == []
        assert [uid_of(each) for each in await world.twins("green")] == [uids["green"]]
        assert not is_deleting(await world.twin(plane="green"))
        assert (await world.pod(plane="green"))["status"]["phase"] == "Running"


@in_virtual_time
async def test_safety_rule_11_writes_stay_in_own_namespace() -> None:
    world = await new_world("blue", "green")
    async with world.process():
        await world.wait_until_ready("blue")
        await world.wait_until_ready("green")
        namespaces = {plane: await world.namespace(plane) for plane in ("blue", "green")}
        world.down.requests.clear()
        await world.run_pod(plane="blue")
        await world.delete_pod(plane="blue")
        await world.wait_for_twin(is_deleting, plane="blue", timeout=5)
        writes = world.down.writes("/api/v1/")
        assert writes
        assert all(f"/namespaces/{namespaces['blue']}/" in each for each in writes)


@in_virtual_time
async def test_safety_rule_13_forged_twins_are_not_adopted() -> None:
    """Labels of a pod in a plane that claim another tenant reach no twin, and forge none."""
    world = await new_world("blue", "green")
    async with world.process():
        await world.wait_until_ready("blue")
        await world.wait_until_ready("green")
        await world.run_pod(plane="green")
        victim = await world.twin(plane="green")
        labels = {key: value for key, value in victim["metadata"]["labels"].items() if key.startswith(keys.PREFIX)}
        forged = {"labels": labels, "annotations": annotations_of(victim)}
        pod = {**object_named("work", "default"), "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}}
        pod["metadata"] = {**pod["metadata"], **forged}
        await world.planes["blue"].create(PODS, pod)
        twin = await world.wait_for_twin(plane="blue", timeout=5)
        assert value_at(twin, "metadata", "labels", keys.CLUSTER_BINDING_UID) == uid_of(await world.binding("blue"))
        await world.place("n1", plane="blue")
        await world.wait_for_pod(is_on("n1"), plane="blue", timeout=5)
        await world.delete_pod(plane="blue", grace=0)
        await asyncio.sleep(60)
        assert await world.twin(plane="green") == victim


@in_virtual_time
async def test_safety_rule_13_each_plane_has_only_its_nodes() -> None:
    world = await new_world("blue", "green")
    async with world.process():
        await world.wait_until_ready("blue")
        await world.wait_until_ready("green")
        await world.run_pod(node="n1", plane="blue")
        await world.run_pod(node="n2", plane="green")
        assert await nodes_of(world, "blue") == ["n1"]
        assert await nodes_of(world, "green") == ["n2"]


# -- faults


async def pod_runs_and_ends(world: Tenants) -> None:
    await world.run_pod()
    await world.set_twin_status(phase="Succeeded")
    await world.wait_for_pod(has_phase("Succeeded"))


async def pod_is_deleted_before_placement(world: Tenants) -> None:
    await world.add_pod()
    await world.wait_for_twin()
    await world.delete_pod()
    await world.wait_until_pod_is_gone()
    await world.wait_until_twin_is_gone()


async def pod_is_deleted_while_it_is_placed(world: Tenants) -> None:
    await world.add_pod()
    await world.wait_for_twin()
    await world.place("n1")
    await world.delete_pod()
    await world.wait_for_twin(is_deleting)
    await world.stop()
    await world.wait_until_pod_is_gone()


async def twin_is_deleted_by_owner(world: Tenants) -> None:
    await world.add_pod()
    first = uid_of(await world.wait_for_twin())
    await world.stop()
    await world.wait_for_twin(lambda twin: uid_of(twin) != first)
    await world.place("n2")
    await world.wait_for_pod(is_on("n2"))


async def node_is_cordoned_before_placement(world: Tenants) -> None:
    await world.add_pod()
    await world.wait_for_twin()
    await world.change_node("n1", CORDON)
    await world.wait_for_twin(has_candidates("n2"))
    await world.place("n2")
    await world.wait_for_pod(is_on("n2"))


async def node_is_reclaimed_after_placement(world: Tenants) -> None:
    await world.change_node("n2", CORDON)
    await world.add_pod()
    await world.wait_for_twin(has_candidates("n1"))
    await world.change_node("n1", RECLAIM_NOW)
    await world.wait_until_twin_is_gone()
    await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "NoNodes"))
    await world.change_node("n1", RECLAIM_ENDED)
    await world.wait_for_twin(has_candidates("n1"))
    await world.place("n1")
    await world.wait_for_pod(is_on("n1"))


async def window_closes_and_opens(world: Tenants) -> None:
    await world.set_policy(**AT_FIRST)
    await world.add_pod()
    await world.wait_for_twin()
    await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "NoNodes"))
    await world.wait_until_twin_is_gone()
    await world.set_policy(timeWindows=[])
    await world.wait_for_twin()
    await world.place("n1")
    await world.wait_for_pod(is_on("n1"))


async def pod_with_the_same_name_follows(world: Tenants) -> None:
    await world.run_pod()
    await world.delete_pod(grace=0)
    await world.add_pod()
    await world.wait_for_twin(is_deleting)
    await asyncio.sleep(5)
    await world.stop()
    await world.wait_for_twin(lambda twin: not is_deleting(twin))
    await world.place("n2")
    await world.wait_for_pod(is_on("n2"))


STORIES = [
    pod_runs_and_ends,
    pod_is_deleted_before_placement,
    pod_is_deleted_while_it_is_placed,
    twin_is_deleted_by_owner,
    node_is_cordoned_before_placement,
    node_is_reclaimed_after_placement,
    window_closes_and_opens,
    pod_with_the_same_name_follows,
]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_placed_pods_reach_same_state_despite_faults(
    story: Story, record_property: Callable[[str, object], None]
) -> None:
    scenario = tenant_scenario(story, is_about(PODS, NODES))
    report = perturb(scenario)
    record_property("figure", f"perturbed placement: {report.cases} replays: {scenario.name}")
    report.check()
