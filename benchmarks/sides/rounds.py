"""Clock for both sides of the comparison with kopf: counts handled events and starts rounds."""

import asyncio
import time

import aiohttp


class Rounds:
    """Start `rounds` rounds of `objects` events, each after all events of the previous one were handled.

    The initial list warms up both sides and is not measured.
    """

    def __init__(self, url: str, objects: int, rounds: int) -> None:
        self._url = url
        self._objects = objects
        self._rounds = rounds
        self._handled = 0
        self._all_handled = asyncio.Event()

    def handled(self) -> None:
        """Count one handled event."""
        self._handled += 1
        if self._handled == self._objects:
            self._all_handled.set()

    async def measured(self) -> dict[str, float]:
        """Return the CPU seconds and the wall clock seconds per event."""
        async with aiohttp.ClientSession(self._url) as session:
            await self._wait_for_all()
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(self._rounds):
                async with session.post("/rounds"):
                    await self._wait_for_all()
            events = self._rounds * self._objects
            return {"cpu": (time.process_time() - cpu) / events, "wall": (time.perf_counter() - wall) / events}

    async def _wait_for_all(self) -> None:
        async with asyncio.timeout(60):
            await self._all_handled.wait()
        self._handled = 0
        self._all_handled.clear()
