"""Page tokens: a client cannot make or change one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.vclusters.errors import ServiceError
from tapestry.vclusters.page_tokens import PageTokens, page_size

TOKENS = PageTokens(b"k" * 32)
FILTERS = {"namespace": "default", "phases": ["Running"], "orderBy": "name"}


@given(st.integers(0, 2**63 - 1), st.tuples(st.text(max_size=253), st.text(max_size=63)))
def test_token_names_its_position(revision: int, last: tuple[str, str]) -> None:
    position = TOKENS.position(TOKENS.token(revision, last, FILTERS), dict(reversed(FILTERS.items())))
    assert position is not None
    assert (position.revision, position.last) == (revision, last)


def test_first_page_has_no_position() -> None:
    assert TOKENS.position("", FILTERS) is None


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda raw: raw.hex()))
def test_other_texts_are_rejected(text: str) -> None:
    if text:
        with pytest.raises(ServiceError, match="is not a token of this service"):
            TOKENS.position(text, FILTERS)


@given(st.data())
def test_changed_tokens_are_rejected(data: st.DataObject) -> None:
    token = TOKENS.token(7, ("a", "b"), FILTERS)
    index = data.draw(st.integers(0, len(token) - 2))  # the last character may have unused bits
    changed = token[:index] + data.draw(st.sampled_from("ABCxyz019-_").filter(lambda each: each != token[index]))
    with pytest.raises(ServiceError):
        TOKENS.position(changed + token[index + 1 :], FILTERS)


def test_token_of_other_filters_or_key_is_rejected() -> None:
    token = TOKENS.token(7, ("a", "b"), FILTERS)
    with pytest.raises(ServiceError, match="other filters"):
        TOKENS.position(token, {**FILTERS, "owner": "jane"})
    with pytest.raises(ServiceError, match="not a token"):
        PageTokens(b"o" * 32).position(token, FILTERS)


def test_huge_token_is_rejected() -> None:
    with pytest.raises(ServiceError):
        TOKENS.position("A" * 1_000_000, FILTERS)


@pytest.mark.parametrize(("requested", "size"), [(0, 20), (1, 1), (100, 100), (101, 100), (2**31 - 1, 100)])
def test_page_size_is_limited(requested: int, size: int) -> None:
    assert page_size(requested) == size


def test_negative_page_size_is_rejected() -> None:
    with pytest.raises(ServiceError, match="pageSize"):
        page_size(-1)
