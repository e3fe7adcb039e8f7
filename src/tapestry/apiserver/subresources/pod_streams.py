"""exec, attach and portforward: streams between a client and the kubelet of a pod.

The kubelet is first asked for the protocol of the client. If it accepts, all bytes are passed on unchanged. If it
refuses, which is remembered for a while, a WebSocket client is translated to SPDY, as in kube-apiserver.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

import msgspec

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.forwarding import UpgradeServer, forward_upgrade, refused_upgrade
from tapestry.apiserver.core.host_access import NodeProxy
from tapestry.apiserver.core.requests import Call, Target
from tapestry.apiserver.core.responses import ApiResponse, SessionResponse
from tapestry.apiserver.core.sessions import Session
from tapestry.apiserver.core.store import Store
from tapestry.apiserver.subresources.connect_options import ConnectOptions
from tapestry.apiserver.subresources.kubelet_client import KubeletClient, container_name
from tapestry.kube.errors import ApiError
from tapestry.kube.objects import Object, value_at
from tapestry.streams.negotiation import PROTOCOL_HEADER, SPDY, UpgradeRejected, header_values
from tapestry.streams.port_forward import PORT_FORWARD, TUNNEL
from tapestry.streams.remote_command import V4, WEBSOCKET_PROTOCOLS, RequestedStreams
from tapestry.streams.translator import translate_port_forward, translate_remote_command
from tapestry.streams.upgrade import UpgradeResponse
from tapestry.streams.websocket import websocket_handshake

REFUSAL_SECONDS = 600.0
"""Seconds for which a refused protocol is not offered to a kubelet again."""
MAX_REFUSALS = 10_000
WEBSOCKET = "websocket"
KUBELET_PATHS = {"exec": "exec", "attach": "attach", "portforward": "portForward"}
SPDY_PROTOCOLS = {"exec": V4, "attach": V4, "portforward": PORT_FORWARD}
"""Protocol of the translated streams, by subresource."""
RESPONSE_HEADERS = ("Upgrade", "Sec-WebSocket-Accept", "Sec-WebSocket-Protocol", PROTOCOL_HEADER)
MAX_COMMAND_LENGTH = 4096
"""Length up to which the command is in the audit log; the URL of the request contains all of it."""

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class StreamRequest:
    """The protocol that a client requests."""

    protocol: str
    """Name of the protocol for the audit log: `websocket v5.channel.k8s.io`, or `SPDY/3.1`."""
    headers: Headers
    """Headers that request it from the kubelet."""
    subprotocols: tuple[str, ...] = ()
    """WebSocket subprotocols, one of which the kubelet must select."""
    translatable: str = ""
    """The subprotocol that can be translated, if there is one."""


def stream_request(call: Call, target: Target) -> StreamRequest:
    """Return the protocol that a call requests. Raises BadRequest if the request is not an upgrade."""
    pairs = call.header_pairs or tuple(call.headers.items())
    upgrades = [value for name, value in pairs if name == "upgrade"]
    if not call.is_upgrade or len(upgrades) != 1:
        raise api_errors.bad_request("Upgrade request required")
    protocol = upgrades[0].lower()
    if protocol == SPDY.lower():
        versions = tuple((PROTOCOL_HEADER, value) for name, value in pairs if name == PROTOCOL_HEADER.lower())
        return StreamRequest(SPDY, (("Upgrade", SPDY), *versions))
    if protocol != WEBSOCKET:
        raise api_errors.bad_request("Upgrade request required")
    requested = header_values(call.headers.get("sec-websocket-protocol", ""))
    supported = (TUNNEL,) if target.subresource == "portforward" else WEBSOCKET_PROTOCOLS
    translatable = next((each for each in supported if each in requested), "")
    subprotocols = (translatable,) if translatable else tuple(requested)
    headers = (
        ("Upgrade", WEBSOCKET),
        *((name, call.headers[name.lower()]) for name in WEBSOCKET_HEADERS if name.lower() in call.headers),
        *((("Sec-WebSocket-Protocol", ", ".join(subprotocols)),) if subprotocols else ()),
    )
    return StreamRequest(f"{WEBSOCKET} {' '.join(subprotocols)}".strip(), headers, subprotocols, translatable)


WEBSOCKET_HEADERS = ("Sec-WebSocket-Key", "Sec-WebSocket-Version", "Origin")


def is_accepted(request: StreamRequest, response: UpgradeResponse) -> bool:
    """Return whether the server has switched to a protocol that the client understands."""
    if request.protocol == SPDY:
        return response.headers.get("upgrade", "").lower() == SPDY.lower()
    return response.headers.get("sec-websocket-protocol", "") in (request.subprotocols or ("",))


@dataclass
class RefusedProtocols:
    """Protocols that servers have refused recently."""

    now: Callable[[], float]
    expiry: dict[tuple[str, str], float] = field(default_factory=dict)

    def add(self, server: str, protocol: str) -> None:
        if len(self.expiry) >= MAX_REFUSALS:
            self.expiry.clear()
        self.expiry[server, protocol] = self.now() + REFUSAL_SECONDS

    def __contains__(self, key: tuple[str, str]) -> bool:
        return self.now() < self.expiry.get(key, 0.0)


@dataclass(frozen=True)
class PodStreams:
    """Connect clients to the kubelets of pods."""

    store: Store
    kubelets: KubeletClient
    refused: RefusedProtocols

    async def connect(
        self, call: Call, target: Target, options: ConnectOptions, session: Session
    ) -> ApiResponse | SessionResponse:
        """Open a stream for an authorized call. Errors before the upgrade are those of kube-apiserver."""
        version = self.store.get(*target.key)
        if version is None:
            raise api_errors.not_found(target.info.resource, target.name)
        pod: Object = msgspec.json.decode(version.raw)
        segments = [KUBELET_PATHS[target.subresource], target.namespace, target.name]
        if target.subresource != "portforward":
            segments.append(container_name(pod, options.container))
            session.annotate(container=segments[-1])
        if options.command:
            session.annotate(command=msgspec.json.encode(options.command).decode()[:MAX_COMMAND_LENGTH])
        node = value_at(pod, "spec", "nodeName", default="")
        if not node:
            raise api_errors.bad_request(f"pod {target.name} does not have a host assigned")
        path = "/".join(["", *(quote(each, safe="") for each in segments)])
        query = options.kubelet_query()
        upgrade = self._upgrade(call, node, f"{path}?{query}" if query else path)
        return await self._negotiate(call, target, options, stream_request(call, target), upgrade, session)

    def _upgrade(self, call: Call, node: str, path: str) -> "KubeletUpgrade | NodeProxyUpgrade":
        if (proxy := self.kubelets.host.nodes()) is not None:
            return NodeProxyUpgrade(proxy, node, path, call.user.name)
        return KubeletUpgrade(self.kubelets.server(node), path, agent_header(call))

    async def _negotiate(
        self,
        call: Call,
        target: Target,
        options: ConnectOptions,
        request: StreamRequest,
        upgrade: "KubeletUpgrade | NodeProxyUpgrade",
        session: Session,
    ) -> ApiResponse | SessionResponse:
        key = upgrade.authority, request.protocol
        own_headers = handshake_headers(call, request.translatable) if request.translatable else {}
        if not request.translatable or key not in self.refused:
            response = await upgrade.send(call.method, request.headers)
            if response.connection is not None:
                if not is_accepted(request, response):
                    response.connection.abort()
                    raise api_errors.internal_error("the kubelet has switched to a protocol that was not requested")
                session.annotate(protocol=request.protocol, backend_protocol=request.protocol)
                headers = {
                    name: response.headers[name.lower()]
                    for name in RESPONSE_HEADERS
                    if name.lower() in response.headers
                }
                return session.tunnel(response.connection, headers)
            if not request.translatable:
                return refused_upgrade(response)
        version = SPDY_PROTOCOLS[target.subresource]
        response = await upgrade.send("POST", (("Upgrade", SPDY), (PROTOCOL_HEADER, version)))
        if response.connection is None:
            return refused_upgrade(response)
        self.refused.add(*key)
        session.annotate(protocol=request.protocol, backend_protocol=f"{SPDY} {version}")
        backend = response.connection
        if target.subresource == "portforward":
            return session.response(
                backend, own_headers, lambda client: translate_port_forward(client, backend, session.transferred)
            )
        streams = RequestedStreams(options.stdin, options.stdout, options.stderr and not options.tty, options.tty)
        return session.response(
            backend,
            own_headers,
            lambda client: translate_remote_command(
                client, request.translatable, backend, streams, session.transferred
            ),
        )


@dataclass(frozen=True)
class KubeletUpgrade:
    """An upgrade request to a kubelet, without its protocol."""

    server: UpgradeServer
    target: str
    headers: Headers

    @property
    def authority(self) -> str:
        return self.server.authority

    async def send(self, method: str, headers: Sequence[tuple[str, str]]) -> UpgradeResponse:
        return await forward_upgrade(
            self.server, method, self.target, [("Host", self.server.authority), *self.headers, *headers]
        )


@dataclass(frozen=True)
class NodeProxyUpgrade:
    """An upgrade request to a node of the host cluster, without its protocol."""

    proxy: NodeProxy
    node: str
    target: str
    user: str

    @property
    def authority(self) -> str:
        return self.node

    async def send(self, method: str, headers: Sequence[tuple[str, str]]) -> UpgradeResponse:
        return await self.proxy.upgrade(self.node, method, self.target, headers, self.user)


def agent_header(call: Call) -> Headers:
    agent = call.headers.get("user-agent", "")
    return (("User-Agent", agent),) if agent else ()


def handshake_headers(call: Call, subprotocol: str) -> dict[str, str]:
    """Return the headers that accept a WebSocket client. Raises ApiError if its handshake is invalid."""
    try:
        _, headers = websocket_handshake(call.method, call.headers, (subprotocol,))
    except UpgradeRejected as error:
        raise ApiError(error.status, "BadRequest", str(error)) from error
    return headers
