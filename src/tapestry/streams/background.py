"""Background tasks of a session, which end with it."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def background_tasks(*coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run coroutines during the block, and cancel them at its end.

    An error of one of them cancels the block. Errors of either are raised in an ExceptionGroup.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in coroutines]
        yield
        for each in tasks:
            each.cancel()
