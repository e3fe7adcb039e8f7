"""Files whose parsed content is reloaded when they change."""

import time
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Generic, TypeVar

from tapestry.process.logs import logger

log = logger(__name__)

T = TypeVar("T")
FileStamp = tuple[int, int, int, int]
CHECK_INTERVAL = 0.1
"""Seconds between two checks of a file, so that most requests skip the check."""


class ReloadingFile(Generic[T]):
    """Parsed content of a file. The constructor raises ValueError for invalid content. Later, a failure is logged and
    the last valid content is kept."""

    def __init__(
        self, path: Path, read: Callable[[Path], T], others: Sequence[Path] = (), max_age: float = inf
    ) -> None:
        """Read `path`, and read it again when it or one of `others` has changed, or after `max_age` seconds."""
        self._path, self._paths, self._max_age = path, (path, *others), max_age
        self._read = read
        self._file_stamp, self._checked_at = self._current_stamp(), time.monotonic()
        self._read_at = self._checked_at
        self._content = read(path)

    def __call__(self) -> T:
        if time.monotonic() < self._checked_at + CHECK_INTERVAL:
            return self._content
        return self.latest()

    def latest(self) -> T:
        """Check for changes now, for callers that miss something that may be new."""
        self._checked_at = now = time.monotonic()
        stamp = self._current_stamp()
        has_changed = stamp != self._file_stamp
        if has_changed or now >= self._read_at + self._max_age:
            self._file_stamp, self._read_at = stamp, now
            try:
                self._content = self._read(self._path)
            except ValueError as error:
                log.warning("file reload failed, keeping the previous content", error=error)
            else:
                if has_changed:
                    log.info("file reloaded", path=self._path)
        return self._content

    def _current_stamp(self) -> list[FileStamp]:
        return [file_stamp(each) for each in self._paths]


def file_stamp(path: Path) -> FileStamp:
    """Return values that differ after a change of the file; zeros if it cannot be accessed."""
    try:
        stat = path.stat()
    except OSError:
        return 0, 0, 0, 0
    return stat.st_ino, stat.st_mtime_ns, stat.st_size, stat.st_mode
