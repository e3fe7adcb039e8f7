"""Publication of the CAs of a running server, which change when its CA is rotated.

Extension API servers read the CAs of clients in a ConfigMap of kube-system. Pods read the CAs of the server in
`kube-root-ca.crt`, which a controller writes.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from math import inf
from pathlib import Path

from tapestry.apiserver import bootstrap
from tapestry.apiserver.access.certificates import CertificateAuthority, front_proxy_ca
from tapestry.apiserver.access.reloading_file import FileStamp, file_stamp
from tapestry.apiserver.access.retirements import RETIREMENTS_FILE
from tapestry.apiserver.access.rotation import finish_rotations, has_rotation
from tapestry.apiserver.access.tls_contexts import client_ca_files
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.private_files import KEYS_FOLDER, ChangeKeys
from tapestry.apiserver.core.store import StorageError
from tapestry.apiserver.handlers.server import Server
from tapestry.kube.errors import KubeError
from tapestry.process.logs import logger

log = logger(__name__)

CHECK_SECONDS = 1.0
"""Seconds between two checks of the CA files."""


class CaBundle:
    """PEM certificates by which clients verify the server; empty if it serves no TLS."""

    def __init__(self, pem: str = "") -> None:
        self.pem = pem
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every change."""
        self._listeners.append(listener)

    def close(self) -> None:
        """Forget the listeners, which refer to this bundle."""
        self._listeners.clear()

    def replace(self, pem: str) -> None:
        if pem != self.pem:
            self.pem = pem
            for listener in self._listeners:
                listener()


@dataclass
class CaPublisher:
    """Publish the CAs of a server and end CA rotations on time."""

    server: Server
    config: ApiServerConfig
    folder: Path
    now: Callable[[], datetime]
    change_keys: ChangeKeys
    bundle: CaBundle = field(default_factory=CaBundle)
    _next_end: datetime | None = None
    """End of the next overlap of a rotation."""
    _published: list[FileStamp] = field(default_factory=list)
    """State of the files whose content is published; empty if that failed."""

    async def publish(self) -> None:
        """Publish the current CAs; unchanged ones are not written. Raises ValueError, OSError and StorageError."""
        self._next_end, self._published = None, []
        if has_rotation(self.folder):
            self._next_end = await self.change_keys(partial(finish_rotations, self.folder, self.now()))
        stamps = self._file_stamps()
        if self.config.secure_address:
            client_cas, server_cas = self._read_cas()
            await bootstrap.publish_client_cas(self.server, client_cas, front_proxy_ca(self.folder).certificate_pem())
            self.bundle.replace(server_cas)
        self._published = stamps

    def _read_cas(self) -> tuple[str, str]:
        """Return the CAs of clients, and those by which clients verify the server."""
        own_ca, certificate = self._authority.certificate_pem(), self.config.tls.certificate
        client_cas = "".join(path.read_text() for path in client_ca_files(self._authority, self.config.tls))
        return client_cas, Path(certificate).read_text() if certificate else own_ca

    async def run(self) -> None:
        """Publish changes until cancelled."""
        while True:
            await asyncio.sleep(min(CHECK_SECONDS, self._seconds_until_end()))
            if self._file_stamps() == self._published and self._seconds_until_end() > 0:
                continue
            try:
                await self.publish()
            except (ValueError, OSError, StorageError, KubeError) as error:
                log.warning("CA certificates not published, retrying", error=error)
                await asyncio.sleep(CHECK_SECONDS)

    def _seconds_until_end(self) -> float:
        return inf if self._next_end is None else max((self._next_end - self.now()).total_seconds(), 0.0)

    @property
    def _authority(self) -> CertificateAuthority:
        return CertificateAuthority(self.folder / KEYS_FOLDER)

    def _file_stamps(self) -> list[FileStamp]:
        tls, retirements = self.config.tls, self.folder / KEYS_FOLDER / RETIREMENTS_FILE
        serving = [Path(tls.certificate)] if tls.certificate else []
        return [file_stamp(each) for each in (retirements, *client_ca_files(self._authority, tls), *serving)]
