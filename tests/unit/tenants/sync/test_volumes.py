"""Volumes of a tenant beside the volume binders of its plane and of its host cluster, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.client.client import Client
from tapestry.client.transport import Transport
from tapestry.controller import Manager
from tapestry.controller.testing import Scenario, in_virtual_time, perturb
from tapestry.controlplane.volume_matching import SELECTED_NODE
from tapestry.kube.errors import Forbidden
from tapestry.kube.objects import Object, annotations_of, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import NODES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES
from tapestry.syncer.cache_transforms import virtual_pod
from tapestry.syncer.topdown.dependencies import DependencyNotReady
from tapestry.syncer.views import VirtualPod
from tapestry.tenants.sync.volumes import TenantVolumes

from ...syncer.world import SERVED, rejecting
from .twin_world import BINDING, CONFIG, MOUNT, TwinWorld, add_binding, build_twin_syncer, is_about, new_twin_world
from .volume_world import (
    CLASS,
    HOST_CLASS,
    OfferingBinding,
    add_classes,
    is_bound,
    new_claim,
    the_twin,
    volume_controllers,
    wait_for_claim,
    wait_for_volume,
    wait_until_none,
    wire,
)

DATA = object_named("data", "team-a")
LARGER = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
RETAIN = {"spec": {"persistentVolumeReclaimPolicy": "Retain"}}


@asynccontextmanager
async def running_world(**spec: Any) -> AsyncIterator[tuple[TwinWorld, TenantVolumes]]:
    """Run the volumes of a tenant, with one claim in its plane."""
    world, wired = await new_twin_world(**spec), list[TenantVolumes]()
    await add_classes(world.plane, world.host)
    async with (
        volume_controllers(world.plane, world.host),
        world.syncer(lambda syncer: wired.append(wire(syncer))),
    ):
        yield world, wired[0]


def mounted_claim(volumes: TenantVolumes, name: str = "data", pod: VirtualPod | None = None) -> str:
    """Return the name of the claim that a pod would mount in the host cluster."""
    assert isinstance(volumes.current_binding, OfferingBinding)
    binding = volumes.current_binding.get()
    assert binding is not None
    return volumes.mounted_claim(f"team-a/{name}", pod or virtual_pod(new_pod()), binding)


def new_pod(*mounts: Object) -> Object:
    return {**object_named("work", "team-a"), "spec": {"volumes": list(mounts), "containers": []}}


@in_virtual_time
async def test_host_cluster_provisions_claim_of_plane() -> None:
    async with running_world() as (world, volumes):
        await world.plane.create(PERSISTENT_VOLUME_CLAIMS, new_claim())
        claim = await wait_for_claim(world.plane, is_bound)
        twin = await the_twin(world.host)
        assert set(twin["spec"]) == {"accessModes", "resources", "storageClassName", "volumeMode", "volumeName"}
        assert twin["spec"]["storageClassName"] == "standard"
        assert mounted_claim(volumes) == name_of(twin)
        assert volumes.source_claim(name_of(twin), uid_of(twin)) == volumes.claims.store.get("team-a/data")
        assert volumes.source_claim(name_of(twin), "another") is None
        volume = await world.plane.get(PERSISTENT_VOLUMES, claim["spec"]["volumeName"])
        assert name_of(volume) == f"pvc-{uid_of(claim)}"
        assert volume["spec"]["csi"] == {"driver": "host.tapestry.io", "volumeHandle": name_of(volume)}
        assert claim["status"]["capacity"] == {"storage": "1Gi"}


@in_virtual_time
async def test_ephemeral_volume_needs_the_claim_created_for_its_pod() -> None:
    async with running_world() as (world, volumes):
        pod = new_pod({"name": "data", "ephemeral": {"volumeClaimTemplate": {}}})
        pod["metadata"]["uid"] = "uid-of-pod"
        await world.plane.create(PERSISTENT_VOLUME_CLAIMS, new_claim("work-data"))
        claim = await wait_for_claim(world.plane, is_bound, "work-data")
        with pytest.raises(DependencyNotReady, match="was not created for") as raised:
            mounted_claim(volumes, "work-data", virtual_pod(pod))
        assert raised.value.reason == "ClaimNotOwned"
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "work", "uid": "uid-of-pod"}
        await world.plane.patch(PERSISTENT_VOLUME_CLAIMS, claim, {"metadata": {"ownerReferences": [owner]}})
        await wait_for_claim(world.plane, lambda each: bool(each["metadata"].get("ownerReferences")), "work-data")
        await asyncio.sleep(1)
        assert mounted_claim(volumes, "work-data", virtual_pod(pod)) == name_of(await the_twin(world.host))


@in_virtual_time
async def test_bound_claims_cause_no_write() -> None:
    async with running_world() as (world, _):
        await world.plane.create(PERSISTENT_VOLUME_CLAIMS, new_claim())
        await wait_for_claim(world.plane, is_bound)
        await asyncio.sleep(1)
        writes = len(world.down.writes()), len(world.up.writes())
        await world.plane.patch(PERSISTENT_VOLUME_CLAIMS, DATA, {"metadata": {"annotations": {"a": "b"}}})
        await world.set_binding(unbindGraceSeconds=3)
        await asyncio.sleep(100)
        assert (len(world.down.writes()), len(world.up.writes())) == writes


@in_virtual_time
async def test_deleted_claim_releases_storage_of_host() -> None:
    async with running_world() as (world, _):
        await world.plane.create(PERSISTENT_VOLUME_CLAIMS, new_claim())
        await wait_for_claim(world.plane, is_bound)
        await world.plane.delete(PERSISTENT_VOLUME_CLAIMS, DATA)
        for client in (world.plane, world.host):
            await wait_until_none(client, PERSISTENT_VOLUMES)
        assert await world.twins(PERSISTENT_VOLUME_CLAIMS) == []


@in_virtual_time
async def test_unbound_claim_is_removed_with_its_twin() -> None:
    async with running_world() as (world, _):
        await world.host.delete(STORAGE_CLASSES, object_named("standard"))
        await world.plane.create(PERSISTENT_VOLUME_CLAIMS, new_claim())
        await asyncio.sleep(10)
        assert len(await world.twins(PERSISTENT_VOLUME_CLAIMS)) == 1
        await world.plane.delete(PERSISTENT_VOLUME_CLAIMS, DATA)
        await asyncio.sleep(10)
        assert await world.twins(PERSISTENT_VOLUME_CLAIMS) == []


# -- the reclaim policy of the plane


@in_virtual_time
async def test_retained_volume_is_bound_to_another_claim() -> None:
    async with running_world() as (world, volumes):
        await world.plane.create(PERSISTENT_VOLUME_CLAIMS, new_claim())
        claim = await wait_for_claim(world.plane, is_bound)
        name, twin = claim["spec"]["volumeName"], await the_twin(world.host)
        await world.plane.patch(PERSISTENT_VOLUMES, object_named(name), RETAIN)
        await world.plane.delete(PERSISTENT_VOLUME_CLAIMS, DATA)
        await wait_for_volume(world.plane, name, lambda each: value_at(each, "status", "phase") == "Released")
        await asyncio.sleep(100)
        assert uid_of(await the_twin(world.host)) == uid_of(twin)

        await world.plane.patch(PERSISTENT_VOLUMES, object_named(name), {"spec": {"claimRef": None}})
        await world.plane.create(PERSISTENT_VOLUME_CLAIMS, new_claim("again", volumeName=name))
        await wait_for_claim(world.plane, is_bound, "again")
        await asyncio.sleep(1)
        assert mounted_claim(volumes, "again") == name_of(twin)
        await world.plane.delete(PERSISTENT_VOLUME_CLAIMS, object_named("again", "team-a"))
        await world.plane.delete(PERSISTENT_VOLUMES, object_named(name))
        await wait_until_none(world.host, PERSISTENT_VOLUME_CLAIMS, MOUNT)


@in_virtual_time
async def test_new_claim_of_the_same_name_gets_another_volume() -> None:
    async with running_world() as (world, volumes):
        await world.plane.create(PERSISTENT_VOLUME_CLAIMS, new_claim())
        claim = await wait_for_claim(world.plane, is_bound)
        old = mounted_claim(volumes)
        await world.plane.patch(PERSISTENT_VOLUMES, object_named(claim["spec"]["volumeName"]), RETAIN)
        await world.plane.delete(PERSISTENT_VOLUME_CLAIMS, DATA)
        await world.plane.create(PERSISTENT_VOLUME_CLAIMS, new_claim())
        await wait_for_claim(world.plane, is_bound)
        assert mounted_claim(volumes) != old
        assert len(await world.twins(PERSISTENT_VOLUME_CLAIMS)) == 2


# -- expansion


@in_virtual_time
async def test_larger_request_expands_volume_of_host() -> None:
    async with running_world() as (world, _):
        await world.plane.create(PERSISTENT_VOLUME_CLAIMS, new_claim())
        claim = await wait_for_claim(world.plane, is_bound)
        await world.plane.patch(PERSISTENT_VOLUME_CLAIMS, DATA, LARGER)
        await wait_for_claim(world.plane, lambda each: value_at(each, "status", "capacity", "storage") == "2Gi")
        volume = await world.plane.get(PERSISTENT_VOLUMES, claim["spec"]["volumeName"])
        assert volume["spec"]["capacity"] == {"storage": "2Gi"}


# -- what the host cluster does not provide


async def refusal(world: TwinWorld, volumes: TenantVolumes, claim: Object) -> str:
    """Create a claim, and return why a pod that mounts it has to wait."""
    await world.plane.create(PERSISTENT_VOLUME_CLAIMS, claim)
    await asyncio.sleep(100)
    with pytest.raises(DependencyNotReady) as caught:
        mounted_claim(volumes, name_of(claim))
    assert await world.twins(PERSISTENT_VOLUME_CLAIMS) == []
    return caught.value.reason


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"dataSource": {"kind": "PersistentVolumeClaim", "name": "other"}}, "ClaimNotSupported"),
        ({"selector": {"matchLabels": {"a": "b"}}}, "ClaimNotSupported"),
        ({"storageClassName": ""}, "ClaimNotSynced"),
        ({"storageClassName": "own"}, "ClaimNotSynced"),
        ({"storageClassName": "secret"}, "StorageClassNotOffered"),
    ],
)
@in_virtual_time
async def test_unsupported_claim_has_no_twin(spec: Object, reason: str) -> None:
    async with running_world() as (world, volumes):
        own = {**object_named("own"), "provisioner": "own.example.com"}
        await world.plane.create(STORAGE_CLASSES, own)
        await world.plane.create(STORAGE_CLASSES, {**object_named("secret"), "provisioner": "host.tapestry.io"})
        assert await refusal(world, volumes, new_claim(**spec)) == reason


@in_virtual_time
async def test_claims_wait_while_volumes_are_off() -> None:
    async with running_world(sync={"persistentVolumes": False}) as (world, volumes):
        assert await refusal(world, volumes, new_claim()) == "VolumesNotSynced"
        await world.set_binding(sync={"persistentVolumes": True})
        await wait_for_claim(world.plane, is_bound)


@in_virtual_time
async def test_plane_without_classes_uses_those_of_host() -> None:
    async with running_world(sync={"storageClasses": False}, defaultStorageClass="fast") as (world, _):
        await world.plane.delete(STORAGE_CLASSES, object_named("fast"))
        await world.plane.create(PERSISTENT_VOLUME_CLAIMS, new_claim())
        await world.plane.create(PERSISTENT_VOLUME_CLAIMS, new_claim("default", storageClassName=None))
        for name in ("data", "default"):
            await wait_for_claim(world.plane, is_bound, name)


@in_virtual_time
async def test_rejection_by_quota_is_reported_and_retried() -> None:
    async with running_world() as (world, volumes):
        world.down.rejection = rejecting("POST", "/persistentvolumeclaims", Forbidden(403, "Forbidden", "exceeded"))
        assert await refusal(world, volumes, new_claim()) == "HostRejected"
        assert await world.events("HostRejected") == ["exceeded"]
        world.down.rejection = lambda _: None
        await wait_for_claim(world.plane, is_bound)


@in_virtual_time
async def test_deleted_claim_lets_rejected_ones_try_again() -> None:
    async with running_world() as (world, volumes):
        await world.plane.create(PERSISTENT_VOLUME_CLAIMS, new_claim("first"))
        await wait_for_claim(world.plane, is_bound, "first")
        world.down.rejection = rejecting("POST", "/persistentvolumeclaims", Forbidden(403, "Forbidden", "exceeded"))
        await world.plane.create(PERSISTENT_VOLUME_CLAIMS, new_claim())
        await asyncio.sleep(3600)
        world.down.rejection = lambda _: None
        await world.plane.delete(PERSISTENT_VOLUME_CLAIMS, object_named("first", "team-a"))
        await asyncio.sleep(3)
        assert mounted_claim(volumes)


@in_virtual_time
async def test_provisioner_rejects_node_of_the_planes_scheduler() -> None:
    async with running_world(placement="virtual") as (world, _):
        delayed = {"volumeBindingMode": "WaitForFirstConsumer"}
        await world.host.delete(STORAGE_CLASSES, object_named("standard"))
        await world.host.create(STORAGE_CLASSES, {**HOST_CLASS, **delayed, "provisioner": "slow.example.com"})
        await world.plane.delete(STORAGE_CLASSES, object_named("fast"))
        await world.plane.create(STORAGE_CLASSES, {**CLASS, **delayed})
        binding = await world.plane.get(CLUSTER_BINDINGS, BINDING)
        labels = {keys.CLUSTER_BINDING_UID: uid_of(binding), keys.NODE_TYPE: keys.NODE_TYPE_VIRTUAL}
        metadata = {"name": "vnode-n1", "labels": labels, "annotations": {keys.PHYSICAL_NODE_NAME: "n1"}}
        await world.plane.create(NODES, {"metadata": metadata})
        await world.plane.create(PERSISTENT_VOLUME_CLAIMS, new_claim())
        await asyncio.sleep(10)
        assert await world.twins(PERSISTENT_VOLUME_CLAIMS) == []
        for _ in range(2):  # the scheduler may select the same node again
            await world.plane.patch(PERSISTENT_VOLUME_CLAIMS, DATA, node_selection("vnode-n1"))
            await asyncio.sleep(10)
            twin = await the_twin(world.host)
            assert annotations_of(twin)[SELECTED_NODE] == "n1"
            await world.host.patch(PERSISTENT_VOLUME_CLAIMS, twin, node_selection(None))
            await asyncio.sleep(10)
            claim = await world.plane.get(PERSISTENT_VOLUME_CLAIMS, "data", "team-a")
            assert SELECTED_NODE not in annotations_of(claim)
            assert await world.twins(PERSISTENT_VOLUME_CLAIMS) == []


def node_selection(node: str | None) -> Object:
    return {"metadata": {"annotations": {SELECTED_NODE: node}}}


# -- safety

HOSTILE = {
    "csi": {"csi": {"driver": "simulated.csi.tapestry.io", "volumeHandle": "pvc-of-somebody-else"}},
    "path": {"hostPath": {"path": "/etc"}},
    "forged": {"csi": {"driver": "host.tapestry.io", "volumeHandle": "pvc-of-somebody-else"}},
}


@pytest.mark.parametrize("name", HOSTILE)
@in_virtual_time
async def test_volume_of_tenant_leads_nowhere(name: str) -> None:
    async with running_world() as (world, volumes):
        content = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "fast"}
        await world.plane.create(PERSISTENT_VOLUMES, {**object_named(name), "spec": {**content, **HOSTILE[name]}})
        claim = new_claim(volumeName=name)
        assert await refusal(world, volumes, claim) in ("VolumeNotAllowed", "VolumeLost")


@in_virtual_time
async def test_claim_of_another_claims_volume_stays_unbound() -> None:
    async with running_world() as (world, _):
        claim = await world.plane.create(PERSISTENT_VOLUME_CLAIMS, new_claim())
        thief = new_claim("a-thief", volumeName=f"pvc-{uid_of(claim)}")
        await world.plane.create(PERSISTENT_VOLUME_CLAIMS, thief)
        await wait_for_claim(world.plane, is_bound)
        await asyncio.sleep(100)
        found = await world.plane.get(PERSISTENT_VOLUME_CLAIMS, "a-thief", "team-a")
        assert not is_bound(found)


@in_virtual_time
async def test_lost_twin_is_not_replaced_by_an_empty_volume() -> None:
    async with running_world() as (world, volumes):
        await world.plane.create(PERSISTENT_VOLUME_CLAIMS, new_claim())
        await wait_for_claim(world.plane, is_bound)
        await world.host.delete(PERSISTENT_VOLUME_CLAIMS, await the_twin(world.host))
        await asyncio.sleep(10)
        assert await world.twins(PERSISTENT_VOLUME_CLAIMS) == []
        with pytest.raises(DependencyNotReady):
            mounted_claim(volumes)
        await world.plane.delete(PERSISTENT_VOLUME_CLAIMS, DATA)
        await wait_until_none(world.plane, PERSISTENT_VOLUMES)


@in_virtual_time
async def test_twin_stays_while_cache_lacks_claim() -> None:
    async with running_world() as (world, volumes):
        await world.host.delete(STORAGE_CLASSES, object_named("standard"))
        await world.plane.create(PERSISTENT_VOLUME_CLAIMS, new_claim())
        await asyncio.sleep(10)
        twin = await the_twin(world.host)
        volumes.claims.store.remove("team-a/data")
        await world.host.patch(PERSISTENT_VOLUME_CLAIMS, twin, {"metadata": {"annotations": {"a": "b"}}})
        await asyncio.sleep(10)
        assert uid_of(await the_twin(world.host)) == uid_of(twin)


# -- faults


async def claim_comes_grows_and_goes(plane: Client, host: Client) -> None:
    await add_binding(plane)
    await add_classes(plane, host)
    async with volume_controllers(plane, host):
        await plane.create(PERSISTENT_VOLUME_CLAIMS, new_claim())
        await wait_for_claim(plane, is_bound)
        await plane.patch(PERSISTENT_VOLUME_CLAIMS, DATA, LARGER)
        await wait_for_claim(plane, lambda each: value_at(each, "status", "capacity", "storage") == "2Gi")
        await plane.delete(PERSISTENT_VOLUME_CLAIMS, DATA)
        await wait_until_none(plane, PERSISTENT_VOLUMES)
        await wait_until_none(host, PERSISTENT_VOLUME_CLAIMS, MOUNT)
        await asyncio.sleep(400)


async def volume_is_retained(plane: Client, host: Client) -> None:
    await add_binding(plane)
    await add_classes(plane, host)
    async with volume_controllers(plane, host):
        await plane.create(PERSISTENT_VOLUME_CLAIMS, new_claim())
        name = (await wait_for_claim(plane, is_bound))["spec"]["volumeName"]
        await plane.patch(PERSISTENT_VOLUMES, object_named(name), RETAIN)
        await plane.delete(PERSISTENT_VOLUME_CLAIMS, DATA)
        await wait_for_volume(plane, name, lambda each: value_at(each, "status", "phase") == "Released")
        await plane.patch(PERSISTENT_VOLUMES, object_named(name), {"spec": {"claimRef": None}})
        await plane.create(PERSISTENT_VOLUME_CLAIMS, new_claim("again", volumeName=name))
        await wait_for_claim(plane, is_bound, "again")
        await asyncio.sleep(400)


async def setup(manager: Manager, host: Transport) -> None:
    await build_twin_syncer(manager, host, wire)


ABOUT = is_about(PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES)
SCENARIOS = [
    Scenario(name, SERVED, setup, world, CONFIG, others=[SERVED], counts=ABOUT)
    for name, world in {
        "a claim comes, grows and goes": claim_comes_grows_and_goes,
        "a volume is retained and bound again": volume_is_retained,
    }.items()
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_volumes_reach_same_state_despite_faults(
    scenario: Scenario, record_property: Callable[[str, object], None]
) -> None:
    report = perturb(scenario)
    record_property("figure", f"perturbed volumes of tenants: {report.cases} replays: {scenario.name}")
    report.check()
