"""Signals that stop the process, its limit of open files, and its allocator."""

import asyncio
import ctypes
import resource
import signal

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Parameters of `mallopt` in glibc."""
LARGE_BLOCK_BYTES = 64 << 10
TRIM_BYTES = 256 << 10


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


def return_large_blocks_to_system() -> bool:
    """Return freed large blocks to the system at once. Call this before threads start; False without glibc.

    By default, glibc keeps a heap per thread and raises its thresholds with each large block that is freed, so a
    server that has decoded a few large requests keeps their memory.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = {M_MMAP_THRESHOLD: LARGE_BLOCK_BYTES, M_TRIM_THRESHOLD: TRIM_BYTES, M_ARENA_MAX: 1}
    return all(mallopt(parameter, value) == 1 for parameter, value in settings.items())
