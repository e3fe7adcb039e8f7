"""Decisions about planes: which process holds one, and what the holder does next."""

import pytest

from tapestry.apis.planes import PlaneSpec
from tapestry.kube.objects import Object
from tapestry.planes.plane_actions import Ownership, PlaneAction, next_action, ownership
from tapestry.planes.plane_set import PlaneState


def new_plane(*, deleting: bool = False, **status: object) -> Object:
    metadata: Object = {"name": "p", **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {})}
    return {"metadata": metadata, "status": status}


@pytest.mark.parametrize(
    ("holder", "named", "is_candidate", "expected"),
    [
        ("", "", True, Ownership.CLAIMABLE),
        ("", "", False, Ownership.OTHER),
        ("", "here", False, Ownership.CLAIMABLE),
        ("", "there", True, Ownership.OTHER),
        ("here", "", False, Ownership.HELD),
        ("here", "here", False, Ownership.HELD),
        ("here", "there", True, Ownership.TO_RELEASE),
        ("there", "", True, Ownership.OTHER),
        ("there", "here", True, Ownership.OTHER),
    ],
)
def test_process_takes_only_free_planes_meant_for_it(
    holder: str, named: str, is_candidate: bool, expected: Ownership
) -> None:
    plane = new_plane(holder=holder) if holder else new_plane()
    assert ownership(plane, named, "here", is_candidate=is_candidate) is expected


def test_holder_deletes_a_plane_that_it_should_release() -> None:
    plane = new_plane(deleting=True, holder="here")
    assert ownership(plane, "there", "here", is_candidate=False) is Ownership.HELD


@pytest.mark.parametrize(("named", "expected"), [("", Ownership.TO_RELEASE), ("here", Ownership.HELD)])
def test_process_for_named_planes_releases_others(named: str, expected: Ownership) -> None:
    plane = new_plane(holder="here")
    assert ownership(plane, named, "here", is_candidate=False, is_named_only=True) is expected


@pytest.mark.parametrize(("is_candidate", "expected"), [(True, Ownership.CLAIMABLE), (False, Ownership.OTHER)])
def test_candidate_deletes_plane_released_for_another_process(is_candidate: bool, expected: Ownership) -> None:
    assert ownership(new_plane(deleting=True), "apiserver", "here", is_candidate=is_candidate) is expected


@pytest.mark.parametrize("state", [None, *PlaneState])
def test_suspended_plane_is_closed_once(state: PlaneState | None) -> None:
    expected = PlaneAction.NOTHING if state is PlaneState.SUSPENDED else PlaneAction.SUSPEND
    assert next_action(new_plane(), PlaneSpec(state="Suspended"), state) is expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (None, PlaneAction.OPEN),
        (PlaneState.SUSPENDED, PlaneAction.OPEN),
        (PlaneState.FAILED, PlaneAction.OPEN),
        (PlaneState.OPEN, PlaneAction.NOTHING),
        (PlaneState.OPENING, PlaneAction.NOTHING),
        (PlaneState.ASLEEP, PlaneAction.NOTHING),
    ],
)
def test_plane_opens_unless_it_is_open_or_asleep(state: PlaneState | None, expected: PlaneAction) -> None:
    assert next_action(new_plane(), PlaneSpec(), state) is expected


def test_plane_that_slept_stays_asleep_after_restart() -> None:
    asleep = new_plane(phase="Asleep")
    assert next_action(asleep, PlaneSpec(idle_seconds=60), None) is PlaneAction.ADD
    assert next_action(asleep, PlaneSpec(), None) is PlaneAction.OPEN


def test_changed_configuration_reopens_only_a_running_plane() -> None:
    assert next_action(new_plane(), PlaneSpec(), PlaneState.OPEN, is_config_changed=True) is PlaneAction.REOPEN
    assert next_action(new_plane(), PlaneSpec(), PlaneState.ASLEEP, is_config_changed=True) is PlaneAction.NOTHING
