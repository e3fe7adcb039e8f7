"""Connections that lead to a port of a pod through port-forward."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tapestry.streams.background import background_tasks
from tapestry.streams.connection import Connection
from tapestry.streams.forwarded_connection import forward_connection
from tapestry.streams.port_forward import serve_port_forward

from .peers import connected

LARGE = b"x" * 1_000_000


@asynccontextmanager
async def pod_listening() -> AsyncIterator[tuple[Connection, int, asyncio.Event]]:
    """Yield a connection to the kubelet of a pod that sends back what it gets, its port, and an event for its end."""
    ended = asyncio.Event()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
            if data.endswith(b"bye"):
                break
        writer.close()
        ended.set()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server, connected() as (kubelet, client):
        port = server.sockets[0].getsockname()[1]

        async def dial(number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await asyncio.open_connection("127.0.0.1", number)

        async with background_tasks(serve_port_forward(kubelet, dial)):
            yield client, port, ended


async def test_bytes_pass_in_both_directions() -> None:
    async with pod_listening() as (backend, port, _), connected() as (near, far), asyncio.TaskGroup() as group:
        group.create_task(forward_connection(far, backend, port))
        sending = group.create_task(near.write(LARGE))
        received = b""
        while len(received) < len(LARGE):
            received += await near.read()
        await sending
        assert received == LARGE
        await near.write(b"bye")
        assert await near.read() == b"bye"
        assert await near.read() == b""


async def test_end_of_the_client_ends_the_connection() -> None:
    async with pod_listening() as (backend, port, ended), connected() as (near, far):
        async with asyncio.TaskGroup() as group:
            group.create_task(forward_connection(far, backend, port))
            await near.write(b"hello")
            assert await near.read() == b"hello"
            await near.close()
        await ended.wait()


async def test_refused_port_is_an_error_with_reason() -> None:
    async with pod_listening() as (backend, _, _), connected() as (near, far):
        with pytest.raises(ConnectionAbortedError, match="error forwarding port 1: "):
            await forward_connection(far, backend, 1)
        assert await near.read() == b""


async def test_lost_backend_ends_the_connection() -> None:
    async with pod_listening() as (backend, port, _), connected() as (near, far):

        async def use() -> None:
            await near.write(b"hello")
            assert await near.read() == b"hello"
            backend.abort()
            assert await near.read() == b""

        async with background_tasks(use()):
            with pytest.raises(ConnectionError):
                await forward_connection(far, backend, port)
