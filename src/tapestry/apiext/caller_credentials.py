"""In whose name the API server is asked: the caller's, by the Authorization header that came with the request."""

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
    """What is sent in this block carries this header."""
    token = _authorization.set(authorization)
    try:
        yield
    finally:
        _authorization.reset(token)


class ForwardedCredentials:
    """A source of credentials: those of the caller whose request is being answered."""

    key_pair: KeyPair | None = None

    async def authorization(self) -> str | None:
        return _authorization.get()

    def handle_unauthorized(self) -> bool:
        return False


def access_for_callers(access: Access) -> Access:
    """The way to the same server for callers; nothing of our own goes along: token, certificate, impersonation."""
    tls = TlsContextSource(access.verification) if access.server.startswith("https:") else None
    return dataclasses.replace(access, credentials=Credentials(ForwardedCredentials(), tls), impersonation=())
