"""Digests: the same for what says the same, and for nothing else."""

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


def turned_around(value: Any) -> Any:
    """The same, with every object written from its end."""
    if isinstance(value, dict):
        return {key: turned_around(value[key]) for key in reversed(value)}
    return [turned_around(each) for each in value] if isinstance(value, list) else value


@given(JSON)
def test_the_order_of_keys_says_nothing(value: Any) -> None:
    assert digest_of(value) == digest_of(turned_around(value))


@pytest.mark.parametrize(
    ("one", "other"),
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
def test_what_says_something_else_has_another_digest(one: Any, other: Any) -> None:
    assert digest_of(one) != digest_of(other)


@given(JSON)
def test_a_digest_is_short_whatever_it_is_of(value: Any) -> None:
    assert len(digest_of(value)) == 20


def test_a_digest_is_the_same_in_every_process_and_release() -> None:
    """It is kept on objects: another one would have every twin written anew."""
    assert digest_of({"b": [1, None], "a": "ü"}) == "f154504104e0cf79bcae"
