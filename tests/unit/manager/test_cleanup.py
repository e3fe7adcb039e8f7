"""The end of ClusterBindings: orderly, or by force."""

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


async def test_a_binding_that_never_was_ready_goes_at_once(world: World) -> None:
    async with world.running():
        await world.add_binding("east", mountNamespace="")
        await world.reaches("east", "Failed")
        await world.unbind("east")
        await world.is_gone("east")
        assert (await world.reasons())[-2:] == ["CleanupInProgress", "Deleted"]


async def test_nothing_of_a_binding_is_left(world: World) -> None:
    async with world.running():
        await world.join("east")
        await world.unbind("east")
        await world.is_gone("east")
        assert await world.of_syncers() == []


async def test_the_syncer_cleans_up_first_and_nothing_of_it_goes_before(world: World) -> None:
    async with world.running():
        await world.join("east")
        await world.set_finalizers("east", *BOTH)
        everything = await world.of_syncers()
        await world.unbind("east")
        await world.reaches("east", "Deleting", "WaitingSyncerCleanup")
        await world.wait(60)
        assert await world.message("east") == "the syncer has yet to clean up"
        await world.wait(3600)
        assert keys.FORCE_UNBIND in await world.message("east")  # it has taken far longer than it may
        assert await world.of_syncers() == everything
        assert (await world.reasons()).count("WaitingSyncerCleanup") == 2
        await world.set_finalizers("east", keys.MANAGER_FINALIZER)
        await world.is_gone("east")
        assert await world.of_syncers() == []


async def test_a_syncer_that_is_still_to_clean_up_is_kept_at_work(world: World) -> None:
    async with world.running():
        await world.join("east")
        await world.set_finalizers("east", *BOTH)
        await world.unbind("east")
        await world.reaches("east", "Deleting")
        await world.client.delete(DEPLOYMENTS, await world.deployment())
        await world.wait(1)
        assert "Deployment tapestry-syncer-east" in await world.of_syncers()


async def test_a_syncer_that_cannot_be_started_to_clean_up_says_why(world: World, tmp_path: Path) -> None:
    async with world.running():
        await world.join("east")
        await world.set_finalizers("east", *BOTH)
    async with world.running(BindingsConfig(template_dir=str(tmp_path))):
        await world.unbind("east")
        await world.reaches("east", "Deleting", "WaitingSyncerCleanup")
        assert "it cannot be started: SyncerFailed: " in await world.message("east")


async def test_the_rest_goes_after_the_deployment_is_really_gone(world: World) -> None:
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


async def test_a_deployment_is_found_by_its_usual_name_when_its_labels_are_gone(world: World) -> None:
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


async def test_an_unreachable_cluster_can_always_be_left(world: World) -> None:
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
        told = {event["reason"]: event["message"] for event in await world.client.list(EVENTS)}
        selector = f"{keys.CLUSTER_BINDING_UID}={uid_of(binding)}"
        assert "in namespace leased below may be left: twins of the pods shop/db, shop/web; " in told["LeftBehind"]
        assert selector in told["LeftBehind"]
        assert selector in told["Deleted"]


async def test_pods_that_something_holds_do_not_hold_the_unbinding(world: World) -> None:
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


async def test_only_true_is_force(world: World) -> None:
    async with world.running():
        await world.join("east")
        await world.set_finalizers("east", *BOTH)
        await world.annotate("east", keys.FORCE_UNBIND, "false")
        await world.unbind("east")
        await world.wait(3600)
        assert (await world.binding("east"))["metadata"]["finalizers"] == list(BOTH)
