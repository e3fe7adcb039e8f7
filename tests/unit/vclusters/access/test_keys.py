"""Access keys: their text, and the check against the stored hash."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from tapestry.vclusters.access.keys import PresentedKey, is_valid, new_key, parse_key

NOW = datetime(2031, 1, 1, tzinfo=UTC)


def presented(text: str) -> PresentedKey:
    key = parse_key(text)
    assert key is not None
    return key


def test_new_key_is_valid() -> None:
    key = new_key()
    assert presented(key.text).id == key.id
    assert is_valid(presented(key.text), key.hash, None, NOW)
    assert presented(key.text).secret not in key.hash


def test_other_key_is_not_valid() -> None:
    assert not is_valid(presented(new_key().text), new_key().hash, None, NOW)


def test_key_is_valid_until_it_expires() -> None:
    key = new_key()
    assert is_valid(presented(key.text), key.hash, NOW + timedelta(seconds=1), NOW)
    assert not is_valid(presented(key.text), key.hash, NOW, NOW)


def test_changed_key_is_not_well_formed() -> None:
    text = new_key().text
    for index in range(len(text)):
        assert parse_key(text[:index] + ("0" if text[index] != "0" else "1") + text[index + 1 :]) is None


@given(st.text(max_size=300))
def test_other_texts_are_not_well_formed(text: str) -> None:
    assert parse_key(text) is None
