"""The log on a disk: one SQLite file with the newest version of each object, written ahead and synced.

A transaction holds every write that waited for it.  When it returns, all of them are on the disk (WAL, synchronous
FULL).  The highest revision is kept beside the objects: a deleted object's must not be given out again.
"""

import fcntl
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import apsw

from tapestry.apiserver.storage.log import Entry, Key, LogError

NAME = "tapestry.db"
LOCK = "lock"
VERSION = 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    revision INTEGER NOT NULL, checksum INTEGER NOT NULL, raw BLOB NOT NULL,
    PRIMARY KEY (resource, namespace, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS latest (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL);
INSERT OR IGNORE INTO latest VALUES (1, 0);
"""
PUT = "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?)"
DELETE = "DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?"


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """The right to write below `folder`, which one process has at a time.  Others may read meanwhile."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LogError(f"{folder / NAME}: another process has it open; stop that one first") from None
        yield


class FileLog:
    """Opens, or makes, the file below `folder`; no other process may have it open to write."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._held = ExitStack()
        self._held.enter_context(writing(folder))
        try:
            self._connection = self._opened()
        except apsw.FullError as error:
            self._held.close()
            raise LogError(f"{self.path}: the disk is full; make room and start again") from error
        except apsw.Error as error:
            self._held.close()
            raise LogError(f"{self.path}: {error}; restore a backup, or move the file away to start empty") from error
        except LogError:
            self._held.close()
            raise

    def _opened(self) -> apsw.Connection:
        connection = apsw.Connection(str(self.path))
        os.chmod(self.path, 0o600)
        connection.pragma("journal_mode", "WAL")
        connection.pragma("synchronous", "FULL")
        found = connection.pragma("user_version")
        if found == 0:
            with connection:
                connection.execute(SCHEMA)
            connection.pragma("user_version", VERSION)
        elif found != VERSION:
            raise LogError(f"{self.path}: is of version {found}, and this program reads version {VERSION}")
        return connection

    def load(self) -> tuple[int, Iterator[Entry]]:
        try:
            [[latest]] = self._connection.execute("SELECT revision FROM latest")
        except apsw.Error as error:
            raise LogError(f"{self.path}: {error}; restore a backup") from error
        return int(latest), self._entries()

    def _entries(self) -> Iterator[Entry]:
        rows = self._connection.execute(
            "SELECT resource, namespace, name, revision, checksum, raw FROM objects ORDER BY revision"
        )
        try:
            for resource, namespace, name, revision, checksum, raw in rows:
                if zlib.crc32(raw) != checksum:
                    raise LogError(
                        f"{self.path}: {resource} {namespace}/{name} at revision {revision} is not what was written; "
                        "restore a backup, or remove the object with `tapestry apiserver check --repair`"
                    )
                yield Entry(revision, Key(resource, namespace, name), raw)
        except apsw.Error as error:
            raise LogError(f"{self.path}: {error}; restore a backup") from error

    def append(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        puts = [(*each.key, each.revision, zlib.crc32(each.raw), each.raw) for each in entries if each.raw is not None]
        try:
            with self._connection:
                # In order: a key may come and go within one batch.
                if len(puts) == len(entries):
                    self._connection.executemany(PUT, puts)
                else:
                    for entry in entries:
                        self._put(entry)
                self._connection.execute("UPDATE latest SET revision = ?", (entries[-1].revision,))
        except apsw.Error as error:
            raise LogError(f"{self.path}: nothing was written: {error}") from error

    def _put(self, entry: Entry) -> None:
        if entry.raw is None:
            self._connection.execute(DELETE, entry.key)
        else:
            self._connection.execute(PUT, (*entry.key, entry.revision, zlib.crc32(entry.raw), entry.raw))

    def close(self) -> None:
        self._connection.close()
        self._held.close()
