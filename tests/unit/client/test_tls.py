"""The contexts are judged by the handshakes they make, over memory instead of sockets."""

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
    """A monotonic clock that the test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now

    def pass_a_look(self) -> None:
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
    """Replaces a file as careful writers do: the new one has an inode of its own."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.replace(path)


def test_a_client_certificate_given_inline_is_shown_to_the_server(authority, client_seen_by_server) -> None:
    tls = TlsContextSource(ServerVerification(pem(authority.pem)), key_pair(authority.issue("alice.test")))
    assert client_seen_by_server(tls.context()) == "alice.test"


def test_without_a_certificate_the_client_stays_anonymous(authority, client_seen_by_server) -> None:
    assert client_seen_by_server(TlsContextSource(ServerVerification(pem(authority.pem))).context()) is None


def test_a_server_of_another_authority_is_refused(other_authority, client_seen_by_server) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        client_seen_by_server(TlsContextSource(ServerVerification(pem(other_authority.pem))).context())


def test_without_an_authority_the_system_decides(client_seen_by_server) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        client_seen_by_server(TlsContextSource(ServerVerification()).context())


def test_an_insecure_trust_takes_any_server(client_seen_by_server) -> None:
    assert client_seen_by_server(TlsContextSource(ServerVerification(insecure=True)).context()) is None


def test_comments_beyond_ascii_in_a_bundle_do_no_harm(authority, client_seen_by_server) -> None:
    assert (
        client_seen_by_server(
            TlsContextSource(ServerVerification(pem("# Überprüft\n".encode() + authority.pem))).context()
        )
        is None
    )


def test_the_context_stays_while_nothing_changes(authority, tmp_path, clock) -> None:
    tls = TlsContextSource(
        ServerVerification(pem(authority.pem)), pair_files(tmp_path, authority.issue("alice.test")), monotonic=clock
    )
    first = tls.context()
    clock.pass_a_look()
    assert tls.context() is first


def test_a_replaced_certificate_is_taken_up_at_the_next_look(authority, tmp_path, clock, client_seen_by_server) -> None:
    tls = TlsContextSource(
        ServerVerification(pem(authority.pem)), pair_files(tmp_path, authority.issue("alice.test")), monotonic=clock
    )
    first = tls.context()
    pair_files(tmp_path, authority.issue("alice-2.test"))
    assert tls.context() is first, "the files are not looked at for every request"
    clock.pass_a_look()
    second = tls.context()
    assert second is not first
    assert client_seen_by_server(second) == "alice-2.test"
    assert tls.context() is second


def test_a_volume_that_swaps_a_link_counts_as_a_change(authority, tmp_path, clock, client_seen_by_server) -> None:
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
    clock.pass_a_look()
    assert client_seen_by_server(tls.context()) == "v2.test"


def test_a_certificate_without_its_key_yet_leaves_the_old_pair_in_use(
    authority, tmp_path, clock, client_seen_by_server
) -> None:
    tls = TlsContextSource(
        ServerVerification(pem(authority.pem)), pair_files(tmp_path, authority.issue("alice.test")), monotonic=clock
    )
    first = tls.context()
    fresh = authority.issue("alice-2.test")
    write(tmp_path / "tls.crt", fresh.certificate)
    clock.pass_a_look()
    assert tls.context() is first
    write(tmp_path / "tls.key", fresh.key)
    clock.pass_a_look()
    assert client_seen_by_server(tls.context()) == "alice-2.test"


def test_files_that_vanish_leave_the_old_pair_in_use(authority, tmp_path, clock) -> None:
    tls = TlsContextSource(
        ServerVerification(pem(authority.pem)), pair_files(tmp_path, authority.issue("alice.test")), monotonic=clock
    )
    first = tls.context()
    (tmp_path / "tls.crt").unlink()
    clock.pass_a_look()
    assert tls.context() is first


def test_a_change_that_could_not_be_read_is_read_later(
    authority, tmp_path, clock, client_seen_by_server, no_more_files
) -> None:
    tls = TlsContextSource(
        ServerVerification(pem(authority.pem)), pair_files(tmp_path, authority.issue("alice.test")), monotonic=clock
    )
    first = tls.context()
    pair_files(tmp_path, authority.issue("alice-2.test"))
    clock.pass_a_look()
    with no_more_files():
        assert tls.context() is first
    clock.pass_a_look()
    assert client_seen_by_server(tls.context()) == "alice-2.test"


def test_a_replaced_authority_is_taken_up(authority, other_authority, tmp_path, clock, client_seen_by_server) -> None:
    bundle = tmp_path / "ca.crt"
    write(bundle, other_authority.pem)
    tls = TlsContextSource(ServerVerification(pem(bundle)), monotonic=clock)
    with pytest.raises(ssl.SSLCertVerificationError):
        client_seen_by_server(tls.context())
    write(bundle, authority.pem)
    clock.pass_a_look()
    assert client_seen_by_server(tls.context()) is None


def test_an_issued_pair_makes_a_new_context_once(authority, client_seen_by_server) -> None:
    tls = TlsContextSource(ServerVerification(pem(authority.pem)))
    before = tls.context()
    issued = key_pair(authority.issue("issued.test"))
    after = tls.context(issued)
    assert after is not before
    assert tls.context(issued) is after
    assert client_seen_by_server(after) == "issued.test"


def test_a_pair_of_our_own_wins_over_an_issued_one(authority, client_seen_by_server) -> None:
    tls = TlsContextSource(ServerVerification(pem(authority.pem)), key_pair(authority.issue("own.test")))
    assert client_seen_by_server(tls.context(key_pair(authority.issue("issued.test")))) == "own.test"


def test_what_does_not_load_is_named_and_not_quoted(authority) -> None:
    good, other = authority.issue("a.test"), authority.issue("b.test")
    pairs = [(b"s3cret", good.key), (good.certificate, b"s3cret"), (good.certificate, other.key)]
    for certificate, key in pairs:
        with pytest.raises(CredentialsError, match="cert-field, key-field: not a certificate and its") as caught:
            TlsContextSource(
                ServerVerification(), KeyPair(pem(certificate, "cert-field"), pem(key, "key-field"))
            ).context()
        assert "s3cret" not in str(caught.value)
    with pytest.raises(CredentialsError, match="ca-field: holds no certificate"):
        TlsContextSource(ServerVerification(pem(b"s3cret", "ca-field"))).context()


def test_an_encrypted_key_is_refused(authority) -> None:
    with pytest.raises(CredentialsError, match="must not be encrypted"):
        TlsContextSource(ServerVerification(), key_pair(authority.issue("a.test", password=b"s3cret"))).context()


def test_a_file_that_cannot_be_read_is_named(tmp_path) -> None:
    with pytest.raises(CredentialsError, match=r"ca-field: .*absent\.crt: No such file"):
        TlsContextSource(ServerVerification(pem(tmp_path / "absent.crt", "ca-field"))).context()


def test_key_material_never_reaches_a_disk(authority, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with temporary_file(b"key") as path:
        assert Path(path).read_bytes() == b"key"
        assert list(tmp_path.iterdir()) == []
    assert not Path(path).exists()


def test_where_memory_has_no_path_the_file_is_private_and_goes_at_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with temporary_file(b"key") as path:
        assert Path(path).parent == tmp_path
        assert Path(path).read_bytes() == b"key"
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert list(tmp_path.iterdir()) == []


def test_a_repr_shows_no_key_material(authority) -> None:
    shown = repr(key_pair(authority.issue("a.test")))
    assert "cert-field" in shown
    assert "BEGIN" not in shown
