"""Requests that are sent again, and requests that never are."""

from itertools import pairwise

import pytest
from prometheus_client import REGISTRY

from tapestry.client.client import Client
from tapestry.client.retries import MAX_ATTEMPTS, MAX_RETRY_AFTER
from tapestry.client.transport import Request, Response
from tapestry.controller.testing import in_virtual_time, running_clock
from tapestry.kube.errors import ApiError, Forbidden, NotFound, Timeout, TooManyRequests, TransportError, Unavailable
from tapestry.kube.objects import object_named
from tapestry.kube.resources import PODS

from .script import (
    A_POD,
    BINDINGS,
    BUSY,
    GOOD,
    UNSEEN,
    WRITES,
    NotLeading,
    ScriptedTransport,
    Verb,
    error_response,
    fence_of,
    response_of,
    transport_error,
)


@in_virtual_time
async def test_read_without_response_is_retried() -> None:
    transport = ScriptedTransport(
        transport_error(maybe_sent=True), transport_error(maybe_sent=False), response_of(A_POD)
    )
    assert await Client(transport).get(PODS, "web", "default") == A_POD
    assert len(transport.requests) == 3


@pytest.mark.parametrize("verb", WRITES.values(), ids=WRITES.keys())
@in_virtual_time
async def test_possibly_sent_write_is_not_retried(verb: Verb) -> None:
    transport = ScriptedTransport(transport_error(maybe_sent=True), GOOD)
    with pytest.raises(TransportError):
        await verb(Client(transport))
    assert len(transport.requests) == 1


@pytest.mark.parametrize("verb", [verb for name, verb in WRITES.items() if name != "evict"])
@in_virtual_time
async def test_write_that_was_not_sent_is_retried(verb: Verb) -> None:
    transport = ScriptedTransport(transport_error(maybe_sent=False), GOOD)
    await verb(Client(transport))
    assert len(transport.requests) == 2
    assert transport.requests[0] == transport.requests[1]


@pytest.mark.parametrize("code", [429, 503])
@pytest.mark.parametrize("verb", [WRITES["create"], lambda c: c.get(PODS, "web", "default")])
@in_virtual_time
async def test_retry_after_is_obeyed(verb: Verb, code: int) -> None:
    transport = ScriptedTransport(
        response_of(status=code, retry_after="7"), response_of(status=code, retry_after="0"), GOOD
    )
    await verb(Client(transport))
    assert 7 <= running_clock().monotonic() < 7.1
    assert len(transport.requests) == 3


@in_virtual_time
async def test_invalid_retry_after_means_a_short_pause() -> None:
    transport = ScriptedTransport(response_of(status=503, retry_after="Fri, 31 Dec 1999 23:59:59 GMT"), GOOD)
    await Client(transport).create(PODS, UNSEEN)
    assert 0 < running_clock().monotonic() < 1


@in_virtual_time
async def test_long_retry_after_is_an_error() -> None:
    transport = ScriptedTransport(error_response(BUSY, retry_after=str(MAX_RETRY_AFTER + 1)))
    with pytest.raises(TooManyRequests):
        await Client(transport).get(PODS, "web", "default")
    assert len(transport.requests) == 1


@pytest.mark.parametrize(
    ("code", "headers"),
    [(429, {}), (503, {}), (500, {"retry_after": "1"}), (504, {"retry_after": "1"}), (409, {"retry_after": "1"})],
)
@in_virtual_time
async def test_write_with_unknown_outcome_is_not_retried(code: int, headers: dict[str, str]) -> None:
    transport = ScriptedTransport(response_of(status=code, **headers), GOOD)
    with pytest.raises(ApiError):
        await Client(transport).create(PODS, UNSEEN)
    assert len(transport.requests) == 1


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
@in_virtual_time
async def test_read_is_retried_after_server_error(code: int) -> None:
    transport = ScriptedTransport(response_of(status=code), response_of(A_POD))
    assert await Client(transport).get(PODS, "web", "default") == A_POD


@pytest.mark.parametrize("error", [NotFound(404, "NotFound", "no"), Forbidden(403, "Forbidden", "no")])
@in_virtual_time
async def test_rejected_read_is_not_retried(error: ApiError) -> None:
    transport = ScriptedTransport(error_response(error))
    with pytest.raises(type(error)):
        await Client(transport).get(PODS, "web", "default")
    assert len(transport.requests) == 1


@in_virtual_time
async def test_eviction_denied_by_budget_is_not_retried() -> None:
    transport = ScriptedTransport(error_response(BUSY, retry_after="10"))
    with pytest.raises(TooManyRequests):
        await Client(transport).evict(A_POD)
    assert len(transport.requests) == 1


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (transport_error(maybe_sent=True), TransportError),
        (response_of(status=503), Unavailable),
        (response_of(status=504, retry_after="1"), Timeout),
    ],
)
@in_virtual_time
async def test_last_error_is_raised_after_max_attempts(
    failure: Response | TransportError, error: type[Exception]
) -> None:
    transport = ScriptedTransport(failure)
    with pytest.raises(error):
        await Client(transport).get(PODS, "web", "default")
    assert len(transport.requests) == MAX_ATTEMPTS


@in_virtual_time
async def test_pauses_between_attempts_grow() -> None:
    times: list[float] = []

    class Clocked(ScriptedTransport):
        async def send(self, request: Request) -> Response:
            times.append(running_clock().monotonic())
            return await super().send(request)

    with pytest.raises(TransportError):
        await Client(Clocked(transport_error(maybe_sent=True))).get(PODS, "web", "default")
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert waits == sorted(waits)
    assert waits[-1] > 4 * waits[0]


@pytest.mark.parametrize("failure", [error_response(BUSY, retry_after="3"), transport_error(maybe_sent=False)])
@in_virtual_time
async def test_safety_rule_4_fence_is_called_before_each_attempt(failure: Response | TransportError) -> None:
    transport = ScriptedTransport(failure)
    with pytest.raises(NotLeading):
        await Client(transport, fence=fence_of(True, True, False)).patch(PODS, A_POD, {})
    assert len(transport.requests) == 2


@in_virtual_time
async def test_every_attempt_is_counted_by_code() -> None:
    def counted(code: str) -> float:
        labels = {"verb": "patch", "resource": "clusterbindings.cloud.tencent.com/status", "code": code}
        return REGISTRY.get_sample_value("tapestry_client_requests_total", labels) or 0

    before = {code: counted(code) for code in ("200", "429", "TransportError")}
    transport = ScriptedTransport(
        transport_error(maybe_sent=False),
        error_response(BUSY, retry_after="1"),
        error_response(BUSY, retry_after="1"),
        GOOD,
    )
    await Client(transport).patch(BINDINGS, object_named("east"), {}, subresource="status")
    assert {code: counted(code) - before[code] for code in before} == {"200": 1, "429": 2, "TransportError": 1}
