"""Certificate authority of the server, and the serving and admin certificates that it issues."""

import ipaddress
import secrets
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tapestry.apiserver.access.openssl import disable_sessions

SIGNING_KEYS = (
    ec.EllipticCurvePrivateKey,
    rsa.RSAPrivateKey,
    ed25519.Ed25519PrivateKey,
    ed448.Ed448PrivateKey,
)
KEY_USAGE_FLAGS = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
LIFETIME = timedelta(days=365)
CA_LIFETIME = timedelta(days=3650)
RENEW_BEFORE = timedelta(days=30)
CLOCK_SKEW = timedelta(hours=1)
"""Tolerance for client clocks that are behind."""


@dataclass(frozen=True)
class CertificateAuthority:
    """A CA with key and certificate in a folder; created on first use.

    Further certificates in its file are trusted too. They are CAs that were replaced recently.
    """

    folder: Path
    name: str = "ca"
    """Base name of its files."""

    @property
    def certificate_file(self) -> Path:
        return self.folder / f"{self.name}.crt"

    def certificate_pem(self) -> str:
        """Return all trusted certificates, its own first."""
        self._ensure()
        return self.certificate_file.read_text()

    def certificates(self) -> list[x509.Certificate]:
        """Return all trusted certificates, its own first."""
        return x509.load_pem_x509_certificates(self.certificate_pem().encode())

    def server_certificate(self, names: Sequence[str]) -> tuple[Path, Path]:
        """Return the certificate and key files for these host names and addresses; issue them if needed.

        A certificate of a CA that was replaced is kept while that CA is trusted, for clients that know only that CA.
        """
        files = self.folder / "apiserver.crt", self.folder / "apiserver.key"
        if not is_current_for(files[0], names, self._issuers()):
            alternatives = x509.SubjectAlternativeName([alternative_name(each) for each in names])
            self._issue(files, subject_name("tapestry-apiserver"), [alternatives], ExtendedKeyUsageOID.SERVER_AUTH)
        return files

    def client_certificate(self, name: str, groups: Sequence[str]) -> tuple[Path, Path]:
        """Return the certificate and key files of a client; issue them if needed."""
        files = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        if not is_current_for(files[0], (), self._issuers()[:1]):
            self._issue(files, subject_name(name, groups), [], ExtendedKeyUsageOID.CLIENT_AUTH)
        return files

    @property
    def key_file(self) -> Path:
        return self.folder / f"{self.name}.key"

    @property
    def can_sign(self) -> bool:
        """True if the key exists or will be created; False if only a certificate was provided."""
        return self.key_file.exists() or not self.certificate_file.exists()

    def key_pair(self) -> tuple[x509.Certificate, CertificateIssuerPrivateKeyTypes] | None:
        """Return the certificate and the key of the CA; None without a key. Raises ValueError if they do not match."""
        self._ensure()
        if not self.key_file.exists():
            return None
        key = serialization.load_pem_private_key(self.key_file.read_bytes(), None)
        if not isinstance(key, SIGNING_KEYS):
            raise ValueError(f"{self.key_file}: a key of this type cannot sign certificates")
        certificate = x509.load_pem_x509_certificate(self.certificate_file.read_bytes())
        if certificate.public_key() != key.public_key():
            raise ValueError(f"{self.key_file}: this is not the key of {self.certificate_file}")
        return certificate, key

    def _issuers(self) -> list[x509.Certificate]:
        """Return the CAs one of which must have issued a certificate; empty if another program manages the CA."""
        certificates = self.certificates()
        return certificates if self.key_file.exists() else []

    def _ensure(self) -> None:
        key_file = self.key_file
        if self.certificate_file.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        # its own subject, so that clients with several CAs in one file find the right one
        name, now = subject_name(f"tapestry-{self.name}-{secrets.token_hex(4)}"), datetime.now(UTC)
        builder = self._builder(name, name, key.public_key(), now, CA_LIFETIME)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(key_usage("key_cert_sign", "crl_sign", "digital_signature"), critical=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = builder.add_extension(identifier, critical=False)
        write_private_file(key_file, private_key_pem(key))
        write_private_file(
            self.certificate_file, builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )

    def _issue(
        self, at: tuple[Path, Path], name: x509.Name, extensions: list[x509.ExtensionType], use: x509.ObjectIdentifier
    ) -> None:
        pair = self.key_pair()
        if pair is None:
            raise ValueError(f"{at[0]}: cannot be issued, because {self.certificate_file} has no key ({self.key_file})")
        authority, authority_key = pair
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(name, authority.subject, key.public_key(), datetime.now(UTC), LIFETIME)
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        for extension in (*extensions, *authority_key_identifier(authority)):
            builder = builder.add_extension(extension, critical=False)
        write_private_file(at[1], private_key_pem(key))
        write_private_file(
            at[0], builder.sign(authority_key, hash_for(authority_key)).public_bytes(serialization.Encoding.PEM)
        )

    def _builder(
        self, name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, life: timedelta
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SKEW)
            .not_valid_after(now + life)
        )


def front_proxy_ca(folder: Path) -> CertificateAuthority:
    """Return the CA of the certificate with which a server with this data folder calls aggregated API servers."""
    return CertificateAuthority(folder / "pki", "front-proxy-ca")


def hash_for(key: CertificateIssuerPrivateKeyTypes) -> hashes.SHA256 | None:
    """Return the hash for signatures with this key; None for key types with a built-in hash."""
    return None if isinstance(key, ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey) else hashes.SHA256()


def authority_key_identifier(ca: x509.Certificate) -> list[x509.ExtensionType]:
    """Return the extension that identifies the key of the issuer, since several CAs may have the same name."""
    try:
        identifier = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return []
    return [x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)]


def key_usage(*flags: str) -> x509.KeyUsage:
    """Return the KeyUsage extension with these flags."""
    return x509.KeyUsage(**{name: name in flags for name in KEY_USAGE_FLAGS})


def subject_name(name: str, groups: Sequence[str] = ()) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def alternative_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def is_current_for(path: Path, names: Sequence[str], issuers: Sequence[x509.Certificate]) -> bool:
    """Return whether a certificate exists, is not about to expire, has these names, and has one of these issuers."""
    if not path.exists():
        return False
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    if certificate.not_valid_after_utc - datetime.now(UTC) < RENEW_BEFORE:
        return False
    if issuers and not any(is_issued_by(certificate, each) for each in issuers):
        return False
    if not names:
        return True
    present = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {alternative_name(each) for each in names} <= set(present)


def is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):  # another name, another type of key, or another key
        return False
    return True


def fingerprint(certificate: x509.Certificate) -> str:
    return certificate.fingerprint(hashes.SHA256()).hex()


def private_key_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def write_private_file(path: Path, content: bytes) -> None:
    """Write a file atomically, readable only by its owner from the first byte."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.touch(mode=0o600)
    temporary.write_bytes(content)
    temporary.replace(path)  # atomic


def server_ssl_context(certificate: Path, key: Path, client_cas: Sequence[Path]) -> ssl.SSLContext:
    """Return the TLS context of a listener; client certificates are optional."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    disable_sessions(context)
    context.load_cert_chain(certificate, key)
    for ca_file in client_cas:
        context.load_verify_locations(ca_file)
    context.verify_mode = ssl.CERT_OPTIONAL if client_cas else ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context
