"""HTTP sessions with the Services and pods of a server that has a host cluster.

The syncer connects them (`host_access`), and no address in an object of the server matters. URLs name a Service as
`name.namespace.svc`, with a port of the Service, and a pod as `name.namespace.pod`. TLS is end to end: the certificate
is verified as if the server itself had connected.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from tapestry.apiserver.core.host_access import HostAccess, PodSockets, PodUnreachable
from tapestry.apiserver.core.store import Store
from tapestry.kube.errors import Unavailable
from tapestry.kube.objects import EMPTY_MAPPING, Object
from tapestry.kube.resources import SERVICES
from tapestry.streams.sockets import protocol_on

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler

SERVICE_SUFFIX, POD_SUFFIX = "svc", "pod"
CONNECT_SECONDS = 30.0

OpenSocket = Callable[[str, int], Awaitable[socket.socket]]
"""Return a socket that is connected to a named server and port. Raises OSError."""


def service_host(namespace: str, name: str) -> str:
    return f"{name}.{namespace}.{SERVICE_SUFFIX}"


def pod_host(namespace: str, name: str) -> str:
    return f"{name}.{namespace}.{POD_SUFFIX}"


class NamedSockets:
    """Sockets to the Services and pods of a store, by the host names of this module."""

    def __init__(self, store: Store, host: HostAccess) -> None:
        self._store, self._host = store, host

    async def open(self, host: str, port: int) -> socket.socket:
        """Return a connected socket. Raises OSError with the reason."""
        name, namespace, kind = host.rsplit(".", 2)
        if kind == POD_SUFFIX:
            return await self._pods().connect_pod(namespace, name, port)
        version = self._store.get(SERVICES.name, namespace, name)
        if version is None:
            raise PodUnreachable(f'service "{name}" not found')
        service: Object = msgspec.json.decode(version.raw)
        return await self._pods().connect_service(service, port)

    def _pods(self) -> PodSockets:
        try:
            pods = self._host.pods()
        except Unavailable as error:
            raise PodUnreachable(error.message) from error
        if pods is None:
            raise PodUnreachable("the host cluster of this server has been removed just now; try again")
        return pods


class SocketConnector(aiohttp.BaseConnector):
    """A connector of aiohttp on sockets that another function connects."""

    def __init__(self, open_socket: OpenSocket) -> None:
        super().__init__(limit=0)
        self._open_socket = open_socket

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],  # noqa: ARG002
        timeout: aiohttp.ClientTimeout,
    ) -> "ResponseHandler":
        """Return a new connection for a request."""
        host, port = req.host, req.port or 0
        tls = req.ssl if isinstance(req.ssl, ssl.SSLContext) else None
        if req.is_ssl() and tls is None:
            raise ValueError("a request over TLS needs a context")
        try:
            async with asyncio.timeout(timeout.sock_connect or CONNECT_SECONDS):
                sock = await self._open_socket(host, port)
                return await protocol_on(self._factory, sock, tls, host)
        except ssl.CertificateError as error:
            raise aiohttp.ClientConnectorCertificateError(req.connection_key, error) from error
        except OSError as error:
            raise aiohttp.ClientConnectorError(req.connection_key, error) from error


def socket_session(
    open_socket: OpenSocket,
    headers: Mapping[str, str] = EMPTY_MAPPING,
    timeout: aiohttp.ClientTimeout = aiohttp.client.DEFAULT_TIMEOUT,
) -> aiohttp.ClientSession:
    """A session without cookies and decompression on the sockets of `open_socket`. Callers pass a context for TLS."""
    return aiohttp.ClientSession(
        connector=SocketConnector(open_socket),
        headers={"Accept-Encoding": "identity", **headers},
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )
