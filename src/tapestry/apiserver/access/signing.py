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

from tapestry.apiserver.recurring import cached
from tapestry.kube.objects import Object

CURVES: dict[str, tuple[str, str, hashes.HashAlgorithm]] = {
    "secp256r1": ("ES256", "P-256", hashes.SHA256()),
    "secp384r1": ("ES384", "P-384", hashes.SHA384()),
    "secp521r1": ("ES512", "P-521", hashes.SHA512()),
}
"""The algorithm, the name and the digest that go with a curve."""

TOKENS_KEPT = 2048
"""Tokens whose signatures need not be checked again: that takes a tenth of a millisecond."""
LONGEST_KEPT = 1 << 13
"""Characters of such a token."""

Public = ec.EllipticCurvePublicKey | rsa.RSAPublicKey
Private = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Verifier:
    """A key that signatures are known by."""

    public: Public

    @cached_property
    def id(self) -> str:
        der = self.public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return text(sha256(der).digest())

    @property
    def algorithm(self) -> str:
        return CURVES[self.public.curve.name][0] if isinstance(self.public, ec.EllipticCurvePublicKey) else "RS256"

    @cached_property
    def jwk(self) -> Object:
        head = {"use": "sig", "kid": self.id, "alg": self.algorithm}
        if isinstance(self.public, ec.EllipticCurvePublicKey):
            point = self.public.public_numbers()
            size = size_of(self.public)
            coordinates = {"x": text(point.x.to_bytes(size, "big")), "y": text(point.y.to_bytes(size, "big"))}
            return {**head, "kty": "EC", "crv": CURVES[self.public.curve.name][1], **coordinates}
        numbers = self.public.public_numbers()
        return {**head, "kty": "RSA", "n": text(bytes_of(numbers.n)), "e": text(bytes_of(numbers.e))}

    def knows(self, signature: bytes, body: bytes) -> bool:
        """Whether the signature of `body` is one of this key."""
        try:
            if isinstance(self.public, ec.EllipticCurvePublicKey):
                size = size_of(self.public)
                if len(signature) != 2 * size:
                    return False
                r, s = (int.from_bytes(half, "big") for half in (signature[:size], signature[size:]))
                self.public.verify(encode_dss_signature(r, s), body, ec.ECDSA(CURVES[self.public.curve.name][2]))
            else:
                self.public.verify(signature, body, padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature:
            return False
        return True


class Keys:
    """The key that signs, and all that are known, that one first."""

    def __init__(self, private: Private, verifiers: Sequence[Verifier]) -> None:
        self._private = private
        self._verifiers = verifiers
        self.claims = cached(TOKENS_KEPT, LONGEST_KEPT)(self._claims)
        """What a token of one of the keys says, whatever its date; None for everything else."""

    def signed(self, claims: Object) -> str:
        first = self._verifiers[0]
        body = f"{part({'alg': first.algorithm, 'kid': first.id})}.{part(claims)}"
        if isinstance(self._private, ec.EllipticCurvePrivateKey):
            raw = self._private.sign(body.encode(), ec.ECDSA(CURVES[self._private.curve.name][2]))
            size = size_of(self._private.public_key())
            signature = b"".join(each.to_bytes(size, "big") for each in decode_dss_signature(raw))
        else:
            signature = self._private.sign(body.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{body}.{text(signature)}"

    def _claims(self, token: str) -> Object | None:
        body, _, signature = token.rpartition(".")
        head, _, payload = body.partition(".")
        try:
            stated, raw = msgspec.json.decode(data(head)), data(signature)
            kid = stated.get("kid") if isinstance(stated, dict) else None
            chosen = [each for each in self._verifiers if each.id == kid] or self._verifiers
            if not any(each.knows(raw, body.encode()) for each in chosen):
                return None
            found = msgspec.json.decode(data(payload))
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    @property
    def jwks(self) -> list[Object]:
        return [each.jwk for each in self._verifiers]


def keys_in(signing: Path, others: Iterable[Path] = ()) -> Keys:
    """The key in a file, which is made if it is not there, and those in other files, private or public."""
    if not signing.exists():
        make(signing)
    private = next((key for key in read(signing) if not isinstance(key, Public)), None)
    if private is None:
        raise ValueError(f"{signing}: tokens are signed with a private key, and there is none in it")
    known = [Verifier(private.public_key())]
    for path in others:
        known += [Verifier(key if isinstance(key, Public) else key.public_key()) for key in read(path)]
    return Keys(private, list({each.id: each for each in known}.values()))


def make(path: Path) -> None:
    pem = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(pem)


def read(path: Path) -> list[Public | Private]:
    """Every key of a PEM file."""
    end = b"-----END"
    blocks = [block for block in path.read_bytes().split(b"-----BEGIN ") if end in block and b"PARAMETERS" not in block]
    found = [key_of(b"-----BEGIN " + block, path) for block in blocks]
    if not found:
        raise ValueError(f"{path}: there is no key in it; it should be in PEM")
    return found


def key_of(pem: bytes, path: Path) -> Public | Private:
    try:
        if b"PRIVATE KEY" in pem:
            key: Any = serialization.load_pem_private_key(pem, None)
        else:
            key = serialization.load_pem_public_key(pem)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: a key in it cannot be read: {error}") from error
    curve = getattr(key, "curve", None)
    if not isinstance(key, Public | Private) or (curve is not None and curve.name not in CURVES):
        raise ValueError(f"{path}: a key in it is neither RSA nor of the curves P-256, P-384 or P-521")
    return key


def size_of(key: ec.EllipticCurvePublicKey) -> int:
    """Bytes of a coordinate, and of each half of a signature."""
    return (key.key_size + 7) // 8


def bytes_of(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


def part(value: Object) -> str:
    return text(msgspec.json.encode(value))


def text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def data(encoded: str) -> bytes:
    """What `text` made it of; raises ValueError for everything else, so that a token has one form only."""
    if "=" in encoded:
        raise ValueError("it is padded")
    return base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
