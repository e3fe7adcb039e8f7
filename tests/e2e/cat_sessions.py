"""Exec sessions with `cat`, over WebSocket and over SPDY, which return what they get."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from tapestry.streams.remote_command import V4, Channel, RequestedStreams, SpdyChannels
from tapestry.streams.upgrade import dial, request_upgrade
from tapestry.streams.websocket import WebSocket, websocket_request_headers

SPDY = "SPDY/3.1"
SPDY_HEADERS = [("Connection", "Upgrade"), ("Upgrade", SPDY), ("X-Stream-Protocol-Version", V4)]
REQUESTED = RequestedStreams(stdin=True, stdout=True, stderr=False, terminal=False)
PING = b"ping\n"
SECONDS = 60
"""Limit of every wait: far more than a loaded machine needs."""


class CatSession(Protocol):
    async def write(self, data: bytes) -> None: ...

    async def read(self) -> bytes:
        """Return output of the command. Raise ConnectionError if the session has ended."""
        ...


@dataclass(frozen=True)
class WebSocketSession:
    websocket: WebSocket

    async def write(self, data: bytes) -> None:
        await self.websocket.write(bytes((Channel.STDIN,)) + data)

    async def read(self) -> bytes:
        if not (fragments := await self.websocket.read()):
            raise ConnectionResetError("the server has closed the session")
        return b"".join(each.data[1:] for each in fragments if each.data[:1] == bytes((Channel.STDOUT,)))


@dataclass(frozen=True)
class SpdySession:
    channels: SpdyChannels

    async def write(self, data: bytes) -> None:
        await self.channels.write(Channel.STDIN, data)

    async def read(self) -> bytes:
        if not (data := await self.channels.read(Channel.STDOUT)):
            raise ConnectionResetError("the server has closed the session")
        return data


@asynccontextmanager
async def cat_session(url: str, tls: ssl.SSLContext, protocol: str, token: str = "") -> AsyncIterator[CatSession]:
    """Open a session with SPDY or a subprotocol of WebSockets, and check that it works."""
    address = urlsplit(url)
    connection = await dial(address.hostname or "", address.port or 0, tls)
    headers = SPDY_HEADERS if protocol == SPDY else websocket_request_headers([protocol])
    headers = [("Host", address.netloc), *([("Authorization", f"Bearer {token}")] if token else []), *headers]
    response = await request_upgrade(connection, "GET", f"{address.path}?{address.query}", headers)
    assert response.connection is not None, response
    try:
        if protocol != SPDY:
            over_websocket = WebSocketSession(WebSocket(response.connection, is_client=True))
            await check_echo(over_websocket)
            yield over_websocket
            return
        channels = SpdyChannels(response.connection, REQUESTED, is_server=False)
        receiving = asyncio.create_task(channels.run())
        try:
            await channels.start()
            over_spdy = SpdySession(channels)
            await check_echo(over_spdy)
            yield over_spdy
        finally:
            receiving.cancel()
            with suppress(asyncio.CancelledError, ConnectionError):
                await receiving
    finally:
        response.connection.abort()


async def check_echo(session: CatSession) -> None:
    """Check that the session returns what it gets."""
    await session.write(PING)
    received = b""
    async with asyncio.timeout(SECONDS):
        while PING not in received:
            received += await session.read()


async def check_silence(sessions: Sequence[CatSession], seconds: float) -> None:
    """Check that no session ends and that none gets anything in this time."""
    waiting = [asyncio.create_task(each.read()) for each in sessions]
    try:
        ended, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        assert not ended
    finally:
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)


async def wait_for_end(session: CatSession) -> None:
    """Wait until the session has ended. Where kube-apiserver translates, it reports the error first."""
    with suppress(ConnectionError):
        while True:
            await session.read()
