"""Access keys: random tokens, of which the service stores only a hash.

A key is `tap_ID_SECRET_CHECKSUM`. The id is the name of its AccessKey, and not secret. The checksum lets the service
reject most invalid keys, and scanners recognize leaked ones, without a look at any stored key.
"""

import hashlib
import hmac
import re
import secrets
import zlib
from dataclasses import dataclass
from datetime import datetime

PREFIX = "tap"
ID_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
ID_LENGTH = 12
SECRET_BYTES = 32
PATTERN = re.compile(rf"{PREFIX}_([a-z0-9]{{{ID_LENGTH}}})_([0-9a-f]{{{2 * SECRET_BYTES}}})_([0-9a-f]{{8}})")
MAX_LENGTH = 128


@dataclass(frozen=True)
class NewKey:
    """A key that was just made. The text is shown once and stored nowhere."""

    id: str
    text: str
    hash: str


@dataclass(frozen=True)
class PresentedKey:
    """A well-formed key from a request. Nothing proves yet that it is valid."""

    id: str
    secret: str


def new_key() -> NewKey:
    id = "".join(secrets.choice(ID_CHARACTERS) for _ in range(ID_LENGTH))
    secret = secrets.token_hex(SECRET_BYTES)
    body = f"{PREFIX}_{id}_{secret}"
    return NewKey(id, f"{body}_{checksum(body)}", hash_of(secret))


def parse_key(text: str) -> PresentedKey | None:
    """Return the parts of a key, or None if it is not well-formed."""
    match = PATTERN.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if match is None or checksum(text.rpartition("_")[0]) != match[3]:
        return None
    return PresentedKey(match[1], match[2])


def is_valid(presented: PresentedKey, stored_hash: str, expires: datetime | None, now: datetime) -> bool:
    """Return whether a presented key is the stored one. The comparison takes the same time for all secrets."""
    is_same = hmac.compare_digest(hash_of(presented.secret), stored_hash)
    return is_same and (expires is None or now < expires)


def hash_of(secret: str) -> str:
    """Return the hash of a secret. It has 256 random bits, so a slow hash would not make it safer."""
    return hashlib.sha256(secret.encode()).hexdigest()


def checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"
