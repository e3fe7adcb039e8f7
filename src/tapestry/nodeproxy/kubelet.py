"""The kubelet API server for all virtual nodes of a syncer, on one listener.

All virtual nodes have the same address and port.  The requested pod determines the virtual node.  Requests are
authorized as by any kubelet; see `tapestry.client.delegated_auth`.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

import msgspec

from tapestry.apiserver.serving.connection_limiter import ConnectionLimiter
from tapestry.apiserver.serving.http_connection import Exchange
from tapestry.apiserver.serving.http_handler import IDLE_SECONDS, credentials_of
from tapestry.apiserver.serving.http_server import HttpServer
from tapestry.client.delegated_auth import Caller, DelegatedAuth
from tapestry.kube.errors import ApiError, BadRequest, MethodNotAllowed, NotFound, Unavailable
from tapestry.kube.objects import Object, uid_of
from tapestry.nodeproxy.logs import LogRelay
from tapestry.nodeproxy.physical_errors import internal_error
from tapestry.nodeproxy.stream_relay import StreamRelay
from tapestry.nodeproxy.stream_requests import METHODS, StreamTarget, stream_target
from tapestry.nodeproxy.twins import TwinLookup
from tapestry.nodeproxy.usage import UsageReader, UsageRequest, UsageUnavailable, unknown_node_message, usage_request
from tapestry.process.addresses import Address
from tapestry.process.logs import logger

log = logger(__name__)

FORWARDED_URI = "x-forwarded-uri"
PROMETHEUS = "text/plain; version=0.0.4"
MAX_PARAMETERS = 100
READ_METHODS = ("GET", "HEAD")


@dataclass(frozen=True)
class KubeletServer:
    """Handlers of the kubelet API."""

    callers: DelegatedAuth
    twins: TwinLookup
    logs: LogRelay
    streams: StreamRelay
    usage: UsageReader
    connection_limiter: ConnectionLimiter = field(default_factory=ConnectionLimiter)

    async def handle(self, exchange: Exchange) -> None:
        path, _, query = exchange.target.decode("utf-8", "surrogateescape").partition("?")
        try:
            if (target := stream_target(path)) is not None:
                await self.stream(exchange, target, query)
            elif (requested := usage_request(path, exchange.headers.get(FORWARDED_URI, ""))) is not None:
                await self.respond_usage(exchange, requested)
            else:
                await self.respond(exchange, path, query)
        except ApiError as error:
            send_error(exchange, error)
        except ConnectionError:
            raise  # the client has disconnected
        except Exception:
            log.exception("kubelet request failed", path=path)
            if exchange.is_response_started:
                exchange.abort()
            else:
                send_error(exchange, internal_error("the syncer failed; see its log"))

    async def stream(self, exchange: Exchange, target: StreamTarget, query: str) -> None:
        """Serve exec, attach or port-forward, which require `create` whatever the method is."""
        pod = self.twins.pod(f"{target.namespace}/{target.pod}")
        user = await self.authorize(exchange, "create", pod)
        if pod is None or target.uid not in ("", uid_of(pod)):
            raise no_pod_error(target.pod)
        if exchange.method not in METHODS:
            raise MethodNotAllowed(405, "MethodNotAllowed", f"{exchange.method} is not allowed")
        await self.streams.relay(exchange, target, query, pod, user)

    async def respond(self, exchange: Exchange, path: str, query: str) -> None:
        match path.split("/")[1:]:
            case ["containerLogs", namespace, name, container]:
                pod = self.twins.pod(f"{namespace}/{name}")
                await self.authorize(exchange, "get" if exchange.method in READ_METHODS else "create", pod)
                if pod is None:
                    raise no_pod_error(name)
                if exchange.method not in READ_METHODS:
                    raise MethodNotAllowed(405, "MethodNotAllowed", f"{exchange.method} is not allowed")
                await self.logs.relay(exchange, query_options(query), pod, container)
            case _:
                await self.authorize(exchange, "create", None)
                raise NotFound(404, "NotFound", "a virtual node serves logs, exec, attach, port-forward and usage")

    async def respond_usage(self, exchange: Exchange, requested: UsageRequest) -> None:
        """Respond with the usage of one virtual node."""
        node, is_read = self.usage.source.node(requested.node), exchange.method in READ_METHODS
        verb, name = "get" if is_read else "create", requested.node if node is not None else ""
        await self.authorize_node(exchange, verb, requested.subresource, name)
        if node is None:
            raise NotFound(404, "NotFound", unknown_node_message(requested))
        if not is_read:
            raise MethodNotAllowed(405, "MethodNotAllowed", f"{exchange.method} is not allowed")
        try:
            if requested.subresource == "metrics":
                page, content_type = await self.usage.resource_metrics(node), PROMETHEUS
            else:
                page, content_type = await self.usage.stats_summary(node), "application/json"
        except UsageUnavailable as error:
            raise Unavailable(503, "ServiceUnavailable", str(error)) from error
        exchange.send(200, {"Content-Type": content_type}, page)

    async def authorize(self, exchange: Exchange, verb: str, pod: Object | None) -> str:
        """Return the name of the caller, who may use the node of the pod.

        This precedes any other response, so that others cannot learn which pods exist.
        """
        return await self.authorize_node(exchange, verb, "proxy", pod["spec"]["nodeName"] if pod is not None else "")

    async def authorize_node(self, exchange: Exchange, verb: str, subresource: str, node: str) -> str:
        """Return the name of the caller, who may use that subresource of the node, or of all nodes without a name."""
        credentials = credentials_of(exchange)
        caller = Caller(credentials.certificate, credentials.bearer_token)
        user = await self.callers.authorize(caller, verb, subresource, node)
        name: str = user.get("username", "")
        self.connection_limiter.assign(exchange.connection, name)
        return name


def query_options(query: str) -> dict[str, str]:
    """Return the first value of each parameter."""
    try:
        return dict(reversed(parse_qsl(query, max_num_fields=MAX_PARAMETERS)))
    except ValueError:
        raise BadRequest(400, "BadRequest", f"the query has over {MAX_PARAMETERS} parameters") from None


def no_pod_error(name: str) -> NotFound:
    return NotFound(404, "NotFound", f'pod "{name}" does not exist')


def send_error(exchange: Exchange, error: ApiError) -> None:
    """Respond with an error: as text, which API servers quote, or as a Status, which clients of streams decode."""
    headers = {"Content-Type": "text/plain; charset=utf-8"}
    body = error.message.encode("utf-8", "replace")
    if exchange.is_upgrade:
        headers, body = {"Content-Type": "application/json"}, msgspec.json.encode(error.status())
    if error.retry_after is not None:
        headers["Retry-After"] = f"{error.retry_after:.0f}"
    exchange.send(error.code, headers, body)


@asynccontextmanager
async def serve_kubelet(kubelet: KubeletServer, address: Address, tls: ssl.SSLContext) -> AsyncIterator[Address]:
    """Serve the kubelet API at the address that this yields, until the context exits."""
    async with asyncio.TaskGroup() as group:
        server = HttpServer(kubelet.handle, group, IDLE_SECONDS, kubelet.connection_limiter)
        await server.start(address.host, address.port, tls)
        try:
            ((_, port), *_) = server.addresses
            yield Address(address.host, port)
        finally:
            await server.stop()
