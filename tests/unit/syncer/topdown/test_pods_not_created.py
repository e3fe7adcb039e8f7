"""Pods that get no twin: rejected, excluded, or with a taken name."""

import asyncio

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, object_named, uid_of
from tapestry.kube.resources import NAMESPACES, PODS
from tapestry.syncer.config import SyncerLeaderElection

from ..world import MAPPED, MOUNT, accept_all, has_condition, new_world, phase, rejecting

FIVE_MINUTES = 300.0


# -- rejected and excluded pods


@in_virtual_time
async def test_rejected_pod_reports_once_and_gets_no_twin() -> None:
    world = await new_world()
    async with world.syncer():
        await world.add_pod(hostNetwork=True)
        pod = await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "PodSecurity"))
        assert "hostNetwork" in find_condition(pod["status"]["conditions"], keys.ACCEPTED_CONDITION)["message"]
        await asyncio.sleep(3600)
        await world.change_pod({"metadata": {"labels": {"app": "web"}}})
        await asyncio.sleep(60)
        assert await world.phase_and_reason() == ("Pending", None)
        assert world.down.writes("/pods") == []
        assert [event.get("count", 1) for event in await world.events("PodSecurity")] == [1]
        assert len(world.up.writes("/pods/work/status")) == 1


@in_virtual_time
async def test_rejected_pod_runs_when_binding_allows_it() -> None:
    world = await new_world()
    async with world.syncer():
        await world.add_pod(hostNetwork=True)
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "PodSecurity"))
        await world.set_binding(podSecurity="privileged")
        await world.wait_for_pod(MAPPED)
        assert await world.condition(keys.ACCEPTED_CONDITION) is None


@in_virtual_time
async def test_rejected_pod_of_job_fails() -> None:
    world = await new_world()
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
    async with world.syncer():
        await world.add_pod(metadata={"ownerReferences": [owner]}, hostPID=True)
        await world.wait_for_pod(phase("Failed"))
        assert await world.phase_and_reason() == ("Failed", "PodSecurity")
        assert "hostPID" in (await world.pod())["status"]["message"]
        assert world.down.writes("/pods") == []


def of_a_daemon_set(annotations: Object | None = None) -> Object:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    return {"ownerReferences": [owner], "annotations": annotations or {}}


@in_virtual_time
async def test_daemon_set_pod_runs_only_on_request() -> None:
    world = await new_world()
    async with world.syncer():
        await world.add_pod("wanted", metadata=of_a_daemon_set({keys.RUNNING_DAEMONSET: "true"}))
        await world.add_pod("asked-for-later", metadata=of_a_daemon_set())
        await world.add_pod("left", metadata=of_a_daemon_set())
        await world.wait_for_pod(MAPPED, "wanted")
        await asyncio.sleep(60)
        assert len(await world.twins()) == 1
        await world.change_pod({"metadata": {"annotations": {keys.RUNNING_DAEMONSET: "true"}}}, "asked-for-later")
        await world.wait_for_pod(MAPPED, "asked-for-later")
        assert await world.condition(keys.MAPPED_CONDITION, "left") is None
        await world.set_binding(runningDaemonsetByDefault=True)
        await world.wait_for_pod(MAPPED, "left")


@in_virtual_time
async def test_excluded_daemon_set_pod_can_be_deleted() -> None:
    """Its node has no other kubelet."""
    world = await new_world()
    async with world.syncer():
        await world.add_pod(metadata=of_a_daemon_set())
        await asyncio.sleep(1)
        await world.delete_pod()
        await world.wait_until_pod_is_gone()


@pytest.mark.parametrize("namespace", ["kube-system", "kube-public", "kube-node-lease", keys.SYSTEM_NAMESPACE])
@in_virtual_time
async def test_system_pods_are_excluded(namespace: str) -> None:
    world = await new_world()
    async with world.syncer():
        await world.add_pod("proxy", namespace=namespace)
        await asyncio.sleep(60)
        assert await world.twins() == []
        assert world.up.writes("/pods/") == []


