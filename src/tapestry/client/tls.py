"""TLS contexts for connections to an API server, reloaded when their files change.

Certificates are inline or in files.  Files may be replaced at any time: a kubelet rotates them, a Secret volume swaps
them.  `TlsContextSource.context()` returns the same context until something changes, so a connection pool can tell by
identity when to reconnect.
"""

import os
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tapestry.client.errors import CredentialsError

CHECK_INTERVAL = 5.0
"""Minimum seconds between two checks of a file."""


@dataclass(frozen=True, slots=True)
class Pem:
    """PEM text, inline or in a file.  `origin` is its name in errors."""

    origin: str
    source: bytes | Path = field(repr=False)

    def read(self) -> bytes:
        if isinstance(self.source, bytes):
            return self.source
        try:
            return self.source.read_bytes()
        except OSError as error:
            raise CredentialsError(f"{self.origin}: {self.source}: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A client certificate and its private key."""

    certificate: Pem
    key: Pem


@dataclass(frozen=True, slots=True)
class ServerVerification:
    """Certificate authority of the server: `authority`, or the system's authorities if it is None."""

    authority: Pem | None = None
    insecure: bool = False


class FileChanges:
    """Detect changes of files with at most one stat per `CHECK_INTERVAL` seconds."""

    def __init__(self, paths: Sequence[Path], monotonic: Callable[[], float]) -> None:
        self._paths = paths
        self._monotonic = monotonic
        self._next_check = float("-inf")
        self._seen: list[tuple[int, int, int] | None] | None = None

    def has_changed(self) -> bool:
        """Return whether the files differ from the last check.  True on the first check."""
        now = self._monotonic()
        if now < self._next_check:
            return False
        self._next_check = now + CHECK_INTERVAL
        before, self._seen = self._seen, [file_stamp(path) for path in self._paths]
        return self._seen != before

    def reset(self) -> None:
        """Make the next check report a change, because the last change could not be used."""
        self._seen = None


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Return a stamp that changes with the content of a file, or None if the file does not exist."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


class TlsContextSource:
    """TLS contexts of one access.  Not thread-safe.  The files are small and read synchronously."""

    def __init__(
        self,
        verification: ServerVerification,
        key_pair: KeyPair | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._verification = verification
        self._configured_pair = key_pair
        pems = [verification.authority] if verification.authority else []
        pems += [key_pair.certificate, key_pair.key] if key_pair else []
        self._files = FileChanges([pem.source for pem in pems if isinstance(pem.source, Path)], monotonic)
        self._context: ssl.SSLContext | None = None
        self._pair: KeyPair | None = None

    def context(self, issued: KeyPair | None = None) -> ssl.SSLContext:
        """Return the context to connect with now.

        A configured key pair wins over an `issued` one.  If changed files do not load, the old context stays in use and
        the files are tried again: a certificate may have been replaced a moment before its key.  Raise CredentialsError
        if they do not load and there is no old context.
        """
        pair = self._configured_pair or issued
        changed = self._files.has_changed()
        if self._context is None or pair is not self._pair:
            self._context, self._pair = client_context(self._verification, pair), pair
        elif changed:
            try:
                self._context = client_context(self._verification, pair)
            except (CredentialsError, OSError):
                self._files.reset()
        return self._context


def client_context(verification: ServerVerification, pair: KeyPair | None) -> ssl.SSLContext:
    # Not ssl.create_default_context(): it logs session keys if SSLKEYLOGFILE is set, and since Python 3.13 it rejects
    # authorities without key identifiers, which Kubernetes installers create and Go accepts.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # accept an intermediate as the authority, as in Go
    context.set_alpn_protocols(["http/1.1"])
    if verification.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif verification.authority:
        load_authority(context, verification.authority)
    else:
        context.load_default_certs()
    if pair:
        load_key_pair(context, pair)
    return context


def load_authority(context: ssl.SSLContext, authority: Pem) -> None:
    with temporary_file(authority.read()) as path:
        try:
            context.load_verify_locations(path)
        except OSError:
            raise CredentialsError(f"{authority.origin}: contains no certificate in PEM") from None


def load_key_pair(context: ssl.SSLContext, pair: KeyPair) -> None:
    with temporary_file(pair.certificate.read()) as certificate, temporary_file(pair.key.read()) as key:
        try:
            context.load_cert_chain(certificate, key, password="")  # None would prompt on the terminal
        except OSError:
            raise CredentialsError(
                f"{pair.certificate.origin}, {pair.key.origin}: not a certificate and its private key in PEM; "
                "the key must belong to the certificate and must not be encrypted"
            ) from None


@contextmanager
def temporary_file(content: bytes) -> Iterator[str]:
    """Yield a path to `content` for OpenSSL, which reads keys only from files.

    On Linux the file is anonymous memory.  Elsewhere it is a private file, deleted at the end of the block.
    """
    if sys.platform == "linux":
        with open(os.memfd_create("pem"), "wb") as memory:
            memory.write(content)
            memory.flush()
            yield f"/proc/self/fd/{memory.fileno()}"
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            yield file.name
