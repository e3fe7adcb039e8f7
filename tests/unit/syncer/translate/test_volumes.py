"""Twins of claims and volumes: allowed sources, desired objects and changes."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apis.clusterbindings import AllowedVolumes, Binding, ClusterBindingSpec
from tapestry.apis.field_types import SecretReference
from tapestry.apis.names import physical_name
from tapestry.kube.objects import Object, annotations_of, labels_of, without_field
from tapestry.kube.pod_references import secrets_of
from tapestry.manager.volume_policies import glob_to_regex
from tapestry.syncer.translate.metadata import source_key
from tapestry.syncer.translate.volumes import (
    CSI_SECRET_FIELDS,
    claim_problem,
    is_bound,
    is_twin_of,
    matches,
    release_patch,
    resize_patch,
    twin_claim,
    twin_volume,
    volume_errors,
)

SPEC = ClusterBindingSpec(cluster_id="east", secret_ref=SecretReference("east", "tapestry-system"), mount_namespace="m")
EAST = Binding("east", "uid-east", "cluster", SPEC)
DISKS = AllowedVolumes(drivers=("disk.example",), volume_handles=("vol-*",))


def new_claim(**spec: Any) -> Object:
    given = {"accessModes": ["ReadWriteOnce"], "volumeName": "pv-1", "volumeMode": "Filesystem", **spec}
    metadata = {"name": "data", "namespace": "team-a", "uid": "claim-1"}
    return {"metadata": metadata, "spec": given, "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}


def new_volume(csi: Object | None = None, **spec: Any) -> Object:
    given = {
        "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
        "capacity": {"storage": "1Gi"},
        "claimRef": {"namespace": "team-a", "name": "data", "uid": "claim-1"},
        "csi": {"driver": "disk.example", "volumeHandle": "vol-1", **(csi or {})},
        "persistentVolumeReclaimPolicy": "Delete",
        "storageClassName": "fast",
        "volumeMode": "Filesystem",
        **spec,
    }
    return {"metadata": {"name": "pv-1", "uid": "volume-1"}, "spec": given}


def physical_name_for(name: str, namespace: str = "team-a") -> str:
    return physical_name(EAST.virtual_cluster, EAST.uid, namespace, name)


def errors_of(volume: Object, allowed: AllowedVolumes = DISKS) -> list[str]:
    return [error.split(":")[0] for error in volume_errors(new_claim(), volume, allowed)]


# -- allowed volumes


def test_volume_of_a_listed_driver_is_allowed() -> None:
    assert list(volume_errors(new_claim(), new_volume(), DISKS)) == []


def test_unlisted_driver_is_named_by_path() -> None:
    other = AllowedVolumes(drivers=("other.example",), volume_handles=("vol-*",))
    assert list(volume_errors(new_claim(), new_volume(), other)) == [
        "spec.csi.driver: disk.example is not in the binding's allowedVolumes"
    ]


def test_storage_class_and_driver_must_be_listed() -> None:
    fast = AllowedVolumes(drivers=("disk.example",), storage_classes=("fast",), volume_handles=("vol-*",))
    assert errors_of(new_volume(), fast) == []
    assert errors_of(new_volume(storageClassName="slow"), fast) == ["spec.storageClassName"]
    assert errors_of(new_volume(storageClassName=None), fast) == ["spec.storageClassName"]
    assert errors_of(new_volume(), AllowedVolumes(storage_classes=("fast",))) == [
        "spec.csi.driver",
        "spec.csi.volumeHandle",
    ]


BY_DRIVER = AllowedVolumes(drivers=("disk.example",))


def provisioned(by: str = "disk.example", name: str = "pvc-claim-1") -> Object:
    metadata = {"name": name, "uid": "volume-1", "annotations": {"pv.kubernetes.io/provisioned-by": by}}
    return {**new_volume(), "metadata": metadata}


def test_volume_provisioned_for_the_claim_needs_no_pattern() -> None:
    assert errors_of(provisioned(), BY_DRIVER) == []


@pytest.mark.parametrize(
    "volume",
    [
        new_volume(),
        provisioned(by="other.example"),
        provisioned(name="pvc-claim-2"),
        provisioned(name="claim-1"),
        provisioned(name="pv-1"),
    ],
    ids=["by hand", "by another driver", "for another claim", "without a prefix", "under a name of its own"],
)
def test_other_handles_must_match_a_pattern(volume: Object) -> None:
    assert errors_of(volume, BY_DRIVER) == ["spec.csi.volumeHandle"]
    assert errors_of(volume, AllowedVolumes(drivers=("disk.example",), volume_handles=("other", "vol-?"))) != []
    assert errors_of(volume, DISKS) == []


@pytest.mark.parametrize(
    ("pattern", "handle", "found"),
    [
        ("vol-1", "vol-1", True),
        ("vol-1", "vol-11", False),
        ("vol-*", "vol-", True),
        ("vol-*", "xvol-1", False),
        ("*/team-a/*", "nfs#host/team-a/data", True),
        ("*/team-a/*", "nfs#host/team-b/data", False),
        ("a*b", "ab", True),
        ("ab*ba", "aba", False),
        ("*", "", True),
        ("*", "a\nb", True),
        ("vol-.", "vol-1", False),
        ("[v]*", "v", False),
    ],
)
def test_only_the_star_is_special_in_patterns(pattern: str, handle: str, found: bool) -> None:
    assert matches(pattern, handle) is found
    assert bool(re.search(glob_to_regex(pattern), handle)) is found  # the pattern in the owner's policy


def test_pattern_with_many_stars_takes_linear_time() -> None:
    assert not matches("a*" * 500 + "b", "a" * 1024)


@given(pattern=st.text("ab*", max_size=6), handle=st.text("ab", max_size=8))
def test_patterns_mean_the_same_in_both_clusters(pattern: str, handle: str) -> None:
    assert matches(pattern, handle) == bool(re.search(glob_to_regex(pattern), handle))


@pytest.mark.parametrize(
    "source",
    [
        {"hostPath": {"path": "/"}},
        {"local": {"path": "/mnt"}},
        {"nfs": {"server": "10.0.0.1", "path": "/"}},
        {"iscsi": {"targetPortal": "10.0.0.1", "iqn": "i", "lun": 0}},
        {"flexVolume": {"driver": "disk.example"}},
        {"rbd": {"monitors": ["a"], "image": "i", "secretRef": {"name": "s", "namespace": "kube-system"}}},
        {"somethingNew": {"driver": "disk.example"}},
    ],
    ids=lambda source: next(iter(source)),
)
def test_only_csi_volumes_are_allowed(source: Object) -> None:
    volume = new_volume(**source)
    assert errors_of(without_field(volume, "spec", "csi")) == ["spec"]
    assert not twin_volume(new_claim(), volume, EAST)["spec"].keys() & source.keys()


@pytest.mark.parametrize("field", CSI_SECRET_FIELDS)
def test_secret_of_another_namespace_is_rejected(field: str) -> None:
    elsewhere = {"name": "s", "namespace": "kube-system"}
    assert errors_of(new_volume({field: elsewhere})) == [f"spec.csi.{field}"]
    assert errors_of(new_volume({field: {"name": "s"}})) == [f"spec.csi.{field}"]
    assert errors_of(new_volume({field: {"namespace": "team-a"}})) == [f"spec.csi.{field}"]
    assert errors_of(new_volume({field: {"name": "s", "namespace": "team-a"}})) == []


def test_attribute_that_may_name_a_secret_is_rejected() -> None:
    attributes = {"secretNamespace": "kube-system", "secretname": "x", "size": "1", "csi.storage.k8s.io/secret": "s"}
    assert errors_of(new_volume({"volumeAttributes": attributes})) == [
        "spec.csi.volumeAttributes[secretNamespace]",
        "spec.csi.volumeAttributes[secretname]",
    ]


def test_unknown_csi_field_is_rejected() -> None:
    assert errors_of(new_volume({"somethingSecretRef": {"name": "s"}})) == ["spec.csi.somethingSecretRef"]


def test_claim_and_volume_must_name_each_other() -> None:
    assert is_bound(new_claim(), new_volume())
    assert not is_bound(new_claim(volumeName="pv-2"), new_volume())
    assert not is_bound(
        new_claim(), new_volume(claimRef={"namespace": "team-a", "name": "data", "uid": "an earlier one"})
    )
    assert not is_bound(new_claim(), new_volume(claimRef=None))
    assert not is_bound({**new_claim(), "status": {"phase": "Pending"}}, new_volume())


# -- twins


def test_twin_volume_is_reserved_and_retained() -> None:
    affinity = {"required": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "values": ["vnode"]}]}]}}
    secret = {"name": "key", "namespace": "team-a"}
    attributes = {"tier": "gold", "csi.storage.k8s.io/pvc/namespace": "team-a"}
    source = {"nodeStageSecretRef": secret, "fsType": "ext4", "volumeAttributes": attributes}
    twin = twin_volume(new_claim(), new_volume(source, nodeAffinity=affinity, mountOptions=["noatime"]), EAST)
    assert twin["spec"] == {
        "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
        "capacity": {"storage": "1Gi"},
        "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": "m",
            "name": physical_name_for("data"),
        },
        "csi": {
            "driver": "disk.example",
            "volumeHandle": "vol-1",
            "fsType": "ext4",
            "volumeAttributes": {"tier": "gold"},
            "nodeStageSecretRef": {"name": physical_name_for("key"), "namespace": "m"},
        },
        "mountOptions": ["noatime"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "fast",
        "volumeMode": "Filesystem",
    }
    assert twin["metadata"]["name"] == physical_name_for("pv-1", "")
    assert "namespace" not in twin["metadata"]


@pytest.mark.parametrize("storage_class", ["fast", "", None])
def test_twin_claim_binds_only_its_volume(storage_class: str | None) -> None:
    claim = twin_claim(new_claim(dataSource={"kind": "X"}, selector={"matchLabels": {}}), new_volume(), EAST)
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "fast",
        "volumeMode": "Filesystem",
        "volumeName": physical_name_for("pv-1", ""),
    }
    volume = new_volume(storageClassName=storage_class)
    claim, twin = twin_claim(new_claim(), volume, EAST), twin_volume(new_claim(), volume, EAST)
    assert claim["spec"]["storageClassName"] == (twin["spec"]["storageClassName"] or "")
    assert twin["spec"]["claimRef"]["name"] == claim["metadata"]["name"]


def test_twins_are_provably_ours_and_name_their_sources() -> None:
    claim, volume = new_claim(), new_volume()
    for metadata in (claim["metadata"], volume["metadata"]):
        metadata |= {"labels": {"topology.kubernetes.io/zone": "a"}, "annotations": {"pv.kubernetes.io/x": "y"}}
    for twin, source in ((twin_claim(claim, volume, EAST), claim), (twin_volume(claim, volume, EAST), volume)):
        assert EAST.owns(twin)
        assert source_key(twin) == ["team-a/data"]
        assert is_twin_of(twin, source)
        assert not is_twin_of(twin, {"metadata": {**source["metadata"], "uid": "a namesake"}})
        assert all(key.startswith("tapestry.io/") for key in (*labels_of(twin), *annotations_of(twin)))


REFERENCES = st.fixed_dictionaries(
    {}, optional={"name": st.sampled_from(["", "key"]), "namespace": st.sampled_from(["", "team-a", "kube-system"])}
)


@given(st.dictionaries(st.sampled_from(CSI_SECRET_FIELDS), REFERENCES))
def test_safety_rule_7_twin_volume_names_only_our_copies(
    named: dict[str, Object],
) -> None:
    volume = new_volume(named)
    if errors_of(volume):
        return
    csi = twin_volume(new_claim(), volume, EAST)["spec"]["csi"]
    copies = {physical_name_for(name) for name in secrets_of(volume)}
    assert {field for field in CSI_SECRET_FIELDS if field in csi} == named.keys()
    assert all(csi[field]["namespace"] == "m" and csi[field]["name"] in copies for field in named)


def test_provisioner_attributes_are_dropped() -> None:
    source = {"volumeAttributes": {"csi.storage.k8s.io/pv/name": "pv-1"}, "readOnly": False}
    assert twin_volume(new_claim(), new_volume(source), EAST)["spec"]["csi"] == {
        "driver": "disk.example",
        "volumeHandle": "vol-1",
    }


def test_each_secret_is_listed_once() -> None:
    secret = {"name": "key", "namespace": "team-a"}
    assert secrets_of(new_volume({"nodeStageSecretRef": secret, "nodePublishSecretRef": secret})) == ["key"]
    assert secrets_of(new_volume()) == secrets_of({"spec": {"hostPath": {}}}) == []


# -- changes


def test_volume_of_deleted_claim_is_released() -> None:
    claim = {"metadata": {"uid": "now"}}
    assert release_patch({"spec": {"claimRef": {"uid": "before"}}}, claim) == {
        "spec": {"claimRef": {"uid": None, "resourceVersion": None}}
    }
    assert release_patch({"spec": {"claimRef": {"uid": "now"}}}, claim) is None
    assert release_patch({"spec": {"claimRef": {}}}, claim) is None


PENDING = {"type": "FileSystemResizePending", "status": "True"}


def new_claim_with(capacity: str, *conditions: Object) -> Object:
    return {**new_claim(), "status": {"phase": "Bound", "capacity": {"storage": capacity}, "conditions": [*conditions]}}


def new_twin_with(capacity: Any, *conditions: Any) -> Object:
    return {"status": {"phase": "Bound", "capacity": {"storage": capacity}, "conditions": [*conditions]}}


def test_expansion_is_reported_after_the_twin_grows() -> None:
    other = {"type": "ModifyingVolume", "status": "True"}
    claim, volume = new_claim_with("1Gi", PENDING, other), new_volume(capacity={"storage": "2Gi"})
    assert resize_patch(claim, volume, new_twin_with("1Gi")) is None
    done = {"capacity": {"storage": "2Gi"}, "conditions": [other], "allocatedResourceStatuses": {"storage": None}}
    assert resize_patch(claim, volume, new_twin_with("2Gi")) == {"status": done}
    assert resize_patch(new_claim_with("1Gi", other), volume, new_twin_with("2Gi")) == {"status": done}
    assert resize_patch(new_claim_with("2Gi", other), volume, new_twin_with("2Gi")) is None


def test_partial_expansion_is_reported() -> None:
    claim, volume = new_claim_with("1Gi", PENDING), new_volume(capacity={"storage": "3Gi"})
    assert resize_patch(claim, volume, new_twin_with("2Gi")) == {"status": {"capacity": {"storage": "2Gi"}}}


def test_only_conditions_of_kubelets_are_added() -> None:
    claim, volume = new_claim_with("1Gi", PENDING), new_volume(capacity={"storage": "2Gi"})
    failed = {"type": "NodeResizeError", "status": "True", "message": "disk \x1b[31mfull"}
    hostile = [failed, {"type": "Bound", "status": "True"}, {**PENDING, "message": "mine"}, {"type": []}, "x", None]
    added = {"type": "NodeResizeError", "status": "True", "message": "disk [31mfull"}
    patch = resize_patch(claim, volume, new_twin_with("1Gi", *hostile))
    assert patch == {"status": {"conditions": [PENDING, added]}}
    assert resize_patch(new_claim_with("1Gi", PENDING, added), volume, new_twin_with("1Gi", *hostile)) is None
    assert resize_patch(new_claim_with("2Gi"), volume, new_twin_with("1Gi", *hostile)) is None


@pytest.mark.parametrize("size", ["900Ti", "0", "-1", "much", "512Mi", 7, [], None])
def test_safety_rule_9_claim_size_is_limited_by_volume(size: Any) -> None:
    volume = new_volume(capacity={"storage": "2Gi"})
    assert resize_patch(new_claim_with("1Gi", PENDING), volume, new_twin_with(size)) is None
    assert resize_patch(new_claim(), volume, new_twin_with("1Gi")) is None


@pytest.mark.parametrize("status", [None, [], {}, {"capacity": 7}, {"capacity": {"storage": {}}, "conditions": {}}])
def test_safety_rule_9_invalid_twin_status_is_ignored(status: Any) -> None:
    twin = {"metadata": {"name": "t", "namespace": "m"}, "status": status}
    assert resize_patch(new_claim_with("1Gi"), new_volume(capacity={"storage": "2Gi"}), twin) is None
    assert claim_problem("a/b", twin) is None


def test_twin_that_is_not_bound_is_a_problem() -> None:
    twin = {"metadata": {"name": "t", "namespace": "m"}}
    lost, pending = (claim_problem("a/b", {**twin, "status": {"phase": each}}) for each in ("Lost", "Pending"))
    assert lost is not None
    assert lost[0] == "ClaimLostBelow"
    assert pending is not None
    assert pending[0] == "ClaimPendingBelow"
    assert claim_problem("a/b", {**twin, "status": {"phase": "Bound"}}) is None
