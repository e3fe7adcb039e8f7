"""The checks and audit records of every request, by REST and by gRPC.

    limit of its address -> authentication -> authorization -> limit of its identity -> audit -> service -> audit

A rejected request is recorded, too. A request with effects reaches the service only when its record is on disk.
"""

import hashlib
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address, ip_network
from typing import Any, Protocol
from uuid import uuid4

from google.protobuf.message import Message
from msgspec.structs import replace

from tapestry.process.counters import Counter
from tapestry.process.logs import logger
from tapestry.vclusters.access.authentication import Authenticator, Credentials
from tapestry.vclusters.access.rate_limits import (
    ADDRESS_RATE,
    RATES,
    READ,
    WRITE,
    Allowance,
    Rate,
    RateLimiter,
    class_of,
)
from tapestry.vclusters.access.roles import Caller, Decision, decide
from tapestry.vclusters.audit.chained_log import AuditUnavailableError, ChainedLog
from tapestry.vclusters.audit.records import AuditEvent
from tapestry.vclusters.errors import (
    Code,
    ServiceError,
    internal,
    not_found,
    permission_denied,
    rate_limited,
    unavailable,
)

log = logger(__name__)

REQUESTS = Counter(
    "tapestry_vclusters_requests_total", "Requests to the lifecycle service, by method and code.", "method", "code"
)
LIMITED_INTERVAL = timedelta(seconds=10)
"""Time between two audit records about an address that sends too many requests."""
MAX_LIMITED = 10_000
RESOURCE_PATTERN = re.compile("^[A-Z][a-z]+")
READERS_OF_AUDIT = frozenset({"ListAuditRecords", "ExportAuditRecords", "VerifyAuditRecords"})
"""Methods that read the audit log from disk. They wait until it has all records so far."""
VISIBLE_METHODS = frozenset({"ListVClusters", "WatchVCluster", "ListSnapshots", "ListOperations", "ListProjects"})
"""Methods that return what the caller may see of all projects, unless the request names one."""


@dataclass(frozen=True)
class IncomingCall:
    """A request, as a listener has received it."""

    method: str
    request: Message
    credentials: Credentials
    address: str
    user_agent: str = ""
    protocol: str = "rest"
    is_etag_header: bool = False
    """The etag of the request was in the header If-Match."""
    timeout: float | None = None
    """Seconds until the client gives up."""
    target: str = ""
    """HTTP method and path of a request to the API of a virtual cluster."""
    is_proxied_write: bool = False
    """True if that request may change something."""

    @property
    def kind(self) -> str:
        """Class of the request, which decides about its limit and its audit record."""
        return WRITE if self.is_proxied_write else class_of(self.method)


@dataclass
class Outcome:
    """Result of a request, as its record states it."""

    operation: str = ""
    http_status: int = 0
    """Status with which a virtual cluster has begun its response; 0 before that, and for other requests."""


@dataclass(frozen=True)
class AdmittedCall:
    """A request that the caller may make."""

    incoming: IncomingCall
    caller: Caller
    project: str
    """Project in which it acts; empty if it acts in none, or in all that the caller sees."""
    id: str

    @property
    def method(self) -> str:
        return self.incoming.method

    @property
    def request(self) -> Any:
        return self.incoming.request


Respond = Callable[[AdmittedCall], Awaitable[Message]]
"""A method of the contract, for callers that may call it. Raises ServiceError."""


class Service(Protocol):
    """The methods of the contract, for callers that may call them."""

    def project_of(self, method: str, request: Message) -> str | None:
        """Return the project in which a request acts: empty if in none, and None if what it names does not exist."""

    async def call(self, call: AdmittedCall) -> Message: ...

    def stream(self, call: AdmittedCall) -> AsyncGenerator[Message, None]: ...


