"""Client certificates on real sockets: known CAs authenticate users, unknown ones are rejected or ignored."""

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
from weakref import WeakSet

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from tapestry.apiserver.access import client_certificates, openssl
from tapestry.apiserver.access.authentication import Credentials, authenticate_certificate
from tapestry.apiserver.access.certificates import (
    CertificateAuthority,
    server_ssl_context,
    subject_name,
    write_private_file,
)
from tapestry.apiserver.access.client_certificates import is_verified, request_client_certificates
from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import User
from tapestry.apiserver.serving.http_handler import PEER_CERTIFICATES, PeerCertificate, verified_subject

WHOAMI = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
Files = tuple[Path, Path]
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@dataclass(frozen=True)
class CertificateServer:
    """A server with its own CA that also accepts client certificates of other CAs."""

    folder: Path
    host: str
    port: int

    @property
    def authority(self) -> CertificateAuthority:
        return CertificateAuthority(self.folder / "pki")

    async def whoami(self, files: Files | None, token: str = "", version: Any = None) -> tuple[int, str]:
        """Return the status of a response, and the user name, or the reason of an error."""
        context = ssl.create_default_context(cafile=str(self.authority.certificate_file))
        if files is not None:
            context.load_cert_chain(*files)
        if version is not None:
            context.maximum_version = version
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=context, server_hostname="localhost")
        authorization = f"Authorization: Bearer {token}\r\n" if token else ""
        request_head = f"POST {WHOAMI} HTTP/1.1\r\nHost: localhost\r\n{authorization}Content-Type: application/json\r\n"
        writer.write(f"{request_head}Content-Length: 2\r\nConnection: close\r\n\r\n{{}}".encode())
        async with asyncio.timeout(10):
            response = await reader.read()
        writer.close()
        first, _, body = response.decode().partition("\r\n\r\n")
        result = json.loads(body)
        return int(first.split()[1]), result["reason"] if "reason" in result else result["status"]["userInfo"][
            "username"
        ]


def other_authorities(folder: Path) -> list[CertificateAuthority]:
    """Return the other accepted CAs."""
    return [CertificateAuthority(folder / "other_cas"), CertificateAuthority(folder / "other_cas", "others")]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[CertificateServer]:
    tokens = tmp_path / "tokens.csv"
    write_private_file(tokens, b'secret,jane,1,"devs"\n')
    other_cas = tmp_path / "other_cas.crt"
    other_cas.write_text("".join(each.certificate_pem() for each in other_authorities(tmp_path)))
    config = ApiServerConfig(
        backend="memory",
        secure_address="127.0.0.1:0",
        file_rootpath=str(tmp_path / "data"),
        token_auth_file=str(tokens),
        tls=type(ApiServerConfig().tls)(client_ca=str(other_cas)),
    )
    async with run_apiserver(config) as running:
        host, _, port = running.addresses["secure"].rpartition(":")
        yield CertificateServer(tmp_path / "data", host, int(port))


def new_certificate(authority: CertificateAuthority, folder: Path, use: x509.ObjectIdentifier, days: int) -> Files:
    """Issue a certificate that the CA would not issue: for another use, or expired."""
    pair = authority.key_pair()
    assert pair is not None
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder().subject_name(subject_name("root", ["system:masters"])).issuer_name(pair[0].subject)
    )
    builder = builder.public_key(key.public_key()).serial_number(7)
    builder = builder.not_valid_before(now - timedelta(days=9)).not_valid_after(now + timedelta(days=days))
    certificate = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False).sign(pair[1], hashes.SHA256())
    files = folder / "bad.crt", folder / "bad.key"
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *private))
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return files


def ca_files(authority: CertificateAuthority) -> Files:
    authority.certificate_pem()
    return authority.certificate_file, authority.key_file


