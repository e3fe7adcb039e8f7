"""The kubelet API of virtual nodes without a listener: logs, streams and usage for the API server in the process."""

import asyncio
from dataclasses import replace

import msgspec
import pytest
from aiohttp import web

from tapestry.apis import keys
from tapestry.kube.errors import BadRequest, Forbidden, NotFound, ServerError, TooManyRequests, Unavailable
from tapestry.nodeproxy.in_process_kubelet import InProcessKubelet
from tapestry.streams.connection import Connection

from .world import EXEC, LOG, MOUNT, NODE, SECONDS, TWIN, World, new_pod, new_twin, two_lines

SPDY = (("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", "v4.channel.k8s.io"))


async def log_of(kubelet: InProcessKubelet, **query: str) -> bytes:
    response = await kubelet.get(NODE, LOG, query)
    assert response.stream is not None
    return b"".join([chunk async for chunk in response.stream.chunks()])


async def connect(world: World, target: str = EXEC) -> Connection:
    response = await world.in_process.upgrade(NODE, "POST", target, SPDY, "alice")
    assert response.connection is not None, response
    assert response.headers == {"upgrade": "SPDY/3.1", "x-stream-protocol-version": "v4.channel.k8s.io"}
    return response.connection


async def test_log_of_the_twin_is_streamed(world: World) -> None:
    assert await log_of(world.in_process, tailLines="2", command="x") == b"one\ntwo\n"
    assert world.physical.queries == [{"container": "c", "tailLines": "2"}]


async def test_abandoned_log_is_closed(world: World) -> None:
    async def endless(answer: web.StreamResponse, request: web.Request) -> None:
        await answer.write(b"one\n")
        await asyncio.Event().wait()

    world.physical.writing = endless
    response = await world.in_process.get(NODE, LOG, {"follow": "true"})
    assert response.stream is not None
    chunks = response.stream.chunks()
    async with asyncio.timeout(SECONDS):
        while not await anext(chunks):
            pass
        await chunks.aclose()
        await world.physical.ended.wait()


async def test_interrupted_log_is_not_complete(world: World) -> None:
    async def interrupted(answer: web.StreamResponse, request: web.Request) -> None:
        await answer.write(b"one\n")
        assert request.transport is not None
        request.transport.abort()

    world.physical.writing = interrupted
    with pytest.raises(ConnectionError, match="default/web interrupted"):
        await log_of(world.in_process)


async def test_logs_are_limited(world: World) -> None:
    kubelet = replace(world.in_process, logs=replace(world.in_process.logs, slots=asyncio.Semaphore(1)))
    first = await kubelet.get(NODE, LOG, {})
    with pytest.raises(TooManyRequests):
        await kubelet.get(NODE, LOG, {})
    assert first.stream is not None
    await first.stream.chunks().aclose()
    world.physical.writing = two_lines
    assert await log_of(kubelet) == b"one\ntwo\n"


async def test_unreachable_host_is_named(world: World) -> None:
    world.physical.is_mute = True
    with pytest.raises(ServerError, match=f"the physical cluster of node {NODE} is unreachable"):
        await world.in_process.get(NODE, LOG, {})
    world.streams.is_mute = True
    with pytest.raises(ServerError, match="is unreachable; exec is not possible"):
        await connect(world)


async def test_missing_twin_is_explained_by_its_condition(world: World) -> None:
    world.twin = None
    with pytest.raises(BadRequest, match="does not run in the physical cluster, not yet"):
        await world.in_process.get(NODE, LOG, {})
    condition = {"type": keys.MAPPED_CONDITION, "status": "False", "reason": "Suspended", "message": "it is suspended"}
    world.live["default/web"] = {**new_pod(), "status": {"conditions": [condition]}}
    with pytest.raises(BadRequest, match="does not run in the host cluster: it is suspended; there is no log"):
        await world.in_process.get(NODE, LOG, {})
    with pytest.raises(BadRequest, match="it is suspended; exec is not possible"):
        await connect(world)


@pytest.mark.parametrize(
    ("node", "path"),
    [
        ("other", LOG),
        (NODE, "/containerLogs/default/other/c"),
        (NODE, "/containerLogs/default/web/other"),
        (NODE, "/containerLogs/default/web"),
        ("other", "/metrics/resource"),
        (NODE, f"/nodes/{NODE}/metrics/resource"),
        ("other", "/healthz"),
        (NODE, "/pods"),
        (NODE, "/exec/default/web/c"),
        (NODE, ""),
    ],
)
async def test_other_paths_and_nodes_are_not_found(world: World, node: str, path: str) -> None:
    with pytest.raises(NotFound):
        await world.in_process.get(node, path, {})
    assert world.physical.queries == []


