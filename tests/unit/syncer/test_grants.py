"""Waiting for rights that arrive a moment later."""

from datetime import UTC, datetime, timedelta

import pytest

from tapestry.controller import Result
from tapestry.kube.errors import Forbidden
from tapestry.syncer.grants import GRANT_TIMEOUT, MAX_PAUSE, MIN_PAUSE, GrantWaits, waiting_for_grants

START = datetime(2024, 1, 1, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> datetime:
        return self.time


def test_pause_grows_with_the_time_waited() -> None:
    clock = Clock()
    waits = GrantWaits(clock)
    assert waits.pause("key") == MIN_PAUSE
    clock.time += timedelta(seconds=4)
    assert waits.pause("key") == 1
    assert not waits.is_overdue("key")
    clock.time += timedelta(hours=1)
    assert waits.pause("key") == MAX_PAUSE
    assert waits.is_overdue("key")
    waits.clear("key")
    assert not waits.is_overdue("key")
    assert waits.pause("key") == MIN_PAUSE


async def test_forbidden_request_is_repeated_and_then_fails() -> None:
    clock, results = Clock(), [Forbidden(403, "Forbidden", "no"), Result(requeue_after=7)]

    async def reconcile(_: str) -> Result | None:
        result = results[0] if len(results) > 1 else results.pop()
        if isinstance(result, Forbidden):
            raise result
        return result

    wrapped = waiting_for_grants(reconcile, clock)
    assert await wrapped("key") == Result(requeue_after=MIN_PAUSE)
    clock.time += GRANT_TIMEOUT
    with pytest.raises(Forbidden):
        await wrapped("key")
    results.pop(0)
    assert await wrapped("key") == Result(requeue_after=7)
