"""Tests of linear-time regular expressions, with Python's `re` as the reference."""

import re
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.kube.cel.regexes import RegexError, compile_regex

atoms = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", "^", "$", r"\b", "c"])
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{1,2}", "{2}", "*?", "+?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=8,
)


@given(patterns, st.text("abc1 ", max_size=12))
def test_match_equals_python_re(pattern: str, text: str) -> None:
    # Python's $ also matches before a final newline. These texts have none.
    expected = re.compile(pattern, re.ASCII).search(text)
    assert compile_regex(pattern).matches(text) == (expected is not None)
    if expected is not None:
        start, end = compile_regex(pattern).search(text) or (None, None)
        assert start == expected.start()
        assert end is not None


@settings(max_examples=1000)
@given(st.text("()[]{}<>*+?|^$.,:-=\\apPLQExis01", max_size=12))
def test_any_text_is_compiled_or_rejected(pattern: str) -> None:
    with suppress(RegexError):
        regex = compile_regex(pattern)
        assert regex.matches("a-1") == (regex.search("a-1") is not None)


@pytest.mark.parametrize("pattern", ["(a+)+$", "^(a|aa)*$", "(a*)*b", "a*a*a*a*a*b", "(.*)(.*)(.*)(.*)x", "([a-z]+)*1"])
def test_matching_time_is_linear(pattern: str) -> None:
    start = time.process_time()
    assert not compile_regex(pattern).matches("a" * 20_000 + "!")
    assert compile_regex(pattern).search("a" * 2_000 + "!", 1) is None
    assert time.process_time() - start < 3


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("a|ab", "ab", "a"),
        ("(?i)HELLO", "say hello", "hello"),
        ("(?i:a)b", "Ab AB", "Ab"),
        ("(?m)^b$", "a\nb\nc", "b"),
        ("(?s)a.b", "a\nb", "a\nb"),
        (r"\Qa+b\E+", "xa+bb", "a+bb"),
        (r"\x41\x{1F600}", "A😀", "A😀"),
        (r"[[:alpha:]]+", "12ab3", "ab"),
        (r"\p{Lu}+", "aBCd", "BC"),
        (r"\PL+", "ab12c", "12"),
        (r"[\d\-x]+", "a1-x", "1-x"),
        (r"[]a]+", "]a", "]a"),
        ("(?P<name>a)b", "ab", "ab"),
        ("a{2,3}?", "aaaa", "aa"),
        ("(?U)a+", "aaa", "a"),
        ("x{,2}", "x{,2}", "x{,2}"),
        (r"\Ba", "aa", "a"),
    ],
)
def test_re2_syntax_is_supported(pattern: str, text: str, expected: str) -> None:
    span = compile_regex(pattern).search(text)
    assert span is not None
    assert text[slice(*span)] == expected


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "missing closing ): `(`"),
        (")", "unexpected ): `)`"),
        ("[a", "missing closing ]: `[a`"),
        ("*", "missing argument to repetition operator: `*`"),
        ("a**", "invalid nested repetition operator: `**`"),
        ("1++", "invalid nested repetition operator: `++`"),
        ("a{1001}", "invalid repeat count: `{1001}`"),
        ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
        (r"\1", r"invalid escape sequence: `\1`"),
        ("[z-a]", "invalid character class range: `z-a`"),
        (r"a\p{Lu+", r"invalid character class range: `\p{Lu+`"),
        ("a\\", "trailing backslash at end of expression: ``"),
        ("((a{100}){100}){100}", "expression too large"),
    ],
)
def test_invalid_pattern_has_re2_message(pattern: str, message: str) -> None:
    with pytest.raises(RegexError) as caught:
        compile_regex(pattern)
    assert str(caught.value) == message
