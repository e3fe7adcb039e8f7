"""The audit log: one JSON line for every write and for every session in a pod, written in the background.

Clients with an audit log record their writes:

    audit.record(WriteRecord("syncer/east", "patch", "pods", "web-0", namespace="default", code=200, seconds=0.004))

That only appends to a buffer.  A thread writes the buffer a fifth of a second later, and on close.  A full buffer drops
records and counts them.  Many logs can share a thread, but not a buffer.  The file may be rotated by renaming or
truncating it.  With a maximum size, it is rotated automatically.
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
"""Maximum bytes of buffered records, as far as their sizes are known."""
PART_BYTES = 1 << 20
"""Bytes after which a file is checked for its maximum size."""
CLOSE_SECONDS = 5.0

DROPPED = Counter(
    "tapestry_audit_dropped_total", "Audit records lost because the buffer was full or the file was not writable."
)

log = logs.logger("tapestry.audit")


class WriteRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """One write: the request, and its result as the `code` of the response or the class of the `error`."""

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


class SessionRecord(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """One finished session of exec, attach or port-forward in a pod."""

    who: str
    user: str
    name: str
    namespace: str
    subresource: str
    container: str
    command: tuple[str, ...]
    protocol: str
    seconds: float
    received: int
    """Bytes from the client."""
    sent: int
    """Bytes to the client."""
    error: str
    """Reason why this process ended the session; empty if the client or the pod ended it."""
    verb: str = "connect"
    resource: str = "pods"
    time: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))


class AuditWriter:
    """The thread of one or more audit logs.  It runs while one is open.  A blocked pipe delays all of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open_logs = 0
        self._waiting: dict[AuditLog, None] = {}
        """Logs with records to write, or to close."""
        self._wake = threading.Event()
        self._flush_now = threading.Event()

    def add_log(self) -> None:
        with self._lock:
            self._open_logs += 1
            if self._open_logs == 1:
                threading.Thread(target=self._run, name="audit", daemon=True).start()

    def write(self, audit_log: "AuditLog", *, at_once: bool = False) -> None:
        """Write the records of a log in a moment, together with others, or at once."""
        with self._lock:
            self._waiting[audit_log] = None
        if at_once:
            self._flush_now.set()
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._flush_now.wait(FLUSH_SECONDS)  # collect many records per write
            self._flush_now.clear()
            self._wake.clear()
            with self._lock:
                waiting, self._waiting = list(self._waiting), {}
            closed = sum([each.write_buffer() for each in waiting])
            waiting.clear()
            with self._lock:
                self._open_logs -= closed
                if not self._open_logs:
                    return


class AuditLog:
    """Write records to the file at `path`, or to stderr for `-`, in the thread of a writer, until `close`.

    A path that cannot be opened raises OSError in the constructor.  A file that reaches `max_bytes` is renamed with a
    timestamp, and `backups` of them are kept. 0 means no limit.
    """

    def __init__(
        self,
        path: str,
        *,
        capacity: int = 10_000,
        max_buffered_bytes: int | None = None,
        max_bytes: int = 0,
        backups: int = 0,
        writer: AuditWriter | None = None,
    ) -> None:
        """Open the log.  `capacity` is the maximum number of buffered records.  Without a writer, it has its own."""
        self._path = path
        self._capacity = capacity
        self._max_buffered_bytes = MAX_BUFFERED_BYTES if max_buffered_bytes is None else max_buffered_bytes
        self._max_bytes = max_bytes
        self._backups = backups
        self._buffered_bytes = 0
        self._file = open_for_append(path)
        self._buffer: deque[object] = deque()
        self._unwritten = b""  # written first after a failure, so that no line is split
        self._is_failing = False
        self._write_lock = threading.Lock()
        self._is_waiting = False
        """True if the writer will write the records that are buffered."""
        self._is_closing = False
        self._written = threading.Event()
        """Set when the last records are written or lost."""
        self._writer = writer or AuditWriter()
        self._writer.add_log()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(self, entry: object, size: int = 0) -> None:
        """Buffer a record without waiting, from any thread.  After `close`, records are dropped.

        `entry` is a WriteRecord or any JSON-serializable value.  Pass the `size` of large ones.
        """
        if (
            len(self._buffer) >= self._capacity
            or self._is_closing
            or self._buffered_bytes + size > self._max_buffered_bytes
        ):
            DROPPED.inc()
            return
        self._buffered_bytes += size
        self._buffer.append(entry)
        if not self._is_waiting:
            self._is_waiting = True
            self._writer.write(self)

    def flush(self) -> None:
        """Write the records buffered so far.  If that fails, raise OSError and keep them."""
        with self._write_lock:
            self._follow_rotation()
            self._write_out()  # the rest of an earlier failure
            self._unwritten = b"".join(msgspec.json.encode(entry) + b"\n" for entry in drain(self._buffer))
            self._buffered_bytes = 0
            self._write_out()
            self._rotate()

    def close(self) -> None:
        """Write the remaining records and sync the file.  Wait at most five seconds for a blocked pipe."""
        if self._is_closing:
            return
        self._is_closing = True
        self._writer.write(self, at_once=True)
        if self._written.wait(CLOSE_SECONDS):
            sync_and_close(self._file)

    def write_buffer(self) -> bool:
        """Write the records, or try again later.  Return whether these were the last, once."""
        if self._written.is_set():  # `close` wakes it also after the writer had seen that the log is closing
            return False
        is_last, self._is_waiting = self._is_closing, False
        try:
            self.flush()
        except Exception:  # the thread must survive a full disk and any other error
            if not self._is_failing:
                log.exception("audit log write failed", path=self._path)
            self._is_failing = True
            if not is_last:
                self._writer.write(self)
        else:
            self._is_failing = False
        if is_last:
            DROPPED.inc(by=self._unwritten.count(b"\n") + len(self._buffer))
            self._written.set()
        return is_last

    def _write_out(self) -> None:
        """Write whole lines, about `PART_BYTES` at a time, so that a file exceeds its maximum size by little."""
        while self._unwritten:
            unwritten = (self._unwritten.find(b"\n", PART_BYTES) + 1) if self._max_bytes else 0
            unwritten = unwritten or len(self._unwritten)
            while unwritten:
                written = os.write(self._file, self._unwritten[:unwritten])
                self._unwritten, unwritten = self._unwritten[written:], unwritten - written
            if self._unwritten:
                self._rotate()
                self._follow_rotation()

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
            pass  # renamed, not recreated yet
        old, self._file = self._file, open_for_append(self._path)
        sync_and_close(old)


def open_for_append(path: str) -> int:
    """Return a file descriptor for appending.  A new file is readable by its owner only."""
    if path == STDERR:
        return os.dup(2)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def sync_and_close(file: int) -> None:
    if stat.S_ISREG(os.fstat(file).st_mode):  # pipes and terminals cannot be synced
        os.fsync(file)
    os.close(file)


def drain(buffer: deque[object]) -> list[object]:
    """Remove and return the current records.  Records added meanwhile stay."""
    return [buffer.popleft() for _ in range(len(buffer))]
