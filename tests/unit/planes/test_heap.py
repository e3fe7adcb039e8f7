"""Tests of garbage collection in a process with many planes."""

import asyncio
import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tapestry.apiserver.core.workers import LARGE_BYTES
from tapestry.apiserver.serving.active_requests import RequestKind
from tapestry.controller.testing import run
from tapestry.planes.heap import FREEZE_DELAY, MAX_COLLECTED_PLANES, Heap

from .listening_planes import MAPS, TIMEOUT, ListeningPlanes, listening_planes


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


def test_objects_of_many_planes_are_excluded_in_parts() -> None:
    async def open_planes() -> None:
        heap, frozen = Heap(), Cycle()
        reference = weakref.ref(frozen)
        for _ in range(MAX_COLLECTED_PLANES + 1):
            heap.freeze_soon()
        del frozen
        gc.collect()
        assert reference() is not None

    run(open_planes())


def test_planes_that_are_open_are_never_collected_again() -> None:
    async def freeze_for_a_day() -> None:
        heap, frozen = Heap(), Cycle()
        reference = weakref.ref(frozen)
        await freeze(heap)
        del frozen
        for _ in range(24):
            await asyncio.sleep(3600)
            await freeze(heap)
        assert reference() is not None

    run(freeze_for_a_day())


BODY = b'{"metadata":{"generateName":"x"}}'
LARGE_BODY = b'{"metadata":{"generateName":"x"},"data":{"a":"%b","not valid":""}}' % (b"x" * LARGE_BYTES)
"""A body that is validated in a thread, with an error."""
REQUESTS = (
    ("POST", MAPS, LARGE_BODY),
    *(("GET", MAPS, b""), ("POST", MAPS, BODY), ("POST", MAPS, b"{"), ("DELETE", MAPS, b"")),
    *(("GET", "/api/v1/namespaces/none", b""), ("GET", "/openapi/v3", b""), ("GET", "/none", b"")),
)


async def use(running: ListeningPlanes) -> None:
    """Send requests, and end a watch by closing its connection."""
    client = await running.connect("a", running.tls(running.admin("a")))
    for method, path, body in REQUESTS:
        await client.request(method, path, body, Content_Type="application/json")
    client.send("GET", f"{MAPS}?watch=1")
    await client.response()
    client.writer.close()
    running.clients.clear()
    entry = running.planes.get("a")
    assert entry is not None
    assert entry.plane is not None
    await entry.plane.opened.http_handler.active_requests.wait_for_end(RequestKind.WATCH, TIMEOUT)


async def test_requests_and_connections_leave_no_reference_cycles(tmp_path: Path) -> None:
    """Otherwise, those that are open when the objects of a plane are excluded would never be freed."""
    async with listening_planes(tmp_path) as running:
        await running.opened("a")
        await use(running)
        gc.collect()
        gc.disable()
        await use(running)
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            gc.collect()
        finally:
            gc.set_debug(0)
            gc.enable()
        left = Counter(type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith("tapestry"))
        gc.garbage.clear()
    assert left == {}


def test_closed_heap_freezes_nothing() -> None:
    async def close_early() -> None:
        before, heap = gc.get_freeze_count(), Heap()
        heap.freeze_soon()
        heap.close()
        await asyncio.sleep(2 * FREEZE_DELAY)
        assert gc.get_freeze_count() == before

    run(close_early())
