"""HTTP listeners of every process: health probes and Prometheus metrics.

    async with serve_health(":8081", alive={}, ready=checks), serve_metrics(":8080", authorize=reviewed) as at:
        log.info("metrics listener started", metrics=at)

Probes respond only ok or not ok; the reasons are in the log.  Metrics need a token that `authorize` accepts or a
verified client certificate, except on loopback.
"""

import asyncio
import hashlib
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler
from prometheus_client import REGISTRY, CollectorRegistry

from tapestry.kube.errors import KubeError
from tapestry.process import logs, metrics
from tapestry.process.addresses import Address, parse_address

Check = Callable[[], str | None]  # the problem, or None
Authorize = Callable[[str], Awaitable[bool]]

DECISION_TTL = 60.0
MAX_CACHED_DECISIONS = 1024
SHUTDOWN_SECONDS = 1.0  # aiohttp would wait a minute for requests in flight

log = logs.logger("tapestry.probes")


def is_server_error(record: logging.LogRecord) -> bool:
    """Return whether a record is not about a request that is no HTTP, which anyone can send, with secrets in it."""
    error = record.exc_info[1] if record.exc_info is not None else None
    return not isinstance(error, (HttpProcessingError, web.RequestPayloadError))


logging.getLogger("aiohttp.server").addFilter(is_server_error)


@asynccontextmanager
async def serve_health(
    address: str, *, alive: Mapping[str, Check], ready: Mapping[str, Check]
) -> AsyncIterator[Address | None]:
    """Serve `/healthz` and `/readyz` at the address it yields, or None if `address` is empty.

    Checks may be added to the mappings at any time.  They run on the event loop and must not block.  A check that
    raises has failed.
    """
    routes = {"/healthz": Probe("healthz", alive).handle, "/readyz": Probe("readyz", ready).handle}
    async with serve_routes(parse_address(address), routes) as at:
        yield at


@asynccontextmanager
async def serve_metrics(
    address: str,
    *,
    authorize: Authorize | None,
    tls: ssl.SSLContext | None = None,
    registry: CollectorRegistry = REGISTRY,
) -> AsyncIterator[Address | None]:
    """Serve `/metrics` at the address it yields.  `authorize=None` allows all requests.

    A result of `authorize` is cached for a minute.  If it raises KubeError, only the current request fails.
    """
    listen_address = parse_address(address)
    if listen_address is not None and listen_address.is_loopback:
        authorize = None
    page = MetricsEndpoint(registry, AuthorizationCache(authorize) if authorize else None)
    async with serve_routes(listen_address, {"/metrics": page.handle}, tls) as at:
        yield at


def server_tls(cert_file: str, key_file: str, client_ca_file: str | None = None) -> ssl.SSLContext:
    """Return a TLS 1.2+ context.  Client certificates are optional; one not signed by `client_ca_file` is rejected."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(cert_file, key_file)
    if client_ca_file is not None:
        context.load_verify_locations(client_ca_file)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


@asynccontextmanager
async def serve_routes(
    address: Address | None, routes: Mapping[str, Handler], tls: ssl.SSLContext | None = None
) -> AsyncIterator[Address | None]:
    if address is None:
        yield None
        return
    app = web.Application()
    for path, handler in routes.items():
        app.router.add_get(path, handler)
    async with serve_app(app, bound_socket(address), tls) as port:
        yield Address(address.host, port)


@asynccontextmanager
async def serve_app(app: web.Application, sock: socket.socket, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve `app` on a socket and yield its port.  On exit, close the socket.

    A handler whose client disconnects is cancelled, because it might wait forever.
    """
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_SECONDS)
    with sock:
        await runner.setup()
        try:
            await web.SockSite(runner, sock, ssl_context=tls).start()
            yield sock.getsockname()[1]
        finally:
            asyncio.get_running_loop().remove_reader(sock)
            await asyncio.sleep(0)  # a closing server drops new connections: CPython's issue 109564
            await runner.cleanup()


def bound_socket(address: Address) -> socket.socket:
    """Return one socket, dual-stack if possible: with two sockets, port 0 would give two ports."""
    if address.host in ("", "::") and socket.has_dualstack_ipv6():
        return socket.create_server(("", address.port), family=socket.AF_INET6, dualstack_ipv6=True)
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    return socket.create_server((address.host, address.port), family=family)


class Probe:
    """One probe.  It passes while no check reports a problem."""

    def __init__(self, name: str, checks: Mapping[str, Check]) -> None:
        self._name = name
        self._checks = checks
        self._failing: set[str] = set()

    async def handle(self, _: web.Request) -> web.Response:
        failures = self._failures()
        if failures.keys() != self._failing:  # probes arrive every few seconds: log only changes
            self._failing = set(failures)
            if failures:
                log.warning("probe failed", probe=self._name, checks=failures)
            else:
                log.info("probe recovered", probe=self._name)
        return web.Response(status=503, text="not ok") if failures else web.Response(text="ok")

    def _failures(self) -> dict[str, str]:
        failures = {}
        for name, check in self._checks.items():
            try:
                problem = check()
            except Exception as error:  # noqa: BLE001  a failing check must not pass, nor break the probe
                problem = f"{type(error).__name__}: {error}"
            if problem is not None:
                failures[name] = problem
        return failures


class AuthorizationCache:
    """Cache decisions of `authorize` for a minute, by hashes of the tokens."""

    def __init__(self, authorize: Authorize, now: Callable[[], float] = time.monotonic) -> None:
        self._authorize = authorize
        self._now = now
        self._decisions: dict[bytes, tuple[float, bool]] = {}

    async def allows(self, token: str) -> bool:
        key = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        until, allowed = self._decisions.get(key, (0.0, False))
        if self._now() < until:
            return allowed
        allowed = await self._authorize(token)
        self._decisions.pop(key, None)
        if len(self._decisions) >= MAX_CACHED_DECISIONS:
            del self._decisions[next(iter(self._decisions))]  # the oldest: entries are in insertion order
        self._decisions[key] = (self._now() + DECISION_TTL, allowed)
        return allowed


class MetricsEndpoint:
    """`/metrics`, without authentication if `authorization` is None."""

    def __init__(self, registry: CollectorRegistry, authorization: AuthorizationCache | None) -> None:
        self._registry = registry
        self._authorization = authorization

    async def handle(self, request: web.Request) -> web.Response:
        denial = await self._denial(request)
        if denial is not None:
            return denial
        # In a thread, so that the loop is not blocked while thousands of series are rendered.
        body, content_type = await asyncio.to_thread(metrics.render, self._registry)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _denial(self, request: web.Request) -> web.Response | None:
        if self._authorization is None or has_verified_certificate(request):
            return None
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return web.Response(status=401, text="unauthorized", headers={"WWW-Authenticate": "Bearer"})
        try:
            allowed = await self._authorization.allows(token)
        except KubeError as error:
            log.warning("metrics authorization failed", error=error)
            return web.Response(status=503, text="try again")
        return None if allowed else web.Response(status=403, text="forbidden")


def has_verified_certificate(request: web.Request) -> bool:
    """Return whether the client sent a certificate, which the handshake has verified."""
    tls = request.transport.get_extra_info("ssl_object") if request.transport else None
    return bool(tls and tls.getpeercert())
