"""The reception: what happens to every request around its answer.

It finds out in whose name a request is made, gives it its time and no more, counts it, and writes it down where there
is an audit log.  The answer itself is the server's.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from msgspec import structs

from tapestry.apiserver import refusals
from tapestry.apiserver.access.auditing import Auditor, Trail, audit_id
from tapestry.apiserver.access.authentication import UNAUTHENTICATED
from tapestry.apiserver.access.impersonation import impersonated
from tapestry.apiserver.payloads import arrived
from tapestry.apiserver.requests import Call, Target, target_of
from tapestry.apiserver.server import (
    TRUE,
    Answer,
    Answering,
    Attributes,
    Server,
    first_segment,
    refused,
    serves,
    verb_of,
)
from tapestry.apiserver.serving.deadlines import Deadlines
from tapestry.apiserver.serving.metrics import COMPONENT, TERMINATED, Tally, tally_of
from tapestry.apiserver.serving.presentation import presented
from tapestry.apiserver.watches import Watching
from tapestry.apiserver.workers import Work, Worker
from tapestry.kube.budget import BUDGET
from tapestry.kube.errors import ApiError, NotFound
from tapestry.kube.times import parse_duration

LONG = frozenset({"attach", "exec", "log", "portforward", "proxy"})
"""Subresources that may take as long as they like; so may watches."""

Mounted = Callable[[Answering, Call], Awaitable[Answer]]


@dataclass(frozen=True)
class Reception:
    """Receives calls for a server."""

    server: Server
    seconds: float
    """That an answer may take."""
    auditor: Auditor | None = None
    mounted: Mapping[str, Mounted] = field(default_factory=dict)
    """What others serve, by the first segment of the path; what they ask for in turn is received as any other call."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    worker: Worker | None = None
    """Does what takes long; without one the event loop does all."""

    async def answer(self, call: Call) -> Answer | Watching:
        """What is to be sent back."""
        asked = self.asked(call)
        trail = self.auditor.begun(call, asked) if self.auditor is not None else None
        if trail is not None:
            call = structs.replace(call, record=trail.record)
        tally, began = tally_of(call, asked), time.perf_counter()
        work = Work(self.worker, call.user.name)
        before = BUDGET.set(work)
        try:
            answer = await self.answered(call, asked, trail, work)
        except asyncio.CancelledError:
            tally.count(499, time.perf_counter() - began)  # the client is gone
            raise
        finally:
            await work.end()
            BUDGET.reset(before)
        if isinstance(answer, Watching):
            return watched(answer, tally, trail)
        tally.count(answer.status, time.perf_counter() - began)
        if call.method == "GET":
            tally.sizes.observe(len(answer.body))
        return complete(answer, call, trail)

    def refused(self, call: Call, error: ApiError) -> Answer:
        """The answer to a call that is not answered, because nobody knows whose it is, or there is no room for it."""
        asked, answer = self.asked(call), refused(error)
        tally_of(call, asked).count(answer.status, 0.0)
        trail = self.auditor.begun(call, asked) if self.auditor is not None else None
        return complete(answer, call, trail)

    def is_long_running(self, call: Call) -> bool:
        asked = self.asked(call)
        if call.method != "GET" or asked.target is None:
            return False
        subresource = asked.target.subresource
        if subresource:
            return subresource == "log" and call.query.get("follow") in TRUE
        return asked.verb == "watch" and serves(asked.target, "watch")

    def asked(self, call: Call) -> Attributes:
        """What the call is about, as far as its path tells."""
        try:
            target = target_of(call.path, self.server.rows)
        except NotFound:
            return Attributes(call.user, call.method.lower(), path=call.path)
        return Attributes(call.user, verb_of(call, target), target)

    async def answered(self, call: Call, asked: Attributes, trail: Trail | None, work: Work) -> Answer | Watching:
        try:
            if call.impersonates:
                call = impersonated(call, self.server.authorize)
                if trail is not None:
                    trail.user = call.user
            if asked.verb == "watch" or (asked.target is not None and asked.target.subresource in LONG):
                return await self.server.answer(call, asked.target)
            return await self.in_time(call, asked.target, work)
        except ApiError as error:
            return refused(error)

    async def in_time(self, call: Call, target: Target | None, work: Work) -> Answer | Watching:
        try:
            seconds = allowed(call, self.seconds)
            work.allow(seconds)
            with self.deadlines.within(seconds):
                mounted = self.mounted.get(first_segment(call.path)) if target is None else None
                if mounted is None:
                    return await self.server.answer(call, target)
                if call.incoming is not None and UNAUTHENTICATED in call.user.groups:
                    raise refusals.unauthorized()  # who may do it depends on the body, which is not read for anybody
                return await mounted(self, await arrived(call))
        except TimeoutError:
            TERMINATED.labels(call.method, "504", COMPONENT).inc()
            raise refusals.out_of_time() from None


def complete(answer: Answer, call: Call, trail: Trail | None) -> Answer:
    """The answer with the name under which the request is found again, in an audit log if there is one."""
    if trail is not None:
        trail.note("ResponseComplete", answer)
    known_as = {"Audit-Id": trail.id if trail is not None else audit_id(call)}
    body = presented(answer.body, answer.content_type, call)
    return Answer(answer.status, body, answer.content_type, {**answer.headers, **known_as}, answer.stream)


def allowed(call: Call, longest: float) -> float:
    """Seconds that a call may take: what it asks for, but no more than everybody gets."""
    asked = call.query.get("timeout")
    if not asked:
        return longest
    try:
        seconds = parse_duration(asked).total_seconds()
    except ValueError as error:
        raise refusals.bad_request("invalid timeout specified in the request URL") from error
    return min(seconds, longest) if seconds > 0 else longest


def watched(watching: Watching, tally: Tally, trail: Trail | None) -> Watching:
    """The watch, counted for as long as it lasts."""
    tally.watches.inc()
    began = time.perf_counter()
    if trail is not None:
        trail.note("ResponseStarted")

    def over() -> None:
        tally.watches.dec()
        tally.count(200, time.perf_counter() - began)
        if trail is not None:
            trail.note("ResponseComplete")

    watching.over = over
    return watching
