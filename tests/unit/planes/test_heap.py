"""Tests of garbage collection in a process with many planes."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from tapestry.controller.testing import run
from tapestry.planes.heap import FREEZE_DELAY, FULL_INTERVAL, Heap


class Cycle:
    """An object that only the garbage collector frees."""

    def __init__(self) -> None:
        self.itself = self


async def freeze(heap: Heap) -> None:
    heap.freeze_soon()
    await asyncio.sleep(2 * FREEZE_DELAY)


@pytest.fixture(autouse=True)
def _frozen_objects_are_collected_again() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_objects_are_excluded_from_later_collections() -> None:
    async def freeze_and_collect() -> None:
        frozen = Cycle()
        reference = weakref.ref(frozen)
        await freeze(Heap())
        del frozen
        gc.collect()
        assert reference() is not None
        assert gc.get_freeze_count() > 0

    run(freeze_and_collect())


def test_garbage_is_collected_before_the_rest_is_excluded() -> None:
    reference = weakref.ref(Cycle())
    run(freeze(Heap()))
    assert reference() is None


def test_excluded_garbage_is_collected_from_time_to_time() -> None:
    async def freeze_several_times() -> None:
        heap = Heap()
        await freeze(heap)
        left = Cycle()
        reference = weakref.ref(left)
        await freeze(heap)
        del left
        await freeze(heap)
        assert reference() is not None
        await asyncio.sleep(FULL_INTERVAL)
        await freeze(heap)
        assert reference() is None

    run(freeze_several_times())


def test_closed_heap_freezes_nothing() -> None:
    async def close_early() -> None:
        before, heap = gc.get_freeze_count(), Heap()
        heap.freeze_soon()
        heap.close()
        await asyncio.sleep(2 * FREEZE_DELAY)
        assert gc.get_freeze_count() == before

    run(close_early())
