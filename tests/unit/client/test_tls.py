"""TLS contexts, checked by handshakes in memory."""

import os
import ssl
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tapestry.client.errors import CredentialsError
from tapestry.client.tls import CHECK_INTERVAL, KeyPair, Pem, ServerVerification, TlsContextSource, temporary_file


class Clock:
    """A monotonic clock that the test advances."""

    now = 100.0

    def __call__(self) -> float:
        return self.now

    def pass_check_interval(self) -> None:
        self.now += CHECK_INTERVAL


@pytest.fixture
def clock() -> Clock:
    return Clock()


def pem(source: bytes | Path, origin: str = "field") -> Pem:
    return Pem(origin, source)


def key_pair(pair: Any) -> KeyPair:
    return KeyPair(pem(pair.certificate, "cert-field"), pem(pair.key, "key-field"))


def pair_files(folder: Path, pair: Any) -> KeyPair:
    write(folder / "tls.crt", pair.certificate)
    write(folder / "tls.key", pair.key)
    return KeyPair(pem(folder / "tls.crt"), pem(folder / "tls.key"))


def write(path: Path, content: bytes) -> None:
    """Replace a file atomically, so that it gets a new inode."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.replace(path)


def test_inline_client_certificate_is_sent(authority, client_seen_by_server) -> None:
    tls = TlsContextSource(ServerVerification(pem(authority.pem)), key_pair(authority.issue("alice.test")))
    assert client_seen_by_server(tls.context()) == "alice.test"


def test_without_certificate_client_is_anonymous(authority, client_seen_by_server) -> None:
    assert client_seen_by_server(TlsContextSource(ServerVerification(pem(authority.pem))).context()) is None


def test_server_of_other_authority_is_rejected(other_authority, client_seen_by_server) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        client_seen_by_server(TlsContextSource(ServerVerification(pem(other_authority.pem))).context())


def test_without_authority_system_certificates_are_used(client_seen_by_server) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        client_seen_by_server(TlsContextSource(ServerVerification()).context())


def test_insecure_verification_accepts_any_server(client_seen_by_server) -> None:
    assert client_seen_by_server(TlsContextSource(ServerVerification(insecure=True)).context()) is None


def test_bundle_may_contain_non_ascii_comments(authority, client_seen_by_server) -> None:
    assert (
        client_seen_by_server(
            TlsContextSource(ServerVerification(pem("# Überprüft\n".encode() + authority.pem))).context()
        )
        is None
    )


def test_context_is_reused_while_nothing_changes(authority, tmp_path, clock) -> None:
    tls = TlsContextSource(
        ServerVerification(pem(authority.pem)), pair_files(tmp_path, authority.issue("alice.test")), monotonic=clock
    )
    first = tls.context()
    clock.pass_check_interval()
    assert tls.context() is first


def test_replaced_certificate_is_loaded_at_next_check(authority, tmp_path, clock, client_seen_by_server) -> None:
    tls = TlsContextSource(
        ServerVerification(pem(authority.pem)), pair_files(tmp_path, authority.issue("alice.test")), monotonic=clock
    )
    first = tls.context()
    pair_files(tmp_path, authority.issue("alice-2.test"))
    assert tls.context() is first, "the files are not looked at for every request"
    clock.pass_check_interval()
    second = tls.context()
    assert second is not first
    assert client_seen_by_server(second) == "alice-2.test"
    assert tls.context() is second


def test_swapped_symlink_counts_as_change(authority, tmp_path, clock, client_seen_by_server) -> None:
    for name in ("v1", "v2"):
        (tmp_path / name).mkdir()
        pair_files(tmp_path / name, authority.issue(f"{name}.test"))
    current = tmp_path / "current"
    current.symlink_to("v1")
    pair = KeyPair(pem(current / "tls.crt"), pem(current / "tls.key"))
    tls = TlsContextSource(ServerVerification(pem(authority.pem)), pair, monotonic=clock)
    assert client_seen_by_server(tls.context()) == "v1.test"
    (tmp_path / "next").symlink_to("v2")
    (tmp_path / "next").replace(current)
    clock.pass_check_interval()
    assert client_seen_by_server(tls.context()) == "v2.test"


def test_certificate_without_matching_key_keeps_old_pair(authority, tmp_path, clock, client_seen_by_server) -> None:
    tls = TlsContextSource(
        ServerVerification(pem(authority.pem)), pair_files(tmp_path, authority.issue("alice.test")), monotonic=clock
    )
    first = tls.context()
    fresh = authority.issue("alice-2.test")
    write(tmp_path / "tls.crt", fresh.certificate)
    clock.pass_check_interval()
    assert tls.context() is first
    write(tmp_path / "tls.key", fresh.key)
    clock.pass_check_interval()
    assert client_seen_by_server(tls.context()) == "alice-2.test"


def test_missing_files_keep_old_pair(authority, tmp_path, clock) -> None:
    tls = TlsContextSource(
        ServerVerification(pem(authority.pem)), pair_files(tmp_path, authority.issue("alice.test")), monotonic=clock
    )
    first = tls.context()
    (tmp_path / "tls.crt").unlink()
    clock.pass_check_interval()
    assert tls.context() is first


def test_unreadable_change_is_loaded_later(authority, tmp_path, clock, client_seen_by_server, no_more_files) -> None:
    tls = TlsContextSource(
        ServerVerification(pem(authority.pem)), pair_files(tmp_path, authority.issue("alice.test")), monotonic=clock
    )
    first = tls.context()
    pair_files(tmp_path, authority.issue("alice-2.test"))
    clock.pass_check_interval()
    with no_more_files():
        assert tls.context() is first
    clock.pass_check_interval()
    assert client_seen_by_server(tls.context()) == "alice-2.test"


def test_replaced_authority_is_loaded(authority, other_authority, tmp_path, clock, client_seen_by_server) -> None:
    bundle = tmp_path / "ca.crt"
    write(bundle, other_authority.pem)
    tls = TlsContextSource(ServerVerification(pem(bundle)), monotonic=clock)
    with pytest.raises(ssl.SSLCertVerificationError):
        client_seen_by_server(tls.context())
    write(bundle, authority.pem)
    clock.pass_check_interval()
    assert client_seen_by_server(tls.context()) is None


def test_issued_pair_creates_one_new_context(authority, client_seen_by_server) -> None:
    tls = TlsContextSource(ServerVerification(pem(authority.pem)))
    before = tls.context()
    issued = key_pair(authority.issue("issued.test"))
    after = tls.context(issued)
    assert after is not before
    assert tls.context(issued) is after
    assert client_seen_by_server(after) == "issued.test"


def test_configured_pair_wins_over_issued_one(authority, client_seen_by_server) -> None:
    tls = TlsContextSource(ServerVerification(pem(authority.pem)), key_pair(authority.issue("own.test")))
    assert client_seen_by_server(tls.context(key_pair(authority.issue("issued.test")))) == "own.test"


def test_load_error_names_field_without_content(authority) -> None:
    good, other = authority.issue("a.test"), authority.issue("b.test")
    pairs = [(b"s3cret", good.key), (good.certificate, b"s3cret"), (good.certificate, other.key)]
    for certificate, key in pairs:
        with pytest.raises(CredentialsError, match="cert-field, key-field: not a certificate and its") as caught:
            TlsContextSource(
                ServerVerification(), KeyPair(pem(certificate, "cert-field"), pem(key, "key-field"))
            ).context()
        assert "s3cret" not in str(caught.value)
    with pytest.raises(CredentialsError, match="ca-field: contains no certificate"):
        TlsContextSource(ServerVerification(pem(b"s3cret", "ca-field"))).context()


def test_encrypted_key_is_rejected(authority) -> None:
    with pytest.raises(CredentialsError, match="must not be encrypted"):
        TlsContextSource(ServerVerification(), key_pair(authority.issue("a.test", password=b"s3cret"))).context()


def test_unreadable_file_is_named(tmp_path) -> None:
    with pytest.raises(CredentialsError, match=r"ca-field: .*absent\.crt: No such file"):
        TlsContextSource(ServerVerification(pem(tmp_path / "absent.crt", "ca-field"))).context()


def test_key_material_is_never_written_to_disk(authority, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with temporary_file(b"key") as path:
        assert Path(path).read_bytes() == b"key"
        assert list(tmp_path.iterdir()) == []
    assert not Path(path).exists()


def test_fallback_file_is_private_and_deleted(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with temporary_file(b"key") as path:
        assert Path(path).parent == tmp_path
        assert Path(path).read_bytes() == b"key"
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert list(tmp_path.iterdir()) == []


def test_repr_shows_no_key_material(authority) -> None:
    text = repr(key_pair(authority.issue("a.test")))
    assert "cert-field" in text
    assert "BEGIN" not in text
