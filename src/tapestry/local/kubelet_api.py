"""HTTPS API of the local kubelets: logs, metrics, exec, attach and port-forward.

One listener serves the kubelets of all nodes; the called address selects the node.  Callers authenticate with a client
certificate or a token, and the API server authorizes them, as for any kubelet.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qsl, unquote

import msgspec

from tapestry.apiserver.access.certificates import CertificateAuthority, server_ssl_context
from tapestry.apiserver.serving.connection_limiter import ConnectionLimiter
from tapestry.apiserver.serving.http_connection import Exchange
from tapestry.apiserver.serving.http_handler import IDLE_SECONDS, credentials_of
from tapestry.apiserver.serving.http_server import HttpServer
from tapestry.client.client import Client
from tapestry.client.delegated_auth import Caller, DelegatedAuth
from tapestry.controller import Informer
from tapestry.kube.errors import ApiError, BadRequest, MethodNotAllowed, NotFound
from tapestry.kube.objects import EMPTY_MAPPING, Object, name_of, uid_of
from tapestry.kube.pods import CONTAINER_FIELDS, containers_of
from tapestry.kube.times import parse_time
from tapestry.kube.usage import PodUsage, metrics_page, stats_summary
from tapestry.local.kubelet_streams import StreamServer
from tapestry.local.nodes import BY_ADDRESS
from tapestry.local.runtime import LogNotFound, LogQuery, Runtime
from tapestry.process.logs import logger
from tapestry.streams.negotiation import UpgradeRejected

log = logger(__name__)

TRUE_VALUES = ("true", "1", "")
STREAM_METHODS = ("GET", "POST")
MAX_PARAMETERS = 1000
"""Maximum number of query parameters; each argument of a command is one."""
LOOPBACK = b"lo"
PROMETHEUS = "text/plain; version=0.0.4"


@dataclass(eq=False)
class KubeletServer:
    """HTTP handlers for the kubelets of `nodes`."""

    client: Client
    nodes: Informer
    pods: Informer
    runtime: Runtime
    now: Callable[[], datetime]
    connection_limiter: ConnectionLimiter = field(default_factory=ConnectionLimiter, init=False)
    streams: StreamServer = field(init=False)

    def __post_init__(self) -> None:
        self.streams = StreamServer(self.runtime)

    async def handle(self, exchange: Exchange) -> None:
        """Respond to a request."""
        try:
            await self.respond(exchange)
        except UpgradeRejected as error:
            send_text(exchange, error.status, str(error), error.headers)
        except ApiError as error:
            wait = {"Retry-After": f"{error.retry_after:.0f}"} if error.retry_after is not None else {}
            send_text(exchange, error.code, error.message, wait)
        except ConnectionError:
            raise  # the client has disconnected
        except Exception:
            log.exception("kubelet request failed", target=exchange.target.decode("latin-1"))
            if exchange.is_response_started:
                exchange.abort()
            else:
                send_text(exchange, 500, "the kubelet failed; see its log")

    async def respond(self, exchange: Exchange) -> None:
        path, _, text = exchange.target.decode("latin-1").partition("?")
        try:
            pairs = parse_qsl(text, keep_blank_values=True, errors="surrogateescape", max_num_fields=MAX_PARAMETERS)
        except ValueError:
            raise BadRequest(400, "BadRequest", f"the query has over {MAX_PARAMETERS} parameters") from None
        query = dict(reversed(pairs))
        match [unquote(each) for each in path.split("/")[1:]]:
            case ["containerLogs", namespace, name, container]:
                node = await self.authorize(exchange, "proxy")
                pod = self.pod_on(node, namespace, name, container=container)
                await self.log(exchange, pod, container, query)
            case ["metrics", "resource"]:
                await self.metrics(exchange, await self.authorize(exchange, "metrics"))
            case ["stats", "summary"]:
                await self.stats(exchange, await self.authorize(exchange, "stats"))
            case [("exec" | "attach") as verb, namespace, name, *uid, container] if len(uid) <= 1:
                node = await self.authorize(exchange, "proxy", "create")
                pod = self.pod_on(node, namespace, name, "".join(uid), container)
                command = [value for key, value in pairs if key == "command"]
                await (
                    self.streams.exec(exchange, pod, container, query, command)
                    if verb == "exec"
                    else self.streams.attach(exchange, pod, container, query)
                )
            case ["portForward", namespace, name, *uid] if len(uid) <= 1:
                node = await self.authorize(exchange, "proxy", "create")
                await self.streams.port_forward(exchange, self.pod_on(node, namespace, name, "".join(uid)))
            case _:
                await self.authorize(exchange, "proxy", "create")
                raise NotFound(404, "NotFound", "404 page not found")

    async def log(self, exchange: Exchange, pod: Object, container: str, query: Mapping[str, str]) -> None:
        try:
            chunks = self.runtime.log(pod, container, log_query(query, self.now()))
        except LogNotFound as error:
            raise BadRequest(400, "BadRequest", str(error)) from error
        await exchange.start_stream(200, {"Content-Type": "text/plain"})
        async for chunk in chunks:
            await exchange.send_chunk(chunk)
        exchange.end_stream()

    async def metrics(self, exchange: Exchange, node: Object) -> None:
        page = metrics_page(self.runtime.usage(node), self.now())
        await exchange.send_large(200, {"Content-Type": PROMETHEUS}, page.encode())

    async def stats(self, exchange: Exchange, node: Object) -> None:
        summary = stats_summary(node, self.runtime.usage(node), self.now())
        await exchange.send_large(200, {"Content-Type": "application/json"}, msgspec.json.encode(summary))

    def pod_on(self, node: Object, namespace: str, name: str, uid: str = "", container: str | None = None) -> Object:
        """Return a pod of the node; raise NotFound if it, or a given container of it, does not exist."""
        pod = self.pods.store.get(f"{namespace}/{name}")
        if pod is None or pod["spec"]["nodeName"] != name_of(node) or uid not in ("", uid_of(pod)):
            raise NotFound(404, "NotFound", f'pod "{name}" does not exist')
        if container is not None and all(each["name"] != container for each in containers_of(pod, CONTAINER_FIELDS)):
            raise NotFound(404, "NotFound", f'container "{container}" not found in pod "{name}"')
        return pod

    async def usages(self, nodes: Sequence[Object]) -> list[Sequence[PodUsage] | None]:
        """Return the usage of the pods on each node."""
        return [self.runtime.usage(each) for each in nodes]

    async def authorize(self, exchange: Exchange, subresource: str, verb: str = "") -> Object:
        """Return the called node; raise the error to respond with if the caller is not authorized.

        The verb is that of the method, unless one is given.
        """
        address = exchange.connection.local_address
        node = next(self.nodes.store.iter_by(BY_ADDRESS, address), None)
        if node is None:
            raise NotFound(404, "NotFound", f"{address} is not the address of a node")
        credentials = credentials_of(exchange)
        user = await DelegatedAuth(self.client).authorize(
            Caller(credentials.certificate, credentials.bearer_token),
            verb or ("get" if exchange.method == "GET" else "create"),
            subresource,
            name_of(node),
        )
        self.connection_limiter.assign(exchange.connection, user.get("username", ""))
        if exchange.method not in (STREAM_METHODS if verb else ("GET",)):
            raise MethodNotAllowed(405, "MethodNotAllowed", f"{exchange.method} is not allowed")
        return node


def send_text(exchange: Exchange, status: int, text: str, headers: Mapping[str, str] = EMPTY_MAPPING) -> None:
    """Respond with plain text, as kubelets do."""
    content_type = {"Content-Type": "text/plain; charset=utf-8"}
    exchange.send(status, {**content_type, **headers}, text.encode("utf-8", "replace"))


def log_query(query: Mapping[str, str], now: datetime) -> LogQuery:
    """Parse the query parameters; raise BadRequest if one is invalid."""

    def number(name: str) -> int | None:
        return int(query[name]) if name in query else None

    def flag(name: str) -> bool:
        return query.get(name) in TRUE_VALUES

    try:
        seconds, moment = number("sinceSeconds"), query.get("sinceTime")
        since = now - timedelta(seconds=seconds) if seconds is not None else parse_time(moment) if moment else None
        tail, limit = number("tailLines"), number("limitBytes")
    except (ValueError, OverflowError) as error:
        raise BadRequest(400, "BadRequest", str(error)) from error
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


@asynccontextmanager
async def serve_kubelet(kubelet: KubeletServer, sock: socket.socket, tls: ssl.SSLContext) -> AsyncIterator[None]:
    """Serve the kubelet API while the context is open, then close the socket."""
    with sock:
        async with asyncio.TaskGroup() as group:
            server = HttpServer(kubelet.handle, group, IDLE_SECONDS, kubelet.connection_limiter)
            await server.start_on(sock, tls)
            try:
                yield
            finally:
                await server.stop()
