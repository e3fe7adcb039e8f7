import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apis.clusterbindings import AllowedVolumes, Binding, ClusterBindingSpec, SecretReference
from tapestry.apis.names import physical_name
from tapestry.kube.objects import Object, annotations_of, labels_of, without_field
from tapestry.manager.volume_policies import glob_to_regex
from tapestry.syncer.translate.metadata import source_key
from tapestry.syncer.translate.volumes import (
    CSI_SECRET_FIELDS,
    expansion_patch,
    is_bound,
    is_twin_of,
    matches,
    release_patch,
    secrets_of,
    twin_claim,
    twin_volume,
    volume_errors,
)

SPEC = ClusterBindingSpec(cluster_id="east", secret_ref=SecretReference("east", "tapestry-system"), mount_namespace="m")
EAST = Binding("east", "uid-east", "cluster", SPEC)
DISKS = AllowedVolumes(drivers=("disk.example",), volume_handles=("vol-*",))


def a_claim(**spec: Any) -> Object:
    given = {"accessModes": ["ReadWriteOnce"], "volumeName": "pv-1", "volumeMode": "Filesystem", **spec}
    metadata = {"name": "data", "namespace": "team-a", "uid": "claim-1"}
    return {"metadata": metadata, "spec": given, "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}


def a_volume(csi: Object | None = None, **spec: Any) -> Object:
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


def below(name: str, namespace: str = "team-a") -> str:
    return physical_name(EAST.virtual_cluster, EAST.uid, namespace, name)


def refused(volume: Object, allowed: AllowedVolumes = DISKS) -> list[str]:
    return [complaint.split(":")[0] for complaint in volume_errors(a_claim(), volume, allowed)]


# -- what may cross


def test_a_volume_of_a_driver_that_the_binding_names_crosses() -> None:
    assert list(volume_errors(a_claim(), a_volume(), DISKS)) == []


def test_a_driver_that_the_binding_does_not_name_is_told_by_its_path() -> None:
    other = AllowedVolumes(drivers=("other.example",), volume_handles=("vol-*",))
    assert list(volume_errors(a_claim(), a_volume(), other)) == [
        "spec.csi.driver: disk.example is not in the binding's allowedVolumes"
    ]


def test_with_storage_classes_the_volume_has_to_be_of_one_of_them_and_of_a_driver() -> None:
    fast = AllowedVolumes(drivers=("disk.example",), storage_classes=("fast",), volume_handles=("vol-*",))
    assert refused(a_volume(), fast) == []
    assert refused(a_volume(storageClassName="slow"), fast) == ["spec.storageClassName"]
    assert refused(a_volume(storageClassName=None), fast) == ["spec.storageClassName"]
    assert refused(a_volume(), AllowedVolumes(storage_classes=("fast",))) == [
        "spec.csi.driver",
        "spec.csi.volumeHandle",
    ]


BY_DRIVER = AllowedVolumes(drivers=("disk.example",))


def provisioned(by: str = "disk.example", name: str = "pvc-claim-1") -> Object:
    metadata = {"name": name, "uid": "volume-1", "annotations": {"pv.kubernetes.io/provisioned-by": by}}
    return {**a_volume(), "metadata": metadata}


def test_a_volume_that_was_provisioned_for_the_claim_needs_no_pattern() -> None:
    assert refused(provisioned(), BY_DRIVER) == []


@pytest.mark.parametrize(
    "volume",
    [
        a_volume(),
        provisioned(by="other.example"),
        provisioned(name="pvc-claim-2"),
        provisioned(name="claim-1"),
        provisioned(name="pv-1"),
    ],
    ids=["by hand", "by another driver", "for another claim", "without a prefix", "under a name of its own"],
)
def test_any_other_handle_has_to_match_a_pattern(volume: Object) -> None:
    assert refused(volume, BY_DRIVER) == ["spec.csi.volumeHandle"]
    assert refused(volume, AllowedVolumes(drivers=("disk.example",), volume_handles=("other", "vol-?"))) != []
    assert refused(volume, DISKS) == []


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
def test_a_star_matches_any_text_and_nothing_else_is_special(pattern: str, handle: str, found: bool) -> None:
    assert matches(pattern, handle) is found
    assert bool(re.search(glob_to_regex(pattern), handle)) is found  # what the owner's policy is told


def test_a_pattern_with_many_stars_takes_linear_time() -> None:
    assert not matches("a*" * 500 + "b", "a" * 1024)


@given(pattern=st.text("ab*", max_size=6), handle=st.text("ab", max_size=8))
def test_patterns_mean_the_same_above_and_below(pattern: str, handle: str) -> None:
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
def test_only_csi_volumes_cross_whatever_is_allowed(source: Object) -> None:
    volume = a_volume(**source)
    assert refused(without_field(volume, "spec", "csi")) == ["spec"]
    assert not twin_volume(a_claim(), volume, EAST)["spec"].keys() & source.keys()


@pytest.mark.parametrize("field", CSI_SECRET_FIELDS)
def test_a_secret_of_another_namespace_is_refused(field: str) -> None:
    elsewhere = {"name": "s", "namespace": "kube-system"}
    assert refused(a_volume({field: elsewhere})) == [f"spec.csi.{field}"]
    assert refused(a_volume({field: {"name": "s"}})) == [f"spec.csi.{field}"]
    assert refused(a_volume({field: {"namespace": "team-a"}})) == [f"spec.csi.{field}"]
    assert refused(a_volume({field: {"name": "s", "namespace": "team-a"}})) == []


def test_what_the_driver_may_take_for_a_secret_of_the_owners_is_refused() -> None:
    attributes = {"secretNamespace": "kube-system", "secretname": "x", "size": "1", "csi.storage.k8s.io/secret": "s"}
    assert refused(a_volume({"volumeAttributes": attributes})) == [
        "spec.csi.volumeAttributes[secretNamespace]",
        "spec.csi.volumeAttributes[secretname]",
    ]


def test_a_field_of_a_csi_source_that_we_do_not_know_is_refused() -> None:
    assert refused(a_volume({"somethingSecretRef": {"name": "s"}})) == ["spec.csi.somethingSecretRef"]


def test_claim_and_volume_have_to_name_each_other() -> None:
    assert is_bound(a_claim(), a_volume())
    assert not is_bound(a_claim(volumeName="pv-2"), a_volume())
    assert not is_bound(a_claim(), a_volume(claimRef={"namespace": "team-a", "name": "data", "uid": "an earlier one"}))
    assert not is_bound(a_claim(), a_volume(claimRef=None))
    assert not is_bound({**a_claim(), "status": {"phase": "Pending"}}, a_volume())


# -- what there is below


def test_the_volume_below_is_kept_for_its_claim_and_outlives_it() -> None:
    affinity = {"required": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "values": ["vnode"]}]}]}}
    secret = {"name": "key", "namespace": "team-a"}
    attributes = {"tier": "gold", "csi.storage.k8s.io/pvc/namespace": "team-a"}
    source = {"nodeStageSecretRef": secret, "fsType": "ext4", "volumeAttributes": attributes}
    twin = twin_volume(a_claim(), a_volume(source, nodeAffinity=affinity, mountOptions=["noatime"]), EAST)
    assert twin["spec"] == {
        "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
        "capacity": {"storage": "1Gi"},
        "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "m", "name": below("data")},
        "csi": {
            "driver": "disk.example",
            "volumeHandle": "vol-1",
            "fsType": "ext4",
            "volumeAttributes": {"tier": "gold"},
            "nodeStageSecretRef": {"name": below("key"), "namespace": "m"},
        },
        "mountOptions": ["noatime"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "fast",
        "volumeMode": "Filesystem",
    }
    assert twin["metadata"]["name"] == below("pv-1", "")
    assert "namespace" not in twin["metadata"]


@pytest.mark.parametrize("storage_class", ["fast", "", None])
def test_the_claim_below_can_only_be_bound_to_that_volume(storage_class: str | None) -> None:
    claim = twin_claim(a_claim(dataSource={"kind": "X"}, selector={"matchLabels": {}}), a_volume(), EAST)
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "fast",
        "volumeMode": "Filesystem",
        "volumeName": below("pv-1", ""),
    }
    volume = a_volume(storageClassName=storage_class)
    claim, twin = twin_claim(a_claim(), volume, EAST), twin_volume(a_claim(), volume, EAST)
    assert claim["spec"]["storageClassName"] == (twin["spec"]["storageClassName"] or "")
    assert twin["spec"]["claimRef"]["name"] == claim["metadata"]["name"]


