"""What is true of any pod."""

import pytest

from tapestry.kube.objects import Object
from tapestry.kube.pods import CONTAINER_FIELDS, containers_of, is_pod_terminal, is_sidecar

POD: Object = {
    "spec": {
        "ephemeralContainers": [{"name": "debug"}],
        "containers": [{"name": "web"}, {"name": "log"}],
        "initContainers": [{"name": "first"}, {"name": "beside", "restartPolicy": "Always"}],
    }
}


def names(pod: Object, *lists: str) -> list[str]:
    return [each["name"] for each in (containers_of(pod, lists) if lists else containers_of(pod))]


def test_containers_come_in_the_order_in_which_they_run_and_those_for_debugging_only_where_they_are_asked_for() -> None:
    assert names(POD) == ["first", "beside", "web", "log"]
    assert names(POD, *CONTAINER_FIELDS) == ["first", "beside", "web", "log", "debug"]
    assert names({"spec": {"containers": [{"name": "web"}], "initContainers": None}}, *CONTAINER_FIELDS) == ["web"]


def test_a_sidecar_is_an_init_container_that_is_always_started_again() -> None:
    assert [each["name"] for each in containers_of(POD) if is_sidecar(each)] == ["beside"]


@pytest.mark.parametrize(
    ("pod", "over"),
    [
        ({}, False),
        ({"status": {}}, False),
        ({"status": {"phase": "Pending"}}, False),
        ({"status": {"phase": "Running"}}, False),
        ({"status": {"phase": "Unknown"}}, False),
        ({"status": {"phase": "Succeeded"}}, True),
        ({"status": {"phase": "Failed"}}, True),
    ],
)
def test_a_pod_that_succeeded_or_failed_is_over(pod: Object, over: bool) -> None:
    assert is_pod_terminal(pod) is over
