"""Exec, attach and port-forward on virtual pods, tunnelled to their twins.

The bytes pass unchanged: the client and the physical API server speak the protocol that the client requested.  The
request to the physical API server has the credentials of the syncer, never those of the caller.
"""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from tapestry.apiserver.serving.http_connection import Exchange
from tapestry.client.transport import Request
from tapestry.kube.errors import TransportError, error_from_body
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
from tapestry.streams.connection import SocketConnection
from tapestry.streams.tunnel import tunnel
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
        if target.container:
            check_container(pod, target.container)
        options = physical_query(target, query)
        subresource = STREAMS[target.subresource]
        twin = self.twins.require_twin(pod, subresource.without_twin)
        command = tuple(value for name, value in options if name == "command")
        session = Session(user, target, pod, twin, command)
        with self.sessions.track(session):
            request = Request(exchange.method, PODS.path(namespace_of(twin), name_of(twin), target.subresource))
            try:
                response = await self.upgrade(request, options, upgrade_headers(exchange.header_pairs))
            except TransportError as error:
                log.warning("stream session not opened", pod=key_of(pod), error=str(error))
                raise unreachable_error(subresource, pod) from error
            if response.connection is None:
                refusal = error_from_body(response.status, response.body, action=str(request))
                raise translate_error(refusal, subresource, pod, twin)
            await self.run(exchange, session, protocol, response, response.connection)

    async def run(
        self,
        exchange: Exchange,
        session: Session,
        protocol: str,
        response: UpgradeResponse,
        backend: SocketConnection,
    ) -> None:
        """Accept the upgrade, and copy bytes until the session ends."""
        try:
            if response.headers.get("upgrade", "").lower() != protocol:
                raise internal_error("the physical cluster switched to a protocol that was not requested")
            if session.error:  # it was ended while the physical API server was connecting
                raise internal_error(session.error)
            session.protocol = negotiated_protocol(response.headers)
            client = exchange.upgrade(response_headers(response.headers))
            session.connections = (client, backend)
            await tunnel(client, backend, session.transferred)
        finally:
            backend.abort()
