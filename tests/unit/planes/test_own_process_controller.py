"""Which process of a group runs the process of a plane."""

from typing import Any

import pytest

from tapestry.apis.planes import own_process_name, plane_id
from tapestry.kube.objects import Object
from tapestry.planes.own_process_controller import is_to_run, needs_own_process


def new_plane(*, deleting: bool = False, holder: str = "", **spec: Any) -> Object:
    metadata: Object = {"name": "p", "uid": "u", **({"deletionTimestamp": "now"} if deleting else {})}
    return {"metadata": metadata, "spec": {"backend": "etcd", **spec}, "status": {"holder": holder}}


OWN = own_process_name(plane_id(new_plane()))


@pytest.mark.parametrize(
    ("plane", "expected"),
    [
        (new_plane(), False),
        (new_plane(ownProcess=True), True),
        (new_plane(ownProcess=True, holder="shared"), True),
        (new_plane(ownProcess=True, process="other"), False),
        (new_plane(ownProcess=True, backend="file"), False),
        (new_plane(ownProcess=True, deleting=True), False),
        (new_plane(holder=OWN), True),
        (new_plane(holder=OWN, deleting=True), True),
        (new_plane(holder=OWN, ownProcess="invalid"), True),
        (new_plane(ownProcess="invalid"), False),
    ],
)
def test_planes_that_need_a_process(plane: Object, *, expected: bool) -> None:
    assert needs_own_process(plane) is expected


@pytest.mark.parametrize(
    ("live", "is_running", "is_candidate", "expected"),
    [
        ("", False, True, True),
        ("", False, False, False),
        ("", True, False, True),  # its Lease is not renewed yet
        ("ours", False, False, True),  # this process was killed with it, and has started again
        ("ours", True, False, True),
        ("theirs", False, True, False),
        ("theirs", True, True, False),  # both have started it, and the other one got the Lease
    ],
)
def test_process_of_a_plane_runs_once(live: str, *, is_running: bool, is_candidate: bool, expected: bool) -> None:
    assert is_to_run(live, "ours", is_running=is_running, is_candidate=is_candidate) is expected
