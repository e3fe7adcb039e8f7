"""Logs of virtual pods: requests to the physical cluster, errors and backpressure."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tapestry.kube.errors import ApiError, BadRequest, Forbidden, Invalid, NotFound, ServerError, Unauthorized

from .world import LOG, POD, TWIN, World, abort_connection, new_world

MIB = 1 << 20


async def test_log_of_pod_is_that_of_its_twin(world: World) -> None:
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
    assert world.physical.queries == [{"container": "c", **options}, {"container": "first"}]


async def test_followed_log_is_streamed(world: World) -> None:
    lines: asyncio.Queue[bytes] = asyncio.Queue()

    async def writing(answer: web.StreamResponse, _: web.Request) -> None:
        while line := await lines.get():
            await answer.write(line)

    world.physical.writing = writing
    lines.put_nowait(b"one\n")
    async with world.requesting(f"{LOG}?follow=true") as answer:
        assert await answer.content.readline() == b"one\n"
        lines.put_nowait(b"two\n")
        assert await answer.content.readline() == b"two\n"
        lines.put_nowait(b"")
        assert await answer.content.read() == b""


async def test_disconnected_client_ends_the_physical_stream(world: World) -> None:
    async def writing(answer: web.StreamResponse, _: web.Request) -> None:
        await answer.write(b"one\n")
        await asyncio.Event().wait()

    world.physical.writing = writing
    async with world.requesting(f"{LOG}?follow=true") as answer:
        await answer.content.readline()
        assert not world.physical.ended.is_set()
    async with asyncio.timeout(30):
        await world.physical.ended.wait()


async def test_slow_reader_slows_the_writer(world: World) -> None:
    written = 0

    async def writing(answer: web.StreamResponse, _: web.Request) -> None:
        nonlocal written
        while written < 64 * MIB:
            await answer.write(b"x" * MIB)
            written += MIB

    world.physical.writing = writing
    read, ahead = 0, 0
    async with world.requesting() as answer:
        async for chunk in answer.content.iter_any():
            read += len(chunk)
            ahead = max(ahead, written - read)
    assert read == 64 * MIB
    assert ahead < 16 * MIB  # the capacity of the buffers in between


async def test_concurrent_logs_are_limited(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def writing(answer: web.StreamResponse, _: web.Request) -> None:
        await answer.write(b"one\n")
        await go.wait()

    async with new_world(tmp_path, places=1) as world:
        world.physical.writing = writing
        async with world.requesting(f"{LOG}?follow=true") as answer:
            await answer.content.readline()
            code, text = await world.ask()
            assert (code, "try again later" in text) == (429, True)
            go.set()
            await answer.content.read()
        assert (await world.ask())[0] == 200


async def test_interrupted_log_is_not_complete(world: World) -> None:
    async def writing(answer: web.StreamResponse, request: web.Request) -> None:
        await answer.write(b"one\n")
        abort_connection(request)

    world.physical.writing = writing
    with pytest.raises(aiohttp.ClientPayloadError):
        await world.ask()


# -- errors


async def test_missing_pod_or_container_is_not_found(world: World) -> None:
    assert await world.ask("/containerLogs/default/web/none") == (404, 'container "none" not found in pod "web"')
    assert await world.ask("/containerLogs/default/none/c") == (404, 'pod "none" does not exist')
    assert await world.ask("/containerLogs/other/web/c") == (404, 'pod "web" does not exist')
    assert world.physical.queries == []


async def test_rule_1_pod_without_own_twin_has_no_log(world: World) -> None:
    world.twin = None
    code, text = await world.ask()
    assert (code, "`tapestry explain pod default/web`" in text) == (400, True)
    assert world.physical.queries == []


@pytest.mark.parametrize(
    ("error", "code", "message"),
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
        (
            ServerError(500, "InternalError", "dial tcp: timeout"),
            500,
            "the physical cluster reports: dial tcp: timeout",
        ),
        (ServerError(500, "InternalError", "x" * 9999), 500, "the physical cluster reports: xxx"),
    ],
)
async def test_physical_errors_are_translated_for_users(world: World, error: ApiError, code: int, message: str) -> None:
    world.physical.refusal = error
    status, text = await world.ask()
    assert (status, message in text) == (code, True), text
    assert TWIN not in text
    assert len(text) < 4200


async def test_unreachable_error_does_not_reveal_the_address(world: World) -> None:
    world.physical.is_mute = True
    code, text = await world.ask()
    assert code == 500
    assert "the physical cluster of node vnode-east-n1 is unreachable" in text
    assert "127.0.0.1" not in text