CertificateSource = Callable[[CertificateServer, Path], Files | None]
UNKNOWN: dict[str, CertificateSource] = {
    "unknown CA": lambda _, folder: CertificateAuthority(folder / "unknown").client_certificate(
        "root", ["system:masters"]
    ),
    "expired": lambda server, folder: new_certificate(server.authority, folder, ExtendedKeyUsageOID.CLIENT_AUTH, -1),
    "other use": lambda server, folder: new_certificate(server.authority, folder, ExtendedKeyUsageOID.SERVER_AUTH, 9),
    "a CA itself": lambda _, folder: ca_files(CertificateAuthority(folder / "unknown")),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("source", UNKNOWN.values(), ids=UNKNOWN)
async def test_unknown_certificate_gets_401_unless_token_is_valid(
    server: CertificateServer, tmp_path: Path, source: CertificateSource, version: Any
) -> None:
    files = source(server, tmp_path)
    assert await server.whoami(files, version=version) == (401, "Unauthorized")
    assert await server.whoami(files, "secret", version) == (201, "jane")
    assert await server.whoami(files, "wrong", version) == (401, "Unauthorized")
    known = server.authority.client_certificate("bob", ["devs"])
    assert await server.whoami(known, version=version) == (201, "bob")  # other handshakes are not affected


async def test_all_client_cas_are_accepted(server: CertificateServer, tmp_path: Path) -> None:
    for name, authority in zip(("ann", "eve"), other_authorities(tmp_path), strict=True):
        assert await server.whoami(authority.client_certificate(name, ["devs"])) == (201, name)
    assert await server.whoami(None) == (403, "Forbidden")


def test_last_common_name_is_the_user() -> None:
    user = authenticate_certificate(
        Credentials(certificate={"commonName": ["root", "jane"], "organizationName": ["devs"]})
    )
    assert user == User("jane", ("devs",))


async def test_handshake_names_client_cas(server: CertificateServer) -> None:
    command = ["openssl", "s_client", "-connect", f"{server.host}:{server.port}"]
    process = await asyncio.to_thread(subprocess.run, command, input=b"", capture_output=True, timeout=10, check=False)
    output = process.stdout.decode().partition("Acceptable client certificate CA names\n")[2]
    names = [line.rpartition("-")[0] for line in output.splitlines()[:3]]
    assert names == ["CN = tapestry-ca", "CN = tapestry-ca", "CN = tapestry-others"]


async def test_certificate_that_expires_on_open_connection_is_rejected() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True)
    PEER_CERTIFICATES[tls] = PeerCertificate({"commonName": ["jane"]}, time.time() + 60)
    assert verified_subject(tls, time.time()) == {"commonName": ["jane"]}
    assert verified_subject(tls, time.time() + 61) is None


def test_servers_of_two_cas_are_verified_with_one_file(tmp_path: Path) -> None:
    authorities = [CertificateAuthority(tmp_path / each) for each in ("a", "b")]
    bundle = tmp_path / "both.crt"
    bundle.write_text("".join(each.certificate_pem() for each in authorities))
    certificates = [x509.load_pem_x509_certificate(each.certificate_file.read_bytes()) for each in authorities]
    assert certificates[0].subject != certificates[1].subject
    for each in authorities:
        context = server_ssl_context(*each.server_certificate(["localhost"]), [bundle])
        server_after_handshake(context, bundle, each.client_certificate("jane", []))


def test_existing_ca_is_unchanged(tmp_path: Path) -> None:
    before = CertificateAuthority(tmp_path).certificate_pem()
    assert CertificateAuthority(tmp_path).certificate_pem() == before


