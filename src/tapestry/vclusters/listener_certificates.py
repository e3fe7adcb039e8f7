"""Certificates of the listeners of the service: the one that they present, and those of clients that they accept.

The CA of the process issues the certificate, and another one before it expires. New connections get the new one.
"""

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path

from tapestry.apiserver.access.certificates import CertificateAuthority, server_ssl_context
from tapestry.apiserver.access.client_certificates import request_client_certificates
from tapestry.apiserver.access.reloading_file import ReloadingFile
from tapestry.apiserver.access.tls_contexts import RENEWAL_CHECK_SECONDS
from tapestry.apiserver.app import DEFAULT_SERVER_NAMES
from tapestry.apiserver.core.private_files import KEYS_FOLDER
from tapestry.planes.app import PlaneProcess


@dataclass(frozen=True)
class ListenerCertificates:
    certificate: Path
    key: Path
    client_ca: Path
    """CA of client certificates: only that of the management API, and of no plane."""
    context: ReloadingFile[ssl.SSLContext]
    """Context of a listener that accepts client certificates, and needs none."""

    async def renew(self) -> None:
        """Renew the certificate before it expires, until cancelled."""
        while True:
            await asyncio.sleep(RENEWAL_CHECK_SECONDS)
            self.context.latest()


def listener_certificates(process: PlaneProcess) -> ListenerCertificates:
    """Return the certificates of listeners with the names of the listener of planes. Raises ValueError and OSError."""
    authority = CertificateAuthority(process.config.folder / KEYS_FOLDER)
    names = list(dict.fromkeys((*DEFAULT_SERVER_NAMES, *process.tls.names.extra_names)))
    client_authority = CertificateAuthority(process.management.folder / KEYS_FOLDER)
    client_authority.certificate_pem()
    client_ca, files = client_authority.certificate_file, authority.server_certificate(names)

    def load(_: Path) -> ssl.SSLContext:
        try:
            context = server_ssl_context(*authority.server_certificate(names), [client_ca])
        except OSError as error:
            raise ValueError(f"TLS certificates cannot be loaded: {error}") from error
        request_client_certificates(context, [client_ca])
        return context

    current = ReloadingFile(authority.certificate_file, load, [*files, client_ca], RENEWAL_CHECK_SECONDS)
    return ListenerCertificates(*files, client_ca, current)
