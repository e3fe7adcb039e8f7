"""The reception: what happens to every request around its answer.

It finds out in whose name a request is made, gives it its time and no more, counts it, and writes it down where there
is an audit log.  The answer itself is the server's.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from msgspec import structs

from tapestry.apiserver import api_errors
from tapestry.apiserver.access.auditing import AuditContext, Auditor, audit_id
from tapestry.apiserver.access.authentication import UNAUTHENTICATED
from tapestry.apiserver.access.impersonation import impersonate
from tapestry.apiserver.request_bodies import read_body
from tapestry.apiserver.requests import Call, Target, target_of
from tapestry.apiserver.server import (
    TRUE_VALUES,
    ApiResponse,
    Attributes,
    CallHandler,
    Server,
    error_response,
    first_segment,
    is_verb_supported,
    verb_of,
)
from tapestry.apiserver.serving.deadlines import Deadlines
from tapestry.apiserver.serving.json_format import formatted_body
from tapestry.apiserver.serving.metrics import COMPONENT, REQUEST_TERMINATIONS, RequestMetrics, metrics_for_call
from tapestry.apiserver.watches import WatchResponse
from tapestry.apiserver.workers import RequestBudget, Worker
from tapestry.kube.budget import CURRENT_BUDGET
from tapestry.kube.errors import ApiError, NotFound
from tapestry.kube.times import parse_duration

LONG_RUNNING_SUBRESOURCES = frozenset({"attach", "exec", "log", "portforward", "proxy"})
"""Subresources that may take as long as they like; so may watches."""

MountedHandler = Callable[[CallHandler, Call], Awaitable[ApiResponse]]


@dataclass(frozen=True)
class RequestHandler:
    """Receives calls for a server."""

    server: Server
    timeout: float
    """That an answer may take."""
    auditor: Auditor | None = None
    mounted_handlers: Mapping[str, MountedHandler] = field(default_factory=dict)
    """What others serve, by the first segment of the path; what they ask for in turn is received as any other call."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    worker: Worker | None = None
    """Does what takes long; without one the event loop does all."""

    async def handle(self, call: Call) -> ApiResponse | WatchResponse:
        """What is to be sent back."""
        asked = self.attributes_of(call)
        trail = self.auditor.begin(call, asked) if self.auditor is not None else None
        if trail is not None:
            call = structs.replace(call, audited_body=trail.request_body)
        tally, began = metrics_for_call(call, asked), time.perf_counter()
        work = RequestBudget(self.worker, call.user.name)
        before = CURRENT_BUDGET.set(work)
        try:
            answer = await self.dispatch(call, asked, trail, work)
        except asyncio.CancelledError:
            tally.observe(499, time.perf_counter() - began)  # the client is gone
            raise
        finally:
            await work.end()
            CURRENT_BUDGET.reset(before)
        if isinstance(answer, WatchResponse):
            return track_watch(answer, tally, trail)
        tally.observe(answer.status, time.perf_counter() - began)
        if call.method == "GET":
            tally.sizes.observe(len(answer.body))
        return finish_response(answer, call, trail)

    def reject(self, call: Call, error: ApiError) -> ApiResponse:
        """The answer to a call that is not answered, because nobody knows whose it is, or there is no room for it."""
        asked, answer = self.attributes_of(call), error_response(error)
        metrics_for_call(call, asked).observe(answer.status, 0.0)
        trail = self.auditor.begin(call, asked) if self.auditor is not None else None
        return finish_response(answer, call, trail)

    def is_long_running(self, call: Call) -> bool:
        asked = self.attributes_of(call)
        if call.method != "GET" or asked.target is None:
            return False
        subresource = asked.target.subresource
        if subresource:
            return subresource == "log" and call.query.get("follow") in TRUE_VALUES
        return asked.verb == "watch" and is_verb_supported(asked.target, "watch")

    def attributes_of(self, call: Call) -> Attributes:
        """What the call is about, as far as its path tells."""
        try:
            target = target_of(call.path, self.server.registry)
        except NotFound:
            return Attributes(call.user, call.method.lower(), path=call.path)
        return Attributes(call.user, verb_of(call, target), target)

    async def dispatch(
        self, call: Call, attributes: Attributes, audit_context: AuditContext | None, budget: RequestBudget
    ) -> ApiResponse | WatchResponse:
        try:
            if call.impersonation_headers:
                call = impersonate(call, self.server.authorize)
                if audit_context is not None:
                    audit_context.impersonated_user = call.user
            if attributes.verb == "watch" or (
                attributes.target is not None and attributes.target.subresource in LONG_RUNNING_SUBRESOURCES
            ):
                return await self.server.handle(call, attributes.target)
            return await self.handle_in_time(call, attributes.target, budget)
        except ApiError as error:
            return error_response(error)

    async def handle_in_time(
        self, call: Call, target: Target | None, budget: RequestBudget
    ) -> ApiResponse | WatchResponse:
        try:
            seconds = timeout_of(call, self.timeout)
            budget.set_timeout(seconds)
            with self.deadlines.within(seconds):
                mounted = self.mounted_handlers.get(first_segment(call.path)) if target is None else None
                if mounted is None:
                    return await self.server.handle(call, target)
                if call.body_reader is not None and UNAUTHENTICATED in call.user.groups:
                    raise api_errors.unauthorized()  # who may do it depends on the body, which is not read for anybody
                return await mounted(self, await read_body(call))
        except TimeoutError:
            REQUEST_TERMINATIONS.labels(call.method, "504", COMPONENT).inc()
            raise api_errors.request_timed_out() from None


def finish_response(response: ApiResponse, call: Call, audit_context: AuditContext | None) -> ApiResponse:
    """The answer with the name under which the request is found again, in an audit log if there is one."""
    if audit_context is not None:
        audit_context.log_stage("ResponseComplete", response)
    known_as = {"Audit-Id": audit_context.id if audit_context is not None else audit_id(call)}
    body = formatted_body(response.body, response.content_type, call)
    return ApiResponse(response.status, body, response.content_type, {**response.headers, **known_as}, response.stream)


def timeout_of(call: Call, max_timeout: float) -> float:
    """Seconds that a call may take: what it asks for, but no more than everybody gets."""
    asked = call.query.get("timeout")
    if not asked:
        return max_timeout
    try:
        seconds = parse_duration(asked).total_seconds()
    except ValueError as error:
        raise api_errors.bad_request("invalid timeout specified in the request URL") from error
    return min(seconds, max_timeout) if seconds > 0 else max_timeout


def track_watch(watch: WatchResponse, metrics: RequestMetrics, audit_context: AuditContext | None) -> WatchResponse:
    """The watch, counted for as long as it lasts."""
    metrics.watches.inc()
    began = time.perf_counter()
    if audit_context is not None:
        audit_context.log_stage("ResponseStarted")

    def over() -> None:
        metrics.watches.dec()
        metrics.observe(200, time.perf_counter() - began)
        if audit_context is not None:
            audit_context.log_stage("ResponseComplete")

    watch.on_end = over
    return watch
