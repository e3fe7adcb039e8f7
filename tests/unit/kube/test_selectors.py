from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.selectors import (
    EVERYTHING,
    NOTHING,
    FieldSelector,
    FieldTerm,
    LabelSelector,
    Operator,
    Requirement,
    SelectorError,
    label_selector,
    node_selector,
    parse_field_selector,
    parse_label_selector,
    requirement,
)

Labels = dict[str, str]

keys = st.sampled_from(["app", "in", "notin", "example.com/tier", "A_b.c"])
values = st.sampled_from(["", "web", "in", "notin", "3", "007", "12", "x", "a.b_c"])
label_maps = st.dictionaries(keys, values)
requirements = st.one_of(
    st.builds(requirement, keys, st.sampled_from([Operator.IN, Operator.NOT_IN]), st.lists(values, min_size=1)),
    st.builds(requirement, keys, st.sampled_from([Operator.EXISTS, Operator.DOES_NOT_EXIST])),
    st.builds(
        requirement,
        keys,
        st.sampled_from([Operator.GREATER, Operator.LESS]),
        st.integers(0, 20).map(lambda n: [str(n)]),
    ),
)


def new_expression(key: Any, operator: Any, *values: Any) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def new_node(name: str = "n1", **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}}


def terms(*each: dict[str, Any]) -> dict[str, Any]:
    return {"nodeSelectorTerms": list(each)}


# -- label selectors as text


@pytest.mark.parametrize(
    ("text", "labels", "matches"),
    [
        ("", {}, True),
        ("", {"a": "b"}, True),
        ("  ", {}, True),
        ("a=b", {"a": "b"}, True),
        ("a=b", {"a": "c"}, False),
        ("a=b", {}, False),
        ("a==b", {"a": "b"}, True),
        ("a=", {"a": ""}, True),
        ("a=", {}, False),
        ("a!=b", {"a": "c"}, True),
        ("a!=b", {"a": "b"}, False),
        ("a!=b", {}, True),
        ("a in (b,c)", {"a": "c"}, True),
        ("a in (b,c)", {"a": "d"}, False),
        ("a in (b,c)", {}, False),
        ("a in ()", {"a": ""}, True),
        ("a in (b,)", {"a": ""}, True),
        ("a notin (b,c)", {"a": "d"}, True),
        ("a notin (b,c)", {"a": "b"}, False),
        ("a notin (b,c)", {}, True),
        ("a", {"a": ""}, True),
        ("a", {}, False),
        ("!a", {}, True),
        ("!a", {"a": ""}, False),
        ("a>3", {"a": "4"}, True),
        ("a>3", {"a": "3"}, False),
        ("a>3", {"a": "10"}, True),
        ("a<4", {"a": "3"}, True),
        ("a<4", {"a": "-7"}, True),
        ("a<4", {"a": "4"}, False),
        ("a<4", {}, False),
        ("a<4", {"a": "three"}, False),
        ("a<4", {"a": "-9223372036854775808"}, True),
        ("a<4", {"a": "-9223372036854775809"}, False),
        ("a>3", {"a": "9223372036854775807"}, True),
        ("a>3", {"a": "9223372036854775808"}, False),
        ("a=b,c!=d", {"a": "b"}, True),
        ("a=b,c!=d", {"a": "b", "c": "d"}, False),
        (" a = b , ! c ", {"a": "b"}, True),
        ("a in(b)", {"a": "b"}, True),
        ("in in (in,notin)", {"in": "notin"}, True),
        ("in,notin", {"in": "", "notin": ""}, True),
        ("example.com/a=b", {"example.com/a": "b"}, True),
    ],
)
def test_label_selector_matches_as_in_kubernetes(text: str, labels: Labels, matches: bool) -> None:
    assert parse_label_selector(text).matches(labels) is matches


