"""Deletion of ClusterBindings, graceful and forced."""

from pathlib import Path
from typing import Any

from tapestry.apis import keys
from tapestry.controller.testing import specimen
from tapestry.kube.objects import object_named, uid_of
from tapestry.kube.resources import DEPLOYMENTS, EVENTS, NODES, PODS
from tapestry.manager.config import BindingsConfig

EAST = "https://east.example"
SYSTEM = keys.SYSTEM_NAMESPACE
BOTH = (keys.MANAGER_FINALIZER, keys.SYNCER_FINALIZER)

World = Any  # of conftest.py


async def add_virtual_node(world: World, name: str, uid: str, *pods: str) -> None:
    await world.client.create(NODES, {"metadata": {"name": name, "labels": {keys.CLUSTER_BINDING_UID: uid}}})
    for pod in pods:
        obj = specimen(PODS, pod, "shop")
        given = {"nodeName": name, "terminationGracePeriodSeconds": 3600}
        await world.client.create(PODS, {**obj, "spec": {**obj["spec"], **given}})


async def test_never_ready_binding_is_deleted_at_once(world: World) -> None:
    async with world.running():
        await world.add_binding("east", mountNamespace="")
        await world.reaches("east", "Failed")
        await world.unbind("east")
        await world.is_gone("east")
        assert (await world.reasons())[-2:] == ["CleanupInProgress", "Deleted"]


async def test_all_objects_of_a_binding_are_deleted(world: World) -> None:
    async with world.running():
        await world.join("east")
        await world.unbind("east")
        await world.is_gone("east")
        assert await world.of_syncers() == []


async def test_syncer_remains_until_it_has_cleaned_up(world: World) -> None:
    async with world.running():
        await world.join("east")
        await world.set_finalizers("east", *BOTH)
        everything = await world.of_syncers()
        await world.unbind("east")
        await world.reaches("east", "Deleting", "WaitingSyncerCleanup")
        await world.wait(60)
        assert await world.message("east") == "waiting for the syncer to clean up"
        await world.wait(3600)
        assert keys.FORCE_UNBIND in await world.message("east")  # it takes far too long
        assert await world.of_syncers() == everything
        assert (await world.reasons()).count("WaitingSyncerCleanup") == 2
        await world.set_finalizers("east", keys.MANAGER_FINALIZER)
        await world.is_gone("east")
        assert await world.of_syncers() == []


async def test_deleted_syncer_is_recreated_for_its_cleanup(world: World) -> None:
    async with world.running():
        await world.join("east")
        await world.set_finalizers("east", *BOTH)
        await world.unbind("east")
        await world.reaches("east", "Deleting")
        await world.client.delete(DEPLOYMENTS, await world.deployment())
        await world.wait(1)
        assert "Deployment tapestry-syncer-east" in await world.of_syncers()


async def test_syncer_that_cannot_be_deployed_is_reported(world: World, tmp_path: Path) -> None:
    async with world.running():
        await world.join("east")
        await world.set_finalizers("east", *BOTH)
    async with world.running(BindingsConfig(template_dir=str(tmp_path))):
        await world.unbind("east")
        await world.reaches("east", "Deleting", "WaitingSyncerCleanup")
        assert "the syncer cannot be deployed: SyncerFailed: " in await world.message("east")


async def test_other_objects_are_deleted_after_the_deployment(world: World) -> None:
    async with world.running():
        await world.join("east")
        deployment = await world.deployment()
        held = await world.client.patch(DEPLOYMENTS, deployment, {"metadata": {"finalizers": ["example.com/held"]}})
        everything = await world.of_syncers()
        await world.unbind("east")
        await world.wait(3600)
        assert await world.of_syncers() == everything
        await world.reaches("east", "Deleting", "CleanupInProgress")
        await world.client.patch(
            DEPLOYMENTS, object_named(held["metadata"]["name"], SYSTEM), {"metadata": {"finalizers": []}}
        )
        await world.is_gone("east")
        assert await world.of_syncers() == []


async def test_deployment_without_labels_is_found_by_name(world: World) -> None:
    async with world.running():
        await world.join("east")
    deployment = await world.deployment()
    nothing = dict.fromkeys(deployment["metadata"]["labels"])
    await world.client.patch(DEPLOYMENTS, deployment, {"metadata": {"labels": nothing}})
    await world.unbind("east")
    async with world.running():
        await world.is_gone("east")
        assert await world.of_syncers() == []


async def test_finalizers_of_others_stay(world: World) -> None:
    async with world.running():
        await world.join("east")
        await world.set_finalizers("east", keys.MANAGER_FINALIZER, "example.com/theirs")
        await world.unbind("east")
        await world.wait(10)
        assert (await world.binding("east"))["metadata"]["finalizers"] == ["example.com/theirs"]


async def test_forced_unbind_works_without_the_cluster(world: World) -> None:
    async with world.running():
        binding = await world.join("east")
        await world.set_finalizers("east", *BOTH)
        await add_virtual_node(world, "vnode-east-a", uid_of(binding), "web", "db")
        await add_virtual_node(world, "vnode-west-a", "another", "theirs")
        world.clusters.clear()
        await world.unbind("east")
        await world.reaches("east", "Deleting", "WaitingSyncerCleanup")
        await world.annotate("east", keys.FORCE_UNBIND, "true")
        await world.is_gone("east")
        assert await world.of_syncers() == []
        assert [node["metadata"]["name"] for node in await world.client.list(NODES)] == ["vnode-west-a"]
        assert [pod["metadata"]["name"] for pod in await world.client.list(PODS)] == ["theirs"]
        assert (await world.reasons())[-2:] == ["LeftBehind", "Deleted"]
        messages = {event["reason"]: event["message"] for event in await world.client.list(EVENTS)}
        selector = f"{keys.CLUSTER_BINDING_UID}={uid_of(binding)}"
        assert (
            "leased of the physical cluster may still contain twins of the pods shop/db, shop/web; "
            in messages["LeftBehind"]
        )
        assert selector in messages["LeftBehind"]
        assert selector in messages["Deleted"]


async def test_pods_with_finalizers_do_not_block_forced_unbind(world: World) -> None:
    async with world.running():
        binding = await world.join("east")
        await world.set_finalizers("east", *BOTH)
        await add_virtual_node(world, "vnode-east-a", uid_of(binding), "web")
        await world.client.patch(PODS, object_named("web", "shop"), {"metadata": {"finalizers": ["example.com/held"]}})
        await world.client.delete(PODS, object_named("web", "shop"))
        await world.annotate("east", keys.FORCE_UNBIND, "true")
        await world.unbind("east")
        await world.is_gone("east")
        assert await world.client.list(NODES) == []
        assert (await world.client.get(PODS, "web", "shop"))["metadata"]["deletionGracePeriodSeconds"] == 0


async def test_only_the_value_true_forces(world: World) -> None:
    async with world.running():
        await world.join("east")
        await world.set_finalizers("east", *BOTH)
        await world.annotate("east", keys.FORCE_UNBIND, "false")
        await world.unbind("east")
        await world.wait(3600)
        assert (await world.binding("east"))["metadata"]["finalizers"] == list(BOTH)
