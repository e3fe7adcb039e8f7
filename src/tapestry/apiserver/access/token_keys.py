"""Keys of service account tokens: one signs, and any number of others verify.

A replaced key verifies until its retirement, so that its tokens stay valid. Keys are elliptic (P-256, P-384, P-521) or
RSA, as in Kubernetes.
"""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from tapestry.apiserver.access.certificates import private_key_pem, write_private_file
from tapestry.apiserver.access.retirements import load_retirements
from tapestry.apiserver.core.spec_cache import bounded_cache
from tapestry.kube.objects import Object

CURVES: dict[str, tuple[str, str, hashes.HashAlgorithm]] = {
    "secp256r1": ("ES256", "P-256", hashes.SHA256()),
    "secp384r1": ("ES384", "P-384", hashes.SHA384()),
    "secp521r1": ("ES512", "P-521", hashes.SHA512()),
}
"""Algorithm, name and digest of each curve."""

TOKEN_CACHE_SIZE = 2048
"""Number of tokens whose verified signatures are cached; a verification takes 0.1 ms."""
MAX_CACHED_TOKEN_LENGTH = 1 << 13
"""Maximum length of a cached token in characters."""

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Verifier:
    """A key that verifies signatures."""

    public_key: PublicKey
    until: datetime | None = None
    """End of the trust in a replaced key."""

    @cached_property
    def id(self) -> str:
        der = self.public_key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return base64url_encoded(sha256(der).digest())

    @property
    def algorithm(self) -> str:
        return (
            CURVES[self.public_key.curve.name][0] if isinstance(self.public_key, ec.EllipticCurvePublicKey) else "RS256"
        )

    @cached_property
    def jwk(self) -> Object:
        head = {"use": "sig", "kid": self.id, "alg": self.algorithm}
        if isinstance(self.public_key, ec.EllipticCurvePublicKey):
            point = self.public_key.public_numbers()
            size = coordinate_bytes(self.public_key)
            coordinates = {
                "x": base64url_encoded(point.x.to_bytes(size, "big")),
                "y": base64url_encoded(point.y.to_bytes(size, "big")),
            }
            return {**head, "kty": "EC", "crv": CURVES[self.public_key.curve.name][1], **coordinates}
        numbers = self.public_key.public_numbers()
        return {
            **head,
            "kty": "RSA",
            "n": base64url_encoded(integer_bytes(numbers.n)),
            "e": base64url_encoded(integer_bytes(numbers.e)),
        }

    def has_signed(self, signature: bytes, body: bytes) -> bool:
        """Return whether `signature` is a valid signature of `body` by this key."""
        try:
            if isinstance(self.public_key, ec.EllipticCurvePublicKey):
                size = coordinate_bytes(self.public_key)
                if len(signature) != 2 * size:
                    return False
                r, s = (int.from_bytes(half, "big") for half in (signature[:size], signature[size:]))
                self.public_key.verify(
                    encode_dss_signature(r, s), body, ec.ECDSA(CURVES[self.public_key.curve.name][2])
                )
            else:
                self.public_key.verify(signature, body, padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature:
            return False
        return True


class TokenKeys:
    """The signing key and all verification keys; the signing key is first."""

    def __init__(self, private: PrivateKey, verifiers: Sequence[Verifier]) -> None:
        self._private = private
        self._use(verifiers)

    def _use(self, verifiers: Sequence[Verifier]) -> None:
        self._verifiers = verifiers
        self._next_end = min((each.until for each in verifiers if each.until is not None), default=None)
        self.verified_claims = bounded_cache(TOKEN_CACHE_SIZE, MAX_CACHED_TOKEN_LENGTH)(
            partial(claims_of, self._verifiers)
        )
        """Return the claims of a token with a valid signature, even if expired; None for any other token."""

    def drop_retired(self, now: datetime) -> None:
        """Stop accepting replaced keys that are retired now."""
        if self._next_end is not None and now >= self._next_end:
            self._use([each for each in self._verifiers if each.until is None or each.until > now])

    def sign(self, claims: Object) -> str:
        first = self._verifiers[0]
        body = f"{json_segment({'alg': first.algorithm, 'kid': first.id})}.{json_segment(claims)}"
        if isinstance(self._private, ec.EllipticCurvePrivateKey):
            raw = self._private.sign(body.encode(), ec.ECDSA(CURVES[self._private.curve.name][2]))
            size = coordinate_bytes(self._private.public_key())
            signature = b"".join(each.to_bytes(size, "big") for each in decode_dss_signature(raw))
        else:
            signature = self._private.sign(body.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{body}.{base64url_encoded(signature)}"

    @property
    def jwks(self) -> list[Object]:
        return [each.jwk for each in self._verifiers]


def claims_of(verifiers: Sequence[Verifier], token: str) -> Object | None:
    """Return the claims of a token that one of the keys has signed; None for any other token."""
    body, _, signature = token.rpartition(".")
    header, _, payload = body.partition(".")
    try:
        parameters, raw = msgspec.json.decode(base64url_decoded(header)), base64url_decoded(signature)
        kid = parameters.get("kid") if isinstance(parameters, dict) else None
        candidates = [each for each in verifiers if each.id == kid] or verifiers
        if not any(each.has_signed(raw, body.encode()) for each in candidates):
            return None
        result = msgspec.json.decode(base64url_decoded(payload))
    except (ValueError, RecursionError):
        return None
    return result if isinstance(result, dict) else None


def load_token_keys(signing: Path, others: Iterable[Path] = ()) -> TokenKeys:
    """Load the signing key, which is created if missing, and additional private or public keys.

    The first private key of `signing` signs. The other keys of the file verify until they are retired.
    """
    if not signing.exists():
        signing.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private_file(signing, private_key_pem(ec.generate_private_key(ec.SECP256R1())))
    private, replaced = load_signing_keys(signing)
    retirements = load_retirements(signing.parent)
    verifiers = [Verifier(private.public_key()), *(replace(each, until=retirements.get(each.id)) for each in replaced)]
    for path in others:
        verifiers += [Verifier(public_key_of(key)) for key in load_pem_keys(path)]
    unique: dict[str, Verifier] = {}
    for each in verifiers:
        unique.setdefault(each.id, each)
    return TokenKeys(private, list(unique.values()))


def load_signing_keys(path: Path) -> tuple[PrivateKey, list[Verifier]]:
    """Return the first private key of a file, and the other keys, which it has replaced."""
    keys = load_pem_keys(path)
    private = next((key for key in keys if not isinstance(key, PublicKey)), None)
    if private is None:
        raise ValueError(f"{path}: the file has no private key to sign tokens with")
    return private, [Verifier(public_key_of(key)) for key in keys if key is not private]


def public_key_of(key: PublicKey | PrivateKey) -> PublicKey:
    return key if isinstance(key, PublicKey) else key.public_key()


def load_pem_keys(path: Path) -> list[PublicKey | PrivateKey]:
    """Return all keys of a PEM file."""
    end = b"-----END"
    blocks = [block for block in path.read_bytes().split(b"-----BEGIN ") if end in block and b"PARAMETERS" not in block]
    result = [parse_pem_key(b"-----BEGIN " + block, path) for block in blocks]
    if not result:
        raise ValueError(f"{path}: the file has no PEM key")
    return result


def parse_pem_key(pem: bytes, path: Path) -> PublicKey | PrivateKey:
    try:
        if b"PRIVATE KEY" in pem:
            key: Any = serialization.load_pem_private_key(pem, None)
        else:
            key = serialization.load_pem_public_key(pem)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: a key in it cannot be read: {error}") from error
    curve = getattr(key, "curve", None)
    if not isinstance(key, PublicKey | PrivateKey) or (curve is not None and curve.name not in CURVES):
        raise ValueError(f"{path}: a key in it is neither RSA nor of the curves P-256, P-384 or P-521")
    return key


def coordinate_bytes(key: ec.EllipticCurvePublicKey) -> int:
    """Return the size of a coordinate, and of each half of a signature, in bytes."""
    return (key.key_size + 7) // 8


def integer_bytes(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


def json_segment(value: Object) -> str:
    return base64url_encoded(msgspec.json.encode(value))


def base64url_encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def base64url_decoded(encoded: str) -> bytes:
    """Decode canonical base64url. Raises ValueError for any other text, so that a token has one form only."""
    raw = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    if base64url_encoded(raw) != encoded:
        raise ValueError("base64url text is not canonical")
    return raw
