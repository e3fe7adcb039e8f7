"""Logs of several containers as one output."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

MAX_LINE_BYTES = 1 << 20
"""Bytes after which a line is written in parts, which may mix with lines of other logs."""


async def copy_lines(logs: Iterable[AsyncIterator[bytes]], write: Callable[[bytes], object]) -> None:
    """Write the lines of all logs as they arrive, until all logs have ended.  Raise the first error of one."""
    try:
        async with asyncio.TaskGroup() as group:
            for log in logs:
                group.create_task(copy_log(log, write))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def copy_log(log: AsyncIterator[bytes], write: Callable[[bytes], object]) -> None:
    rest = b""
    async for chunk in log:
        lines, newline, rest = (rest + chunk).rpartition(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            lines, newline, rest = lines + newline + rest, b"", b""
        if lines or newline:
            write(lines + newline)
    if rest:
        write(rest)
