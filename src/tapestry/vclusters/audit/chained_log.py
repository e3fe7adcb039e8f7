"""The audit log of one instance of the service: a chain of hashes in files, synced to disk before effects.

`append` gives a record its place in the chain. `wait_until_durable` returns when all records so far are on disk, and
many requests share one sync. Only what has effects has to wait: other records are synced a moment later.
"""

import asyncio
import fcntl
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import msgspec

from tapestry.process.logs import logger
from tapestry.vclusters.audit.records import (
    DECODER,
    AuditEvent,
    Head,
    chained,
    digest_of,
    last_line,
    segment_name,
    segments,
)

log = logger(__name__)

SYNC_SECONDS = 0.2
"""Seconds after which records are synced that nobody waits for."""
RETRY_SECONDS = 1.0
SEGMENT_BYTES = 8 << 20
MAX_UNWRITTEN_BYTES = 8 << 20


class AuditUnavailableError(Exception):
    """The audit log cannot be written, so nothing that it has to record may happen."""


class AuditLockedError(Exception):
    """Another process writes the audit log of this instance."""


@dataclass
class Segment:
    """The file that is being written."""

    path: Path
    file: int
    size: int
    first_sequence: int
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Held by a thread that writes: a cancelled task does not end its thread."""

    def write(self, content: bytes) -> None:
        """Write after the last complete record, and sync. A part that a failure has left is overwritten."""
        with self._lock:
            written = 0
            while written < len(content):
                written += os.pwrite(self.file, content[written:], self.size + written)
            os.fdatasync(self.file)
            self.size += written

    def close(self) -> None:
        with self._lock:
            os.close(self.file)
            self.file = -1


@dataclass
class ChainedLog:
    """The chain of one instance, which `open_log` opens."""

    folder: Path
    instance: str
    now: Callable[[], datetime]
    keep: timedelta
    """Age after which a segment is removed. The chain says so in a record."""
    segment: Segment
    sequence: int
    """Sequence of the last record."""
    digest: str
    """Digest of the last record."""
    segment_bytes: int = SEGMENT_BYTES
    _unwritten: list[bytes] = field(default_factory=list, init=False)
    _unwritten_bytes: int = field(default=0, init=False)
    _waiting: list[asyncio.Future[None]] = field(default_factory=list, init=False)
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _is_urgent: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _is_stopping: bool = field(default=False, init=False)
    _durable: Head = field(default=Head(0, ""), init=False)

    @property
    def head(self) -> Head:
        """The last durable record. Stored elsewhere, it shows whether the end was cut off."""
        return self._durable

    def append(self, event: AuditEvent) -> None:
        """Add an event to the chain. Raises AuditUnavailableError if too many records wait for the disk."""
        if self._unwritten_bytes > MAX_UNWRITTEN_BYTES:
            raise AuditUnavailableError(f"audit log {self.folder}: records cannot be written to disk")
        self._add(event)

    def _add(self, event: AuditEvent) -> None:
        line = chained(event, self.instance, self.sequence + 1, self.digest)
        self.sequence, self.digest = self.sequence + 1, digest_of(line)
        self._unwritten.append(line)
        self._unwritten_bytes += len(line)
        self._wake.set()

    async def wait_until_durable(self) -> None:
        """Return when all records so far are on disk. Raises AuditUnavailableError if they could not be written."""
        if not self._unwritten and self._durable[0] == self.sequence:
            return
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._wake.set()
        self._is_urgent.set()
        await waiting

    async def run(self) -> None:
        """Write records until stopped."""
        while not self._is_stopping:
            await self._wake.wait()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_urgent.wait(), SYNC_SECONDS)
            self._wake.clear()
            self._is_urgent.clear()
            if not await self._write_batch():
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()

    def stop(self) -> None:
        """End `run` after the batch that is being written."""
        self._is_stopping = True
        self._wake.set()
        self._is_urgent.set()

    async def _write_batch(self) -> bool:
        """Write and sync the records so far, and return whether that worked. If not, they are kept."""
        lines, waiting, head = list(self._unwritten), self._waiting, Head(self.sequence, self.digest)
        self._waiting = []
        try:
            await asyncio.to_thread(self.segment.write, b"".join(line + b"\n" for line in lines))
        except OSError as error:
            log.warning("audit log not written", folder=str(self.folder), error=str(error))
            for each in waiting:
                if not each.done():
                    each.set_exception(AuditUnavailableError(f"audit log {self.folder}: {error}"))
            return False
        del self._unwritten[: len(lines)]
        self._unwritten_bytes -= sum(map(len, lines))
        self._durable = head
        for each in waiting:
            if not each.done():
                each.set_result(None)
        if self.segment.size >= self.segment_bytes:
            await self._start_segment()
        return True

    async def _start_segment(self) -> None:
        """Continue the chain in a new file, and remove files that are older than the log keeps."""
        try:
            segment = await asyncio.to_thread(open_segment, self.folder / segment_name(self._durable[0] + 1))
        except OSError as error:
            log.warning("audit log continues in a large file", folder=str(self.folder), error=str(error))
            return
        self.segment.close()
        self.segment = segment
        removed = await asyncio.to_thread(self._remove_old_segments)
        if removed:
            message = f"records up to {removed} were older than {self.keep.days} days"
            self._add(AuditEvent(time=self.now(), stage="removed", message=message, code=str(removed)))

    def _remove_old_segments(self) -> int:
        """Remove segments whose last record is too old, and return the sequence of the last record removed."""
        files, removed = segments(self.folder), 0
        for path, following in pairwise(files):
            if not is_older(last_line(path), self.now() - self.keep):
                break
            path.unlink()
            removed = int(following.stem) - 1
        return removed


def is_older(line: bytes, time: datetime) -> bool:
    try:
        return DECODER.decode(line).time < time
    except msgspec.MsgspecError:
        return False


@asynccontextmanager
async def open_log(
    folder: Path,
    instance: str,
    now: Callable[[], datetime],
    keep: timedelta = timedelta(days=90),
    segment_bytes: int = SEGMENT_BYTES,
) -> AsyncIterator[ChainedLog]:
    """Continue the chain of an instance. Records that are not complete after a crash are removed: nothing relied on
    them. Raises AuditLockedError if another process writes the chain.
    """
    with locked(folder):
        segment, sequence, digest, removed = await asyncio.to_thread(last_segment, folder)
        chain = ChainedLog(folder, instance, now, keep, segment, sequence, digest, segment_bytes)
        message = f"{removed} bytes of an incomplete record removed" if removed else ""
        chain.append(AuditEvent(time=now(), stage="started", message=message))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(chain.run(), name="audit log")
                try:
                    await chain.wait_until_durable()
                    yield chain
                    await chain.wait_until_durable()
                finally:
                    chain.stop()
        finally:
            chain.segment.close()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create a folder if needed, and hold its lock."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(folder / ".lock", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AuditLockedError(f"audit log {folder}: another process writes it") from error
        yield
    finally:
        os.close(lock)


def open_segment(path: Path) -> Segment:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return Segment(path, file, os.fstat(file).st_size, int(path.stem))


def last_segment(folder: Path) -> tuple[Segment, int, str, int]:
    """Open the newest file. Return it, the sequence and digest of its last record, and the bytes cut off its end."""
    files = segments(folder)
    segment = open_segment(files[-1] if files else folder / segment_name(1))
    content = os.pread(segment.file, segment.size, 0)
    end = content.rfind(b"\n") + 1
    if end < len(content):
        os.ftruncate(segment.file, end)
        os.fdatasync(segment.file)
        segment.size = end
    line = last_line(segment.path)
    if line:
        return segment, sequence_of(line, segment), digest_of(line), len(content) - end
    previous = files[-2:-1]
    if previous:  # a crash after the new file was created
        return segment, segment.first_sequence - 1, digest_of(last_line(previous[0])), len(content) - end
    return segment, segment.first_sequence - 1, "", len(content) - end


def sequence_of(line: bytes, segment: Segment) -> int:
    """Return the sequence of a record. For a damaged one, count the lines, so that `verify` reports only the damage."""
    try:
        return DECODER.decode(line).sequence
    except msgspec.MsgspecError:
        return segment.first_sequence + os.pread(segment.file, segment.size, 0).count(b"\n") - 1
