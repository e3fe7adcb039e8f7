"""TLS contexts of listeners that follow changes of certificates and client CAs."""

import ssl
from collections.abc import Sequence
from pathlib import Path

from tapestry.apiserver.access.certificates import CertificateAuthority, server_ssl_context
from tapestry.apiserver.access.client_certificates import request_client_certificates
from tapestry.apiserver.access.reloading_file import ReloadingFile
from tapestry.apiserver.core.config import Tls

RENEWAL_CHECK_SECONDS = 3600.0
"""Seconds after which a serving certificate that is about to expire is replaced."""


def reloading_tls_context(
    authority: CertificateAuthority, names: Sequence[str], tls: Tls
) -> ReloadingFile[ssl.SSLContext]:
    """Return the current TLS context of a server with these names. Raises ValueError if it cannot be created.

    Without a configured certificate, the CA of the server issues one, and another one before it expires or when the CA
    is no longer trusted.
    """
    authority.certificate_pem()
    client_cas = client_ca_files(authority, tls)

    def load(_: Path) -> ssl.SSLContext:
        try:
            files = (Path(tls.certificate), Path(tls.key)) if tls.certificate else authority.server_certificate(names)
            context = server_ssl_context(*files, client_cas)
        except OSError as error:
            raise ValueError(f"TLS certificates cannot be loaded: {error}") from error
        request_client_certificates(context, client_cas)
        return context

    configured = [Path(each) for each in (tls.certificate, tls.key) if each]
    return ReloadingFile(authority.certificate_file, load, [*client_cas[1:], *configured], RENEWAL_CHECK_SECONDS)


def client_ca_files(authority: CertificateAuthority, tls: Tls) -> list[Path]:
    """Return the files with the CAs whose client certificates are accepted, that of the server first."""
    return [authority.certificate_file, *([Path(tls.client_ca)] if tls.client_ca else [])]


def following_context(current: ReloadingFile[ssl.SSLContext]) -> ssl.SSLContext:
    """Return a context for a listener whose handshakes use the latest context.

    Both contexts must request client certificates in the same way, because a handshake decides that before it changes
    its context.
    """
    context = current()

    def select_context(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        connection.context = current.latest()

    context.sni_callback = select_context
    return context
