"""Client side of port-forward over SPDY: one local connection that leads to a port of a pod."""

import asyncio

from tapestry.streams.background import background_tasks
from tapestry.streams.connection import Connection
from tapestry.streams.negotiation import PROTOCOL_HEADER, SPDY
from tapestry.streams.port_forward import PORT_FORWARD
from tapestry.streams.spdy_connection import SpdyConnection, SpdyStream

UPGRADE_HEADERS = (("Connection", "Upgrade"), ("Upgrade", SPDY), (PROTOCOL_HEADER, PORT_FORWARD))
"""Headers of the request for `portforward` of a pod."""


async def forward_connection(local: Connection, backend: Connection, port: int) -> None:
    """Copy bytes between a local connection and a port of a pod until either side closes its end; then close both.

    `backend` is the upgraded connection to the API server. Raise ConnectionError with the reason if the pod is not
    reached, or if the connection to it is lost.
    """
    spdy = SpdyConnection(backend, is_server=False)
    headers = {"port": str(port), "requestid": "0"}
    try:
        async with background_tasks(spdy.run(), spdy.ping_regularly()):
            errors = await spdy.open({"streamtype": "error", **headers})
            data = await spdy.open({"streamtype": "data", **headers})
            await errors.end()
            if await copy_until_end(local, data):
                await local.close()
                if message := await errors.read():
                    raise ConnectionAbortedError(message.decode(errors="replace"))
            await spdy.close()
    except* ConnectionError as group:
        raise first_error(group) from None
    finally:
        local.abort()
        backend.abort()


async def copy_until_end(local: Connection, stream: SpdyStream) -> bool:
    """Copy both ways until one side ends. Return whether that is the pod."""
    async with asyncio.TaskGroup() as group:
        received = group.create_task(copy_received(stream, local))
        sent = group.create_task(copy_sent(local, stream))
        await asyncio.wait([received, sent], return_when=asyncio.FIRST_COMPLETED)
        is_ended_by_pod = received.done()
        received.cancel()
        sent.cancel()
    return is_ended_by_pod


async def copy_received(stream: SpdyStream, local: Connection) -> None:
    while chunk := await stream.read():
        await local.write(chunk)


async def copy_sent(local: Connection, stream: SpdyStream) -> None:
    while chunk := await local.read():
        await stream.write(chunk)


def first_error(group: BaseExceptionGroup[ConnectionError]) -> ConnectionError:
    """Return the first error of a group, which may contain groups."""
    error = group.exceptions[0]
    return first_error(error) if isinstance(error, BaseExceptionGroup) else error
