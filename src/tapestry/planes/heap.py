"""Garbage collection in a process with many planes.

The objects of open planes are excluded from garbage collection, so that a full collection takes milliseconds, however
many planes are open. Excluded objects are freed when nothing refers to them: a plane that closes leaves no reference
cycles, and neither do requests that were in flight when their objects were excluded.
"""

import asyncio
import gc

FREEZE_DELAY = 1.0
"""Seconds after a plane has opened at which its objects are excluded. By then, its controllers have started."""
MAX_COLLECTED_PLANES = 3
"""Number of opened planes whose objects are collected once before they are excluded."""


class Heap:
    """The garbage collector of this process."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._opened = 0
        """Number of planes that have opened since objects were excluded."""

    def freeze_soon(self) -> None:
        """Exclude all objects that exist in a second from garbage collection. Called when a plane has opened."""
        self._opened += 1
        if self._opened > MAX_COLLECTED_PLANES:
            self._freeze()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FREEZE_DELAY, self._freeze)

    def _freeze(self) -> None:
        self.close()
        self._opened = 0
        gc.collect()  # the objects of the last planes, and not those that are excluded already
        gc.freeze()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
