"""Tests of tasks that leave no reference cycles behind."""

import asyncio
import gc
import weakref

from tapestry.process.tasks import free_frames


class Content:
    """Something that a task refers to."""


async def hold(content: Content) -> None:
    assert content
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.Event().wait())


async def test_frames_of_cancelled_tasks_are_freed_without_collection() -> None:
    gc.disable()
    try:
        content = Content()
        reference = weakref.ref(content)
        task = asyncio.create_task(hold(content))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        del content
        assert reference() is not None, "the cycle that this works around is gone"
        free_frames([task])
        assert reference() is None
        assert task.cancelled()
    finally:
        gc.enable()


async def test_results_and_errors_of_other_tasks_stay() -> None:
    async def fail() -> None:
        raise ValueError("expected")

    async def succeed() -> int:
        return 1

    done, failed = asyncio.create_task(succeed()), asyncio.create_task(fail())
    await asyncio.wait([done, failed])
    free_frames([done, failed])
    assert done.result() == 1
    assert isinstance(failed.exception(), ValueError)
