"""Settings of the C library's allocator."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Parameters of `mallopt` in glibc."""
LARGE_BLOCK_BYTES = 64 << 10
TRIM_BYTES = 256 << 10


def return_large_blocks_to_system() -> bool:
    """Return freed large blocks to the system at once. Call this before threads start; False without glibc.

    By default, glibc keeps a heap per thread and raises its thresholds with each large block that is freed, so a
    server that has decoded a few large requests keeps their memory.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = {M_MMAP_THRESHOLD: LARGE_BLOCK_BYTES, M_TRIM_THRESHOLD: TRIM_BYTES, M_ARENA_MAX: 1}
    return all([mallopt(parameter, value) == 1 for parameter, value in settings.items()])
