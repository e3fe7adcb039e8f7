"""Flat objects of any kind, with any status."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apiext import flat_objects
from tapestry.kube.objects import Object
from tapestry.kube.resources import DEPLOYMENTS, Resource

WIDGETS = Resource("example.com", "v1", "Widget", "widgets")
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)


def new_object(**fields: Any) -> Object:
    return {"metadata": {"name": "a", "namespace": "default"}, **fields}


def conditions(**statuses: str) -> Object:
    return {"conditions": [{"type": type, "status": status} for type, status in statuses.items()]}


@pytest.mark.parametrize(
    ("status", "phase"),
    [
        ({"phase": "Running", **conditions(Ready="False")}, "Running"),
        (conditions(Ready="True"), "Ready"),
        (conditions(Available="True", Progressing="True"), "Available"),
        (conditions(Complete="False", Failed="True"), "Failed"),
        (conditions(Ready="False"), None),
        ({"phase": ""}, None),
        (None, None),
        ("odd", None),
    ],
)
def test_phase_is_status_phase_or_first_true_condition(status: Any, phase: str | None) -> None:
    assert flat_objects.phase_of(new_object(status=status)) == phase


def test_outline_flattens_spec_to_dotted_paths() -> None:
    containers = [{"name": "web", "image": "nginx"}, {"name": "log", "image": "busybox"}]
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"spec": {"containers": containers, "tolerations": [{"key": "a"}, {"key": "b"}]}},
        "args": ["x", "y"],
        "text": "t" * 300,
    }
    assert flat_objects.object_outline(new_object(spec=spec), DEPLOYMENTS)["spec"] == {
        "replicas": 2,
        "selector.matchLabels.app": "web",
        "template.spec.containers": ["web", "log"],
        "template.spec.tolerations": 2,
        "args": ["x", "y"],
        "text": "t" * 200 + "...",
    }


def test_common_fields_override_fields_of_object() -> None:
    found = flat_objects.full_object(new_object(name="other", phase="Fine", status={"phase": "Failed"}), WIDGETS)
    assert (found["name"], found["phase"]) == ("a", "Failed")


@given(ANYTHING, ANYTHING)
def test_any_spec_and_status_can_be_flattened(spec: Any, status: Any) -> None:
    obj = new_object(spec=spec, status=status)
    assert flat_objects.object_outline(obj, WIDGETS)["name"] == "a"
    assert flat_objects.full_object(obj, WIDGETS)["spec"] == spec


@given(ANYTHING, st.dictionaries(st.sampled_from(["app", "tier"]), st.text("ab", max_size=3)))
def test_full_object_posts_back_to_same_object(spec: Any, labels: dict[str, str]) -> None:
    obj = {**new_object(spec=spec, data={"k": "v"}), "apiVersion": "example.com/v1", "kind": "Widget"}
    obj["metadata"]["labels"] = labels
    posted = flat_objects.object_from_body(flat_objects.full_object(obj, WIDGETS), WIDGETS, None)
    assert posted == {**obj, "metadata": {**obj["metadata"], "annotations": {}}}
