"""The server on a socket: aiohttp in front, `Server` behind.

Clients are strangers: a request that is slow to come is cut off, one that is too large is refused before it is read,
and when too many are under way the next one is asked to come again.
"""

import asyncio
import hashlib
import logging
import ssl
from collections.abc import Mapping, Sequence
from contextlib import aclosing, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from aiohttp import web

from tapestry.apiserver import refusals
from tapestry.apiserver.access.authentication import KUBECTL, Authenticator, Credentials
from tapestry.apiserver.access.impersonation import PREFIX
from tapestry.apiserver.access.rbac import MASTERS
from tapestry.apiserver.codec import JSON, LONGEST_BODY
from tapestry.apiserver.requests import Call, User
from tapestry.apiserver.server import TRUE, Answer, Refusing, Stream, refused
from tapestry.apiserver.serving.gate import Gate
from tapestry.apiserver.serving.metrics import COMPONENT, TERMINATED
from tapestry.apiserver.watches import Watching
from tapestry.kube.errors import ApiError, TooManyRequests
from tapestry.process.logs import logger

log = logger(__name__)
quiet = logging.getLogger(f"{__name__}.malformed")
quiet.setLevel(logging.CRITICAL)  # that somebody sent no HTTP is no news, and no traceback

STRANGER = User("")
"""Whose credentials nobody knows."""
PROBES = ("/healthz", "/livez", "/readyz")
AT_ONCE = 1 << 16
"""Bytes of an answer that the system takes without waiting for the client."""
PIECE = 1 << 17
"""Bytes of a longer answer that are sent at a time."""
IDLE_SECONDS = 120.0
"""How long a connection may be without a whole head of a request: longer than clients keep one that they do not use."""
PARTING_SECONDS = 10.0
"""How long after its time a watch may still be writing."""


@dataclass(frozen=True)
class Listener:
    """Serves `server` over HTTP; each request is somebody's, or is refused."""

    server: Refusing
    authenticate: Authenticator
    gate: Gate = field(default_factory=lambda: Gate({}))
    seconds: float = 60.0
    """That a client may take to send a body, and to take an answer."""
    agent_refused: bool = False
    """Whether kubectl is."""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        user = STRANGER
        try:
            user = self.authenticate(credentials_of(request))
            if self.agent_refused and request.headers.get("User-Agent", "").startswith(KUBECTL):
                raise refusals.agent_refused()
            if request.query.get("watch") in TRUE or request.query.get("follow") in TRUE:
                passed: Any = nullcontext()
            else:
                passed = self.gate.passed(request.method, exempt=is_exempt(user, request))
            with passed:
                return await self._answered(request, user)
        except ApiError as error:
            if isinstance(error, TooManyRequests):
                TERMINATED.labels(request.method, "429", COMPONENT).inc()
            return response(self.server.refused(call_of(request, user, b""), error))
        except ConnectionError:
            raise  # the client is gone, and nobody is left to tell
        except Exception:
            log.exception("a request failed", method=request.method, path=request.path)
            return response(refused(refusals.internal("the server failed; its log says where")))

    async def _answered(self, request: web.BaseRequest, user: User) -> web.StreamResponse:
        body = await self._body(request) if request.body_exists else b""
        answer = await self.server.answer(call_of(request, user, body))
        if isinstance(answer, Watching):
            return await stream(request, answer)
        if answer.stream is not None:
            return await relayed(request, answer, answer.stream)
        return response(answer) if len(answer.body) <= AT_ONCE else await self._sent(request, answer)

    async def _body(self, request: web.BaseRequest) -> bytes:
        if (request.content_length or 0) > LONGEST_BODY:
            raise refusals.too_large(LONGEST_BODY)
        if request.content.is_eof():  # it came with the head
            return request.content.read_nowait()
        pieces, size = [], 0
        try:
            async with asyncio.timeout(self.seconds):
                while piece := await request.content.readany():
                    pieces.append(piece)
                    size += len(piece)
                    if size > LONGEST_BODY:
                        raise refusals.too_large(LONGEST_BODY)
        except TimeoutError:
            raise refusals.out_of_time() from None
        except web.RequestPayloadError as error:
            raise refusals.bad_request(f"the body cannot be read: {error}") from error
        return b"".join(pieces)

    async def _sent(self, request: web.BaseRequest, answer: Answer) -> web.StreamResponse:
        """Send what does not go at once, piece by piece; who does not take it is cut off.

        All of it at once would lie in memory several times: as it is, encrypted, and on its way.
        """
        found = web.StreamResponse(status=answer.status, headers=headers_of(answer))
        found.content_length = len(answer.body)
        body = memoryview(answer.body)
        try:
            async with asyncio.timeout(self.seconds):
                await found.prepare(request)
                for at in range(0, len(body), PIECE):
                    await found.write(body[at : at + PIECE])
                await found.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        return found


