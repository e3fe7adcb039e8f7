"""TLS handshakes that name the CAs of clients, and that go on where a client shows a certificate of another CA.

The module `ssl` ends such a handshake, so the client does not learn why, and a token that it has as well is of no use.
Kubernetes' API server lets it connect and answers 401, or takes the token.  OpenSSL can do that, but `ssl` has no words
for it: this module calls OpenSSL itself, on the objects that `ssl` has made.  OpenSSL still checks each certificate,
and `is_verified` tells its verdict.
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
"""Bytes before the first field of an object: of a context, its `SSL_CTX *`; of a connection, a reference to a socket
and then its `SSL *`."""
POINTER = ctypes.sizeof(ctypes.c_void_p)


def continue_handshake(_: int, __: int | None) -> int:
    """Called for each certificate of a chain, and for each fault of it; the verdict stays with the connection."""
    OPENSSL.ERR_clear_error()  # what is left there would be taken for an error of what the connection does next
    return 1


VERIFY_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)(continue_handshake)


def load_openssl() -> Any:
    """The functions of the OpenSSL that `ssl` uses; None where it cannot be called from here."""
    if sys.implementation.name != "cpython":
        return None
    try:
        library = ctypes.CDLL(getattr(_ssl, "__file__", None))
        for name, result, *arguments in FUNCTIONS:
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):  # it is linked in a way that hides its functions
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
    """Ask clients for certificates of these CAs, by name, and let those in who have another one.

    Whoever uses the context must ask `is_verified` about each connection.  Where OpenSSL cannot be reached the context
    stays as it was: no CAs are named, and an unknown certificate ends the handshake.
    """
    if OPENSSL is None or not is_openssl_reachable(context):
        log.warning("clients with certificates of unknown CAs cannot connect: this Python hides its OpenSSL")
        return
    address = ssl_context_pointer(context)
    first, *others = (str(each).encode() for each in client_cas)
    names = OPENSSL.SSL_load_client_CA_file(first)
    if not names or not all(OPENSSL.SSL_add_file_cert_subjects_to_stack(names, each) for each in others):
        raise ValueError(f"no certificates can be read from {', '.join(map(str, client_cas))}")
    OPENSSL.SSL_CTX_set_client_CA_list(address, names)  # which owns them from now on
    OPENSSL.SSL_CTX_set_verify(address, SSL_VERIFY_PEER, VERIFY_CALLBACK)
    PERMISSIVE_CONTEXTS.add(address)


PERMISSIVE_CONTEXTS: set[int] = set()
"""The contexts whose handshakes go on with any certificate."""


def is_openssl_reachable(context: ssl.SSLContext) -> bool:
    """Whether what we take for OpenSSL's context is the one behind `context`."""
    before, seen = context.verify_mode, []
    for mode in (ssl.CERT_NONE, ssl.CERT_OPTIONAL):
        context.verify_mode = mode
        seen.append(OPENSSL.SSL_CTX_get_verify_mode(ssl_context_pointer(context)))
    context.verify_mode = before
    connection = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True)
    return seen == [0, SSL_VERIFY_PEER] and OPENSSL.SSL_get_SSL_CTX(ssl_pointer(connection)) == ssl_context_pointer(
        context
    )


def ssl_context_pointer(context: ssl.SSLContext) -> int:
    return ctypes.c_void_p.from_address(id(context) + OBJECT_HEADER_BYTES).value or 0


def ssl_pointer(tls: ssl.SSLObject) -> int:
    return ctypes.c_void_p.from_address(id(tls._sslobj) + OBJECT_HEADER_BYTES + POINTER).value or 0  # type: ignore[attr-defined]


def is_verified(tls: ssl.SSLObject) -> bool:
    """Whether the certificate that a client has shown is a good one of a known CA."""
    if not PERMISSIVE_CONTEXTS or ssl_context_pointer(tls.context) not in PERMISSIVE_CONTEXTS:
        return True  # its handshake would not have ended otherwise
    connection = ssl_pointer(tls)
    is_known: bool = OPENSSL.SSL_get_SSL_CTX(connection) == ssl_context_pointer(tls.context)
    return is_known and bool(OPENSSL.SSL_get_verify_result(connection) == X509_V_OK)
