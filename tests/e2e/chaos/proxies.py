"""HTTPS proxy in front of an API server that injects network faults.

The proxy terminates TLS with the server's own certificate, so clients verify the same certificate as without it. A
request that was sent always reaches the server, even if it is late and the client has disconnected: a write that was
blocked is executed after the fault ends. This is the worst case for clients that write.
"""

import asyncio
import json
import random
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web
from yarl import URL

from tapestry.local.kubernetes import ControlPlane

HOP_HEADERS = {"host", "connection", "content-length", "transfer-encoding", "accept-encoding"}
"""Headers that are not forwarded: each connection sets its own."""
FORWARDED_HEADERS = ("content-type", "retry-after", "audit-id")
FAULT_SHARE = 0.8
"""Share of requests that a fault affects."""
REASONS = {410: "Expired", 429: "TooManyRequests", 500: "InternalError"}


@dataclass
class FaultProxy:
    """Forward requests to `plane`. Faults are context managers: each lasts as long as its context."""

    plane: ControlPlane
    rng: random.Random
    session: aiohttp.ClientSession
    tasks: asyncio.TaskGroup
    server: web.Server = field(init=False)
    port: int = 0
    unblocked: asyncio.Event = field(default_factory=asyncio.Event)
    latency: float = 0.0
    error_code: int | None = None
    """HTTP status returned in place of the server's response."""
    hides_success: bool = False
    """Writes are executed, but answered with a 500."""
    is_expired: bool = False
    """Watches cannot be resumed: they get a 410."""
    pending: set[asyncio.Task[web.Response]] = field(default_factory=set)
    watches: set[asyncio.Transport] = field(default_factory=set)
    """Connections that carry a watch."""

    def __post_init__(self) -> None:
        self.unblocked.set()
        self.server = web.Server(self.handle, handler_cancellation=True, access_log=None)

    @property
    def kubeconfig(self) -> str:
        """Kubeconfig of the plane with the address of this proxy."""
        return self.plane.kubeconfig.read_text().replace(self.plane.url, f"https://127.0.0.1:{self.port}")

    # -- faults

    @contextmanager
    def blocked(self, *, broken: bool) -> Iterator[None]:
        """Block all traffic. Afterwards connections continue, or are reset if `broken`."""
        self.unblocked.clear()
        try:
            yield
        finally:
            if broken:
                self.reset_connections()
            self.unblocked.set()

    @contextmanager
    def slow(self) -> Iterator[None]:
        self.latency = 1.0
        try:
            yield
        finally:
            self.latency = 0.0

    @contextmanager
    def failing(self, code: int) -> Iterator[None]:
        """Answer most requests, watches included, with `code` and do not forward them."""
        self.error_code = code
        try:
            yield
        finally:
            self.error_code = None

    @contextmanager
    def hiding_success(self) -> Iterator[None]:
        """Execute most writes, but answer them with a 500."""
        self.hides_success = True
        try:
            yield
        finally:
            self.hides_success = False

    @contextmanager
    def expiring(self) -> Iterator[None]:
        """End all watches, and answer attempts to resume them with a 410."""
        self.is_expired = True
        self.cut_watches()
        try:
            yield
        finally:
            self.is_expired = False

    def cut_watches(self) -> None:
        """Abort all connections with watches."""
        for connection in list(self.watches):
            connection.abort()

    def reset_connections(self) -> None:
        """Abort all connections."""
        for connection in self.server.connections:
            if connection.transport is not None:
                connection.transport.abort()

    # -- forwarding

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        if "watch" in request.query:
            return await self.forward_watch(request)
        task = self.tasks.create_task(self.forward(request, body))
        self.pending.add(task)
        task.add_done_callback(self.pending.discard)
        return await asyncio.shield(task)

    async def forward(self, request: web.BaseRequest, body: bytes) -> web.Response:
        await self.unblocked.wait()
        await asyncio.sleep(self.latency)
        if self.error_code is not None and self.rng.random() < FAULT_SHARE:
            return error_response(self.error_code)
        try:
            async with self.upstream(request, body) as answer:
                content = await answer.read()
        except aiohttp.ClientError as error:
            return web.Response(status=502, text=str(error))
        await self.unblocked.wait()
        if self.hides_success and request.method != "GET" and self.rng.random() < FAULT_SHARE:
            return error_response(500)
        headers = {name: answer.headers[name] for name in FORWARDED_HEADERS if name in answer.headers}
        return web.Response(status=answer.status, body=content, headers=headers)

    async def forward_watch(self, request: web.BaseRequest) -> web.StreamResponse:
        await self.unblocked.wait()
        if self.error_code is not None and self.rng.random() < FAULT_SHARE:
            return error_response(self.error_code)
        if self.is_expired and "resourceVersion" in request.query:
            return self.expired_response()
        connection = request.transport
        assert connection is not None
        self.watches.add(connection)
        response = web.StreamResponse(headers={"content-type": "application/json"})
        try:
            async with self.upstream(request, b"") as answer:
                response.set_status(answer.status)
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await self.unblocked.wait()
                    await asyncio.sleep(self.latency)
                    await response.write(chunk)
        except (aiohttp.ClientError, ConnectionError):  # one side has disconnected; disconnect the other
            connection.abort()
        finally:
            self.watches.discard(connection)
        return response

    def expired_response(self) -> web.Response:
        """Return a 410 in one of two forms: as the HTTP status or as an ERROR event."""
        if self.rng.random() < 0.5:
            return error_response(410)
        event = {"type": "ERROR", "object": status(410)}
        return web.Response(text=json.dumps(event) + "\n", content_type="application/json")

    def upstream(self, request: web.BaseRequest, body: bytes) -> "aiohttp.client._RequestContextManager":
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in HOP_HEADERS]
        url = URL(self.plane.url + request.raw_path, encoded=True)
        return self.session.request(request.method, url, headers=headers, data=body or None, allow_redirects=False)


def status(code: int) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "reason": REASONS[code],
        "message": "injected fault",
        "code": code,
    }


def error_response(code: int) -> web.Response:
    after = {"Retry-After": "1"} if code == 429 else {}
    return web.json_response(status(code), status=code, headers=after)


@asynccontextmanager
async def fault_proxy(plane: ControlPlane, rng: random.Random) -> AsyncIterator[FaultProxy]:
    """Run a proxy to `plane` on a free port."""
    connector = aiohttp.TCPConnector(limit=0, ssl=ssl.create_default_context(cafile=plane.ca))
    identity = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    identity.load_cert_chain(plane.ca, plane.ca.with_suffix(".key"))
    no_limit = aiohttp.ClientTimeout(total=None)
    async with asyncio.TaskGroup() as tasks, aiohttp.ClientSession(connector=connector, timeout=no_limit) as session:
        proxy = FaultProxy(plane, rng, session, tasks)
        runner = web.ServerRunner(proxy.server, shutdown_timeout=0)
        await runner.setup()
        listener = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=identity)
        await listener.start()
        proxy.port = runner.addresses[0][1]
        try:
            yield proxy
        finally:
            proxy.reset_connections()
            await runner.cleanup()
            for task in proxy.pending:
                task.cancel()
