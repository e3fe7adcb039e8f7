"""The server on a socket: HTTP in front, `Server` behind.

Nothing of a request is trusted.  Its head is read, its sender authenticated and authorized, and only then is its body
read and decoded.  A request that is slow to come is cut off, one that is too large is refused before it is read, and
when too many are under way the next one is asked to come again.
"""

import asyncio
import hashlib
import ssl
import time
from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit
from weakref import WeakKeyDictionary

from tapestry.apiserver import api_errors
from tapestry.apiserver.access.authentication import KUBECTL_AGENT, UNAUTHENTICATED, Credentials, UnionAuthenticator
from tapestry.apiserver.access.client_certificates import is_verified
from tapestry.apiserver.access.impersonation import HEADER_PREFIX
from tapestry.apiserver.access.rbac import MASTERS_GROUP
from tapestry.apiserver.codec import JSON
from tapestry.apiserver.requests import Call, Query, User
from tapestry.apiserver.server import (
    WRITE_VERBS,
    ApiResponse,
    ChunkedBody,
    RejectingCallHandler,
    Stream,
    error_response,
)
from tapestry.apiserver.serving.connection_limiter import ConnectionLimiter
from tapestry.apiserver.serving.http_connection import Exchange
from tapestry.apiserver.serving.http_server import HttpServer
from tapestry.apiserver.serving.inflight_limiter import InflightLimiter
from tapestry.apiserver.serving.metrics import COMPONENT, REQUEST_TERMINATIONS
from tapestry.apiserver.serving.uploads import Upload, UploadBudget
from tapestry.apiserver.watches import WatchResponse
from tapestry.kube.errors import ApiError, TooManyRequests
from tapestry.process.logs import logger

log = logger(__name__)

UNKNOWN_USER = User("")
"""Whose credentials nobody knows."""
PROBE_PATHS = ("/healthz", "/livez", "/readyz")
MAX_QUERY_PARAMETERS = 256
"""In a query."""
MAX_UNBUFFERED_BYTES = 1 << 16
"""Bytes of an answer that the system takes without waiting for the client."""
IDLE_SECONDS = 120.0
"""How long a connection may be without a whole head of a request: longer than clients keep one that they do not use."""
WATCH_CLOSE_SECONDS = 10.0
"""How long after its time a watch may still be writing."""


