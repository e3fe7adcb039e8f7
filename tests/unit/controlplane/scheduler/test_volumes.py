"""Tests of volume constraints in scheduling."""

from collections.abc import Sequence
from typing import Any

import pytest

from tapestry.controlplane.scheduler.volumes import (
    EXCLUSIVE_CLAIM_IN_USE,
    MISSING_VOLUME,
    NO_AVAILABLE_VOLUME,
    NO_VOLUMES,
    TOO_MANY_VOLUMES,
    VOLUME_NODE_CONFLICT,
    VOLUME_ZONE_CONFLICT,
    PodVolumes,
    StorageLister,
    UnresolvableClaim,
    volume_plan_of,
)
from tapestry.controlplane.volume_matching import SELECTED_NODE, storage_class_of
from tapestry.kube.objects import Object, key_of, name_of

from .scheduling_reference import HOST, ZONE, cache_of, new_node, new_pod

CACHE = cache_of([new_node("n1", labels={ZONE: "a"}), new_node("n2", labels={ZONE: "b"}), new_node("n3")])


def new_claim(
    name: str = "c", *, volume: str = "", storage_class: str = "late", size: str = "1Gi", **more: Any
) -> Object:
    metadata = {"name": name, "namespace": "x", "uid": f"uid-{name}", **more.pop("metadata", {})}
    spec = {
        "accessModes": [more.pop("mode", "ReadWriteOnce")],
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": size}},
        **more,
    }
    if not volume:
        return {"metadata": metadata, "spec": spec}
    return {"metadata": metadata, "spec": {**spec, "volumeName": volume}, "status": {"phase": "Bound"}}


def new_volume(
    name: str, *nodes: str, size: str = "1Gi", storage_class: str = "late", labels: Any = None, **more: Any
) -> Object:
    spec: Object = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": size},
        "storageClassName": storage_class,
        **more,
    }
    if nodes:
        expressions = [{"key": HOST, "operator": "In", "values": list(nodes)}]
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec, "status": {"phase": "Available"}}


def new_class(name: str, mode: str = "WaitForFirstConsumer", provisioner: str = "maker", **more: Any) -> Object:
    return {"metadata": {"name": name}, "volumeBindingMode": mode, "provisioner": provisioner, **more}


LATE, NOW = new_class("late"), new_class("now", "Immediate")
STATIC = new_class("late", provisioner="kubernetes.io/no-provisioner")


def storage(
    claims: list[Object],
    volumes: Sequence[Object] = (),
    classes: Sequence[Object] = (LATE, NOW),
    users: Any = (),
    csi_nodes: Sequence[Object] = (),
    attachments: Sequence[Object] = (),
) -> StorageLister:
    return StorageLister(
        {key_of(each): each for each in claims}.get,
        {name_of(each): each for each in volumes}.get,
        lambda name: [each for each in volumes if storage_class_of(each) == name],
        {name_of(each): each for each in classes}.get,
        {name_of(each): each for each in csi_nodes}.get,
        lambda node: [each for each in attachments if each["spec"]["nodeName"] == node],
        lambda _: users,
    )


def using(*names: str) -> Object:
    return new_pod("p", volumes=[{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in names])


def reasons(lister: StorageLister, pod: Object | None = None) -> dict[str, tuple[str, ...]]:
    volume_plan = volume_plan_of(pod or using("c"), lister)
    return {node_info.name: volume_plan.rejection_reasons(node_info) for node_info in CACHE}


def test_pod_without_claims_has_no_constraints() -> None:
    assert volume_plan_of(new_pod("p", volumes=[{"name": "v", "emptyDir": {}}]), storage([])) is NO_VOLUMES


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ([], 'persistentvolumeclaim "c" not found'),
        ([new_claim(storage_class="now")], "pod has unbound immediate PersistentVolumeClaims"),
        ([new_claim(storage_class="")], "pod has unbound immediate PersistentVolumeClaims"),
        ([new_claim(volumeName="v")], "pod has unbound immediate PersistentVolumeClaims"),
        (
            [{**new_claim(volume="v"), "status": {"phase": "Lost"}}],
            'persistentvolumeclaim "c" bound to non-existent persistentvolume "v"',
        ),
        (
            [new_claim(metadata={"deletionTimestamp": "2024-01-01T00:00:00Z"})],
            'persistentvolumeclaim "c" is being deleted',
        ),
    ],
)
def test_unresolvable_claim_rejects_all_nodes(claims: list[Object], message: str) -> None:
    with pytest.raises(UnresolvableClaim, match=message):
        volume_plan_of(using("c"), storage(claims))


