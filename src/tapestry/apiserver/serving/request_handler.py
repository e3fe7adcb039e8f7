"""Request handling around the API server: impersonation, deadlines, metrics and auditing."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from msgspec import structs

from tapestry.apiserver.access.auditing import AuditContext, Auditor, audit_id
from tapestry.apiserver.access.impersonation import impersonate
from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.requests import (
    CONNECT_SUBRESOURCES,
    TRUE_VALUES,
    Attributes,
    Call,
    first_segment,
    is_connect,
    is_verb_supported,
    target_of,
    verb_of,
)
from tapestry.apiserver.core.responses import ApiResponse, SessionResponse, response_or_status, status_response
from tapestry.apiserver.core.workers import RequestBudget, Worker
from tapestry.apiserver.handlers.server import CallHandler, Response, Server
from tapestry.apiserver.handlers.watches import WatchResponse
from tapestry.apiserver.serving.deadlines import Deadlines
from tapestry.apiserver.serving.json_format import formatted_body
from tapestry.apiserver.serving.metrics import (
    COMPONENT,
    REQUEST_TERMINATIONS,
    CallMetrics,
    ProcessMetrics,
    ServerMetrics,
)
from tapestry.kube.budget import CURRENT_BUDGET, DeadlineExceeded
from tapestry.kube.errors import ApiError, NotFound
from tapestry.kube.times import parse_duration

LONG_RUNNING_SUBRESOURCES = CONNECT_SUBRESOURCES | {"log"}
"""Subresources without a deadline; watches have none either."""

MountedHandler = Callable[[CallHandler, Call], Awaitable[ApiResponse]]
"""Handle a call by calls of its own. It authorizes the user before it reads the body."""


@dataclass(frozen=True)
class RequestHandler:
    """Handle calls for a server."""

    server: Server
    timeout: float
    """Maximum seconds that a response may take."""
    auditor: Auditor | None = None
    mounted_handlers: Mapping[str, MountedHandler] = field(default_factory=dict)
    """Handlers of other components, by the first segment of the path. Their own calls are handled like any other
    call."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    worker: Worker | None = None
    """Run large work; without one, the event loop does."""
    metrics: ServerMetrics = field(default_factory=ProcessMetrics)

    async def handle(self, call: Call, outer: RequestBudget | None = None) -> Response:
        """Return the response; errors are responses too. `outer` is the budget of a request that makes this call."""
        attributes = self.attributes_of(call)
        audit_context = self.auditor.begin(call, attributes) if self.auditor is not None else None
        if audit_context is not None:
            call = structs.replace(call, audited_body=audit_context.request_body)
        metrics, started = self.metrics.for_call(call, attributes), time.perf_counter()
        budget = RequestBudget(self.worker, call.user.name) if outer is None else outer
        reset_token = CURRENT_BUDGET.set(budget)
        try:
            response = await response_or_status(call, self.respond(call, attributes, audit_context, budget))
        except asyncio.CancelledError:
            metrics.observe(499, time.perf_counter() - started)  # the client has disconnected
            raise
        finally:
            if outer is None:
                await budget.end()
            CURRENT_BUDGET.reset(reset_token)
        if not isinstance(response, ApiResponse):
            track_until_end(response, metrics, audit_context)
            return response
        metrics.observe(response.status, time.perf_counter() - started)
        if call.method == "GET" and response.stream is None:
            metrics.observe_size(len(response.body))
        return finish_response(response, call, audit_context)

    def reject(self, call: Call, error: ApiError) -> ApiResponse:
        """Return the response for a call that was rejected before it reached the server."""
        attributes, response = self.attributes_of(call), status_response(error)
        self.metrics.for_call(call, attributes).observe(response.status, 0.0)
        audit_context = self.auditor.begin(call, attributes) if self.auditor is not None else None
        return finish_response(response, call, audit_context)

    def is_long_running(self, call: Call) -> bool:
        """Return whether a call is a watch, follows a log or connects, and so lasts as long as its client wants."""
        attributes = self.attributes_of(call)
        target = attributes.target
        if target is not None and (is_connect(target) or (call.is_upgrade and target.info.is_remote)):
            return True
        if call.method != "GET":
            return False
        if attributes.target is None:
            return first_segment(call.path) in self.mounted_handlers and call.query.get("watch") in TRUE_VALUES
        subresource = attributes.target.subresource
        if subresource:
            return subresource == "log" and call.query.get("follow") in TRUE_VALUES
        return attributes.verb == "watch" and is_verb_supported(attributes.target, "watch")

    def attributes_of(self, call: Call) -> Attributes:
        """Return the authorization attributes of a call, from its path and method."""
        try:
            target = target_of(call.path, self.server.registry)
        except NotFound:
            remote = self.server.aggregator.services.target_of(call.path)
            if remote is None:
                return Attributes(call.user, call.method.lower(), path=call.path)
            target = remote
        return Attributes(call.user, verb_of(call, target), target)

    async def respond(
        self, call: Call, attributes: Attributes, audit_context: AuditContext | None, budget: RequestBudget
    ) -> Response:
        """Impersonate the requested user, and respond within the deadline of the call, if it has one."""
        target = attributes.target
        if call.impersonation_headers:
            call = impersonate(call, self.server.authorize)
            if audit_context is not None:
                audit_context.impersonated_user = call.user
        if attributes.verb == "watch" or (target is not None and target.subresource in LONG_RUNNING_SUBRESOURCES):
            return await self.server.respond(call, target)
        seconds = timeout_of(call, self.timeout)
        budget.set_timeout(seconds)
        try:
            with self.deadlines.within(seconds):
                mounted = self.mounted_handlers.get(first_segment(call.path)) if target is None else None
                if mounted is None:
                    return await self.server.respond(call, target)
                return await mounted(NestedCallHandler(self, budget), call)
        except DeadlineExceeded:
            REQUEST_TERMINATIONS.labels(call.method, "504", COMPONENT).inc()
            raise


