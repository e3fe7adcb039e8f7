"""Tests of slices of work on the event loop."""

import asyncio

import pytest

from tapestry.apiserver.core import slices
from tapestry.apiserver.core.slices import sliced


async def turns_during(count: int) -> int:
    """The number of turns that another task gets while so many items are processed."""
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    assert [each async for each in sliced(range(count))] == list(range(count))
    other.cancel()
    return turns


async def test_other_tasks_run_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0.0)
    assert await turns_during(10) == 10


async def test_short_work_is_one_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_SECONDS", 60.0)
    assert await turns_during(10) == 0