def test_other_contexts_stay_strict(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    files, clients = authority.server_certificate(["localhost"]), [authority.certificate_file]
    strict, lenient = server_ssl_context(*files, clients), server_ssl_context(*files, clients)
    request_client_certificates(lenient, clients)
    unknown = CertificateAuthority(tmp_path / "unknown").client_certificate("root", ["system:masters"])
    with pytest.raises(ssl.SSLError):
        server_after_handshake(strict, authority.certificate_file, unknown)
    assert not is_verified(server_after_handshake(lenient, authority.certificate_file, unknown))
    assert is_verified(
        server_after_handshake(lenient, authority.certificate_file, authority.client_certificate("jane", []))
    )
    assert is_verified(
        server_after_handshake(strict, authority.certificate_file, authority.client_certificate("jane", []))
    )


def test_context_stays_strict_without_openssl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    authority = CertificateAuthority(tmp_path)
    context = server_ssl_context(*authority.server_certificate(["localhost"]), [authority.certificate_file])
    monkeypatch.setattr(openssl, "OPENSSL", None)
    monkeypatch.setattr(client_certificates, "PERMISSIVE_CONTEXTS", WeakSet())
    request_client_certificates(context, [authority.certificate_file])
    assert "cannot connect" in caplog.text
    with pytest.raises(ssl.SSLError):
        server_after_handshake(
            context,
            authority.certificate_file,
            CertificateAuthority(tmp_path / "unknown").client_certificate("root", ["system:masters"]),
        )
    assert is_verified(
        server_after_handshake(context, authority.certificate_file, authority.client_certificate("jane", []))
    )


def server_after_handshake(context: ssl.SSLContext, ca_file: Path, files: Files) -> ssl.SSLObject:
    """Return the server side of a connection after its handshake."""
    client_context = ssl.create_default_context(cafile=str(ca_file))
    client_context.load_cert_chain(*files)
    return handshake(context, client_context)[0]


def handshake(
    context: ssl.SSLContext, client_context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Return both sides of a connection after its handshake, in which the client offers the session."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname="localhost", session=session)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    unfinished = [client, server]
    while unfinished:
        for each in list(unfinished):
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                continue
            unfinished.remove(each)
    server.write(b"x")
    client.read()  # also reads session tickets
    return server, client


@pytest.mark.parametrize("version", VERSIONS)
def test_session_is_never_resumed(tmp_path: Path, version: ssl.TLSVersion) -> None:
    authority = CertificateAuthority(tmp_path)
    context = server_ssl_context(*authority.server_certificate(["localhost"]), [authority.certificate_file])
    server = repeated_handshake(authority, context, version)
    assert not server.session_reused
    assert is_verified(server)


def test_certificate_of_resumed_session_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openssl, "OPENSSL", None)
    authority = CertificateAuthority(tmp_path)
    context = server_ssl_context(*authority.server_certificate(["localhost"]), [authority.certificate_file])
    server = repeated_handshake(authority, context, ssl.TLSVersion.TLSv1_2)
    assert server.session_reused
    assert server.getpeercert()
    assert not is_verified(server)


def repeated_handshake(
    authority: CertificateAuthority, context: ssl.SSLContext, version: ssl.TLSVersion
) -> ssl.SSLObject:
    """Return the server side of the second connection of a client that offers the session of the first."""
    client_context = ssl.create_default_context(cafile=str(authority.certificate_file))
    client_context.load_cert_chain(*authority.client_certificate("jane", []))
    client_context.maximum_version = version
    _, first = handshake(context, client_context)
    return handshake(context, client_context, first.session)[0]


async def test_client_cas_are_published_in_configmap(tmp_path: Path) -> None:
    config = ApiServerConfig(backend="memory", secure_address="127.0.0.1:0", file_rootpath=str(tmp_path))
    async with run_apiserver(config) as running:
        result = running.store.get("configmaps", "kube-system", "extension-apiserver-authentication")
        assert result is not None
        data = json.loads(result.raw)["data"]
    own_ca = CertificateAuthority(tmp_path / "pki").certificate_pem()
    assert data["client-ca-file"] == own_ca
    assert data["requestheader-client-ca-file"] not in ("", own_ca)
    assert x509.load_pem_x509_certificate(data["requestheader-client-ca-file"].encode())
    assert json.loads(data["requestheader-allowed-names"]) == ["front-proxy-client"]
    for field in ("username-headers", "group-headers", "extra-headers-prefix"):
        assert json.loads(data[f"requestheader-{field}"])
