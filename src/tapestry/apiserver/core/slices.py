"""Slices of long work on the event loop, between which other tasks run."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")

SLICE_SECONDS = 0.005
"""Seconds after which other tasks run."""


async def sliced(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items, and let other tasks run whenever a slice is over."""
    end = time.monotonic() + SLICE_SECONDS
    for item in items:
        yield item
        if time.monotonic() >= end:
            await asyncio.sleep(0)
            end = time.monotonic() + SLICE_SECONDS
