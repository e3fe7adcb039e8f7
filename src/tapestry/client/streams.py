"""Answers that keep coming: what is said instead of one, its lines, and when it counts as dead.

`tapestry.client.watch` makes events of such an answer, `tapestry.client.logs` passes it on as it comes.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from tapestry.client.transport import Stream
from tapestry.kube.errors import TransportError, error_from_body

SILENCE = 90.0
"""Seconds without a byte after which a stream counts as dead: servers send a bookmark every minute."""
LONGEST_LINE = 8 << 20
"""Bytes of one event of a watch: an object of Kubernetes has at most 3 MiB, besides its managed fields."""
LONGEST_REFUSAL = 1 << 20


class DeadStream(TransportError):
    """Nothing more will come that could be read."""

    def __init__(self, message: str) -> None:
        super().__init__(message, maybe_sent=True)


class Silence(DeadStream):
    """A stream carried nothing for longer than a living one does."""


class BrokenStream(DeadStream):
    """A stream ended before it had said anything, or said what no API server says."""


async def granted(stream: Stream, doing: str, silence: float = SILENCE) -> Stream:
    """The stream itself, if that is what the server answered with; else the error that it answered with is raised."""
    if stream.status >= 300:
        raise error_from_body(stream.status, await refusal_in(stream, silence), doing=doing)
    return stream


async def refusal_in(stream: Stream, silence: float) -> bytes:
    """The body of an answer that is no stream, as far as anyone will read it."""
    chunks = aiter(stream.chunks())
    body = b""
    while len(body) < LONGEST_REFUSAL and (chunk := await next_chunk(chunks, silence)) is not None:
        body += chunk
    return body


async def lines_of(stream: Stream, silence: float = SILENCE) -> AsyncGenerator[list[bytes], None]:
    """The whole lines of a stream, as many at a time as have arrived."""
    chunks = aiter(stream.chunks())
    begun: list[bytes] = []
    size = 0
    while (chunk := await next_chunk(chunks, silence)) is not None:
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            begun.append(head)
            yield [line for line in b"".join(begun).split(b"\n") if line]
            begun, size = [tail], len(tail)
        else:
            begun.append(tail)
            size += len(tail)
            if size > LONGEST_LINE:
                raise BrokenStream(f"a line is over {LONGEST_LINE} bytes and has no end")


async def next_chunk(chunks: AsyncIterator[bytes], silence: float) -> bytes | None:
    """The next bytes; None at the end of the stream."""
    try:
        async with asyncio.timeout(silence):
            return await anext(chunks, None)
    except TimeoutError as error:
        raise Silence(f"the stream carried nothing for {silence:g} s") from error
