"""Issued and revoked client certificates, on open connections of a server."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509

from tapestry.apiserver.access import reloading_file
from tapestry.apiserver.access.authentication import Credentials
from tapestry.apiserver.access.certificate_authenticator import CertificateAuthenticator, load_trusted_cas
from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.access.ephemeral_tokens import create_token
from tapestry.apiserver.access.revocations import (
    REVOCATIONS_FILE,
    Revocations,
    load_revocations,
    revoke_certificate,
    revoke_user_certificates,
)
from tapestry.apiserver.access.rotation import rotate_ca
from tapestry.apiserver.access.user_certificates import create_certificate
from tapestry.apiserver.storage import archive
from tapestry.apiserver.storage.sqlite_log import FileLog
from tapestry.cli.main import main

from ..tls_servers import HOUR, run_tls_server


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check files for changes on every request."""
    monkeypatch.setattr(reloading_file, "CHECK_INTERVAL", 0.0)


async def test_revoked_certificate_is_refused_on_open_connection(tmp_path: Path) -> None:
    async with run_tls_server(tmp_path) as server:
        first, second = server.new_certificate("jane"), server.new_certificate("jane")
        connections = [await server.connect("", each) for each in (first, second)]
        assert [await each.whoami() for each in connections] == ["jane", "jane"]
        revoke_certificate(tmp_path, first.serial, server.clock())
        assert [await each.whoami() for each in connections] == ["Unauthorized", "jane"]
        assert await (await server.connect("", first)).whoami() == "Unauthorized"


async def test_revoked_user_needs_a_new_certificate(tmp_path: Path) -> None:
    async with run_tls_server(tmp_path) as server:
        jane = await server.connect("", server.new_certificate("jane"))
        joe = await server.connect("", server.new_certificate("joe"))
        revoke_user_certificates(tmp_path, "jane", datetime.now(UTC))
        assert (await jane.whoami(), await joe.whoami()) == ("Unauthorized", "joe")
        assert await (await server.connect("", server.new_certificate("jane"))).whoami() == "jane"


async def test_token_is_accepted_beside_revoked_certificate(tmp_path: Path) -> None:
    async with run_tls_server(tmp_path) as server:
        certificate = server.new_certificate("jane")
        connection = await server.connect("", certificate)
        revoke_certificate(tmp_path, certificate.serial, server.clock())
        _, token = create_token(tmp_path, "joe", (), HOUR, server.clock())
        assert await connection.whoami(token) == "joe"


def test_certificate_has_user_groups_and_lifetime(tmp_path: Path) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    issued = create_certificate(tmp_path, "jane", ["devs", "ops"], timedelta(minutes=5), now)
    certificate = x509.load_pem_x509_certificate(issued.certificate_pem)
    assert certificate.subject.rfc4514_string() == "CN=jane,O=ops,O=devs"
    assert certificate.not_valid_after_utc == issued.expires == now + timedelta(minutes=5)
    assert f"{certificate.serial_number:X}" == issued.serial
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    certificate.verify_directly_issued_by(CertificateAuthority(tmp_path / "pki").certificates()[0])
    assert "PRIVATE" not in repr(issued)


@pytest.mark.parametrize(
    ("user", "ttl"),
    [(" ", HOUR), ("jane", timedelta(seconds=59)), ("jane", timedelta(days=366)), ("j" * 65, HOUR)],
)
def test_invalid_certificate_arguments_are_rejected(tmp_path: Path, user: str, ttl: timedelta) -> None:
    with pytest.raises(ValueError, match=r"needs a user|lifetime|does not fit"):
        create_certificate(tmp_path, user, (), ttl, datetime.now(UTC))


def test_certificate_expires_with_its_ca(tmp_path: Path) -> None:
    [ca] = CertificateAuthority(tmp_path / "pki").certificates()
    issued = create_certificate(tmp_path, "jane", (), HOUR, ca.not_valid_after_utc - timedelta(minutes=5))
    assert issued.expires == ca.not_valid_after_utc


# -- the list


