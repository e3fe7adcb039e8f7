"""What is sent again, and what never is."""

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
    Script,
    Verb,
    answer,
    fence_of,
    lost,
    refusal,
)


@in_virtual_time
async def test_a_read_that_got_no_answer_is_asked_again() -> None:
    script = Script(lost(maybe_sent=True), lost(maybe_sent=False), answer(A_POD))
    assert await Client(script).get(PODS, "web", "default") == A_POD
    assert len(script.asked) == 3


@pytest.mark.parametrize("verb", WRITES.values(), ids=WRITES.keys())
@in_virtual_time
async def test_a_write_that_may_have_been_sent_is_never_repeated(verb: Verb) -> None:
    script = Script(lost(maybe_sent=True), GOOD)
    with pytest.raises(TransportError):
        await verb(Client(script))
    assert len(script.asked) == 1


@pytest.mark.parametrize("verb", [verb for name, verb in WRITES.items() if name != "evict"])
@in_virtual_time
async def test_a_write_that_never_left_is_sent_again(verb: Verb) -> None:
    script = Script(lost(maybe_sent=False), GOOD)
    await verb(Client(script))
    assert len(script.asked) == 2
    assert script.asked[0] == script.asked[1]


@pytest.mark.parametrize("code", [429, 503])
@pytest.mark.parametrize("verb", [WRITES["create"], lambda c: c.get(PODS, "web", "default")])
@in_virtual_time
async def test_what_the_server_put_off_is_sent_again_when_it_said(verb: Verb, code: int) -> None:
    script = Script(answer(status=code, retry_after="7"), answer(status=code, retry_after="0"), GOOD)
    await verb(Client(script))
    assert 7 <= running_clock().monotonic() < 7.1
    assert len(script.asked) == 3


@in_virtual_time
async def test_a_time_to_retry_after_that_is_no_number_is_a_short_one() -> None:
    script = Script(answer(status=503, retry_after="Fri, 31 Dec 1999 23:59:59 GMT"), GOOD)
    await Client(script).create(PODS, UNSEEN)
    assert 0 < running_clock().monotonic() < 1


@in_virtual_time
async def test_a_server_that_wants_to_be_left_alone_for_long_is() -> None:
    script = Script(refusal(BUSY, retry_after=str(MAX_RETRY_AFTER + 1)))
    with pytest.raises(TooManyRequests):
        await Client(script).get(PODS, "web", "default")
    assert len(script.asked) == 1


@pytest.mark.parametrize(
    ("code", "headers"),
    [(429, {}), (503, {}), (500, {"retry_after": "1"}), (504, {"retry_after": "1"}), (409, {"retry_after": "1"})],
)
@in_virtual_time
async def test_a_write_that_the_server_may_have_done_or_has_refused_is_not_repeated(
    code: int, headers: dict[str, str]
) -> None:
    script = Script(answer(status=code, **headers), GOOD)
    with pytest.raises(ApiError):
        await Client(script).create(PODS, UNSEEN)
    assert len(script.asked) == 1


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
@in_virtual_time
async def test_a_read_is_asked_again_after_trouble_of_the_server(code: int) -> None:
    script = Script(answer(status=code), answer(A_POD))
    assert await Client(script).get(PODS, "web", "default") == A_POD


@pytest.mark.parametrize("error", [NotFound(404, "NotFound", "no"), Forbidden(403, "Forbidden", "no")])
@in_virtual_time
async def test_a_read_that_was_refused_is_not_repeated(error: ApiError) -> None:
    script = Script(refusal(error))
    with pytest.raises(type(error)):
        await Client(script).get(PODS, "web", "default")
    assert len(script.asked) == 1


@in_virtual_time
async def test_an_eviction_that_the_budget_forbids_is_for_the_caller_to_repeat() -> None:
    script = Script(refusal(BUSY, retry_after="10"))
    with pytest.raises(TooManyRequests):
        await Client(script).evict(A_POD)
    assert len(script.asked) == 1


@pytest.mark.parametrize(
    ("trouble", "error"),
    [
        (lost(maybe_sent=True), TransportError),
        (answer(status=503), Unavailable),
        (answer(status=504, retry_after="1"), Timeout),
    ],
)
@in_virtual_time
async def test_it_gives_up_after_some_attempts_with_the_last_error(
    trouble: Response | TransportError, error: type[Exception]
) -> None:
    script = Script(trouble)
    with pytest.raises(error):
        await Client(script).get(PODS, "web", "default")
    assert len(script.asked) == MAX_ATTEMPTS


@in_virtual_time
async def test_attempts_grow_apart() -> None:
    times: list[float] = []

    class Clocked(Script):
        async def send(self, request: Request) -> Response:
            times.append(running_clock().monotonic())
            return await super().send(request)

    with pytest.raises(TransportError):
        await Client(Clocked(lost(maybe_sent=True))).get(PODS, "web", "default")
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert waits == sorted(waits)
    assert waits[-1] > 4 * waits[0]


@pytest.mark.parametrize("trouble", [refusal(BUSY, retry_after="3"), lost(maybe_sent=False)])
@in_virtual_time
async def test_safety_rule_4_the_fence_is_asked_before_each_attempt(trouble: Response | TransportError) -> None:
    script = Script(trouble)
    with pytest.raises(NotLeading):
        await Client(script, fence=fence_of(True, True, False)).patch(PODS, A_POD, {})
    assert len(script.asked) == 2


@in_virtual_time
async def test_every_attempt_is_counted_by_its_code() -> None:
    def counted(code: str) -> float:
        labels = {"verb": "patch", "resource": "clusterbindings.cloud.tencent.com/status", "code": code}
        return REGISTRY.get_sample_value("tapestry_client_requests_total", labels) or 0

    before = {code: counted(code) for code in ("200", "429", "TransportError")}
    script = Script(lost(maybe_sent=False), refusal(BUSY, retry_after="1"), refusal(BUSY, retry_after="1"), GOOD)
    await Client(script).patch(BINDINGS, object_named("east"), {}, subresource="status")
    assert {code: counted(code) - before[code] for code in before} == {"200": 1, "429": 2, "TransportError": 1}
