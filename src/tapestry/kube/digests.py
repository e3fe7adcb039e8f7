"""Digests: whether two values say the same, without keeping both."""

from hashlib import blake2b
from typing import Any

import msgspec

_ENCODER = msgspec.json.Encoder(order="sorted")


def digest_of(value: Any) -> str:
    """A text of 20 characters that two values share only if they say the same; the order of keys says nothing."""
    return blake2b(_ENCODER.encode(value), digest_size=10).hexdigest()
