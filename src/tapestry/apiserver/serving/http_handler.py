"""HTTP request handler: authenticates requests, applies limits, and passes them to the API server.

Requests are untrusted. The head is read, the user authenticated and authorized, and only then the body is read and
decoded. Slow requests are aborted, oversized ones are rejected before they are read. Requests over the concurrency
limit get 429, and so do all while the server uses more than its share of a process that it shares with others.
"""

import asyncio
import hashlib
import random
import ssl
import time
from collections.abc import Awaitable, Coroutine, Mapping, MutableMapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit
from weakref import WeakKeyDictionary

from multidict import CIMultiDict

from tapestry.apiserver.access.authentication import KUBECTL_AGENT, UNAUTHENTICATED, Credentials, UnionAuthenticator
from tapestry.apiserver.access.client_certificates import is_verified, verified_chain
from tapestry.apiserver.access.impersonation import HEADER_PREFIX
from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.requests import MASTERS_GROUP, WRITE_VERBS, Call, Query, User
from tapestry.apiserver.core.responses import ApiResponse, ChunkedBody, SessionResponse, Stream, status_response
from tapestry.apiserver.handlers.watches import WatchResponse
from tapestry.apiserver.serving.active_requests import ActiveRequests, RequestKind
from tapestry.apiserver.serving.connection_limiter import ConnectionLimiter
from tapestry.apiserver.serving.http_connection import Exchange
from tapestry.apiserver.serving.http_server import HttpServer
from tapestry.apiserver.serving.inflight_limiter import InflightLimiter, WatchLimiter
from tapestry.apiserver.serving.metrics import COMPONENT, REQUEST_TERMINATIONS
from tapestry.apiserver.serving.request_handler import RequestHandler
from tapestry.apiserver.serving.uploads import Upload, UploadBudget
from tapestry.kube.errors import ApiError, TooManyRequests
from tapestry.process.logs import logger

log = logger(__name__)

UNKNOWN_USER = User("")
"""User of a request whose credentials are invalid."""
PROBE_PATHS = ("/healthz", "/livez", "/readyz")
MAX_QUERY_PARAMETERS = 256
"""Maximum number of query parameters."""
MAX_UNBUFFERED_BYTES = 1 << 16
"""Size in bytes up to which a response is written without waiting for the client."""
IDLE_SECONDS = 120.0
"""Seconds that a connection may be without a complete request head; longer than clients keep idle connections."""
REJECTION_PAUSE = 0.5, 1.0
"""Range of the seconds for which a connection is not served after a 429, if several servers share the process. It is at
most what `Retry-After` says, and random so that not all clients continue at the same time."""
WATCH_CLOSE_SECONDS = 10.0
"""Seconds after its timeout for which a watch may still write."""
WATCH_HEAD = ApiResponse(200, b"")
"""Status and headers of a watch."""


class RequestScheduler(Protocol):
    """Scheduler of the requests of one server."""

    def run(self, work: Coroutine[Any, Any, None]) -> Awaitable[None]:
        """Run the work of a request when it is its turn."""

    def may_start(self) -> bool:
        """Return whether another request may start, or its server uses more than its share of the process."""


