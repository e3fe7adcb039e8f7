"""Tests of the decisions of the volume binder."""

from collections.abc import Sequence

import pytest

from tapestry.controlplane.volume_binding import (
    ClaimStep,
    Volumes,
    VolumeStep,
    claim_patch,
    claim_status_patch,
    claim_step,
    volume_patch,
    volume_step,
)
from tapestry.controlplane.volume_index import FreeVolumes
from tapestry.controlplane.volume_matching import BOUND_BY_CONTROLLER, PROVISIONED_BY, SELECTED_NODE, is_volume_free
from tapestry.kube.objects import Object, name_of

from .volumes import DONE, new_claim, new_class, new_volume, reserved_for

BY_CONTROLLER = {"annotations": {BOUND_BY_CONTROLLER: "yes"}}
PROVISIONED = {"annotations": {PROVISIONED_BY: "maker"}}


def step(
    claim: Object, volumes: Sequence[Object] = (), classes: Sequence[Object] = (), default: str | None = None
) -> ClaimStep | None:
    free = FreeVolumes()
    for volume in filter(is_volume_free, volumes):
        free.put(volume)
    return claim_step(
        claim,
        Volumes(
            {name_of(each): each for each in volumes}.get,
            lambda _: volumes,
            free.matches,
            {name_of(each): each for each in classes}.get,
            lambda: default,
        ),
    )


def selected(claim: Object, *volumes: Object) -> str | None:
    found = step(claim, volumes)
    assert found is not None
    return name_of(found.volume) if found.volume is not None else None


def reason(found: ClaimStep | VolumeStep | None) -> str:
    assert found is not None
    assert found.event is not None
    return found.event.reason


def free(name: str, size: str = "1Gi", **more: object) -> Object:
    return new_volume(name, size, phase="Available", **more)


def test_smallest_sufficient_volume_is_selected() -> None:
    assert selected(new_claim(size="2Gi"), free("a", "1Gi"), free("b", "9Gi"), free("c", "3Gi")) == "c"
    assert selected(new_claim(size="10Gi"), free("a", "1Gi"), free("b", "9Gi")) is None


@pytest.mark.parametrize(
    "volume",
    [
        free("v", accessModes=["ReadOnlyMany"]),
        free("v", volumeMode="Block"),
        free("v", volumeAttributesClassName="gold"),
        free("v", claimRef=reserved_for("another")),
        free("v", claimRef=reserved_for("c", "another uid")),
        free("v", metadata={"deletionTimestamp": "2024-01-01T00:00:00Z"}),
        new_volume("v", phase="Released"),
    ],
)
def test_unsuitable_volume_is_not_selected(volume: Object) -> None:
    assert selected(new_claim(uid="u"), volume) is None


def test_selector_restricts_volumes() -> None:
    claim = new_claim(selector={"matchLabels": {"tier": "gold"}})
    assert selected(claim, free("a"), free("b", "9Gi", metadata={"labels": {"tier": "gold"}})) == "b"


def test_reserved_volume_comes_first() -> None:
    assert selected(new_claim(uid="u"), free("a"), free("b", "9Gi", claimRef=reserved_for())) == "b"
    assert selected(new_claim(uid="u", size="2Gi"), free("a", "2Gi"), free("b", claimRef=reserved_for())) == "a"


def test_first_consumer_is_awaited() -> None:
    claim = new_claim(storageClassName="late")
    assert reason(step(claim, [free("a", storageClassName="late")], [new_class()])) == "WaitForFirstConsumer"
    found = step(claim, [free("a", storageClassName="late", claimRef=reserved_for())], [new_class()])
    assert found is not None
    assert found.volume is not None


@pytest.mark.parametrize(
    ("claim", "classes", "expected"),
    [
        (new_claim(), [], "FailedBinding"),
        (new_claim(storageClassName="none"), [], "ProvisioningFailed"),
        (
            new_claim(storageClassName="static"),
            [new_class("static", "Immediate", "kubernetes.io/no-provisioner")],
            None,
        ),
    ],
)
def test_claim_without_volume_is_reported(claim: Object, classes: list[Object], expected: str | None) -> None:
    found = step(claim, classes=classes)
    assert reason(found) == (expected or "ProvisioningFailed")
    assert found is not None
    assert (found.phase, found.patch) == ("Pending", None)


def test_provisioner_is_named_once() -> None:
    claim = new_claim(storageClassName="late", annotations={SELECTED_NODE: "n"})
    found = step(claim, classes=[new_class()])
    assert reason(found) == "ExternalProvisioning"
    assert found is not None
    assert found.patch is not None
    marked = new_claim(
        storageClassName="late", annotations={SELECTED_NODE: "n", **found.patch["metadata"]["annotations"]}
    )
    again = step(marked, classes=[new_class()])
    assert again is not None
    assert again.patch is None


