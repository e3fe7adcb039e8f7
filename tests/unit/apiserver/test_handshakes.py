"""Client certificates on real sockets: known ones say who somebody is, others neither help nor hurt."""

import asyncio
import json
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from tapestry.apiserver.access import client_certificates
from tapestry.apiserver.access.authentication import Credentials, authenticate_certificate
from tapestry.apiserver.access.certificates import (
    CertificateAuthority,
    server_ssl_context,
    subject_name,
    write_private_file,
)
from tapestry.apiserver.access.client_certificates import is_verified, request_client_certificates
from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.config import ApiServerConfig
from tapestry.apiserver.requests import User
from tapestry.apiserver.serving.http_handler import PEER_CERTIFICATES, PeerCertificate, verified_subject

WHOAMI = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
Files = tuple[Path, Path]


@dataclass(frozen=True)
class Place:
    """A server that has one CA, and knows the clients of another as well."""

    folder: Path
    host: str
    port: int

    @property
    def authority(self) -> CertificateAuthority:
        return CertificateAuthority(self.folder / "pki")

    async def whoami(self, files: Files | None, token: str = "", version: Any = None) -> tuple[int, str]:
        """The status of an answer, and the user that it names, or the reason of a refusal."""
        context = ssl.create_default_context(cafile=str(self.authority.certificate_file))
        if files is not None:
            context.load_cert_chain(*files)
        if version is not None:
            context.maximum_version = version
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=context, server_hostname="localhost")
        shown = f"Authorization: Bearer {token}\r\n" if token else ""
        head = f"POST {WHOAMI} HTTP/1.1\r\nHost: localhost\r\n{shown}Content-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: 2\r\nConnection: close\r\n\r\n{{}}".encode())
        async with asyncio.timeout(10):
            answer = await reader.read()
        writer.close()
        first, _, body = answer.decode().partition("\r\n\r\n")
        found = json.loads(body)
        return int(first.split()[1]), found["reason"] if "reason" in found else found["status"]["userInfo"]["username"]


def friends_of(folder: Path) -> list[CertificateAuthority]:
    """Other CAs whose clients are known; one has the name of the server's own."""
    return [CertificateAuthority(folder / "friends"), CertificateAuthority(folder / "friends", "others")]


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    tokens = tmp_path / "tokens.csv"
    write_private_file(tokens, b'secret,jane,1,"devs"\n')
    friends = tmp_path / "friends.crt"
    friends.write_text("".join(each.certificate_pem() for each in friends_of(tmp_path)))
    config = ApiServerConfig(
        backend="memory",
        secure_address="127.0.0.1:0",
        file_rootpath=str(tmp_path / "data"),
        token_auth_file=str(tokens),
        tls=type(ApiServerConfig().tls)(client_ca=str(friends)),
    )
    async with run_apiserver(config) as served:
        host, _, port = served.addresses["secure"].rpartition(":")
        yield Place(tmp_path / "data", host, int(port))


def a_certificate(authority: CertificateAuthority, folder: Path, use: x509.ObjectIdentifier, days: int) -> Files:
    """One that a CA would not give out: for another use, or expired."""
    pair = authority.key_pair()
    assert pair is not None
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder().subject_name(subject_name("root", ["system:masters"])).issuer_name(pair[0].subject)
    )
    builder = builder.public_key(key.public_key()).serial_number(7)
    builder = builder.not_valid_before(now - timedelta(days=9)).not_valid_after(now + timedelta(days=days))
    made = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False).sign(pair[1], hashes.SHA256())
    files = folder / "bad.crt", folder / "bad.key"
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *private))
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return files


def itself(authority: CertificateAuthority) -> Files:
    authority.certificate_pem()
    return authority.certificate_file, authority.key_file


Show = Callable[[Place, Path], Files | None]
UNKNOWN: dict[str, Show] = {
    "unknown CA": lambda _, folder: CertificateAuthority(folder / "strangers").client_certificate(
        "root", ["system:masters"]
    ),
    "expired": lambda place, folder: a_certificate(place.authority, folder, ExtendedKeyUsageOID.CLIENT_AUTH, -1),
    "other use": lambda place, folder: a_certificate(place.authority, folder, ExtendedKeyUsageOID.SERVER_AUTH, 9),
    "a CA itself": lambda _, folder: itself(CertificateAuthority(folder / "strangers")),
}


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("show", UNKNOWN.values(), ids=UNKNOWN)
async def test_an_unknown_certificate_is_unauthorized_and_a_token_beside_it_is_good(
    place: Place, tmp_path: Path, show: Show, version: Any
) -> None:
    files = show(place, tmp_path)
    assert await place.whoami(files, version=version) == (401, "Unauthorized")
    assert await place.whoami(files, "secret", version) == (201, "jane")
    assert await place.whoami(files, "wrong", version) == (401, "Unauthorized")
    known = place.authority.client_certificate("bob", ["devs"])
    assert await place.whoami(known, version=version) == (201, "bob")  # nobody else's handshake suffers


