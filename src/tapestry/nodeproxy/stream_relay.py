"""Exec, attach and port-forward on virtual pods, tunnelled to their twins.

The bytes pass unchanged: the client and the physical API server speak the protocol that the client requested.  The
request to the physical API server has the credentials of the syncer, never those of the caller.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from tapestry.apiserver.serving.http_connection import Exchange
from tapestry.client.transport import Request
from tapestry.kube.errors import ApiError, TransportError, error_from_body
from tapestry.kube.objects import Object, key_of, name_of, namespace_of
from tapestry.kube.resources import PODS
from tapestry.nodeproxy.physical_errors import STREAMS, internal_error, translate_error, unreachable_error
from tapestry.nodeproxy.sessions import Session, Sessions
from tapestry.nodeproxy.stream_requests import (
    StreamTarget,
    bad_request,
    negotiated_protocol,
    physical_query,
    requested_protocol,
    response_headers,
    upgrade_headers,
)
from tapestry.nodeproxy.twins import TwinLookup, check_container
from tapestry.process.logs import logger
from tapestry.streams.connection import Connection
from tapestry.streams.tunnel import Transferred, tunnel
from tapestry.streams.upgrade import Headers, UpgradeResponse

log = logger(__name__)

Upgrade = Callable[[Request, Sequence[tuple[str, str]], Headers], Coroutine[Any, Any, UpgradeResponse]]
"""Send an upgrade request to the physical API server."""


@dataclass(frozen=True)
class StreamRelay:
    """Open sessions in twins."""

    twins: TwinLookup
    upgrade: Upgrade
    sessions: Sessions

    async def relay(self, exchange: Exchange, target: StreamTarget, query: str, pod: Object, user: str) -> None:
        """Run a session until it ends.  Raise the error of a kubelet if it cannot start."""
        if not exchange.is_upgrade:
            raise bad_request("the request must be an upgrade to SPDY/3.1 or WebSocket")
        protocol = requested_protocol(exchange.header_pairs)
        session, options = self._session(target, query, pod, user)
        with self.sessions.track(session):
            response = await self._request(session, exchange.method, options, exchange.header_pairs)
            if response.connection is None:
                raise refusal_of(session, response)
            await self.run(exchange, session, protocol, response, response.connection)

    async def connect(
        self, method: str, headers: Headers, target: StreamTarget, query: str, pod: Object, user: str
    ) -> UpgradeResponse:
        """Start a session, which ends when its connection is closed.  Raise the error of a kubelet if it cannot start.

        The response is that of the physical API server.  A refusal has no connection.  Names of `headers` are in lower
        case.
        """
        protocol = requested_protocol(headers)
        session, options = self._session(target, query, pod, user)
        self.sessions.start(session)
        backend: Connection | None = None
        try:
            response = await self._request(session, method, options, headers)
            if (backend := response.connection) is None:
                self.sessions.finish(session)
                return refused_response(refusal_of(session, response))
            self._accept(session, protocol, response)
        except BaseException:
            if backend is not None:
                backend.abort()
            self.sessions.finish(session)
            raise
        session.connections = (backend,)
        tracked = TrackedConnection(backend, session.transferred, partial(self.sessions.finish, session))
        return replace(response, headers=lower_case(response_headers(response.headers)), connection=tracked)

    def _session(
        self, target: StreamTarget, query: str, pod: Object, user: str
    ) -> tuple[Session, list[tuple[str, str]]]:
        """Return the session that is requested, and its options for the physical API server."""
        if target.container:
            check_container(pod, target.container)
        options = physical_query(target, query)
        twin = self.twins.require_twin(pod, STREAMS[target.subresource].without_twin)
        command = tuple(value for name, value in options if name == "command")
        return Session(user, target, pod, twin, command), options

    async def _request(
        self, session: Session, method: str, options: list[tuple[str, str]], headers: Headers
    ) -> UpgradeResponse:
        try:
            return await self.upgrade(request_of(session, method), options, upgrade_headers(headers))
        except TransportError as error:
            log.warning("stream session not opened", pod=key_of(session.pod), error=str(error))
            raise unreachable_error(STREAMS[session.target.subresource], session.pod) from error

    def _accept(self, session: Session, protocol: str, response: UpgradeResponse) -> None:
        if response.headers.get("upgrade", "").lower() != protocol:
            raise internal_error("the physical cluster switched to a protocol that was not requested")
        if session.error:  # it was ended while the physical API server was connecting
            raise internal_error(session.error)
        session.protocol = negotiated_protocol(response.headers)

    async def run(
        self,
        exchange: Exchange,
        session: Session,
        protocol: str,
        response: UpgradeResponse,
        backend: Connection,
    ) -> None:
        """Accept the upgrade, and copy bytes until the session ends."""
        try:
            self._accept(session, protocol, response)
            client = exchange.upgrade(response_headers(response.headers))
            session.connections = (client, backend)
            await tunnel(client, backend, session.transferred)
        finally:
            backend.abort()


def request_of(session: Session, method: str) -> Request:
    twin = session.twin
    return Request(method, PODS.path(namespace_of(twin), name_of(twin), session.target.subresource))


def refusal_of(session: Session, response: UpgradeResponse) -> ApiError:
    """Return the error of a kubelet for a refusal of the physical API server."""
    refusal = error_from_body(response.status, response.body, action=f"open a stream to {key_of(session.twin)}")
    return translate_error(refusal, STREAMS[session.target.subresource], session.pod, session.twin)


def refused_response(error: ApiError) -> UpgradeResponse:
    return UpgradeResponse(error.code, {"content-type": "application/json"}, msgspec.json.encode(error.status()), None)


def lower_case(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@dataclass(frozen=True)
class TrackedConnection:
    """The connection of a session to the physical cluster."""

    connection: Connection
    transferred: Transferred
    finish: Callable[[], None]
    """Stop counting the session.  A second call has no effect."""

    @property
    def peer(self) -> str:
        return self.connection.peer

    async def read(self) -> bytes:
        data = await self.connection.read()
        self.transferred.add_sent(len(data))
        return data

    async def write(self, data: bytes) -> None:
        await self.connection.write(data)
        self.transferred.add_received(len(data))

    async def close(self) -> None:
        try:
            await self.connection.close()
        finally:
            self.finish()

    def abort(self) -> None:
        self.connection.abort()
        self.finish()
