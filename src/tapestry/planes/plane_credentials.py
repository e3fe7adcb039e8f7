"""Credentials that a plane accepts, read from its files without opening its store.

They decide whether a request may wake a plane. An open plane authenticates each request itself, and knows more: whether
the service account of a token still exists.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec

from tapestry.apiserver.access.authentication import Credentials, UnionAuthenticator, authenticate_certificate
from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.access.ephemeral_tokens import EphemeralTokenAuthenticator, Tokens
from tapestry.apiserver.access.reloading_file import ReloadingFile
from tapestry.apiserver.access.service_account_tokens import current_claims, service_account_user
from tapestry.apiserver.access.tls_contexts import client_ca_files
from tapestry.apiserver.access.token_keys import TokenKeys, Verifier, load_token_keys
from tapestry.apiserver.assembly import build_authenticators, signing_key_file
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.private_files import KEYS_FOLDER
from tapestry.apiserver.core.requests import User

VERIFICATION_ERRORS = (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError)
"""Errors for a certificate that a CA has not issued."""


@dataclass(frozen=True)
class SignedTokenAuthenticator:
    """Authenticate service account tokens by signature, audience and lifetime."""

    keys: Callable[[], TokenKeys | None]
    issuer: str
    audiences: Sequence[str]
    now: Callable[[], datetime]

    def __call__(self, credentials: Credentials) -> User | None:
        keys = self.keys()
        if keys is None or credentials.bearer_token.count(".") != 2:
            return None
        claims = current_claims(keys, credentials.bearer_token, self.issuer, self.audiences, self.now())
        if claims is None:
            return None
        bound = claims.get("kubernetes.io", {})
        return service_account_user(bound.get("namespace", ""), bound.get("serviceaccount", {}), None, None)


class PlaneCredentials:
    """The CA certificates, public keys and token hashes of a plane. The files are reloaded when they change."""

    def __init__(self, config: ApiServerConfig, now: Callable[[], datetime]) -> None:
        """Load the files; those that do not exist yet are empty. Raises ValueError or OSError."""
        folder, others = Path(config.file_rootpath), [*map(Path, config.service_account_key_files)]
        keys = ReloadingFile(signing_key_file(config, folder), partial(load_existing_keys, others))
        audiences = config.api_audiences or [config.service_account_issuer]
        account_tokens = SignedTokenAuthenticator(keys, config.service_account_issuer, audiences, now)
        self.authenticate = UnionAuthenticator(build_authenticators(config, now, account_tokens), allow_anonymous=False)
        """Return the user of a request. Raises Unauthorized, also for a request without credentials."""
        self._ca_files = [
            ReloadingFile(each, load_certificates)
            for each in client_ca_files(CertificateAuthority(folder / KEYS_FOLDER), config.tls)
        ]

    @property
    def client_cas(self) -> list[x509.Certificate]:
        return [certificate for file in self._ca_files for certificate in file()]


def load_existing_keys(others: Sequence[Path], signing: Path) -> TokenKeys | None:
    return load_token_keys(signing, others) if signing.exists() else None


def load_certificates(path: Path) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(path.read_bytes()) if path.exists() else []


def unknown_plane_authenticator(now: Callable[[], datetime]) -> UnionAuthenticator:
    """Return an authenticator that accepts nothing, and takes as long for it as the one of a plane."""
    private = ec.generate_private_key(ec.SECP256R1())
    keys = TokenKeys(private, [Verifier(private.public_key())])
    account_tokens = SignedTokenAuthenticator(lambda: keys, "", (), now)
    no_tokens: ReloadingFile[Tokens] = ReloadingFile(Path(), lambda _: {})
    return UnionAuthenticator(
        [EphemeralTokenAuthenticator(no_tokens, now), authenticate_certificate, account_tokens], allow_anonymous=False
    )


def is_issued_by(certificate: bytes, authorities: Sequence[x509.Certificate], now: datetime) -> bool:
    """Return whether one of the CAs has issued a certificate (DER) itself, and both are valid now."""
    parsed = x509.load_der_x509_certificate(certificate)
    return any(is_current(parsed, now) and is_current(each, now) and has_issued(each, parsed) for each in authorities)


def has_issued(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except VERIFICATION_ERRORS:
        return False
    return True


def is_current(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc
