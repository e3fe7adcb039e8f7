"""Tokens of the accounts of tenants in host clusters, which are renewed in time."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.credentials import Credentials, bearer_header, has_control_characters
from tapestry.client.errors import CredentialsError
from tapestry.client.tls import KeyPair, TlsContextSource
from tapestry.kube.errors import KubeError
from tapestry.kube.times import parse_time
from tapestry.tenants.host_objects import ACCOUNT

TOKEN_SECONDS = 3600
MIN_LIFETIME = 60.0
"""Seconds that a token is used at least. If the clocks differ, the server rejects it, and another is requested."""
RENEWED_AT = 0.8
"""Fraction of the lifetime of a token after which it is renewed."""
RETRY_SECONDS = 5.0
"""Seconds between two requests for a token after one failed, or after the server rejected a token."""


def utc_now() -> datetime:
    return datetime.now(UTC)


class TenantToken:
    """Authorization with a token of a tenant's account. Concurrent callers wait for the same request."""

    key_pair: KeyPair | None = None

    def __init__(
        self,
        client: Client,
        namespace: str,
        now: Callable[[], datetime] = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._namespace, self._now, self._monotonic = client, namespace, now, monotonic
        self._lock = asyncio.Lock()
        self._header = ""
        self._renew_at = self._expires_at = self._retry_at = float("-inf")
        self._failure = ""

    async def authorization(self) -> str | None:
        """Return the header. Raise CredentialsError if there is no valid token and the host gives none."""
        if self._is_due():
            async with self._lock:
                if self._is_due():
                    await self._renew()
        if not self._is_valid():
            raise CredentialsError(self._failure)
        return self._header

    def handle_unauthorized(self) -> bool:
        """Request another token, but only one for many rejected requests."""
        now = self._monotonic()
        if now >= self._retry_at:
            self._renew_at = self._expires_at = now
            self._failure = f"the host cluster rejected the token of ServiceAccount {self._namespace}/{ACCOUNT}"
        return True

    def _is_valid(self) -> bool:
        return self._monotonic() < self._expires_at

    def _is_due(self) -> bool:
        now = self._monotonic()
        return now >= self._renew_at and now >= self._retry_at

    async def _renew(self) -> None:
        """Request a token. If that fails, the last one stays in use until it expires."""
        try:
            token, lifetime = await self._request()
        except (KubeError, KeyError, TypeError, ValueError) as error:
            self._failure = f"token of ServiceAccount {self._namespace}/{ACCOUNT}: {error}"
        else:
            now = self._monotonic()
            self._header = bearer_header(token)
            self._renew_at, self._expires_at = now + RENEWED_AT * lifetime, now + lifetime
        self._retry_at = self._monotonic() + RETRY_SECONDS

    async def _request(self) -> tuple[str, float]:
        """Return a new token and the seconds that it is valid."""
        status = await self._client.request_token(ACCOUNT, self._namespace, seconds=TOKEN_SECONDS)
        token, expires = status["token"], parse_time(status["expirationTimestamp"])
        if not token or has_control_characters(token):
            raise ValueError("the host cluster gave no usable token")
        return token, max((expires - self._now()).total_seconds(), MIN_LIFETIME)


def tenant_access(host: Access, token: TenantToken) -> Access:
    """Return access to the server of `host` with the token only: without its certificate and its impersonation."""
    tls = TlsContextSource(host.verification) if host.server.startswith("https:") else None
    return replace(host, credentials=Credentials(token, tls), impersonation=())
