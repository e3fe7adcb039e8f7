"""Twins of claims and volumes, as far as the binding allows and while a pod needs them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, Binding, binding_of
from tapestry.client.client import Client
from tapestry.client.transport import Transport
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.testing import Scenario, in_virtual_time, perturb, running_clock
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import Invalid
from tapestry.kube.objects import Object, name_of, object_named, owned_object, uid_of, value_at
from tapestry.kube.resources import EVENTS, NAMESPACES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, SECRETS
from tapestry.syncer.app import build_syncer
from tapestry.syncer.config import SyncerConfig, SyncerLeaderElection
from tapestry.syncer.topdown.volumes import PENDING_SECONDS
from tapestry.syncer.translate.volumes import name_in_physical, twin_claim

from ..world import A_DAY, MOUNT, SERVED, Clusters, World, accept_all, has_condition, new_world, phase, rejecting

DISKS = {"drivers": ["disk.example"], "volumeHandles": ["vol-*"]}
EPHEMERAL = {"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}}
MOUNTED = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
KEY = {"name": "key", "namespace": "default"}

CLAIM_SPEC = {
    "accessModes": ["ReadWriteOnce"],
    "resources": {"requests": {"storage": "1Gi"}},
    "storageClassName": "fast",
}
"""Requests of a claim."""


async def add_claim(virtual: Client, name: str = "data", *, source: Object | None = None, **csi: Any) -> Object:
    """Create a claim that is bound to its own volume."""
    spec = {**CLAIM_SPEC, "volumeName": f"pv-{name}"}
    claim = await virtual.create(PERSISTENT_VOLUME_CLAIMS, {**object_named(name, "default"), "spec": spec})
    given = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "claimRef": {"namespace": "default", "name": name, "uid": uid_of(claim)},
        "storageClassName": "fast",
        **(source or {"csi": {"driver": "disk.example", "volumeHandle": f"vol-{name}", **csi}}),
    }
    await virtual.create(PERSISTENT_VOLUMES, {**object_named(f"pv-{name}"), "spec": given})
    status = {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}
    return await virtual.patch(PERSISTENT_VOLUME_CLAIMS, claim, status, subresource="status")


async def new_world_with_a_claim() -> World:
    """Return clusters whose binding allows disks, with the claim `data`."""
    world = await new_world(allowedVolumes=DISKS)
    await add_claim(world.virtual)
    return world


async def mount(world: World, name: str = "work") -> Object:
    """Create a pod that mounts the claim; return its twin."""
    await world.add_pod(name, volumes=MOUNTED)
    return await world.wait_for_twin(name=name)


async def delete_claim(virtual: Client, name: str = "data") -> None:
    await virtual.delete(PERSISTENT_VOLUME_CLAIMS, object_named(name, "default"))
    await virtual.delete(PERSISTENT_VOLUMES, object_named(f"pv-{name}"))


async def claims(world: Clusters) -> list[Object]:
    return await world.physical.list(PERSISTENT_VOLUME_CLAIMS, MOUNT)


async def volumes(world: Clusters) -> list[Object]:
    return await world.physical.list(PERSISTENT_VOLUMES)


async def copies(world: Clusters) -> list[Object]:
    return await world.physical.list(SECRETS, MOUNT)


async def the_binding(world: Clusters) -> Binding:
    system = await world.virtual.get(NAMESPACES, "kube-system")
    return binding_of(await world.virtual.get(CLUSTER_BINDINGS, "east"), uid_of(system))


async def mapped(world: Clusters) -> tuple[str, str, str]:
    """Return status, reason and message of the pod's Mapped condition."""
    condition = find_condition((await world.pod())["status"]["conditions"], keys.MAPPED_CONDITION) or {}
    return condition["status"], condition["reason"], condition["message"]


# -- syncing


