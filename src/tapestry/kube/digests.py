"""Digests that compare values without storing them."""

from hashlib import blake2b
from typing import Any

import msgspec

_ENCODER = msgspec.json.Encoder(order="sorted")


def digest_of(value: Any) -> str:
    """Return a digest of 20 hex characters. Equal values have equal digests, independent of key order."""
    return blake2b(_ENCODER.encode(value), digest_size=10).hexdigest()