@in_virtual_time
async def test_pods_in_namespace_of_the_syncer_are_excluded() -> None:
    world = await new_world()
    election = SyncerLeaderElection(enabled=False, namespace="grid")
    async with world.syncer(leader_election=election):
        await world.add_pod("manager", namespace="grid", volumes=[{"name": "v", "secret": {"secretName": "east"}}])
        await world.add_pod("work", namespace=keys.SYSTEM_NAMESPACE)  # of a user
        await asyncio.sleep(60)
        [twin] = await world.twins()
        assert twin["metadata"]["annotations"][keys.VIRTUAL_POD_NAME] == "work"
        assert not [each for each in world.up.requests if "/namespaces/grid/secrets" in each.path]


@in_virtual_time
async def test_deleting_binding_maps_no_pods() -> None:
    world = await new_world(unbindGraceSeconds=3600)
    async with world.syncer():
        await world.add_pod("before")
        await world.wait_for_pod(MAPPED, "before")
        await world.virtual.delete(CLUSTER_BINDINGS, object_named("east"))
        await asyncio.sleep(1)
        await world.add_pod("after")
        await asyncio.sleep(60)
        assert await world.condition(keys.MAPPED_CONDITION, "after") is None
        assert len(await world.twins()) == 1


# -- taken names


@in_virtual_time
async def test_safety_rule_1_foreign_pod_keeps_the_twins_name() -> None:
    world = await new_world()
    place = await world.twin_ref()
    foreign = await world.physical.create(
        PODS, {**place, "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}}
    )
    async with world.syncer():
        await world.add_pod()
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "NameTaken"))
        await asyncio.sleep(600)
        assert await world.twins() == [foreign]
        assert len(world.up.writes("/pods/work/status")) == 1
        await world.delete_pod()
        await world.wait_until_pod_is_gone()
        assert await world.twins() == [foreign]
        await world.add_pod()
        await world.physical.delete(PODS, foreign)
        await world.wait_for_pod(MAPPED, timeout=61)


@in_virtual_time
async def test_safety_rule_1_one_of_two_labels_is_foreign() -> None:
    world = await new_world()
    place = await world.twin_ref()
    labels = {keys.CLUSTER_BINDING_UID: uid_of(await world.virtual.get(CLUSTER_BINDINGS, "east"))}
    forged = {
        "metadata": {**place["metadata"], "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "busybox:1"}]},
    }
    foreign = await world.physical.create(PODS, forged)
    async with world.syncer():
        pod = await world.add_pod()
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "NameTaken"))
        note = {"metadata": {"annotations": {keys.VIRTUAL_POD_UID: uid_of(pod)}}}
        foreign = await world.physical.patch(PODS, foreign, note)
        await world.delete_pod()
        await world.wait_until_pod_is_gone()
        assert await world.twins() == [foreign]


@in_virtual_time
async def test_pod_waits_for_twin_of_earlier_pod() -> None:
    world = await new_world()
    async with world.syncer():
        first = await world.add_pod()
        await world.wait_for_pod(MAPPED)
        await world.start()
        await world.delete_pod(grace=0)
        second = await world.add_pod()
        await world.wait_for_twin(lambda twin: "deletionTimestamp" in twin["metadata"])
        await asyncio.sleep(20)
        assert await world.condition(keys.MAPPED_CONDITION) is None
        before = len(world.up.requests), len(world.down.requests)
        await asyncio.sleep(20)
        assert (
            sum("/pods" in each.path for each in [*world.up.requests[before[0] :], *world.down.requests[before[1] :]])
            == 0
        )
        await world.stop()
        await world.wait_for_pod(MAPPED)
        [twin] = await world.twins()
        assert uid_of(first) != twin["metadata"]["annotations"][keys.VIRTUAL_POD_UID] == uid_of(second)


@in_virtual_time
async def test_late_mount_namespace_is_enough() -> None:
    world = await new_world()
    going = await world.physical.delete(NAMESPACES, object_named(MOUNT))
    assert going is not None
    await world.physical.replace(NAMESPACES, {**going, "spec": {}}, subresource="finalize")
    world.down.rejection = rejecting("POST", "/pods", NotFound(404, "NotFound", f'namespaces "{MOUNT}" not found'))
    async with world.syncer():
        await world.add_pod()
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "NotPermitted"))
        world.down.rejection = accept_all
        await world.physical.create(NAMESPACES, object_named(MOUNT))
        await world.wait_for_pod(MAPPED, timeout=FIVE_MINUTES)
