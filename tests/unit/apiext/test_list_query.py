"""Parsing of list queries, and their filters, order and pages."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apiext.list_query import Candidate, ListQuery, Match, parse_list_query, value_text
from tapestry.kube.errors import BadRequest

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(-5, 5), st.text("ab1", max_size=3))


def candidate(**fields: Any) -> Candidate:
    return Candidate({"reason": "Because", "metadata": {"generation": 3}}, {"name": "a", "labels": {}, **fields})


@pytest.mark.parametrize(
    "filter_text",
    [
        "phase=Running",
        "phase==Running",
        "phase!=Failed",
        "phase~RUN",
        "phase!~fail",
        "phase=Running,name=a",
        "phase = Running , name = a",
        "labels.app.kubernetes.io/name=web",
        "spec.tags=x",
        "spec.tags~Y",
        "spec.tags!=z",
        "spec.on=true",
        "spec.missing=",
        "spec.text=a\\,b=c",
        ".reason=Because",
        ".metadata.generation=3",
    ],
)
def test_filter_matches(filter_text: str) -> None:
    spec = {"tags": ["x", "y"], "on": True, "text": "a,b=c"}
    one = candidate(phase="Running", spec=spec, labels={"app.kubernetes.io/name": "web"})
    assert parse_list_query({"filter": filter_text}).matches(one)


@pytest.mark.parametrize(
    "filter_text", ["phase=run", "phase!=Running", "name~b", "spec.tags=z", "phase=Running,name=b"]
)
def test_filter_excludes_non_matching(filter_text: str) -> None:
    assert not parse_list_query({"filter": filter_text}).matches(candidate(phase="Running", spec={"tags": ["x"]}))


@pytest.mark.parametrize("filter_text", ["=x", "~", "phase", "nothing=x", ".=x", "!=x"])
def test_invalid_filter_is_rejected(filter_text: str) -> None:
    with pytest.raises(BadRequest, match="filter: "):
        parse_list_query({"filter": filter_text})


def matches(query: ListQuery, values: list[Any]) -> list[Match]:
    """Return objects with the values, each encoded as its value."""
    return [Match(msgspec.Raw(msgspec.json.encode(each)), query.ranks(candidate(spec={"v": each}))) for each in values]


def decoded(found: list[Match]) -> list[Any]:
    return [msgspec.json.decode(each.raw) for each in found]


@given(st.lists(SCALARS), st.booleans())
def test_any_values_sort_with_missing_ones_last(values: list[Any], descending: bool) -> None:
    query = parse_list_query({"sort": "-spec.v" if descending else "spec.v"})
    found = decoded(query.sorted(matches(query, values)))
    having = [each for each in found if each is not None]
    assert found == having + [None] * (len(values) - len(having))
    numbers = [each for each in having if isinstance(each, int | float) and not isinstance(each, bool)]
    assert numbers == sorted(numbers, reverse=descending)
    texts = [value_text(each) for each in having if isinstance(each, str | bool)]
    assert texts == sorted(texts, reverse=descending)


@given(st.lists(st.integers(0, 3)), st.integers(1, 5))
def test_pages_together_are_the_list(values: list[int], limit: int) -> None:
    query = parse_list_query({"sort": "spec.v", "limit": str(limit)})
    pages = [
        parse_list_query({"sort": "spec.v", "limit": str(limit), "page": str(number)}).page_of(matches(query, values))
        for number in range(1, query.page_count(len(values)) + 1)
    ]
    assert all(pages)
    assert [value for page in pages for value in decoded(page)] == sorted(values)


@given(st.text(max_size=30))
def test_filter_parses_any_text(filter_text: str) -> None:
    with suppress(BadRequest):
        assert parse_list_query({"filter": filter_text}).matches(candidate(phase="Running")) in (True, False)
