"""Files that are read again when they change: what somebody writes there holds within a moment."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from tapestry.process.logs import logger

log = logger(__name__)

T = TypeVar("T")
CHECK_INTERVAL = 0.1
"""Seconds between two looks at a file: many requests come in between."""


class ReloadingFile(Generic[T]):
    """What `read` makes of a file.  It raises ValueError for one that cannot be used: here, if that is so from the
    start; later the last good content stays, and the log says so."""

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
        mark = self._current_stamp()
        if mark != self._file_stamp:
            self._file_stamp = mark
            try:
                self._content = self._read(self._path)
            except ValueError as error:
                log.warning("a changed file cannot be used; what was in it before still holds", error=error)
            else:
                log.info("a file has changed and was read again", path=self._path)
        return self._content

    def _current_stamp(self) -> tuple[int, int, int, int]:
        try:
            found = self._path.stat()
        except OSError:
            return 0, 0, 0, 0
        return found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode
