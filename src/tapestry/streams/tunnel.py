"""Copying of bytes between two connections, unchanged."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from tapestry.streams.connection import Connection


@dataclass
class Transferred:
    """Bytes that a session has transferred so far."""

    received: int = 0
    """Bytes from the client."""
    sent: int = 0
    """Bytes to the client."""

    def add_received(self, count: int) -> None:
        self.received += count

    def add_sent(self, count: int) -> None:
        self.sent += count


async def tunnel(client: Connection, backend: Connection, transferred: Transferred) -> None:
    """Copy bytes in both directions until one side closes its connection, then close both.

    What one side sent before it closed still reaches the other.
    """
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(copy_bytes(client, backend, transferred.add_received))
            group.create_task(copy_bytes(backend, client, transferred.add_sent))
    finally:
        client.abort()
        backend.abort()


async def copy_bytes(source: Connection, target: Connection, count: Callable[[int], None]) -> None:
    """Copy until the source ends or the target is closed, then close the target."""
    with suppress(ConnectionError):
        while data := await source.read():
            await target.write(data)
            count(len(data))
    await target.close()
