"""Tests of basic pod facts."""

import pytest

from tapestry.kube.objects import Object
from tapestry.kube.pods import CONTAINER_FIELDS, containers_of, is_pod_terminal, is_sidecar, qos_class

POD: Object = {
    "spec": {
        "ephemeralContainers": [{"name": "debug"}],
        "containers": [{"name": "web"}, {"name": "log"}],
        "initContainers": [{"name": "first"}, {"name": "beside", "restartPolicy": "Always"}],
    }
}


def names(pod: Object, *lists: str) -> list[str]:
    return [each["name"] for each in (containers_of(pod, lists) if lists else containers_of(pod))]


def test_containers_are_listed_in_start_order() -> None:
    assert names(POD) == ["first", "beside", "web", "log"]
    assert names(POD, *CONTAINER_FIELDS) == ["first", "beside", "web", "log", "debug"]
    assert names({"spec": {"containers": [{"name": "web"}], "initContainers": None}}, *CONTAINER_FIELDS) == ["web"]


def test_restarting_init_container_is_sidecar() -> None:
    assert [each["name"] for each in containers_of(POD) if is_sidecar(each)] == ["beside"]


@pytest.mark.parametrize(
    ("pod", "expected"),
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
def test_succeeded_or_failed_pod_is_terminal(pod: Object, expected: bool) -> None:
    assert is_pod_terminal(pod) is expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"containers": [{"resources": {"requests": {"cpu": "0", "memory": "0"}}}]}, "BestEffort"),
        ({"containers": [{"resources": {"requests": {"example.com/dongle": "1"}}}]}, "BestEffort"),
        ({"containers": [{"resources": {"requests": {"cpu": "0", "memory": "1"}}}]}, "Burstable"),
        (
            {
                "containers": [
                    {"resources": {"requests": {"cpu": "1", "memory": "1"}, "limits": {"cpu": "1000m", "memory": "1"}}}
                ]
            },
            "Guaranteed",
        ),
        (
            {
                "resources": {"requests": {"cpu": "1", "memory": "1"}, "limits": {"cpu": "1", "memory": "1"}},
                "containers": [{}],
            },
            "Guaranteed",
        ),
    ],
)
def test_qos_class_ignores_zero_amounts(spec: Object, expected: str) -> None:
    assert qos_class(spec) == expected
