"""Files whose parsed content is reloaded when they change."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from tapestry.process.logs import logger

log = logger(__name__)

T = TypeVar("T")
CHECK_INTERVAL = 0.1
"""Seconds between two checks of a file, so that most requests skip the check."""


class ReloadingFile(Generic[T]):
    """Parsed content of a file. The constructor raises ValueError for invalid content. Later, a failure is logged and
    the last valid content is kept."""

    def __init__(self, path: Path, read: Callable[[Path], T]) -> None:
        self._path = path
        self._read = read
        self._file_stamp, self._checked_at = self._current_stamp(), time.monotonic()
        self._content = read(path)

    def __call__(self) -> T:
        now = time.monotonic()
        if now < self._checked_at + CHECK_INTERVAL:
            return self._content
        self._checked_at = now
        stamp = self._current_stamp()
        if stamp != self._file_stamp:
            self._file_stamp = stamp
            try:
                self._content = self._read(self._path)
            except ValueError as error:
                log.warning("file reload failed, keeping the previous content", error=error)
            else:
                log.info("file reloaded", path=self._path)
        return self._content

    def _current_stamp(self) -> tuple[int, int, int, int]:
        try:
            stat = self._path.stat()
        except OSError:
            return 0, 0, 0, 0
        return stat.st_ino, stat.st_mtime_ns, stat.st_size, stat.st_mode
