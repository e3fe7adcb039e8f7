"""The REST listener: HTTP requests of the REST table as calls of the gateway, and their results as JSON."""

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import HttpVersion11, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from google.protobuf.message import Message

from tapestry.apiserver.serving.http_handler import verified_subject
from tapestry.process.addresses import Address
from tapestry.process.probes import bound_socket, serve_app
from tapestry.vclusters.access.authentication import Credentials
from tapestry.vclusters.access.rate_limits import Allowance
from tapestry.vclusters.access.roles import PROXY_METHOD
from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.errors import Code, ServiceError, Violation, field_invalid, permission_denied
from tapestry.vclusters.gateway import Gateway, IncomingCall
from tapestry.vclusters.openapi import openapi_document
from tapestry.vclusters.rest_routes import RPCS, Match, match_route
from tapestry.vclusters.transcoding import MAX_BODY_BYTES, encoded, request_message, response_fields
from tapestry.vclusters.vcluster_proxy import ProxiedPath, VClusterProxy, is_upgrade, proxied_path

JSON, NDJSON, SSE = "application/json", "application/x-ndjson", "text/event-stream"
READ_METHODS = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS})
CREATED, ACCEPTED = 201, 202
REQUEST_ID_HEADER = "Idempotency-Key"
LAST_EVENT_ID = "Last-Event-ID"
MAX_EVENTS = 16
"""Messages of a stream that wait for a slow client."""
KEEP_ALIVE_SECONDS = 15.0
"""Seconds without events after which a watch sends an empty line, so that proxies keep it open."""


