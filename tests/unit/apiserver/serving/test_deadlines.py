"""Deadlines with one shared timer: each expires at its time and not before."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apiserver.serving.deadlines import Deadlines
from tapestry.controller.testing.clock import run
from tapestry.kube.budget import DeadlineExceeded


async def timed_sleep(deadlines: Deadlines, starts: float, allowed: float, takes: float) -> tuple[str, float]:
    """Sleep within a deadline; return how it ended, and after how many seconds."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(starts)
    started = loop.time()
    try:
        with deadlines.within(allowed):
            await asyncio.sleep(takes)
    except DeadlineExceeded:
        return "late", round(loop.time() - started, 3)
    return "done", round(loop.time() - started, 3)


SECONDS = st.integers(1, 20).map(float)


@given(cases=st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=8))
def test_only_overdue_tasks_time_out(
    cases: list[tuple[float, float, float]],
) -> None:
    async def main() -> list[tuple[str, float]]:
        deadlines = Deadlines()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(timed_sleep(deadlines, *each)) for each in cases]
        assert not deadlines.active
        return [task.result() for task in tasks]

    for (_, allowed, takes), (end, seconds) in zip(cases, run(main()), strict=True):
        if takes != allowed:
            assert (end, seconds) == (("late", allowed) if takes > allowed else ("done", takes))


async def cancel(task: asyncio.Task[object]) -> None:
    task.cancel()


async def do_nothing(_: asyncio.Task[object]) -> None:
    return


@pytest.mark.parametrize("other", [cancel, do_nothing])
async def test_cancelled_task_is_not_reported_as_late(
    other: Callable[[asyncio.Task[object]], Awaitable[None]],
) -> None:
    deadlines = Deadlines()

    async def work() -> None:
        with deadlines.within(0.01):
            await asyncio.Event().wait()

    task: asyncio.Task[object] = asyncio.create_task(work())
    await asyncio.sleep(0)
    [deadline] = deadlines.active
    deadline.expire()
    await other(task)
    await asyncio.wait([task])
    assert task.cancelled() == (other is cancel)
    assert task.cancelled() or isinstance(task.exception(), DeadlineExceeded)


async def test_inner_deadline_expires_first() -> None:
    deadlines = Deadlines()
    with deadlines.within(60):
        with pytest.raises(DeadlineExceeded), deadlines.within(0.001):
            await asyncio.Event().wait()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
    assert not deadlines.active
