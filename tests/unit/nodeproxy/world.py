"""A virtual node with one pod, its kubelet API, and a scripted physical API server."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import aiohttp
from aiohttp import web

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.serving.connection_limiter import ConnectionLimiter
from tapestry.apiserver.serving.http_connection import Exchange
from tapestry.apiserver.serving.http_server import HttpServer
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.delegated_auth import CachedAuth
from tapestry.client.http_transport import HttpTransport
from tapestry.controller.testing import InProcessApi
from tapestry.kube.errors import ApiError
from tapestry.kube.objects import Object, key_of
from tapestry.kube.resources import TOKEN_REVIEWS
from tapestry.nodeproxy.client_cas import kubelet_tls
from tapestry.nodeproxy.in_process_kubelet import InProcessKubelet
from tapestry.nodeproxy.kubelet import KubeletServer, serve_kubelet
from tapestry.nodeproxy.logs import LogRelay
from tapestry.nodeproxy.serving_certificate import ServingCertificate, self_signed_pair
from tapestry.nodeproxy.sessions import Sessions
from tapestry.nodeproxy.stream_relay import StreamRelay
from tapestry.nodeproxy.twins import TwinLookup
from tapestry.nodeproxy.usage import UsageReader, UsageSource
from tapestry.process.addresses import Address
from tapestry.process.audit import SessionRecord
from tapestry.process.probes import bound_socket, serve_app
from tapestry.streams.connection import SocketConnection
from tapestry.streams.upgrade import UpgradeResponse, dial, request_upgrade

NODE, POD, TWIN, MOUNT = "vnode-east-n1", "web", "web-7gfvdrrhrawakrtc", "leased"
LOG = f"/containerLogs/default/{POD}/c"
EXEC = f"/exec/default/{POD}/c?command=sh&input=1&output=1"
LOOPBACK = Address("127.0.0.1", 0)
TOKENS = {"operator's": "operator", "guest's": "guest"}
RIGHT = {"verb": "get", "version": "v1", "resource": "nodes", "subresource": "proxy", "name": NODE}
SPDY = (
    ("Host", "node"),
    ("Connection", "Upgrade"),
    ("Upgrade", "SPDY/3.1"),
    ("X-Stream-Protocol-Version", "v4.channel.k8s.io"),
)
SECONDS = 30.0
"""Limit of every wait: far more than a loaded machine needs."""

Writing = Callable[[web.StreamResponse, web.Request], Awaitable[None]]
Serve = Callable[[SocketConnection], Awaitable[None]]


def new_pod(uid: str = "u1") -> Object:
    spec = {
        "nodeName": NODE,
        "initContainers": [{"name": "first"}],
        "containers": [{"name": "c"}, {"name": "d"}],
        "ephemeralContainers": [{"name": "debugger"}],
    }
    return {"metadata": {"name": POD, "namespace": "default", "uid": uid}, "spec": spec}


def new_twin(uid: str = "t1") -> Object:
    return {"metadata": {"name": TWIN, "namespace": MOUNT, "uid": uid}}


def new_node() -> Object:
    metadata = {"name": NODE, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": metadata, "status": {"capacity": {"memory": "1Gi"}}}


def pods_on(pods: dict[str, Object], node: str) -> list[Object]:
    return [each for each in pods.values() if each["spec"]["nodeName"] == node]


async def two_lines(answer: web.StreamResponse, _: web.Request) -> None:
    await answer.write(b"one\ntwo\n")


def abort_connection(request: web.BaseRequest) -> None:
    """Close the connection without a response."""
    assert request.transport is not None
    request.transport.abort()


async def echo(connection: SocketConnection) -> None:
    while data := await connection.read():
        await connection.write(data)
    await connection.close()


@dataclass
class Physical:
    """The log endpoint of the physical API server, for one twin."""

    writing: Writing = two_lines
    refusal: ApiError | None = None
    is_mute: bool = False
    queries: list[dict[str, str]] = field(default_factory=list)
    metrics: list[Object] = field(default_factory=list)
    """PodMetrics objects."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client disconnected."""

    async def log(self, request: web.Request) -> web.StreamResponse:
        self.queries.append(dict(request.query))
        if self.refusal is not None:
            return web.json_response(self.refusal.status(), status=self.refusal.code)
        if self.is_mute:
            abort_connection(request)
        answer = web.StreamResponse()
        await answer.prepare(request)
        try:
            await self.writing(answer, request)
        finally:
            self.ended.set()
        return answer

    async def list_metrics(self, request: web.Request) -> web.Response:
        self.queries.append(dict(request.query))
        if self.refusal is not None:
            return web.json_response(self.refusal.status(), status=self.refusal.code)
        kind = {"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}}
        return web.json_response({**kind, "items": self.metrics})


@dataclass
class PhysicalStreams:
    """The upgrade endpoints of the physical API server."""

    serve: Serve = echo
    refusal: ApiError | None = None
    is_mute: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of the response that accepts an upgrade, in addition to those of the protocol."""
    requests: list[tuple[str, str, list[tuple[str, str]], list[tuple[str, str]]]] = field(default_factory=list)
    """Method, path, query and headers of each request."""
    on_request: Callable[[], None] = lambda: None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a session has ended."""

    async def handle(self, exchange: Exchange) -> None:
        url = urlsplit(exchange.target.decode())
        query = parse_qsl(url.query, keep_blank_values=True, errors="surrogateescape")
        self.requests.append((exchange.method, url.path, query, exchange.header_pairs))
        self.on_request()
        if self.is_mute:
            exchange.abort()
        elif self.refusal is not None:
            exchange.send(self.refusal.code, {}, self.body())
        else:
            offered = exchange.headers.get("x-stream-protocol-version", "")
            headers = {"Upgrade": exchange.headers["upgrade"], "X-Stream-Protocol-Version": offered, **self.headers}
            try:
                await self.serve(exchange.upgrade(headers))
            finally:
                self.ended.set()

    def body(self) -> bytes:
        assert self.refusal is not None
        return web.json_response(self.refusal.status()).body or b""  # type: ignore[return-value]


@dataclass
class Records:
    """An audit log in memory."""

    records: list[Any] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def record(self, entry: object, size: int = 0) -> None:
        self.records.append(entry)
        self._changed.set()

    async def wait_for(self, count: int) -> None:
        while len(self.records) < count:
            self._changed.clear()
            await self._changed.wait()


@dataclass
class World:
    """Requests and their results.  Only the operator may call `NODE`."""

    authority: CertificateAuthority
    other_authority: CertificateAuthority
    physical: Physical
    streams: PhysicalStreams = field(default_factory=PhysicalStreams)
    audit: Records = field(default_factory=Records)
    url: str = ""
    pods: dict[str, Object] = field(default_factory=dict)
    twin: Object | None = field(default_factory=new_twin)
    reviews: list[Object] = field(default_factory=list)
    """Reviews that the virtual API server received."""
    refusal: ApiError | None = None
    """Error that it raises instead of responding."""
    serving: ServingCertificate = field(init=False)
    sessions: Sessions = field(init=False)
    in_process: InProcessKubelet = field(init=False)
    """The same API without a listener."""
    live: dict[str, Object] = field(default_factory=dict)
    """Pods with their status."""

    async def live_pod(self, key: str) -> Object | None:
        return self.live.get(key)

    @property
    def records(self) -> list[SessionRecord]:
        return self.audit.records

    def review(self, review: Object) -> Object:
        if self.refusal is not None:
            raise self.refusal
        spec = review["spec"]
        if review["kind"] == TOKEN_REVIEWS.kind:
            name = TOKENS.get(spec["token"])
            return {"authenticated": name is not None, **({"user": {"username": name}} if name else {})}
        self.reviews.append(spec)
        return {"allowed": spec["user"] == "operator" and spec["resourceAttributes"]["name"] in (NODE, "")}

    async def ask(self, path: str = LOG, who: str = "operator's", method: str = "GET") -> tuple[int, str]:
        """Return the kubelet's response to a request with a token, or without one."""
        async with self.requesting(path, who, method) as answer:
            return answer.status, await answer.text()

    @asynccontextmanager
    async def requesting(
        self,
        path: str = LOG,
        who: str = "operator's",
        method: str = "GET",
        certificate: tuple[Path, Path] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {"Authorization": f"Bearer {who}"} if who else {}
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=client_tls(certificate))) as session,
            session.request(method, self.url + path, headers=headers) as answer,
        ):
            yield answer

    async def ask_with(self, certificate: tuple[Path, Path]) -> int:
        async with self.requesting(who="", certificate=certificate) as answer:
            return answer.status

    async def upgrade(
        self,
        path: str = EXEC,
        who: str = "operator's",
        method: str = "POST",
        headers: tuple[tuple[str, str], ...] = SPDY,
        certificate: tuple[Path, Path] | None = None,
    ) -> UpgradeResponse:
        """Return the kubelet's response to an upgrade request."""
        url = urlsplit(self.url)
        connection = await dial(url.hostname or "", url.port or 0, client_tls(certificate))
        token = (("Authorization", f"Bearer {who}"),) if who else ()
        async with asyncio.timeout(SECONDS):
            return await request_upgrade(connection, method, path, (*headers, *token))

    async def connect(self, path: str = EXEC, **options: Any) -> SocketConnection:
        """Return the connection of an accepted upgrade."""
        response = await self.upgrade(path, **options)
        assert response.connection is not None, response
        return response.connection

    async def raw(self, request: bytes, *, tls: bool = True) -> bytes:
        """Return the first line of the response to these bytes, or nothing if the connection is closed."""
        url = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(url.hostname, url.port, ssl=client_tls(None) if tls else None)
        try:
            async with asyncio.timeout(SECONDS):
                writer.write(request)
                return await reader.readline()
        finally:
            writer.close()


