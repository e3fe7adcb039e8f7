"""Regular expressions in time that grows with the text: Python's own say what they find, where they come to an end."""

import re
import time

import pytest
from hypothesis import given
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
def test_a_match_is_where_python_finds_it(pattern: str, text: str) -> None:
    # Python's $ is also before a last newline, which these texts have none of
    found = re.compile(pattern, re.ASCII).search(text)
    assert compile_regex(pattern).matches(text) == (found is not None)
    if found is not None:
        start, end = compile_regex(pattern).search(text) or (None, None)
        assert start == found.start()
        assert end is not None


@pytest.mark.parametrize("pattern", ["(a+)+$", "^(a|aa)*$", "(a*)*b", "a*a*a*a*a*b", "(.*)(.*)(.*)(.*)x", "([a-z]+)*1"])
def test_no_pattern_runs_away(pattern: str) -> None:
    start = time.process_time()
    assert not compile_regex(pattern).matches("a" * 20_000 + "!")
    assert compile_regex(pattern).search("a" * 2_000 + "!", 1) is None
    assert time.process_time() - start < 3


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
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
def test_patterns_are_those_of_re2(pattern: str, text: str, found: str) -> None:
    place = compile_regex(pattern).search(text)
    assert place is not None
    assert text[slice(*place)] == found


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        ("(", "missing closing ): `(`"),
        (")", "unexpected ): `)`"),
        ("[a", "missing closing ]: `[a`"),
        ("*", "missing argument to repetition operator: `*`"),
        ("a**", "invalid nested repetition operator: `**`"),
        ("a{1001}", "invalid repeat count: `{1001}`"),
        ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
        (r"\1", r"invalid escape sequence: `\1`"),
        ("[z-a]", "invalid character class range: `z-a`"),
        ("a\\", "trailing backslash at end of expression: ``"),
        ("((a{100}){100}){100}", "expression too large"),
    ],
)
def test_what_is_no_pattern_is_refused_in_the_words_of_re2(pattern: str, complaint: str) -> None:
    with pytest.raises(RegexError) as caught:
        compile_regex(pattern)
    assert str(caught.value) == complaint
