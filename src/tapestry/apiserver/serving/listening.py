"""Listening: a socket, the connections that it accepts, and what becomes of them before they speak HTTP."""

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

from tapestry.apiserver.serving.clients import Clients
from tapestry.apiserver.serving.wire import Connection, Exchange
from tapestry.process.logs import logger

log = logger(__name__)

HANDSHAKE_SECONDS = 10.0
"""How long a TLS handshake may take."""
SHUTDOWN_SECONDS = 1.0

Serve = Callable[[Exchange], Awaitable[None]]


class Handshake(asyncio.Protocol):
    """A connection before its TLS handshake is complete: it counts from the start, and can be closed at any time.

    Event loops show a connection only after its handshake.  So this one is accepted without TLS, and its socket handed
    to the loop again, in a task.
    """

    peer = owner = ""
    is_idle = True

    def __init__(self, listening: "Listening", context: ssl.SSLContext) -> None:
        self._listening, self._context = listening, context
        self._waiting: socket.socket | None = None
        """The socket, until the event loop has it."""
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        try:
            duplicate = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        except OSError:  # too many open files, or the client is gone
            duplicate = None
        transport.abort()
        if duplicate is None:
            return
        if self._listening.is_over:
            duplicate.close()
            return
        self._waiting = duplicate
        self._listening.handshakes.add(self)
        self._task = self._listening.group.create_task(self._shake_hands())
        self._listening.clients.arrived(self)

    def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._waiting is not None:  # the task has not begun, and never will
            self._waiting.close()
            self.leave()

    def leave(self) -> None:
        """It is over, one way or the other."""
        self._listening.handshakes.discard(self)
        self._listening.clients.left(self)

    async def _shake_hands(self) -> None:
        client, self._waiting = self._waiting, None
        assert client is not None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: Connection(self._listening, self),
                client,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
            )
        except OSError:
            return  # no TLS, none that we speak, no end of it, or no client any more
        except Exception:
            log.exception("a TLS handshake failed")  # and only this one: all are in one group
        finally:
            self.leave()


class Listening:
    """A socket that is listened to."""

    def __init__(self, serve: Serve, group: asyncio.TaskGroup, idle: float, clients: Clients) -> None:
        self.serve = serve
        """It answers whatever happens; what it raises breaks the connection."""
        self.group = group
        """Whose tasks exchanges are."""
        self.idle = idle
        """Seconds that a connection may be without a whole head of a request."""
        self.clients = clients
        """Counts connections, and closes some where there are too many."""
        self.connections: set[Connection] = set()
        self.handshakes: set[Handshake] = set()
        self.is_over = False
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()

        def made() -> asyncio.Protocol:
            return Connection(self) if tls is None else Handshake(self, tls)

        self._server = await loop.create_server(made, host, port, backlog=1024)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        sockets = self._server.sockets if self._server is not None else ()
        return [each.getsockname()[:2] for each in sockets]

    async def cleanup(self) -> None:
        """Stop listening; what is under way has a moment to end."""
        if self._server is None:
            return
        self.is_over = True
        loop = asyncio.get_running_loop()
        for door in self._server.sockets:
            loop.remove_reader(door)
        await asyncio.sleep(0)  # a server that is closed forgets whom it has just accepted: CPython's issue 109564
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
            each.end()
        with suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                await self._server.wait_closed()
