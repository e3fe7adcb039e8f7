"""The audit: an append-only record of every write that was made, one JSON line each, off the hot path.

Whoever writes holds an `audit: Audit | None` and hands over what it did:

    audit.record(Write("syncer/east", "patch", "pods", "web-0", namespace="default", code=200, seconds=0.004))

That only appends to a buffer.  A thread writes the buffer out a fifth of a second later and when the audit is closed;
a full buffer drops what comes and counts it.  The file may be rotated by moving it away or by truncating it; where it
is given a largest size, it is moved away by itself when it has reached that.
"""

import os
import stat
import threading
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import msgspec

from tapestry.process import logs
from tapestry.process.counters import Counter

STDERR = "-"
FLUSH_SECONDS = 0.2
MAX_BUFFERED_BYTES = 64 << 20
"""Bytes of records, as far as their size is known, that may wait to be written."""
CLOSE_SECONDS = 5.0

DROPPED = Counter("tapestry_audit_dropped_total", "Audit records lost to a full buffer or a file that refused them.")

log = logs.logger("tapestry.audit")


class WriteRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """One write: what was asked for, and what came of it as the `code` of the answer or the class of the `error`."""

    who: str
    verb: str
    resource: str
    name: str
    namespace: str | None = None
    subresource: str | None = None
    code: int | None = None
    error: str | None = None
    request_id: str | None = None
    seconds: float | None = None
    time: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))


class AuditLog:
    """Owns the file at `path`, or stderr for `-`, and the thread that writes to it, until `close`.

    A path that cannot be opened raises OSError here, not when there is something to write.  A file that has reached
    `largest` bytes is moved away, to its name and the time, and of those `backups` are kept; 0 is no limit.
    """

    def __init__(self, path: str, *, capacity: int = 10_000, max_bytes: int = 0, backups: int = 0) -> None:
        self._path = path
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._backups = backups
        self._buffered_bytes = 0
        self._file = open_for_append(path)
        self._buffer: deque[object] = deque()
        self._unwritten = b""  # what a failing file has not taken; it goes first, so that no line is torn
        self._is_failing = False
        self._write_lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(self, entry: object, size: int = 0) -> None:
        """Never waits; any thread may call it.  After `close` everything is dropped.

        `write` is a Write, or whatever else makes a line of JSON; what is large says so.
        """
        if (
            len(self._buffer) >= self._capacity
            or self._closing.is_set()
            or self._buffered_bytes + size > MAX_BUFFERED_BYTES
        ):
            DROPPED.inc()
            return
        self._buffered_bytes += size
        self._buffer.append(entry)
        if not self._wake.is_set():
            self._wake.set()

    def flush(self) -> None:
        """Writes out what was recorded before the call; raises OSError, and keeps it, when the file refuses."""
        with self._write_lock:
            self._follow_rotation()
            self._write_out()  # what is left from before
            self._unwritten = b"".join(msgspec.json.encode(write) + b"\n" for write in drain(self._buffer))
            self._buffered_bytes = 0
            self._write_out()
            self._rotate()

    def close(self) -> None:
        """Writes out the rest and makes it durable; a reader of a pipe that stopped reading is given five seconds."""
        self._closing.set()
        self._wake.set()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._closing.wait(FLUSH_SECONDS)  # so that one write takes many records
            self._wake.clear()
            self._try_to_flush()
        self._try_to_flush()
        DROPPED.inc(by=self._unwritten.count(b"\n") + len(self._buffer))
        sync_and_close(self._file)

    def _try_to_flush(self) -> None:
        try:
            self.flush()
        except Exception:  # the thread must outlive a full disk, and whatever else there is
            if not self._is_failing:
                log.exception("audit cannot be written", path=self._path)
            self._is_failing = True
            self._wake.set()  # to try again
        else:
            self._is_failing = False

    def _write_out(self) -> None:
        while self._unwritten:
            self._unwritten = self._unwritten[os.write(self._file, self._unwritten) :]

    def _rotate(self) -> None:
        if not self._max_bytes or self._path == STDERR or os.fstat(self._file).st_size < self._max_bytes:
            return
        path = Path(self._path)
        path.rename(path.with_name(f"{path.name}.{datetime.now(UTC):%Y-%m-%dT%H-%M-%S.%f}"))
        if self._backups:
            for old in sorted(path.parent.glob(f"{path.name}.????-??-??T??-??-??.*"))[: -self._backups]:
                old.unlink(missing_ok=True)

    def _follow_rotation(self) -> None:
        if self._path == STDERR:
            return
        try:
            if os.path.samestat(os.stat(self._path), os.fstat(self._file)):
                return
        except FileNotFoundError:
            pass  # moved away, and nothing in its place yet
        old, self._file = self._file, open_for_append(self._path)
        sync_and_close(old)


def open_for_append(path: str) -> int:
    """A descriptor that appends; a new file is for its owner only."""
    if path == STDERR:
        return os.dup(2)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def sync_and_close(file: int) -> None:
    if stat.S_ISREG(os.fstat(file).st_mode):  # pipes and terminals cannot be synced
        os.fsync(file)
    os.close(file)


def drain(buffer: deque[object]) -> list[object]:
    """What is in the buffer now; records that other threads add meanwhile stay for the next time."""
    return [buffer.popleft() for _ in range(len(buffer))]