@dataclass(frozen=True)
class HttpHandler:
    """Serve `server` over HTTP for authenticated users."""

    server: RequestHandler
    authenticate: UnionAuthenticator
    inflight_limiter: InflightLimiter = field(default_factory=lambda: InflightLimiter({}))
    timeout: float = 60.0
    """Seconds that a client may take to send a body, and to read a response."""
    kubectl_disabled: bool = False
    """Reject requests from kubectl."""
    connection_limiter: ConnectionLimiter = field(default_factory=ConnectionLimiter)
    upload_budget: UploadBudget = field(default_factory=UploadBudget)
    """Memory budget of bodies that are arriving."""
    watch_limiter: WatchLimiter = field(default_factory=WatchLimiter)
    scheduler: RequestScheduler | None = None
    """Schedule requests of servers that share a process; without one, they run at once."""
    active_requests: ActiveRequests = field(default_factory=ActiveRequests)

    async def handle(self, exchange: Exchange, credentials: Credentials | None = None) -> None:
        """Handle a request. `credentials` are those of the exchange, if the caller has verified its certificate."""
        connection = exchange.connection
        self.active_requests.begin(connection)
        try:
            work = self._handle(exchange, credentials or credentials_of(exchange))
            await (work if self.scheduler is None else self.scheduler.run(work))
        finally:
            self.active_requests.end(connection)

    async def _handle(self, exchange: Exchange, credentials: Credentials) -> None:
        try:
            path, query = path_and_query(exchange)
        except ValueError:
            send_response(exchange, status_response(api_errors.bad_request("the request target is not a valid URL")))
            return
        user = UNKNOWN_USER
        try:
            user = self.authenticate(credentials)
            if self.kubectl_disabled and exchange.headers.get("user-agent", "").startswith(KUBECTL_AGENT):
                raise api_errors.kubectl_disabled()
            is_master = MASTERS_GROUP in user.groups
            connection = exchange.connection
            if connection.owner != user.name or connection.limiter is not self.connection_limiter:
                self._assign_connection(exchange, user, exempt=is_master)
            is_probe = path.startswith(PROBE_PATHS)
            if self.scheduler is not None and not is_probe and not self.scheduler.may_start():
                raise api_errors.share_exceeded()
            await self._handle_within_limits(exchange, path, query, user, exempt=is_master or is_probe)
        except ApiError as error:
            if isinstance(error, TooManyRequests):
                REQUEST_TERMINATIONS.labels(exchange.method, "429", COMPONENT).inc()
                if self.scheduler is not None:  # the parsing of further requests would delay other servers
                    exchange.pause = random.uniform(*REJECTION_PAUSE)
            send_response(exchange, self.server.reject(call_of(exchange, path, query, user, b""), error))
        except ConnectionError:
            raise  # the client has disconnected
        except Exception:
            log.exception("HTTP request failed", method=exchange.method, path=path)
            if exchange.is_response_started:
                exchange.abort()
            else:
                send_response(exchange, status_response(api_errors.internal_error("the server failed; see its log")))

    def _assign_connection(self, exchange: Exchange, user: User, *, exempt: bool) -> None:
        """Assign the connection to the user; connections of anonymous users stay unauthenticated."""
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
        """Handle a request within the limits; watches have their own, uploads get a slot when complete."""
        method = exchange.method
        if exchange.is_complete or method not in WRITE_VERBS:  # other bodies are ignored
            call = call_of(exchange, path, query, user, exchange.body() if exchange.is_complete else b"")
            if is_maybe_long_running(exchange, path, query) and self.server.is_long_running(call):
                self.watch_limiter.acquire()
                try:
                    await self._handle_call(exchange, call)
                finally:
                    self.watch_limiter.release()
                return
            slot = self.inflight_limiter.acquire(method, user.name, exempt=exempt)
            try:
                await self._handle_call(exchange, call)
            finally:
                self.inflight_limiter.release(slot)
            return
        acquire_slot = partial(self.inflight_limiter.acquire, method, user.name, exempt=exempt)
        upload = Upload(exchange, self.upload_budget, user.name, self.timeout, acquire_slot)
        try:
            await self._handle_call(exchange, call_of(exchange, path, query, user, b"", upload))
        finally:
            upload.close(self.inflight_limiter.release)

    async def _handle_call(self, exchange: Exchange, call: Call) -> None:
        response, connection = await self.server.handle(call), exchange.connection
        if isinstance(response, WatchResponse):
            self.active_requests.classify(connection, RequestKind.WATCH)
            await send_stream(exchange, WATCH_HEAD, response, response.timeout + WATCH_CLOSE_SECONDS)
        elif isinstance(response, SessionResponse):
            self.active_requests.classify(connection, RequestKind.SESSION)
            try:
                await response.run(exchange.upgrade(response.headers))
            finally:
                response.end()
        elif response.stream is not None:
            is_complete = isinstance(response.stream, ChunkedBody)
            if not is_complete:
                self.active_requests.classify(connection, RequestKind.SESSION)
            await send_stream(exchange, response, response.stream, self.timeout if is_complete else None)
        elif len(response.body) <= MAX_UNBUFFERED_BYTES and not exchange.is_write_blocked:
            send_response(exchange, response)
        else:
            try:
                async with asyncio.timeout(self.timeout):
                    await exchange.send_large(response.status, response_headers(response), response.body)
            except TimeoutError:  # the client does not read
                exchange.abort()


def is_maybe_long_running(exchange: Exchange, path: str, query: Query) -> bool:
    """Return whether a request may be a watch, follow a log or connect, from properties that are cheap to check."""
    return "watch" in query or "follow" in query or exchange.is_upgrade or "/proxy" in path


def path_and_query(exchange: Exchange) -> tuple[str, Query]:
    """Return the path, and the first value of each query parameter."""
    raw, _, query = exchange.target.decode("latin-1").partition("?")
    if not raw.startswith("/"):  # proxies send an absolute URL
        raw = urlsplit(raw).path or raw
    pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_QUERY_PARAMETERS) if query else ()
    return unquote(raw) if "%" in raw else raw, dict(reversed(pairs)) if pairs else {}


