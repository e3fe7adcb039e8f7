"""Garbage collection in a process with many planes.

The objects of open planes are excluded from garbage collection, so that a full collection takes milliseconds, however
many planes are open. A plane that closes leaves no reference cycles, so its objects are freed without the collector.
"""

import asyncio
import gc

FREEZE_DELAY = 1.0
"""Seconds after a plane has opened at which its objects are excluded. By then, its controllers have started."""
FULL_INTERVAL = 600.0
"""Seconds after which excluded objects are collected, too: requests that were in flight may leave cycles."""


class Heap:
    """The garbage collector of this process."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._full_at = 0.0

    def freeze_soon(self) -> None:
        """Exclude all objects that exist in a second from garbage collection. Called when a plane has opened."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FREEZE_DELAY, self._freeze)

    def _freeze(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        if now >= self._full_at:
            self._full_at = now + FULL_INTERVAL
            gc.unfreeze()
        gc.collect()
        gc.freeze()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
