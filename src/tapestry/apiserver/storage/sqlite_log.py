"""The log on a disk: one SQLite file with the newest version of each object, written ahead and synced.

A transaction holds every write that waited for it.  When it returns, all of them are on the disk (WAL, synchronous
FULL).  The highest revision is kept beside the objects, in a row of nobody's: a deleted object's must not be given out
again.

Most transactions are one statement: each call of SQLite lets go of the interpreter, and does not come by it again at
once while the server is busy.
"""

import fcntl
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from itertools import groupby
from pathlib import Path

import apsw

from tapestry.apiserver.storage.log import Entry, Key, StorageError

DATABASE_NAME = "tapestry.db"
LOCK_NAME = "lock"
SCHEMA_VERSION = 2
SCHEMA = """
CREATE TABLE objects (
    id INTEGER PRIMARY KEY,
    resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    revision INTEGER NOT NULL, checksum INTEGER NOT NULL, raw BLOB NOT NULL,
    UNIQUE (resource, namespace, name)
);
INSERT INTO objects (resource, namespace, name, revision, checksum, raw) VALUES ('', '', '', 0, 0, x'');
"""
MIGRATION_FROM_1 = f"""
ALTER TABLE objects RENAME TO objects_1;
{SCHEMA}
INSERT INTO objects (resource, namespace, name, revision, checksum, raw)
    SELECT resource, namespace, name, revision, checksum, raw FROM objects_1;
UPDATE objects SET revision = (SELECT revision FROM latest) WHERE resource = '';
DROP TABLE objects_1;
DROP TABLE latest;
"""
EMPTY_KEY = Key("", "", "")
"""Whose row has the highest revision that was given out."""
SELECT_ENTRIES = """
    SELECT resource, namespace, name, revision, checksum, raw FROM objects
    WHERE resource <> '' ORDER BY revision
"""
SELECT_LATEST = "SELECT revision FROM objects WHERE resource = ''"
DELETE_ENTRY = "DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?"


@cache
def upsert_statement(count: int) -> str:
    """The statement by which so many objects are as they are now, whatever they were."""
    return f"""
        INSERT INTO objects (resource, namespace, name, revision, checksum, raw)
        VALUES {", ".join(["(?, ?, ?, ?, ?, ?)"] * count)}
        ON CONFLICT (resource, namespace, name)
        DO UPDATE SET revision = excluded.revision, checksum = excluded.checksum, raw = excluded.raw
    """


def migrate(connection: apsw.Connection) -> int:
    """The version that a file is of, once it is brought up to this program's if it is new, or of an earlier one."""
    found: int = connection.pragma("user_version")
    if found in (0, 1):
        with connection:
            connection.execute(MIGRATION_FROM_1 if found else SCHEMA)
            connection.pragma("user_version", SCHEMA_VERSION)
        return SCHEMA_VERSION
    return found


@contextmanager
def write_lock(folder: Path) -> Iterator[None]:
    """The right to write below `folder`, which one process has at a time.  Others may read meanwhile."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / LOCK_NAME).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StorageError(f"{folder / DATABASE_NAME}: another process has it open; stop that one first") from None
        yield


class FileLog:
    """Opens, or makes, the file below `folder`; no other process may have it open to write."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / DATABASE_NAME
        self._write_lock = ExitStack()
        self._write_lock.enter_context(write_lock(folder))
        try:
            self._connection = self._open()
        except apsw.FullError as error:
            self._write_lock.close()
            raise StorageError(f"{self.path}: the disk is full; make room and start again") from error
        except apsw.Error as error:
            self._write_lock.close()
            raise StorageError(
                f"{self.path}: {error}; restore a backup, or move the file away to start empty"
            ) from error
        except StorageError:
            self._write_lock.close()
            raise

    def _open(self) -> apsw.Connection:
        connection = apsw.Connection(str(self.path))
        os.chmod(self.path, 0o600)
        connection.pragma("journal_mode", "WAL")
        connection.pragma("synchronous", "FULL")
        found = migrate(connection)
        if found != SCHEMA_VERSION:
            raise StorageError(f"{self.path}: is of version {found}, and this program reads version {SCHEMA_VERSION}")
        return connection

    def load(self) -> tuple[int, Iterator[Entry]]:
        try:
            [[latest]] = self._connection.execute(SELECT_LATEST)
        except apsw.Error as error:
            raise StorageError(f"{self.path}: {error}; restore a backup") from error
        return int(latest), self._entries()

    def _entries(self) -> Iterator[Entry]:
        rows = self._connection.execute(SELECT_ENTRIES)
        try:
            for resource, namespace, name, revision, checksum, raw in rows:
                if zlib.crc32(raw) != checksum:
                    raise StorageError(
                        f"{self.path}: {resource} {namespace}/{name} at revision {revision} is not what was written; "
                        "restore a backup, or remove the object with `tapestry apiserver check --repair`"
                    )
                yield Entry(revision, Key(resource, namespace, name), raw)
        except apsw.Error as error:
            raise StorageError(f"{self.path}: {error}; restore a backup") from error

    def append(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        written = [*entries, Entry(entries[-1].revision, EMPTY_KEY, b"")]
        # In order: a key may come and go within one batch.
        runs = [list(run) for _, run in groupby(written, lambda entry: entry.raw is None)]
        try:
            with self._connection if len(runs) > 1 else nullcontext():  # a statement is a transaction of its own
                for run in runs:
                    self._write(run)
        except apsw.Error as error:
            raise StorageError(f"{self.path}: nothing was written: {error}") from error

    def _write(self, entries: Sequence[Entry]) -> None:
        """All of them put an object in its place, or all of them delete one."""
        values: list[str | int | bytes] = []
        for revision, key, raw in entries:
            if raw is None:
                self._connection.execute(DELETE_ENTRY, key)
            else:
                values += (*key, revision, zlib.crc32(raw), raw)
        if values:
            self._connection.execute(upsert_statement(len(entries)), values)

    def close(self) -> None:
        self._connection.close()
        self._write_lock.close()
