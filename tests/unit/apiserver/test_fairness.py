"""Fair queues: users take turns, whatever they request."""

import asyncio

from tapestry.apiserver.core.fairness import FairQueue
from tapestry.controller.testing.clock import in_virtual_time


async def use(queue: FairQueue, user: str, log: list[str], amount: int = 1, seconds: float = 1.0) -> None:
    async with queue.turn(user, amount):
        log.append(user)
        await asyncio.sleep(seconds)


@in_virtual_time
async def test_busy_user_delays_another_by_one_request() -> None:
    queue, log = FairQueue(1), list[str]()
    async with asyncio.TaskGroup() as group:
        for _ in range(10):
            group.create_task(use(queue, "greedy", log))
        await asyncio.sleep(0)
        group.create_task(use(queue, "modest", log))
    assert log.index("modest") <= 2
    assert len(log) == 11


@in_virtual_time
async def test_capacity_is_shared_by_amount() -> None:
    queue, log, now = FairQueue(10), list[str](), asyncio.get_running_loop().time
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(use(queue, "a", log, amount=5))
    assert now() == 2
    async with asyncio.TaskGroup() as group:  # a request over the capacity gets all of it
        group.create_task(use(queue, "a", log, amount=1_000))
        group.create_task(use(queue, "b", log, amount=1))
    assert now() == 4


@in_virtual_time
async def test_cancelled_request_releases_its_capacity() -> None:
    queue, log = FairQueue(1), list[str]()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(use(queue, "a", log, seconds=5))
        await asyncio.sleep(1)
        waiting = [group.create_task(use(queue, "a", log)) for _ in range(3)]
        await asyncio.sleep(1)
        waiting[0].cancel()
        first.cancel()
    assert log == ["a"] * 3
    await use(queue, "b", log)
    assert log[-1] == "b"
