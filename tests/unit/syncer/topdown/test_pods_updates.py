"""Changes of a running pod are applied to its twin; additions in the physical cluster stay."""

import asyncio

from tapestry.apis import keys
from tapestry.client.options import PatchType
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.errors import Invalid
from tapestry.kube.objects import Object, annotations_of, labels_of
from tapestry.kube.resources import PODS

from ..world import MAPPED, MOUNT, World, accept_all, forbidden, has_condition, new_world, rejecting

DEBUGGER = {"name": "debugger", "image": "busybox:1", "env": [{"name": "X", "value": "y"}]}


async def add_debugger(world: World, container: Object) -> None:
    patch = {"spec": {"ephemeralContainers": [container]}}
    await world.virtual.patch(
        PODS, await world.pod(), patch, type=PatchType.STRATEGIC, subresource="ephemeralcontainers"
    )


async def set_resources(world: World, resources: Object) -> None:
    patch = {"spec": {"containers": [{"name": "c", "resources": resources}]}}
    await world.virtual.patch(PODS, await world.pod(), patch, type=PatchType.STRATEGIC, subresource="resize")


@in_virtual_time
async def test_metadata_follows_and_additions_stay() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod(metadata={"labels": {"app": "web", "old": "x"}, "annotations": {"note": "1"}})
        await world.set_twin({"metadata": {"labels": {"owner": "yes"}, "annotations": {"injected": "yes"}}})
        await world.change_pod({"metadata": {"labels": {"old": None, "new": "y"}, "annotations": {"note": None}}})
        twin = await world.wait_for_twin(lambda twin: "new" in labels_of(twin))
        assert {key: value for key, value in labels_of(twin).items() if not key.startswith(keys.PREFIX)} == {
            "app": "web",
            "new": "y",
            "owner": "yes",
        }
        assert "note" not in annotations_of(twin)
        assert annotations_of(twin)["injected"] == "yes"


@in_virtual_time
async def test_one_change_is_one_physical_write() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        virtual, physical = len(world.up.writes("/pods/")), len(world.down.writes("/pods"))
        await world.change_pod({"metadata": {"labels": {"a": "b"}}})
        await asyncio.sleep(60)
        assert world.down.writes("/pods")[physical:] == [f"PATCH {PODS.path(MOUNT, (await place(world)))}"]
        assert world.up.writes("/pods/")[virtual:] == []


async def place(world: World) -> str:
    found: str = (await world.twin_ref())["metadata"]["name"]
    return found


@in_virtual_time
async def test_unscheduled_twin_follows_too() -> None:
    world = await new_world()
    async with world.syncer():
        await world.add_pod()
        await world.wait_for_pod(MAPPED)
        await world.mark_unschedulable()
        await world.change_pod({"metadata": {"labels": {"a": "b"}}})
        await world.wait_for_twin(lambda twin: labels_of(twin).get("a") == "b")


@in_virtual_time
async def test_images_follow() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        await world.change_pod({"spec": {"containers": [{"name": "c", "image": "busybox:2"}]}})
        await world.wait_for_twin(lambda twin: twin["spec"]["containers"][0]["image"] == "busybox:2")


@in_virtual_time
async def test_webhook_changes_of_twin_stay() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        await world.set_twin({"spec": {"containers": [{"name": "c", "image": "mirror/busybox:1"}]}})
        await asyncio.sleep(60)
        twin = await world.twin()
        assert twin["spec"]["containers"][0]["image"] == "mirror/busybox:1"


@in_virtual_time
async def test_ephemeral_container_is_added_to_twin() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        await add_debugger(world, DEBUGGER)
        twin = await world.wait_for_twin(lambda twin: "ephemeralContainers" in twin["spec"])
        [container] = twin["spec"]["ephemeralContainers"]
        assert (container["name"], container["image"]) == ("debugger", "busybox:1")
        assert {"name": "X", "value": "y"} in container["env"]
        await asyncio.sleep(60)
        assert len(world.down.writes("PATCH", "/ephemeralcontainers")) == 1


@in_virtual_time
async def test_rejected_ephemeral_container_keeps_pod_running() -> None:
    world = await new_world()
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
    async with world.syncer():
        await world.run_pod(metadata={"ownerReferences": [owner]})
        await add_debugger(world, {**DEBUGGER, "securityContext": {"privileged": True}})
        await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "PodSecurity"))
        await asyncio.sleep(60)
        assert (await world.phase_and_reason())[0] == "Running"
        assert "ephemeralContainers" not in (await world.twin())["spec"]
        assert len(await world.events("PodSecurity")) == 1


@in_virtual_time
async def test_resize_uses_its_subresource() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod(requests={"cpu": "1"})
        await set_resources(world, {"requests": {"cpu": "2"}})
        await world.wait_for_twin(lambda twin: twin["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "2")
        await asyncio.sleep(60)
        assert len(world.down.writes("PATCH", "/resize")) == 1


@in_virtual_time
async def test_rejected_change_is_reported_and_retried() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod()
        world.down.rejection = rejecting("PATCH", await place(world), forbidden("a webhook says no"))
        await world.change_pod({"metadata": {"labels": {"a": "b"}}})
        await asyncio.sleep(60)
        assert (await world.phase_and_reason())[0] == "Running"
        [event] = await world.events("RefusedBelow")
        assert event["message"] == "a webhook says no"
        world.down.rejection = accept_all
        await world.wait_for_twin(lambda twin: labels_of(twin).get("a") == "b", timeout=300)


@in_virtual_time
async def test_one_rejected_change_repeats_all() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod(requests={"cpu": "1"})
        world.down.rejection = rejecting("PATCH", "/resize", Invalid(422, "Invalid", "no room on the node"))
        await set_resources(world, {"requests": {"cpu": "2"}})
        await world.change_pod({"metadata": {"labels": {"a": "b"}}})
        await asyncio.sleep(60)
        world.down.rejection = accept_all
        twin = await world.wait_for_twin(lambda twin: labels_of(twin).get("a") == "b", timeout=300)
        assert twin["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "2"


@in_virtual_time
async def test_change_during_downtime_follows_later() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod(metadata={"labels": {"old": "x"}})
    await world.change_pod({"metadata": {"labels": {"old": None, "a": "b"}}})
    async with world.syncer():
        twin = await world.wait_for_twin(lambda twin: labels_of(twin).get("a") == "b")
        assert "old" not in labels_of(twin)
