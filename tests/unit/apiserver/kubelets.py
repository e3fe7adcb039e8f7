"""An API server on a socket with a kubelet whose answers the test decides, and clients that request upgrades."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tapestry.apiserver.access.certificates import CertificateAuthority, server_ssl_context
from tapestry.apiserver.app import RunningServer, run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig, KubeletClientConfig
from tapestry.apiserver.serving.connection_limiter import ConnectionLimiter
from tapestry.apiserver.serving.http_connection import Exchange
from tapestry.apiserver.serving.http_server import HttpServer
from tapestry.kube.objects import Object
from tapestry.streams.connection import SocketConnection
from tapestry.streams.upgrade import UpgradeResponse, dial, request_upgrade

from .conftest import ServerClient

SECONDS = 30.0
PODS = "/api/v1/namespaces/default/pods"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
SPDY, V5, V4, TUNNEL = "SPDY/3.1", "v5.channel.k8s.io", "v4.channel.k8s.io", "SPDY/3.1+portforward.k8s.io"
KEY = base64.b64encode(bytes(16)).decode()
USERS = {"admin": "system:masters", "viewer": "viewers", "developer": "developers"}


@dataclass
class FakeKubelet:
    """A kubelet that accepts the upgrades to `protocols`, sends back what it gets, and remembers requests."""

    protocols: set[str] = field(default_factory=lambda: {SPDY, V4})
    requests: list[Exchange] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    error: tuple[int, bytes] | None = None
    answer: str = ""
    """The subprotocol that is answered, if it is not the requested one."""

    async def handle(self, exchange: Exchange) -> None:
        self.requests.append(exchange)
        if self.error is not None:
            exchange.send(self.error[0], {"Content-Type": "text/plain"}, self.error[1])
            return
        if not exchange.is_upgrade:
            exchange.send(200, {"Content-Type": "text/plain"}, exchange.target)
            return
        requested = exchange.headers.get("sec-websocket-protocol", "")
        if (requested or exchange.headers["upgrade"]) not in self.protocols:
            exchange.send(403, {"Content-Type": "text/plain"}, b"protocol not supported")
            return
        headers = {"Upgrade": exchange.headers["upgrade"]}
        if requested:
            headers |= {"Sec-WebSocket-Accept": "accepted", "Sec-WebSocket-Protocol": self.answer or requested}
        connection = exchange.upgrade(headers)
        try:
            while data := await connection.read():
                await connection.write(data)
        finally:
            self.ended.set()

    @property
    def targets(self) -> list[tuple[str, str]]:
        return [(each.method, each.target.decode()) for each in self.requests]


@dataclass(frozen=True)
class Streams:
    """The API server and its kubelet."""

    running: RunningServer
    call: ServerClient
    kubelet: FakeKubelet
    tls: ssl.SSLContext
    audit_file: Path
    connections: list[SocketConnection] = field(default_factory=list)
    """Upgraded connections, which end with the test."""

    @property
    def port(self) -> int:
        return int(self.running.addresses["secure"].rpartition(":")[2])

    async def connect(self) -> SocketConnection:
        return await dial("localhost", self.port, self.tls)

    async def upgrade(
        self, path: str, headers: Sequence[tuple[str, str]] = (), *, user: str = "admin", method: str = "POST"
    ) -> UpgradeResponse:
        credentials = [("Authorization", f"Bearer token-of-{user}")] if user else []
        basic = [("Host", "localhost"), ("Connection", "Upgrade"), *credentials]
        connection = await self.connect()
        self.connections.append(connection)
        return await request_upgrade(connection, method, path, [*basic, *headers])

    async def spdy(self, path: str, **options: Any) -> UpgradeResponse:
        return await self.upgrade(path, [("Upgrade", SPDY), ("X-Stream-Protocol-Version", V4)], **options)

    async def websocket(self, path: str, *subprotocols: str, user: str = "admin") -> UpgradeResponse:
        return await self.upgrade(path, websocket_headers(*subprotocols), user=user, method="GET")

    async def raw(self, text: str) -> tuple[int, bytes]:
        """Send bytes, and return the status and everything that the server sends until it closes."""
        connection = await self.connect()
        await connection.write(text.encode("latin-1"))
        received = b""
        while data := await connection.read():
            received += data
        connection.abort()
        return int(received.split(b" ", 2)[1]) if received else 0, received

    async def audit_events(self, count: int) -> list[Object]:
        """Wait until the audit log has `count` ends of sessions, and return them."""
        while True:
            lines = self.audit_file.read_text().splitlines() if self.audit_file.exists() else []
            events = [event for event in map(json.loads, lines) if event["stage"] == "ResponseComplete"]
            found = [event for event in events if event.get("responseStatus", {}).get("code") == 101]
            if len(found) >= count:
                return found
            await asyncio.sleep(0)


def websocket_headers(*subprotocols: str) -> list[tuple[str, str]]:
    handshake = [("Upgrade", "websocket"), ("Sec-WebSocket-Key", KEY), ("Sec-WebSocket-Version", "13")]
    return [*handshake, *([("Sec-WebSocket-Protocol", ", ".join(subprotocols))] if subprotocols else [])]


@asynccontextmanager
async def api_server_with_kubelet(folder: Path, **settings: Any) -> AsyncIterator[Streams]:
    """An API server with a pod `web` on a node with a fake kubelet.

    `viewer` may get everything, and `developer` may create streams, and proxy, in the namespace default.
    """
    authority, kubelet = CertificateAuthority(folder / "pki"), FakeKubelet()
    tokens, audit_file = folder / "tokens.csv", folder / "audit.log"
    tokens.write_text("".join(f"token-of-{name},{name},{name},{group}\n" for name, group in USERS.items()))
    tokens.chmod(0o600)
    kubelet_config = KubeletClientConfig(certificate_authority=str(authority.certificate_file))
    config = ApiServerConfig(
        backend="memory",
        file_rootpath=str(folder),
        secure_address="127.0.0.1:0",
        pod_accounts=False,
        token_auth_file=str(tokens),
        audit_log_path=str(audit_file),
        kubelet=kubelet_config,
        **settings,
    )
    authority.certificate_pem()
    server_tls = server_ssl_context(*authority.server_certificate(["127.0.0.1", "localhost"]), [])
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
        kubelet_server = HttpServer(kubelet.handle, group, 10.0, ConnectionLimiter())
        await kubelet_server.start("127.0.0.1", 0, server_tls)
        try:
            async with run_apiserver(config) as running:
                call = ServerClient(running.server, running.account_tokens)
                await create_objects(call, kubelet_server.addresses[0][1])
                tls = ssl.create_default_context(cafile=str(authority.certificate_file))
                streams = Streams(running, call, kubelet, tls, audit_file)
                yield streams
                for each in streams.connections:
                    each.abort()
        finally:
            await kubelet_server.stop()


async def create_objects(call: ServerClient, kubelet_port: int) -> None:
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
    }
    await call.made("/api/v1/nodes", {"metadata": {"name": "n1"}, "status": status})
    await call.made(PODS, pod_body("web"))
    for role, group, verbs in (
        ("view", "viewers", ["get", "list", "watch"]),
        ("develop", "developers", ["create", "get"]),
    ):
        resources = ["pods", *(f"pods/{each}" for each in ("exec", "attach", "portforward", "proxy"))]
        rule = {"apiGroups": [""], "resources": resources, "verbs": verbs}
        await call.made(f"{RBAC}/namespaces/default/roles", {"metadata": {"name": role}, "rules": [rule]})
        subject = {"kind": "Group", "name": group, "apiGroup": "rbac.authorization.k8s.io"}
        reference = {"kind": "Role", "name": role, "apiGroup": "rbac.authorization.k8s.io"}
        binding = {"metadata": {"name": role}, "subjects": [subject], "roleRef": reference}
        await call.made(f"{RBAC}/namespaces/default/rolebindings", binding)


def pod_body(name: str, *containers: str, node: str = "n1", **spec: Any) -> Object:
    names = containers or ("main",)
    listed = [{"name": each, "image": "i"} for each in names]
    return {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": listed, **spec}}
