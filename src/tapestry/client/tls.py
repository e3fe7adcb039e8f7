"""TLS towards an API server, following its files.

Certificates come inline or in files; files are replaced under our feet (a kubelet rotates them, a Secret volume swaps
them).  `Tls.context()` gives the same context as long as nothing changed and a new one afterwards, so a connection
pool can tell by identity when to connect anew.
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
"""Seconds between two looks at a file."""


@dataclass(frozen=True, slots=True)
class Pem:
    """PEM text, inline or in a file; `origin` is what errors call it."""

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
    """Whom we take for the server: holders of a certificate by `authority`, or by the system's if there is none."""

    authority: Pem | None = None
    insecure: bool = False


class FileChanges:
    """Notices that files changed, with one look (a stat, not a read) in `CHECK_EVERY` seconds."""

    def __init__(self, paths: Sequence[Path], monotonic: Callable[[], float]) -> None:
        self._paths = paths
        self._monotonic = monotonic
        self._next_look = float("-inf")
        self._seen: list[tuple[int, int, int] | None] | None = None

    def has_changed(self) -> bool:
        """Whether they differ from what the last look saw; true at the first look."""
        now = self._monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + CHECK_INTERVAL
        before, self._seen = self._seen, [file_stamp(path) for path in self._paths]
        return self._seen != before

    def reset(self) -> None:
        """Makes the next look find a change: what the last one announced could not be used."""
        self._seen = None


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """What tells one content of a file from another without reading it; None where there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


class TlsContextSource:
    """The TLS side of one access.  Not thread-safe; the files are small and read in place."""

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
        """The context to connect with now.

        A pair of our own wins over an `issued` one.  Changed files that do not load leave the context as it was and
        are tried again: a certificate may have been replaced a moment before its key.  Without a context to keep, what
        does not load raises CredentialsError.
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
    # Not ssl.create_default_context(): that one logs session keys where SSLKEYLOGFILE says, and from Python 3.13 on
    # refuses authorities without key identifiers, which Kubernetes installers make and Go accepts.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an intermediate given as the authority is enough, as in Go
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
            raise CredentialsError(f"{authority.origin}: holds no certificate in PEM") from None


def load_key_pair(context: ssl.SSLContext, pair: KeyPair) -> None:
    with temporary_file(pair.certificate.read()) as certificate, temporary_file(pair.key.read()) as key:
        try:
            context.load_cert_chain(certificate, key, password="")  # a password of None would ask on the terminal
        except OSError:
            raise CredentialsError(
                f"{pair.certificate.origin}, {pair.key.origin}: not a certificate and its private key in PEM; "
                "the key must belong to the certificate and must not be encrypted"
            ) from None


@contextmanager
def temporary_file(content: bytes) -> Iterator[str]:
    """A path to `content` for OpenSSL, which reads keys from files only; nothing is left behind.

    On Linux the file is anonymous memory; elsewhere it is one that only we can open, gone at the end of the block.
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
