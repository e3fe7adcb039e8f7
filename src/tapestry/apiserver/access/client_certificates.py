"""TLS handshakes that name the accepted client CAs and continue with certificates of unknown CAs.

The `ssl` module aborts a handshake with an unknown client certificate, so the client gets no reason, and its token
is not considered. kube-apiserver accepts the connection and responds with 401, or uses the token. OpenSSL supports
that, but `ssl` does not expose it. This module calls OpenSSL directly. OpenSSL still verifies each certificate, and
`is_verified` returns the result.
"""

import _ssl
import ctypes
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

from tapestry.apiserver.access import openssl
from tapestry.apiserver.access.openssl import SSL_VERIFY_PEER, is_openssl_reachable, ssl_context_pointer, ssl_pointer
from tapestry.process.logs import logger

log = logger(__name__)

X509_V_OK = 0


def continue_handshake(_: int, __: int | None) -> int:
    """Accept every certificate of a chain; the verification result stays with the connection."""
    openssl.OPENSSL.ERR_clear_error()  # a queued error would be attributed to the next operation of the connection
    return 1


VERIFY_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)(continue_handshake)
PERMISSIVE_CONTEXTS: WeakSet[ssl.SSLContext] = WeakSet()
"""Contexts that accept any certificate."""


def request_client_certificates(context: ssl.SSLContext, client_cas: Sequence[Path]) -> None:
    """Request client certificates of these CAs, and accept connections with other certificates.

    The caller must check `is_verified` for each connection. If OpenSSL is not accessible, the context is unchanged:
    no CAs are named, and an unknown certificate ends the handshake.
    """
    if not is_openssl_reachable(context):
        log.warning("OpenSSL not reachable: clients with certificates of unknown CAs cannot connect")
        return
    address, functions = ssl_context_pointer(context), openssl.OPENSSL
    first, *others = (str(each).encode() for each in client_cas)
    names = functions.SSL_load_client_CA_file(first)
    if not names or not all(functions.SSL_add_file_cert_subjects_to_stack(names, each) for each in others):
        raise ValueError(f"no certificates can be read from {', '.join(map(str, client_cas))}")
    functions.SSL_CTX_set_client_CA_list(address, names)  # the context owns the names from now on
    functions.SSL_CTX_set_verify(address, SSL_VERIFY_PEER, VERIFY_CALLBACK)
    PERMISSIVE_CONTEXTS.add(context)


def switch_context(tls: ssl.SSLObject, context: ssl.SSLContext) -> None:
    """Continue a handshake with another context, in a callback for the server name.

    Client certificates are requested as the new context states. If OpenSSL is not accessible, the first context decides
    whether they are requested, and the new one with which CAs they are verified.
    """
    tls.context = context
    if context in PERMISSIVE_CONTEXTS:
        openssl.OPENSSL.SSL_set_verify(ssl_pointer(tls), SSL_VERIFY_PEER, VERIFY_CALLBACK)


def is_verified(tls: ssl.SSLObject) -> bool:
    """Return whether the client certificate was verified in this handshake against a known CA."""
    if tls.session_reused:
        return False
    if tls.context not in PERMISSIVE_CONTEXTS:
        return True  # otherwise the handshake would have failed
    connection = ssl_pointer(tls)
    is_known: bool = openssl.OPENSSL.SSL_get_SSL_CTX(connection) == ssl_context_pointer(tls.context)
    return is_known and bool(openssl.OPENSSL.SSL_get_verify_result(connection) == X509_V_OK)


def verified_chain(tls: ssl.SSLObject) -> list[bytes]:
    """Return a verified client certificate and the CAs above it in DER."""
    chain: list[Any] = tls._sslobj.get_verified_chain() or []  # type: ignore[attr-defined]  # public from Python 3.13
    return [each.public_bytes(_ssl.ENCODING_DER) for each in chain]
