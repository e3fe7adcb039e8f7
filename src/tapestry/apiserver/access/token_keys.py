"""The keys that tokens of service accounts are signed with: one that signs, and any number that are known beside it.

Keys are changed in three steps: the new one is known everywhere, it signs, and the old one is forgotten when the last
token that it signed is out of date.  Keys are elliptic (P-256, P-384, P-521) or RSA, as Kubernetes has them.
"""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from tapestry.apiserver.spec_cache import bounded_cache
from tapestry.kube.objects import Object

CURVES: dict[str, tuple[str, str, hashes.HashAlgorithm]] = {
    "secp256r1": ("ES256", "P-256", hashes.SHA256()),
    "secp384r1": ("ES384", "P-384", hashes.SHA384()),
    "secp521r1": ("ES512", "P-521", hashes.SHA512()),
}
"""The algorithm, the name and the digest that go with a curve."""

TOKEN_CACHE_SIZE = 2048
"""Tokens whose signatures need not be checked again: that takes a tenth of a millisecond."""
MAX_CACHED_TOKEN_LENGTH = 1 << 13
"""Characters of such a token."""

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Verifier:
    """A key that signatures are known by."""

    public_key: PublicKey

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
        """Whether the signature of `body` is one of this key."""
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
    """The key that signs, and all that are known, that one first."""

    def __init__(self, private: PrivateKey, verifiers: Sequence[Verifier]) -> None:
        self._private = private
        self._verifiers = verifiers
        self.verified_claims = bounded_cache(TOKEN_CACHE_SIZE, MAX_CACHED_TOKEN_LENGTH)(self._claims)
        """What a token of one of the keys says, whatever its date; None for everything else."""

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

    def _claims(self, token: str) -> Object | None:
        body, _, signature = token.rpartition(".")
        head, _, payload = body.partition(".")
        try:
            stated, raw = msgspec.json.decode(base64url_decoded(head)), base64url_decoded(signature)
            kid = stated.get("kid") if isinstance(stated, dict) else None
            chosen = [each for each in self._verifiers if each.id == kid] or self._verifiers
            if not any(each.has_signed(raw, body.encode()) for each in chosen):
                return None
            found = msgspec.json.decode(base64url_decoded(payload))
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    @property
    def jwks(self) -> list[Object]:
        return [each.jwk for each in self._verifiers]


def load_token_keys(signing: Path, others: Iterable[Path] = ()) -> TokenKeys:
    """The key in a file, which is made if it is not there, and those in other files, private or public."""
    if not signing.exists():
        create_key_file(signing)
    private = next((key for key in load_pem_keys(signing) if not isinstance(key, PublicKey)), None)
    if private is None:
        raise ValueError(f"{signing}: tokens are signed with a private key, and there is none in it")
    known = [Verifier(private.public_key())]
    for path in others:
        known += [Verifier(key if isinstance(key, PublicKey) else key.public_key()) for key in load_pem_keys(path)]
    return TokenKeys(private, list({each.id: each for each in known}.values()))


def create_key_file(path: Path) -> None:
    pem = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(pem)


def load_pem_keys(path: Path) -> list[PublicKey | PrivateKey]:
    """Every key of a PEM file."""
    end = b"-----END"
    blocks = [block for block in path.read_bytes().split(b"-----BEGIN ") if end in block and b"PARAMETERS" not in block]
    found = [parse_pem_key(b"-----BEGIN " + block, path) for block in blocks]
    if not found:
        raise ValueError(f"{path}: there is no key in it; it should be in PEM")
    return found


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
    """Bytes of a coordinate, and of each half of a signature."""
    return (key.key_size + 7) // 8


def integer_bytes(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


def json_segment(value: Object) -> str:
    return base64url_encoded(msgspec.json.encode(value))


def base64url_encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def base64url_decoded(encoded: str) -> bytes:
    """What `text` made it of; raises ValueError for everything else, so that a token has one form only."""
    if "=" in encoded:
        raise ValueError("it is padded")
    return base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
