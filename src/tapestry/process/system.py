"""Stop on SIGTERM and SIGINT."""

import asyncio
import signal


def stop_event() -> asyncio.Event:
    """Return an event that SIGTERM or SIGINT sets, as long as the running event loop lives."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