def call_of(exchange: Exchange, path: str, query: Query, user: User, body: bytes, upload: Upload | None = None) -> Call:
    impersonation_headers: tuple[tuple[str, str], ...] = ()
    if HEADER_PREFIX in "\n".join(exchange.headers):
        impersonation_headers = tuple([pair for pair in exchange.header_pairs if pair[0].startswith(HEADER_PREFIX)])
    uri = exchange.target.decode("latin-1")
    peer = exchange.connection.peer
    return Call(
        *(exchange.method, path, query, exchange.headers, body, user, impersonation_headers, uri, peer),
        body_reader=upload,
        header_pairs=exchange.header_pairs,
        is_upgrade=exchange.is_upgrade,
        base_path=exchange.base_path,
    )


Subject = dict[str, list[str]]
"""Subject of a verified client certificate, and its digest as `sha256`; empty without a certificate."""


def credentials_of(exchange: Exchange) -> Credentials:
    tls = exchange.connection.tls
    return credentials_with(exchange, verified_subject(tls, time.time()) if tls is not None else {})


def credentials_with(exchange: Exchange, certificate: Subject | None) -> Credentials:
    """Return the credentials of a request with this certificate; None is an unverified one."""
    headers = exchange.headers
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return Credentials(
        bearer_token=token.strip() if scheme.lower() == "bearer" else "",
        certificate=certificate or {},
        has_unknown_certificate=certificate is None,
        peer=exchange.connection.peer,
        user_agent=headers.get("user-agent", ""),
        headers=headers,
    )


class PeerCertificate(NamedTuple):
    """A verified client certificate as in `Credentials`, and its expiry in Unix time."""

    subject: Subject
    expires: float


PEER_CERTIFICATES: WeakKeyDictionary[ssl.SSLObject, PeerCertificate] = WeakKeyDictionary()
"""Certificates by connection, because parsing one is slow."""


def verified_subject(tls: ssl.SSLObject, now: float) -> Subject | None:
    """Return the subject of the client certificate: empty without one, None if it is unverified or expired."""
    result = PEER_CERTIFICATES.get(tls)
    if result is None:
        result = PEER_CERTIFICATES[tls] = peer_certificate(tls)
    return result.subject if now < result.expires else None


def peer_certificate(tls: ssl.SSLObject) -> PeerCertificate:
    certificate: Mapping[str, Any] = tls.getpeercert() or {}
    if not certificate:
        return PeerCertificate({}, inf)
    if not is_verified(tls):
        return PeerCertificate({}, -inf)
    chain = [hashlib.sha256(each).hexdigest() for each in verified_chain(tls)]
    not_before, not_after = (ssl.cert_time_to_seconds(certificate[each]) for each in ("notBefore", "notAfter"))
    identity = {"sha256": chain[:1], "chain": chain, "serialNumber": [certificate["serialNumber"]]}
    return PeerCertificate({**subject_of(certificate), **identity, "notBefore": [str(not_before)]}, not_after)


def subject_of(certificate: Mapping[str, Any]) -> Subject:
    result: Subject = {}
    for parts in certificate.get("subject", ()):
        for name, value in parts:
            result.setdefault(name, []).append(value)
    return result


def send_response(exchange: Exchange, response: ApiResponse) -> None:
    exchange.send(response.status, response_headers(response), response.body)


def response_headers(response: ApiResponse) -> MutableMapping[str, str]:
    return {"Content-Type": response.content_type, "Cache-Control": "no-cache, private", **response.headers}


async def send_stream(exchange: Exchange, response: ApiResponse, stream: Stream, timeout: float | None) -> None:
    """Send a stream, its head at once because clients wait for it. Abort if the client does not read in time."""
    try:
        async with asyncio.timeout(timeout), aclosing(stream.chunks()) as chunks:
            headers = response_headers(response)
            if response.cookies:
                headers = CIMultiDict([*headers.items(), *(("Set-Cookie", each) for each in response.cookies)])
            await exchange.start_stream(response.status, headers)
            async for chunk in chunks:
                await exchange.send_chunk(chunk)
            exchange.end_stream()
    except (TimeoutError, ConnectionError):  # the client does not read, or has disconnected
        exchange.abort()
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
    """Listen, and serve in tasks of the group. The caller stops the server before the group ends."""
    http_server = HttpServer(handler.handle, group, idle_timeout, handler.connection_limiter)
    await http_server.start(host, port, tls)
    return http_server
