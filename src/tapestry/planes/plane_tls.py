"""TLS of a listener that many planes share.

The server name of a handshake selects the certificate of a plane, and the CAs whose client certificates it accepts.
Handshakes without the name of a known plane get the certificate of the process, and no client certificate is
requested. Sessions are never resumed.
"""

import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from weakref import WeakKeyDictionary

from cryptography import x509

from tapestry.apiserver.access.certificates import CertificateAuthority, server_ssl_context
from tapestry.apiserver.access.client_certificates import switch_context
from tapestry.apiserver.access.openssl import is_openssl_reachable
from tapestry.apiserver.access.reloading_file import ReloadingFile
from tapestry.apiserver.access.tls_contexts import client_ca_files, reloading_tls_context
from tapestry.apiserver.app import DEFAULT_SERVER_NAMES
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.private_files import KEYS_FOLDER
from tapestry.apiserver.serving.http_handler import Subject, verified_subject
from tapestry.planes.plane_credentials import is_issued_by
from tapestry.planes.plane_names import PlaneNames
from tapestry.process.logs import logger

log = logger(__name__)

MAX_CONTEXTS = 256
"""Number of contexts of planes in memory; each takes 25 KiB, and 5 ms to build."""
RENEWAL_SECONDS = 86_400.0
"""Seconds after which a context is built again, because its certificate may be about to expire."""
RETRY_SECONDS = 10.0
"""Seconds after which a context that could not be built is tried again."""


@dataclass(frozen=True)
class PlaneContext:
    """The context of a plane, or None if its certificate cannot be used."""

    context: ssl.SSLContext | None
    config: ApiServerConfig
    files: tuple[tuple[int, int], ...]
    """State of the CA files from which the context was built."""
    extra_names: tuple[str, ...]
    expires: float


@dataclass(frozen=True)
class VerifiedPeer:
    """Result of the verification of a client certificate with these CAs."""

    authorities: list[x509.Certificate]
    is_issued: bool