@in_virtual_time
async def test_volume_claim_and_pod_are_created_in_order() -> None:
    world = await new_world_with_a_claim()
    async with world.syncer():
        twin = await mount(world)
        [claim], [volume] = await claims(world), await volumes(world)
        binding = await the_binding(world)
        assert binding.owns(claim)
        assert binding.owns(volume)
        assert twin["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == name_of(claim)
        assert claim["spec"]["volumeName"] == name_of(volume)
        assert volume["spec"]["claimRef"]["name"] == name_of(claim)
        assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
        created = [each.split("/")[-1] for each in world.down.writes("POST")]
        assert created == ["persistentvolumes", "persistentvolumeclaims", "pods"]


@in_virtual_time
async def test_claim_and_volume_are_deleted_after_last_pod() -> None:
    world = await new_world_with_a_claim()
    async with world.syncer():
        for name in ("one", "two"):
            await mount(world, name)
        await world.delete_pod("one")
        await world.wait_until_pod_is_gone("one")
        await asyncio.sleep(60)
        assert len(await claims(world)) == len(await volumes(world)) == 1
        await world.delete_pod("two")
        await world.wait_until_pod_is_gone("two")
        await asyncio.sleep(5)
        assert await claims(world) == await volumes(world) == []
        deleted = [each.split("/")[-2] for each in world.down.writes("DELETE") if "/pods/" not in each]
        assert deleted == ["persistentvolumeclaims", "persistentvolumes"]
        await world.virtual.get(PERSISTENT_VOLUMES, "pv-data")


@in_virtual_time
async def test_ended_pod_needs_no_claim() -> None:
    world = await new_world_with_a_claim()
    async with world.syncer():
        await mount(world)
        await world.end()
        await asyncio.sleep(5)
        assert await world.phase_and_reason() == ("Succeeded", None)
        assert await claims(world) == await volumes(world) == []


@in_virtual_time
async def test_unused_twins_are_deleted_after_downtime() -> None:
    world = await new_world_with_a_claim()
    async with world.syncer():
        await mount(world)
    await world.delete_pod(grace=0)
    async with world.syncer():
        await asyncio.sleep(60)
        assert await claims(world) == await volumes(world) == []


@in_virtual_time
async def test_claim_without_volume_is_deleted_too() -> None:
    world = await new_world_with_a_claim()
    async with world.syncer():
        await mount(world)
    await world.delete_pod(grace=0)
    [volume] = await volumes(world)
    await world.physical.delete(PERSISTENT_VOLUMES, volume)
    async with world.syncer():
        await asyncio.sleep(60)
        assert await claims(world) == []


@in_virtual_time
async def test_pods_on_other_nodes_keep_no_twins() -> None:
    world = await new_world_with_a_claim()
    async with world.syncer():
        await world.add_pod("elsewhere", node="vnode-east-2-n1", volumes=MOUNTED)  # belongs to the binding east-2
        await mount(world)
        await world.delete_pod()
        await world.wait_until_pod_is_gone()
        await asyncio.sleep(5)
        assert await claims(world) == await volumes(world) == []


@in_virtual_time
async def test_unbinding_removes_all_volumes() -> None:
    world = await new_world_with_a_claim()
    async with world.syncer():
        await mount(world)
        await world.virtual.delete(CLUSTER_BINDINGS, object_named("east"))
        await wait_for(world.virtual, CLUSTER_BINDINGS, "east", until=lambda obj: obj is None, timeout=600)
        assert await claims(world) == await volumes(world) == []


@in_virtual_time
async def test_recreated_claim_and_volume_get_new_twins() -> None:
    world = await new_world_with_a_claim()
    async with world.syncer():
        await mount(world, "before")
        [before] = await claims(world)
        await delete_claim(world.virtual)
        await add_claim(world.virtual, volumeHandle="vol-another")
        await mount(world)
        [claim], [volume] = await claims(world), await volumes(world)
        assert uid_of(claim) != uid_of(before)
        assert volume["spec"]["csi"]["volumeHandle"] == "vol-another"


@in_virtual_time
async def test_volume_is_rebound_after_twin_claim_deletion() -> None:
    world = await new_world_with_a_claim()
    async with world.syncer():
        await mount(world, "before")
        [claim], [volume] = await claims(world), await volumes(world)
        await world.physical.patch(PERSISTENT_VOLUMES, volume, {"spec": {"claimRef": {"uid": uid_of(claim)}}})
        await world.physical.delete(PERSISTENT_VOLUME_CLAIMS, claim)
        await mount(world)
        [volume] = await volumes(world)
        assert "uid" not in volume["spec"]["claimRef"]


@in_virtual_time
async def test_unchanged_volumes_cause_no_write() -> None:
    world = await new_world_with_a_claim()
    async with world.syncer():
        await mount(world)
        annotation = {"metadata": {"annotations": {"a": "b"}}}
        await world.virtual.patch(PERSISTENT_VOLUME_CLAIMS, object_named("data", "default"), annotation)
    async with world.syncer():
        await asyncio.sleep(60)
        assert len(world.down.writes("persistentvolume")) == 2
        assert world.up.writes("persistentvolume") == []


# -- rejections


@in_virtual_time
async def test_without_drivers_nothing_is_synced_or_requested() -> None:
    world = await new_world()
    await add_claim(world.virtual)
    async with world.syncer():
        await world.add_pod(volumes=MOUNTED)
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "VolumeNotAllowed"))
        assert [each for each in world.down.requests if "persistentvolume" in each.path] == []
        await world.set_binding(allowedVolumes=DISKS)
        await world.wait_for_twin()


@in_virtual_time
async def test_disallowed_volume_is_rejected_with_reason() -> None:
    world = await new_world(allowedVolumes={**DISKS, "drivers": ["other.example"]})
    await add_claim(world.virtual)
    async with world.syncer():
        await world.add_pod(volumes=MOUNTED)
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "VolumeNotAllowed"))
        message = "spec.csi.driver: disk.example is not in the binding's allowedVolumes"
        assert await mapped(world) == ("False", "VolumeNotAllowed", message)
        assert await claims(world) == await volumes(world) == await world.twins() == []


@in_virtual_time
async def test_disallowed_handle_is_not_synced() -> None:
    world = await new_world(allowedVolumes={"drivers": ["disk.example"]})
    await add_claim(world.virtual, volumeHandle="the-owners-data")
    async with world.syncer():
        await world.add_pod(volumes=MOUNTED)
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "VolumeNotAllowed"))
        assert (await mapped(world))[2].startswith("spec.csi.volumeHandle: ")
        assert await volumes(world) == []
        await world.set_binding(allowedVolumes={"volumeHandles": ["the-owners-*"]})
        await world.wait_for_twin()


@in_virtual_time
async def test_pod_waits_while_owner_policy_rejects_volume() -> None:
    world = await new_world_with_a_claim()
    denial = "persistentvolumes is forbidden: ValidatingAdmissionPolicy 'x' with binding 'x' denied request: no"
    world.down.rejection = rejecting(
        "POST", "/persistentvolumes", Invalid(422, "Invalid", denial, details={"causes": [{"message": denial}]})
    )
    async with world.syncer():
        await world.add_pod(volumes=MOUNTED)
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "VolumeRefusedBelow"))
        await asyncio.sleep(1800)
        assert (await mapped(world))[1] == "VolumeRefusedBelow"
        assert "`tapestry join`" in (await mapped(world))[2]
        assert len(world.down.writes("POST", "/persistentvolumes")) <= 40
        world.down.rejection = accept_all  # a new join updates the policy
        await world.wait_for_twin(timeout=120)


@pytest.mark.parametrize("level", ["baseline", "privileged"])
@in_virtual_time
async def test_safety_rule_6_host_path_is_never_synced(level: str) -> None:
    world = await new_world(allowedVolumes=DISKS, podSecurity=level)
    await add_claim(world.virtual, source={"hostPath": {"path": "/etc"}})
    async with world.syncer():
        await world.add_pod(volumes=MOUNTED)
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "VolumeNotAllowed"))
        await asyncio.sleep(600)
        assert await claims(world) == await volumes(world) == await world.twins() == []


