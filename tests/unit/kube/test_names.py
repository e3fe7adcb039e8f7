from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.names import (
    SUFFIX_LETTERS,
    dns_1035_label_error,
    dns_label_error,
    dns_subdomain_error,
    generated_suffix,
    hashed_name,
    label_key_error,
    label_value_error,
    safe_label_value,
)

Check = Callable[[str], str | None]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=100)


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (dns_label_error, "a"),
        (dns_label_error, "0-a"),
        (dns_label_error, "a" * 63),
        (dns_1035_label_error, "a-0"),
        (dns_1035_label_error, "a" * 63),
        (dns_subdomain_error, "a.b-c.0"),
        (dns_subdomain_error, "a" * 253),
        (label_key_error, "app"),
        (label_key_error, "App_1.x-y"),
        (label_key_error, "example.com/App"),
        (label_key_error, "a" * 253 + "/" + "b" * 63),
        (label_value_error, ""),
        (label_value_error, "A_b.c-1"),
        (label_value_error, "a" * 63),
    ],
)
def test_valid_name_has_no_error(check: Check, text: str) -> None:
    assert check(text) is None


@pytest.mark.parametrize(
    ("check", "text"),
    [
        *((dns_label_error, text) for text in ("", "-a", "a-", "A", "a.b", "a_b", "a" * 64, "é", "a\n")),
        *((dns_1035_label_error, text) for text in ("", "0a", "-a", "a-", "A", "a.b", "a" * 64)),
        *((dns_subdomain_error, text) for text in ("", ".", "a..b", ".a", "a.", "a-.b", "A", "a_b", "a" * 254)),
        *((label_key_error, text) for text in ("", "/", "a/", "/a", "a/b/c", "A/b", "a_b/c", "-a", "a" * 64, "a b")),
        (label_key_error, "a" * 254 + "/b"),
        (label_key_error, "a/" + "b" * 64),
        *((label_value_error, text) for text in ("-a", "a-", ".", "a b", "a/b", "a" * 64, "é", "a\n")),
    ],
)
def test_invalid_name_has_error(check: Check, text: str) -> None:
    assert check(text)


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (dns_label_error("My_App"), ["'My_App'", "lower case letters"]),
        (dns_label_error("a" * 70), ["70 characters", "at most 63"]),
        (dns_subdomain_error("a" * 300), ["300 characters", "at most 253"]),
        (label_key_error("Example.com/x"), ["'Example.com/x'", "before '/'"]),
        (label_key_error("example.com/-x"), ["'example.com/-x'", "after '/'"]),
    ],
)
def test_error_names_value_and_rule(error: str | None, parts: list[str]) -> None:
    assert error is not None
    assert [part for part in parts if part not in error] == []


@given(texts, st.lists(texts, max_size=4), st.integers(16, 63))
def test_hashed_name_is_dns_label_within_limit(prefix: str, parts: list[str], limit: int) -> None:
    name = hashed_name(prefix, *parts, limit=limit)
    assert dns_label_error(name) is None
    assert len(name) <= limit


@given(st.lists(texts, max_size=4), st.lists(texts, max_size=4))
def test_different_parts_have_different_names(a: list[str], b: list[str]) -> None:
    assert (hashed_name("x", *a) == hashed_name("x", *b)) == (a == b)


@pytest.mark.parametrize(
    ("a", "b"),
    [(("a", "bc"), ("ab", "c")), (("a", ""), ("a",)), (("", "a"), ("a", "")), ((), ("",)), (("a/b",), ("a", "b"))],
)
def test_part_boundaries_change_the_hash(a: tuple[str, ...], b: tuple[str, ...]) -> None:
    assert hashed_name("x", *a) != hashed_name("x", *b)


@given(st.floats(0, 1, exclude_max=True))
def test_generated_suffix_has_five_letters(fraction: float) -> None:
    suffix = generated_suffix(fraction)
    assert len(suffix) == 5
    assert set(suffix) <= set(SUFFIX_LETTERS)


def test_generated_suffixes_cover_all_letters() -> None:
    suffixes = [generated_suffix(number / 27**5) for number in range(0, 27**5, 997)]
    assert len(set(suffixes)) == len(suffixes)
    for position in range(5):
        assert {each[position] for each in suffixes} == set(SUFFIX_LETTERS)


def test_hashed_name_is_stable() -> None:
    """Existing objects have these names. A different value is a migration, not a refactoring."""
    assert hashed_name("web", "cluster", "binding", "default", "web") == "web-dhx5pzd34xwknsz7"


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [("web", "web-"), ("My_App.v2", "my-app-v2-"), ("--x--", "x-"), ("a" * 80, "a" * 46 + "-"), ("", ""), ("日本", "")],
)
def test_prefix_is_sanitized_and_shortened(prefix: str, expected: str) -> None:
    name = hashed_name(prefix, "part")
    assert name[:-16] == expected


def test_shortened_prefix_has_no_double_dash() -> None:
    assert "--" not in hashed_name("a" * 45 + "-b", "part")


def test_hash_has_eighty_bits() -> None:
    hashes = {hashed_name("", str(number)) for number in range(200)}
    assert {len(each) for each in hashes} == {16}
    assert set("".join(hashes)) == set("abcdefghijklmnopqrstuvwxyz234567")


@pytest.mark.parametrize("limit", [0, 15, 64])
def test_invalid_limit_is_rejected(limit: int) -> None:
    with pytest.raises(ValueError, match=f"limit: {limit} is not between 16 and 63"):
        hashed_name("x", "part", limit=limit)


@pytest.mark.parametrize("text", ["", "a", "My_value.1", "a" * 63])
def test_valid_label_value_is_unchanged(text: str) -> None:
    assert safe_label_value(text) == text


@pytest.mark.parametrize(
    ("text", "prefix"),
    [("a" * 64, "a" * 46), ("team a/web", "team-a-web"), ("-x", "x"), ("/", ""), ("My app", "My-app")],
)
def test_invalid_label_value_becomes_prefix_and_hash(text: str, prefix: str) -> None:
    assert safe_label_value(text)[:-16] == (f"{prefix}-" if prefix else "")


@given(texts)
def test_every_text_has_valid_label_value(text: str) -> None:
    assert label_value_error(safe_label_value(text)) is None


@given(texts, texts)
def test_different_texts_have_different_label_values(a: str, b: str) -> None:
    assert (safe_label_value(a) == safe_label_value(b)) == (a == b)
