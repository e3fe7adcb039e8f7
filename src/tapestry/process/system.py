"""Signals that stop the process, and its limit of open files."""

import asyncio
import resource
import signal


def stop_event() -> asyncio.Event:
    """Return an event that SIGTERM or SIGINT sets, as long as the running event loop lives."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def raise_open_file_limit(desired: int) -> int:
    """Raise the limit to `desired`, as far as the system allows.  Return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= desired:
        return desired if soft == resource.RLIM_INFINITY else soft
    raised = desired if hard == resource.RLIM_INFINITY else min(desired, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return raised