def client_tls(certificate: tuple[Path, Path] | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context


@asynccontextmanager
async def new_world(folder: Path, places: int = 64) -> AsyncIterator[World]:
    world = World(CertificateAuthority(folder / "ours"), CertificateAuthority(folder / "theirs"), Physical())
    world.pods[key_of(new_pod())] = new_pod()
    virtual = InProcessApi([], now=lambda: datetime.now(UTC), review=world.review)
    app = web.Application()
    app.router.add_get(f"/api/v1/namespaces/{MOUNT}/pods/{TWIN}/log", world.physical.log)
    app.router.add_get(f"/apis/metrics.k8s.io/v1beta1/namespaces/{MOUNT}/pods", world.physical.list_metrics)
    new_context = partial(kubelet_tls, "", world.authority.certificate_pem())
    world.serving = ServingCertificate(new_context, self_signed_pair(["127.0.0.1"]))
    async with asyncio.TaskGroup() as group, serve_app(app, bound_socket(LOOPBACK)) as port:
        server = HttpServer(world.streams.handle, group, 120.0, ConnectionLimiter())
        await server.start("127.0.0.1", 0, None)
        physical = Client(HttpTransport(Access(f"http://127.0.0.1:{port}")))
        streaming = HttpTransport(Access(f"http://127.0.0.1:{server.addresses[0][1]}"))
        twins = TwinLookup(world.pods.get, lambda _: world.twin)
        world.sessions = Sessions(twins, world.audit, "syncer/east")  # type: ignore[arg-type]
        logs = LogRelay(twins, physical, asyncio.Semaphore(places))
        streams = StreamRelay(twins, streaming.upgrade, world.sessions)
        watch = group.create_task(world.sessions.watch())
        pods = partial(pods_on, world.pods)
        source = UsageSource({NODE: new_node()}.get, pods, lambda _: world.twin, physical, MOUNT, "binding=east")
        usage = UsageReader(source, lambda: datetime.now(UTC))
        kubelet = KubeletServer(CachedAuth(Client(virtual)), twins, logs, streams, usage)
        world.in_process = InProcessKubelet(twins, logs, streams, usage, world.live_pod)
        async with serve_kubelet(kubelet, LOOPBACK, world.serving.context) as at:
            world.url = f"https://{at}"
            yield world
            watch.cancel()
        await physical.close()
        await streaming.close()
        await server.stop()
