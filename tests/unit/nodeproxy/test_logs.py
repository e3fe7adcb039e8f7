"""Logs of virtual pods: what is asked below, what comes of it, and who waits for whom."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tapestry.kube.errors import ApiError, BadRequest, Forbidden, Invalid, NotFound, ServerError, Unauthorized

from .world import LOG, POD, TWIN, World, a_world, hang_up

MIB = 1 << 20


async def test_the_log_of_a_pod_is_that_of_its_twin_with_the_same_options(world: World) -> None:
    options = {
        "follow": "true",
        "previous": "true",
        "timestamps": "true",
        "stream": "Stdout",
        "sinceSeconds": "5",
        "sinceTime": "2026-01-01T00:00:00Z",
        "tailLines": "3",
        "limitBytes": "100",
    }
    query = "&".join(f"{name}={value}" for name, value in options.items())
    assert await world.ask(f"{LOG}?{query}&pretty=true") == (200, "one\ntwo\n")
    assert await world.ask("/containerLogs/default/web/first") == (200, "one\ntwo\n")
    assert world.physical.asked == [{"container": "c", **options}, {"container": "first"}]


async def test_a_log_that_is_followed_comes_as_it_is_written(world: World) -> None:
    lines: asyncio.Queue[bytes] = asyncio.Queue()

    async def writing(answer: web.StreamResponse, _: web.Request) -> None:
        while line := await lines.get():
            await answer.write(line)

    world.physical.writing = writing
    lines.put_nowait(b"one\n")
    async with world.asking(f"{LOG}?follow=true") as answer:
        assert await answer.content.readline() == b"one\n"
        lines.put_nowait(b"two\n")
        assert await answer.content.readline() == b"two\n"
        lines.put_nowait(b"")
        assert await answer.content.read() == b""


async def test_when_its_reader_leaves_nobody_reads_below_any_more(world: World) -> None:
    async def writing(answer: web.StreamResponse, _: web.Request) -> None:
        await answer.write(b"one\n")
        await asyncio.Event().wait()

    world.physical.writing = writing
    async with world.asking(f"{LOG}?follow=true") as answer:
        await answer.content.readline()
        assert not world.physical.ended.is_set()
    async with asyncio.timeout(30):
        await world.physical.ended.wait()


async def test_whoever_writes_waits_for_a_slow_reader(world: World) -> None:
    written = 0

    async def writing(answer: web.StreamResponse, _: web.Request) -> None:
        nonlocal written
        while written < 64 * MIB:
            await answer.write(b"x" * MIB)
            written += MIB

    world.physical.writing = writing
    read, ahead = 0, 0
    async with world.asking() as answer:
        async for chunk in answer.content.iter_any():
            read += len(chunk)
            ahead = max(ahead, written - read)
    assert read == 64 * MIB
    assert ahead < 16 * MIB  # what the buffers on the way hold


async def test_only_so_many_logs_are_read_at_once(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def writing(answer: web.StreamResponse, _: web.Request) -> None:
        await answer.write(b"one\n")
        await go.wait()

    async with a_world(tmp_path, places=1) as world:
        world.physical.writing = writing
        async with world.asking(f"{LOG}?follow=true") as answer:
            await answer.content.readline()
            code, text = await world.ask()
            assert (code, "try again when one has ended" in text) == (429, True)
            go.set()
            await answer.content.read()
        assert (await world.ask())[0] == 200


async def test_a_log_that_breaks_off_below_is_not_taken_for_complete(world: World) -> None:
    async def writing(answer: web.StreamResponse, request: web.Request) -> None:
        await answer.write(b"one\n")
        hang_up(request)

    world.physical.writing = writing
    with pytest.raises(aiohttp.ClientPayloadError):
        await world.ask()


# -- where there is no log


async def test_of_what_is_not_there_a_kubelet_says_so(world: World) -> None:
    assert await world.ask("/containerLogs/default/web/none") == (404, 'container "none" not found in pod "web"')
    assert await world.ask("/containerLogs/default/none/c") == (404, 'pod "none" does not exist')
    assert await world.ask("/containerLogs/other/web/c") == (404, 'pod "web" does not exist')
    assert world.physical.asked == []


async def test_rule_1_a_pod_without_a_twin_of_its_own_has_no_log_and_nobody_is_asked_for_one(world: World) -> None:
    world.twin = None
    code, text = await world.ask()
    assert (code, "`tapestry explain pod default/web`" in text) == (400, True)
    assert world.physical.asked == []


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (
            BadRequest(400, "BadRequest", f'container "c" in pod "{TWIN}" is waiting to start'),
            400,
            f'in pod "{POD}" is',
        ),
        (Invalid(422, "Invalid", "tailLines: must be at least 0"), 400, "tailLines"),
        (NotFound(404, "NotFound", "pods not found"), 400, "tapestry explain pod default/web"),
        (Forbidden(403, "Forbidden", "no"), 500, "grant it `get pods/log` in namespace leased"),
        (Unauthorized(401, "Unauthorized", "no"), 500, "tapestry doctor"),
        (ServerError(500, "InternalError", "dial tcp: timeout"), 500, "the physical cluster says: dial tcp: timeout"),
        (ServerError(500, "InternalError", "x" * 9999), 500, "the physical cluster says: xxx"),
    ],
)
async def test_what_is_refused_below_is_told_in_words_that_reach_people(
    world: World, error: ApiError, code: int, words: str
) -> None:
    world.physical.refusal = error
    status, text = await world.ask()
    assert (status, words in text) == (code, True), text
    assert TWIN not in text
    assert len(text) < 4200


async def test_silence_below_is_told_without_telling_where(world: World) -> None:
    world.physical.is_mute = True
    code, text = await world.ask()
    assert code == 500
    assert "the physical cluster behind node vnode-east-n1 does not answer" in text
    assert "127.0.0.1" not in text
