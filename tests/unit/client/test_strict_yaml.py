import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.client.strict_yaml import MAX_DEPTH, StrictYamlError, parse_strict_yaml

# JSON escapes letters beyond the basic plane as two, which YAML does not read.
TEXT = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=30)
DOCUMENTS = st.recursive(
    TEXT | st.booleans() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(TEXT.filter(lambda key: key != "<<"), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(DOCUMENTS)
def test_json_is_read_as_json(document: Any) -> None:
    assert parse_strict_yaml(json.dumps(document).encode()) == document


@given(st.binary() | st.text(alphabet="&*!<>{}[]:,-?|%@ab\n\"' ~").map(str.encode))
def test_random_data_is_parsed_or_rejected(data: bytes) -> None:
    with suppress(StrictYamlError):
        assert isinstance(parse_strict_yaml(data), dict | list | str | bool | None)


def test_numbers_and_dates_stay_strings() -> None:
    assert parse_strict_yaml(b"[1, 0x10, 1e3, 2026-01-01, 1:30, .inf, yes, on]") == [
        *("1", "0x10", "1e3", "2026-01-01", "1:30", ".inf", "yes", "on")
    ]


def test_only_plain_scalars_are_constants() -> None:
    assert parse_strict_yaml(b"[true, false, null, ~, 'true', \"null\", '']") == [
        *(True, False, None, None, "true", "null", "")
    ]


def test_empty_document_is_none() -> None:
    assert parse_strict_yaml(b"") is None
    assert parse_strict_yaml(b"# only a comment\n") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x 1", "a: YAML anchors are not allowed"),
        ("&x a: 1", "document: YAML anchors are not allowed"),
        ("a: &x {b: 1}", "a: YAML anchors"),
        ("a: [1, *x]", r"a\[1\]: YAML aliases are not allowed"),
        ("*x : 1", "document: YAML aliases"),
        ("a: !!str 1", "a: YAML tags are not allowed"),
        ("a: {b: !python/object:os.system []}", r"a\.b: YAML tags"),
        ("!!map {a: 1}", "document: YAML tags"),
        ("a: ! b", "a: YAML tags"),
        ("%TAG ! tag:x,2026:\n---\na: 1", "document: tag directives"),
        ("<<: {a: 1}", "document: merge keys are not allowed"),
        ("a: {<<: [{b: 1}]}", "a: merge keys"),
        ("a: 1\nb: {c: 1, c: 2}", r"b\.c: given twice"),
        ("a: 1\n'a': 2", "a: given twice"),
        ("? [a]\n: 1", "document: a key that is not a string"),
        ("a: 1\n---\nb: 2", "document: more than one"),
        ("a: 1\n...\n---\n", "document: more than one"),
        ("a: [", "line 2, column 1: not YAML"),
        ("a: 'b", "not YAML"),
        ("\ta: b", "line 1, column 1: not YAML"),
        ("\x00", "not YAML"),
    ],
)
def test_unsafe_features_are_rejected_with_location(text: str, message: str) -> None:
    with pytest.raises(StrictYamlError, match=f"^.*{message}"):
        parse_strict_yaml(text.encode())


@pytest.mark.parametrize("text", ["{0}: &x 1", "a: {{{0}: 1, {0}: 2}}", "a: *{0}", "a: !{0} b", "a: [{0}"])
def test_error_quotes_no_values(text: str) -> None:
    with pytest.raises(StrictYamlError) as caught:
        parse_strict_yaml(text.format("s3cret" * 10).encode())
    assert "s3cret" not in str(caught.value)


def test_nesting_is_limited() -> None:
    assert parse_strict_yaml(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    with pytest.raises(StrictYamlError, match="nested deeper than 16"):
        parse_strict_yaml(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1))
    with pytest.raises(StrictYamlError, match="nested deeper than 16"):
        parse_strict_yaml(b"{a: " * 200_000)
