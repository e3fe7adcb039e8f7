"""Where a pod can be with what it stores."""

from collections.abc import Sequence
from typing import Any

import pytest

from tapestry.controlplane.scheduler.volumes import (
    EXCLUSIVE_CLAIM_IN_USE,
    MISSING_VOLUME,
    NO_AVAILABLE_VOLUME,
    NO_VOLUMES,
    SELECTED_NODE,
    VOLUME_NODE_CONFLICT,
    VOLUME_ZONE_CONFLICT,
    PodVolumes,
    StorageLister,
    UnresolvableClaim,
    storage_class_of,
    volume_plan_of,
)
from tapestry.kube.objects import Object, key_of, name_of

from .places import HOST, ZONE, a_node, a_pod, rooms_of

ROOMS = rooms_of([a_node("n1", labels={ZONE: "a"}), a_node("n2", labels={ZONE: "b"}), a_node("n3")])


def a_claim(
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


def a_volume(
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


def a_class(name: str, mode: str = "WaitForFirstConsumer", provisioner: str = "maker", **more: Any) -> Object:
    return {"metadata": {"name": name}, "volumeBindingMode": mode, "provisioner": provisioner, **more}


LATE, NOW = a_class("late"), a_class("now", "Immediate")
STATIC = a_class("late", provisioner="kubernetes.io/no-provisioner")


def storage(
    claims: list[Object], volumes: Sequence[Object] = (), classes: Sequence[Object] = (LATE, NOW), users: Any = ()
) -> StorageLister:
    return StorageLister(
        {key_of(each): each for each in claims}.get,
        {name_of(each): each for each in volumes}.get,
        lambda name: [each for each in volumes if storage_class_of(each) == name],
        {name_of(each): each for each in classes}.get,
        lambda _: users,
    )


def using(*names: str) -> Object:
    return a_pod("p", volumes=[{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in names])


def reasons(stored: StorageLister, pod: Object | None = None) -> dict[str, tuple[str, ...]]:
    stowage = volume_plan_of(pod or using("c"), stored)
    return {room.name: stowage.rejection_reasons(room) for room in ROOMS}


def test_a_pod_without_claims_goes_anywhere() -> None:
    assert volume_plan_of(a_pod("p", volumes=[{"name": "v", "emptyDir": {}}]), storage([])) is NO_VOLUMES


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ([], 'persistentvolumeclaim "c" not found'),
        ([a_claim(storage_class="now")], "pod has unbound immediate PersistentVolumeClaims"),
        ([a_claim(storage_class="")], "pod has unbound immediate PersistentVolumeClaims"),
        ([a_claim(volumeName="v")], "pod has unbound immediate PersistentVolumeClaims"),
        (
            [{**a_claim(volume="v"), "status": {"phase": "Lost"}}],
            'persistentvolumeclaim "c" bound to non-existent persistentvolume "v"',
        ),
        (
            [a_claim(metadata={"deletionTimestamp": "2024-01-01T00:00:00Z"})],
            'persistentvolumeclaim "c" is being deleted',
        ),
    ],
)
def test_claims_that_are_not_ready_bar_every_node(claims: list[Object], message: str) -> None:
    with pytest.raises(UnresolvableClaim, match=message):
        volume_plan_of(using("c"), storage(claims))


def test_a_claim_of_its_own_has_to_be_made_for_it() -> None:
    pod = a_pod("p", volumes=[{"name": "v", "ephemeral": {}}])
    with pytest.raises(UnresolvableClaim, match="waiting for ephemeral volume controller"):
        volume_plan_of(pod, storage([]))
    with pytest.raises(UnresolvableClaim, match="was not created for pod"):
        volume_plan_of(pod, storage([a_claim("p-v")]))
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}
    assert volume_plan_of(pod, storage([a_claim("p-v", metadata={"ownerReferences": [owner]})])).unbound_claims


def test_a_bound_claim_ties_the_pod_to_its_volume() -> None:
    assert reasons(storage([a_claim(volume="v")], [a_volume("v", "n2")])) == {
        "n1": (VOLUME_NODE_CONFLICT,),
        "n2": (),
        "n3": (VOLUME_NODE_CONFLICT,),
    }
    assert reasons(storage([a_claim(volume="v")])) == dict.fromkeys(("n1", "n2", "n3"), (MISSING_VOLUME,))


def test_the_zone_of_a_volume_counts_where_nodes_have_one() -> None:
    stored = storage([a_claim(volume="v")], [a_volume("v", labels={ZONE: "b__c"})])
    assert reasons(stored) == {"n1": (VOLUME_ZONE_CONFLICT,), "n2": (), "n3": ()}


def test_a_claim_for_one_pod_is_for_one_pod() -> None:
    claim = a_claim(volume="v", mode="ReadWriteOncePod")
    assert reasons(storage([claim], [a_volume("v")], users=["x/other"]))["n1"] == (EXCLUSIVE_CLAIM_IN_USE,)
    assert reasons(storage([claim], [a_volume("v")], users=["x/p"]))["n1"] == ()


def test_volumes_are_made_where_the_class_allows() -> None:
    near = a_class("late", allowedTopologies=[{"matchLabelExpressions": [{"key": ZONE, "values": ["a"]}]}])
    assert reasons(storage([a_claim()], classes=[near])) == {
        "n1": (),
        "n2": (NO_AVAILABLE_VOLUME,),
        "n3": (NO_AVAILABLE_VOLUME,),
    }
    assert reasons(storage([a_claim()], classes=[STATIC])) == dict.fromkeys(("n1", "n2", "n3"), (NO_AVAILABLE_VOLUME,))


def test_a_node_that_was_selected_stays_selected() -> None:
    claim = a_claim(metadata={"annotations": {SELECTED_NODE: "n2"}})
    assert reasons(storage([claim])) == {"n1": (NO_AVAILABLE_VOLUME,), "n2": (), "n3": (NO_AVAILABLE_VOLUME,)}


def test_the_smallest_volume_that_does_is_taken_each_for_one_claim() -> None:
    volumes = [
        a_volume("large", "n1", size="9Gi"),
        a_volume("small", "n1", size="2Gi"),
        a_volume("tiny", "n1", size="1Mi"),
    ]
    claims = [a_claim("c"), a_claim("d", size="2Gi")]
    plan = volume_plan_of(using("c", "d"), storage(claims, volumes, [STATIC])).pod_volumes(ROOMS.nodes["n1"])
    assert plan == PodVolumes(((volumes[1], claims[0]), (volumes[0], claims[1])))
    assert volume_plan_of(using("c", "d"), storage(claims, volumes, [STATIC])).pod_volumes(ROOMS.nodes["n2"]) is None


@pytest.mark.parametrize(
    "volume",
    [
        a_volume("v", accessModes=["ReadOnlyMany"]),
        a_volume("v", volumeMode="Block"),
        a_volume("v", size="1Mi"),
        a_volume("v", storage_class="other"),
        a_volume("v", claimRef={"name": "another", "namespace": "x"}),
        {**a_volume("v"), "status": {"phase": "Released"}},
    ],
)
def test_a_volume_that_does_not_suit_is_no_volume(volume: Object) -> None:
    assert reasons(storage([a_claim()], [volume], [STATIC]))["n1"] == (NO_AVAILABLE_VOLUME,)


def test_a_volume_that_is_meant_for_a_claim_is_its_own() -> None:
    volume = a_volume("v", size="1Mi", claimRef={"name": "c", "namespace": "x"})
    assert reasons(storage([a_claim()], [volume], [STATIC]))["n1"] == ()
