"""HTTP server of the plain REST API; it forwards the credentials of each caller to the API server."""

import asyncio
import dataclasses
import ssl
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from aiohttp import hdrs, web

from tapestry.apiext.config import ApiExtConfig, ServerConfig
from tapestry.apiext.interfaces import routes_of
from tapestry.apiext.requests import ROOT, RestRequest, RestResponse, error_response
from tapestry.apiext.resource_mapper import ResourceMapper
from tapestry.apiext.rest_api import RestApi
from tapestry.apiserver.access import authentication
from tapestry.apiserver.core.api_errors import request_timed_out
from tapestry.apiserver.core.codec import MAX_BODY_BYTES
from tapestry.apiserver.core.workers import RequestBudget, Worker
from tapestry.apiserver.serving.uploads import UploadBudget
from tapestry.client.access import Access
from tapestry.client.credentials import Credentials
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import default_access
from tapestry.client.tls import KeyPair, TlsContextSource
from tapestry.client.transport import JSON, Transport
from tapestry.client.watch import WATCH_LIFETIME_SECONDS
from tapestry.controller.app import App
from tapestry.kube.budget import CURRENT_BUDGET, DeadlineExceeded
from tapestry.kube.crds import Kind
from tapestry.kube.errors import ApiError, TooLarge, TooManyRequests, Unauthorized
from tapestry.process.addresses import Address, parse_address
from tapestry.process.logs import logger
from tapestry.process.probes import bound_socket, serve_app, server_tls

_authorization: ContextVar[str | None] = ContextVar("authorization", default=None)


@contextmanager
def authorization_scope(authorization: str) -> Iterator[None]:
    """Send this Authorization header with every request inside the block."""
    token = _authorization.set(authorization)
    try:
        yield
    finally:
        _authorization.reset(token)


class ForwardedCredentials:
    """Credential source that returns the credentials of the current caller."""

    key_pair: KeyPair | None = None

    async def authorization(self) -> str | None:
        return _authorization.get()

    def handle_unauthorized(self) -> bool:
        return False


def access_for_callers(access: Access) -> Access:
    """Return access to the same server without our own token, certificate and impersonation."""
    tls = TlsContextSource(access.verification) if access.server.startswith("https:") else None
    return dataclasses.replace(access, credentials=Credentials(ForwardedCredentials(), tls), impersonation=())


log = logger(__name__)