@in_virtual_time
async def test_pod_waits_for_bound_claim() -> None:
    world = await new_world(allowedVolumes=DISKS)
    async with world.syncer():
        await world.add_pod(volumes=MOUNTED)
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "ClaimMissing"))
        await asyncio.sleep(5)
        claim = await world.virtual.create(
            PERSISTENT_VOLUME_CLAIMS, {**object_named("data", "default"), "spec": CLAIM_SPEC}
        )
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "ClaimNotBound"))
        await asyncio.sleep(5)
        await world.virtual.delete(PERSISTENT_VOLUME_CLAIMS, claim)
        await add_claim(world.virtual)
        await world.wait_for_twin()


@in_virtual_time
async def test_impossible_claim_is_missing() -> None:
    world = await new_world(allowedVolumes=DISKS)
    async with world.syncer():
        await world.add_pod(volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "../../secrets/x"}}])
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "ClaimMissing"))


@in_virtual_time
async def test_ephemeral_volume_is_the_claim_created_for_its_pod() -> None:
    world = await new_world(allowedVolumes=DISKS)
    async with world.syncer():
        pod = await world.add_pod(volumes=[EPHEMERAL])
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "ClaimMissing"))
        claim = await add_claim(world.virtual, "work-data")
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "ClaimNotOwned"))
        owned = owned_object(pod, PERSISTENT_VOLUME_CLAIMS, {}, name="work-data")["metadata"]["ownerReferences"]
        await world.virtual.patch(PERSISTENT_VOLUME_CLAIMS, claim, {"metadata": {"ownerReferences": owned}})
        twin = await world.wait_for_twin()
        [mounted] = await claims(world)
        assert twin["spec"]["volumes"] == [{"name": "data", "persistentVolumeClaim": {"claimName": name_of(mounted)}}]


@in_virtual_time
async def test_safety_rule_1_foreign_volume_keeps_its_name() -> None:
    world = await new_world(allowedVolumes=DISKS)
    name = name_in_physical(await the_binding(world), "", "pv-data")
    spec = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/data"}}
    foreign = await world.physical.create(PERSISTENT_VOLUMES, {**object_named(name), "spec": spec})
    await add_claim(world.virtual)
    async with world.syncer():
        await world.add_pod(volumes=MOUNTED)
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "NameTaken"))
        await world.delete_pod(grace=0)
        await asyncio.sleep(600)
        assert await volumes(world) == [foreign]


@in_virtual_time
async def test_safety_rule_2_pods_are_listed_before_claim_deletion() -> None:
    world = await new_world(allowedVolumes=DISKS)
    claim = await add_claim(world.virtual)
    async with world.syncer():
        await asyncio.sleep(5)
        world.up.api.freeze()
        await world.add_pod(volumes=MOUNTED)
        volume = await world.virtual.get(PERSISTENT_VOLUMES, "pv-data")
        twin = twin_claim(claim, volume, await the_binding(world))
        created = await world.physical.create(PERSISTENT_VOLUME_CLAIMS, twin)
        await asyncio.sleep(60)
        assert [uid_of(each) for each in await claims(world)] == [uid_of(created)]
        await world.delete_pod(grace=0)
        await asyncio.sleep(60)
        assert await claims(world) == []


@in_virtual_time
async def test_deleting_claim_is_unusable_before_cache_shows_it() -> None:
    world = await new_world_with_a_claim()
    async with world.syncer():
        await mount(world, "before")
        await world.end(name="before")
        await world.wait_for_pod(phase("Succeeded"), "before")
        world.down.api.freeze()
        await asyncio.sleep(5)
        assert await claims(world) == []
        await world.add_pod(volumes=MOUNTED)
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "VolumeGoing"))
        await asyncio.sleep(5)
        world.down.api.thaw()
        await world.wait_for_twin()
        assert len(await claims(world)) == 1


# -- Secrets


