"""Node selectors that must all match."""

from hypothesis import given
from hypothesis import strategies as st

from tapestry.apis.field_types import (
    NodeSelector,
    NodeSelectorTerm,
    SelectorRequirement,
    intersection,
    node_selector_object,
)
from tapestry.kube.objects import Object
from tapestry.kube.selectors import node_selector

KEYS, VALUES = ("pool", "zone"), ("a", "b")
LABELS = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))
REQUIREMENTS = st.builds(
    SelectorRequirement,
    key=st.sampled_from(KEYS),
    operator=st.sampled_from(["In", "NotIn"]),
    values=st.lists(st.sampled_from(VALUES), min_size=1, max_size=2).map(tuple),
)
FIELDS = st.builds(
    SelectorRequirement,
    key=st.just("metadata.name"),
    operator=st.sampled_from(["In", "NotIn"]),
    values=st.tuples(st.sampled_from(VALUES)),
)
TERMS = st.builds(
    NodeSelectorTerm,
    match_expressions=st.lists(REQUIREMENTS, max_size=2).map(tuple),
    match_fields=st.lists(FIELDS, max_size=1).map(tuple),
)
SELECTORS = st.none() | st.builds(NodeSelector, st.lists(TERMS, min_size=1, max_size=2).map(tuple))


def matches(selector: NodeSelector | None, node: Object) -> bool:
    return node_selector(node_selector_object(selector)).matches(node)


@given(st.lists(SELECTORS, max_size=3), LABELS, st.sampled_from(VALUES))
def test_intersection_matches_what_all_selectors_match(
    selectors: list[NodeSelector | None], labels: dict[str, str], name: str
) -> None:
    node = {"metadata": {"name": name, "labels": labels}}
    assert matches(intersection(*selectors), node) is all(matches(each, node) for each in selectors)


def test_intersection_of_no_selectors_is_none() -> None:
    assert intersection() is None
    assert intersection(None, None) is None


def test_selector_without_requirements_stays_empty() -> None:
    """A term without requirements matches no node, so another selector must not give it any."""
    term = NodeSelectorTerm((SelectorRequirement("pool", "Exists"),))
    found = intersection(NodeSelector((NodeSelectorTerm(),)), NodeSelector((term,)))
    assert not matches(found, {"metadata": {"name": "n", "labels": {"pool": "a"}}})
