"""Copies of PersistentVolumeClaims and PersistentVolumes in a physical cluster.

The controllers of the physical cluster bind and protect them.  Tests act as the provisioner and the kubelet.
"""

from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, Binding, binding_of
from tapestry.kube.conditions import find_condition, is_condition_true
from tapestry.kube.objects import Object, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import (
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    SECRETS,
)
from tapestry.syncer.translate.volumes import name_in_physical

from .bound_clusters import BoundClusters, wait_until, wait_until_gone
from .planes import Plane

DRIVER = "disk.example"
ALLOWED = {"drivers": [DRIVER], "volumeHandles": ["vol-*"]}


@pytest.fixture
def physical_plane(attended_plane: Plane) -> Plane:
    return attended_plane


async def binding_at(clusters: BoundClusters) -> Binding:
    system = await clusters.virtual.get(NAMESPACES, "kube-system")
    return binding_of(await clusters.virtual.get(CLUSTER_BINDINGS, clusters.name), uid_of(system))


async def add_claim(clusters: BoundClusters, source: Object, *, storage_class: str = "fast") -> str:
    """Create a claim and a volume of the same name that are bound to each other."""
    name = f"{clusters.name}-data"
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": storage_class,
        "volumeName": name,
    }
    made = await clusters.virtual.create(PERSISTENT_VOLUME_CLAIMS, {**object_named(name, "default"), "spec": claim})
    reference = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": name, "uid": uid_of(made)}
    volume = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "claimRef": reference,
        "persistentVolumeReclaimPolicy": "Delete",
        "storageClassName": storage_class,
        **source,
    }
    await clusters.virtual.create(PERSISTENT_VOLUMES, {**object_named(name), "spec": volume})
    status = {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
    await clusters.virtual.patch(
        PERSISTENT_VOLUME_CLAIMS, object_named(name, "default"), {"status": status}, subresource="status"
    )
    return name


def csi(**more: Any) -> Object:
    return {"csi": {"driver": DRIVER, "volumeHandle": "vol-1", "fsType": "ext4", **more}}


async def lend(clusters: BoundClusters) -> str:
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_policy("all")
    return node


async def bind_pod(clusters: BoundClusters, node: str, claim: str) -> None:
    await clusters.wait_for_virtual_node(node)
    await clusters.bind_pod("work", node, volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": claim}}])


async def wait_for_claim(clusters: BoundClusters, name: str, until: Any) -> Object:
    return await wait_until(clusters.physical, PERSISTENT_VOLUME_CLAIMS, name, until, clusters.mount)


def phase(wanted: str) -> Any:
    return lambda obj: value_at(obj, "status", "phase") == wanted


@pytest.mark.parametrize("storage_class", ["fast", ""])
async def test_claim_copy_binds_grows_and_ends_with_last_pod(clusters: BoundClusters, storage_class: str) -> None:
    await clusters.set_binding(allowedVolumes=ALLOWED)
    secret = {"name": f"{clusters.name}-key", "namespace": "default"}
    await clusters.virtual.create(SECRETS, {"metadata": secret, "stringData": {"k": "v"}})
    claim = await add_claim(clusters, csi(nodeStageSecretRef=secret), storage_class=storage_class)
    node, binding = await lend(clusters), await binding_at(clusters)
    volume_below, claim_below = name_in_physical(binding, "", claim), name_in_physical(binding, "default", claim)
    with clusters.syncer():
        await bind_pod(clusters, node, claim)
        twin = await clusters.wait_for_twin("work")
        mounted = next(each for each in twin["spec"]["volumes"] if each["name"] == "data")
        assert mounted["persistentVolumeClaim"]["claimName"] == claim_below
        await wait_for_claim(clusters, claim_below, phase("Bound"))
        volume = await wait_until(clusters.physical, PERSISTENT_VOLUMES, volume_below, phase("Bound"))
        assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
        reference = volume["spec"]["csi"]["nodeStageSecretRef"]
        copy = await clusters.physical.get(SECRETS, reference["name"], reference["namespace"])
        assert reference["namespace"] == clusters.mount
        assert copy["data"] == {"k": "dg=="}

        await grow(clusters, claim)
        grown = lambda found: value_at(found, "spec", "capacity", "storage") == "2Gi"  # noqa: E731
        await wait_until(clusters.physical, PERSISTENT_VOLUMES, volume_below, grown)
        status = {"status": {"capacity": {"storage": "2Gi"}}}
        below = object_named(claim_below, clusters.mount)
        await clusters.physical.patch(PERSISTENT_VOLUME_CLAIMS, below, status, subresource="status")
        has_grown = lambda found: value_at(found, "status", "capacity", "storage") == "2Gi"  # noqa: E731
        resized = await wait_until(clusters.virtual, PERSISTENT_VOLUME_CLAIMS, claim, has_grown, "default")
        assert not is_condition_true(resized, "FileSystemResizePending")

        await clusters.virtual.delete(PODS, object_named(f"{clusters.name}-work", "default"))
        await wait_until_gone(clusters.physical, PERSISTENT_VOLUME_CLAIMS, claim_below, clusters.mount)
        await wait_until_gone(clusters.physical, PERSISTENT_VOLUMES, volume_below)
        await wait_until_gone(clusters.physical, SECRETS, name_of(copy), clusters.mount)
        await clusters.virtual.get(PERSISTENT_VOLUMES, claim)
    done = [each for each in clusters.writes() if "persistentvolume" in each["resource"]]
    made = [(each["verb"], each["resource"]) for each in done]
    assert made == [
        ("create", "persistentvolumes"),
        ("create", "persistentvolumeclaims"),
        ("patch", "persistentvolumes"),
        ("patch", "persistentvolumeclaims"),  # the status of the virtual claim
        ("delete", "persistentvolumeclaims"),
        ("delete", "persistentvolumes"),
    ]


async def grow(clusters: BoundClusters, claim: str) -> None:
    """Grow the virtual claim and its volume as a resizer does."""
    await clusters.virtual.patch(PERSISTENT_VOLUMES, object_named(claim), {"spec": {"capacity": {"storage": "2Gi"}}})
    pending = {"type": "FileSystemResizePending", "status": "True"}
    status = {"status": {"conditions": [pending], "allocatedResourceStatuses": {"storage": "NodeResizePending"}}}
    await clusters.virtual.patch(PERSISTENT_VOLUME_CLAIMS, object_named(claim, "default"), status, subresource="status")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ({"hostPath": {"path": "/etc"}}, "spec: the volume has no CSI driver"),
        ({"nfs": {"server": "192.0.2.1", "path": "/"}}, "spec: the volume has no CSI driver"),
        ({"csi": {"driver": "other.example", "volumeHandle": "v"}}, "spec.csi.driver: other.example is not"),
        (csi(nodePublishSecretRef={"name": "x", "namespace": "kube-system"}), "spec.csi.nodePublishSecretRef: kube-"),
        ({"csi": {"driver": DRIVER, "volumeHandle": "the-owners"}}, "spec.csi.volumeHandle: the volume was not"),
    ],
    ids=["hostPath", "nfs", "driver", "secret", "handle"],
)
async def test_disallowed_volume_is_not_copied_and_pod_has_reason(
    clusters: BoundClusters, source: Object, why: str
) -> None:
    await clusters.set_binding(allowedVolumes=ALLOWED, podSecurity="privileged")
    claim = await add_claim(clusters, source)
    node = await lend(clusters)
    with clusters.syncer():
        await bind_pod(clusters, node, claim)

        def decided(pod: Object) -> bool:
            return find_condition(value_at(pod, "status", "conditions"), keys.MAPPED_CONDITION) is not None

        found = (
            find_condition(
                (await clusters.wait_for_pod("work", decided))["status"]["conditions"], keys.MAPPED_CONDITION
            )
            or {}
        )
        assert (found["status"], found["reason"]) == ("False", "VolumeNotAllowed")
        assert found["message"].startswith(why)
        assert await clusters.physical.list(PERSISTENT_VOLUME_CLAIMS, clusters.mount) == []
        assert await clusters.physical.list(PERSISTENT_VOLUMES, labels=f"{keys.CLUSTER_BINDING}={clusters.name}") == []
        assert await clusters.physical.list(PODS, clusters.mount) == []
