"""Sealed files: they open only with the same key, for the same owner and the same name."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.planes.sealing import GroupKey, SealError, associated_data, load_group_key, seal, unseal

KEY = GroupKey(b"k" * 32, "group.key")


@given(st.binary(max_size=200), st.text(max_size=20), st.text(max_size=20))
def test_unsealed_content_is_what_was_sealed(content: bytes, owner: str, name: str) -> None:
    sealed = seal(KEY, owner, name, content)
    assert unseal(KEY, owner, name, sealed) == content
    assert sealed != seal(KEY, owner, name, content), "each seal has its own nonce"


@given(st.tuples(st.text(max_size=5), st.text(max_size=5)), st.tuples(st.text(max_size=5), st.text(max_size=5)))
def test_identities_of_files_never_collide(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (associated_data(*one) == associated_data(*other)) == (one == other)


def test_file_of_another_plane_is_refused() -> None:
    sealed = seal(KEY, "plane-a", "pki/ca.key", b"secret")
    with pytest.raises(SealError, match=r"pki/ca.key of plane-b in etcd was changed"):
        unseal(KEY, "plane-b", "pki/ca.key", sealed)
    with pytest.raises(SealError, match="was changed since it was sealed"):
        unseal(KEY, "plane-a", "pki/front-proxy-ca.key", sealed)


def test_another_key_is_named_in_the_error() -> None:
    sealed = seal(KEY, "plane-a", "pki/ca.key", b"secret")
    with pytest.raises(SealError, match=r"sealed with another key than other\.key; copy the group key file"):
        unseal(GroupKey(b"o" * 32, "other.key"), "plane-a", "pki/ca.key", sealed)


@given(st.integers(0, 60), st.integers(1, 255))
def test_changed_bytes_are_refused(position: int, change: int) -> None:
    sealed = bytearray(seal(KEY, "a", "b", b"content of the file"))
    sealed[position % len(sealed)] ^= change
    with pytest.raises(SealError):
        unseal(KEY, "a", "b", bytes(sealed))


@given(st.integers(0, 40))
def test_truncated_values_are_refused(length: int) -> None:
    with pytest.raises(SealError):
        unseal(KEY, "a", "b", seal(KEY, "a", "b", b"")[: min(length, 36)])


def test_secret_is_not_printed() -> None:
    assert "kkk" not in repr(KEY)


def test_key_file_is_created_once_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "group.key"
    with ThreadPoolExecutor(4) as threads:
        keys = list(threads.map(load_group_key, [path] * 4))
    assert len({key.secret for key in keys}) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["group.key"]


@pytest.mark.parametrize("content", [b"", b"not base64!", b"c2hvcnQ="])
def test_malformed_key_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "group.key").write_bytes(content)
    with pytest.raises(ValueError, match="this is not a group key"):
        load_group_key(tmp_path / "group.key")
