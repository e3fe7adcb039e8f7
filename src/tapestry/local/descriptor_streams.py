"""Reading and writing of pipes, terminals and sockets by descriptor, on any event loop."""

import asyncio
import errno
import os
import socket

CHUNK = 64 << 10
DRAIN_SECONDS = 1.0
"""Seconds to wait for output after a process ended; a descendant may keep its pipe open."""
MAX_PASSED_DESCRIPTORS = 8


async def wait_until_readable(descriptor: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


async def read_output(descriptor: int, ended: asyncio.Future[None]) -> bytes:
    """Return the next output of a process from a non-blocking descriptor.

    It is empty at the end of the output, or when the process has ended and nothing comes any more.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            return os.read(descriptor, CHUNK)
        except BlockingIOError:
            has_ended = ended.done()
        except OSError as error:
            if error.errno == errno.EIO:  # a terminal without processes
                return b""
            raise
        ready = asyncio.Event()
        loop.add_reader(descriptor, ready.set)
        try:
            if has_ended:
                async with asyncio.timeout(DRAIN_SECONDS):
                    await ready.wait()
            else:
                await wait_for_either(ready, ended)
        except TimeoutError:
            return b""
        finally:
            loop.remove_reader(descriptor)


async def write_input(descriptor: int, data: bytes, ended: asyncio.Future[None]) -> None:
    """Write to a non-blocking descriptor; wait while it is full.  Ignore a process that closed it or has ended."""
    loop, rest = asyncio.get_running_loop(), memoryview(data)
    while rest and not ended.done():
        try:
            rest = rest[os.write(descriptor, rest) :]
            continue
        except BlockingIOError:
            ready = asyncio.Event()
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.EIO):
                return
            raise
        loop.add_writer(descriptor, ready.set)
        try:
            await wait_for_either(ready, ended)
        finally:
            loop.remove_writer(descriptor)


async def wait_for_either(ready: asyncio.Event, ended: asyncio.Future[None]) -> None:
    def wake(_: object) -> None:
        ready.set()

    ended.add_done_callback(wake)
    try:
        await ready.wait()
    finally:
        ended.remove_done_callback(wake)


async def receive_descriptors(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next message of a non-blocking socket and the descriptors that came with it."""
    while True:
        try:
            data, descriptors, _, _ = socket.recv_fds(sock, CHUNK, MAX_PASSED_DESCRIPTORS)
        except BlockingIOError:
            await wait_until_readable(sock.fileno())
        else:
            for each in descriptors:
                os.set_inheritable(each, False)
            return data, descriptors