@pytest.mark.parametrize(
    "text",
    [
        *(",", "a,", ",a", "a,,b", "a b", "a=b c", "a=b=c", "a=!b", "=b", "!", "!!a", "!a=b", "! a in (b)"),
        *("a in", "a in b", "a in (b", "a in (b c)", "a in (b))", "a in (b),", "a notin", "a (b)", "a=(b)"),
        *("a>", "a>b", "a<1.5", "a>-1", "a=>1", "a>99999999999999999999"),
        *("-a=b", "a/b/c", "a=-b", "a=b/c", f"a={'b' * 64}", f"{'a' * 64}=b", "é"),
    ],
)
def test_invalid_label_selector_is_quoted(text: str) -> None:
    with pytest.raises(SelectorError) as caught:
        parse_label_selector(text, "labelSelector")
    assert str(caught.value).startswith(f"labelSelector: {text!r} is not a label selector: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a b", "found 'b' instead of "),
        ("a in (b c)", "found 'c' instead of '\\)' or ','"),
        ("a in (b", "found 'the end' instead of"),
        ("a,", "it ends with a comma"),
        ("a>b", r"values: \['b'\] is not one integer, which Gt needs"),
        ("a=b/c", "values\\[0\\]: 'b/c' is not allowed"),
    ],
)
def test_label_selector_error_names_the_token(text: str, message: str) -> None:
    with pytest.raises(SelectorError, match=message):
        parse_label_selector(text)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("", ""),
        ("a==b", "a=b"),
        ("a in (b)", "a=b"),
        ("a notin (b)", "a!=b"),
        ("z,  b in (y, x,x),!a", "!a,b in (x,y),z"),
        ("a in (,b)", "a in (,b)"),
        ("a=", "a="),
        ("a>3,a<9", "a>3,a<9"),
    ],
)
def test_label_selector_prints_as_query(text: str, printed: str) -> None:
    assert str(parse_label_selector(text)) == printed


@given(st.lists(requirements, max_size=4))
def test_printed_label_selector_round_trips(requirements: list[Requirement]) -> None:
    selector = LabelSelector(tuple(sorted(requirements)))
    assert parse_label_selector(str(selector)) == selector


@given(st.lists(requirements, max_size=3), st.lists(requirements, max_size=3), label_maps)
def test_requirements_are_a_conjunction(some: list[Requirement], more: list[Requirement], labels: Labels) -> None:
    both = LabelSelector((*some, *more)).matches(labels)
    assert both == (LabelSelector(tuple(some)).matches(labels) and LabelSelector(tuple(more)).matches(labels))


@given(keys, st.lists(values, min_size=1), label_maps)
def test_opposite_operators_never_both_match(key: str, label_values: list[str], labels: Labels) -> None:
    assert requirement(key, Operator.IN, label_values).matches(labels) != requirement(
        key, Operator.NOT_IN, label_values
    ).matches(labels)
    assert requirement(key, Operator.EXISTS).matches(labels) != requirement(key, Operator.DOES_NOT_EXIST).matches(
        labels
    )


# -- label selectors as fields of an object


def test_empty_selector_matches_everything_none_nothing() -> None:
    assert label_selector({}) == label_selector({"matchLabels": None, "matchExpressions": []}) == EVERYTHING
    assert EVERYTHING.matches({})
    assert label_selector(None) == NOTHING


@given(label_maps.map(lambda labels: {**labels, "nothing": "x"}) | label_maps)
def test_nothing_selector_matches_nothing(labels: Labels) -> None:
    assert not NOTHING.matches(labels)
    assert not parse_label_selector(str(NOTHING)).matches(labels)


def test_match_labels_and_expressions_are_combined() -> None:
    selector = label_selector(
        {
            "matchLabels": {"app": "web"},
            "matchExpressions": [
                new_expression("tier", "In", "b", "a"),
                new_expression("env", "NotIn", "dev"),
                {"key": "x", "operator": "Exists"},
                {"key": "y", "operator": "DoesNotExist", "values": None},
            ],
        }
    )
    assert str(selector) == "app=web,env!=dev,tier in (a,b),x,!y"
    assert selector.matches({"app": "web", "tier": "a", "x": ""})
    assert not selector.matches({"app": "web", "tier": "a"})


