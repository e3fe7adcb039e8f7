"""Tests of the matching of claims and volumes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.controlplane.volume_matching import (
    best_volume,
    claim_names,
    is_bound,
    is_reserved_for,
    mismatch,
    requested_storage,
    storage_class_of,
)
from tapestry.kube.objects import Object, name_of

from .objects import new_pod
from .volumes import DONE, new_claim, new_volume, reserved_for

SIZES = st.integers(1, 9)


@given(st.lists(st.tuples(SIZES, st.sampled_from(["Available", "Bound", "Released"]))), SIZES)
def test_best_volume_is_the_smallest_free_one(volumes: list[tuple[int, str]], requested: int) -> None:
    candidates = [new_volume(f"v{at}", f"{size}Gi", phase=phase) for at, (size, phase) in enumerate(volumes)]
    best = best_volume(new_claim(size=f"{requested}Gi"), (), candidates)
    sizes = [size for size, phase in volumes if phase == "Available" and size >= requested]
    assert (best is None) == (not sizes)
    if best is not None:
        assert best["spec"]["capacity"]["storage"] == f"{min(sizes)}Gi"


def test_reserved_volume_is_best_if_reachable() -> None:
    volumes = [new_volume("free", phase="Available"), new_volume("mine", "9Gi", claimRef=reserved_for())]
    best = best_volume(new_claim(uid="u"), volumes, volumes)
    assert best is not None
    assert name_of(best) == "mine"
    assert best_volume(new_claim(uid="u"), volumes, volumes, lambda volume: name_of(volume) != "mine") is None


@pytest.mark.parametrize(
    ("volume", "reason"),
    [
        (new_volume(), ""),
        (new_volume(size="1Mi"), "too small"),
        (new_volume(storageClassName="other"), "storageClassName"),
        (new_volume(volumeAttributesClassName="gold"), "volumeAttributesClassName"),
        (new_volume(volumeMode="Block"), "volumeMode"),
        (new_volume(accessModes=["ReadOnlyMany"]), "accessMode"),
        (new_volume(metadata={"deletionTimestamp": "2024-01-01T00:00:00Z"}), "marked for deletion"),
    ],
)
def test_mismatch_has_a_reason(volume: Object, reason: str) -> None:
    assert reason in mismatch(volume, new_claim())
    assert bool(reason) == bool(mismatch(volume, new_claim()))


def test_reservation_names_one_claim() -> None:
    claim = new_claim(uid="u")
    assert is_reserved_for(new_volume(claimRef=reserved_for()), claim)
    assert is_reserved_for(new_volume(claimRef=reserved_for("c", "u")), claim)
    assert not is_reserved_for(new_volume(claimRef=reserved_for("c", "before")), claim)
    assert not is_reserved_for(new_volume(), claim)


def test_old_annotation_names_the_class() -> None:
    old: Any = {"volume.beta.kubernetes.io/storage-class": "old"}
    assert storage_class_of(new_claim(annotations=old, storageClassName="new")) == "old"
    assert storage_class_of(new_claim(storageClassName=None)) == ""


def test_claim_is_bound_once_complete() -> None:
    assert is_bound(new_claim(annotations=DONE, volumeName="v"))
    assert not is_bound(new_claim(volumeName="v"))
    assert requested_storage(new_claim(size="2Gi")) == 2 * 2**30 * 10**9


def test_pods_name_claims_and_ephemeral_volumes() -> None:
    volumes = [
        {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "b", "ephemeral": {}},
        {"name": "c", "emptyDir": {}},
    ]
    assert list(claim_names(new_pod("p", volumes=volumes))) == [("data", False), ("p-b", True)]
