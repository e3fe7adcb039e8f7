"""Lines out of streams, wherever they were cut; and streams that are no use."""

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

from .script import refusal


@dataclass(frozen=True)
class Arriving:
    """A stream of these chunks, which then ends, or says nothing any more."""

    arriving: Sequence[bytes]
    status: int = 200
    falls_silent: bool = False

    async def chunks(self) -> AsyncIterator[bytes]:
        for chunk in self.arriving:
            yield chunk
        if self.falls_silent:
            await asyncio.Event().wait()


async def lines(stream: Arriving) -> list[bytes]:
    return [line async for some in read_lines(stream) for line in some]


@given(st.lists(st.binary(max_size=5), max_size=20))
def test_lines_are_whole_wherever_they_were_cut(chunks: list[bytes]) -> None:
    *whole, _ = b"".join(chunks).split(b"\n")
    assert run(lines(Arriving(chunks))) == [line for line in whole if line]


@in_virtual_time
async def test_what_has_arrived_comes_at_once() -> None:
    arrivals = read_lines(Arriving([b"a\nb\nc", b"d\n"], falls_silent=True))
    assert [await anext(arrivals), await anext(arrivals)] == [[b"a", b"b"], [b"cd"]]
    assert running_clock().monotonic() == 0
    with pytest.raises(Silence, match="nothing for 90 s"):
        await anext(arrivals)
    assert running_clock().monotonic() == 90


async def test_a_line_without_end_is_not_gathered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_LINE_BYTES", 100)
    assert await lines(Arriving([b"x" * 60, b"x" * 40 + b"\n"])) == [b"x" * 100]
    with pytest.raises(BrokenStream, match="over 100 bytes"):
        await lines(Arriving([b"x" * 60, b"x" * 60]))


async def test_a_stream_that_the_server_grants_is_had() -> None:
    stream = Arriving([b"a\n"])
    assert await require_success(stream, "watch pods") is stream


async def test_a_refusal_is_an_error_that_says_what_was_asked_for() -> None:
    said = refusal(NotFound(404, "NotFound", "no such pods")).body
    with pytest.raises(NotFound, match="watch pods: 404 NotFound: no such pods"):
        await require_success(Arriving([said[:9], said[9:]], status=404), "watch pods")


async def test_a_stream_that_dies_says_nothing_about_any_object() -> None:
    with pytest.raises(TransportError) as caught:
        await require_success(Arriving([], status=500, falls_silent=True), "watch pods", idle_timeout=0)
    assert caught.value.maybe_sent


@in_virtual_time
async def test_a_refusal_is_read_neither_for_ever_nor_at_any_length() -> None:
    with pytest.raises(Silence):
        await require_success(Arriving([b"well..."], status=500, falls_silent=True), "watch pods", idle_timeout=5)
    assert running_clock().monotonic() == 5
    half = b"x" * (MAX_ERROR_BODY // 2)
    with pytest.raises(ServerError):
        await require_success(Arriving([half, half], status=500, falls_silent=True), "watch pods")
    assert running_clock().monotonic() == 5
