"""TLS handshakes that name the accepted client CAs and continue with certificates of unknown CAs.

The `ssl` module aborts a handshake with an unknown client certificate, so the client gets no reason, and its token
is not considered. kube-apiserver accepts the connection and responds with 401, or uses the token. OpenSSL supports
that, but `ssl` does not expose it. This module calls OpenSSL directly on the objects of `ssl`. OpenSSL still
verifies each certificate, and `is_verified` returns the result.
"""

import _ssl
import ctypes
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tapestry.process.logs import logger

log = logger(__name__)

X509_V_OK = 0
SSL_VERIFY_PEER = 1
OBJECT_HEADER_BYTES = object.__basicsize__
"""Offset of the first field of an object: of a context, its `SSL_CTX *`; of a connection, a socket reference
followed by its `SSL *`."""
POINTER = ctypes.sizeof(ctypes.c_void_p)


def continue_handshake(_: int, __: int | None) -> int:
    """Accept every certificate of a chain; the verification result stays with the connection."""
    OPENSSL.ERR_clear_error()  # a queued error would be attributed to the next operation of the connection
    return 1


VERIFY_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)(continue_handshake)


def load_openssl() -> Any:
    """Return the functions of the OpenSSL that `ssl` uses, or None if they are not accessible."""
    if sys.implementation.name != "cpython":
        return None
    try:
        library = ctypes.CDLL(getattr(_ssl, "__file__", None))
        for name, result, *arguments in FUNCTIONS:
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):  # its functions are hidden by the linker
        return None
    return library


C_POINTER, C_STRING = ctypes.c_void_p, ctypes.c_char_p
FUNCTIONS: Sequence[tuple[Any, ...]] = (
    ("ERR_clear_error", None),
    ("SSL_CTX_get_verify_mode", ctypes.c_int, C_POINTER),
    ("SSL_CTX_set_verify", None, C_POINTER, ctypes.c_int, C_POINTER),
    ("SSL_CTX_set_client_CA_list", None, C_POINTER, C_POINTER),
    ("SSL_load_client_CA_file", C_POINTER, C_STRING),
    ("SSL_add_file_cert_subjects_to_stack", ctypes.c_int, C_POINTER, C_STRING),
    ("SSL_get_SSL_CTX", C_POINTER, C_POINTER),
    ("SSL_get_verify_result", ctypes.c_long, C_POINTER),
)
OPENSSL = load_openssl()


def request_client_certificates(context: ssl.SSLContext, client_cas: Sequence[Path]) -> None:
    """Request client certificates of these CAs, and accept connections with other certificates.

    The caller must check `is_verified` for each connection. If OpenSSL is not accessible, the context is unchanged:
    no CAs are named, and an unknown certificate ends the handshake.
    """
    if OPENSSL is None or not is_openssl_reachable(context):
        log.warning("OpenSSL not reachable: clients with certificates of unknown CAs cannot connect")
        return
    address = ssl_context_pointer(context)
    first, *others = (str(each).encode() for each in client_cas)
    names = OPENSSL.SSL_load_client_CA_file(first)
    if not names or not all(OPENSSL.SSL_add_file_cert_subjects_to_stack(names, each) for each in others):
        raise ValueError(f"no certificates can be read from {', '.join(map(str, client_cas))}")
    OPENSSL.SSL_CTX_set_client_CA_list(address, names)  # the context owns the names from now on
    OPENSSL.SSL_CTX_set_verify(address, SSL_VERIFY_PEER, VERIFY_CALLBACK)
    PERMISSIVE_CONTEXTS.add(address)


PERMISSIVE_CONTEXTS: set[int] = set()
"""Pointers of the contexts that accept any certificate."""


def is_openssl_reachable(context: ssl.SSLContext) -> bool:
    """Return whether the computed pointer is the OpenSSL context of `context`."""
    original_mode, modes = context.verify_mode, []
    for mode in (ssl.CERT_NONE, ssl.CERT_OPTIONAL):
        context.verify_mode = mode
        modes.append(OPENSSL.SSL_CTX_get_verify_mode(ssl_context_pointer(context)))
    context.verify_mode = original_mode
    connection = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True)
    return modes == [0, SSL_VERIFY_PEER] and OPENSSL.SSL_get_SSL_CTX(ssl_pointer(connection)) == ssl_context_pointer(
        context
    )


def ssl_context_pointer(context: ssl.SSLContext) -> int:
    return ctypes.c_void_p.from_address(id(context) + OBJECT_HEADER_BYTES).value or 0


def ssl_pointer(tls: ssl.SSLObject) -> int:
    return ctypes.c_void_p.from_address(id(tls._sslobj) + OBJECT_HEADER_BYTES + POINTER).value or 0  # type: ignore[attr-defined]


def is_verified(tls: ssl.SSLObject) -> bool:
    """Return whether the client certificate was verified against a known CA."""
    if not PERMISSIVE_CONTEXTS or ssl_context_pointer(tls.context) not in PERMISSIVE_CONTEXTS:
        return True  # otherwise the handshake would have failed
    connection = ssl_pointer(tls)
    is_known: bool = OPENSSL.SSL_get_SSL_CTX(connection) == ssl_context_pointer(tls.context)
    return is_known and bool(OPENSSL.SSL_get_verify_result(connection) == X509_V_OK)