@in_virtual_time
async def test_volume_secret_is_copied_and_deleted_with_it() -> None:
    world = await new_world(allowedVolumes=DISKS)
    await world.virtual.create(SECRETS, {**object_named("key", "default"), "kind": "Secret", "data": {"k": "dg=="}})
    await add_claim(world.virtual, nodeStageSecretRef=KEY)
    async with world.syncer():
        await mount(world)
        [copy], [volume] = await copies(world), await volumes(world)
        assert copy["data"] == {"k": "dg=="}
        assert volume["spec"]["csi"]["nodeStageSecretRef"] == {"name": name_of(copy), "namespace": MOUNT}
        await world.virtual.patch(SECRETS, object_named("key", "default"), {"data": {"k": "dw=="}})
        await asyncio.sleep(60)
        [copy] = await copies(world)
        assert copy["data"] == {"k": "dw=="}
        await world.delete_pod()
        await world.wait_until_pod_is_gone()
        await asyncio.sleep(60)
        assert await copies(world) == await volumes(world) == []


@in_virtual_time
async def test_secret_stays_while_its_volume_exists() -> None:
    world = await new_world(allowedVolumes=DISKS)
    await world.virtual.create(SECRETS, {**object_named("key", "default"), "kind": "Secret", "data": {"k": "dg=="}})
    await add_claim(world.virtual, nodeStageSecretRef=KEY)
    async with world.syncer():
        await mount(world)
        [volume] = await volumes(world)
        held = await world.physical.patch(
            PERSISTENT_VOLUMES, volume, {"metadata": {"finalizers": ["kubernetes.io/pv-protection"]}}
        )
        await world.delete_pod()
        await world.wait_until_pod_is_gone()
        await asyncio.sleep(60)
        assert len(await copies(world)) == 1
        await world.physical.patch(PERSISTENT_VOLUMES, object_named(name_of(held)), {"metadata": {"finalizers": None}})
        await asyncio.sleep(60)
        assert await copies(world) == await volumes(world) == []


@in_virtual_time
async def test_pod_waits_for_volume_secret() -> None:
    world = await new_world(allowedVolumes=DISKS)
    await add_claim(world.virtual, nodeStageSecretRef=KEY)
    async with world.syncer():
        await world.add_pod(volumes=MOUNTED)
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "SecretMissing"))
        await asyncio.sleep(60)
        assert await volumes(world) == []
        await world.virtual.create(SECRETS, {**object_named("key", "default"), "kind": "Secret", "data": {"k": "dg=="}})
        await world.wait_for_twin()


@in_virtual_time
async def test_safety_rule_7_secret_of_other_namespace_is_not_copied() -> None:
    world = await new_world(allowedVolumes=DISKS)
    await world.virtual.create(SECRETS, {**object_named("key", "kube-system"), "kind": "Secret", "data": {"k": "dg=="}})
    await add_claim(world.virtual, nodeStageSecretRef={**KEY, "namespace": "kube-system"})
    async with world.syncer():
        await world.add_pod(volumes=MOUNTED)
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "VolumeNotAllowed"))
        await asyncio.sleep(60)
        assert await copies(world) == await volumes(world) == []


# -- expansion


async def expand_volume(virtual: Client) -> None:
    """Expand the virtual volume like a resizer; the file system is still pending."""
    await virtual.patch(PERSISTENT_VOLUMES, object_named("pv-data"), {"spec": {"capacity": {"storage": "2Gi"}}})
    pending = {"type": "FileSystemResizePending", "status": "True"}
    status = {"status": {"conditions": [pending], "allocatedResourceStatuses": {"storage": "NodeResizePending"}}}
    await virtual.patch(PERSISTENT_VOLUME_CLAIMS, object_named("data", "default"), status, subresource="status")


async def expand_file_system(world: Clusters, timeout: float = 60) -> None:
    """Expand the twin's file system like a kubelet."""
    binding = await the_binding(world)
    name = name_in_physical(binding, "", "pv-data")
    size = lambda found: value_at(found, "spec", "capacity", "storage") == "2Gi"  # noqa: E731
    await wait_for(world.physical, PERSISTENT_VOLUMES, name, until=size, timeout=timeout)
    claim = object_named(name_in_physical(binding, "default", "data"), MOUNT)
    status = {"status": {"capacity": {"storage": "2Gi"}}}
    await world.physical.patch(PERSISTENT_VOLUME_CLAIMS, claim, status, subresource="status")


