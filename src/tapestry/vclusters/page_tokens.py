"""Page tokens: signed positions in a list of one revision.

A token is valid only for the request that it continues, with another page size at most. It has no secret: the signature
prevents that a client reads at a position or a revision that it was not given.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

from tapestry.vclusters.errors import Violation, field_invalid

DEFAULT_PAGE_SIZE = 20
MAX_PAGE_SIZE = 100
MAX_TOKEN = 4096
SIGNATURE_BYTES = 16


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Position in a list: after `last`, as sort key and id, at `revision`."""

    revision: int
    last: tuple[str, str]
    filter_hash: str


@dataclass(frozen=True)
class PageTokens:
    """Signer of tokens. All instances of the service have the same key."""

    key: bytes

    def token(self, revision: int, last: tuple[str, str], filters: Mapping[str, Any]) -> str:
        """Return the token of the page after `last`."""
        payload = msgspec.json.encode(Position(revision, last, hash_of(filters)))
        return base64.urlsafe_b64encode(self._signature(payload) + payload).decode().rstrip("=")

    def position(self, token: str, filters: Mapping[str, Any]) -> Position | None:
        """Return the position that a token names; None for the first page. Raises ServiceError."""
        if not token:
            return None
        if len(token) > MAX_TOKEN:
            reject("is not a token of this service")
        try:
            raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            reject("is not a token of this service")
        signature, payload = raw[:SIGNATURE_BYTES], raw[SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._signature(payload)):
            reject("is not a token of this service")
        position = msgspec.json.decode(payload, type=Position)
        if position.filter_hash != hash_of(filters):
            reject("belongs to a request with other filters; begin with the first page")
        return position

    def _signature(self, payload: bytes) -> bytes:
        return hmac.digest(self.key, payload, "sha256")[:SIGNATURE_BYTES]


def hash_of(filters: Mapping[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(filters, order="sorted")).hexdigest()[:32]


def reject(why: str) -> NoReturn:
    raise field_invalid(Violation("pageToken", why))


def page_size(requested: int) -> int:
    """Return the number of items of a page. Raises ServiceError for a negative size."""
    if requested < 0:
        raise field_invalid(Violation("pageSize", f"must not be negative, got {requested}"))
    return min(requested or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