@pytest.mark.parametrize(
    ("node", "target"),
    [
        ("other", EXEC),
        (NODE, EXEC.replace("web", "other")),
        (NODE, "/exec/default/web/u2/c?command=sh&output=1"),
        (NODE, "/exec/default/..%2Fweb/c?command=sh&output=1"),
        (NODE, "/run/default/web/c"),
    ],
)
async def test_streams_of_other_pods_are_not_found(world: World, node: str, target: str) -> None:
    with pytest.raises(NotFound):
        await world.in_process.upgrade(node, "POST", target, SPDY, "alice")
    assert world.streams.requests == []


async def test_session_is_connected_to_the_twin_and_recorded(world: World) -> None:
    connection = await connect(world)
    await connection.write(b"x" * 1000)
    received = b""
    async with asyncio.timeout(SECONDS):
        while len(received) < 1000:
            received += await connection.read()
    ((method, path, query, headers),) = world.streams.requests
    assert (method, path) == ("POST", f"/api/v1/namespaces/{MOUNT}/pods/{TWIN}/exec")
    assert query == [("container", "c"), ("stdin", "true"), ("stdout", "true"), ("command", "sh")]
    assert "authorization" not in dict(headers)
    connection.abort()
    (record,) = world.records
    assert (record.user, record.received, record.sent) == ("alice", 1000, 1000)
    await connection.close()
    assert len(world.records) == 1


async def test_refusal_of_the_host_is_a_response(world: World) -> None:
    world.streams.refusal = Forbidden(403, "Forbidden", f"pods {TWIN} is forbidden")
    response = await world.in_process.upgrade(NODE, "POST", EXEC, SPDY, "alice")
    assert (response.status, response.connection) == (500, None)
    assert "does not allow it" in msgspec.json.decode(response.body)["message"]
    world.streams.refusal = None
    (await connect(world)).abort()
    assert len(world.records) == 1


async def test_other_protocol_of_the_host_is_refused(world: World) -> None:
    world.streams.headers = {"Upgrade": "other"}
    with pytest.raises(ServerError, match="switched to a protocol"):
        await connect(world)
    async with asyncio.timeout(SECONDS):
        await world.streams.ended.wait()
    assert world.records == []


async def test_session_ends_with_its_twin(world: World) -> None:
    connection = await connect(world)
    world.twin = new_twin("t2")
    async with asyncio.timeout(SECONDS):
        assert await connection.read() == b""
        await world.audit.wait_for(1)
    assert world.records[0].error == "the twin of the pod was deleted"


async def test_sessions_are_limited_and_end_with_the_process(world: World) -> None:
    world.sessions.max_per_user = 1
    connection = await connect(world)
    with pytest.raises(TooManyRequests):
        await connect(world)
    world.sessions.end_all("the process is stopping")
    assert await connection.read() == b""
    (await connect(world)).abort()


async def test_usage_of_a_node_is_read_on_request(world: World) -> None:
    usage = {"cpu": "250m", "memory": "64Mi"}
    times = {"timestamp": "2026-01-01T00:00:10Z", "window": "10s"}
    world.physical.metrics = [
        {"metadata": {"name": TWIN}, **times, "containers": [{"name": "c", "usage": usage}]},
        {"metadata": {"name": "foreign"}, **times, "containers": [{"name": "c", "usage": usage}]},
    ]
    assert world.physical.queries == []
    page = (await world.in_process.get(NODE, "/metrics/resource", {})).body.decode()
    assert f'pod_memory_working_set_bytes{{namespace="default",pod="web"}} {64 << 20}' in page
    assert "foreign" not in page
    summary = msgspec.json.decode((await world.in_process.get(NODE, "/stats/summary", {})).body)
    assert [each["podRef"]["name"] for each in summary["pods"]] == ["web"]
    assert len(world.physical.queries) == 1


async def test_missing_metrics_api_of_the_host_is_explained(world: World) -> None:
    world.physical.refusal = NotFound(404, "NotFound", "no")
    with pytest.raises(Unavailable, match="install metrics-server there"):
        await world.in_process.get(NODE, "/metrics/resource", {})


async def test_healthz_is_that_of_known_nodes(world: World) -> None:
    assert (await world.in_process.get(NODE, "/healthz", {})).body == b"ok"
