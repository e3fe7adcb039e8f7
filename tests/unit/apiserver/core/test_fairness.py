"""Fair queues: users take turns, whatever they request."""

import asyncio

import pytest

from tapestry.apiserver.core.fairness import FairQueue, LimitedQueue, NestedQueue, Queue, turn
from tapestry.apiserver.core.shared_capacity import SharedCapacity
from tapestry.controller.testing.clock import in_virtual_time
from tapestry.kube.errors import TooManyRequests


async def use(queue: Queue, user: str, log: list[str], amount: int = 1, seconds: float = 1.0) -> None:
    async with turn(queue, user, amount):
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


# -- servers


@in_virtual_time
async def test_busy_server_delays_another_by_one_request() -> None:
    shared, log = FairQueue(1), list[str]()
    servers = {name: NestedQueue(shared, name, 1) for name in ("greedy", "modest")}
    async with asyncio.TaskGroup() as group:
        for user in range(10):  # many users are no advantage
            group.create_task(use(servers["greedy"], f"user-{user}", log))
        await asyncio.sleep(0)
        group.create_task(use(servers["modest"], "modest", log))
    assert log.index("modest") <= 1
    assert len(log) == 11


@in_virtual_time
async def test_users_of_a_server_take_turns() -> None:
    queue, log = NestedQueue(FairQueue(1), "server", 1), list[str]()
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(use(queue, "greedy", log))
        await asyncio.sleep(0)
        group.create_task(use(queue, "modest", log))
    assert log.index("modest") <= 2


@in_virtual_time
async def test_server_cannot_take_whole_capacity() -> None:
    shared, log, now = FairQueue(10), list[str](), asyncio.get_running_loop().time
    greedy, modest = NestedQueue(shared, "greedy", 5), NestedQueue(shared, "modest", 5)
    async with asyncio.TaskGroup() as group:
        for _ in range(10):
            group.create_task(use(greedy, "a", log, amount=5, seconds=10))
        await asyncio.sleep(0)
        await use(modest, "b", log, amount=5, seconds=1)
        assert now() == 1


@in_virtual_time
async def test_cancelled_wait_for_shared_capacity_frees_own() -> None:
    shared, log = FairQueue(1), list[str]()
    first, second = NestedQueue(shared, "first", 1), NestedQueue(shared, "second", 1)
    async with asyncio.TaskGroup() as group:
        group.create_task(use(first, "a", log, seconds=10))
        await asyncio.sleep(0)
        waiting = group.create_task(use(second, "b", log))
        await asyncio.sleep(1)
        waiting.cancel()
    await use(second, "c", log)
    assert log == ["a", "c"]


@in_virtual_time
async def test_server_that_holds_capacity_does_not_block_another() -> None:
    shared, log, now = SharedCapacity(40), list[str](), asyncio.get_running_loop().time
    greedy, modest = LimitedQueue(shared, "greedy", 10), LimitedQueue(shared, "modest", 10)
    async with asyncio.TaskGroup() as group:
        for _ in range(3):  # one after the other, whatever they request
            group.create_task(use(greedy, "a", log, amount=1_000, seconds=10))
        await asyncio.sleep(0)
        await use(modest, "b", log, amount=10, seconds=1)
        assert now() == 1
    assert now() == 30
    assert shared.held("greedy") == 0


@in_virtual_time
async def test_server_over_its_share_is_rejected() -> None:
    shared, log = SharedCapacity(40), list[str]()
    servers = [LimitedQueue(shared, str(number), 10) for number in range(5)]
    async with asyncio.TaskGroup() as group:
        for each in servers[:3]:
            group.create_task(use(each, "a", log, amount=10))
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequests):
            await servers[3].acquire("a", 10)
        await use(servers[4], "b", log, amount=5)
    await use(servers[3], "a", log, amount=10)
    assert len(log) == 5
