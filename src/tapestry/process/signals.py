"""Being told to stop."""

import asyncio
import signal


def stop_event() -> asyncio.Event:
    """Set by SIGTERM or Ctrl-C, from now on, for as long as the event loop that calls runs."""
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping
