"""The proxy subresources of pods, services and nodes.

Requests are forwarded with their body as it arrives, and responses likewise. Redirects and links in small HTML pages
lead through the proxy again. Requests to nodes reach only their kubelet. If the server has a host cluster, its syncer
connects pods and services, and answers for nodes.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import aiohttp
from yarl import URL

from tapestry.apiserver.core import api_errors, egress
from tapestry.apiserver.core.codec import media_type
from tapestry.apiserver.core.forwarding import (
    ProxiedBody,
    UpgradeServer,
    forwarded_headers,
    is_forwarded,
    request_target,
    unreachable,
)
from tapestry.apiserver.core.host_access import NodeProxy
from tapestry.apiserver.core.outgoing_http import connection_error_text
from tapestry.apiserver.core.pod_sessions import NamedSockets, OpenSocket, socket_session
from tapestry.apiserver.core.requests import Call, Target
from tapestry.apiserver.core.responses import BODYLESS_STATUSES, ApiResponse, ChunkedBody, SessionResponse, Stream
from tapestry.apiserver.core.sessions import Session
from tapestry.apiserver.subresources.connect_options import ConnectOptions
from tapestry.apiserver.subresources.html_links import LinkRewriter
from tapestry.apiserver.subresources.kubelet_client import KUBELET_PORT, KubeletClient
from tapestry.apiserver.subresources.proxy_locations import ProxyLocations, split_name

CONNECT_SECONDS = 30.0
MAX_HTML_BYTES = 1 << 20
"""Size in bytes up to which the links of an HTML page are rewritten."""


class HttpProxy:
    """Forward requests to pods, services and nodes. Close it in the event loop in which it was used."""

    def __init__(self, locations: ProxyLocations, kubelets: KubeletClient) -> None:
        self._locations = locations
        self._kubelets = kubelets
        self._sockets = NamedSockets(locations.store, kubelets.host)
        self._sessions: dict[egress.AddressCheck | OpenSocket, aiohttp.ClientSession] = {}
        """Sessions by the rule for their addresses, one for pods and one for kubelets, or by how they are connected."""

    async def connect(
        self, call: Call, target: Target, options: ConnectOptions, session: Session
    ) -> ApiResponse | SessionResponse:
        """Forward an authorized call. The session ends with the response."""
        if target.info.resource.name == "nodes" and (proxy := self._kubelets.host.nodes()) is not None:
            return await connect_node(proxy, call, target, options, session)
        scheme, server = self.server(target)
        public_path = f"{call.base_path}{call.path}"
        prefix = public_path.removesuffix(options.path).rstrip("/")
        rewriter = LinkRewriter(prefix, (server.authority, call.headers.get("host", "")))
        if not options.path and not call.path.endswith("/") and call.method in ("GET", "HEAD") and not call.is_upgrade:
            return ApiResponse(301, b"", headers={"Location": request_target(call, f"{public_path}/")})
        url = request_target(call, f"/{options.path}")
        headers = [
            *forwarded_headers(call),
            ("Host", call.headers.get("host") or server.authority),
            ("X-Forwarded-Uri", request_target(call, public_path).partition("?")[0]),
        ]
        if call.is_upgrade:
            return await session.upgrade(server, call.method, url, headers, call.headers["upgrade"])
        response = await self._send(call, scheme, server, url, headers)
        return await proxied_response(call, response, rewriter, session)

    def server(self, target: Target) -> tuple[str, UpgradeServer]:
        """Return the scheme and the server that a target names. Raises BadRequest, NotFound or Unavailable."""
        if target.info.resource.name != "nodes" and self._kubelets.host.pods() is not None:
            scheme, host, port = self._locations.named(target)
            tls = unverified_context() if scheme == "https" else None
            return scheme, UpgradeServer(host, port, tls, self._locations.check, open_socket=self._sockets.open)
        if target.info.resource.name != "nodes":
            location = (
                self._locations.pod(target) if target.info.resource.name == "pods" else self._locations.service(target)
            )
            tls = unverified_context() if location.scheme == "https" else None
            return location.scheme, UpgradeServer(location.host, location.port, tls, self._locations.check)
        _, name, _ = split_name(target.name, "node")
        kubelet = self._kubelets.server(name)
        checked_node(target, kubelet.port)
        return "https", kubelet

    async def _send(
        self, call: Call, scheme: str, server: UpgradeServer, url: str, headers: list[tuple[str, str]]
    ) -> aiohttp.ClientResponse:
        if call.body_reader is not None and "content-length" in call.headers:
            headers = [*headers, ("Content-Length", call.headers["content-length"])]
        try:
            return await self._client_session(server).request(
                call.method,
                URL(f"{scheme}://{server.authority}{url}", encoded=True),
                data=call.body_reader.chunks() if call.body_reader is not None else call.body or None,
                headers=headers,
                skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
                ssl=server.tls or False,
                allow_redirects=False,
            )
        except TimeoutError as error:
            raise unreachable(f"dial tcp {server.authority}: i/o timeout") from error
        except aiohttp.ClientError as error:
            raise unreachable(connection_error_text(error)) from error
        except (OSError, ValueError) as error:
            raise unreachable(str(error)) from error

    def _client_session(self, server: UpgradeServer) -> aiohttp.ClientSession:
        key = server.open_socket or server.check
        if key not in self._sessions:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
            if server.open_socket is not None:
                self._sessions[key] = socket_session(server.open_socket, timeout=timeout)
            else:
                self._sessions[key] = egress.checked_session(server.check, timeout=timeout)
        return self._sessions[key]

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()


async def connect_node(
    proxy: NodeProxy, call: Call, target: Target, options: ConnectOptions, session: Session
) -> ApiResponse:
    """Forward a read to a node of the host cluster.

    Streams are refused: a user who may only read from nodes would get a shell in each pod.
    """
    node = checked_node(target, KUBELET_PORT)
    if call.is_upgrade:
        raise api_errors.bad_request("this node accepts no streams: use exec, attach or portforward of the pod")
    if call.method not in ("GET", "HEAD"):
        raise api_errors.method_not_allowed()
    found = await proxy.get(node, f"/{options.path}", call.query)
    stream = EndingStream(found.stream, session.slot.release) if found.stream is not None else None
    return ApiResponse(found.status, found.body, found.content_type, found.headers, stream)


def checked_node(target: Target, kubelet_port: int) -> str:
    """Return the name of the node of a target. Raises BadRequest for a port that is not the kubelet's."""
    _, name, port = split_name(target.name, "node")
    if port not in ("", str(kubelet_port)):
        raise api_errors.bad_request(f"nodes/proxy connects only to the kubelet: use port {kubelet_port}, or none")
    return name


@dataclass(frozen=True, slots=True)
class EndingStream:
    """A stream with something to release at its end."""

    stream: Stream
    release: Callable[[], None]

    def chunks(self) -> AsyncGenerator[bytes, None]:
        return self.stream.chunks()

    def end(self) -> None:
        self.stream.end()
        self.release()


@cache
def unverified_context() -> ssl.SSLContext:
    """A context for servers of pods, whose certificates are not verified, as in Kubernetes. It has no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def proxied_response(
    call: Call, response: aiohttp.ClientResponse, rewriter: LinkRewriter, session: Session
) -> ApiResponse:
    """Return the response of a proxied server; its body is passed on as it arrives, except small HTML pages."""
    content_type = response.headers.get("Content-Type", "application/octet-stream")
    headers = dict(response_headers(response.headers, rewriter))
    if response.status < 200:
        response.close()
        raise unreachable(f"unexpected status {response.status}")
    cookies = response.headers.getall("Set-Cookie", ())
    body = ProxiedBody(response, on_end=session.slot.release)
    if call.method == "HEAD" or response.status in BODYLESS_STATUSES:
        return ApiResponse(response.status, b"", content_type, headers, body, cookies)
    length, is_plain = response.content_length, "Content-Encoding" not in response.headers
    if media_type(content_type) != "text/html" or not is_plain or length is None or length > MAX_HTML_BYTES:
        return ApiResponse(response.status, b"", content_type, headers, body, cookies)
    try:
        page = await response.read()
    except aiohttp.ClientError as error:
        raise unreachable(connection_error_text(error)) from error
    finally:
        response.close()
        session.slot.release()
    text = page.decode("utf-8", "surrogateescape")
    rewritten = (await asyncio.to_thread(rewriter.html, text)).encode("utf-8", "surrogateescape")
    headers["Content-Length"] = str(len(rewritten))
    return ApiResponse(response.status, b"", content_type, headers, ChunkedBody([rewritten]), cookies)


def response_headers(headers: Mapping[str, str], rewriter: LinkRewriter) -> Iterator[tuple[str, str]]:
    """Yield the headers that are passed on; values of a repeated header are joined."""
    names = {name.lower(): None for name in headers}
    for name in names:
        if is_forwarded(name):
            values = [value for each, value in headers.items() if each.lower() == name]
            value = rewriter.link(values[0]) if name == "location" else ", ".join(values)
            yield name.title(), value