def test_both_are_provably_ours_and_of_those_very_objects() -> None:
    claim, volume = a_claim(), a_volume()
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
def test_rule_7_no_volume_below_names_a_secret_that_is_not_our_copy_of_one_of_the_claims_namespace(
    named: dict[str, Object],
) -> None:
    volume = a_volume(named)
    if refused(volume):
        return
    csi = twin_volume(a_claim(), volume, EAST)["spec"]["csi"]
    copies = {below(name) for name in secrets_of(volume)}
    assert {field for field in CSI_SECRET_FIELDS if field in csi} == named.keys()
    assert all(csi[field]["namespace"] == "m" and csi[field]["name"] in copies for field in named)


def test_attributes_that_only_told_of_the_virtual_claim_leave_none_behind() -> None:
    source = {"volumeAttributes": {"csi.storage.k8s.io/pv/name": "pv-1"}, "readOnly": False}
    assert twin_volume(a_claim(), a_volume(source), EAST)["spec"]["csi"] == {
        "driver": "disk.example",
        "volumeHandle": "vol-1",
    }


def test_each_secret_is_needed_once() -> None:
    secret = {"name": "key", "namespace": "team-a"}
    assert secrets_of(a_volume({"nodeStageSecretRef": secret, "nodePublishSecretRef": secret})) == ["key"]
    assert secrets_of(a_volume()) == secrets_of({"spec": {"hostPath": {}}}) == []


