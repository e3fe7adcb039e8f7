"""Translation of WebSocket clients to SPDY servers, for kubelets that only support SPDY.

kube-apiserver does the same for clients of `v5.channel.k8s.io` and `SPDY/3.1+portforward.k8s.io`.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from tapestry.streams.background import background_tasks
from tapestry.streams.connection import Connection
from tapestry.streams.remote_command import (
    Channel,
    RequestedStreams,
    SpdyChannels,
    WebSocketChannels,
    failure_status,
    wait_for_disconnect,
)
from tapestry.streams.tunnel import Transferred, tunnel
from tapestry.streams.websocket import WebSocket, WebSocketTunnel

MAX_STATUS_BYTES = 1 << 16
OUTPUTS = (Channel.STDOUT, Channel.STDERR)
LOST = "the connection to the node was lost"


async def translate_remote_command(
    client: Connection, subprotocol: str, backend: Connection, streams: RequestedStreams, transferred: Transferred
) -> None:
    """Connect exec or attach of a WebSocket client to a SPDY server, until either side ends the session.

    Both connections are upgraded: `subprotocol` of the client is `v5.channel.k8s.io` or `v4.channel.k8s.io`, and the
    server has accepted `X-Stream-Protocol-Version: v4.channel.k8s.io`. Both are closed when this returns.
    """
    front = WebSocketChannels(WebSocket(client), subprotocol, streams)
    back = SpdyChannels(backend, streams, is_server=False)
    translation = CommandTranslation(front, back, transferred)
    try:
        await translation.run([each for each in streams.channels() if each in OUTPUTS])
    except* ConnectionError:
        pass  # the client has disconnected
    finally:
        client.abort()
        backend.abort()


async def translate_port_forward(client: Connection, backend: Connection, transferred: Transferred) -> None:
    """Connect a WebSocket client of `SPDY/3.1+portforward.k8s.io` to a SPDY server, until either side ends.

    Both connections are upgraded, and closed when this returns.
    """
    websocket = WebSocket(client)
    async with background_tasks(websocket.ping_regularly()):
        await tunnel(WebSocketTunnel(websocket), backend, transferred)


@dataclass(frozen=True)
class CommandTranslation:
    """One session of exec or attach."""

    front: WebSocketChannels
    back: SpdyChannels
    transferred: Transferred

    async def run(self, outputs: Sequence[Channel]) -> None:
        """Copy until either side ends the session. Raise ConnectionError in a group if the client blocks its end."""
        front, back, status = self.front, self.back, b""
        async with background_tasks(wait_for_disconnect(front), front.ping_regularly(), self._run_back()):
            try:
                await back.start()
                with suppress(ConnectionError):  # a client that has disconnected may have sent input before
                    await front.start()
                async with background_tasks(self._copy_input(Channel.STDIN), self._copy_input(Channel.RESIZE)):
                    status = await self._copy_outputs(outputs)
            except* ConnectionError:
                pass  # of either side; the client gets a status if it is still connected
            with suppress(ConnectionError):
                await front.write(Channel.ERROR, status or failure_status(LOST))
            await front.close()
            await back.close()

    async def _run_back(self) -> None:
        """Receive from the server until it ends; its channels report whether the connection was lost."""
        try:
            async with background_tasks(self.back.ping_regularly()):
                await self.back.run()
        except* ConnectionError:
            pass

    async def _copy_input(self, channel: Channel) -> None:
        while data := await self.front.read(channel):
            self.transferred.add_received(len(data))
            with suppress(ConnectionError):  # the outputs report it
                await self.back.write(channel, data)
        with suppress(ConnectionError):
            await self.back.end(channel)

    async def _copy_outputs(self, outputs: Sequence[Channel]) -> bytes:
        """Copy stdout and stderr to their ends, and return the status."""
        status = b""
        async with asyncio.TaskGroup() as group:
            for each in outputs:
                group.create_task(self._copy_output(each))
            while data := await self.back.read(Channel.ERROR):
                status = (status + data)[:MAX_STATUS_BYTES]
        self.transferred.add_sent(len(status))
        return status

    async def _copy_output(self, channel: Channel) -> None:
        while data := await self.back.read(channel):
            await self.front.write(channel, data)
            self.transferred.add_sent(len(data))