def test_ephemeral_claim_must_be_owned_by_pod() -> None:
    pod = new_pod("p", volumes=[{"name": "v", "ephemeral": {}}])
    with pytest.raises(UnresolvableClaim, match="waiting for ephemeral volume controller"):
        volume_plan_of(pod, storage([]))
    with pytest.raises(UnresolvableClaim, match="was not created for pod"):
        volume_plan_of(pod, storage([new_claim("p-v")]))
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}
    assert volume_plan_of(pod, storage([new_claim("p-v", metadata={"ownerReferences": [owner]})])).unbound_claims


def test_bound_claim_restricts_pod_to_its_volume() -> None:
    assert reasons(storage([new_claim(volume="v")], [new_volume("v", "n2")])) == {
        "n1": (VOLUME_NODE_CONFLICT,),
        "n2": (),
        "n3": (VOLUME_NODE_CONFLICT,),
    }
    assert reasons(storage([new_claim(volume="v")])) == dict.fromkeys(("n1", "n2", "n3"), (MISSING_VOLUME,))


def test_volume_zone_applies_to_zoned_nodes() -> None:
    lister = storage([new_claim(volume="v")], [new_volume("v", labels={ZONE: "b__c"})])
    assert reasons(lister) == {"n1": (VOLUME_ZONE_CONFLICT,), "n2": (), "n3": ()}


def test_read_write_once_pod_claim_is_exclusive() -> None:
    claim = new_claim(volume="v", mode="ReadWriteOncePod")
    assert reasons(storage([claim], [new_volume("v")], users=["x/other"]))["n1"] == (EXCLUSIVE_CLAIM_IN_USE,)
    assert reasons(storage([claim], [new_volume("v")], users=["x/p"]))["n1"] == ()


def test_provisioning_respects_allowed_topologies() -> None:
    near = new_class("late", allowedTopologies=[{"matchLabelExpressions": [{"key": ZONE, "values": ["a"]}]}])
    assert reasons(storage([new_claim()], classes=[near])) == {
        "n1": (),
        "n2": (NO_AVAILABLE_VOLUME,),
        "n3": (NO_AVAILABLE_VOLUME,),
    }
    assert reasons(storage([new_claim()], classes=[STATIC])) == dict.fromkeys(
        ("n1", "n2", "n3"), (NO_AVAILABLE_VOLUME,)
    )


def test_selected_node_remains() -> None:
    claim = new_claim(metadata={"annotations": {SELECTED_NODE: "n2"}})
    assert reasons(storage([claim])) == {"n1": (NO_AVAILABLE_VOLUME,), "n2": (), "n3": (NO_AVAILABLE_VOLUME,)}


def test_smallest_matching_volume_is_bound_once() -> None:
    volumes = [
        new_volume("large", "n1", size="9Gi"),
        new_volume("small", "n1", size="2Gi"),
        new_volume("tiny", "n1", size="1Mi"),
    ]
    claims = [new_claim("c"), new_claim("d", size="2Gi")]
    plan = volume_plan_of(using("c", "d"), storage(claims, volumes, [STATIC])).pod_volumes(CACHE.nodes["n1"])
    assert plan == PodVolumes(((volumes[1], claims[0]), (volumes[0], claims[1])))
    assert volume_plan_of(using("c", "d"), storage(claims, volumes, [STATIC])).pod_volumes(CACHE.nodes["n2"]) is None


@pytest.mark.parametrize(
    "volume",
    [
        new_volume("v", accessModes=["ReadOnlyMany"]),
        new_volume("v", volumeMode="Block"),
        new_volume("v", size="1Mi"),
        new_volume("v", storage_class="other"),
        new_volume("v", claimRef={"name": "another", "namespace": "x"}),
        {**new_volume("v"), "status": {"phase": "Released"}},
    ],
)
def test_unsuitable_volume_is_not_bound(volume: Object) -> None:
    assert reasons(storage([new_claim()], [volume], [STATIC]))["n1"] == (NO_AVAILABLE_VOLUME,)


def test_reserved_volume_is_preferred() -> None:
    volume = new_volume("v", size="9Gi", claimRef={"name": "c", "namespace": "x"})
    plan = volume_plan_of(using("c"), storage([new_claim()], [new_volume("small"), volume], [STATIC]))
    assert plan.pod_volumes(CACHE.nodes["n1"]) == PodVolumes(((volume, new_claim()),))


