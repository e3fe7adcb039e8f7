"""Nodes of a host cluster: the API server calls their syncer in the process, and no address of a Node."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tapestry.apiserver.core.host_access import HostAccess
from tapestry.apiserver.core.requests import MASTERS_GROUP, Call, User
from tapestry.apiserver.core.responses import ApiResponse, json_response
from tapestry.kube.errors import ApiError, BadRequest, Unavailable
from tapestry.kube.usage import metrics_list, metrics_resources
from tapestry.streams.connection import Connection
from tapestry.streams.upgrade import Headers, UpgradeResponse

from ..kubelets import KEY, PODS, SPDY, V4, V5, Streams, api_server_with_kubelet

METRICS = "/apis/metrics.k8s.io/v1beta1"
NODE_PROXY = "/api/v1/nodes/n1/proxy"
ADMIN = User("admin", (MASTERS_GROUP,))


class Echo:
    """A connection that returns what is written to it."""

    peer = ""

    def __init__(self) -> None:
        self.chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self.is_aborted = asyncio.Event()

    async def read(self) -> bytes:
        return await self.chunks.get()

    async def write(self, data: bytes) -> None:
        self.chunks.put_nowait(data)

    async def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        self.chunks.put_nowait(b"")
        self.is_aborted.set()


@dataclass
class Lines:
    """A log that ends when the test says so."""

    is_ended: bool = False

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        yield b"one\n"
        yield b"two\n"

    def end(self) -> None:
        self.is_ended = True


@dataclass
class Syncer:
    """A syncer that remembers its calls."""

    @property
    def nodes(self) -> "Syncer":
        return self

    @property
    def metrics(self) -> "Syncer":
        return self

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    protocols: tuple[str, ...] = (SPDY, V4)
    log: Lines = field(default_factory=Lines)
    error: ApiError | None = None
    connection: Echo = field(default_factory=Echo)

    async def get(self, node: str, path: str, query: Mapping[str, str]) -> ApiResponse:
        self.calls.append((node, path, dict(query)))
        if self.error is not None:
            raise self.error
        return ApiResponse(200, b"", "text/plain", stream=self.log)

    async def handle(self, call: Call) -> ApiResponse:
        self.calls.append((call.method, call.path))
        if call.path == METRICS:
            return json_response(200, metrics_resources())
        return json_response(200, metrics_list("PodMetrics", []))

    async def upgrade(self, node: str, method: str, target: str, headers: Headers, user: str) -> UpgradeResponse:
        self.calls.append((node, method, target, user))
        if self.error is not None:
            raise self.error
        given = dict(headers)
        requested = given.get("Sec-WebSocket-Protocol", given["Upgrade"])
        if requested not in self.protocols:
            return UpgradeResponse(403, {"content-type": "text/plain"}, b"protocol not supported", None)
        accepted = {"upgrade": given["Upgrade"], "sec-websocket-protocol": given.get("Sec-WebSocket-Protocol", "")}
        connection: Connection = self.connection
        return UpgradeResponse(101, {name: value for name, value in accepted.items() if value}, b"", connection)


@dataclass(frozen=True)
class World:
    """An API server whose node has the address of a real kubelet, which must get no request."""

    streams: Streams
    syncer: Syncer
    access: HostAccess

    async def read(self, path: str, method: str = "GET", **query: str) -> tuple[int, str]:
        """Return the status and the whole body of a response."""
        response = await self.streams.running.request_handler.handle(Call(method, path, query, {}, b"", ADMIN))
        assert isinstance(response, ApiResponse)
        body = response.body
        if response.stream is not None:
            body += b"".join([chunk async for chunk in response.stream.chunks()])
            response.stream.end()
        return response.status, body.decode()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with api_server_with_kubelet(tmp_path, max_sessions_per_user=2) as streams:
        server, syncer = streams.running.server, Syncer()
        server.syncer_restriction.enable(())
        with server.host_access.served_by(syncer):
            yield World(streams, syncer, server.host_access)
        assert streams.kubelet.requests == []


def message_of(body: bytes | str) -> str:
    return str(msgspec.json.decode(body)["message"])


async def test_log_comes_from_the_syncer(world: World) -> None:
    assert await world.read(f"{PODS}/web/log", follow="true", tailLines="2") == (200, "one\ntwo\n")
    assert world.syncer.calls == [("n1", "/containerLogs/default/web/main", {"follow": "true", "tailLines": "2"})]


async def test_errors_of_the_syncer_reach_the_client(world: World) -> None:
    world.syncer.error = BadRequest(400, "BadRequest", "suspended")
    status, body = await world.read(f"{PODS}/web/log")
    assert (status, message_of(body)) == (400, "suspended")
    response = await world.streams.spdy(f"{PODS}/web/exec?command=sh&stdout=1")
    assert (response.status, message_of(response.body)) == (400, "suspended")


async def test_exec_is_connected_to_the_syncer_and_audited(world: World) -> None:
    response = await world.streams.spdy(f"{PODS}/web/exec?command=sh&stdin=1&stdout=1")
    assert (response.status, response.headers["upgrade"]) == (101, SPDY)
    assert response.connection is not None
    await response.connection.write(b"echo")
    assert await response.connection.read() == b"echo"
    await response.connection.close()
    await world.syncer.connection.is_aborted.wait()
    assert world.syncer.calls == [("n1", "POST", "/exec/default/web/main?input=1&output=1&command=sh", "admin")]
    [event] = await world.streams.audit_events(1)
    assert event["annotations"]["streams.tapestry.io/command"] == '["sh"]'
    assert event["annotations"]["streams.tapestry.io/bytes-sent"] == "4"


async def test_refused_websocket_is_translated_to_spdy(world: World) -> None:
    response = await world.streams.websocket(f"{PODS}/web/exec?command=sh&stdout=1", V5)
    assert (response.status, response.headers["sec-websocket-protocol"]) == (101, V5)
    assert [method for _, method, _, _ in world.syncer.calls] == ["GET", "POST"]


async def test_accepted_websocket_is_passed_through(world: World) -> None:
    response = await world.streams.websocket(f"{PODS}/web/attach?stdout=1", V4)
    assert (response.status, response.headers["sec-websocket-protocol"]) == (101, V4)
    assert [method for _, method, _, _ in world.syncer.calls] == ["GET"]


async def test_sessions_are_limited_as_with_kubelets(world: World) -> None:
    await world.streams.call.made("/api/v1/namespaces/default/pods", {"metadata": {"name": "p"}, "spec": SPEC})
    path = f"{PODS}/web/portforward"
    responses = [await world.streams.spdy(path, user="developer") for _ in range(3)]
    assert [each.status for each in responses] == [101, 101, 429]


SPEC = {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}


async def test_node_proxy_reads_from_the_syncer(world: World) -> None:
    assert await world.read(f"{NODE_PROXY}/stats/summary", only_cpu_and_memory="true") == (200, "one\ntwo\n")
    assert await world.read("/api/v1/nodes/n1:10250/proxy/metrics/resource") == (200, "one\ntwo\n")
    assert world.syncer.calls == [
        ("n1", "/stats/summary", {"only_cpu_and_memory": "true"}),
        ("n1", "/metrics/resource", {}),
    ]
    assert world.syncer.log.is_ended


async def test_node_proxy_gives_no_shell_to_readers(world: World) -> None:
    handshake = [("Upgrade", "websocket"), ("Sec-WebSocket-Key", KEY), ("Sec-WebSocket-Version", "13")]
    path = f"{NODE_PROXY}/exec/default/web/main?command=sh&output=1"
    response = await world.streams.upgrade(path, handshake, method="GET")
    assert (response.status, "accepts no streams" in message_of(response.body)) == (400, True)
    assert (await world.read(f"{NODE_PROXY}/run/default/web/main", method="POST"))[0] == 405
    assert world.syncer.calls == []


@pytest.mark.parametrize("port", ["1", "443", "10255"])
async def test_node_proxy_has_only_the_port_of_a_kubelet(world: World, port: str) -> None:
    assert (await world.read(f"/api/v1/nodes/n1:{port}/proxy/metrics"))[0] == 400
    assert world.syncer.calls == []


@pytest.mark.parametrize("path", [f"{PODS}/web/log", f"{NODE_PROXY}/metrics", f"{NODE_PROXY}/pods"])
async def test_without_a_syncer_no_node_is_called(world: World, path: str) -> None:
    with world.access.served_by(world.syncer):
        pass
    status, body = await world.read(path)
    assert (status, "not connected" in message_of(body)) == (503, True)
    response = await world.streams.spdy(f"{PODS}/web/exec?command=sh&stdout=1")
    assert response.status == 503
    assert world.syncer.calls == []


# -- the metrics API


async def test_metrics_api_is_served_and_discovered(world: World) -> None:
    status, body = await world.read(f"{METRICS}/namespaces/default/pods")
    assert (status, msgspec.json.decode(body)["kind"]) == (200, "PodMetricsList")
    assert world.syncer.calls == [("GET", f"{METRICS}/namespaces/default/pods")]
    groups = msgspec.json.decode((await world.read("/apis"))[1])["groups"]
    assert "metrics.k8s.io" in [each["name"] for each in groups]
    resources = msgspec.json.decode((await world.read(METRICS))[1])["resources"]
    assert [each["name"] for each in resources] == ["nodes", "pods"]


async def test_metrics_api_ends_with_the_syncer(world: World) -> None:
    with world.access.served_by(world.syncer):
        pass
    assert (await world.read(f"{METRICS}/nodes"))[0] == 404
    groups = msgspec.json.decode((await world.read("/apis"))[1])["groups"]
    assert "metrics.k8s.io" not in [each["name"] for each in groups]


async def test_own_metrics_server_of_the_tenant_has_precedence(world: World) -> None:
    spec = {
        "group": "metrics.k8s.io",
        "version": "v1beta1",
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "service": {"namespace": "kube-system", "name": "own"},
        "insecureSkipTLSVerify": True,
    }
    api_service = {"metadata": {"name": "v1beta1.metrics.k8s.io"}, "spec": spec}
    await world.streams.call.made("/apis/apiregistration.k8s.io/v1/apiservices", api_service)
    assert (await world.read(f"{METRICS}/nodes"))[0] == 503
    assert world.syncer.calls == []


async def test_usage_requires_a_right(world: World) -> None:
    viewer = User("viewer", ("viewers",))
    call = Call("GET", f"{METRICS}/nodes", {}, {}, b"", viewer)
    response = await world.streams.running.request_handler.handle(call)
    assert isinstance(response, ApiResponse)
    assert (response.status, world.syncer.calls) == (403, [])


def test_server_with_kubelets_has_no_node_proxy() -> None:
    assert HostAccess().nodes() is None


def test_later_syncer_stays_when_an_earlier_one_ends() -> None:
    access, first, second = HostAccess(lambda: True), Syncer(), Syncer()
    context = access.served_by(first)
    context.__enter__()
    with access.served_by(second):
        context.__exit__(None, None, None)
        assert access.nodes() is second
    with pytest.raises(Unavailable):
        access.nodes()