@dataclass(frozen=True)
class RestListener:
    """Handler of HTTP requests."""

    gateway: Gateway
    proxy: VClusterProxy | None = None
    """Proxy to the API of virtual clusters, if the listener has one."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except ServiceError as error:
            return error_response(error)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        check_headers(request)
        if self.gateway.authenticator.anonymous is not None:
            check_is_no_web_page(request)
        proxied = proxied_path(request.rel_url.raw_path) if self.proxy is not None else None
        if proxied is not None:
            return await self._proxied(request, proxied)
        match = match_route(request.method, request.rel_url.raw_path)
        if not isinstance(match, Match):
            return no_route(request, match)
        message = request_message(match, request.query.items(), await body_of(request))
        is_etag_header = set_from_headers(message, request)
        call = IncomingCall(
            match.route.method,
            message,
            credentials_of(request),
            request.remote or "",
            request.headers.get(hdrs.USER_AGENT, ""),
            is_etag_header=is_etag_header,
        )
        if RPCS[match.route.method].server_streaming:
            return await self._stream(request, call)
        response, allowance = await self.gateway.call(call)
        return response_of(match, request, response, allowance)

    async def _proxied(self, request: web.Request, proxied: ProxiedPath) -> web.StreamResponse:
        """Answer a request to the API of a virtual cluster. An error is a Status, which its clients understand."""
        assert self.proxy is not None
        call = IncomingCall(
            PROXY_METHOD,
            api.GetVClusterRequest(id=proxied.id),
            credentials_of(request),
            request.remote or "",
            request.headers.get(hdrs.USER_AGENT, ""),
            target=f"{request.method} {proxied.path}",
            is_proxied_write=is_upgrade(request) or request.method not in READ_METHODS,
        )
        try:
            async with self.gateway.admitted(call) as (admitted, outcome):
                return await self.proxy.answer(request, proxied, admitted.caller, outcome)
        except ServiceError as error:
            response = error_response(error)
            fields = {"code": error.http_status, "reason": error.reason, "message": error.message}
            response.body = encoded({"kind": "Status", "apiVersion": "v1", "status": "Failure", **fields})
            return response

    async def _stream(self, request: web.Request, call: IncomingCall) -> web.StreamResponse:
        """Send each message as a line of JSON, or as an event for browsers."""
        is_sse = SSE in request.headers.get(hdrs.ACCEPT, "")
        headers = {hdrs.CONTENT_TYPE: SSE if is_sse else NDJSON, hdrs.CACHE_CONTROL: "no-store"}
        response = web.StreamResponse(headers=headers)
        async with aclosing(self.gateway.stream(call)) as messages:
            first = await anext(messages, None)  # an error before it has a status of its own
            await response.prepare(request)
            if first is not None:
                async with asyncio.TaskGroup() as group:
                    events: Events = asyncio.Queue(MAX_EVENTS)
                    task = group.create_task(put_events(events, messages))
                    with suppress(ConnectionResetError):  # the client has gone
                        await response.write(event_of(first, is_sse=is_sse))
                        await send_events(response, events, is_sse=is_sse)
                    task.cancel()
        with suppress(ConnectionResetError):
            await response.write_eof()
        return response


Events = asyncio.Queue[Message | ServiceError | None]
"""The rest of a stream. None ends it, and an error, too."""


async def put_events(events: Events, messages: AsyncGenerator[Message, None]) -> None:
    last = None
    try:
        async for message in messages:
            await events.put(message)
    except ServiceError as error:
        last = error
    await events.put(last)


async def send_events(response: web.StreamResponse, events: Events, *, is_sse: bool) -> None:
    while True:
        try:
            event = await asyncio.wait_for(events.get(), KEEP_ALIVE_SECONDS)
        except TimeoutError:
            await response.write(b":\n\n" if is_sse else b"\n")
            continue
        if event is None:
            return
        if isinstance(event, ServiceError):
            body = encoded(event.body())
            await response.write(b"event: error\ndata: %b\n\n" % body if is_sse else body + b"\n")
            return
        await response.write(event_of(event, is_sse=is_sse))


def check_is_no_web_page(request: web.Request) -> None:
    """Raise ServiceError for a request of a web page. Without credentials, every page could use a browser's connection.

    A page of another origin sends the header Origin. One whose name now leads to this machine sends its own name.
    """
    host = Address(request.url.host or "", 0)
    if hdrs.ORIGIN in request.headers or not host.is_loopback:
        raise permission_denied(
            "call", "a service without credentials from a web page, or by another name than localhost"
        )


def event_of(message: Message, *, is_sse: bool) -> bytes:
    body = encoded(response_fields(message))
    if not is_sse:
        return body + b"\n"
    vcluster = getattr(message, "vcluster", None)
    revision = vcluster.resource_version if vcluster is not None else ""
    return b"id: %b\ndata: %b\n\n" % (revision.encode(), body)


async def body_of(request: web.Request) -> bytes:
    """Return the body. Raises ServiceError if it is too large, without reading all of it, or not in its encoding."""
    if (request.content_length or 0) <= MAX_BODY_BYTES:
        try:
            return await request.read()
        except (web.RequestPayloadError, HttpProcessingError) as problem:
            raise field_invalid(Violation("body", "is not in its Transfer-Encoding or Content-Encoding")) from problem
        except web.HTTPRequestEntityTooLarge:
            pass
    error = field_invalid(Violation("body", f"is larger than {MAX_BODY_BYTES >> 20} MiB"))
    error.http_status = 413
    raise error


def check_headers(request: web.Request) -> None:
    """Raise ServiceError for a header that is not UTF-8. Messages and audit records cannot have its text."""
    for name, text in request.headers.items():
        try:
            text.encode()
        except UnicodeEncodeError as problem:
            raise field_invalid(Violation(f"header {name}", "is not UTF-8")) from problem


async def continue_with_body(request: web.Request) -> None:
    """Let a client send its body, if it waits for that. The default of aiohttp repeats text that may not be UTF-8."""
    if request.headers.get(hdrs.EXPECT, "").lower() != "100-continue":
        raise web.HTTPExpectationFailed(text="the header Expect may only be 100-continue")
    if request.version == HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # of the body


def set_from_headers(message: Message, request: web.Request) -> bool:
    """Set fields of the request from its headers, and return whether the etag is one of them. Raises ServiceError."""
    fields = message.DESCRIPTOR.fields_by_name
    request_id = request.headers.get(REQUEST_ID_HEADER, "")
    if request_id and "request_id" in fields:
        if message.request_id not in ("", request_id):
            raise field_invalid(Violation("requestId", f"differs from the header {REQUEST_ID_HEADER}"))
        message.request_id = request_id
    last_event = request.headers.get(LAST_EVENT_ID, "")
    if last_event and "resource_version" in fields:
        message.resource_version = last_event
    etag = request.headers.get(hdrs.IF_MATCH, "")
    if not etag or etag == "*" or "etag" not in fields:
        return False
    message.etag = etag.removeprefix("W/").strip('"')
    return True


def credentials_of(request: web.Request) -> Credentials:
    tls = request.transport.get_extra_info("ssl_object") if request.transport is not None else None
    certificate = verified_subject(tls, time.time()) if tls is not None else None
    return Credentials(request.headers.get(hdrs.AUTHORIZATION, ""), certificate or None)


def response_of(match: Match, request: web.Request, response: Message, allowance: Allowance) -> web.Response:
    headers = rate_limit_headers(allowance)
    etag = etag_in(match, response)
    if etag:
        headers[hdrs.ETAG] = quoted = f'"{etag}"'
        if request.method == hdrs.METH_GET and quoted in request.headers.get(hdrs.IF_NONE_MATCH, "").split(", "):
            return web.Response(status=304, headers=headers)
    operation = getattr(response, "operation_id", "")
    if operation:
        headers[hdrs.LOCATION] = f"/v1/operations/{operation}"
    status = match.route.status if operation or match.route.status != ACCEPTED else 200
    if status == ACCEPTED and has_waited(match, response):
        status = CREATED
    body = encoded(response_fields(response))
    return web.Response(body=body, status=status, content_type=JSON, headers=headers)


def has_waited(match: Match, response: Any) -> bool:
    return match.route.method == "CreateVCluster" and response.vcluster.status.phase == api.PHASE_RUNNING


def etag_in(match: Match, response: Message) -> str:
    if not match.route.etag_of:
        return ""
    return str(getattr(response, match.route.etag_of, response).etag)


def rate_limit_headers(allowance: Allowance) -> dict[str, str]:
    return {
        "RateLimit-Limit": str(allowance.limit),
        "RateLimit-Remaining": str(allowance.remaining),
        "RateLimit-Reset": str(allowance.reset_seconds),
    }


def error_response(error: ServiceError) -> web.Response:
    headers = {}
    for each in error.details:
        if "retryDelay" in each:
            headers[hdrs.RETRY_AFTER] = str(max(1, round(float(each["retryDelay"].removesuffix("s")))))
    if error.code is Code.UNAUTHENTICATED:
        headers[hdrs.WWW_AUTHENTICATE] = "Bearer"
    return web.Response(body=encoded(error.body()), status=error.http_status, content_type=JSON, headers=headers)


def no_route(request: web.Request, allowed: list[str]) -> web.Response:
    if not allowed:
        message = f"{request.path[:200]} does not exist; /openapi.json lists all paths"
        return error_response(ServiceError(Code.NOT_FOUND, "PATH_NOT_FOUND", message))
    error = ServiceError(
        Code.UNIMPLEMENTED, "METHOD_NOT_ALLOWED", f"the path has {', '.join(allowed)}", http_status=405
    )
    response = error_response(error)
    response.headers[hdrs.ALLOW] = ", ".join(allowed)
    return response


@asynccontextmanager
async def serve_rest(
    gateway: Gateway, address: Address, tls: ssl.SSLContext | None, proxy: VClusterProxy | None = None
) -> AsyncIterator[Address]:
    """Serve REST, and yield the address. Without `tls`, anyone on the way reads the credentials."""
    document = msgspec.json.encode(openapi_document())

    async def openapi(_: web.Request) -> web.Response:
        return web.Response(body=document, content_type=JSON)

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_get("/openapi.json", openapi, expect_handler=continue_with_body)
    app.router.add_get("/healthz", healthy, expect_handler=continue_with_body)
    app.router.add_route("*", "/{path:.*}", RestListener(gateway, proxy).handle, expect_handler=continue_with_body)
    async with serve_app(app, bound_socket(address), tls) as port:
        yield Address(address.host, port)
