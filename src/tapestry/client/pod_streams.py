"""Interactive access to pods over WebSocket: sessions of exec and attach, and tunnels of port-forward."""

from collections.abc import AsyncIterator, Sequence

import msgspec

from tapestry.client.http_transport import HttpTransport
from tapestry.client.transport import Request
from tapestry.kube.errors import error_from_body
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import PODS
from tapestry.streams.connection import Connection
from tapestry.streams.port_forward import TUNNEL
from tapestry.streams.remote_command import CLOSE_SIGNAL, V4, V5, Channel
from tapestry.streams.websocket import (
    WebSocket,
    WebSocketTunnel,
    accepted_subprotocol,
    websocket_request_headers,
)

Query = Sequence[tuple[str, str]]


class CommandSession:
    """Client side of a session of exec or attach.  Read `outputs` to its end, then `exit_code` is the result."""

    def __init__(self, websocket: WebSocket, subprotocol: str) -> None:
        self._websocket = websocket
        self._has_close_signal = subprotocol == V5
        self._status = b""

    async def outputs(self) -> AsyncIterator[tuple[Channel, bytes]]:
        """Yield what the command writes, until it ends.  Raise ConnectionError if the connection is lost."""
        channel: int | None = None
        while fragments := await self._websocket.read():
            for data, is_first in fragments:
                if is_first:
                    channel, data = (data[0], data[1:]) if data else (None, b"")
                if channel == Channel.ERROR:
                    self._status += data
                elif channel in (Channel.STDOUT, Channel.STDERR) and data:
                    yield Channel(channel), data

    async def write_stdin(self, data: bytes) -> None:
        await self._websocket.write(bytes((Channel.STDIN,)) + data)

    async def close_stdin(self) -> None:
        """End the input of the command.  With a server that does not know how, end the session."""
        if self._has_close_signal:
            await self._websocket.write(bytes((CLOSE_SIGNAL, Channel.STDIN)))
        else:
            await self._websocket.close()

    async def resize(self, width: int, height: int) -> None:
        size = msgspec.json.encode({"Width": width, "Height": height})
        await self._websocket.write(bytes((Channel.RESIZE,)) + size)

    async def ping_regularly(self) -> None:
        await self._websocket.ping_regularly()

    async def close(self) -> None:
        await self._websocket.close()

    @property
    def exit_code(self) -> int:
        """Exit code of the command.  Raise ConnectionError if the server reports none."""
        if not self._status:
            raise ConnectionResetError("the connection ended before the command did")
        status: Object = msgspec.json.decode(self._status)
        if status.get("status") == "Success":
            return 0
        causes = value_at(status, "details", "causes", default=[])
        codes = [each["message"] for each in causes if each.get("reason") == "ExitCode"]
        if not codes:
            raise ConnectionAbortedError(str(status.get("message") or "the command could not be run"))
        return int(codes[0])


async def open_command(transport: HttpTransport, namespace: str, pod: str, verb: str, query: Query) -> CommandSession:
    """Open a session of `exec` or `attach`.  `query` holds PodExecOptions or PodAttachOptions."""
    connection, subprotocol = await open_websocket(transport, namespace, pod, verb, query, (V5, V4))
    return CommandSession(WebSocket(connection, is_client=True), subprotocol)


async def open_port_forward(transport: HttpTransport, namespace: str, pod: str) -> Connection:
    """Open a connection on which SPDY forwards ports of a pod."""
    connection, _ = await open_websocket(transport, namespace, pod, "portforward", (), (TUNNEL,))
    return WebSocketTunnel(WebSocket(connection, is_client=True))


async def open_websocket(
    transport: HttpTransport, namespace: str, pod: str, verb: str, query: Query, subprotocols: Sequence[str]
) -> tuple[Connection, str]:
    """Return an upgraded connection and its subprotocol.  Raise the error of the server if it refuses."""
    request, headers = Request("GET", PODS.path(namespace, pod, verb)), websocket_request_headers(subprotocols)
    response = await transport.upgrade(request, query, headers)
    if response.connection is None:
        raise error_from_body(response.status, response.body, action=str(request))
    return response.connection, accepted_subprotocol(headers, response.headers)
