"""The clock of both sides of the comparison with kopf: it counts what was handled and asks the server for more."""

import asyncio
import time

import aiohttp


class Rounds:
    """Asks for `rounds` rounds of `objects` events, each when all of the one before have been handled.

    The list that comes first warms both sides up and is not measured.
    """

    def __init__(self, url: str, objects: int, rounds: int) -> None:
        self._url = url
        self._objects = objects
        self._rounds = rounds
        self._handled = 0
        self._all_handled = asyncio.Event()

    def handled(self) -> None:
        """One more event went through."""
        self._handled += 1
        if self._handled == self._objects:
            self._all_handled.set()

    async def measured(self) -> dict[str, float]:
        """Seconds of CPU and of the wall clock for each event."""
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
