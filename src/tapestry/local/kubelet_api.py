"""HTTPS API of the local kubelets: logs and metrics.

One listener serves the kubelets of all nodes; the called address selects the node.  Callers authenticate with a client
certificate or a token, and the API server authorizes them, as for any kubelet.
"""

import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from aiohttp import web

from tapestry.apiserver.access.certificates import CertificateAuthority, server_ssl_context
from tapestry.client.client import Client
from tapestry.client.delegated_auth import DelegatedAuth
from tapestry.controller import Informer
from tapestry.kube.objects import Object, name_of
from tapestry.kube.pods import CONTAINER_FIELDS, containers_of
from tapestry.kube.times import parse_time
from tapestry.local.nodes import BY_ADDRESS
from tapestry.local.runtime import LogNotFound, LogQuery, Runtime
from tapestry.local.usage import metrics_page, stats_summary
from tapestry.nodeproxy.kubelet import authorize
from tapestry.process.probes import serve_app

TRUE_VALUES = ("true", "1", "")
LOOPBACK = b"lo"
PROMETHEUS = "text/plain; version=0.0.4"


@dataclass(frozen=True)
class KubeletServer:
    """HTTP handlers for the kubelets of `nodes`."""

    client: Client
    nodes: Informer
    pods: Informer
    runtime: Runtime
    now: Callable[[], datetime]

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self.log)
        app.router.add_get("/metrics/resource", self.metrics)
        app.router.add_get("/stats/summary", self.stats)
        app.router.add_route("*", "/{verb:exec|attach|run|portForward}/{rest:.*}", self.reject_streaming)
        return app

    async def log(self, request: web.Request) -> web.StreamResponse:
        node = await self.authorize(request, "proxy")
        names = request.match_info
        pod, container = self.pods.store.get(f"{names['namespace']}/{names['pod']}"), names["container"]
        if pod is None or pod["spec"]["nodeName"] != name_of(node):
            raise web.HTTPNotFound(text=f'pod "{names["pod"]}" does not exist')
        if all(each["name"] != container for each in containers_of(pod, CONTAINER_FIELDS)):
            raise web.HTTPNotFound(text=f'container "{container}" not found in pod "{names["pod"]}"')
        try:
            chunks = self.runtime.log(pod, container, log_query(request.query, self.now()))
        except LogNotFound as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        async for chunk in chunks:
            await response.write(chunk)
        return response

    async def metrics(self, request: web.Request) -> web.Response:
        node = await self.authorize(request, "metrics")
        page = metrics_page(self.runtime.usage(node), self.now())
        return web.Response(body=page.encode(), headers={"Content-Type": PROMETHEUS})

    async def stats(self, request: web.Request) -> web.Response:
        node = await self.authorize(request, "stats")
        return web.json_response(stats_summary(node, self.runtime.usage(node), self.now()))

    async def reject_streaming(self, request: web.Request) -> web.Response:
        node = await self.authorize(request, "proxy")
        verb = request.match_info["verb"]
        raise web.HTTPNotImplemented(text=f"{name_of(node)} does not support {verb}: only logs are available")

    # -- authorization

    async def authorize(self, request: web.Request, subresource: str) -> Object:
        """Return the called node; raise an HTTP error if the caller is not authorized."""
        node = self.requested_node(request)
        await authorize(DelegatedAuth(self.client), request, subresource, name_of(node))
        return node

    def requested_node(self, request: web.Request) -> Object:
        address = request.transport.get_extra_info("sockname")[0] if request.transport else ""
        node = next(self.nodes.store.iter_by(BY_ADDRESS, address), None)
        if node is None:
            raise web.HTTPNotFound(text=f"{address} is not the address of a node")
        return node


def log_query(query: Mapping[str, str], now: datetime) -> LogQuery:
    """Parse the query parameters; raise an HTTP error like a kubelet's if one is invalid."""

    def number(name: str) -> int | None:
        return int(query[name]) if name in query else None

    def flag(name: str) -> bool:
        return query.get(name) in TRUE_VALUES

    try:
        seconds, moment = number("sinceSeconds"), query.get("sinceTime")
        since = now - timedelta(seconds=seconds) if seconds is not None else parse_time(moment) if moment else None
        tail, limit = number("tailLines"), number("limitBytes")
    except ValueError as error:
        raise web.HTTPBadRequest(text=str(error)) from error
    return LogQuery(flag("follow"), flag("previous"), flag("timestamps"), tail, limit, since)


# -- listening


def loopback_socket(port: int = 0) -> socket.socket:
    """Return a socket for all loopback addresses of this machine only; port 0 means any free one."""
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, LOOPBACK)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("0.0.0.0", port))  # limited to the loopback device
    except BaseException:
        sock.close()
        raise
    return sock


def kubelet_tls(folder: Path, client_cas: Sequence[Path]) -> ssl.SSLContext:
    """Return a TLS context with its own certificate in `folder`; clients may use certificates of `client_cas`."""
    return server_ssl_context(*CertificateAuthority(folder).server_certificate(["localhost", "127.0.0.1"]), client_cas)


def serve_kubelet(kubelet: KubeletServer, sock: socket.socket, tls: ssl.SSLContext) -> AbstractAsyncContextManager[int]:
    """Serve the kubelet API while the context is open, then close the socket."""
    return serve_app(kubelet.app(), sock, tls)
