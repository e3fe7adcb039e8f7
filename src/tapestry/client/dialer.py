"""Connections to one API server, directly or through a proxy.

The dialer creates every socket itself.  So it can check each address, set keep-alive probes that detect a dead peer in
seconds, and cut all connections synchronously.
"""

import asyncio
import errno
import socket
import ssl
import weakref
from collections.abc import Iterator
from functools import partial
from urllib.parse import SplitResult, unquote, urlsplit

from aiohappyeyeballs import AddrInfoType, start_connection

from tapestry.client.access import Access
from tapestry.client.credentials import basic_header
from tapestry.client.http_connection import HttpConnection, ResponseError
from tapestry.client.tls import client_context
from tapestry.streams.connection import enable_keepalive

CONNECT_SECONDS = 10.0
NEXT_ADDRESS_SECONDS = 0.25
"""Seconds after which the next address of a host is tried as well."""
PORTS = {"http": 80, "https": 443}


class ProxyError(OSError):
    """The proxy opened no tunnel to the server."""


class Dialer:
    """Open connections to the server of `access`."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._url = urlsplit(access.server)
        self._proxy = urlsplit(access.proxy_url) if access.proxy_url else None
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self.abort_count = 0

    async def dial(self, context: ssl.SSLContext | None, abort_count: int) -> HttpConnection:
        """Open a connection for a request that started after `abort_count` aborts.  Raise OSError if that fails."""
        name = self._access.tls_server_name
        async with asyncio.timeout(CONNECT_SECONDS):
            if self._proxy is None:
                return await self._connect(self._url, context, name, abort_count)
            secure = self._proxy.scheme == "https"
            proxy_context = (context or client_context(self._access.verification, None)) if secure else None
            connection = await self._connect(self._proxy, proxy_context, None, abort_count)
            return await self._tunnel(connection, self._proxy, context) if context else connection

    async def _connect(
        self, url: SplitResult, context: ssl.SSLContext | None, name: str | None, abort_count: int
    ) -> HttpConnection:
        host = url.hostname or ""
        loop = asyncio.get_running_loop()
        try:
            addresses = await loop.getaddrinfo(host, url.port or PORTS[url.scheme], type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise OSError(f"{host} is not a host name") from error
        sock = await start_connection(
            addresses, happy_eyeballs_delay=NEXT_ADDRESS_SECONDS, socket_factory=partial(self._socket, abort_count)
        )
        try:
            _, connection = await loop.create_connection(
                partial(HttpConnection, context),
                sock=sock,
                ssl=context,
                server_hostname=(name or host).rstrip(".") if context else None,
            )
        except BaseException:
            sock.close()
            raise
        return connection

    async def _tunnel(self, connection: HttpConnection, proxy: SplitResult, context: ssl.SSLContext) -> HttpConnection:
        """Open a TLS connection to the server through a connection to its proxy."""
        host = self._url.netloc if self._url.port else f"{self._url.netloc}:{PORTS[self._url.scheme]}"
        head = "\r\n".join([f"CONNECT {host} HTTP/1.1", f"Host: {host}", *proxy_authorization(proxy), "", ""])
        tunneled = HttpConnection(context)
        name = self._access.tls_server_name or self._url.hostname or ""
        try:
            connection.start(head.encode(), None)
            await connection.head()
            if connection.status >= 300:
                reason = connection.reason.decode("latin-1")
                raise ProxyError(f"the proxy rejected the request: {connection.status} {reason}")
            transport = await asyncio.get_running_loop().start_tls(
                connection.transport, tunneled, context, server_hostname=name.rstrip(".")
            )
        except BaseException as error:
            connection.abort()
            if isinstance(error, ResponseError):
                raise ProxyError(f"the proxy opened no tunnel: {error}") from None
            raise
        assert transport is not None
        tunneled.connection_made(transport)
        return tunneled

    def _socket(self, abort_count: int, address: AddrInfoType) -> socket.socket:
        if abort_count != self.abort_count:
            raise ConnectionAbortedError(errno.ECONNABORTED, "aborted while connecting")
        policy, ip = self._access.address_policy, str(address[4][0])
        if policy is not None and (problem := policy.denial_reason(ip)):
            raise PermissionError(errno.EACCES, f"{ip} is {problem}, which a kubeconfig from a Secret may not lead to")
        sock = socket.socket(address[0], address[1], address[2])
        sock.setblocking(False)
        enable_keepalive(sock)
        self._sockets.add(sock)
        return sock

    def abort(self) -> None:
        """Cut all connections, also those that are being opened."""
        self.abort_count += 1
        for each in list(self._sockets):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:  # closed already
                continue

    async def wait_closed(self) -> None:
        """Wait until the event loop has closed the sockets of aborted connections, which takes a few iterations."""
        for _ in range(100):
            if all(each.fileno() < 0 for each in self._sockets):
                return
            await asyncio.sleep(0)


def proxy_authorization(proxy: SplitResult) -> Iterator[str]:
    """Yield the header with the user and password in the URL of a proxy, if it has any."""
    if proxy.username is not None:
        yield f"Proxy-Authorization: {basic_header(unquote(proxy.username), unquote(proxy.password or ''))}"
