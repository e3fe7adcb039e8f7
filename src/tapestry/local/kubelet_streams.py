"""exec, attach and port-forward of the local kubelets, over SPDY and over WebSocket.

A kubelet of Kubernetes supports SPDY, and WebSocket up to `v4.channel.k8s.io`. These also support `v5.channel.k8s.io`
and the tunnel `SPDY/3.1+portforward.k8s.io`, so API servers need not translate. The older port-forward protocol over
WebSocket, with ports in the query, is not supported.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tapestry.apiserver.serving.http_connection import Exchange
from tapestry.kube.errors import BadRequest, TooManyRequests
from tapestry.kube.objects import Object
from tapestry.local.runtime import ContainerProcess, Runtime, StreamRejected
from tapestry.process.counters import Counter
from tapestry.process.logs import logger
from tapestry.streams.background import background_tasks
from tapestry.streams.connection import Connection
from tapestry.streams.negotiation import SPDY, UpgradeRejected, spdy_handshake
from tapestry.streams.port_forward import PORT_FORWARD, TUNNEL, serve_port_forward
from tapestry.streams.remote_command import (
    SPDY_PROTOCOLS,
    WEBSOCKET_PROTOCOLS,
    Channel,
    CommandChannels,
    RequestedStreams,
    ResizeParser,
    SpdyChannels,
    WebSocketChannels,
    exit_status,
    wait_for_disconnect,
)
from tapestry.streams.websocket import WebSocket, WebSocketTunnel, websocket_handshake

log = logger(__name__)

MAX_SESSIONS = 512
"""Maximum number of sessions of a listener."""
RETRY_SECONDS = 5
PARAMETERS = {"stdin": "input", "stdout": "output", "stderr": "error", "terminal": "tty"}
"""Query parameters of kubelets, by field of RequestedStreams."""
WEBSOCKET = "websocket"

SESSIONS = Counter(
    "tapestry_kubelet_sessions_total",
    "Sessions of exec, attach and port-forward in local pods, by the protocol of the client.",
    "verb",
    "protocol",
)


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A negotiated upgrade that the server has not sent yet."""

    transport: str
    """`websocket` or `SPDY/3.1`."""
    protocol: str
    headers: Mapping[str, str]


def negotiated_upgrade(
    exchange: Exchange, spdy_protocols: Sequence[str], websocket_protocols: Sequence[str]
) -> Upgrade:
    """Return the upgrade to a protocol that both sides support; raise UpgradeRejected."""
    requested = exchange.headers.get("upgrade", "")
    if not exchange.is_upgrade:
        raise UpgradeRejected(400, "Upgrade request required")
    if requested.lower() == WEBSOCKET:
        return Upgrade(WEBSOCKET, *websocket_handshake(exchange.method, exchange.headers, websocket_protocols))
    if requested.lower() == SPDY.lower():
        return Upgrade(SPDY, *spdy_handshake(exchange.header_pairs, spdy_protocols))
    raise UpgradeRejected(400, f"unable to upgrade: {SPDY} or {WEBSOCKET} is required, not {requested}")


def requested_streams(query: Mapping[str, str]) -> RequestedStreams:
    """Parse the query of exec or attach. A terminal has no stderr of its own."""
    wanted = {name: query.get(parameter) in ("1", "true") for name, parameter in PARAMETERS.items()}
    if not (wanted["stdin"] or wanted["stdout"] or wanted["stderr"]):
        raise BadRequest(400, "BadRequest", "you must specify at least 1 of stdin, stdout, stderr")
    return RequestedStreams(**{**wanted, "stderr": wanted["stderr"] and not wanted["terminal"]})