# -- what changes later


def test_a_volume_that_was_bound_to_a_claim_that_is_gone_is_freed_for_the_one_that_is_there() -> None:
    claim = {"metadata": {"uid": "now"}}
    assert release_patch({"spec": {"claimRef": {"uid": "before"}}}, claim) == {
        "spec": {"claimRef": {"uid": None, "resourceVersion": None}}
    }
    assert release_patch({"spec": {"claimRef": {"uid": "now"}}}, claim) is None
    assert release_patch({"spec": {"claimRef": {}}}, claim) is None


PENDING = {"type": "FileSystemResizePending", "status": "True"}


def test_that_the_file_system_has_grown_is_told_above_once_the_twin_says_so() -> None:
    other = {"type": "ModifyingVolume", "status": "True"}
    claim = {**a_claim(), "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "conditions": [PENDING, other]}}
    volume = a_volume(capacity={"storage": "2Gi"})
    assert expansion_patch(claim, volume, {"status": {"capacity": {"storage": "1Gi"}}}) is None
    assert expansion_patch(claim, volume, {"status": {"capacity": {"storage": "2Gi"}}}) == {
        "status": {
            "capacity": {"storage": "2Gi"},
            "conditions": [other],
            "allocatedResourceStatuses": {"storage": None},
        }
    }


@pytest.mark.parametrize("said", ["900Ti", "0", "-1", "much", None])
def test_rule_9_how_large_a_claim_is_nobody_below_decides(said: str | None) -> None:
    claim = {**a_claim(), "status": {"phase": "Bound", "conditions": [PENDING]}}
    assert expansion_patch(claim, a_volume(), {"status": {"capacity": {"storage": said}}}) is None
    assert expansion_patch(a_claim(), a_volume(), {"status": {"capacity": {"storage": "1Gi"}}}) is None
