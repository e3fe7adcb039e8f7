"""Repeated and malformed requests to the service of virtual clusters."""

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from tapestry.apis.operations import OPERATIONS
from tapestry.apis.planes import PLANES
from tapestry.apis.vclusters import VCLUSTERS
from tapestry.vclusters.rest_routes import RPCS

from .plane_clients import client_of, together
from .processes import rss_megabytes
from .vcluster_clients import COLLECTION, Clients, UnlimitedPlanesProcess, rest_answer, rpc_answer, service
from .vcluster_mutations import random_http, random_rpc

ALLOWED_CODES = frozenset(grpc.StatusCode) - {
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DATA_LOSS,
}
ANSWER_SECONDS = 20.0
WORKERS = 64
MAX_GROWTH_MB = 150


# -- repeated requests


async def check_repeated_creates(world: Clients, count: int) -> None:
    fields = {"name": "blue", "requestId": "again", "waitForReady": True}

    async def create(number: int) -> tuple[str, str]:
        if number % 2:
            answer = await world.rest("POST", COLLECTION, json=fields)
        else:
            answer = await world.rpc(
                "CreateVCluster", name="blue", namespace="shop", request_id="again", wait_for_ready=True
            )
        return answer["operationId"], answer["vcluster"]["id"]

    answers = await together(create(number) for number in range(count))
    assert len(set(answers)) == 1, Counter(answers)
    async with client_of(world.process.kubeconfig) as management:
        for resource in (VCLUSTERS, PLANES, OPERATIONS):
            assert len(await management.list(resource)) == 1, resource.kind
    changed = {**fields, "labels": {"team": "web"}}
    status, answer = await rest_answer(world, "POST", COLLECTION, changed)
    assert (status, reason_of(answer)) == (400, "REQUEST_ID_REUSED")
    request = GetMessageClass(RPCS["CreateVCluster"].input_type)()
    json_format.ParseDict({**changed, "namespace": "shop"}, request)
    _, details = await rpc_answer(world, "CreateVCluster", request)
    assert details[0]["reason"] == "REQUEST_ID_REUSED"


def reason_of(answer: Any) -> Any:
    return answer["error"]["details"][0]["reason"]


@pytest.mark.timeout(120)
async def test_repeated_creates_have_one_effect(tmp_path: Path) -> None:
    async with service(tmp_path, UnlimitedPlanesProcess) as world:
        await check_repeated_creates(world, 100)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_thousand_repeated_creates_have_one_effect(tmp_path: Path) -> None:
    async with service(tmp_path, UnlimitedPlanesProcess) as world:
        await check_repeated_creates(world, 1000)


# -- malformed requests


async def send_http(world: Clients, context: ssl.SSLContext, content: bytes) -> int:
    """Send bytes to the REST listener, and return the status of the answer; 0 without one."""
    host, port = world.base.removeprefix("https://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    try:
        writer.write(content)
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(2):
                line = await reader.readline()
            return int(line.split()[1]) if line.startswith(b"HTTP/") else 0
        return 0
    finally:
        writer.transport.abort()


async def send_rpc(world: Clients, path: str, content: bytes) -> grpc.StatusCode:
    """Call an RPC with bytes, and return its code. A stream is over with its first message."""
    rpc = RPCS.get(path.rpartition("/")[2])
    options = {"metadata": world.metadata, "timeout": ANSWER_SECONDS}
    try:
        if rpc is not None and rpc.server_streaming:
            call = world.channel.unary_stream(path)(content, **{**options, "timeout": 1.0})
            await call.read()
            call.cancel()
        else:
            await world.channel.unary_unary(path)(content, **options)
    except grpc.aio.AioRpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


async def prepare(world: Clients) -> None:
    """Limit what random requests create, and use the project, so that none of them deletes it."""
    await world.rest("PATCH", "/v1/projects/default/quota", json={"limits": {"vclusters": "4"}})
    await world.rest("POST", COLLECTION, json={"name": "green", "waitForReady": True})


async def check_malformed_requests(world: Clients, count: int, seed: int) -> Counter[object]:
    """Send so many requests, of which most are malformed, and return how often each code was the answer."""
    random = Random(seed)
    context = ssl.create_default_context(cafile=str(world.process.folder / "pki" / "ca.crt"))
    numbers = iter(range(count))
    wrong: list[tuple[object, bytes]] = []
    answers: Counter[object] = Counter()

    async def work() -> None:
        for number in numbers:
            if number % 2:
                content = random_http(random, world.metadata[0][1])
                status = await send_http(world, context, content)
                answers[status] += 1
                if status >= 500 and status not in (501, 503):
                    wrong.append((status, content))
            else:
                path, content = random_rpc(random)
                code = await send_rpc(world, path, content)
                answers[code] += 1
                if code not in ALLOWED_CODES:
                    wrong.append((code, path.encode() + content))

    await together(work() for _ in range(WORKERS))
    log = world.process.log.read_text()
    traces = [line for line in log.splitlines() if "Traceback" in line or '"level":"error"' in line]
    assert not wrong, (seed, answers, wrong[:5])
    assert not traces, (seed, answers, traces[:3])
    assert answers[200] > 0, answers
    assert answers[400] > 0, answers
    assert answers[grpc.StatusCode.INVALID_ARGUMENT] > 0, answers
    await world.rest("GET", "/v1/vclusters")
    await world.rpc("ListVClusters")
    return answers


@pytest.mark.timeout(120)
async def test_malformed_requests(tmp_path: Path) -> None:
    async with service(tmp_path, UnlimitedPlanesProcess) as world:
        await prepare(world)
        await check_malformed_requests(world, 5000, seed=20)


@pytest.mark.long
@pytest.mark.timeout(3000)
async def test_hundred_thousand_malformed_requests(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    async with service(tmp_path, UnlimitedPlanesProcess) as world:
        await prepare(world)
        await check_malformed_requests(world, 5000, seed=1)
        before = rss_megabytes(world.process.pid)
        answers = await check_malformed_requests(world, 95_000, seed=2)
        grown = rss_megabytes(world.process.pid) - before
        record_property("answers", {str(code): count for code, count in answers.items()})
        record_property("growth of the memory in MB", round(grown))
        assert grown < MAX_GROWTH_MB