@dataclass
class StreamServer:
    """Serve the sessions of all pods of a runtime."""

    runtime: Runtime
    _sessions: int = field(default=0, init=False)

    async def exec(
        self, exchange: Exchange, pod: Object, container: str, query: Mapping[str, str], command: Sequence[str]
    ) -> None:
        """Run a command in a container until it ends, or until the client disconnects."""
        streams = requested_streams(query)
        if not command:
            raise BadRequest(400, "BadRequest", "you must specify at least 1 command")

        async def start() -> ContainerProcess:
            return await self.runtime.exec(pod, container, command, stdin=streams.stdin, terminal=streams.terminal)

        await self._run_command(exchange, "exec", streams, start)

    async def attach(self, exchange: Exchange, pod: Object, container: str, query: Mapping[str, str]) -> None:
        """Attach the client to a running container until that ends, or until the client disconnects."""
        streams = requested_streams(query)

        async def start() -> ContainerProcess:
            return await self.runtime.attach(pod, container, stdin=streams.stdin, terminal=streams.terminal)

        await self._run_command(exchange, "attach", streams, start)

    async def port_forward(self, exchange: Exchange, pod: Object) -> None:
        """Forward connections to ports of the pod until the client disconnects."""
        upgrade = negotiated_upgrade(exchange, (PORT_FORWARD,), (TUNNEL,))

        async def dial(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            try:
                return await self.runtime.dial(pod, port)
            except StreamRejected as error:
                raise ConnectionRefusedError(str(error)) from error

        async def serve(connection: Connection) -> None:
            if upgrade.transport == SPDY:
                await serve_port_forward(connection, dial)
                return
            websocket = WebSocket(connection)
            async with background_tasks(websocket.ping_regularly()):
                await serve_port_forward(WebSocketTunnel(websocket), dial)

        await self._serve(exchange, "portForward", upgrade, serve)

    async def _run_command(
        self,
        exchange: Exchange,
        verb: str,
        streams: RequestedStreams,
        start: Callable[[], Awaitable[ContainerProcess]],
    ) -> None:
        upgrade = negotiated_upgrade(exchange, SPDY_PROTOCOLS, WEBSOCKET_PROTOCOLS)

        async def serve(connection: Connection) -> None:
            channels: CommandChannels
            if upgrade.transport == SPDY:
                channels = SpdyChannels(connection, streams, is_server=True)
            else:
                channels = WebSocketChannels(WebSocket(connection), upgrade.protocol, streams)
            await CommandSession(channels, process, has_stdin=streams.stdin).run()

        try:
            process = await start()
        except StreamRejected as error:
            raise BadRequest(400, "BadRequest", str(error)) from error
        try:
            await self._serve(exchange, verb, upgrade, serve)
        finally:
            await process.close()

    async def _serve(
        self, exchange: Exchange, verb: str, upgrade: Upgrade, serve: Callable[[Connection], Awaitable[None]]
    ) -> None:
        if self._sessions >= MAX_SESSIONS:
            details = {"retryAfterSeconds": RETRY_SECONDS}
            message = f"there are {MAX_SESSIONS} sessions already; retry later"
            raise TooManyRequests(429, "TooManyRequests", message, details=details)
        self._sessions += 1
        try:
            connection = exchange.upgrade(upgrade.headers)
            SESSIONS.inc(verb, f"{upgrade.transport} {upgrade.protocol}")
            try:
                await serve(connection)
            finally:
                connection.abort()
        finally:
            self._sessions -= 1


@dataclass(frozen=True)
class CommandSession:
    """A process in a container whose streams are connected to a client."""

    channels: CommandChannels
    process: ContainerProcess
    has_stdin: bool

    async def run(self) -> None:
        """Copy until the process ends, or until the client disconnects."""
        channels, process = self.channels, self.process
        try:
            async with background_tasks(wait_for_disconnect(channels), channels.ping_regularly()):
                await channels.start()
                async with background_tasks(self._copy_stdin(), self._copy_sizes()):
                    async with asyncio.TaskGroup() as group:
                        group.create_task(self._copy_output(process.read_stdout, Channel.STDOUT))
                        group.create_task(self._copy_output(process.read_stderr, Channel.STDERR))
                    code = await process.wait()
                await channels.write(Channel.ERROR, exit_status(code))
                await channels.close()
        except* ConnectionError as errors:
            log.debug("session ended by its client", errors=[str(each) for each in errors.exceptions])

    async def _copy_stdin(self) -> None:
        if not self.has_stdin:
            return
        with suppress(ConnectionError):  # the process reads what the client has sent, and then the end
            while data := await self.channels.read(Channel.STDIN):
                await self.process.write_stdin(data)
        self.process.close_stdin()

    async def _copy_sizes(self) -> None:
        parser = ResizeParser()
        with suppress(ConnectionError, ValueError):  # as in kubelets, invalid sizes end only this stream
            while data := await self.channels.read(Channel.RESIZE):
                for width, height in parser.feed(data):
                    self.process.resize(width, height)

    async def _copy_output(self, read: Callable[[], Awaitable[bytes]], channel: Channel) -> None:
        while data := await read():
            await self.channels.write(channel, data)
