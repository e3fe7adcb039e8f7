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

from tapestry.apiserver import refusals
from tapestry.apiserver.access.authentication import KUBECTL, UNAUTHENTICATED, Authenticator, Credentials
from tapestry.apiserver.access.handshakes import is_verified
from tapestry.apiserver.access.impersonation import PREFIX
from tapestry.apiserver.access.rbac import MASTERS
from tapestry.apiserver.codec import JSON
from tapestry.apiserver.requests import Call, Query, User
from tapestry.apiserver.server import WRITES, Answer, Pieces, Refusing, Stream, refused
from tapestry.apiserver.serving.clients import Clients
from tapestry.apiserver.serving.gate import Gate
from tapestry.apiserver.serving.listening import Listening
from tapestry.apiserver.serving.metrics import COMPONENT, TERMINATED
from tapestry.apiserver.serving.uploads import Budget, Upload
from tapestry.apiserver.serving.wire import Exchange
from tapestry.apiserver.watches import Watching
from tapestry.kube.errors import ApiError, TooManyRequests
from tapestry.process.logs import logger

log = logger(__name__)

STRANGER = User("")
"""Whose credentials nobody knows."""
PROBES = ("/healthz", "/livez", "/readyz")
MOST_PARAMETERS = 256
"""In a query."""
AT_ONCE = 1 << 16
"""Bytes of an answer that the system takes without waiting for the client."""
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
    clients: Clients = field(default_factory=Clients)
    budget: Budget = field(default_factory=Budget)
    """Of bodies that are arriving."""

    async def handle(self, exchange: Exchange) -> None:
        try:
            path, query = place_of(exchange)
        except ValueError:
            send(exchange, refused(refusals.bad_request("the address that is asked for is none")))
            return
        user = STRANGER
        try:
            user = self.authenticate(credentials_of(exchange))
            if self.agent_refused and exchange.headers.get("user-agent", "").startswith(KUBECTL):
                raise refusals.agent_refused()
            is_master = MASTERS in user.groups
            if exchange.connection.owner != user.name:
                self._claim(exchange, user, exempt=is_master)
            await self._let_in(exchange, path, query, user, exempt=is_master or path.startswith(PROBES))
        except ApiError as error:
            if isinstance(error, TooManyRequests):
                TERMINATED.labels(exchange.method, "429", COMPONENT).inc()
            send(exchange, self.server.refused(call_of(exchange, path, query, user, b""), error))
        except ConnectionError:
            raise  # the client is gone, and nobody is left to tell
        except Exception:
            log.exception("a request failed", method=exchange.method, path=path)
            if exchange.is_begun:
                exchange.abort()
            else:
                send(exchange, refused(refusals.internal("the server failed; its log says where")))

    def _claim(self, exchange: Exchange, user: User, *, exempt: bool) -> None:
        """Count the connection as its user's; one of nobody in particular stays unknown."""
        if UNAUTHENTICATED in user.groups:
            return
        try:
            self.clients.claim(exchange.connection, user.name, exempt=exempt)
        except TooManyRequests:
            exchange.keeps = False
            raise

    async def _let_in(self, exchange: Exchange, path: str, query: Query, user: User, *, exempt: bool) -> None:
        """Answer within the bounds of the gate.  Watches are exempt; an upload enters when it is complete."""
        method = exchange.method
        if exchange.is_whole or method not in WRITES:  # others have no body that anybody wants
            call = call_of(exchange, path, query, user, exchange.body() if exchange.is_whole else b"")
            if ("watch" in query or "follow" in query) and self.server.is_long_running(call):
                await self._answer(exchange, call)
                return
            seat = self.gate.enter(method, user.name, exempt=exempt)
            try:
                await self._answer(exchange, call)
            finally:
                self.gate.leave(seat)
            return
        enter = partial(self.gate.enter, method, user.name, exempt=exempt)
        upload = Upload(exchange, self.budget, user.name, self.seconds, enter)
        try:
            await self._answer(exchange, call_of(exchange, path, query, user, b"", upload))
        finally:
            upload.close(self.gate.leave)

    async def _answer(self, exchange: Exchange, call: Call) -> None:
        answer = await self.server.answer(call)
        if isinstance(answer, Watching):
            await watched(exchange, answer)
        elif answer.stream is not None:
            await self._relayed(exchange, answer, answer.stream)
        elif len(answer.body) <= AT_ONCE and not exchange.is_backed_up:
            send(exchange, answer)
        else:
            await self._sent(exchange, answer)

    async def _relayed(self, exchange: Exchange, answer: Answer, source: Stream) -> None:
        """Send what comes in pieces; a list that its client does not take in time is cut off."""
        try:
            async with asyncio.timeout(self.seconds if isinstance(source, Pieces) else None):
                await relayed(exchange, answer, source)
        except TimeoutError:
            exchange.abort()

    async def _sent(self, exchange: Exchange, answer: Answer) -> None:
        """Send what does not go at once; who does not take it is cut off."""
        try:
            async with asyncio.timeout(self.seconds):
                await exchange.send_long(answer.status, headers_of(answer), answer.body)
        except TimeoutError:
            exchange.abort()