@in_virtual_time
async def test_volume_expansion_is_synced_and_reported() -> None:
    world = await new_world_with_a_claim()
    async with world.syncer():
        await mount(world)
        await expand_volume(world.virtual)
        await expand_file_system(world)
        await asyncio.sleep(5)
        claim = await world.virtual.get(PERSISTENT_VOLUME_CLAIMS, "data", "default")
        assert claim["status"]["capacity"] == {"storage": "2Gi"}
        assert not claim["status"].get("conditions")
        assert not claim["status"].get("allocatedResourceStatuses")
        assert len(world.up.writes("persistentvolumeclaims")) == 1


@in_virtual_time
async def test_failed_expansion_is_reported() -> None:
    world = await new_world_with_a_claim()
    async with world.syncer():
        await mount(world)
        await expand_volume(world.virtual)
        failed = {"type": "NodeResizeError", "status": "True", "reason": "no", "message": "disk full"}
        await set_twin_status(world, conditions=[failed], capacity={"storage": "1Gi"}, phase="Bound")
        await asyncio.sleep(5)
        claim = await world.virtual.get(PERSISTENT_VOLUME_CLAIMS, "data", "default")
        assert failed in claim["status"]["conditions"]
        assert claim["status"]["phase"] == "Bound"


# -- phases of the twin


async def set_twin_status(world: Clusters, **status: Any) -> None:
    [twin] = await claims(world)
    await world.physical.patch(PERSISTENT_VOLUME_CLAIMS, twin, {"status": status}, subresource="status")


async def reasons_of_events(world: Clusters, kind: str) -> set[str]:
    return {each["reason"] for each in await world.virtual.list(EVENTS) if each["involvedObject"]["kind"] == kind}


@in_virtual_time
async def test_lost_twin_is_reported_until_bound() -> None:
    world = await new_world_with_a_claim()
    async with world.syncer():
        await mount(world)
        await set_twin_status(world, phase="Lost")
        await world.wait_for_pod(has_condition(keys.VOLUMES_CONDITION, "False", "ClaimLostBelow"), name="work")
        await asyncio.sleep(5)
        assert "ClaimLostBelow" in await reasons_of_events(world, "Pod")
        assert "ClaimLostBelow" in await reasons_of_events(world, "PersistentVolumeClaim")
        claim = await world.virtual.get(PERSISTENT_VOLUME_CLAIMS, "data", "default")
        assert claim["status"]["phase"] == "Bound"
        await set_twin_status(world, phase="Bound")
        await world.wait_for_pod(lacks_volumes_condition, name="work")


def lacks_volumes_condition(pod: Object | None) -> bool:
    return find_condition(value_at(pod, "status", "conditions"), keys.VOLUMES_CONDITION) is None


@in_virtual_time
async def test_pending_twin_is_reported_after_a_while() -> None:
    world = await new_world_with_a_claim()
    async with world.syncer():
        await mount(world)
        await set_twin_status(world, phase="Pending")
        await asyncio.sleep(PENDING_SECONDS / 2)
        await world.wait_for_pod(lacks_volumes_condition, name="work")
        await world.wait_for_pod(has_condition(keys.VOLUMES_CONDITION, "False", "ClaimPendingBelow"), name="work")


@in_virtual_time
async def test_changed_volume_lets_waiting_pod_run() -> None:
    world = await new_world_with_a_claim()
    unbound = {"spec": {"claimRef": {"uid": "other"}}}
    await world.virtual.patch(PERSISTENT_VOLUMES, object_named("pv-data"), unbound)
    async with world.syncer():
        await world.add_pod(volumes=MOUNTED)
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "ClaimNotBound"))
        claim = await world.virtual.get(PERSISTENT_VOLUME_CLAIMS, "data", "default")
        bound = {"spec": {"claimRef": {"uid": uid_of(claim)}}}
        await world.virtual.patch(PERSISTENT_VOLUMES, object_named("pv-data"), bound)
        await world.wait_for_twin()


