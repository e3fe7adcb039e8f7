"""Listening sockets, accepted connections and TLS handshakes."""

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

from tapestry.apiserver.serving.connection_limiter import ConnectionLimiter
from tapestry.apiserver.serving.http_connection import HttpConnection, Listener
from tapestry.process.logs import logger

log = logger(__name__)

HANDSHAKE_SECONDS = 10.0
"""Seconds that a TLS handshake may take."""
MAX_STARTED_HANDSHAKES = 2
"""Handshakes that start in one iteration of the event loop. Each takes almost a millisecond."""
SHUTDOWN_SECONDS = 1.0
BACKLOG = 1024

HandOver = Callable[[socket.socket], Awaitable[bool]]
"""Pass an accepted connection, of which nothing was read, to another process. Return whether that was done."""


class HandshakeTurns:
    """Spreads the starts of handshakes over iterations of the event loop, so that requests are served in between."""

    def __init__(self) -> None:
        self._started = 0
        """Number of handshakes that have started in this iteration."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait until a handshake may start."""
        loop = asyncio.get_running_loop()
        if self._started < MAX_STARTED_HANDSHAKES:
            self._start(loop)
            return
        self._waiting.append(loop.create_future())
        await self._waiting[-1]

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._started:
            loop.call_soon(self._end_iteration, loop)
        self._started += 1

    def _end_iteration(self, loop: asyncio.AbstractEventLoop) -> None:
        self._started = 0
        while self._waiting and self._started < MAX_STARTED_HANDSHAKES:
            turn = self._waiting.popleft()
            if not turn.done():  # it may be cancelled
                self._start(loop)
                turn.set_result(None)


class Handshake(asyncio.Protocol):
    """A connection during its TLS handshake. It is counted from the start and can be closed at any time.

    asyncio reports a TLS connection only after its handshake. So the connection is accepted without TLS, and its
    socket is passed to the event loop again, in a task.
    """

    peer = owner = ""
    limiter: ConnectionLimiter | None = None
    is_idle = True

    def __init__(self, http_server: "HttpServer", context: ssl.SSLContext) -> None:
        self._http_server, self._context = http_server, context
        self._pending_socket: socket.socket | None = None
        """The socket, until the event loop takes it over."""
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        try:
            duplicate = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        except OSError:  # too many open files, or the client has disconnected
            duplicate = None
        transport.abort()
        if duplicate is not None:
            self.start(duplicate)

    def start(self, client: socket.socket) -> None:
        """Start the handshake on a socket, which this connection owns from now on."""
        if self._http_server.is_stopped:
            client.close()
            return
        with suppress(OSError):  # the client has disconnected
            peer = client.getpeername()
            self.peer = peer[0] if isinstance(peer, tuple) else ""
        self._pending_socket = client
        self._http_server.handshakes.add(self)
        self._task = self._http_server.group.create_task(self._run_handshake())
        self._http_server.connection_limiter.add(self)

    def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._pending_socket is not None:  # the task has not started and is cancelled
            self._pending_socket.close()
            self.finish()

    close = abort

    def finish(self) -> None:
        """Stop tracking the handshake after success or failure."""
        self._task = None
        self._http_server.handshakes.discard(self)
        self._http_server.connection_limiter.remove(self)

    async def _run_handshake(self) -> None:
        await self._http_server.handshake_turns.wait()
        client, hand_over = self._pending_socket, self._http_server.hand_over
        assert client is not None
        try:
            if hand_over is not None:
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    is_handed_over = await hand_over(client)
                if is_handed_over:
                    return
            self._pending_socket = None
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: HttpConnection(self._http_server, self.finish),
                client,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
            )
        except OSError:
            return  # not TLS, no common version, a timeout, or a disconnect
        except Exception:
            log.exception("TLS handshake failed")  # caught here, because all handshakes share one task group
        finally:
            if self._pending_socket is not None:
                self._pending_socket.close()
                self._pending_socket = None
            self.finish()


@dataclass(eq=False)
class HttpServer(Listener):
    """A listening socket and its connections."""

    hand_over: HandOver | None = None
    handshakes: set[Handshake] = field(default_factory=set, init=False)
    handshake_turns: HandshakeTurns = field(default_factory=HandshakeTurns, init=False)
    _server: asyncio.Server | None = field(default=None, init=False)

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        loop, made = asyncio.get_running_loop(), self._protocol_factory(tls)
        self._server = await loop.create_server(made, host, port, backlog=BACKLOG)

    async def start_on(self, bound: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Listen on a bound socket, which `stop` closes."""
        loop, made = asyncio.get_running_loop(), self._protocol_factory(tls)
        self._server = await loop.create_server(made, sock=bound, backlog=BACKLOG)

    def adopt(self, client: socket.socket, tls: ssl.SSLContext) -> None:
        """Serve a connection that another process has accepted."""
        Handshake(self, tls).start(client)

    def _protocol_factory(self, tls: ssl.SSLContext | None) -> Callable[[], asyncio.BaseProtocol]:
        return lambda: HttpConnection(self) if tls is None else Handshake(self, tls)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        sockets = self._server.sockets if self._server is not None else ()
        return [each.getsockname()[:2] for each in sockets]

    async def stop(self) -> None:
        """Stop listening; requests in flight have a short time to end."""
        if self._server is None:
            return
        self.is_stopped = True
        loop = asyncio.get_running_loop()
        for listening_socket in self._server.sockets:
            loop.remove_reader(listening_socket)
        await asyncio.sleep(0)  # a closed server loses connections that were just accepted: CPython issue 109564
        self._server.close()
        for handshake in list(self.handshakes):
            handshake.abort()
        for each in list(self.connections):
            if each.is_idle:
                each.close()
        tasks = [each.task for each in self.connections if each.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=SHUTDOWN_SECONDS)
        for each in list(self.connections):
            each.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                await self._server.wait_closed()
