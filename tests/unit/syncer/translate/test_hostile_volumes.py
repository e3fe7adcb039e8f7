"""Volumes and claims that try to reach nodes, Secrets or data of the owner or of other tenants.

Each case is a named technique. It fails if the volume is rejected, or if `escapes`, which shares no code with the
translation, finds no trace of it in the twins.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import AllowedVolumes, binding_of
from tapestry.apis.names import physical_name
from tapestry.kube.objects import Object
from tapestry.syncer.translate.volumes import twin_claim, twin_volume, volume_errors

ALLOWED = AllowedVolumes(drivers=("disk.example.com",), storage_classes=("fast",), volume_handles=("h-*",))
BINDING = binding_of(
    {
        "metadata": {"name": "east", "uid": "5e1f"},
        "spec": {"clusterID": "east", "mountNamespace": "leased", "secretRef": {"name": "s", "namespace": "t"}},
    },
    "a-virtual-cluster",
)
SECRETS = (
    *("controllerPublishSecretRef", "nodeStageSecretRef", "nodePublishSecretRef"),
    *("controllerExpandSecretRef", "nodeExpandSecretRef"),
)
Pair = tuple[Object, Object]
"""A claim and its volume."""


def new_claim(metadata: Object | None = None, **spec: Any) -> Object:
    return {
        "metadata": {"name": "data", "namespace": "team-a", "uid": "c1", **(metadata or {})},
        "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": "pv-1", **spec},
        "status": {"phase": "Bound"},
    }


def new_volume(metadata: Object | None = None, csi: Object | None = None, **spec: Any) -> Object:
    return {
        "metadata": {"name": "pv-1", "uid": "v1", **(metadata or {})},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
            "storageClassName": "fast",
            "claimRef": {"namespace": "team-a", "name": "data", "uid": "c1"},
            "csi": {"driver": "disk.example.com", "volumeHandle": "h-1", **(csi or {})},
            **spec,
        },
    }


def of_other_sources() -> Iterator[tuple[str, Pair]]:
    for kind in (
        *("awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "fc", "flexVolume", "flocker"),
        *("gcePersistentDisk", "glusterfs", "hostPath", "iscsi", "local", "nfs", "photonPersistentDisk"),
        *("portworxVolume", "quobyte", "rbd", "scaleIO", "storageos", "vsphereVolume", "future", "hоstPath"),
    ):
        source = {kind: {"path": "/", "secretRef": {"name": "s", "namespace": "kube-system"}}}
        bare = new_volume()
        bare["spec"] = {field: value for field, value in bare["spec"].items() if field != "csi"} | source
        yield f"source {kind!a}", (new_claim(), bare)
        yield f"source {kind!a} beside an allowed one", (new_claim(), new_volume(**source))


def of_other_drivers() -> Iterator[tuple[str, Pair]]:
    for driver in (
        "other.example.com",
        "",
        "Disk.example.com",
        "disk.example.com ",
        "disk.example.com.",
        "disk.exаmple.com",
    ):
        yield f"driver {driver!a}", (new_claim(), new_volume(csi={"driver": driver}))
    for handle in ("", "the-owners", " h-1", "H-1", "x/h-1"):
        yield f"handle {handle!r}", (new_claim(), new_volume(csi={"volumeHandle": handle}))
    for name in ("slow", "", "Fast", "fast "):
        yield f"class {name!r}", (new_claim(), new_volume(storageClassName=name))
    yield "no class", (new_claim(), new_volume(storageClassName=None))


def of_others_secrets() -> Iterator[tuple[str, Pair]]:
    for field in SECRETS:
        for name, reference in {
            "the owner's": {"namespace": "kube-system", "name": "admin"},
            "another tenant's": {"namespace": "team-b", "name": "db"},
            "one of the mount namespace": {"namespace": "leased", "name": "db-x"},
            "none's": {"namespace": "", "name": "db"},
            "nobody's": {"name": "db"},
            "one without a name": {"namespace": "team-a"},
            "one on a way up": {"namespace": "team-a/../kube-system", "name": "db"},
            "one by a path": {"namespace": "team-a", "name": "../../kube-system/secrets/admin"},
            "one with more than a name": {"namespace": "team-a", "name": "db", "kind": "Node", "uid": "u"},
        }.items():
            yield f"{field}: {name}", (new_claim(), new_volume(csi={field: reference}))
    for field in ("futureSecretRef", "secretRef", "nodepublishSecretRef"):
        reference = {"namespace": "kube-system", "name": "admin"}
        yield f"an unknown {field}", (new_claim(), new_volume(csi={field: reference}))
    for name in ("secretName", "secretNamespace", "provisioner-secret", "Secret", "csi.example.com/secret-name"):
        yield f"attribute {name}", (new_claim(), new_volume(csi={"volumeAttributes": {name: "admin"}}))
    for name in ("pod.namespace", "pvc/namespace", "serviceAccount.tokens", "node-publish-secret-namespace"):
        attributes = {f"csi.storage.k8s.io/{name}": "kube-system"}
        yield f"attribute of Kubernetes' own: {name}", (new_claim(), new_volume(csi={"volumeAttributes": attributes}))


def of_forged_metadata() -> Iterator[tuple[str, Pair]]:
    ours = [value for value in vars(keys).values() if isinstance(value, str) and value.startswith(keys.PREFIX)]
    others = (
        *("pv.kubernetes.io/provisioned-by", "pv.kubernetes.io/bound-by-controller", "example.com/inject"),
        *("volume.kubernetes.io/selected-node", "volume.beta.kubernetes.io/mount-options", "pv.beta.kubernetes.io/gid"),
    )
    for key in (
        keys.VIRTUAL_CLUSTER,
        keys.CLUSTER_BINDING_UID,
        keys.MANAGED_BY,
        keys.VIRTUAL_UID,
        keys.VIRTUAL_NAME,
        *others,
    ):
        forged = {"labels": {key: "forged"}, "annotations": {key: "forged"}}
        yield f"volume's {key}", (new_claim(), new_volume(forged))
        yield f"claim's {key}", (new_claim(forged), new_volume())
    every = dict.fromkeys(ours, "forged")
    yield "all of our keys", (new_claim({"labels": every, "annotations": every}), new_volume({"labels": every}))
    for field, value in {
        "finalizers": ["example.com/never"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u"}],
    }.items():
        yield f"volume's {field}", (new_claim(), new_volume({field: value}))
        yield f"claim's {field}", (new_claim({field: value}), new_volume())


def of_forged_specs() -> Iterator[tuple[str, Pair]]:
    for field, value in {
        "claimRef": {"namespace": "kube-system", "name": "etcd", "uid": "c1"},
        "persistentVolumeReclaimPolicy": "Delete",
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchFields": []}]}},
        "volumeAttributesClassName": "owner",
        "futureField": {"hostPath": "/"},
    }.items():
        yield f"volume's spec.{field}", (new_claim(), new_volume(**{field: value}))
    for field, value in {
        "dataSource": {"kind": "PersistentVolumeClaim", "name": "owner"},
        "dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "owner", "namespace": "kube-system"},
        "selector": {"matchLabels": {"owner": "true"}},
        "volumeAttributesClassName": "owner",
        "storageClassName": "owner",
        "volumeName": "owner-volume",
        "resources": {"requests": {"storage": "1Ei"}},
        "futureField": {"hostPath": "/"},
    }.items():
        yield f"claim's spec.{field}", (new_claim(**{field: value}), new_volume())
    yield "a volume by a path", (new_claim(), new_volume({"name": "../../namespaces/kube-system"}))
    yield "a claim by a path", (new_claim({"name": "../../pods/etcd"}), new_volume())
    yield "a long name", (new_claim({"name": "x" * 253}), new_volume({"name": "y" * 253}))


FAMILIES = (of_other_sources, of_other_drivers, of_others_secrets, of_forged_metadata, of_forged_specs)
TECHNIQUES = {name: pair for family in FAMILIES for name, pair in family()}

VOLUME_FIELDS = {
    *("accessModes", "capacity", "claimRef", "csi", "mountOptions", "persistentVolumeReclaimPolicy"),
    *("storageClassName", "volumeMode"),
}
CLAIM_FIELDS = {"accessModes", "resources", "storageClassName", "volumeMode", "volumeName"}
CSI_FIELDS = {"driver", "volumeHandle", "readOnly", "fsType", "volumeAttributes", *SECRETS}


def physical_name_for(namespace: str, name: str) -> str:
    return physical_name(BINDING.virtual_cluster, BINDING.uid, namespace, name)


def escapes(claim: Object, volume: Object, pair: Pair) -> Iterator[str]:
    """Yield what the twins of a claim and a volume must not contain."""
    names = physical_name_for("team-a", pair[0]["metadata"]["name"]), physical_name_for("", pair[1]["metadata"]["name"])
    for created, name, source in zip((claim, volume), names, pair, strict=True):
        yield from escapes_of_identity(created["metadata"], name, source)
    if claim["metadata"].get("namespace") != "leased" or "namespace" in volume["metadata"]:
        yield "namespaces"
    spec = volume["spec"]
    if spec.keys() - VOLUME_FIELDS or claim["spec"].keys() - CLAIM_FIELDS:
        yield f"fields {spec.keys()} {claim['spec'].keys()}"
    if spec["persistentVolumeReclaimPolicy"] != "Retain" or claim["spec"]["volumeName"] != names[1]:
        yield "whose data it is"
    if (spec["claimRef"]["namespace"], spec["claimRef"]["name"]) != ("leased", names[0]) or "uid" in spec["claimRef"]:
        yield f"reserved for {spec['claimRef']}"
    if claim["spec"]["resources"] != {"requests": {"storage": "1Gi"}}:
        yield f"asks for {claim['spec']['resources']}"
    csi = spec["csi"]
    if csi["driver"] != "disk.example.com" or csi.keys() - CSI_FIELDS or spec["storageClassName"] != "fast":
        yield f"of {csi}"
    for field in SECRETS:
        if field in csi:
            secret = pair[1]["spec"]["csi"][field]
            if csi[field] != {"namespace": "leased", "name": physical_name_for("team-a", secret["name"])}:
                yield f"{field} names {csi[field]}"
    if any("secret" in name.lower() or "k8s.io" in name for name in csi.get("volumeAttributes") or ()):
        yield f"attributes {csi['volumeAttributes']}"


def escapes_of_identity(metadata: Object, name: str, source: Object) -> Iterator[str]:
    if metadata.keys() - {"namespace"} != {"name", "labels", "annotations"} or metadata["name"] != name:
        yield f"metadata {metadata}"
    expected = {**BINDING.owner_labels(), keys.CLUSTER_BINDING: "east", keys.VIRTUAL_NAMESPACE: "team-a"}
    if metadata["labels"] != expected:
        yield f"labels {metadata['labels']}"
    if metadata["annotations"].get(keys.VIRTUAL_UID) != source["metadata"]["uid"]:
        yield "it is of another"
    if (
        metadata["annotations"].keys() - {keys.VIRTUAL_NAME, keys.VIRTUAL_UID}
        or "forged" in metadata["annotations"].values()
    ):
        yield f"annotations {metadata['annotations']}"


def outcome(pair: Pair) -> list[str] | None:
    """Return what escaped; None if the volume was rejected."""
    if list(volume_errors(*pair, ALLOWED)):
        return None
    return list(escapes(twin_claim(*pair, BINDING), twin_volume(*pair, BINDING), pair))


@pytest.mark.parametrize("name", TECHNIQUES)
def test_nothing_escapes(name: str) -> None:
    assert outcome(TECHNIQUES[name]) in (None, [])


def test_there_are_many_hostile_volumes(record_property: Callable[[str, object], None]) -> None:
    rejected = sum(outcome(pair) is None for pair in TECHNIQUES.values())
    figure = f"hostile volumes: {len(TECHNIQUES)} techniques, {rejected} refused, of the others nothing is left"
    record_property("figure", figure)
    assert len(TECHNIQUES) == sum(len(list(family())) for family in FAMILIES) >= 100
    assert 50 <= rejected <= len(TECHNIQUES) - 30


def test_ordinary_volume_is_translated() -> None:
    ordinary = new_volume(
        csi={"nodeStageSecretRef": {"namespace": "team-a", "name": "db"}, "volumeAttributes": {"size": "1"}}
    )
    assert outcome((new_claim(), ordinary)) == []


@pytest.mark.parametrize("field", ["driver", "nodeStageSecretRef", "hostPath"])
def test_escapes_are_detected(field: str) -> None:
    pair = new_claim(), new_volume()
    claim, volume = twin_claim(*pair, BINDING), twin_volume(*pair, BINDING)
    planted = {
        "driver": {"driver": "other.example.com", "volumeHandle": "h"},
        "nodeStageSecretRef": {
            **volume["spec"]["csi"],
            "nodeStageSecretRef": {"namespace": "kube-system", "name": "n"},
        },
        "hostPath": {**volume["spec"]["csi"], "hostPath": "/"},
    }[field]
    pair[1]["spec"]["csi"]["nodeStageSecretRef"] = {"namespace": "team-a", "name": "n"}
    assert list(escapes(claim, {**volume, "spec": {**volume["spec"], "csi": planted}}, pair)) != []