REQUEST_SECONDS = 60.0
"""Seconds that a request may take."""
PUBLIC_PATH = f"{ROOT}/openapi.json"
"""Path that needs no credentials, because it describes the installed software, not the cluster."""
STREAM_SECONDS = WATCH_LIFETIME_SECONDS[1] + 60.0
"""Seconds after which a stream is aborted; the API server ends it earlier."""
WRITE_SECONDS = 60.0
"""Seconds after which a stream is aborted, because the client does not read it."""
MAX_STREAMS, MAX_STREAMS_PER_CALLER = 2_000, 500
"""Streams at the same time, of all callers and with the same credentials."""
RESPONSE_HEADERS = {"Content-Type": JSON, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
PREFLIGHT_HEADERS = {
    "Access-Control-Allow-Methods": "GET, POST, PUT, PATCH, DELETE",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Last-Event-ID",
    "Access-Control-Max-Age": "600",
}


class ApiExtHandler:
    """Handle requests with the caller's credentials or, with `own_identity`, those of `transport`."""

    def __init__(
        self, rest_api: RestApi, transport: Transport, *, own_identity: bool = False, origins: Collection[str] = ()
    ) -> None:
        self._rest_api = rest_api
        self._transport = transport
        self._own_identity = own_identity
        self._origins = origins
        self._streams: Counter[str] = Counter()
        """Number of streams by credentials."""
        self._uploads = UploadBudget()
        self._worker = Worker()

    def close(self) -> None:
        self._worker.close()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/healthz":
            return web.Response(text="ok")
        origin = request.headers.get(hdrs.ORIGIN, "")
        shared = cors_headers(origin) if origin in self._origins else {}
        if shared and request.method == hdrs.METH_OPTIONS:
            return web.Response(status=204, headers=shared | PREFLIGHT_HEADERS)
        began = time.monotonic()
        try:
            is_public = request.path == PUBLIC_PATH
            with (
                nullcontext() if is_public else self._caller_scope(request, is_shared=bool(shared)),
                self._stream_slot(request) if "watch" in request.query else nullcontext(),
            ):
                found = await self._respond(request)
                headers = {**RESPONSE_HEADERS, **found.headers, **shared}
                if found.stream is not None:
                    return await send_stream(request, headers, found.stream)
        except ApiError as error:
            found = error_response(error)
            headers = {**RESPONSE_HEADERS, **found.headers, **shared}
        seconds = round(time.monotonic() - began, 6)
        log.info("request handled", method=request.method, path=request.path, status=found.status, seconds=seconds)
        return web.Response(status=found.status, body=found.body, headers=headers)

    @contextmanager
    def _stream_slot(self, request: web.Request) -> Iterator[None]:
        """Count a stream of the caller. Raise TooManyRequests over a limit."""
        caller = request.headers.get(hdrs.AUTHORIZATION, "")
        if self._streams[caller] >= MAX_STREAMS_PER_CALLER or self._streams.total() >= MAX_STREAMS:
            raise TooManyRequests(429, "TooManyRequests", "too many streams; close some, or try again later")
        self._streams[caller] += 1
        try:
            yield
        finally:
            self._streams[caller] -= 1
            if not self._streams[caller]:
                del self._streams[caller]

    async def _respond(self, request: web.Request) -> RestResponse:
        """Return the response, within the limits of one request. The body is received after authorization."""
        caller = request.headers.get(hdrs.AUTHORIZATION, "")
        budget = RequestBudget(self._worker, caller)
        budget.set_timeout(REQUEST_SECONDS)
        reset_token = CURRENT_BUDGET.set(budget)
        try:
            async with asyncio.timeout(REQUEST_SECONDS), AsyncExitStack() as stack:
                return await self._rest_api.handle(self._rest_request(request, caller, stack), self._transport)
        except (TimeoutError, DeadlineExceeded) as error:
            raise request_timed_out() from error
        finally:
            await budget.end()
            CURRENT_BUDGET.reset(reset_token)

    def _rest_request(self, request: web.Request, caller: str, stack: AsyncExitStack) -> RestRequest:
        """Return the request; its body counts as an upload until `stack` is closed."""

        async def read_body() -> bytes:
            size = MAX_BODY_BYTES if request.content_length is None else request.content_length
            if size > MAX_BODY_BYTES:
                raise too_large()
            self._uploads.acquire(caller, size)
            stack.callback(self._uploads.release, caller, size)
            try:
                return await request.read()
            except web.HTTPRequestEntityTooLarge as error:
                raise too_large() from error

        path = request.path.removeprefix(ROOT) if request.path.startswith(f"{ROOT}/") else request.path
        return RestRequest(
            request.method,
            path,
            dict(request.query),
            request.headers.get(hdrs.CONTENT_TYPE, ""),
            read_body,
            request.headers.get("Last-Event-ID", ""),
        )

    def _caller_scope(self, request: web.Request, *, is_shared: bool) -> AbstractContextManager[None]:
        """Return the scope with the caller's credentials; `is_shared` means the page's origin is allowed."""
        if self._own_identity:
            headers = {name.lower(): value for name, value in request.headers.items()}
            for name in ("origin", "sec-fetch-site") if is_shared else ():
                headers.pop(name, None)
            credentials = authentication.Credentials(peer=request.remote or "", headers=headers)
            if authentication.authenticate_localhost(credentials) is None:
                raise Unauthorized(401, "Unauthorized", "only this machine may call, with localhost as the host name")
            return nullcontext()
        authorization = request.headers.get(hdrs.AUTHORIZATION, "")
        if not authorization.lower().startswith("bearer "):
            message = "send the header `Authorization: Bearer TOKEN` with a token that the API server accepts"
            raise Unauthorized(401, "Unauthorized", message)
        return authorization_scope(authorization)


def cors_headers(origin: str) -> dict[str, str]:
    return {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}


def too_large() -> TooLarge:
    return TooLarge(413, "TooLarge", f"the body is over {MAX_BODY_BYTES} bytes")


async def send_stream(
    request: web.Request, headers: Mapping[str, str], stream: AsyncGenerator[bytes, None]
) -> web.StreamResponse:
    """Send the chunks of a stream as they arrive, until it ends or the client disconnects."""
    log.info("stream started", method=request.method, path=request.path)
    response = web.StreamResponse(headers=headers)
    async with aclosing(stream):
        try:
            async with asyncio.timeout(STREAM_SECONDS):
                await response.prepare(request)
                async for chunk in stream:
                    async with asyncio.timeout(WRITE_SECONDS):
                        await response.write(chunk)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
    log.info("stream ended", method=request.method, path=request.path)
    return response


@asynccontextmanager
async def serve_http(
    handler: ApiExtHandler, address: Address, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Address]:
    """Serve while the context is open; yield the address."""
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_route("*", "/{path:.*}", handler.handle)
    async with serve_app(app, bound_socket(address), tls) as port:
        yield Address(address.host, port)


class ApiExtServer:
    """The plain REST API as a part of a process, for `App`: alone, or beside managers."""

    name = "apiext"

    def __init__(self, config: ServerConfig, access: Access, kinds: Iterable[Kind[Any]] = ()) -> None:
        """Serve all objects, and the HTTP interfaces of `kinds`.

        `access` is our own; it is used for callers only with `own_identity`.
        """
        self.config = config
        self.access = access
        self.kinds = kinds
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        """Serve until stopped.  Raise ValueError or OSError if the server cannot listen."""
        config = self.config
        transport = HttpTransport(self.access if config.own_identity else access_for_callers(self.access))
        rest_api = RestApi(ResourceMapper(config.kinds), routes_of(self.kinds))
        handler = ApiExtHandler(rest_api, transport, own_identity=config.own_identity, origins=config.allow_origins)
        address = parse_address(config.listen)
        assert address is not None, "checked by the configuration"
        tls = server_tls(config.tls.certificate, config.tls.key) if config.tls.certificate else None
        try:
            async with serve_http(handler, address, tls) as at:
                server = self.access.server
                log.info("apiext server listening", address=str(at), server=server, ownIdentity=config.own_identity)
                await self._stopping.wait()
        finally:
            handler.close()
            await transport.close()


async def run_apiext(
    config: ApiExtConfig, environ: Mapping[str, str], home: Path, kinds: Iterable[Kind[Any]] = ()
) -> None:
    """Serve until SIGTERM or SIGINT; raise ValueError, or an ExceptionGroup with an OSError, if startup fails."""
    kubeconfig = Path(config.kubeconfig) if config.kubeconfig else None
    access = default_access(kubeconfig, config.context or None, environ=environ, home=home)
    await App(ApiExtServer(config, access, kinds)).run()
