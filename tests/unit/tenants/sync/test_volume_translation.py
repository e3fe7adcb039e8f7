"""Volumes and claims of a tenant: what is copied in each direction, and what untrusted objects cannot say."""

from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import TenantSync
from tapestry.apis.field_types import SecretReference
from tapestry.apis.hostclusters import HostClusterSpec, OfferedStorageClass
from tapestry.controlplane.volume_matching import STORAGE_PROVISIONER
from tapestry.kube.objects import Object, annotations_of, labels_of, name_of, value_at
from tapestry.tenants.sync.twin_objects import NotSynced, NoTwin
from tapestry.tenants.sync.volume_translation import (
    DRIVER,
    capacity_patch,
    changed_claim,
    desired_class,
    is_disposable,
    is_provisioned,
    new_claim,
    plane_volume,
    twin_claim_name,
    volume_affinity,
    volume_of,
    volume_of_twin,
)

from ..effective_bindings import tenant

HOST = HostClusterSpec(
    SecretReference("host", "tapestry-hosts"), storage_classes=(OfferedStorageClass("fast", "ssd-of-owner"),)
)
BINDING = tenant(host=HOST)
CLASS: Object = {"metadata": {"name": "fast"}, "provisioner": DRIVER, "volumeBindingMode": "Immediate"}
DELAYED = {**CLASS, "volumeBindingMode": "WaitForFirstConsumer"}


def claim(annotations: Any = None, **spec: Any) -> Object:
    content = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
    return {
        "metadata": {"name": "data", "namespace": "team-a", "uid": "u-1", "annotations": annotations or {}},
        "spec": {"storageClassName": "fast", **content},
    }


def twin_of(source: Object, capacity: Any = "1Gi", **spec: Any) -> Object:
    created = new_claim(source, CLASS, BINDING)
    return {
        **created,
        "metadata": {**created["metadata"], "uid": "twin-1"},
        "spec": {**created["spec"], "volumeName": "pvc-of-owner", **spec},
        "status": {"phase": "Bound", "capacity": {"storage": capacity}},
    }


# -- claims in the host cluster


def test_claim_of_host_has_only_size_class_and_modes() -> None:
    twin = new_claim(claim(annotations={"nfs.io/path": "/etc"}, volumeMode="Block", limits={"a": "1"}), CLASS, BINDING)
    assert twin["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "ssd-of-owner",
        "volumeMode": "Block",
    }
    assert all(key.startswith(keys.PREFIX) for key in annotations_of(twin))
    assert BINDING.owns(twin)
    assert labels_of(twin)[keys.VIRTUAL_NAMESPACE] == "team-a"


def test_claim_of_host_is_named_after_the_volume() -> None:
    source = claim()
    twin = new_claim(source, CLASS, BINDING)
    assert volume_of(source) == volume_of_twin(twin) == "pvc-u-1"
    assert name_of(twin) == twin_claim_name("pvc-u-1", BINDING)
    assert volume_of(claim(volumeName="other")) == "other"


@pytest.mark.parametrize("field", ["dataSource", "dataSourceRef", "selector", "volumeAttributesClassName"])
def test_fields_that_new_volumes_cannot_satisfy_are_refused(field: str) -> None:
    with pytest.raises(NotSynced, match=rf"spec\.{field}"):
        new_claim(claim(**{field: {"name": "a"}}), CLASS, BINDING)


def test_only_offered_classes_have_a_twin() -> None:
    with pytest.raises(NotSynced, match="does not offer the storage class 'ssd-of-owner'"):
        new_claim(claim(storageClassName="ssd-of-owner"), CLASS, BINDING)
    with pytest.raises(NoTwin):
        new_claim(claim(), {**CLASS, "provisioner": "other.example.com"}, BINDING)
    with pytest.raises(NoTwin):
        new_claim(claim(), None, BINDING)
    with pytest.raises(NotSynced, match="does not offer"):
        new_claim(claim(), CLASS, tenant())
    old = {"volume.beta.kubernetes.io/storage-class": "ssd-of-owner"}
    with pytest.raises(NotSynced):
        new_claim(claim(annotations=old), CLASS, BINDING)


def test_unlisted_classes_are_named_directly() -> None:
    binding = tenant(host=HOST, sync=TenantSync(storage_classes=False), default_storage_class="fast")
    for source in (claim(), claim(storageClassName=None)):
        assert new_claim(source, None, binding)["spec"]["storageClassName"] == "ssd-of-owner"
    with pytest.raises(NoTwin):
        new_claim(claim(storageClassName=""), None, binding)


def test_only_larger_requests_are_copied() -> None:
    twin = twin_of(claim())
    assert changed_claim(claim(resources={"requests": {"storage": "2Gi"}}), twin, BINDING)["spec"] == {
        "resources": {"requests": {"storage": "2Gi"}}
    }
    for size in ("1Gi", "1073741824", "500Mi"):
        assert "spec" not in changed_claim(claim(resources={"requests": {"storage": size}}), twin, BINDING)


