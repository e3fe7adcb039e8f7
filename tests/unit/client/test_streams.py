"""Lines of streams, error responses and dead streams."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.client import streams
from tapestry.client.streams import MAX_ERROR_BODY, BrokenStream, Silence, read_lines, require_success
from tapestry.controller.testing import in_virtual_time, run, running_clock
from tapestry.kube.errors import NotFound, ServerError, TransportError

from .script import error_response


@dataclass(frozen=True)
class ChunkStream:
    """A stream of these chunks, which then ends or stays silent."""

    arriving: Sequence[bytes]
    status: int = 200
    falls_silent: bool = False

    async def chunks(self) -> AsyncIterator[bytes]:
        for chunk in self.arriving:
            yield chunk
        if self.falls_silent:
            await asyncio.Event().wait()


async def lines(stream: ChunkStream) -> list[bytes]:
    return [line async for some in read_lines(stream) for line in some]


@given(st.lists(st.binary(max_size=5), max_size=20))
def test_lines_are_complete_despite_any_chunking(chunks: list[bytes]) -> None:
    *whole, _ = b"".join(chunks).split(b"\n")
    assert run(lines(ChunkStream(chunks))) == [line for line in whole if line]


@in_virtual_time
async def test_arrived_lines_are_yielded_at_once() -> None:
    arrivals = read_lines(ChunkStream([b"a\nb\nc", b"d\n"], falls_silent=True))
    assert [await anext(arrivals), await anext(arrivals)] == [[b"a", b"b"], [b"cd"]]
    assert running_clock().monotonic() == 0
    with pytest.raises(Silence, match="nothing for 90 s"):
        await anext(arrivals)
    assert running_clock().monotonic() == 90


async def test_endless_line_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_LINE_BYTES", 100)
    assert await lines(ChunkStream([b"x" * 60, b"x" * 40 + b"\n"])) == [b"x" * 100]
    with pytest.raises(BrokenStream, match="over 100 bytes"):
        await lines(ChunkStream([b"x" * 60, b"x" * 60]))


async def test_successful_stream_is_returned() -> None:
    stream = ChunkStream([b"a\n"])
    assert await require_success(stream, "watch pods") is stream


async def test_error_response_names_the_request() -> None:
    body = error_response(NotFound(404, "NotFound", "no such pods")).body
    with pytest.raises(NotFound, match="watch pods: 404 NotFound: no such pods"):
        await require_success(ChunkStream([body[:9], body[9:]], status=404), "watch pods")


async def test_dead_stream_says_nothing_about_objects() -> None:
    with pytest.raises(TransportError) as caught:
        await require_success(ChunkStream([], status=500, falls_silent=True), "watch pods", idle_timeout=0)
    assert caught.value.maybe_sent


@in_virtual_time
async def test_error_body_is_bounded_in_time_and_size() -> None:
    with pytest.raises(Silence):
        await require_success(ChunkStream([b"well..."], status=500, falls_silent=True), "watch pods", idle_timeout=5)
    assert running_clock().monotonic() == 5
    half = b"x" * (MAX_ERROR_BODY // 2)
    with pytest.raises(ServerError):
        await require_success(ChunkStream([half, half], status=500, falls_silent=True), "watch pods")
    assert running_clock().monotonic() == 5