def test_object_and_query_forms_are_equal() -> None:
    spec = {"matchLabels": {"b": "1"}, "matchExpressions": [new_expression("a", "NotIn", "y", "x")]}
    assert label_selector(spec) == parse_label_selector("b=1,a notin (x,y)")
    assert hash(label_selector(spec)) == hash(parse_label_selector("b=1,a notin (x,y)"))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ([], r"^spec\.selector: \[\] is not an object"),
        (
            {"matchLabel": {}},
            r"^spec\.selector\.matchLabel: unknown field; the known fields are matchLabels, matchExpressions",
        ),
        ({"matchLabels": ["a"]}, r"^spec\.selector\.matchLabels: \['a'\] is not an object"),
        ({"matchLabels": {"a": 1}}, r"^spec\.selector\.matchLabels\[a\]: 1 is not a string"),
        ({"matchLabels": {"a b": "c"}}, r"^spec\.selector\.matchLabels\[a b\]: 'a b' is not allowed"),
        ({"matchLabels": {"a": "b c"}}, r"^spec\.selector\.matchLabels\[a\]: 'b c' is not allowed"),
        ({"matchExpressions": {}, "matchLabels": {}, "x": 1}, r"^spec\.selector\.x: unknown field"),
        ({"matchExpressions": "a"}, r"^spec\.selector\.matchExpressions: 'a' is not a list"),
        ({"matchExpressions": ["a"]}, r"^spec\.selector\.matchExpressions\[0\]: 'a' is not an object"),
        ({"matchExpressions": [{"operator": "Exists"}]}, r"matchExpressions\[0\]\.key: None is not a string"),
        (
            {"matchExpressions": [{"key": "a"}]},
            r"matchExpressions\[0\]\.operator: None is none of In, NotIn, Exists, Does",
        ),
        (
            {"matchExpressions": [new_expression("a", "Gt", "1")]},
            r"matchExpressions\[0\]\.operator: 'Gt' is none of In, ",
        ),
        (
            {"matchExpressions": [new_expression("a", "in", "1")]},
            r"matchExpressions\[0\]\.operator: 'in' is none of In, ",
        ),
        (
            {"matchExpressions": [new_expression("a", ["In"], "1")]},
            r"matchExpressions\[0\]\.operator: \['In'\] is none of",
        ),
        (
            {"matchExpressions": [new_expression("a", "In")]},
            r"matchExpressions\[0\]\.values: no values; In needs at",
        ),
        ({"matchExpressions": [new_expression("a", "NotIn")]}, r"matchExpressions\[0\]\.values: no values; NotIn"),
        ({"matchExpressions": [new_expression("a", "Exists", "b")]}, r"\[0\]\.values: there are 1; Exists takes none"),
        ({"matchExpressions": [new_expression("a", "DoesNotExist", "b")]}, r"\[0\]\.values: there are 1; DoesNotExist"),
        ({"matchExpressions": [new_expression("-a", "Exists")]}, r"matchExpressions\[0\]\.key: '-a' is not allowed"),
        (
            {"matchExpressions": [new_expression("a", "In", "b", "-")]},
            r"matchExpressions\[0\]\.values\[1\]: '-' is not al",
        ),
        (
            {"matchExpressions": [new_expression("a", "In", "b", 1)]},
            r"matchExpressions\[0\]\.values\[1\]: 1 is not a string",
        ),
        (
            {"matchExpressions": [new_expression("a", "Exists"), {"key": "a", "operator": "In", "values": "b"}]},
            r"^spec\.selector\.matchExpressions\[1\]\.values: 'b' is not a list",
        ),
    ],
)
def test_label_selector_error_names_path(spec: Any, message: str) -> None:
    with pytest.raises(SelectorError, match=message):
        label_selector(spec, "spec.selector")


def test_error_path_starts_at_the_selector() -> None:
    with pytest.raises(SelectorError, match=r"^matchExpressions\[0\]\.values: "):
        label_selector({"matchExpressions": [new_expression("a", "In")]})


# -- field selectors


@pytest.mark.parametrize(
    ("text", "fields", "matches"),
    [
        ("", {}, True),
        ("a=b", {"a": "b"}, True),
        ("a==b", {"a": "b"}, True),
        ("a=b", {"a": "c"}, False),
        ("a=b", {}, False),
        ("a!=b", {"a": "b"}, False),
        ("a!=b", {"a": "c"}, True),
        ("a!=b", {}, True),
        ("a=", {}, True),
        ("a!=", {}, False),
        ("a=b,c!=d", {"a": "b", "c": "d"}, False),
        ("a=b,,c!=d,", {"a": "b", "c": "e"}, True),
        ("spec.nodeName=n1,status.phase!=Failed", {"spec.nodeName": "n1", "status.phase": "Running"}, True),
        (r"a=x\,y\=z\\", {"a": "x,y=z\\"}, True),
        ("a=b!c", {"a": "b!c"}, True),
        ("a=!b", {"a": "!b"}, True),
        ("a=b c(d)", {"a": "b c(d)"}, True),
    ],
)
def test_field_selector_matches_as_in_kubernetes(text: str, fields: dict[str, str], matches: bool) -> None:
    assert parse_field_selector(text).matches(fields) is matches


@pytest.mark.parametrize(
    "text", ["a", "a!", "=b", "!=b", "a=b=c", "a===b", "a!==b", "a in (b)", "a=b,c", r"a=\x", "a=\\", "a<3"]
)
def test_invalid_field_selector_is_quoted(text: str) -> None:
    with pytest.raises(SelectorError) as caught:
        parse_field_selector(text, "fieldSelector")
    assert str(caught.value).startswith(f"fieldSelector: {text!r} is not a field selector: ")


