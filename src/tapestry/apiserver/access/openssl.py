"""Functions of OpenSSL that the `ssl` module does not expose, called on the objects of `ssl`."""

import _ssl
import ctypes
import ssl
import sys
from collections.abc import Sequence
from typing import Any

SSL_VERIFY_PEER = 1
SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF = 44, 0
OBJECT_HEADER_BYTES = object.__basicsize__
"""Offset of the first field of an object: of a context, its `SSL_CTX *`; of a connection, a socket reference
followed by its `SSL *`."""
POINTER = ctypes.sizeof(ctypes.c_void_p)


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
    ("SSL_CTX_ctrl", ctypes.c_long, C_POINTER, ctypes.c_int, ctypes.c_long, C_POINTER),
    ("SSL_set_verify", None, C_POINTER, ctypes.c_int, C_POINTER),
    ("SSL_load_client_CA_file", C_POINTER, C_STRING),
    ("SSL_add_file_cert_subjects_to_stack", ctypes.c_int, C_POINTER, C_STRING),
    ("SSL_get_SSL_CTX", C_POINTER, C_POINTER),
    ("SSL_get_verify_result", ctypes.c_long, C_POINTER),
)
OPENSSL = load_openssl()


def is_openssl_reachable(context: ssl.SSLContext) -> bool:
    """Return whether OpenSSL is accessible, and the computed pointer is the OpenSSL context of `context`."""
    if OPENSSL is None:
        return False
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


def disable_sessions(context: ssl.SSLContext) -> None:
    """Issue no session tickets, store no sessions, and allow no second handshake on a connection.

    A resumed session has the certificate of an earlier handshake, which may have been verified for another name of the
    server. If OpenSSL is not accessible, clients of TLS 1.2 can resume sessions, but without their certificates.
    """
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    if is_openssl_reachable(context):
        OPENSSL.SSL_CTX_ctrl(ssl_context_pointer(context), SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF, None)
