"""Container logs: lines with timestamps in size-limited files.

`ContainerLog` writes the output of one run of a container.  `read_log` reads a part of it and optionally follows it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from tapestry.kube.times import micro_timestamp
from tapestry.local.runtime import LogQuery
from tapestry.process.logs import logger

log = logger(__name__)

MAX_LOG_BYTES = 10 << 20
"""Size of a log file before rotation; only the newer of two files is read."""
MAX_LINE_BYTES = 16 << 10
TIMESTAMP_LENGTH = len("2006-01-02T15:04:05.000000Z ")


@dataclass
class ContainerLog:
    """Log of one run of a container; for one event loop."""

    path: Path
    now: Callable[[], datetime]
    max_bytes: int = MAX_LOG_BYTES
    rotations: int = 0
    closed: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Event that is set and replaced at each change."""
    _file: FileIO | None = None
    _partial_line: bytes = b""

    def write(self, data: bytes) -> None:
        """Write output; a line is in the file when it is complete or too long."""
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        if len(self._partial_line) >= MAX_LINE_BYTES:
            lines, self._partial_line = [*lines, self._partial_line], b""
        if lines:
            self._append(lines)

    def close(self) -> None:
        """Close the log and notify followers."""
        if self._partial_line:
            self._append([self._partial_line])
        self.closed = True
        if self._file is not None:
            self._file.close()
            self._file = None
        self._notify()

    def _append(self, lines: Iterable[bytes]) -> None:
        stamp = f"{micro_timestamp(self.now())} ".encode()
        try:
            file = self._open()
            file.write(b"".join(stamp + line + b"\n" for line in lines))
            if file.tell() > self.max_bytes:
                self._rotate(file)
        except OSError as error:  # a full disk must lose log lines only
            log.warning("container log write failed; lines dropped", path=str(self.path), error=str(error))
        self._notify()

    def _rotate(self, file: FileIO) -> None:
        file.close()
        self._file = None
        self.path.replace(self.path.with_suffix(".older"))
        self.rotations += 1

    def _open(self) -> FileIO:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
        return self._file

    def _notify(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


async def read_log(path: Path, query: LogQuery, source: ContainerLog | None) -> AsyncIterator[bytes]:
    """Yield the requested part of a log; `source` is its writer, if it is still open."""
    remaining = query.limit
    async for line in log_lines(path, query, source):
        text = line if query.timestamps else line[TIMESTAMP_LENGTH:]
        if remaining is not None:
            text = text[:remaining]
            remaining -= len(text)
        if text:
            yield text
        if remaining == 0:
            return


async def log_lines(path: Path, query: LogQuery, source: ContainerLog | None) -> AsyncIterator[bytes]:
    since = micro_timestamp(query.since).encode() if query.since else b""
    reader = LineReader(path)
    try:
        rotations = source.rotations if source is not None else 0
        first: Iterable[bytes] = (line for line in reader.lines() if line[: TIMESTAMP_LENGTH - 1] >= since)
        for line in first if query.tail is None else deque(first, maxlen=query.tail):
            yield line
        while query.follow and source is not None:
            changed, is_last = source.changed, source.closed
            for line in reader.lines():
                yield line
            if rotations != source.rotations:  # the rotated file is read to its end; continue with the new one
                rotations = source.rotations
                reader.close()
                reader = LineReader(path)
                continue
            if is_last:
                return
            await changed.wait()
    finally:
        reader.close()


class LineReader:
    """Complete lines of a file that may grow, or not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def lines(self) -> Iterator[bytes]:
        if self._file is None:
            try:
                self._file = self._path.open("rb")
            except FileNotFoundError:
                return
        while (line := self._file.readline()).endswith(b"\n"):
            yield line

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