def test_unreachable_reserved_volume_excludes_node() -> None:
    volume = new_volume("v", "n2", claimRef={"name": "c", "namespace": "x"})
    lister = storage([new_claim()], [new_volume("free"), volume], [STATIC])
    assert reasons(lister) == {"n1": (NO_AVAILABLE_VOLUME,), "n2": (), "n3": (NO_AVAILABLE_VOLUME,)}


# -- limits of CSI drivers


def csi(name: str, handle: str) -> Object:
    return new_volume(name, csi={"driver": "d", "volumeHandle": handle})


def limit(node: str, count: int | None) -> Object:
    allocatable = {} if count is None else {"allocatable": {"count": count}}
    return {"metadata": {"name": node}, "spec": {"drivers": [{"name": "d", "nodeID": node, **allocatable}]}}


def reasons_beside(pods: list[Object], lister: StorageLister, pod: Object) -> tuple[str, ...]:
    cache = cache_of([new_node("n1")], [{**each, "spec": {**each["spec"], "nodeName": "n1"}} for each in pods])
    return volume_plan_of(pod, lister).rejection_reasons(cache.nodes["n1"])


@pytest.mark.parametrize(("count", "is_rejected"), [(1, True), (2, False), (None, False)])
def test_driver_limits_volumes_of_node(count: int | None, is_rejected: bool) -> None:
    claims, volumes = [new_claim("c", volume="v"), new_claim("o", volume="w")], [csi("v", "h1"), csi("w", "h2")]
    lister = storage(claims, volumes, csi_nodes=[limit("n1", count)])
    other = {**using("o"), "metadata": {**using("o")["metadata"], "name": "other"}}
    assert reasons_beside([other], lister, using("c")) == ((TOO_MANY_VOLUMES,) if is_rejected else ())
    assert reasons_beside([], lister, using("c")) == ()


def test_volume_counts_once_for_all_pods() -> None:
    lister = storage([new_claim("c", volume="v")], [csi("v", "h")], csi_nodes=[limit("n1", 1)])
    other = {**using("c"), "metadata": {**using("c")["metadata"], "name": "other"}}
    assert reasons_beside([other], lister, using("c")) == ()


def attachment(node: str, source: Object, attacher: str = "d") -> Object:
    return {"metadata": {"name": "a"}, "spec": {"attacher": attacher, "nodeName": node, "source": source}}


@pytest.mark.parametrize(
    ("attached", "is_rejected"),
    [
        (attachment("n1", {"persistentVolumeName": "w"}), True),
        (attachment("n2", {"persistentVolumeName": "w"}), False),
        (attachment("n1", {"persistentVolumeName": "w"}, attacher="other"), False),
        (attachment("n1", {"persistentVolumeName": "missing"}), False),
        (attachment("n1", {"inlineVolumeSpec": {}}), False),
        (attachment("n1", {"persistentVolumeName": "v"}), True),
    ],
)
def test_attachments_without_pods_count(attached: Object, is_rejected: bool) -> None:
    volumes = [csi("v", "h1"), csi("w", "h2")]
    lister = storage([new_claim("c", volume="v")], volumes, csi_nodes=[limit("n1", 1)], attachments=[attached])
    assert reasons_beside([], lister, using("c")) == ((TOO_MANY_VOLUMES,) if is_rejected else ())


def test_volume_of_pod_and_attachment_counts_once() -> None:
    claims, volumes = [new_claim("c", volume="v"), new_claim("o", volume="w")], [csi("v", "h1"), csi("w", "h2")]
    attached = [attachment("n1", {"persistentVolumeName": "w"})]
    lister = storage(claims, volumes, csi_nodes=[limit("n1", 2)], attachments=attached)
    other = {**using("o"), "metadata": {**using("o")["metadata"], "name": "other"}}
    assert reasons_beside([other], lister, using("c")) == ()


def test_unprovisioned_volume_counts() -> None:
    late = new_class("late", provisioner="d")
    lister = storage([new_claim("c"), new_claim("o")], classes=[late], csi_nodes=[limit("n1", 1)])
    other = {**using("o"), "metadata": {**using("o")["metadata"], "name": "other"}}
    assert reasons_beside([other], lister, using("c")) == (TOO_MANY_VOLUMES,)
