"""Serving certificate of the kubelet API, which can be replaced while connections are open."""

import ssl
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from cryptography import x509
from prometheus_client import Gauge

from tapestry.apiserver.access.certificates import CertificateAuthority, write_private_file
from tapestry.process.metrics import NAMESPACE

RENEWAL_FRACTION, WARNING_FRACTION = 0.8, 0.9
"""Parts of a certificate's lifetime after which it is renewed, and after which a missing renewal is reported."""
SHM_DIR = Path("/dev/shm")
"""Folder for temporary files in memory.  In a container, it may be the only writable one."""

EXPIRATION = Gauge(
    "kubelet_certificate_expiration_timestamp_seconds",
    "Expiry of the serving certificate of the kubelet API, in seconds since 1970.",
    namespace=NAMESPACE,
)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate chain and its private key, as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)

    def leaf(self) -> x509.Certificate:
        """Return the server's own certificate.  Raise ValueError."""
        return x509.load_pem_x509_certificates(self.certificate)[0]


class Lifetime(NamedTuple):
    start: datetime
    end: datetime

    def after(self, fraction: float) -> datetime:
        """Return the time at which this part of the lifetime is over."""
        return self.start + (self.end - self.start) * fraction


def lifetime_of(pair: KeyPair) -> Lifetime:
    leaf = pair.leaf()
    return Lifetime(leaf.not_valid_before_utc, leaf.not_valid_after_utc)


def self_signed_pair(names: Collection[str]) -> KeyPair:
    """Return a new certificate that clients cannot verify, like that of a kubelet without another one."""
    with memory_folder() as folder:
        certificate, key = CertificateAuthority(Path(folder)).server_certificate(sorted(names))
        return KeyPair(certificate.read_bytes(), key.read_bytes())


def memory_folder() -> "TemporaryDirectory[str]":
    return TemporaryDirectory(dir=SHM_DIR if SHM_DIR.is_dir() else None)


@dataclass
class ServingCertificate:
    """The certificate that a TLS server presents.

    Each replacement has its own context, which the handshake selects: a context can hold one certificate for each type
    of key, so loading another one into it might leave the old one in use.
    """

    new_context: Callable[[], ssl.SSLContext]
    """Create a context that verifies clients, without a certificate."""
    pair: KeyPair
    context: ssl.SSLContext = field(init=False)
    """Context of the server."""
    _current: ssl.SSLContext = field(init=False)

    def __post_init__(self) -> None:
        self.context = self._loaded(self.pair)
        self.context.sni_callback = self._select
        self.use(self.pair)

    def use(self, pair: KeyPair) -> None:
        """Present another certificate in new handshakes.  Raise ValueError if it is not valid for its key."""
        end = lifetime_of(pair).end
        self._current, self.pair = self._loaded(pair), pair
        self.context.verify_mode = self._current.verify_mode  # of new connections, before their handshake selects
        EXPIRATION.set(end.timestamp())

    def verify_clients(self, new_context: Callable[[], ssl.SSLContext]) -> None:
        """Verify clients with other contexts in new handshakes.  Raise the error of `new_context`."""
        new_context()
        self.new_context = new_context
        self.use(self.pair)

    def _loaded(self, pair: KeyPair) -> ssl.SSLContext:
        context = self.new_context()
        with memory_folder() as folder:  # the ssl module reads files only
            files = Path(folder) / "tls.crt", Path(folder) / "tls.key"
            for file, content in zip(files, (pair.certificate, pair.key), strict=True):
                write_private_file(file, content)
            try:
                context.load_cert_chain(*files)
            except ssl.SSLError as error:
                raise ValueError(f"the certificate and the key cannot be used: {error.reason or error}") from error
        return context

    def _select(self, connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        connection.context = self._current
