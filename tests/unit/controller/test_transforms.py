from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tapestry.controller.transforms import LAST_APPLIED, MAX_SHARED_STRING, slim
from tapestry.kube.objects import Object

TEXT = st.text(max_size=2 * MAX_SHARED_STRING)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from([0.0, 1.0]) | TEXT,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(TEXT, children, max_size=4),
    max_leaves=20,
)


def copied(value: Any) -> Any:
    """Return an equal value with new strings, as a decoder creates them."""
    match value:
        case dict():
            return {key: copied(child) for key, child in value.items()}
        case list():
            return [copied(child) for child in value]
        case str():
            return "".join(list(value))
    return value


def new_pod(**metadata: Any) -> Object:
    return {
        "metadata": {"name": "p", **metadata},
        "spec": {"nodeName": "node-17.example.com", "args": ["--verbose=maybe"]},
        "status": {"podIP": "x" * (MAX_SHARED_STRING + 1)},
    }


def test_unused_metadata_is_dropped() -> None:
    pod = new_pod(managedFields=[{"manager": "kubectl"}], annotations={LAST_APPLIED: "{}", "ours": "stays"})
    assert slim(pod) == new_pod(annotations={"ours": "stays"})


@given(st.lists(st.fixed_dictionaries({"spec": JSON, "status": JSON, "annotations": st.dictionaries(TEXT, TEXT)})))
def test_everything_else_is_unchanged(parts: list[Object]) -> None:
    pods = [{"metadata": {"name": "p", "annotations": each.pop("annotations")}, **each} for each in parts]
    slimmed = [slim(copied(pod)) for pod in pods]
    # As text: Python treats 1, True and 1.0 as equal, a server does not.
    assert [msgspec.json.encode(pod) for pod in slimmed] == [msgspec.json.encode(pod) for pod in pods]


def test_equal_strings_are_shared() -> None:
    first, second = slim(copied(new_pod())), slim(copied(new_pod()))
    assert first["spec"]["nodeName"] is second["spec"]["nodeName"]
    assert first["spec"]["args"][0] is second["spec"]["args"][0]


def test_long_strings_are_not_shared() -> None:
    first, second = slim(copied(new_pod())), slim(copied(new_pod()))
    assert first["status"]["podIP"] is not second["status"]["podIP"]


def test_equal_parts_are_shared() -> None:
    toleration = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute", "tolerationSeconds": 300}
    first, second = (slim({"metadata": {"name": name}, "spec": {"tolerations": [dict(toleration)]}}) for name in "ab")
    assert first["spec"]["tolerations"][0] is second["spec"]["tolerations"][0]


def test_parts_equal_only_in_python_are_not_shared() -> None:
    for value in (1, True, 1.0):
        pod = slim({"metadata": {"name": "p"}, "spec": {"part": {"of": value}}})
        assert type(pod["spec"]["part"]["of"]) is type(value)
