"""Tests of taints and tolerations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.objects import Object
from tapestry.kube.taints import is_tolerated, tolerates


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