@dataclass(frozen=True)
class HttpHandler:
    """Serves `server` over HTTP; each request is somebody's, or is refused."""

    server: RejectingCallHandler
    authenticate: UnionAuthenticator
    inflight_limiter: InflightLimiter = field(default_factory=lambda: InflightLimiter({}))
    timeout: float = 60.0
    """That a client may take to send a body, and to take an answer."""
    kubectl_disabled: bool = False
    """Whether kubectl is."""
    connection_limiter: ConnectionLimiter = field(default_factory=ConnectionLimiter)
    upload_budget: UploadBudget = field(default_factory=UploadBudget)
    """Of bodies that are arriving."""

    async def handle(self, exchange: Exchange) -> None:
        try:
            path, query = path_and_query(exchange)
        except ValueError:
            send_response(exchange, error_response(api_errors.bad_request("the address that is asked for is none")))
            return
        user = UNKNOWN_USER
        try:
            user = self.authenticate(credentials_of(exchange))
            if self.kubectl_disabled and exchange.headers.get("user-agent", "").startswith(KUBECTL_AGENT):
                raise api_errors.kubectl_disabled()
            is_master = MASTERS_GROUP in user.groups
            if exchange.connection.owner != user.name:
                self._assign_connection(exchange, user, exempt=is_master)
            await self._handle_within_limits(
                exchange, path, query, user, exempt=is_master or path.startswith(PROBE_PATHS)
            )
        except ApiError as error:
            if isinstance(error, TooManyRequests):
                REQUEST_TERMINATIONS.labels(exchange.method, "429", COMPONENT).inc()
            send_response(exchange, self.server.reject(call_of(exchange, path, query, user, b""), error))
        except ConnectionError:
            raise  # the client is gone, and nobody is left to tell
        except Exception:
            log.exception("a request failed", method=exchange.method, path=path)
            if exchange.is_response_started:
                exchange.abort()
            else:
                send_response(
                    exchange, error_response(api_errors.internal_error("the server failed; its log says where"))
                )

    def _assign_connection(self, exchange: Exchange, user: User, *, exempt: bool) -> None:
        """Count the connection as its user's; one of nobody in particular stays unknown."""
        if UNAUTHENTICATED in user.groups:
            return
        try:
            self.connection_limiter.assign(exchange.connection, user.name, exempt=exempt)
        except TooManyRequests:
            exchange.keep_alive = False
            raise

    async def _handle_within_limits(
        self, exchange: Exchange, path: str, query: Query, user: User, *, exempt: bool
    ) -> None:
        """Answer within the bounds of the gate.  Watches are exempt; an upload enters when it is complete."""
        method = exchange.method
        if exchange.is_complete or method not in WRITE_VERBS:  # others have no body that anybody wants
            call = call_of(exchange, path, query, user, exchange.body() if exchange.is_complete else b"")
            if ("watch" in query or "follow" in query) and self.server.is_long_running(call):
                await self._handle_call(exchange, call)
                return
            seat = self.inflight_limiter.acquire(method, user.name, exempt=exempt)
            try:
                await self._handle_call(exchange, call)
            finally:
                self.inflight_limiter.release(seat)
            return
        enter = partial(self.inflight_limiter.acquire, method, user.name, exempt=exempt)
        upload = Upload(exchange, self.upload_budget, user.name, self.timeout, enter)
        try:
            await self._handle_call(exchange, call_of(exchange, path, query, user, b"", upload))
        finally:
            upload.close(self.inflight_limiter.release)

    async def _handle_call(self, exchange: Exchange, call: Call) -> None:
        answer = await self.server.handle(call)
        if isinstance(answer, WatchResponse):
            await send_watch(exchange, answer)
        elif answer.stream is not None:
            await self._send_stream_in_time(exchange, answer, answer.stream)
        elif len(answer.body) <= MAX_UNBUFFERED_BYTES and not exchange.is_write_blocked:
            send_response(exchange, answer)
        else:
            await self._send_large_in_time(exchange, answer)

    async def _send_stream_in_time(self, exchange: Exchange, response: ApiResponse, stream: Stream) -> None:
        """Send what comes in pieces; a list that its client does not take in time is cut off."""
        try:
            async with asyncio.timeout(self.timeout if isinstance(stream, ChunkedBody) else None):
                await send_stream(exchange, response, stream)
        except TimeoutError:
            exchange.abort()

    async def _send_large_in_time(self, exchange: Exchange, response: ApiResponse) -> None:
        """Send what does not go at once; who does not take it is cut off."""
        try:
            async with asyncio.timeout(self.timeout):
                await exchange.send_large(response.status, response_headers(response), response.body)
        except TimeoutError:
            exchange.abort()


def path_and_query(exchange: Exchange) -> tuple[str, Query]:
    """The path, and what is asked for beside it: of each name the first."""
    raw, _, query = exchange.target.decode("latin-1").partition("?")
    if not raw.startswith("/"):  # of a proxy's, the whole address
        raw = urlsplit(raw).path or raw
    pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_QUERY_PARAMETERS) if query else ()
    return unquote(raw) if "%" in raw else raw, dict(reversed(pairs)) if pairs else {}


def call_of(exchange: Exchange, path: str, query: Query, user: User, body: bytes, upload: Upload | None = None) -> Call:
    named: tuple[tuple[str, str], ...] = ()
    if HEADER_PREFIX in "\n".join(exchange.headers):
        named = tuple([pair for pair in exchange.header_pairs if pair[0].startswith(HEADER_PREFIX)])
    uri = exchange.target.decode("latin-1")
    peer = exchange.connection.peer
    return Call(exchange.method, path, query, exchange.headers, body, user, named, uri, peer, body_reader=upload)


