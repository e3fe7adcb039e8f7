"""One timer for many: each ends in its time, and none before."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apiserver.serving.deadlines import Deadlines
from tapestry.controller.testing.clock import run


async def sleeper(deadlines: Deadlines, starts: float, allowed: float, takes: float) -> tuple[str, float]:
    """How somebody ends who takes so long, and how long after their start."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(starts)
    begun = loop.time()
    try:
        with deadlines.within(allowed):
            await asyncio.sleep(takes)
    except TimeoutError:
        return "late", round(loop.time() - begun, 3)
    return "done", round(loop.time() - begun, 3)


SECONDS = st.integers(1, 20).map(float)


@given(people=st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=8))
def test_whoever_takes_longer_than_allowed_is_ended_then_and_nobody_else_is(
    people: list[tuple[float, float, float]],
) -> None:
    async def main() -> list[tuple[str, float]]:
        deadlines = Deadlines()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(sleeper(deadlines, *each)) for each in people]
        assert not deadlines.active
        return [task.result() for task in tasks]

    for (_, allowed, takes), (end, seconds) in zip(people, run(main()), strict=True):
        if takes != allowed:
            assert (end, seconds) == (("late", allowed) if takes > allowed else ("done", takes))


async def leaving(task: asyncio.Task[object]) -> None:
    task.cancel()


async def staying(_: asyncio.Task[object]) -> None:
    return


@pytest.mark.parametrize("other", [leaving, staying])
async def test_a_task_that_somebody_else_ends_too_is_cancelled_and_not_late(
    other: Callable[[asyncio.Task[object]], Awaitable[None]],
) -> None:
    deadlines = Deadlines()

    async def work() -> None:
        with deadlines.within(0.01):
            await asyncio.Event().wait()

    task: asyncio.Task[object] = asyncio.create_task(work())
    await asyncio.sleep(0)
    [limit] = deadlines.active
    limit.expire()
    await other(task)
    await asyncio.wait([task])
    assert task.cancelled() == (other is leaving)
    assert task.cancelled() or isinstance(task.exception(), TimeoutError)


async def test_limits_lie_within_each_other_and_the_narrower_one_ends_first() -> None:
    deadlines = Deadlines()
    with deadlines.within(60):
        with pytest.raises(TimeoutError), deadlines.within(0.001):
            await asyncio.Event().wait()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
    assert not deadlines.active