class PlaneTls:
    """TLS contexts for the listeners of a process, and the planes of their connections."""

    def __init__(
        self,
        folder: Path,
        names: PlaneNames,
        config_of: Callable[[str], ApiServerConfig | None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`folder` has the CA of the process; `config_of` returns the configuration of a plane, if it is known."""
        self.names = names
        self._authority, self._config_of, self._monotonic = CertificateAuthority(folder / "pki"), config_of, monotonic
        self._contexts: OrderedDict[str, PlaneContext] = OrderedDict()
        """Contexts by plane, least recently used first."""
        self._planes: WeakKeyDictionary[ssl.SSLObject, str] = WeakKeyDictionary()
        """Plane that the handshake of a connection named."""
        self._extra_names: dict[str, tuple[str, ...]] = {}
        """Additional names and addresses in the certificates of single planes."""
        self._peers: WeakKeyDictionary[ssl.SSLObject, VerifiedPeer] = WeakKeyDictionary()

    def set_extra_names(self, plane_id: str, names: tuple[str, ...]) -> None:
        """Set the names and addresses that the certificate of a plane has in addition to those of all planes."""
        if names:
            self._extra_names[plane_id] = names
        else:
            self._extra_names.pop(plane_id, None)

    def listener_context(self, plane_id: str = "") -> ssl.SSLContext:
        """Return the context of a listener for all planes, or for one plane that has its own port."""
        self._authority.certificate_pem()
        current = ReloadingFile(self._authority.certificate_file, self._process_context, max_age=RENEWAL_SECONDS)
        context = current()
        context.sni_callback = partial(self._select_context, plane_id, current)
        return context

    def _process_context(self, _: Path) -> ssl.SSLContext:
        """Return a context with the certificate of the process, which is renewed before it expires."""
        names = list(dict.fromkeys((*DEFAULT_SERVER_NAMES, *self.names.extra_names)))
        try:
            context = server_ssl_context(*self._authority.server_certificate(names), [])
        except OSError as error:
            raise ValueError(f"TLS certificates cannot be loaded: {error}") from error
        if not is_openssl_reachable(context):  # otherwise no client certificate could be requested later
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _select_context(
        self,
        listener_plane: str,
        current: ReloadingFile[ssl.SSLContext],
        tls: ssl.SSLObject,
        server_name: str | None,
        _: ssl.SSLContext,
    ) -> int | None:
        """Continue a handshake with the context of its plane, or of the process. Returns an alert to end it."""
        named = self.names.plane_of(server_name or "")
        if listener_plane and named not in ("", listener_plane):
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        plane_id = named or listener_plane
        if plane_id:
            self._planes[tls] = plane_id
            if (context := self.plane_context(plane_id)) is not None:
                switch_context(tls, context)
                return None
        tls.context = current()
        return None

    def plane_of(self, tls: ssl.SSLObject | None) -> str:
        """Return the plane that the handshake of a connection named; empty if it named none."""
        return self._planes.get(tls, "") if tls is not None else ""

    def plane_context(self, plane_id: str) -> ssl.SSLContext | None:
        """Return the context of a plane; None if the plane is unknown or its certificate cannot be used."""
        config, now = self._config_of(plane_id), self._monotonic()
        if config is None:
            self._contexts.pop(plane_id, None)
            return None
        cached, ca_files = self._contexts.get(plane_id), client_ca_files(authority_of(config), config.tls)
        if (
            cached is None
            or cached.config is not config
            or cached.files != states_of(ca_files)
            or cached.extra_names != self._extra_names.get(plane_id, ())
            or cached.expires <= now
        ):
            extra_names = self._extra_names.get(plane_id, ())
            context = self._build_context(plane_id, config, extra_names)
            expires = now + (RENEWAL_SECONDS if context is not None else RETRY_SECONDS)
            cached = PlaneContext(context, config, states_of(ca_files), extra_names, expires)
            self._contexts[plane_id] = cached
            if len(self._contexts) > MAX_CONTEXTS:
                self._contexts.popitem(last=False)
        self._contexts.move_to_end(plane_id)
        return cached.context

    def _build_context(
        self, plane_id: str, config: ApiServerConfig, extra_names: tuple[str, ...]
    ) -> ssl.SSLContext | None:
        names = self.names.server_name(plane_id), *DEFAULT_SERVER_NAMES, *self.names.extra_names, *extra_names
        try:
            return reloading_tls_context(authority_of(config), list(dict.fromkeys(names)), config.tls)()
        except (OSError, ValueError) as error:
            log.warning("plane certificate unusable", plane=plane_id, error=str(error))
            return None

    def peer_subject(self, tls: ssl.SSLObject, client_cas: Callable[[], list[x509.Certificate]]) -> Subject | None:
        """Return the subject of the client certificate: empty without one, None if it is unverified or expired.

        OpenSSL has verified the certificate during the handshake. It is verified again here, because a mistake in the
        choice of contexts would give the users of one plane the rights of another.
        """
        now = datetime.now(UTC)
        subject = verified_subject(tls, now.timestamp())
        if not subject:
            return subject
        peer, authorities = self._peers.get(tls), client_cas()
        if peer is None or peer.authorities != authorities:
            certificate = tls.getpeercert(binary_form=True) or b""
            peer = self._peers[tls] = VerifiedPeer(authorities, is_issued_by(certificate, authorities, now))
        return subject if peer.is_issued else None


def authority_of(config: ApiServerConfig) -> CertificateAuthority:
    return CertificateAuthority(Path(config.file_rootpath) / KEYS_FOLDER)


def states_of(files: list[Path]) -> tuple[tuple[int, int], ...]:
    """Return the inode and the modification time of each file; 0 if it does not exist."""
    return tuple(state_of(each) for each in files)


def state_of(file: Path) -> tuple[int, int]:
    try:
        stat = file.stat()
    except OSError:
        return 0, 0
    return stat.st_ino, stat.st_mtime_ns