@dataclass
class Gateway:
    """The checks and records of all requests. The listeners translate the results."""

    service: Service
    authenticator: Authenticator
    audit: ChainedLog
    now: Callable[[], datetime]
    limiter: RateLimiter
    rates: Mapping[str, Rate] = field(default_factory=lambda: RATES)
    """Limits of an identity, by class of method."""
    address_rate: Rate = ADDRESS_RATE
    _limited: OrderedDict[str, datetime] = field(default_factory=OrderedDict, init=False)
    """Time of the last audit record about each address that sends too many requests."""

    async def call(self, call: IncomingCall) -> tuple[Message, Allowance]:
        """Answer a request, and return what is left of its rate limit. Raises ServiceError."""
        admitted, allowance, event = self._admit(call)
        async with self._audited(event, call.kind) as outcome:
            response = await self.service.call(admitted)
            outcome.operation = getattr(response, "operation_id", "")
        return response, allowance

    async def stream(self, call: IncomingCall) -> AsyncGenerator[Message, None]:
        """Yield the messages that answer a request. Raises ServiceError."""
        admitted, _, event = self._admit(call)
        async with self._audited(event, call.kind), aclosing(self.service.stream(admitted)) as messages:
            async for message in messages:
                yield message

    @asynccontextmanager
    async def admitted(self, call: IncomingCall) -> AsyncIterator[tuple[AdmittedCall, Outcome]]:
        """Check and record a request that the listener answers in the context. Raises ServiceError."""
        admitted, _, event = self._admit(call)
        async with self._audited(event, call.kind) as outcome:
            yield admitted, outcome

    def _admit(self, call: IncomingCall) -> tuple[AdmittedCall, Allowance, AuditEvent]:
        """Return the request with its caller if it passes all checks. Raises ServiceError for the first that fails."""
        event = received_event(call, self.now())
        network = network_of(call.address)
        allowance = self.limiter.take(self.address_rate, "address", network)
        if not allowance.is_allowed:
            error = rate_limited(allowance.retry_seconds)
            if self._is_news(network):
                self._complete(event, error)
            raise error
        try:
            caller = self.authenticator.authenticate(call.credentials)
            event = replace(event, principal=caller.user, credential=caller.credential)
            project = self._authorized_project(caller, call)
            event = replace(event, project=project)
            kind = call.kind
            allowance = self.limiter.take(self.rates[kind], kind, caller.user)
            if not allowance.is_allowed:
                raise rate_limited(allowance.retry_seconds)
        except ServiceError as error:
            self._complete(event, error)
            raise
        admitted = AdmittedCall(call, caller, project, event.id)
        return admitted, allowance, event

    def _authorized_project(self, caller: Caller, call: IncomingCall) -> str:
        """Return the project in which a request may act. Raises ServiceError.

        What does not exist looks like what the caller may not see.
        """
        project = self.service.project_of(call.method, call.request)
        if project == "" and call.method in VISIBLE_METHODS:
            return ""
        kind, name = resource_of(call.method), name_in(call.request)
        decision = decide(caller, call.method, project or "")
        if decision == Decision.HIDDEN or project is None:
            raise not_found(kind, name)
        if decision == Decision.DENIED:
            raise permission_denied(call.method, f"{kind} {name}".rstrip())
        return project

    def _is_news(self, network: str) -> bool:
        """Return whether the last audit record about the requests of a network is old."""
        now, last = self.now(), self._limited.pop(network, None)
        is_news = last is None or now - last >= LIMITED_INTERVAL
        self._limited[network] = now if last is None or is_news else last
        if len(self._limited) > MAX_LIMITED:
            self._limited.popitem(last=False)
        return is_news

    @asynccontextmanager
    async def _audited(self, event: AuditEvent, kind: str) -> AsyncIterator[Outcome]:
        """Record a request before its effects, and its outcome after them. Raises ServiceError for every error."""
        outcome = Outcome()
        try:
            self.audit.append(event)
            if kind != READ or event.method in READERS_OF_AUDIT:
                await self.audit.wait_until_durable()
        except AuditUnavailableError as error:
            log.warning("request rejected without an audit log", method=event.method, error=str(error))
            raise unavailable("the audit log cannot be written") from error
        try:
            yield outcome
        except ServiceError as error:
            self._complete(event, error)
            raise
        except Exception as error:
            log.exception("request failed", method=event.method, id=event.id)
            failure = internal()
            self._complete(event, failure)
            raise failure from error
        except BaseException:
            self._complete(event, proxied_error(outcome.http_status) if outcome.http_status else CANCELLED)
            raise
        self._complete(event, proxied_error(outcome.http_status), outcome.operation)

    def _complete(self, event: AuditEvent, error: ServiceError | None, operation: str = "") -> None:
        """Record the outcome of a request. What it did cannot be undone if the log is full then."""
        code = error.code.name if error is not None else "OK"
        REQUESTS.inc(event.method, code)
        now = self.now()
        fields = {"code": code, "reason": error.reason if error is not None else "", "operation": operation}
        seconds = (now - event.time).total_seconds()
        with suppress(AuditUnavailableError):
            self.audit.append(replace(event, stage="completed", time=now, seconds=seconds, **fields))


def proxied_error(http_status: int) -> ServiceError | None:
    """Return the error to record for a request to which a virtual cluster has responded with this status, if any."""
    if http_status < 400:
        return None
    codes = (each for each in Code if each.http_status == http_status)
    default = Code.INTERNAL if http_status >= 500 else Code.FAILED_PRECONDITION
    return ServiceError(next(codes, default), f"HTTP_{http_status}", "")


CANCELLED = ServiceError(Code.CANCELLED, "CANCELLED", "the client has gone")


def received_event(call: IncomingCall, now: datetime) -> AuditEvent:
    request = call.request
    return AuditEvent(
        time=now,
        stage="received",
        id=uuid4().hex,
        address=call.address,
        user_agent=call.user_agent,
        protocol=call.protocol,
        method=call.method,
        namespace=getattr(request, "namespace", ""),
        name=name_in(request),
        request_id=getattr(request, "request_id", ""),
        digest=digest_of(request) if class_of(call.method) != READ else "",
        message=call.target,
    )


def digest_of(request: Message) -> str:
    return hashlib.sha256(request.SerializeToString(deterministic=True)).hexdigest()


def name_in(request: Message) -> str:
    """Return the name of what a request is about, as far as the request has one."""
    names = (getattr(request, each, "") for each in ("name", "id", "project"))
    return next((each for each in names if each and isinstance(each, str)), "")


def resource_of(method: str) -> str:
    """Return the kind of resource of a method: VCluster for ScaleVCluster."""
    return RESOURCE_PATTERN.sub("", method).removesuffix("Kubeconfig")


def network_of(address: str) -> str:
    """Return an IPv4 address, or the network of an IPv6 address of which a client has all addresses."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    mapped = parsed.ipv4_mapped
    return str(mapped) if mapped is not None else str(ip_network((int(parsed) >> 64 << 64, 64)))
