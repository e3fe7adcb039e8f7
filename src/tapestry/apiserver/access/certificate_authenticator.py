"""Authentication by client certificates of trusted CAs that are not revoked.

TLS verifies a certificate once per connection. Trust can end later, so each request is checked again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

from tapestry.apiserver.access.authentication import Credentials, authenticate_certificate
from tapestry.apiserver.access.certificates import fingerprint
from tapestry.apiserver.access.reloading_file import ReloadingFile
from tapestry.apiserver.access.retirements import load_retirements
from tapestry.apiserver.access.revocations import Revocations
from tapestry.apiserver.core.requests import User

TrustedCas = Mapping[str, datetime | None]
"""Trusted CAs by fingerprint, with the end of the trust if there is one."""


def load_trusted_cas(path: Path) -> TrustedCas:
    """Load the CAs of a file; empty if it does not exist. All except the first may be retired. Raises ValueError."""
    try:
        fingerprints = [fingerprint(each) for each in x509.load_pem_x509_certificates(path.read_bytes())]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: certificates cannot be read: {error}") from error
    retirements = load_retirements(path.parent)
    return {each: retirements.get(each) if number else None for number, each in enumerate(fingerprints)}


@dataclass(frozen=True)
class CertificateAuthenticator:
    """Authenticate verified client certificates while their CA is trusted and until they are revoked."""

    trusted_cas: Sequence[ReloadingFile[TrustedCas]]
    revocations: Callable[[], Revocations]
    now: Callable[[], datetime]

    def __call__(self, credentials: Credentials) -> User | None:
        user = authenticate_certificate(credentials)
        if user is None:
            return None
        chain = credentials.certificate.get("chain", ())
        is_trusted = any(self._is_trusted(chain, each()) for each in self.trusted_cas)
        if not is_trusted and not any(self._is_trusted(chain, each.latest()) for each in self.trusted_cas):
            return None
        return None if self.revocations().is_revoked(credentials.certificate) else user

    def _is_trusted(self, chain: Sequence[str], trusted: TrustedCas) -> bool:
        return any(each in trusted and ((end := trusted[each]) is None or self.now() < end) for each in chain)
