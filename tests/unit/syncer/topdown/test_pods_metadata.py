"""Metadata and tolerations of a pod that reach its twin, and reports about the rest."""

import asyncio

from tapestry.apis import keys
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.objects import annotations_of, labels_of, object_named
from tapestry.kube.resources import NODES, PODS

from ..world import MAPPED, MOUNT, has_condition, new_world

QUEUE = "kueue.x-k8s.io/queue-name"


@in_virtual_time
async def test_uncopied_keys_are_reported_in_one_event() -> None:
    world = await new_world()
    async with world.syncer():
        metadata = {"labels": {"app": "web", QUEUE: "gold"}, "annotations": {"iam.amazonaws.com/role": "admin"}}
        await world.run_pod(metadata=metadata)
        twin = await world.twin()
        assert labels_of(twin)["app"] == "web"
        assert QUEUE not in labels_of(twin)
        assert "iam.amazonaws.com/role" not in annotations_of(twin)
        await asyncio.sleep(60)
        [event] = await world.events("MetadataNotCopied")
        assert event["message"].endswith(f": iam.amazonaws.com/role, {QUEUE}")
        assert event["count"] == 1


@in_virtual_time
async def test_changed_allowed_metadata_reaches_running_twins() -> None:
    world = await new_world()
    async with world.syncer():
        await world.run_pod(metadata={"labels": {QUEUE: "gold"}})
        await world.set_binding(allowedMetadata=["kueue.x-k8s.io/*"])
        await world.wait_for_twin(lambda twin: labels_of(twin).get(QUEUE) == "gold")
        await world.set_binding(allowedMetadata=None)
        await world.wait_for_twin(lambda twin: QUEUE not in labels_of(twin))


@in_virtual_time
async def test_volume_with_uncopied_key_waits_until_allowed() -> None:
    world = await new_world()
    item = {"path": "tier", "fieldRef": {"fieldPath": "metadata.labels['example.com/tier']"}}
    async with world.syncer():
        await world.add_pod(volumes=[{"name": "v", "downwardAPI": {"items": [item]}}])
        pod = await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "PodSecurity"))
        [rejected] = [each for each in pod["status"]["conditions"] if each["type"] == keys.ACCEPTED_CONDITION]
        assert "label example.com/tier is not copied" in rejected["message"]
        assert await world.twins() == []
        await world.set_binding(allowedMetadata=["example.com/tier"])
        await world.wait_for_pod(MAPPED)


@in_virtual_time
async def test_twin_tolerates_only_taints_at_creation() -> None:
    world = await new_world()
    gpu = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    async with world.syncer():
        await world.physical.patch(NODES, object_named("n1"), {"spec": {"taints": [gpu]}})
        await asyncio.sleep(5)
        await world.run_pod(tolerations=[{"operator": "Exists"}])
        exact = {"key": "nvidia.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"}
        assert exact in (await world.twin())["spec"]["tolerations"]
        writes = len(world.down.writes("/pods"))
        late = {"key": "maintenance", "effect": "NoExecute"}
        await world.physical.patch(NODES, object_named("n1"), {"spec": {"taints": [gpu, late]}})
        await asyncio.sleep(600)
        tolerated = (await world.twin())["spec"]["tolerations"]
        assert not any(each.get("key") in (None, "", "maintenance") for each in tolerated)
        assert world.down.writes("/pods")[writes:] == []


@in_virtual_time
async def test_direct_scheduling_respects_untolerated_taints() -> None:
    world = await new_world(directScheduling=True)
    taint = {"key": "dedicated", "value": "owner", "effect": "NoExecute"}
    async with world.syncer():
        await world.physical.patch(NODES, object_named("n1"), {"spec": {"taints": [taint]}})
        await asyncio.sleep(5)
        await world.add_pod(tolerations=[{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}])
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "Tainted"))
        assert await world.physical.list(PODS, MOUNT) == []
        await world.physical.patch(NODES, object_named("n1"), {"spec": {"taints": None}})
        await world.wait_for_pod(MAPPED)
