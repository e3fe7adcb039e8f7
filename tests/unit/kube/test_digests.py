"""Tests of digests."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.digests import digest_of

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def reversed_keys(value: Any) -> Any:
    """Return the value with the keys of every object in reverse order."""
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return [reversed_keys(each) for each in value] if isinstance(value, list) else value


@given(JSON)
def test_digest_ignores_key_order(value: Any) -> None:
    assert digest_of(value) == digest_of(reversed_keys(value))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({}, []),
        ({"a": None}, {}),
        ([1, 2], [2, 1]),
        ("1", 1),
        (True, 1),
        ({"a": {"b": 1}}, {"a": {}, "b": 1}),
        (["ab"], ["a", "b"]),
        ("", None),
    ],
)
def test_different_values_have_different_digests(left: Any, right: Any) -> None:
    assert digest_of(left) != digest_of(right)


@given(JSON)
def test_digest_has_fixed_length(value: Any) -> None:
    assert len(digest_of(value)) == 20


def test_digest_is_stable_across_releases() -> None:
    """Digests are stored on objects. A different digest would rewrite every twin."""
    assert digest_of({"b": [1, None], "a": "ü"}) == "f154504104e0cf79bcae"
