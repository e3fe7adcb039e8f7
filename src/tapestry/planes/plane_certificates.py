"""The condition CertificatesExpiring of planes."""

from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.kube.conditions import new_condition
from tapestry.kube.objects import Object
from tapestry.kube.times import timestamp

CERTIFICATES_EXPIRING = "CertificatesExpiring"
WARNING_TIME = timedelta(days=30)
"""Time before the end of a certificate from which the condition is true."""


def certificates_expiring(authority: CertificateAuthority, now: datetime) -> Object | None:
    """Return the condition for the CA of a plane and the certificate that the plane presents; None without a CA.

    A CA with its key renews the certificate that the plane presents. Then only the end of the CA counts.
    """
    try:
        expires, what = end_of(authority.certificate_file), "the CA"
        if not authority.key_file.exists():
            serving = end_of(authority.folder / "apiserver.crt")
            if serving < expires:
                expires, what = serving, "the certificate of the plane"
    except (OSError, ValueError):  # the plane has none yet, or does not open with it
        return None
    is_expiring = expires - now < WARNING_TIME
    advice = "; replace the CA by `tapestry planes rotate-ca`" if is_expiring else ""
    message = f"{what} is valid until {timestamp(expires)}{advice}"
    return new_condition(CERTIFICATES_EXPIRING, is_expiring, "ExpiresSoon" if is_expiring else "Valid", message)


def end_of(file: Path) -> datetime:
    return x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc
