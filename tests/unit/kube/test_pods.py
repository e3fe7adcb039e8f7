"""Tests of basic pod facts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.objects import Object
from tapestry.kube.pods import (
    CONTAINER_FIELDS,
    containers_of,
    default_container,
    is_pod_terminal,
    is_sidecar,
    is_tolerated,
    qos_class,
    tolerates,
)

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


@pytest.mark.parametrize(
    ("annotated", "expected"), [(None, "web"), ("log", "log"), ("debug", "debug"), ("first", "first"), ("gone", "web")]
)
def test_default_container_is_annotated_or_first(annotated: str | None, expected: str) -> None:
    annotations = {"kubectl.kubernetes.io/default-container": annotated} if annotated else {}
    assert default_container({**POD, "metadata": {"annotations": annotations}}) == expected


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
    ("toleration", "taint", "tolerated"),
    [
        ({"operator": "Exists"}, {"key": "a", "effect": "NoExecute"}, True),
        ({"key": "a"}, {"key": "a", "effect": "NoExecute"}, True),
        ({"key": "a"}, {"key": "a", "value": "1", "effect": "NoExecute"}, False),
        ({"key": "a", "value": "1"}, {"key": "a", "value": "1", "effect": "NoExecute"}, True),
        ({"key": "a", "operator": "Exists", "effect": "NoSchedule"}, {"key": "a", "effect": "NoExecute"}, False),
        ({"key": "b", "operator": "Exists"}, {"key": "a", "effect": "NoExecute"}, False),
        ({"key": "a", "operator": "Odd"}, {"key": "a", "effect": "NoExecute"}, False),
    ],
)
def test_toleration_matches_taint(toleration: Object, taint: Object, tolerated: bool) -> None:
    assert tolerates(toleration, taint) is tolerated


@given(
    st.sampled_from([None, "", "NoSchedule", "NoExecute"]),
    st.sampled_from([None, "", "a", "b"]),
    st.sampled_from([None, "Equal", "Exists"]),
    st.sampled_from([None, "", "v", "w"]),
)
def test_tolerations_match_as_in_kubernetes(
    effect: str | None, key: str | None, operator: str | None, value: str | None
) -> None:
    fields = {"effect": effect, "key": key, "operator": operator, "value": value}
    toleration = {field: each for field, each in fields.items() if each is not None}
    right_effect = effect in (None, "", "NoSchedule")
    right_key = key in (None, "", "a")
    taint = {"key": "a", "value": "v", "effect": "NoSchedule"}
    expected = right_effect and right_key and (operator == "Exists" or value == "v")
    assert tolerates(toleration, taint) is expected
    assert is_tolerated(taint, [{"key": "other"}, toleration]) is expected


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
