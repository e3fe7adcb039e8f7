"""Authentication and authorization of requests to our listeners, delegated to the API server.

This is the method of kubelets.  A user is identified by a client certificate, which the TLS handshake verified, or by a
token that the API server reviews.  The API server authorizes both.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from tapestry.client.client import Client
from tapestry.kube.errors import Forbidden, KubeError, Unauthorized, Unavailable
from tapestry.kube.objects import Object
from tapestry.kube.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from tapestry.process.logs import logger

log = logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Caller:
    """Credentials of a request, as the connection and its headers state them."""

    certificate: Mapping[str, Sequence[str]]
    """Values of the subject of the client certificate by name; empty without a verified certificate."""
    token: str = ""
    """Bearer token."""


@dataclass(frozen=True)
class DelegatedAuth:
    """Review tokens and permissions of callers at one API server."""

    client: Client

    async def user_for_token(self, token: str) -> Object | None:
        """Return the user of the token: `username`, `groups`, `uid`, `extra`.  Return None if it is not valid."""
        status: Object = (await self.client.review(TOKEN_REVIEWS, {"token": token})).get("status") or {}
        return status.get("user") or {} if status.get("authenticated") else None

    async def is_allowed(self, user: Object, attributes: Object) -> bool:
        """Return whether the user has a permission: the `resourceAttributes` or `nonResourceAttributes` of a review."""
        subject = {"user": user.get("username", ""), "groups": user.get("groups") or []}
        optional = {key: user[key] for key in ("uid", "extra") if user.get(key)}
        review = await self.client.review(SUBJECT_ACCESS_REVIEWS, {**subject, **optional, **attributes})
        return bool((review.get("status") or {}).get("allowed"))

    async def authorize(self, caller: Caller, verb: str, subresource: str, node: str) -> Object:
        """Return the user of a request to the kubelet of `node`, who may use that subresource of the node.

        Raise the error to respond with otherwise: Unauthorized, Forbidden or Unavailable. Without a `node`, require
        permission on all nodes.
        """
        attributes = {"verb": verb, "version": "v1", "resource": "nodes", "subresource": subresource, "name": node}
        user = certificate_user(caller.certificate)
        try:
            if user is None and caller.token:
                user = await self.user_for_token(caller.token)
            allowed = user is not None and await self.is_allowed(user, {"resourceAttributes": attributes})
        except KubeError as error:
            log.warning("caller review failed", error=str(error))
            message = "the API server cannot authenticate the request now"
            raise Unavailable(503, "ServiceUnavailable", message) from error
        if user is None:
            raise Unauthorized(401, "Unauthorized", "Unauthorized")
        if not allowed:
            details = f"user={user.get('username')}, verb={verb}, resource=nodes, subresource={subresource}"
            raise Forbidden(403, "Forbidden", f"Forbidden ({details})")
        return user


ACCEPTED_SECONDS, DENIED_SECONDS = 60.0, 10.0
"""Seconds for which a review is reused."""
MAX_CACHED_REVIEWS = 1024
MAX_CONCURRENT_REVIEWS = 8
"""Maximum number of concurrent reviews of tokens, and of permissions.  So callers with invalid tokens delay only others
with tokens, and leave connections for other requests."""


class ReviewCache(Generic[T]):
    """Recent results of reviews, by the hash of what was reviewed."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._results: dict[bytes, tuple[float, T]] = {}

    def get(self, key: bytes) -> T | None:
        until, result = self._results.get(key, (0.0, None))
        return result if self._monotonic() < until else None

    def put(self, key: bytes, result: T, seconds: float) -> None:
        self._results.pop(key, None)
        if len(self._results) >= MAX_CACHED_REVIEWS:
            del self._results[next(iter(self._results))]  # the oldest: entries are in insertion order
        self._results[key] = self._monotonic() + seconds, result


@dataclass(frozen=True)
class CachedAuth(DelegatedAuth):
    """Reviews whose results are reused for a short time, as by kubelets.  Rejected tokens are reviewed every time."""

    monotonic: Callable[[], float] = time.monotonic
    _token_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT_REVIEWS))
    _permission_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT_REVIEWS))
    _users: ReviewCache[Object] = field(init=False)
    _decisions: ReviewCache[bool] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_users", ReviewCache(self.monotonic))
        object.__setattr__(self, "_decisions", ReviewCache(self.monotonic))

    async def user_for_token(self, token: str) -> Object | None:
        key = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        user = self._users.get(key)
        if user is None:
            async with self._token_slots:
                user = await super().user_for_token(token)
            if user is not None:
                self._users.put(key, user, ACCEPTED_SECONDS)
        return user

    async def is_allowed(self, user: Object, attributes: Object) -> bool:
        key = hashlib.sha256(msgspec.json.encode((user, attributes))).digest()
        allowed = self._decisions.get(key)
        if allowed is None:
            async with self._permission_slots:
                allowed = await super().is_allowed(user, attributes)
            self._decisions.put(key, allowed, ACCEPTED_SECONDS if allowed else DENIED_SECONDS)
        return allowed


def certificate_user(subject: Mapping[str, Sequence[str]]) -> Object | None:
    """Return the user that the subject of a client certificate names, or None if it names none."""
    names = subject.get("commonName")
    return {"username": names[0], "groups": list(subject.get("organizationName") or [])} if names else None