async def test_clients_of_all_cas_are_known_and_without_a_certificate_one_is_anonymous(
    place: Place, tmp_path: Path
) -> None:
    for name, authority in zip(("ann", "eve"), friends_of(tmp_path), strict=True):
        assert await place.whoami(authority.client_certificate(name, ["devs"])) == (201, name)
    assert await place.whoami(None) == (403, "Forbidden")


def test_of_several_common_names_the_last_is_the_user() -> None:
    user = authenticate_certificate(
        Credentials(certificate={"commonName": ["root", "jane"], "organizationName": ["devs"]})
    )
    assert user == User("jane", ("devs",))


async def test_the_handshake_names_the_cas_of_clients(place: Place) -> None:
    command = ["openssl", "s_client", "-connect", f"{place.host}:{place.port}"]
    done = await asyncio.to_thread(subprocess.run, command, input=b"", capture_output=True, timeout=10, check=False)
    said = done.stdout.decode().partition("Acceptable client certificate CA names\n")[2]
    assert said.splitlines()[:2] == ["CN = tapestry-ca", "CN = tapestry-others"]


async def test_a_certificate_that_expires_while_connected_is_good_no_longer() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True)
    PEER_CERTIFICATES[tls] = PeerCertificate({"commonName": ["jane"]}, time.time() + 60)
    assert verified_subject(tls, time.time()) == {"commonName": ["jane"]}
    assert verified_subject(tls, time.time() + 61) is None


def test_other_contexts_stay_strict(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    files, clients = authority.server_certificate(["localhost"]), [authority.certificate_file]
    strict, lenient = server_ssl_context(*files, clients), server_ssl_context(*files, clients)
    request_client_certificates(lenient, clients)
    strangers = CertificateAuthority(tmp_path / "strangers").client_certificate("root", ["system:masters"])
    with pytest.raises(ssl.SSLError):
        shaken(strict, authority, strangers)
    assert not is_verified(shaken(lenient, authority, strangers))
    assert is_verified(shaken(lenient, authority, authority.client_certificate("jane", [])))
    assert is_verified(shaken(strict, authority, authority.client_certificate("jane", [])))


def test_a_context_stays_strict_where_openssl_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    authority = CertificateAuthority(tmp_path)
    context = server_ssl_context(*authority.server_certificate(["localhost"]), [authority.certificate_file])
    monkeypatch.setattr(client_certificates, "OPENSSL", None)
    monkeypatch.setattr(client_certificates, "PERMISSIVE_CONTEXTS", set())
    request_client_certificates(context, [authority.certificate_file])
    assert "cannot connect" in caplog.text
    with pytest.raises(ssl.SSLError):
        shaken(
            context,
            authority,
            CertificateAuthority(tmp_path / "strangers").client_certificate("root", ["system:masters"]),
        )
    assert is_verified(shaken(context, authority, authority.client_certificate("jane", [])))


def shaken(context: ssl.SSLContext, authority: CertificateAuthority, files: Files) -> ssl.SSLObject:
    """The server's end of a connection, after its handshake."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    own = ssl.create_default_context(cafile=str(authority.certificate_file))
    own.load_cert_chain(*files)
    client = own.wrap_bio(to_client, to_server, server_hostname="localhost")
    server = context.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, server]
    while waiting:
        for each in list(waiting):
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(each)
    return server


async def test_others_learn_how_clients_and_front_proxies_are_known(tmp_path: Path) -> None:
    config = ApiServerConfig(backend="memory", secure_address="127.0.0.1:0", file_rootpath=str(tmp_path))
    async with run_apiserver(config) as served:
        found = served.store.get("configmaps", "kube-system", "extension-apiserver-authentication")
        assert found is not None
        data = json.loads(found.raw)["data"]
    own = CertificateAuthority(tmp_path / "pki").certificate_pem()
    assert data["client-ca-file"] == own
    assert data["requestheader-client-ca-file"] not in ("", own)
    assert x509.load_pem_x509_certificate(data["requestheader-client-ca-file"].encode())
    assert json.loads(data["requestheader-allowed-names"]) == ["front-proxy-client"]
    for field in ("username-headers", "group-headers", "extra-headers-prefix"):
        assert json.loads(data[f"requestheader-{field}"])
