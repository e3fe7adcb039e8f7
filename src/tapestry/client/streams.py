"""Answers that keep coming: what is said instead of one, its lines, and when it counts as dead.

`tapestry.client.watch` makes events of such an answer, `tapestry.client.logs` passes it on as it comes.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from tapestry.client.transport import Stream
from tapestry.kube.errors import TransportError, error_from_body

IDLE_TIMEOUT = 90.0
"""Seconds without a byte after which a stream counts as dead: servers send a bookmark every minute."""
MAX_LINE_BYTES = 8 << 20
"""Bytes of one event of a watch: an object of Kubernetes has at most 3 MiB, besides its managed fields."""
MAX_ERROR_BODY = 1 << 20


class DeadStream(TransportError):
    """Nothing more will come that could be read."""

    def __init__(self, message: str) -> None:
        super().__init__(message, maybe_sent=True)


class Silence(DeadStream):
    """A stream carried nothing for longer than a living one does."""


class BrokenStream(DeadStream):
    """A stream ended before it had said anything, or said what no API server says."""


async def require_success(stream: Stream, doing: str, idle_timeout: float = IDLE_TIMEOUT) -> Stream:
    """The stream itself, if that is what the server answered with; else the error that it answered with is raised."""
    if stream.status >= 300:
        raise error_from_body(stream.status, await read_error_body(stream, idle_timeout), action=doing)
    return stream


async def read_error_body(stream: Stream, idle_timeout: float) -> bytes:
    """The body of an answer that is no stream, as far as anyone will read it."""
    chunks = aiter(stream.chunks())
    body = b""
    while len(body) < MAX_ERROR_BODY and (chunk := await next_chunk(chunks, idle_timeout)) is not None:
        body += chunk
    return body


async def read_lines(stream: Stream, idle_timeout: float = IDLE_TIMEOUT) -> AsyncGenerator[list[bytes], None]:
    """The whole lines of a stream, as many at a time as have arrived."""
    chunks = aiter(stream.chunks())
    begun: list[bytes] = []
    size = 0
    while (chunk := await next_chunk(chunks, idle_timeout)) is not None:
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            begun.append(head)
            yield [line for line in b"".join(begun).split(b"\n") if line]
            begun, size = [tail], len(tail)
        else:
            begun.append(tail)
            size += len(tail)
            if size > MAX_LINE_BYTES:
                raise BrokenStream(f"a line is over {MAX_LINE_BYTES} bytes and has no end")


async def next_chunk(chunks: AsyncIterator[bytes], idle_timeout: float) -> bytes | None:
    """The next bytes; None at the end of the stream."""
    try:
        async with asyncio.timeout(idle_timeout):
            return await anext(chunks, None)
    except TimeoutError as error:
        raise Silence(f"the stream carried nothing for {idle_timeout:g} s") from error