def place_of(exchange: Exchange) -> tuple[str, Query]:
    """The path, and what is asked for beside it: of each name the first."""
    raw, _, query = exchange.target.decode("latin-1").partition("?")
    if not raw.startswith("/"):  # of a proxy's, the whole address
        raw = urlsplit(raw).path or raw
    pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=MOST_PARAMETERS) if query else ()
    return unquote(raw) if "%" in raw else raw, dict(reversed(pairs)) if pairs else {}


def call_of(exchange: Exchange, path: str, query: Query, user: User, body: bytes, upload: Upload | None = None) -> Call:
    named: tuple[tuple[str, str], ...] = ()
    if PREFIX in "\n".join(exchange.headers):
        named = tuple([pair for pair in exchange.pairs if pair[0].startswith(PREFIX)])
    uri = exchange.target.decode("latin-1")
    peer = exchange.connection.peer
    return Call(exchange.method, path, query, exchange.headers, body, user, named, uri, peer, incoming=upload)


def credentials_of(exchange: Exchange) -> Credentials:
    headers = exchange.headers
    tls = exchange.connection.tls
    certificate = certificate_of(tls, time.time()) if tls is not None else {}
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    return Credentials(
        bearer=bearer.strip() if scheme.lower() == "bearer" else "",
        certificate=certificate or {},
        has_unknown_certificate=certificate is None,
        peer=exchange.connection.peer,
        agent=headers.get("user-agent", ""),
        headers=headers,
    )


class Shown(NamedTuple):
    """The certificate that a client has shown: its subject and digest, and until when it is good, in Unix time."""

    subject: dict[str, list[str]]
    expires: float


SHOWN: WeakKeyDictionary[ssl.SSLObject, Shown] = WeakKeyDictionary()
"""By connection: reading a certificate takes its time."""


def certificate_of(tls: ssl.SSLObject, now: float) -> dict[str, list[str]] | None:
    """Whose certificate a client has shown: nobody's without one, None where it is not verified or has expired."""
    found = SHOWN.get(tls)
    if found is None:
        found = SHOWN[tls] = shown_by(tls)
    return found.subject if now < found.expires else None


def shown_by(tls: ssl.SSLObject) -> Shown:
    certificate: Mapping[str, Any] = tls.getpeercert() or {}
    if not certificate:
        return Shown({}, inf)
    if not is_verified(tls):
        return Shown({}, -inf)
    digest = hashlib.sha256(tls.getpeercert(binary_form=True) or b"").hexdigest()
    return Shown({**subject_of(certificate), "sha256": [digest]}, ssl.cert_time_to_seconds(certificate["notAfter"]))


def subject_of(certificate: Mapping[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for parts in certificate.get("subject", ()):
        for name, value in parts:
            found.setdefault(name, []).append(value)
    return found


def send(exchange: Exchange, answer: Answer) -> None:
    exchange.send(answer.status, headers_of(answer), answer.body)


def headers_of(answer: Answer) -> dict[str, str]:
    return {"Content-Type": answer.content_type, "Cache-Control": "no-cache, private", **answer.headers}


async def watched(exchange: Exchange, watching: Watching) -> None:
    """Send a watch, its head at once: clients wait for that.  A client that takes nothing is left in the end."""
    try:
        with suppress(ConnectionError):
            async with asyncio.timeout(watching.seconds + PARTING_SECONDS), aclosing(watching.chunks()) as chunks:
                await exchange.begin(200, {"Content-Type": JSON, "Cache-Control": "no-cache, private"})
                async for chunk in chunks:
                    await exchange.go_on(chunk)
                exchange.end()
    except TimeoutError:
        exchange.abort()
    finally:
        watching.end()


async def relayed(exchange: Exchange, answer: Answer, source: Stream) -> None:
    """Send what comes in pieces, as they come."""
    try:
        with suppress(ConnectionError):
            async with aclosing(source.chunks()) as chunks:
                await exchange.begin(answer.status, headers_of(answer))
                async for chunk in chunks:
                    await exchange.go_on(chunk)
                exchange.end()
    finally:
        source.end()


async def serve(
    listener: Listener,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    *,
    group: asyncio.TaskGroup,
    idle: float = IDLE_SECONDS,
) -> Listening:
    """Listen, and serve in tasks of the group; the caller cleans up before that ends."""
    found = Listening(listener.handle, group, idle, listener.clients)
    await found.start(host, port, tls)
    return found
