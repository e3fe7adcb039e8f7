"""Credentials of the caller, forwarded to the API server with each request."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tapestry.client.access import Access
from tapestry.client.credentials import Credentials
from tapestry.client.tls import KeyPair, TlsContextSource

_authorization: ContextVar[str | None] = ContextVar("authorization", default=None)


@contextmanager
def authorization_scope(authorization: str) -> Iterator[None]:
    """Send this Authorization header with every request inside the block."""
    token = _authorization.set(authorization)
    try:
        yield
    finally:
        _authorization.reset(token)


class ForwardedCredentials:
    """Credential source that returns the credentials of the current caller."""

    key_pair: KeyPair | None = None

    async def authorization(self) -> str | None:
        return _authorization.get()

    def handle_unauthorized(self) -> bool:
        return False


def access_for_callers(access: Access) -> Access:
    """Return access to the same server without our own token, certificate and impersonation."""
    tls = TlsContextSource(access.verification) if access.server.startswith("https:") else None
    return dataclasses.replace(access, credentials=Credentials(ForwardedCredentials(), tls), impersonation=())
