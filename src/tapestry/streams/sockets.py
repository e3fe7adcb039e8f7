"""Connected sockets, and what is built on them: connections with or without TLS."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, TypeVar

from tapestry.streams.connection import SocketConnection, enable_keepalive

P = TypeVar("P", bound=asyncio.BaseProtocol)


async def connected_socket(family: int, kind: int, protocol: int, address: Any) -> socket.socket:
    """Return a socket that is connected to an address. Raise OSError."""
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        enable_keepalive(sock)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


async def socket_to(address: str, port: int) -> socket.socket:
    """Return a socket that is connected to a port of an IP address. Raise OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return await connected_socket(family, socket.SOCK_STREAM, 0, (address, port))


async def protocol_on(factory: Callable[[], P], sock: socket.socket, tls: ssl.SSLContext | None, server_name: str) -> P:
    """Return a protocol on a connected socket, after the TLS handshake. The socket is closed if that fails."""
    loop, name = asyncio.get_running_loop(), server_name if tls is not None else None
    create = loop.create_unix_connection if sock.family == socket.AF_UNIX else loop.create_connection
    try:
        _, protocol = await create(factory, sock=sock, ssl=tls, server_hostname=name)
    except BaseException:
        sock.close()
        raise
    return protocol


async def connection_on(
    sock: socket.socket, tls: ssl.SSLContext | None = None, server_name: str = ""
) -> SocketConnection:
    """Return a connection on a connected socket, with TLS if there is a context. The socket is closed if that fails."""
    return await protocol_on(SocketConnection, sock, tls, server_name)