def test_default_class_is_set_later() -> None:
    claim = new_claim(storageClassName=None)
    assert step(claim, default="late") == ClaimStep(patch={"spec": {"storageClassName": "late"}})
    assert reason(step(new_claim(), default="late")) == "FailedBinding"


def test_named_volume_must_satisfy_claim() -> None:
    claim = new_claim(uid="u", volumeName="v")
    assert step(claim) == ClaimStep()
    assert step(claim, [new_volume()]) == ClaimStep(new_volume())
    assert step(claim, [new_volume(claimRef=reserved_for())]) == ClaimStep(new_volume(claimRef=reserved_for()))
    assert reason(step(claim, [new_volume(size="1Mi")])) == "VolumeMismatch"
    assert reason(step(claim, [new_volume(storageClassName="other")])) == "VolumeMismatch"
    assert reason(step(claim, [new_volume(claimRef=reserved_for("other"))])) == "FailedBinding"


def test_bound_claim_can_lose_its_volume() -> None:
    bound = new_claim(uid="u", annotations=DONE, volumeName="v")
    for found in (
        step(bound),
        step(new_claim(uid="u", annotations=DONE)),
        step(bound, [new_volume(claimRef=reserved_for("c", "other"))]),
    ):
        assert found is not None
        assert found.phase == "Lost"
    assert step(bound, [new_volume()]) == ClaimStep(new_volume())


def test_deleted_claim_is_not_bound() -> None:
    claim = new_claim()
    claim["metadata"]["deletionTimestamp"] = "2024-01-01T00:00:00Z"
    assert step(claim, [free("v")]) is None


# -- volumes


@pytest.mark.parametrize(
    ("volume", "claim", "phase"),
    [
        (new_volume(), None, "Available"),
        (new_volume(claimRef=reserved_for()), None, "Available"),
        (new_volume(claimRef=reserved_for("c", "u")), new_claim(uid="u", volumeName="v"), "Bound"),
        (new_volume(claimRef=reserved_for("c", "u")), None, "Released"),
        (new_volume(claimRef=reserved_for("c", "u"), persistentVolumeReclaimPolicy="Retain"), None, "Released"),
        (new_volume(claimRef=reserved_for("c", "u"), persistentVolumeReclaimPolicy="Recycle"), None, "Failed"),
        (new_volume(claimRef=reserved_for("c", "u"), persistentVolumeReclaimPolicy="Delete"), None, "Failed"),
        (
            new_volume(claimRef=reserved_for("c", "u"), persistentVolumeReclaimPolicy="Delete", metadata=PROVISIONED),
            None,
            "Released",
        ),
        (
            new_volume(claimRef=reserved_for("c", "u"), persistentVolumeReclaimPolicy="Delete", csi={"driver": "d"}),
            None,
            "Released",
        ),
    ],
)
def test_phase_follows_claim_and_policy(volume: Object, claim: Object | None, phase: str) -> None:
    found = volume_step(volume, claim)
    assert found is not None
    assert found.phase == phase


def test_volume_of_claim_bound_elsewhere_is_freed() -> None:
    claim, reference = new_claim(uid="u", volumeName="w"), reserved_for("c", "u")
    cleared = {"metadata": {"annotations": {BOUND_BY_CONTROLLER: None}}, "spec": {"claimRef": None}}
    assert volume_step(new_volume(claimRef=reference, metadata=BY_CONTROLLER), claim) == VolumeStep(
        "Available", cleared
    )
    by_user = VolumeStep("Available", {"spec": {"claimRef": {"uid": None}}})
    assert volume_step(new_volume(claimRef=reference), claim) == by_user
    provisioned = new_volume(claimRef=reference, metadata=PROVISIONED, persistentVolumeReclaimPolicy="Delete")
    assert volume_step(provisioned, claim) == VolumeStep("Released")


def test_unfinished_binding_is_left_to_claim() -> None:
    volume = new_volume(claimRef=reserved_for("c", "u"))
    assert volume_step(volume, new_claim(uid="u")) is None
    assert reason(volume_step(volume, new_claim(uid="u", volumeMode="Block"))) == "VolumeMismatch"


def test_patches_of_binding_are_idempotent() -> None:
    claim, volume = new_claim(uid="u"), new_volume()
    assert volume_patch(volume, claim) is not None
    assert volume_patch(new_volume(claimRef=reserved_for("c", "u")), claim) is None
    assert claim_patch(claim, volume) is not None
    bound = new_claim(uid="u", annotations=DONE, volumeName="v")
    assert claim_patch(bound, volume) is None
    status = claim_status_patch(bound, volume)
    assert status is not None
    assert status["status"] == {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
    grown = {**bound, "status": {**status["status"], "capacity": {"storage": "2Gi"}}}
    assert claim_status_patch(grown, volume) is None