@in_virtual_time
async def test_events_about_twin_claims_are_forwarded() -> None:
    world = await new_world_with_a_claim()
    async with world.syncer():
        await mount(world)
        await asyncio.sleep(5)
        [twin] = await claims(world)
        for reason in ("FileSystemResizeSuccessful", "Bogus"):
            involved = {"namespace": MOUNT, "name": name_of(twin), "uid": uid_of(twin)}
            event = {
                **object_named(f"e-{reason.lower()}", MOUNT),
                "involvedObject": {"kind": "PersistentVolumeClaim", **involved},
                "reason": reason,
                "message": f"about {name_of(twin)}",
                "type": "Normal",
            }
            await world.physical.create(EVENTS, event)
        await asyncio.sleep(5)
        [forwarded] = [
            each
            for each in await world.virtual.list(EVENTS)
            if each["involvedObject"]["kind"] == "PersistentVolumeClaim"
        ]
        assert forwarded["reason"] == "FileSystemResizeSuccessful"
        assert forwarded["message"] == "about data"
        assert forwarded["involvedObject"]["name"] == "data"


# -- faults

ENOUGH = 120.0
"""Seconds for caches to catch up and failed calls to be retried."""
CONFIG = SyncerConfig(
    binding="east", name="east", silence_seconds=3600, leader_election=SyncerLeaderElection(enabled=False)
)


async def setup(manager: Manager, physical: Transport) -> None:
    await wait_for(manager.reads, CLUSTER_BINDINGS, "east", until=bool, timeout=A_DAY)
    await build_syncer(CONFIG, manager, connect=lambda _: physical, monotonic=running_clock().monotonic)


async def pod_with_claim_is_created_and_deleted(virtual: Client, physical: Client) -> None:
    world = Clusters(virtual, physical)
    await world.populate("east", allowedVolumes=DISKS)
    await virtual.create(SECRETS, {**object_named("key", "default"), "kind": "Secret", "data": {"k": "dg=="}})
    await add_claim(virtual, nodeStageSecretRef=KEY)
    await world.add_pod(volumes=MOUNTED)
    await world.wait_for_twin(timeout=A_DAY)
    await expand_volume(virtual)
    await expand_file_system(world, timeout=A_DAY)
    await asyncio.sleep(ENOUGH)
    claim = await virtual.get(PERSISTENT_VOLUME_CLAIMS, "data", "default")
    assert claim["status"]["capacity"] == {"storage": "2Gi"}
    await world.delete_pod()
    await world.wait_until_pod_is_gone(timeout=A_DAY)
    await asyncio.sleep(ENOUGH)
    assert await claims(world) == await volumes(world) == await copies(world) == []


async def claim_is_recreated(virtual: Client, physical: Client) -> None:
    world = Clusters(virtual, physical)
    await world.populate("east", allowedVolumes=DISKS)
    await add_claim(virtual)
    await world.add_pod("before", volumes=MOUNTED)
    await world.wait_for_twin(name="before", timeout=A_DAY)
    await world.delete_pod("before")
    await delete_claim(virtual)
    await add_claim(virtual, volumeHandle="vol-another")
    await world.add_pod(volumes=MOUNTED)
    await world.wait_for_twin(timeout=A_DAY)
    [volume] = await volumes(world)
    assert volume["spec"]["csi"]["volumeHandle"] == "vol-another"
    await world.delete_pod()
    await world.wait_until_pod_is_gone(timeout=A_DAY)
    await asyncio.sleep(ENOUGH)
    assert await claims(world) == await volumes(world) == []


def concerns_volumes(call: str) -> bool:
    """Return whether faults are injected into the call."""
    return not call.startswith("watch") and "/persistentvolume" in call


@pytest.mark.timeout(600)  # hundreds of replays
@pytest.mark.parametrize("world", [pod_with_claim_is_created_and_deleted, claim_is_recreated])
def test_volumes_reach_same_state_despite_faults(
    world: Callable[..., Awaitable[None]], record_property: Callable[[str, object], None]
) -> None:
    report = perturb(Scenario("volumes", SERVED, setup, world, CONFIG, others=[SERVED], counts=concerns_volumes))
    record_property("figure", f"perturbed volumes: {report.cases} replays")
    assert not report.failures, report
