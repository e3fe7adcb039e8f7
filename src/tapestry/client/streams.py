"""Streaming responses: error responses, lines and idle timeouts.

`tapestry.client.watch` reads watch events from such a stream.  `tapestry.client.logs` passes it on unchanged.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from tapestry.client.transport import Stream
from tapestry.kube.errors import TransportError, error_from_body

IDLE_TIMEOUT = 90.0
"""Seconds without a byte after which a stream is dead: servers send a bookmark every minute."""
MAX_LINE_BYTES = 8 << 20
"""Maximum bytes of one watch event: a Kubernetes object has at most 3 MiB without its managed fields."""
MAX_ERROR_BODY = 1 << 20


class DeadStream(TransportError):
    """A stream that gives no more readable data."""

    def __init__(self, message: str) -> None:
        super().__init__(message, maybe_sent=True)


class Silence(DeadStream):
    """A stream without data for longer than the idle timeout."""


class BrokenStream(DeadStream):
    """A stream that ended before its first data, or sent data that is not from an API server."""


async def require_success(stream: Stream, doing: str, idle_timeout: float = IDLE_TIMEOUT) -> Stream:
    """Return the stream if its status is a success.  Otherwise raise the error in its body."""
    if stream.status >= 300:
        raise error_from_body(stream.status, await read_error_body(stream, idle_timeout), action=doing)
    return stream


async def read_error_body(stream: Stream, idle_timeout: float) -> bytes:
    """Return the body of an error response, up to MAX_ERROR_BODY."""
    chunks = aiter(stream.chunks())
    body = b""
    while len(body) < MAX_ERROR_BODY and (chunk := await next_chunk(chunks, idle_timeout)) is not None:
        body += chunk
    return body


async def read_lines(stream: Stream, idle_timeout: float = IDLE_TIMEOUT) -> AsyncGenerator[list[bytes], None]:
    """Yield the complete lines of a stream, as many at a time as have arrived."""
    chunks = aiter(stream.chunks())
    partial: list[bytes] = []
    size = 0
    while (chunk := await next_chunk(chunks, idle_timeout)) is not None:
        if not size and chunk.endswith(b"\n"):  # without copies of the chunk
            yield [line for line in chunk.split(b"\n") if line]
            continue
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            partial.append(head)
            yield [line for line in b"".join(partial).split(b"\n") if line]
            partial, size = [tail], len(tail)
        else:
            partial.append(tail)
            size += len(tail)
            if size > MAX_LINE_BYTES:
                raise BrokenStream(f"a line is over {MAX_LINE_BYTES} bytes")


async def next_chunk(chunks: AsyncIterator[bytes], idle_timeout: float) -> bytes | None:
    """Return the next bytes, or None at the end of the stream."""
    try:
        async with asyncio.timeout(idle_timeout):
            return await anext(chunks, None)
    except TimeoutError as error:
        raise Silence(f"the stream sent nothing for {idle_timeout:g} s") from error
