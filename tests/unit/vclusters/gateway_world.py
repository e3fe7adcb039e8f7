"""A gateway with a small service behind it, for tests of the checks and the listeners."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tapestry.apis.projects import AccessKeySpec, Member, ProjectSpec
from tapestry.vclusters.access.authentication import Authenticator, Credentials
from tapestry.vclusters.access.keys import new_key
from tapestry.vclusters.access.rate_limits import Rate, RateLimiter
from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.audit.chained_log import open_log
from tapestry.vclusters.audit.queries import newest_first
from tapestry.vclusters.audit.records import AuditRecord
from tapestry.vclusters.errors import ServiceError
from tapestry.vclusters.gateway import AdmittedCall, Gateway, IncomingCall
from tapestry.vclusters.rest_routes import RPCS

NOW = datetime(2031, 5, 1, tzinfo=UTC)
PROJECTS = {"shop": "shop", "other": "other"}
"""Projects of namespaces."""
FAST = Rate(1e6, 10**6)


@dataclass
class Clock:
    time: datetime = NOW

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return (self.time - NOW).total_seconds()

    def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


@dataclass
class EchoService:
    """A service that answers with an empty message, and remembers the requests."""

    calls: list[AdmittedCall] = field(default_factory=list)
    error: Exception | None = None
    audited: list[int] = field(default_factory=list)
    gateway: Gateway | None = None
    is_blocked: bool = False

    def project_of(self, method: str, request: Message) -> str | None:
        namespace = getattr(request, "namespace", None)
        if namespace is None or (not namespace and method in ("ListVClusters", "WatchVCluster")):
            return ""
        return PROJECTS.get(namespace)

    async def call(self, call: AdmittedCall) -> Message:
        self.calls.append(call)
        if self.gateway is not None:
            self.audited.append(self.gateway.audit.head[0])
        if self.error is not None:
            raise self.error
        if self.is_blocked:
            await asyncio.Event().wait()
        response = GetMessageClass(RPCS[call.method].output_type)()
        if call.method == "GetVCluster":
            response.vcluster.name, response.vcluster.etag = call.request.name, "abc"
        if call.method == "CreateVCluster":
            response.operation_id = "op-1"
        return response

    async def stream(self, call: AdmittedCall) -> AsyncGenerator[Message, None]:
        self.calls.append(call)
        for name in ("one", "two"):
            yield api.WatchVClusterResponse(type=1, vcluster=api.VCluster(name=name, resource_version=name))
        if self.error is not None:
            raise self.error


@dataclass
class GatewayWorld:
    gateway: Gateway
    service: EchoService
    clock: Clock
    folder: Path
    keys: dict[str, str]
    """Text of the access key of each user."""
    stored: dict[str, AccessKeySpec]
    used: list[str]
    """Ids of the keys of all authenticated requests."""

    def credentials(self, user: str) -> Credentials:
        return Credentials(f"Bearer {self.keys[user]}")

    async def call(self, method: str, user: str = "alice", address: str = "192.0.2.1", **fields: object) -> Message:
        request = GetMessageClass(RPCS[method].input_type)(**fields)
        credentials = self.credentials(user) if user else Credentials()
        return (await self.gateway.call(IncomingCall(method, request, credentials, address)))[0]

    async def reason(self, method: str, user: str = "alice", address: str = "192.0.2.1", **fields: object) -> str:
        """Return the reason of an error, or nothing."""
        try:
            await self.call(method, user, address, **fields)
        except ServiceError as error:
            return error.reason
        return ""

    async def records(self) -> list[AuditRecord]:
        """Return the audit records of requests, oldest first."""
        await self.gateway.audit.wait_until_durable()
        return list(newest_first(self.folder, matches=lambda each: each.stage in ("received", "completed")))[::-1]


@asynccontextmanager
async def gateway_world(folder: Path, service: EchoService | None = None) -> AsyncIterator[GatewayWorld]:
    """Serve two projects: alice is an editor of `shop`, vera a viewer of it, and root is a platform admin."""
    clock, service = Clock(), service or EchoService()
    projects = [
        (
            "shop",
            ProjectSpec(
                members=(
                    Member(kind="User", name="alice", role="editor"),
                    Member(kind="User", name="vera", role="viewer"),
                )
            ),
        ),
        ("other", ProjectSpec()),
    ]
    keys: dict[str, str] = {}
    stored: dict[str, AccessKeySpec] = {}
    for user in ("alice", "vera", "root", "late"):
        key = new_key()
        expires = clock.now() + timedelta(hours=1) if user == "late" else None
        stored[key.id] = AccessKeySpec(
            principal=user, secret_sha256=key.hash, platform_admin=user == "root", expire_time=expires
        )
        keys[user] = key.text
    used: list[str] = []
    async with open_log(folder / "instance-1", "instance-1", clock.now) as audit:
        limiter = RateLimiter(clock.monotonic)
        authenticator = Authenticator(stored.get, lambda: projects, lambda _: None, clock.now, used.append)
        gateway = Gateway(service, authenticator, audit, clock.now, limiter)
        service.gateway = gateway
        yield GatewayWorld(gateway, service, clock, folder, keys, stored, used)
