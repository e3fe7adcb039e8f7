"""Client certificates for users, issued on the machine of the server for minutes to a year."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from tapestry.apiserver.access.certificates import (
    CLOCK_SKEW,
    LIFETIME,
    CertificateAuthority,
    authority_key_identifier,
    hash_for,
    key_usage,
    private_key_pem,
    subject_name,
)
from tapestry.apiserver.access.revocations import REVOCATIONS_FILE, load_revocations
from tapestry.apiserver.core.private_files import KEYS_FOLDER

MIN_LIFETIME, MAX_LIFETIME = timedelta(minutes=1), LIFETIME


@dataclass(frozen=True)
class UserCertificate:
    """A certificate that was just issued. It is not stored."""

    serial: str
    """Serial number in hexadecimal, by which the certificate can be revoked."""
    expires: datetime
    certificate_pem: bytes
    key_pem: bytes = field(repr=False)


def create_certificate(
    folder: Path, user: str, groups: Sequence[str], ttl: timedelta, now: datetime
) -> UserCertificate:
    """Issue a certificate of the CA in a data folder. Raises ValueError for invalid arguments or without a CA key."""
    if not user.strip():
        raise ValueError("a certificate needs a user: the user name is empty")
    if not MIN_LIFETIME <= ttl <= MAX_LIFETIME:
        raise ValueError(f"certificate lifetime {ttl} is not between a minute and {MAX_LIFETIME.days} days")
    authority = CertificateAuthority(folder / KEYS_FOLDER)
    pair = authority.key_pair()
    if pair is None:
        raise ValueError(f"{authority.certificate_file} has no key beside it; issue certificates where the key is")
    ca, ca_key = pair
    key, expires = (
        ec.generate_private_key(ec.SECP256R1()),
        min(now + ttl, ca.not_valid_after_utc).replace(microsecond=0),
    )
    revoked_at = load_revocations(authority.folder / REVOCATIONS_FILE).users.get(user)
    start = max(now - CLOCK_SKEW, revoked_at or now - CLOCK_SKEW)  # later than the revocation of earlier certificates
    try:
        subject = subject_name(user, groups)
    except ValueError as error:
        raise ValueError(
            f"{user}: the name or a group does not fit into a certificate: {error}; use a token"
        ) from error
    builder = (
        x509.CertificateBuilder(subject_name=subject, issuer_name=ca.subject, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(expires)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage("digital_signature", "key_encipherment"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
    )
    for extension in authority_key_identifier(ca):
        builder = builder.add_extension(extension, critical=False)
    certificate = builder.sign(ca_key, hash_for(ca_key))
    return UserCertificate(
        f"{certificate.serial_number:X}", expires, certificate.public_bytes(Encoding.PEM), private_key_pem(key)
    )
