"""The stop event, with real signals."""

import asyncio
import os
import signal

import pytest

from tapestry.process.system import stop_event


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
async def test_signal_sets_the_stop_event(number: signal.Signals) -> None:
    stopping = stop_event()
    assert not stopping.is_set()
    os.kill(os.getpid(), number)
    async with asyncio.timeout(10):
        await stopping.wait()
