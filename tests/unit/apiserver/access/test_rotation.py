"""Rotation of the CA and of signing keys: what is trusted before, during and after the overlap, and after crashes."""

import asyncio
import json
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509

from tapestry.apiserver import ca_publisher
from tapestry.apiserver.access import certificates, reloading_file, tls_contexts
from tapestry.apiserver.access.certificates import CertificateAuthority, fingerprint
from tapestry.apiserver.access.retirements import RETIREMENTS_FILE, load_retirements
from tapestry.apiserver.access.rotation import (
    finish_rotations,
    has_rotation,
    rotate_ca,
    rotate_signing_key,
)
from tapestry.apiserver.access.token_keys import load_token_keys
from tapestry.apiserver.access.user_certificates import create_certificate
from tapestry.apiserver.app import RunningServer
from tapestry.apiserver.bootstrap import create_if_missing
from tapestry.apiserver.core.requests import APISERVER_USER
from tapestry.cli.main import main
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controlplane.app import control_plane_manager
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.resources import CONFIGMAPS

from ..tls_servers import HOUR, run_tls_server


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check files for changes on every request, and publish changes at once."""
    monkeypatch.setattr(reloading_file, "CHECK_INTERVAL", 0.0)
    monkeypatch.setattr(ca_publisher, "CHECK_SECONDS", 0.01)


async def test_old_ca_is_trusted_until_overlap_ends(tmp_path: Path) -> None:
    async with run_tls_server(tmp_path) as server:
        old_ca = server.authority.certificate_pem()
        open_before = await server.connect(old_ca, server.new_certificate("jane"))
        assert await open_before.whoami() == "jane"
        new_ca = rotate_ca(tmp_path, HOUR, server.clock())
        both = server.authority.certificate_pem()
        assert both.endswith(old_ca)
        assert x509.load_pem_x509_certificate(both.encode()) == new_ca
        await server.wait_for_published(both)

        assert await open_before.whoami() == "jane"
        knows_old = await server.connect(old_ca)
        assert (knows_old.server_issuer, await knows_old.whoami()) == (open_before.server_issuer, "Forbidden")
        with_new = await server.connect(both, server.new_certificate("joe"))
        assert await with_new.whoami() == "joe"

        server.clock.offset = HOUR
        only_new = both.removesuffix(old_ca)
        await server.wait_for_published(only_new)
        assert server.authority.certificate_pem() == only_new
        assert await open_before.whoami() == "Unauthorized"
        assert await with_new.whoami() == "joe"
        after = await server.connect(only_new, server.new_certificate("ann"))
        assert (after.server_issuer, await after.whoami()) == (new_ca.subject, "ann")
        with pytest.raises(ssl.SSLCertVerificationError):
            await server.connect(old_ca)
        assert not has_rotation(tmp_path)


async def test_old_certificate_is_refused_in_new_connection_without_overlap(tmp_path: Path) -> None:
    async with run_tls_server(tmp_path) as server:
        old = server.new_certificate("jane")
        for overlap, expected in ((HOUR, "jane"), (timedelta(0), "Unauthorized")):
            rotate_ca(tmp_path, overlap, server.clock())
            assert await (await server.connect("", old)).whoami() == expected


async def test_trust_ends_even_if_files_cannot_be_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_tls_server(tmp_path) as server:
        connection = await server.connect("", server.new_certificate("jane"))
        old_ca = server.authority.certificate_pem()
        rotate_ca(tmp_path, HOUR, server.clock())
        both = server.authority.certificate_pem()
        await server.wait_for_published(both)
        assert await connection.whoami() == "jane"

        failed, loop = asyncio.Event(), asyncio.get_running_loop()

        def fail(*_: object) -> None:
            loop.call_soon_threadsafe(failed.set)
            raise OSError("disk full")

        with monkeypatch.context() as patch:
            patch.setattr(ca_publisher, "finish_rotations", fail)
            server.clock.offset = HOUR
            assert await connection.whoami() == "Unauthorized"
            await asyncio.wait_for(failed.wait(), 10)
        await server.wait_for_published(both.removesuffix(old_ca))


async def test_rotated_ca_is_published_in_every_namespace(tmp_path: Path) -> None:
    async with run_tls_server(tmp_path, controllers=["accounts"]) as server, asyncio.TaskGroup() as group:
        manager = control_plane_manager(server.running.request_handler, server.running.ca_bundle, ["accounts"])
        task = group.create_task(manager.run())
        client = Client(InProcessTransport(server.running.request_handler, APISERVER_USER))
        rotate_ca(tmp_path, HOUR, server.clock())
        both = server.authority.certificate_pem()
        for namespace in ("default", "kube-public"):
            await wait_for(
                *(client, CONFIGMAPS, "kube-root-ca.crt", namespace),
                until=lambda each: each is not None and each["data"]["ca.crt"] == both,
                timeout=10,
            )
        manager.stop()
        await task


async def test_restarted_server_ends_overlap(tmp_path: Path) -> None:
    CertificateAuthority(tmp_path / "pki").certificate_pem()
    rotate_ca(tmp_path, HOUR, datetime.now(UTC) - 2 * HOUR)
    async with run_tls_server(tmp_path) as server:
        [certificate] = server.authority.certificates()
        assert server.published()["client-ca-file"] == server.authority.certificate_pem()
        assert server.running.ca_bundle.pem == server.authority.certificate_pem()
        connection = await server.connect()
        assert connection.server_issuer == certificate.subject
    assert not (tmp_path / "pki" / RETIREMENTS_FILE).exists()


async def test_running_server_renews_its_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_contexts, "RENEWAL_CHECK_SECONDS", 0.0)
    async with run_tls_server(tmp_path) as server:
        first, second = await server.connect(), await server.connect()
        assert first.server_certificate == second.server_certificate
        monkeypatch.setattr(certificates, "RENEW_BEFORE", certificates.LIFETIME)
        assert (await server.connect()).server_certificate != first.server_certificate


def test_further_rotation_keeps_cas_in_their_overlap(tmp_path: Path) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    authority = CertificateAuthority(tmp_path / "pki")
    own = CertificateAuthority(tmp_path / "other").certificate_pem()
    [first] = authority.certificates()
    authority.certificate_file.write_text(authority.certificate_pem() + own)  # added by an operator
    second = rotate_ca(tmp_path, HOUR, now)
    third = rotate_ca(tmp_path, HOUR, now + HOUR / 2)
    [added] = x509.load_pem_x509_certificates(own.encode())
    assert authority.certificates() == [third, second, first, added]
    assert finish_rotations(tmp_path, now + HOUR) == now + 1.5 * HOUR
    assert authority.certificates() == [third, second, added]
    fourth = rotate_ca(tmp_path, timedelta(0), now + HOUR)
    assert authority.certificates() == [fourth, added]


def test_private_key_of_replaced_ca_is_deleted(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "pki")
    authority.certificate_pem()
    old_key = authority.key_file.read_bytes()
    rotate_ca(tmp_path, HOUR, datetime.now(UTC))
    assert old_key not in [each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()]
    assert authority.key_pair() is not None


def test_ca_without_key_is_not_rotated(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "pki")
    authority.certificate_pem()
    authority.key_file.unlink()
    with pytest.raises(ValueError, match="has no key beside it"):
        rotate_ca(tmp_path, HOUR, datetime.now(UTC))
    with pytest.raises(ValueError, match="has no key beside it"):
        create_certificate(tmp_path, "jane", [], HOUR, datetime.now(UTC))


@pytest.mark.parametrize("overlap", [timedelta(seconds=-1), timedelta(days=366)])
def test_invalid_overlap_is_rejected(tmp_path: Path, overlap: timedelta) -> None:
    for rotate in (rotate_ca, rotate_signing_key):
        with pytest.raises(ValueError, match="overlap"):
            rotate(tmp_path, overlap, datetime.now(UTC))


# -- crashes

KILLED = """
import os, sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.access.rotation import finish_rotations, rotate_ca, rotate_signing_key
from tapestry.apiserver.access.token_keys import load_token_keys

EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")
os.fsync = lambda _: None  # a kill loses nothing that was written
root, step = Path(sys.argv[1]), 0
while True:
    folder, step = root / str(step + 1), step + 1
    CertificateAuthority(folder / "pki").certificate_pem()
    load_token_keys(folder / "pki" / "service-accounts.key")
    child = os.fork()
    if not child:
        remaining = step

        def kill(event, arguments):
            global remaining
            if event in EVENTS and (event != "open" or arguments[2] & (os.O_WRONLY | os.O_RDWR)):
                remaining -= 1
                if remaining < 0:
                    os._exit(9)

        sys.addaudithook(kill)
        rotate_signing_key(folder, timedelta(hours=1), datetime(2026, 1, 1, tzinfo=UTC))
        rotate_ca(folder, timedelta(hours=1), datetime(2026, 1, 1, tzinfo=UTC))
        finish_rotations(folder, datetime(2026, 1, 1, 2, tzinfo=UTC))
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
print(step)
"""


def test_killed_rotation_leaves_a_usable_ca(tmp_path: Path) -> None:
    """A child process is killed before each of its changes of the file system, one after another."""
    result = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, timeout=120, check=True)
    steps = int(result.stdout)
    assert steps > 30
    for step in range(1, steps + 1):
        folder = tmp_path / str(step)
        if has_rotation(folder):
            finish_rotations(folder, datetime(2026, 1, 1, tzinfo=UTC))
        authority = CertificateAuthority(folder / "pki")
        pair = authority.key_pair()  # raises ValueError if certificate and key do not match
        assert pair is not None
        retirements = load_retirements(folder / "pki")
        assert {fingerprint(each) for each in authority.certificates()[1:]} <= retirements.keys()
        assert load_token_keys(folder / "pki" / "service-accounts.key").sign({})
        assert [each.name for each in (folder / "pki").iterdir() if each.name.startswith(".")] == []
        finish_rotations(folder, datetime(2026, 1, 1, 2, tzinfo=UTC))
        assert len(authority.certificates()) == 1


# -- signing keys


async def test_tokens_of_replaced_key_are_valid_until_overlap_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished, loop = asyncio.Event(), asyncio.get_running_loop()

    def finish(folder: Path, now: datetime) -> datetime | None:
        if (end := finish_rotations(folder, now)) is None:
            loop.call_soon_threadsafe(finished.set)
        return end

    monkeypatch.setattr(ca_publisher, "finish_rotations", finish)
    async with run_tls_server(tmp_path) as server:
        connection = await server.connect()
        accounts = server.running.account_tokens
        await add_account(server.running)
        version = server.running.store.get("serviceaccounts", "default", "robot")
        assert version is not None
        account = json.loads(version.raw)
        old = accounts.issue_token(account, {"expirationSeconds": 7200}, None)["token"]
        key_id = rotate_signing_key(tmp_path, HOUR, server.clock())
        new = accounts.issue_token(account, {"expirationSeconds": 7200}, None)["token"]
        assert accounts.keys().jwks[0]["kid"] == key_id
        assert len(accounts.keys().jwks) == 2
        for token in (old, new):
            assert await connection.whoami(token) == "system:serviceaccount:default:robot"
        server.clock.offset = HOUR
        assert await connection.whoami(old) == "Unauthorized"
        assert await connection.whoami(new) == "system:serviceaccount:default:robot"
        assert len(accounts.keys().jwks) == 1
        await asyncio.wait_for(finished.wait(), 10)
        assert not has_rotation(tmp_path)


async def add_account(running: RunningServer) -> None:
    account = {"metadata": {"name": "robot", "namespace": "default"}}
    await create_if_missing(running.server, "", "serviceaccounts", account)


def test_signing_key_without_overlap_replaces_all(tmp_path: Path) -> None:
    path, now = tmp_path / "pki" / "service-accounts.key", datetime(2026, 1, 1, tzinfo=UTC)
    first = load_token_keys(path)
    rotate_signing_key(tmp_path, HOUR, now)
    assert load_token_keys(path).verified_claims(first.sign({"a": 1})) == {"a": 1}
    rotate_signing_key(tmp_path, timedelta(0), now)
    assert load_token_keys(path).verified_claims(first.sign({"a": 1})) is None
    assert path.read_text().count("BEGIN") == 1


def test_public_part_of_replaced_signing_key_remains(tmp_path: Path) -> None:
    path = tmp_path / "pki" / "service-accounts.key"
    load_token_keys(path)
    rotate_signing_key(tmp_path, HOUR, datetime.now(UTC))
    assert (path.read_text().count("BEGIN PRIVATE KEY"), path.read_text().count("BEGIN PUBLIC KEY")) == (1, 1)
    assert path.stat().st_mode & 0o077 == 0
    finish_rotations(tmp_path, datetime.now(UTC) + HOUR)
    assert path.read_text().count("BEGIN") == 1


def test_foreign_signing_key_is_not_rotated(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--service-account-signing-key-file"):
        rotate_signing_key(tmp_path, HOUR, datetime.now(UTC))


def test_commands_rotate_and_tell_the_end_of_the_overlap(tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["apiserver", *arguments, "--file-rootpath", str(tmp_path)])
        return result.exit_code, result.output

    code, output = run("rotate-ca")
    assert (code, "first start" in output) == (1, True)
    authority = CertificateAuthority(tmp_path / "pki")
    [old] = authority.certificates()
    keys = load_token_keys(tmp_path / "pki" / "service-accounts.key")
    code, output = run("rotate-ca", "--overlap", "2h")
    assert (code, "earlier CAs are trusted until" in output) == (0, True)
    assert authority.certificates()[1:] == [old]
    code, output = run("rotate-ca", "--overlap", "0s")
    assert (code, "earlier CAs are not trusted" in output) == (0, True)
    assert len(authority.certificates()) == 1
    code, output = run("rotate-signing-key")
    assert (code, "earlier tokens are valid until" in output) == (0, True)
    assert keys.jwks[0] in load_token_keys(tmp_path / "pki" / "service-accounts.key").jwks
    code, output = run("rotate-signing-key", "--overlap", "soon")
    assert (code, "--overlap" in output) == (1, True)
