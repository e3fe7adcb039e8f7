"""Certificates for the tests of credentials, created once and valid for real handshakes."""

import datetime
import resource
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tapestry.client.tls import temporary_file

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    certificate: bytes
    key: bytes


class Authority:
    """A certificate authority.  Its certificates are valid for a day, for clients and servers."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        certificate = self._signed(self._name, self._key, x509.BasicConstraints(ca=True, path_length=0))
        self.pem = certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str, *, password: bytes | None = None) -> Pair:
        """Return a pair for `name`, which is both its common name and its host name."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        certificate = self._signed(subject, key, x509.SubjectAlternativeName([x509.DNSName(name)]))
        encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        return Pair(
            certificate.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption),
        )

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(extension, critical=False)
            .sign(self._key, hashes.SHA256())
        )


@pytest.fixture(scope="session")
def authority() -> Authority:
    return Authority("the authority")


@pytest.fixture(scope="session")
def other_authority() -> Authority:
    return Authority("another authority")


@pytest.fixture
def client_seen_by_server(authority: Authority) -> Callable[[ssl.SSLContext], str | None]:
    """Return a handshake function: the client's common name that the server `server.test` sees."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.maximum_version = ssl.TLSVersion.TLSv1_2  # the client certificate is known when the handshake ends
    own = authority.issue("server.test")
    with temporary_file(own.certificate) as certificate, temporary_file(own.key) as key:
        server.load_cert_chain(certificate, key)
    server.load_verify_locations(cadata=authority.pem.decode())
    server.verify_mode = ssl.CERT_OPTIONAL

    def handshake(context: ssl.SSLContext) -> str | None:
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        ours = context.wrap_bio(down, up, server_hostname="server.test")
        theirs = server.wrap_bio(up, down, server_side=True)
        waiting = [ours, theirs]
        for _ in range(10):
            for side in list(waiting):
                try:
                    side.do_handshake()
                    waiting.remove(side)
                except ssl.SSLWantReadError:
                    continue
        assert not waiting
        seen = theirs.getpeercert()
        return seen["subject"][0][0][1] if seen else None

    return handshake


@pytest.fixture
def no_more_files() -> Callable[[], AbstractContextManager[None]]:
    """Return a context in which the process cannot open any more files."""

    @contextmanager
    def limited() -> Iterator[None]:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    return limited