def test_claim_is_provisioned_when_a_provisioner_has_to() -> None:
    marked = claim(annotations={STORAGE_PROVISIONER: DRIVER})
    assert is_provisioned(marked, CLASS, has_node=False)
    assert not is_provisioned(claim(), CLASS, has_node=True)
    assert not is_provisioned(marked, DELAYED, has_node=False)
    assert is_provisioned(claim(), DELAYED, has_node=True)
    assert is_provisioned(claim(), None, has_node=False)
    assert not is_provisioned(claim(volumeName="v"), None, has_node=True)
    deleting = {**marked, "metadata": {**marked["metadata"], "deletionTimestamp": "2025-01-01T00:00:00Z"}}
    assert not is_provisioned(deleting, CLASS, has_node=True)


# -- volumes of the plane


def test_volume_of_plane_reveals_nothing_of_host() -> None:
    volume = plane_volume(claim(), twin_of(claim(), "2Gi"), {**CLASS, "reclaimPolicy": "Retain"}, None)
    assert "owner" not in str(volume)
    assert volume["spec"]["csi"] == {"driver": DRIVER, "volumeHandle": "pvc-u-1"}
    assert volume["spec"]["capacity"] == {"storage": "2Gi"}
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
    assert value_at(volume, "spec", "claimRef", "uid") == "u-1"


@pytest.mark.parametrize("capacity", [None, 5, "", "-1Gi", "a lot", {"a": 1}, "9" * 500])
def test_invalid_capacity_of_host_is_replaced_by_request(capacity: object) -> None:
    twin = twin_of(claim(), capacity)
    volume = plane_volume(claim(), twin, CLASS, None)
    assert volume["spec"]["capacity"] == {"storage": "1Gi"}
    assert capacity_patch(volume, twin) is None


def test_volume_grows_with_that_of_host() -> None:
    volume = plane_volume(claim(), twin_of(claim()), CLASS, None)
    assert capacity_patch(volume, twin_of(claim(), "3Gi")) == {"spec": {"capacity": {"storage": "3Gi"}}}
    assert capacity_patch(volume, twin_of(claim(), "500Mi")) is None


@pytest.mark.parametrize(
    ("driver", "policy", "phase", "expected"),
    [
        (DRIVER, "Delete", "Released", True),
        (DRIVER, "Delete", "Bound", False),
        (DRIVER, "Retain", "Released", False),
        ("other.example.com", "Delete", "Released", False),
    ],
)
def test_only_released_volumes_of_host_are_disposable(driver: str, policy: str, phase: str, expected: bool) -> None:
    spec = {"csi": {"driver": driver}, "persistentVolumeReclaimPolicy": policy}
    assert is_disposable({"spec": spec, "status": {"phase": phase}}) == expected


# -- affinity


def host_volume(*requirements: Any, uid: str = "twin-1", **term: Any) -> Object:
    terms = [{"matchExpressions": list(requirements), **term}]
    return {"spec": {"claimRef": {"uid": uid}, "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}}


ZONE = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a", "b"]}
ON_N1 = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}


def test_affinity_to_visible_labels_is_copied() -> None:
    found = volume_affinity(host_volume(ZONE, ON_N1), twin_of(claim()), None)
    assert found == {"nodeSelectorTerms": [{"matchExpressions": [ZONE, ON_N1]}]}


def test_host_names_are_those_of_the_plane() -> None:
    found = volume_affinity(host_volume(ON_N1), twin_of(claim()), {"n1": "vnode-n1"})
    assert found == {"nodeSelectorTerms": [{"matchExpressions": [{**ON_N1, "values": ["vnode-n1"]}]}]}
    assert volume_affinity(host_volume(ON_N1), twin_of(claim()), {}) is None


@pytest.mark.parametrize(
    "volume",
    [
        None,
        {"spec": {"claimRef": {"uid": "twin-1"}}},
        host_volume(ZONE, uid="of-another-claim"),
        host_volume(),
        host_volume({**ZONE, "key": "tapestry.io/secret"}),
        host_volume({**ZONE, "key": 5}),
        host_volume({**ZONE, "operator": "Near"}),
        host_volume({**ZONE, "operator": "Exists"}),
        host_volume({**ZONE, "values": []}),
        host_volume({**ZONE, "values": ["a b\x00"]}),
        host_volume({**ZONE, "values": [{}]}),
        host_volume("text"),
        host_volume(ZONE, matchFields=[{"key": "metadata.name"}]),
        {"spec": {"claimRef": {"uid": "twin-1"}, "nodeAffinity": {"required": {"nodeSelectorTerms": "x"}}}},
    ],
)
def test_affinity_that_the_plane_cannot_express_is_dropped(volume: Any) -> None:
    assert volume_affinity(volume, twin_of(claim()), None) is None


# -- storage classes


def test_class_of_plane_hides_parameters_of_host() -> None:
    of_host = {
        "metadata": {"name": "ssd-of-owner", "annotations": {"owner": "x"}},
        "provisioner": "ebs.example.com",
        "parameters": {"csi.storage.k8s.io/provisioner-secret-name": "owner"},
        "mountOptions": ["owner"],
        "reclaimPolicy": "Retain",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": True,
    }
    found = desired_class(HOST.storage_classes[0], of_host, is_default=True)
    assert "owner" not in str(found)
    assert (found["provisioner"], found["reclaimPolicy"]) == (DRIVER, "Retain")
    assert found["volumeBindingMode"] == "WaitForFirstConsumer"
    assert found["allowVolumeExpansion"]
    assert annotations_of(found) == {"storageclass.kubernetes.io/is-default-class": "true"}
