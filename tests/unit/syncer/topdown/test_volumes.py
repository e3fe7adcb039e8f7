"""Claims that pods mount and their volumes: below as far as the binding allows, and for as long as a pod needs them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, Binding, binding_of
from tapestry.client.client import Client
from tapestry.client.transport import Transport
from tapestry.client.waiting import wait_for
from tapestry.controller import Manager
from tapestry.controller.config import LeaderElection
from tapestry.controller.testing import Scenario, in_virtual_time, perturb, running_clock
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import Invalid
from tapestry.kube.objects import Object, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import NAMESPACES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, SECRETS
from tapestry.syncer.app import build_syncer
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.translate.volumes import name_in_physical, twin_claim

from ..world import A_DAY, MOUNT, SERVED, Clusters, World, a_world, nothing, phase, refusing, said

DISKS = {"drivers": ["disk.example"], "volumeHandles": ["vol-*"]}
MOUNTED = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
KEY = {"name": "key", "namespace": "default"}

ASKED = {
    "accessModes": ["ReadWriteOnce"],
    "resources": {"requests": {"storage": "1Gi"}},
    "storageClassName": "fast",
}
"""What a claim asks for."""


async def add_claim(virtual: Client, name: str = "data", *, source: Object | None = None, **csi: Any) -> Object:
    """A claim that is bound to a volume of its own."""
    spec = {**ASKED, "volumeName": f"pv-{name}"}
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


async def a_world_with_a_claim() -> World:
    """Clusters whose binding lets disks cross, and the claim `data`."""
    world = await a_world(allowedVolumes=DISKS)
    await add_claim(world.virtual)
    return world


async def mount(world: World, name: str = "work") -> Object:
    """A pod that mounts the claim, once its twin is there, which is returned."""
    await world.add_pod(name, volumes=MOUNTED)
    return await world.wait_for_twin(name=name)


async def drop_claim(virtual: Client, name: str = "data") -> None:
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
    """Whether the pod has a twin, and what it was told."""
    said = find_condition((await world.pod())["status"]["conditions"], keys.MAPPED_CONDITION) or {}
    return said["status"], said["reason"], said["message"]


# -- down, and back


@in_virtual_time
async def test_a_pod_comes_after_its_claim_and_that_after_its_volume() -> None:
    world = await a_world_with_a_claim()
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
        made = [each.split("/")[-1] for each in world.down.writes("POST")]
        assert made == ["persistentvolumes", "persistentvolumeclaims", "pods"]


@in_virtual_time
async def test_when_its_last_pod_goes_the_claim_goes_and_then_the_volume() -> None:
    world = await a_world_with_a_claim()
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
        gone = [each.split("/")[-2] for each in world.down.writes("DELETE") if "/pods/" not in each]
        assert gone == ["persistentvolumeclaims", "persistentvolumes"]
        await world.virtual.get(PERSISTENT_VOLUMES, "pv-data")


@in_virtual_time
async def test_a_pod_that_has_ended_needs_no_claim() -> None:
    world = await a_world_with_a_claim()
    async with world.syncer():
        await mount(world)
        await world.end()
        await asyncio.sleep(5)
        assert await world.ended() == ("Succeeded", None)
        assert await claims(world) == await volumes(world) == []


@in_virtual_time
async def test_what_nobody_needs_any_more_goes_even_if_nobody_was_there_to_see_it() -> None:
    world = await a_world_with_a_claim()
    async with world.syncer():
        await mount(world)
    await world.delete_pod(grace=0)
    async with world.syncer():
        await asyncio.sleep(60)
        assert await claims(world) == await volumes(world) == []


@in_virtual_time
async def test_a_claim_that_has_lost_its_volume_goes_just_as_well() -> None:
    world = await a_world_with_a_claim()
    async with world.syncer():
        await mount(world)
    await world.delete_pod(grace=0)
    [volume] = await volumes(world)
    await world.physical.delete(PERSISTENT_VOLUMES, volume)
    async with world.syncer():
        await asyncio.sleep(60)
        assert await claims(world) == []


@in_virtual_time
async def test_pods_on_nodes_of_others_keep_nothing_of_ours() -> None:
    world = await a_world_with_a_claim()
    async with world.syncer():
        await world.add_pod("elsewhere", node="vnode-east-2-n1", volumes=MOUNTED)  # of the binding east-2
        await mount(world)
        await world.delete_pod()
        await world.wait_until_pod_is_gone()
        await asyncio.sleep(5)
        assert await claims(world) == await volumes(world) == []


@in_virtual_time
async def test_with_the_binding_everything_goes() -> None:
    world = await a_world_with_a_claim()
    async with world.syncer():
        await mount(world)
        await world.virtual.delete(CLUSTER_BINDINGS, object_named("east"))
        await wait_for(world.virtual, CLUSTER_BINDINGS, "east", until=lambda obj: obj is None, timeout=600)
        assert await claims(world) == await volumes(world) == []


@in_virtual_time
async def test_claim_and_volume_made_anew_under_the_old_names_are_others_below() -> None:
    world = await a_world_with_a_claim()
    async with world.syncer():
        await mount(world, "before")
        [before] = await claims(world)
        await drop_claim(world.virtual)
        await add_claim(world.virtual, volumeHandle="vol-another")
        await mount(world)
        [claim], [volume] = await claims(world), await volumes(world)
        assert uid_of(claim) != uid_of(before)
        assert volume["spec"]["csi"]["volumeHandle"] == "vol-another"


@in_virtual_time
async def test_a_volume_whose_claim_was_deleted_below_is_bound_to_the_next_one() -> None:
    world = await a_world_with_a_claim()
    async with world.syncer():
        await mount(world, "before")
        [claim], [volume] = await claims(world), await volumes(world)
        await world.physical.patch(PERSISTENT_VOLUMES, volume, {"spec": {"claimRef": {"uid": uid_of(claim)}}})
        await world.physical.delete(PERSISTENT_VOLUME_CLAIMS, claim)
        await mount(world)
        [volume] = await volumes(world)
        assert "uid" not in volume["spec"]["claimRef"]


@in_virtual_time
async def test_nothing_is_written_when_nothing_changed() -> None:
    world = await a_world_with_a_claim()
    async with world.syncer():
        await mount(world)
        annotation = {"metadata": {"annotations": {"a": "b"}}}
        await world.virtual.patch(PERSISTENT_VOLUME_CLAIMS, object_named("data", "default"), annotation)
    async with world.syncer():
        await asyncio.sleep(60)
        assert len(world.down.writes("persistentvolume")) == 2
        assert world.up.writes("persistentvolume") == []


# -- what is in the way


@in_virtual_time
async def test_without_a_driver_in_the_binding_nothing_crosses_and_nothing_is_asked_for_below() -> None:
    world = await a_world()
    await add_claim(world.virtual)
    async with world.syncer():
        await world.add_pod(volumes=MOUNTED)
        await world.wait_for_pod(said(keys.MAPPED_CONDITION, "False", "VolumeNotAllowed"))
        assert [each for each in world.down.asked if "persistentvolume" in each.path] == []
        await world.set_binding(allowedVolumes=DISKS)
        await world.wait_for_twin()


@in_virtual_time
async def test_a_volume_that_the_binding_does_not_allow_is_refused_with_a_reason() -> None:
    world = await a_world(allowedVolumes={**DISKS, "drivers": ["other.example"]})
    await add_claim(world.virtual)
    async with world.syncer():
        await world.add_pod(volumes=MOUNTED)
        await world.wait_for_pod(said(keys.MAPPED_CONDITION, "False", "VolumeNotAllowed"))
        message = "spec.csi.driver: disk.example is not in the binding's allowedVolumes"
        assert await mapped(world) == ("False", "VolumeNotAllowed", message)
        assert await claims(world) == await volumes(world) == await world.twins() == []


@in_virtual_time
async def test_a_handle_that_the_binding_does_not_allow_does_not_cross() -> None:
    world = await a_world(allowedVolumes={"drivers": ["disk.example"]})
    await add_claim(world.virtual, volumeHandle="the-owners-data")
    async with world.syncer():
        await world.add_pod(volumes=MOUNTED)
        await world.wait_for_pod(said(keys.MAPPED_CONDITION, "False", "VolumeNotAllowed"))
        assert (await mapped(world))[2].startswith("spec.csi.volumeHandle: ")
        assert await volumes(world) == []
        await world.set_binding(allowedVolumes={"volumeHandles": ["the-owners-*"]})
        await world.wait_for_twin()


@in_virtual_time
async def test_a_pod_waits_while_the_owners_policy_refuses_its_volume() -> None:
    world = await a_world_with_a_claim()
    denial = "persistentvolumes is forbidden: ValidatingAdmissionPolicy 'x' with binding 'x' denied request: no"
    world.down.refusal = refusing("POST", "/persistentvolumes", Invalid(422, "Invalid", denial))
    async with world.syncer():
        await world.add_pod(volumes=MOUNTED)
        await world.wait_for_pod(said(keys.MAPPED_CONDITION, "False", "VolumeRefusedBelow"))
        await asyncio.sleep(1800)
        assert (await mapped(world))[1] == "VolumeRefusedBelow"
        assert "`tapestry join`" in (await mapped(world))[2]
        assert len(world.down.writes("POST", "/persistentvolumes")) <= 40
        world.down.refusal = nothing  # somebody joined again
        await world.wait_for_twin(timeout=120)


@pytest.mark.parametrize("level", ["baseline", "privileged"])
@in_virtual_time
async def test_rule_6_a_path_of_the_owners_nodes_does_not_cross_at_any_level(level: str) -> None:
    world = await a_world(allowedVolumes=DISKS, podSecurity=level)
    await add_claim(world.virtual, source={"hostPath": {"path": "/etc"}})
    async with world.syncer():
        await world.add_pod(volumes=MOUNTED)
        await world.wait_for_pod(said(keys.MAPPED_CONDITION, "False", "VolumeNotAllowed"))
        await asyncio.sleep(600)
        assert await claims(world) == await volumes(world) == await world.twins() == []


@in_virtual_time
async def test_a_pod_waits_for_its_claim_and_for_that_to_be_bound() -> None:
    world = await a_world(allowedVolumes=DISKS)
    async with world.syncer():
        await world.add_pod(volumes=MOUNTED)
        await world.wait_for_pod(said(keys.MAPPED_CONDITION, "False", "ClaimMissing"))
        await asyncio.sleep(5)
        claim = await world.virtual.create(PERSISTENT_VOLUME_CLAIMS, {**object_named("data", "default"), "spec": ASKED})
        await world.wait_for_pod(said(keys.MAPPED_CONDITION, "False", "ClaimNotBound"))
        await asyncio.sleep(5)
        await world.virtual.delete(PERSISTENT_VOLUME_CLAIMS, claim)
        await add_claim(world.virtual)
        await world.wait_for_twin()


@in_virtual_time
async def test_a_claim_that_could_never_exist_is_missing() -> None:
    world = await a_world(allowedVolumes=DISKS)
    async with world.syncer():
        await world.add_pod(volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "../../secrets/x"}}])
        await world.wait_for_pod(said(keys.MAPPED_CONDITION, "False", "ClaimMissing"))


@in_virtual_time
async def test_rule_1_a_volume_of_the_owners_that_has_the_name_is_left_alone() -> None:
    world = await a_world(allowedVolumes=DISKS)
    name = name_in_physical(await the_binding(world), "", "pv-data")
    spec = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/data"}}
    theirs = await world.physical.create(PERSISTENT_VOLUMES, {**object_named(name), "spec": spec})
    await add_claim(world.virtual)
    async with world.syncer():
        await world.add_pod(volumes=MOUNTED)
        await world.wait_for_pod(said(keys.MAPPED_CONDITION, "False", "NameTaken"))
        await world.delete_pod(grace=0)
        await asyncio.sleep(600)
        assert await volumes(world) == [theirs]


@in_virtual_time
async def test_rule_2_a_claim_is_not_removed_while_a_pod_mounts_it_that_only_the_cache_misses() -> None:
    world = await a_world(allowedVolumes=DISKS)
    claim = await add_claim(world.virtual)
    async with world.syncer():
        await asyncio.sleep(5)
        world.up.api.freeze()
        await world.add_pod(volumes=MOUNTED)
        volume = await world.virtual.get(PERSISTENT_VOLUMES, "pv-data")
        twin = twin_claim(claim, volume, await the_binding(world))
        made = await world.physical.create(PERSISTENT_VOLUME_CLAIMS, twin)
        await asyncio.sleep(60)
        assert [uid_of(each) for each in await claims(world)] == [uid_of(made)]
        await world.delete_pod(grace=0)
        await asyncio.sleep(60)
        assert await claims(world) == []


@in_virtual_time
async def test_a_claim_that_is_being_deleted_is_nobodys_even_if_the_cache_does_not_know_yet() -> None:
    world = await a_world_with_a_claim()
    async with world.syncer():
        await mount(world, "before")
        await world.end(name="before")
        await world.wait_for_pod(phase("Succeeded"), "before")
        world.down.api.freeze()
        await asyncio.sleep(5)
        assert await claims(world) == []
        await world.add_pod(volumes=MOUNTED)
        await world.wait_for_pod(said(keys.MAPPED_CONDITION, "False", "VolumeGoing"))
        await asyncio.sleep(5)
        world.down.api.thaw()
        await world.wait_for_twin()
        assert len(await claims(world)) == 1


# -- Secrets


@in_virtual_time
async def test_what_a_volume_needs_to_be_opened_is_copied_and_goes_with_it() -> None:
    world = await a_world(allowedVolumes=DISKS)
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
async def test_a_secret_stays_as_long_as_the_volume_that_needs_it() -> None:
    world = await a_world(allowedVolumes=DISKS)
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
async def test_a_pod_waits_for_the_secret_that_its_volume_needs() -> None:
    world = await a_world(allowedVolumes=DISKS)
    await add_claim(world.virtual, nodeStageSecretRef=KEY)
    async with world.syncer():
        await world.add_pod(volumes=MOUNTED)
        await world.wait_for_pod(said(keys.MAPPED_CONDITION, "False", "SecretMissing"))
        await asyncio.sleep(60)
        assert await volumes(world) == []
        await world.virtual.create(SECRETS, {**object_named("key", "default"), "kind": "Secret", "data": {"k": "dg=="}})
        await world.wait_for_twin()


@in_virtual_time
async def test_rule_7_a_secret_of_another_namespace_does_not_cross_for_a_volume() -> None:
    world = await a_world(allowedVolumes=DISKS)
    await world.virtual.create(SECRETS, {**object_named("key", "kube-system"), "kind": "Secret", "data": {"k": "dg=="}})
    await add_claim(world.virtual, nodeStageSecretRef={**KEY, "namespace": "kube-system"})
    async with world.syncer():
        await world.add_pod(volumes=MOUNTED)
        await world.wait_for_pod(said(keys.MAPPED_CONDITION, "False", "VolumeNotAllowed"))
        await asyncio.sleep(60)
        assert await copies(world) == await volumes(world) == []


# -- growth


async def grow(virtual: Client) -> None:
    """What a resizer does above: the volume is larger, and the file system has yet to follow."""
    await virtual.patch(PERSISTENT_VOLUMES, object_named("pv-data"), {"spec": {"capacity": {"storage": "2Gi"}}})
    pending = {"type": "FileSystemResizePending", "status": "True"}
    status = {"status": {"conditions": [pending], "allocatedResourceStatuses": {"storage": "NodeResizePending"}}}
    await virtual.patch(PERSISTENT_VOLUME_CLAIMS, object_named("data", "default"), status, subresource="status")


async def follow_growth(world: Clusters, timeout: float = 60) -> None:
    """What a kubelet does below."""
    binding = await the_binding(world)
    name = name_in_physical(binding, "", "pv-data")
    size = lambda found: value_at(found, "spec", "capacity", "storage") == "2Gi"  # noqa: E731
    await wait_for(world.physical, PERSISTENT_VOLUMES, name, until=size, timeout=timeout)
    claim = object_named(name_in_physical(binding, "default", "data"), MOUNT)
    status = {"status": {"capacity": {"storage": "2Gi"}}}
    await world.physical.patch(PERSISTENT_VOLUME_CLAIMS, claim, status, subresource="status")


@in_virtual_time
async def test_a_volume_grows_below_and_that_it_has_is_told_above() -> None:
    world = await a_world_with_a_claim()
    async with world.syncer():
        await mount(world)
        await grow(world.virtual)
        await follow_growth(world)
        await asyncio.sleep(5)
        claim = await world.virtual.get(PERSISTENT_VOLUME_CLAIMS, "data", "default")
        assert claim["status"]["capacity"] == {"storage": "2Gi"}
        assert not claim["status"].get("conditions")
        assert not claim["status"].get("allocatedResourceStatuses")
        assert len(world.up.writes("persistentvolumeclaims")) == 1


# -- whatever happens on the way

ENOUGH = 120.0
"""Seconds for caches to catch up, and for what failed to be tried again."""
CONFIG = SyncerConfig(binding="east", name="east", silence_seconds=3600, leader_election=LeaderElection())


async def setup(manager: Manager, physical: Transport) -> None:
    await wait_for(manager.reads, CLUSTER_BINDINGS, "east", until=bool, timeout=A_DAY)
    await build_syncer(CONFIG, manager, connect=lambda _: physical, monotonic=running_clock().monotonic)


async def a_pod_with_a_claim_comes_and_goes(virtual: Client, physical: Client) -> None:
    world = Clusters(virtual, physical)
    await world.populate("east", allowedVolumes=DISKS)
    await virtual.create(SECRETS, {**object_named("key", "default"), "kind": "Secret", "data": {"k": "dg=="}})
    await add_claim(virtual, nodeStageSecretRef=KEY)
    await world.add_pod(volumes=MOUNTED)
    await world.wait_for_twin(timeout=A_DAY)
    await grow(virtual)
    await follow_growth(world, timeout=A_DAY)
    await asyncio.sleep(ENOUGH)
    claim = await virtual.get(PERSISTENT_VOLUME_CLAIMS, "data", "default")
    assert claim["status"]["capacity"] == {"storage": "2Gi"}
    await world.delete_pod()
    await world.wait_until_pod_is_gone(timeout=A_DAY)
    await asyncio.sleep(ENOUGH)
    assert await claims(world) == await volumes(world) == await copies(world) == []


async def a_claim_is_made_anew(virtual: Client, physical: Client) -> None:
    world = Clusters(virtual, physical)
    await world.populate("east", allowedVolumes=DISKS)
    await add_claim(virtual)
    await world.add_pod("before", volumes=MOUNTED)
    await world.wait_for_twin(name="before", timeout=A_DAY)
    await world.delete_pod("before")
    await drop_claim(virtual)
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
    """Other calls are disturbed elsewhere."""
    return not call.startswith("watch") and "/persistentvolume" in call


@pytest.mark.timeout(600)  # hundreds of replays
@pytest.mark.parametrize("world", [a_pod_with_a_claim_comes_and_goes, a_claim_is_made_anew])
def test_volumes_come_to_the_same_end_whatever_happens_on_the_way(
    world: Callable[..., Awaitable[None]], record_property: Callable[[str, object], None]
) -> None:
    report = perturb(Scenario("volumes", SERVED, setup, world, CONFIG, others=[SERVED], counts=concerns_volumes))
    record_property("figure", f"perturbed volumes: {report.cases} replays")
    assert not report.failures, report