def credentials_of(exchange: Exchange) -> Credentials:
    headers = exchange.headers
    tls = exchange.connection.tls
    certificate = verified_subject(tls, time.time()) if tls is not None else {}
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    return Credentials(
        bearer_token=bearer.strip() if scheme.lower() == "bearer" else "",
        certificate=certificate or {},
        has_unknown_certificate=certificate is None,
        peer=exchange.connection.peer,
        user_agent=headers.get("user-agent", ""),
        headers=headers,
    )


class PeerCertificate(NamedTuple):
    """The certificate that a client has shown: its subject and digest, and until when it is good, in Unix time."""

    subject: dict[str, list[str]]
    expires: float


PEER_CERTIFICATES: WeakKeyDictionary[ssl.SSLObject, PeerCertificate] = WeakKeyDictionary()
"""By connection: reading a certificate takes its time."""


def verified_subject(tls: ssl.SSLObject, now: float) -> dict[str, list[str]] | None:
    """Whose certificate a client has shown: nobody's without one, None where it is not verified or has expired."""
    found = PEER_CERTIFICATES.get(tls)
    if found is None:
        found = PEER_CERTIFICATES[tls] = peer_certificate(tls)
    return found.subject if now < found.expires else None


def peer_certificate(tls: ssl.SSLObject) -> PeerCertificate:
    certificate: Mapping[str, Any] = tls.getpeercert() or {}
    if not certificate:
        return PeerCertificate({}, inf)
    if not is_verified(tls):
        return PeerCertificate({}, -inf)
    digest = hashlib.sha256(tls.getpeercert(binary_form=True) or b"").hexdigest()
    return PeerCertificate(
        {**subject_of(certificate), "sha256": [digest]}, ssl.cert_time_to_seconds(certificate["notAfter"])
    )


def subject_of(certificate: Mapping[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for parts in certificate.get("subject", ()):
        for name, value in parts:
            found.setdefault(name, []).append(value)
    return found


def send_response(exchange: Exchange, response: ApiResponse) -> None:
    exchange.send(response.status, response_headers(response), response.body)


def response_headers(response: ApiResponse) -> dict[str, str]:
    return {"Content-Type": response.content_type, "Cache-Control": "no-cache, private", **response.headers}


async def send_watch(exchange: Exchange, watch: WatchResponse) -> None:
    """Send a watch, its head at once: clients wait for that.  A client that takes nothing is left in the end."""
    try:
        with suppress(ConnectionError):
            async with asyncio.timeout(watch.timeout + WATCH_CLOSE_SECONDS), aclosing(watch.chunks()) as chunks:
                await exchange.start_stream(200, {"Content-Type": JSON, "Cache-Control": "no-cache, private"})
                async for chunk in chunks:
                    await exchange.send_chunk(chunk)
                exchange.end_stream()
    except TimeoutError:
        exchange.abort()
    finally:
        watch.end()


async def send_stream(exchange: Exchange, response: ApiResponse, stream: Stream) -> None:
    """Send what comes in pieces, as they come."""
    try:
        with suppress(ConnectionError):
            async with aclosing(stream.chunks()) as chunks:
                await exchange.start_stream(response.status, response_headers(response))
                async for chunk in chunks:
                    await exchange.send_chunk(chunk)
                exchange.end_stream()
    finally:
        stream.end()


async def start_http_server(
    handler: HttpHandler,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    *,
    group: asyncio.TaskGroup,
    idle_timeout: float = IDLE_SECONDS,
) -> HttpServer:
    """Listen, and serve in tasks of the group; the caller cleans up before that ends."""
    found = HttpServer(handler.handle, group, idle_timeout, handler.connection_limiter)
    await found.start(host, port, tls)
    return found
