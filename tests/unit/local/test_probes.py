"""Single probes, and results after thresholds."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from tapestry.controller.testing import run
from tapestry.kube.objects import Object
from tapestry.local.probes import Prober, probe_results
from tapestry.process.child_processes import child


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Port of a server with one healthy path."""

    async def respond(request: web.BaseRequest) -> web.Response:
        if request.path == "/slow":
            await asyncio.sleep(5)
        return web.Response(status={"/well": 204, "/moved": 302}.get(request.path, 500))

    runner = web.ServerRunner(web.Server(respond, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


@pytest.fixture
async def prober(port: int, tmp_path: Path) -> AsyncIterator[Prober]:
    async def run_command(command: Sequence[str]) -> tuple[int, bytes]:
        output: list[bytes] = []
        async with child(command, {"PATH": os.environ["PATH"]}, tmp_path, output.append) as running:
            code = await running.wait()
        return code, b"".join(output)

    async with aiohttp.ClientSession() as session:
        yield Prober(session, "127.0.0.1", {"web": port}, run_command)


def http(path: str, port: object = "web") -> Object:
    return {"httpGet": {"path": path, "port": port}}


@pytest.mark.parametrize(
    ("probe", "why"),
    [
        (http("/well"), None),
        (http("/moved"), None),
        (http("/ill"), "HTTP probe failed with statuscode: 500"),
        (http("/slow"), "timed out"),
        (http("/well", "other"), "the container has no port named other"),
        ({"tcpSocket": {"port": "web"}}, None),
        ({"exec": {"command": ["sh", "-c", "exit 0"]}}, None),
        ({"exec": {"command": ["sh", "-c", "echo no; exit 2"]}}, "command exited with 2: no"),
        ({"exec": {"command": ["sleep", "60"]}}, "timed out"),
    ],
)
async def test_probe_reports_failure(prober: Prober, probe: Object, why: str | None) -> None:
    assert await prober.attempt(probe) == why


async def test_probe_fails_without_listener(prober: Prober) -> None:
    for probe in (http("/well", 1), {"tcpSocket": {"port": 1}}):
        assert await prober.attempt(probe) is not None


def results_of(found: list[bool], *, eager: bool = False, **probe: int) -> list[tuple[bool, float]]:
    """Return the results of these attempts, with their times."""

    async def collect() -> list[tuple[bool, float]]:
        remaining, results = iter(found), []
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def attempt() -> str | None:
            well = next(remaining, None)
            if well is None:
                raise EOFError
            return None if well else "ill"

        results_of_probe = probe_results(probe, attempt, eager=eager)
        with suppress(EOFError):
            while True:
                results.append((await anext(results_of_probe), loop.time() - began))
        return results

    return run(collect())


def test_result_needs_consecutive_threshold() -> None:
    found = [True, False, False, True, False, False, False, False, True, True]
    results = results_of(found, failureThreshold=3, successThreshold=2, periodSeconds=5, initialDelaySeconds=7)
    assert results == [(False, 7 + 6 * 5), (True, 7 + 9 * 5)]


def test_default_thresholds_are_one_success_three_failures() -> None:
    assert results_of([False, False, True, False, False, False]) == [(True, 20), (False, 50)]


def test_eager_probe_runs_every_second_until_success() -> None:
    results = results_of([False, False, True, False, True], eager=True, failureThreshold=1)
    assert results == [(False, 0), (True, 2), (False, 12), (True, 22)]


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 4), st.integers(1, 4))
def test_no_result_without_threshold(found: list[bool], success: int, failure: int) -> None:
    results = results_of(found, successThreshold=success, failureThreshold=failure, periodSeconds=1)
    for result, moment in results:
        needed, at = success if result else failure, round(moment)
        assert found[at - needed + 1 : at + 1] == [result] * needed
