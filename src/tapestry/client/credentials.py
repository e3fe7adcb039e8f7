"""Credentials that stay current: Authorization headers and TLS contexts.

A connection requests the headers and the TLS context each time it needs them.  The credentials reread files and run
programs as necessary.  The Authorization header comes from one of three sources: fixed text, a file that is rotated, or
a program (`exec_plugin`).
"""

import base64
import re
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tapestry.client.errors import CredentialsError
from tapestry.client.tls import FileChanges, KeyPair, TlsContextSource

CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class AuthorizationSource(Protocol):
    @property
    def key_pair(self) -> KeyPair | None:
        """The client certificate issued with the last header.  The same object until another one is issued."""
        ...

    async def authorization(self) -> str | None: ...

    def handle_unauthorized(self) -> bool:
        """Record that the server rejected the last header.  Return whether the next one may differ."""
        ...


class StaticAuthorization:
    """A header that never changes, or no header."""

    key_pair: KeyPair | None = None

    def __init__(self, authorization: str | None) -> None:
        self._authorization = authorization

    async def authorization(self) -> str | None:
        return self._authorization

    def handle_unauthorized(self) -> bool:
        return False


class TokenFile:
    """A bearer token in a file, reread when the file changes.

    If the file cannot be read, the last token stays in use (initially `fallback`): a rotation may be in progress.
    """

    key_pair: KeyPair | None = None

    def __init__(
        self, path: Path, origin: str, *, fallback: str = "", monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._origin = origin
        self._token = fallback
        self._files = FileChanges([path], monotonic)

    async def authorization(self) -> str | None:
        if self._files.has_changed() or not self._token:
            self._reread()
        return bearer_header(self._token)

    def handle_unauthorized(self) -> bool:
        """Reread the file at once, without waiting for the check interval."""
        rejected = self._token
        self._reread()
        return self._token != rejected

    def _reread(self) -> None:
        try:
            self._token = self._read()
        except CredentialsError:
            self._files.reset()
            if not self._token:
                raise

    def _read(self) -> str:
        try:
            token = self._path.read_text("utf-8").strip()
        except OSError as error:
            raise CredentialsError(f"{self._origin}: {self._path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise CredentialsError(f"{self._origin}: {self._path}: not text") from None
        if not token or has_control_characters(token):
            problem = "has control characters" if token else "is empty"
            raise CredentialsError(f"{self._origin}: {self._path}: {problem}; it must hold one token")
        return token


class Credentials:
    """Credentials for one server.  Await `headers()` before `ssl_context()`: a program may issue the certificate."""

    def __init__(self, source: AuthorizationSource | None = None, tls: TlsContextSource | None = None) -> None:
        self._source = source or StaticAuthorization(None)
        self._tls = tls

    async def headers(self) -> list[tuple[str, str]]:
        """Return the headers to send now.  An anonymous user and a user with a certificate have none.

        Raise CredentialsError if the source gives nothing.
        """
        authorization = await self._source.authorization()
        return [("Authorization", authorization)] if authorization else []

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the context to connect with now, or None for plain HTTP.

        The same object until a certificate, key or authority changes.  Close connections made with an older one.
        """
        return self._tls.context(self._source.key_pair) if self._tls else None

    def handle_unauthorized(self) -> bool:
        """Record a 401 response.  Return whether `headers()` may now give different credentials."""
        return self._source.handle_unauthorized()


def bearer_header(token: str) -> str:
    return f"Bearer {token}"


def basic_header(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def has_control_characters(text: str) -> bool:
    """Return whether `text` could end a header early and start another one."""
    return CONTROL_CHARACTER.search(text) is not None