def is_exempt(user: User, request: web.BaseRequest) -> bool:
    return MASTERS in user.groups or request.path.startswith(PROBES)


def call_of(request: web.BaseRequest, user: User, body: bytes) -> Call:
    headers = {name.lower(): value for name, value in request.headers.items()}
    named: Sequence[tuple[str, str]] = ()
    if any(name.startswith(PREFIX) for name in headers):
        pairs = ((name.lower(), value) for name, value in request.headers.items())
        named = [pair for pair in pairs if pair[0].startswith(PREFIX)]
    return Call(
        request.method,
        request.path,
        dict(request.query),
        headers,
        body,
        user,
        tuple(named),
        request.raw_path,
        request.remote or "",
    )


SUBJECTS: WeakKeyDictionary[ssl.SSLObject, dict[str, list[str]]] = WeakKeyDictionary()
"""Whom each connection's certificate is of: it cannot change, and reading it takes its time."""


def credentials_of(request: web.BaseRequest) -> Credentials:
    transport, headers = request.transport, request.headers
    peer = transport.get_extra_info("peername") if transport is not None else None
    tls = transport.get_extra_info("ssl_object") if transport is not None else None
    scheme, _, bearer = headers.get("Authorization", "").partition(" ")
    return Credentials(
        bearer=bearer.strip() if scheme.lower() == "bearer" else "",
        certificate=certificate_of(tls) if tls is not None else {},
        peer=peer[0] if peer else "",
        host=headers.get("Host", ""),
        origin=headers.get("Origin", ""),
        agent=headers.get("User-Agent", ""),
    )


def certificate_of(tls: ssl.SSLObject) -> dict[str, list[str]]:
    found = SUBJECTS.get(tls)
    if found is None:
        found = SUBJECTS[tls] = subject_of(tls.getpeercert() or {})
        if found:
            found["sha256"] = [hashlib.sha256(tls.getpeercert(binary_form=True) or b"").hexdigest()]
    return found


def subject_of(certificate: Mapping[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for parts in certificate.get("subject", ()):
        for name, value in parts:
            found.setdefault(name, []).append(value)
    return found


def response(answer: Answer) -> web.Response:
    return web.Response(status=answer.status, body=answer.body, headers=headers_of(answer))


def headers_of(answer: Answer) -> dict[str, str]:
    return {"Content-Type": answer.content_type, "Cache-Control": "no-cache, private", **answer.headers}


async def stream(request: web.BaseRequest, watching: Watching) -> web.StreamResponse:
    """Send a watch, its head at once: clients wait for that.  A client that takes nothing is left in the end."""
    found = web.StreamResponse(headers={"Content-Type": JSON, "Cache-Control": "no-cache, private"})
    found.enable_chunked_encoding()
    try:
        with suppress(ConnectionError):
            async with asyncio.timeout(watching.seconds + PARTING_SECONDS), aclosing(watching.chunks()) as chunks:
                await found.prepare(request)
                async for chunk in chunks:
                    await found.write(chunk)
                await found.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    finally:
        watching.end()
    return found


async def relayed(request: web.BaseRequest, answer: Answer, source: Stream) -> web.StreamResponse:
    """Send what comes in pieces, as they come."""
    found = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type, **answer.headers})
    found.enable_chunked_encoding()
    try:
        with suppress(ConnectionError):
            async with aclosing(source.chunks()) as chunks:
                await found.prepare(request)
                async for chunk in chunks:
                    await found.write(chunk)
                await found.write_eof()
    finally:
        source.end()
    return found


async def serve(
    listener: Listener, host: str, port: int, tls: ssl.SSLContext | None = None, *, idle: float = IDLE_SECONDS
) -> web.ServerRunner:
    """Listen; the address is in `runner.addresses`.  The caller cleans the runner up."""
    server = web.Server(
        listener.handle,
        access_log=None,
        logger=quiet,
        handler_cancellation=True,  # a watch of a client that left must not wait for something to happen
        keepalive_timeout=idle,
        auto_decompress=False,  # a small body must not become a large one
    )
    runner = web.ServerRunner(server, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, host, port, ssl_context=tls, backlog=1024).start()
    return runner
