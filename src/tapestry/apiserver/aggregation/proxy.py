"""Proxy for the servers of APIServices.

The server authenticates with the front proxy certificate and sends the user in headers, as kube-apiserver does. The
request was authenticated and authorized before. Credentials of the user and connection headers are not forwarded.
Upgraded connections are passed on. Redirects are rejected, certificates are verified, and some addresses are never
called (`core.egress`). If the server has a host cluster, its syncer connects Services (`core.pod_sessions`).
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from urllib.parse import quote, urlsplit

import aiohttp
from yarl import URL

from tapestry.apiserver.aggregation.api_services import ApiService
from tapestry.apiserver.core import api_errors, egress
from tapestry.apiserver.core.codec import JSON
from tapestry.apiserver.core.forwarding import (
    CONTROL_CHARACTERS,
    ProxiedBody,
    UpgradeServer,
    forwarded_headers,
    request_target,
    unreachable,
)
from tapestry.apiserver.core.host_access import HostAccess, not_connected
from tapestry.apiserver.core.outgoing_http import (
    MAX_TLS_CONTEXTS,
    ServiceResolver,
    WebhookCallError,
    connection_error_text,
    read_bounded,
    tls_context,
)
from tapestry.apiserver.core.pod_sessions import NamedSockets, socket_session
from tapestry.apiserver.core.requests import TRUE_VALUES, Call, User
from tapestry.apiserver.core.responses import BODYLESS_STATUSES, ApiResponse, SessionResponse
from tapestry.apiserver.core.sessions import Session
from tapestry.apiserver.core.store import Store

AGGREGATOR_USER = User("system:kube-aggregator", ("system:masters",))
"""The user that reads the documents of other servers."""
CONNECT_SECONDS = 10.0
HTTPS_PORT = 443
DOCUMENT_SECONDS = 5.0
"""Maximum seconds to read a document."""
MAX_DOCUMENT_BYTES = 8 << 20
MAX_BUFFERED_BYTES = 1 << 20
"""Size in bytes up to which a response is read completely before it is sent."""
TLS_CONTEXT_SECONDS = 3600.0
"""Age at which a TLS context is replaced, because the front proxy certificate may have been renewed."""
FORWARDED_RESPONSE_HEADERS = ("ETag", "Vary", "Last-Modified", "Cache-Control", "Warning", "Retry-After")

FrontProxyCertificate = Callable[[], tuple[Path, Path]]
"""Return the files of the front proxy certificate and its key, and renew them if needed."""


class AggregationProxy:
    """Send requests to the servers of APIServices. Close it in the event loop in which it was used."""

    def __init__(
        self,
        store: Store,
        random: Random,
        certificate: FrontProxyCertificate,
        timeout: float,
        check: egress.AddressCheck,
        host: HostAccess,
    ) -> None:
        self._resolver, self._sockets = ServiceResolver(store, random), NamedSockets(store, host)
        self._certificate = certificate
        self._timeout = timeout
        self._check, self._host = check, host
        self._contexts: dict[tuple[str, bool], tuple[float, ssl.SSLContext]] = {}
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        """Sessions by whether the server has a host cluster."""

    async def forward(self, call: Call, service: ApiService) -> ApiResponse:
        """Return the response of the server. Raises Unavailable if there is none."""
        if service.is_in_process:
            return await self._metrics_response(call)
        headers = [*forwarded_headers(call, ("cookie",)), *user_headers(call.user)]
        target = request_target(call, call.path)
        is_watch = call.method == "GET" and call.query.get("watch") in TRUE_VALUES
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._send(service, call.method, target, headers, call.body)
                return await self._forwarded_response(call, response, is_watch=is_watch)
        except TimeoutError as error:
            raise api_errors.request_timed_out() from error

    async def upgrade(self, call: Call, service: ApiService, session: Session) -> ApiResponse | SessionResponse:
        """Connect the client to the server, which decides on the protocol. Raises ServerError."""
        url, protocol = urlsplit(service.url), call.headers["upgrade"]
        name, port = url.hostname or "", url.port or HTTPS_PORT
        try:
            context = self._context(service)
            if self._host.current() is not None:
                server = UpgradeServer(name, port, context, self._check, open_socket=self._sockets.open)
            else:
                [address, *_] = await self._resolver.resolve(name, port)
                server = UpgradeServer(address["host"], address["port"], context, self._check, name)
        except (WebhookCallError, OSError) as error:
            raise unreachable(str(error)) from error
        headers = [("Host", url.netloc), *forwarded_headers(call, ("cookie",)), *user_headers(call.user)]
        return await session.upgrade(server, call.method, request_target(call, call.path), headers, protocol)

    async def document(self, service: ApiService, path: str) -> bytes:
        """Return a JSON document of the server. Raises Unavailable."""
        if service.is_in_process:
            return (await self._metrics_response(Call("GET", path, {}, {}, b"", AGGREGATOR_USER))).body
        headers = [("Accept", JSON), *user_headers(AGGREGATOR_USER)]
        try:
            async with asyncio.timeout(DOCUMENT_SECONDS):
                response = await self._send(service, "GET", path, headers, b"")
                try:
                    if response.status != 200:
                        raise unreachable(f"GET {path} returned {response.status}")
                    return await read_bounded(response.content, MAX_DOCUMENT_BYTES)
                finally:
                    response.release()
        except TimeoutError as error:
            raise unreachable("context deadline exceeded") from error
        except (aiohttp.ClientError, WebhookCallError) as error:
            raise unreachable(str(error)) from error

    async def _metrics_response(self, call: Call) -> ApiResponse:
        syncer = self._host.current()
        if syncer is None:
            raise not_connected()
        return await syncer.metrics.handle(call)

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    async def _send(
        self, service: ApiService, method: str, target: str, headers: list[tuple[str, str]], body: bytes
    ) -> aiohttp.ClientResponse:
        session = self._session(has_host=self._host.current() is not None)
        try:
            return await session.request(
                *(method, URL(f"{service.url}{target}", encoded=True)),
                data=body or None,
                headers=headers,
                ssl=self._context(service),
                allow_redirects=False,
            )
        except aiohttp.ClientError as error:
            raise unreachable(connection_error_text(error)) from error
        except (WebhookCallError, ValueError, OSError) as error:  # a certificate or an address that cannot be used
            raise unreachable(str(error)) from error

    def _session(self, *, has_host: bool) -> aiohttp.ClientSession:
        session = self._sessions.get(has_host)
        if session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
            if has_host:
                session = socket_session(self._sockets.open, timeout=timeout)
            else:
                session = egress.checked_session(self._check, self._resolver, timeout=timeout)
            self._sessions[has_host] = session
        return session

    async def _forwarded_response(self, call: Call, response: aiohttp.ClientResponse, *, is_watch: bool) -> ApiResponse:
        is_streamed = False
        try:
            if 300 <= response.status < 400 and response.status != 304:
                raise unreachable("the backend attempted to redirect this request, which is not permitted")
            content_type = response.headers.get("Content-Type", JSON)
            headers = {name: response.headers[name] for name in FORWARDED_RESPONSE_HEADERS if name in response.headers}
            if call.method == "HEAD" or response.status in BODYLESS_STATUSES:
                return ApiResponse(response.status, b"", content_type, headers)
            length = response.content_length
            if not is_watch and length is not None and length <= MAX_BUFFERED_BYTES:
                return ApiResponse(response.status, await response.read(), content_type, headers)
            is_streamed = True
            stream = ProxiedBody(response, None if is_watch else self._timeout)
            return ApiResponse(response.status, b"", content_type, headers, stream)
        except aiohttp.ClientError as error:
            raise unreachable(connection_error_text(error)) from error
        finally:
            if not is_streamed:
                response.release()

    def _context(self, service: ApiService) -> ssl.SSLContext:
        key, now = (service.ca_bundle, service.skips_verification), time.monotonic()
        created, context = self._contexts.get(key, (0.0, None))
        if context is not None and now - created < TLS_CONTEXT_SECONDS:
            return context
        if len(self._contexts) >= MAX_TLS_CONTEXTS:
            self._contexts.clear()
        context = tls_context(service.ca_bundle)
        if service.skips_verification:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        context.load_cert_chain(*self._certificate())
        self._contexts[key] = now, context
        return context


def user_headers(user: User) -> list[tuple[str, str]]:
    """Return the headers that state the user. Raises BadRequest if a header cannot contain a part of it."""
    extra = [
        (f"X-Remote-Extra-{quote(key.lower(), safe='')}", value)
        for key, values in user.extra.items()
        for value in values
    ]
    headers = [
        ("X-Remote-User", user.name),
        *([("X-Remote-Uid", user.uid)] if user.uid else []),
        *(("X-Remote-Group", group) for group in user.groups),
        *extra,
    ]
    if any(CONTROL_CHARACTERS.search(value) for _, value in headers):
        raise api_errors.bad_request("the name or a group of the user contains control characters")
    return headers