def test_serials_are_compared_as_numbers(tmp_path: Path) -> None:
    revoke_certificate(tmp_path, "0a:BC\n", datetime.now(UTC))
    revocations = load_revocations(tmp_path / "pki" / REVOCATIONS_FILE)
    for serial, expected in (("ABC", True), ("0ABC", True), ("abc", True), ("ABCD", False)):
        assert revocations.is_revoked({"commonName": ["jane"], "serialNumber": [serial]}) is expected
    with pytest.raises(ValueError, match="hexadecimal"):
        revoke_certificate(tmp_path, "jane", datetime.now(UTC))


def test_certificate_without_start_is_revoked_with_its_user() -> None:
    revocations = Revocations(users={"jane": datetime(2026, 1, 1, tzinfo=UTC)})
    assert revocations.is_revoked({"commonName": ["jane"]})


def test_malformed_list_is_reported_and_previous_one_used(tmp_path: Path) -> None:
    revoke_user_certificates(tmp_path, "jane", datetime.now(UTC))
    path = tmp_path / "pki" / REVOCATIONS_FILE
    reloading = reloading_file.ReloadingFile(path, load_revocations)
    path.write_text("nonsense")
    assert "jane" in reloading().users
    with pytest.raises(ValueError, match="revocations cannot be read"):
        load_revocations(path)


def test_certificate_of_unknown_chain_is_refused(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    authority.certificate_pem()
    trusted_cas = reloading_file.ReloadingFile(authority.certificate_file, load_trusted_cas)
    authenticate = CertificateAuthenticator([trusted_cas], Revocations, lambda: datetime.now(UTC))
    for chain in ([], ["0" * 64]):
        assert authenticate(Credentials(certificate={"commonName": ["jane"], "chain": chain})) is None
    [trusted] = load_trusted_cas(authority.certificate_file)
    assert authenticate(Credentials(certificate={"commonName": ["jane"], "chain": [trusted]})) is not None


def test_backup_includes_revocations(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    FileLog(folder).close()
    revoke_user_certificates(folder, "jane", datetime.now(UTC))
    archive.back_up(folder, tmp_path / "archive")
    archive.restore(tmp_path / "archive", tmp_path / "there")
    assert "jane" in load_revocations(tmp_path / "there" / "pki" / REVOCATIONS_FILE).users


def test_command_creates_lists_and_revokes_certificates(tmp_path: Path) -> None:
    def run(name: str, *arguments: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(main, ["certificate", name, "--file-rootpath", str(tmp_path), *arguments])
        return result.exit_code, result.stdout, result.stderr

    code, pem, message = run("create", "--user", "jane", "--group", "devs", "--ttl", "30m")
    serial = f"{x509.load_pem_x509_certificate(pem.encode()).serial_number:X}"
    assert (code, "PRIVATE KEY" in pem, f"certificate {serial} of jane expires" in message) == (0, True, True)
    assert run("revoke", "--serial", serial)[:2] == (0, f"certificate {serial} is revoked\n")
    assert run("revoke", "--user", "joe")[:2] == (0, "all certificates of joe are revoked\n")
    listed = [line.split()[:2] for line in run("list")[1].splitlines()]
    assert listed[0] == ["SERIAL", "USER"]
    assert sorted(listed[1:]) == sorted([[serial, "<any>"], ["<all>", "joe"]])
    assert run("revoke")[0] == run("revoke", "--serial", serial, "--user", "joe")[0] == 2
    assert run("revoke", "--serial", "x")[0] == run("create", "--user", "jane", "--ttl", "1s")[0] == 1


async def test_new_credentials_are_accepted_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reloading_file, "CHECK_INTERVAL", 3600.0)
    async with run_tls_server(tmp_path) as server:
        connection = await server.connect("", server.new_certificate("jane"))
        assert await connection.whoami() == "jane"
        _, token = create_token(tmp_path, "joe", (), HOUR, server.clock())
        assert await connection.whoami(token) == "joe"
        rotate_ca(tmp_path, HOUR, server.clock())
        assert await (await server.connect("", server.new_certificate("ann"))).whoami() == "ann"
