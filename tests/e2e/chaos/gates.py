"""A gate stands between a client and its API server, and faults of the network happen in it.

It ends TLS with the server's own certificate, so that whoever comes through it verifies what it always verifies.  What
a client has sent arrives, be it late and its sender gone: a write that was held back is carried out when the silence is
over.  That is the worst that a network does to those who write.
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

OWN_HEADERS = {"host", "connection", "content-length", "transfer-encoding", "accept-encoding"}
"""What each of the two connections says for itself."""
TOLD = ("content-type", "retry-after", "audit-id")
SHARE = 0.8
"""Of the requests that a server in trouble refuses."""
REASONS = {410: "Expired", 429: "TooManyRequests", 500: "InternalError"}


@dataclass
class Gate:
    """Carries requests to `plane`; each method that makes trouble is a context, and the trouble ends with it."""

    plane: ControlPlane
    rng: random.Random
    session: aiohttp.ClientSession
    tasks: asyncio.TaskGroup
    server: web.Server = field(init=False)
    port: int = 0
    flowing: asyncio.Event = field(default_factory=asyncio.Event)
    latency: float = 0.0
    refused: int | None = None
    """The code that answers requests in place of the server."""
    spoiled: bool = False
    """Answers of the server are replaced by a 500: what was asked for has been done."""
    forgetful: bool = False
    """Watches cannot be resumed."""
    under_way: set[asyncio.Task[web.Response]] = field(default_factory=set)
    watches: set[asyncio.Transport] = field(default_factory=set)
    """The connections that carry one."""

    def __post_init__(self) -> None:
        self.flowing.set()
        self.server = web.Server(self.carry, handler_cancellation=True, access_log=None)

    @property
    def kubeconfig(self) -> str:
        """The text of the plane's kubeconfig, but through this gate."""
        return self.plane.kubeconfig.read_text().replace(self.plane.url, f"https://127.0.0.1:{self.port}")

    # -- trouble

    @contextmanager
    def silent(self, *, broken: bool) -> Iterator[None]:
        """Nothing gets through.  Then connections go on as if nothing had been, or are found to be `broken`."""
        self.flowing.clear()
        try:
            yield
        finally:
            if broken:
                self.reset()
            self.flowing.set()

    @contextmanager
    def slow(self) -> Iterator[None]:
        self.latency = 1.0
        try:
            yield
        finally:
            self.latency = 0.0

    @contextmanager
    def refusing(self, code: int) -> Iterator[None]:
        """Most requests, and watches too, are answered by `code` and go no further."""
        self.refused = code
        try:
            yield
        finally:
            self.refused = None

    @contextmanager
    def spoiling(self) -> Iterator[None]:
        """Most writes are carried out and answered by a 500."""
        self.spoiled = True
        try:
            yield
        finally:
            self.spoiled = False

    @contextmanager
    def forgetting(self) -> Iterator[None]:
        """Watches end and cannot be resumed: 410."""
        self.forgetful = True
        self.cut()
        try:
            yield
        finally:
            self.forgetful = False

    def cut(self) -> None:
        """Break the watches."""
        for connection in list(self.watches):
            connection.abort()

    def reset(self) -> None:
        """Break all connections."""
        for connection in self.server.connections:
            if connection.transport is not None:
                connection.transport.abort()

    # -- carrying

    async def carry(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        if "watch" in request.query:
            return await self.follow(request)
        exchange = self.tasks.create_task(self.exchange(request, body))
        self.under_way.add(exchange)
        exchange.add_done_callback(self.under_way.discard)
        return await asyncio.shield(exchange)

    async def exchange(self, request: web.BaseRequest, body: bytes) -> web.Response:
        await self.flowing.wait()
        await asyncio.sleep(self.latency)
        if self.refused is not None and self.rng.random() < SHARE:
            return refusal(self.refused)
        try:
            async with self.onward(request, body) as answer:
                content = await answer.read()
        except aiohttp.ClientError as error:
            return web.Response(status=502, text=str(error))
        await self.flowing.wait()
        if self.spoiled and request.method != "GET" and self.rng.random() < SHARE:
            return refusal(500)
        told = {name: answer.headers[name] for name in TOLD if name in answer.headers}
        return web.Response(status=answer.status, body=content, headers=told)

    async def follow(self, request: web.BaseRequest) -> web.StreamResponse:
        await self.flowing.wait()
        if self.refused is not None and self.rng.random() < SHARE:
            return refusal(self.refused)
        if self.forgetful and "resourceVersion" in request.query:
            return self.forgotten()
        connection = request.transport
        assert connection is not None
        self.watches.add(connection)
        response = web.StreamResponse(headers={"content-type": "application/json"})
        try:
            async with self.onward(request, b"") as answer:
                response.set_status(answer.status)
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await self.flowing.wait()
                    await asyncio.sleep(self.latency)
                    await response.write(chunk)
        except (aiohttp.ClientError, ConnectionError):  # either side has left, and the other will notice
            connection.abort()
        finally:
            self.watches.discard(connection)
        return response

    def forgotten(self) -> web.Response:
        """Say 410 in one of the two ways in which servers say it."""
        if self.rng.random() < 0.5:
            return refusal(410)
        event = {"type": "ERROR", "object": status(410)}
        return web.Response(text=json.dumps(event) + "\n", content_type="application/json")

    def onward(self, request: web.BaseRequest, body: bytes) -> "aiohttp.client._RequestContextManager":
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in OWN_HEADERS]
        url = URL(self.plane.url + request.raw_path, encoded=True)
        return self.session.request(request.method, url, headers=headers, data=body or None, allow_redirects=False)


def status(code: int) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "reason": REASONS[code],
        "message": "trouble was asked for",
        "code": code,
    }


def refusal(code: int) -> web.Response:
    after = {"Retry-After": "1"} if code == 429 else {}
    return web.json_response(status(code), status=code, headers=after)


@asynccontextmanager
async def gate(plane: ControlPlane, rng: random.Random) -> AsyncIterator[Gate]:
    """A gate to `plane` on a port of its own."""
    connector = aiohttp.TCPConnector(limit=0, ssl=ssl.create_default_context(cafile=plane.ca))
    identity = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    identity.load_cert_chain(plane.ca, plane.ca.with_suffix(".key"))
    no_limit = aiohttp.ClientTimeout(total=None)
    async with asyncio.TaskGroup() as tasks, aiohttp.ClientSession(connector=connector, timeout=no_limit) as session:
        made = Gate(plane, rng, session, tasks)
        runner = web.ServerRunner(made.server, shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=identity)
        await site.start()
        made.port = runner.addresses[0][1]
        try:
            yield made
        finally:
            made.reset()
            await runner.cleanup()
            for exchange in made.under_way:
                exchange.cancel()