@dataclass(frozen=True)
class NestedCallHandler:
    """Handle the calls of a mounted handler within the budget of its request, and after the request with their own."""

    request_handler: RequestHandler
    budget: RequestBudget

    async def handle(self, call: Call) -> Response:
        return await self.request_handler.handle(call, None if self.budget.is_ended else self.budget)


def finish_response(response: ApiResponse, call: Call, audit_context: AuditContext | None) -> ApiResponse:
    """Return the formatted response with its Audit-Id header, and write the audit event."""
    if audit_context is not None:
        audit_context.log_stage("ResponseComplete", response)
    id_header = {"Audit-Id": audit_context.id if audit_context is not None else audit_id(call)}
    is_compressed = "Content-Encoding" in response.headers
    body = response.body if is_compressed else formatted_body(response.body, response.content_type, call)
    headers = {**response.headers, **id_header}
    return ApiResponse(response.status, body, response.content_type, headers, response.stream, response.cookies)


def timeout_of(call: Call, max_timeout: float) -> float:
    """Return the seconds that a call may take: its `timeout` parameter, up to the maximum."""
    requested = call.query.get("timeout")
    if not requested:
        return max_timeout
    try:
        seconds = parse_duration(requested).total_seconds()
    except ValueError as error:
        raise api_errors.bad_request("invalid timeout specified in the request URL") from error
    return min(seconds, max_timeout) if seconds > 0 else max_timeout


def track_until_end(
    response: WatchResponse | SessionResponse, metrics: CallMetrics, audit_context: AuditContext | None
) -> None:
    """Count a watch or a session until it ends."""
    metrics.count_long_running(1)
    started = time.perf_counter()
    head = UPGRADE_HEAD if isinstance(response, SessionResponse) else None
    if audit_context is not None:
        audit_context.log_stage("ResponseStarted", head)

    def on_end() -> None:
        metrics.count_long_running(-1)
        metrics.observe(head.status if head is not None else 200, time.perf_counter() - started)
        if audit_context is not None:
            audit_context.log_stage("ResponseComplete", head)

    response.on_end = on_end


UPGRADE_HEAD = ApiResponse(101, b"")
"""Status of a session in the audit log."""