@given(
    st.lists(
        st.builds(FieldTerm, st.sampled_from(["metadata.name", "spec.nodeName"]), st.text("ab\\,=! \n"), st.booleans()),
        max_size=3,
    )
)
def test_printed_field_selector_round_trips(field_terms: list[FieldTerm]) -> None:
    selector = FieldSelector(tuple(sorted(field_terms)))
    assert parse_field_selector(str(selector)) == selector


# -- node selectors


@pytest.mark.parametrize(
    ("spec", "matches"),
    [
        (None, True),
        ({}, False),
        (terms(), False),
        ({"nodeSelectorTerms": None}, False),
        (terms({}), False),
        (terms({"matchExpressions": [], "matchFields": None}), False),
        (terms({}, {"matchExpressions": [new_expression("zone", "Exists")]}), True),
        (terms({"matchExpressions": [new_expression("zone", "In", "a", "b")]}), True),
        (terms({"matchExpressions": [new_expression("zone", "In", "b")]}), False),
        (terms({"matchExpressions": [new_expression("zone", "NotIn", "b")]}), True),
        (terms({"matchExpressions": [new_expression("gpu", "DoesNotExist")]}), True),
        (terms({"matchExpressions": [new_expression("cores", "Gt", "8")]}), True),
        (terms({"matchExpressions": [new_expression("cores", "Gt", "16")]}), False),
        (terms({"matchExpressions": [new_expression("cores", "Lt", "17")]}), True),
        (terms({"matchExpressions": [new_expression("zone", "Lt", "17")]}), False),
        (terms({"matchExpressions": [new_expression("zone", "Exists"), new_expression("gpu", "Exists")]}), False),
        (
            terms(
                {"matchExpressions": [new_expression("gpu", "Exists")]},
                {"matchExpressions": [new_expression("zone", "Exists")]},
            ),
            True,
        ),
        (terms({"matchFields": [new_expression("metadata.name", "In", "n1")]}), True),
        (terms({"matchFields": [new_expression("metadata.name", "In", "n2")]}), False),
        (terms({"matchFields": [new_expression("metadata.name", "NotIn", "n1")]}), False),
        (terms({"matchFields": [new_expression("metadata.name", "NotIn", "n2")]}), True),
        (
            terms(
                {
                    "matchExpressions": [new_expression("zone", "Exists")],
                    "matchFields": [new_expression("metadata.name", "In", "n2")],
                }
            ),
            False,
        ),
    ],
)
def test_node_selector_matches_as_in_kubernetes(spec: dict[str, Any] | None, matches: bool) -> None:
    assert node_selector(spec).matches(new_node("n1", zone="a", cores="16")) is matches


def test_node_without_labels_can_match() -> None:
    assert node_selector(terms({"matchExpressions": [new_expression("a", "NotIn", "b")]})).matches(
        {"metadata": {"name": "n1"}}
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"matchExpressions": []},
            r"^spec\.nodeSelector\.matchExpressions: unknown field; the known fields are nodeSelectorTerms",
        ),
        ({"nodeSelectorTerms": {"a": 1}}, r"^spec\.nodeSelector\.nodeSelectorTerms: \{'a': 1\} is not a list"),
        (
            terms({"matchLabels": {}}),
            r"nodeSelectorTerms\[0\]\.matchLabels: unknown field; the known fields are matchExpress",
        ),
        (
            terms({}, {"matchExpressions": [new_expression("a", "Is", "b")]}),
            r"Terms\[1\]\.matchExpressions\[0\]\.operator: 'Is'",
        ),
        (
            terms({"matchExpressions": [new_expression("a", "Gt", "b")]}),
            r"values: \['b'\] is not one integer, which Gt needs",
        ),
        (terms({"matchExpressions": [new_expression("a", "Lt")]}), r"values: \[\] is not one integer, which Lt needs"),
        (
            terms({"matchExpressions": [new_expression("a", "Lt", "1", "2")]}),
            r"values: \['1', '2'\] is not one integer",
        ),
        (
            terms({"matchFields": [new_expression("spec.x", "In", "a")]}),
            r"matchFields\[0\]\.key: 'spec\.x' is not a field that",
        ),
        (
            terms({"matchFields": [new_expression("metadata.name", "Exists")]}),
            r"matchFields\[0\]\.operator: 'Exists' is none of",
        ),
        (
            terms({"matchFields": [new_expression("metadata.name", "In", "a", "b")]}),
            r"\.values: there are 2; a field takes one",
        ),
        (terms({"matchFields": [new_expression("metadata.name", "In")]}), r"\.values: there are 0; a field takes one"),
    ],
)
def test_node_selector_error_names_path(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(SelectorError, match=message):
        node_selector(spec, "spec.nodeSelector")
