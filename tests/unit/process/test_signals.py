"""Being told to stop, by signals that are really sent."""

import asyncio
import os
import signal

import pytest

from tapestry.process.signals import stop_event


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
async def test_whoever_waits_goes_on_when_told_to_stop(number: signal.Signals) -> None:
    stopping = stop_event()
    assert not stopping.is_set()
    os.kill(os.getpid(), number)
    async with asyncio.timeout(10):
        await stopping.wait()
