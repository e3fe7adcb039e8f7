"""Credentials that stay current.

A connection asks for the headers to send and for the TLS context to connect with, each time anew; whatever has to be
reread or refetched happens in here.  The Authorization header comes from one of three sources: fixed text, a file that
somebody rotates, or a program (`exec_plugin`).
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
    """Where the Authorization header comes from."""

    @property
    def key_pair(self) -> KeyPair | None:
        """The client certificate that came with the last header; the same object until another is issued."""
        ...

    async def authorization(self) -> str | None: ...

    def handle_unauthorized(self) -> bool:
        """The server refused what we gave; whether the next one may differ."""
        ...


class StaticAuthorization:
    """The same header for ever, or none."""

    key_pair: KeyPair | None = None

    def __init__(self, authorization: str | None) -> None:
        self._authorization = authorization

    async def authorization(self) -> str | None:
        return self._authorization

    def handle_unauthorized(self) -> bool:
        return False


class TokenFile:
    """A bearer token in a file, reread when the file changes.

    While the file cannot be read the last token stays in use (at first `fallback`): a rotation may be under way.
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
        """Looks into the file at once, however short ago the last look was."""
        refused = self._token
        self._reread()
        return self._token != refused

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
            found = "has control characters" if token else "is empty"
            raise CredentialsError(f"{self._origin}: {self._path}: {found}; it must hold one token")
        return token


class Credentials:
    """What lets us in.  Await `headers()` before `ssl_context()`: a program may issue the client certificate."""

    def __init__(self, source: AuthorizationSource | None = None, tls: TlsContextSource | None = None) -> None:
        self._source = source or StaticAuthorization(None)
        self._tls = tls

    async def headers(self) -> list[tuple[str, str]]:
        """The headers to send now; none for an anonymous user or one with a certificate.

        Raises CredentialsError when the source gives nothing.
        """
        authorization = await self._source.authorization()
        return [("Authorization", authorization)] if authorization else []

    def ssl_context(self) -> ssl.SSLContext | None:
        """The context to connect with now, None for plain HTTP.

        The same object until a certificate, key or authority changed; connections made with an older one should end.
        """
        return self._tls.context(self._source.key_pair) if self._tls else None

    def handle_unauthorized(self) -> bool:
        """Tell that the server answered 401; whether `headers()` may now give something better."""
        return self._source.handle_unauthorized()


def bearer_header(token: str) -> str:
    return f"Bearer {token}"


def basic_header(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def has_control_characters(text: str) -> bool:
    """Whether `text` could end a header early and begin another one."""
    return CONTROL_CHARACTER.search(text) is not None
