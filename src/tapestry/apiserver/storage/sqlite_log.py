"""A log in one SQLite file that holds the newest version of each object.

Each transaction contains all writes that wait for it. They are on disk when it returns (WAL, synchronous FULL). A row
without a resource stores the highest revision, because the revision of a deleted object must not be reused.

Most transactions are a single statement: each call into SQLite releases the GIL, and a busy server does not get it back
immediately.

A process may have hundreds of logs, so a log that is idle holds little memory: SQLite caches no pages between
transactions, and only small prepared statements.
"""

import fcntl
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from itertools import groupby
from pathlib import Path
from sys import intern

import apsw

from tapestry.apiserver.core.store import Key, StorageError
from tapestry.apiserver.storage.log import Entry

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
RESTORED_FOLDER = "restored"
"""Folder in that of a server, with the database of objects with which a server in memory starts once."""
EMPTY_KEY = Key("", "", "")
"""Key of the row that stores the highest assigned revision."""
SELECT_ENTRIES = """
    SELECT resource, namespace, name, revision, checksum, raw FROM objects WHERE resource <> '' ORDER BY id
"""
SELECT_LATEST = "SELECT revision FROM objects WHERE resource = ''"
MAX_CACHED_ROWS = 4
"""Maximum number of rows of a statement that stays prepared. Each row takes 2 KB, and 2 us to prepare again."""
DELETE_ENTRY = "DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?"


@cache
def upsert_statement(count: int) -> str:
    """Return the statement that inserts or replaces `count` objects."""
    return f"""
        INSERT INTO objects (resource, namespace, name, revision, checksum, raw)
        VALUES {", ".join(["(?, ?, ?, ?, ?, ?)"] * count)}
        ON CONFLICT (resource, namespace, name)
        DO UPDATE SET revision = excluded.revision, checksum = excluded.checksum, raw = excluded.raw
    """


def migrate(connection: apsw.Connection) -> int:
    """Create the schema or migrate it from an earlier version. Returns the schema version of the file."""
    version: int = connection.pragma("user_version")
    if version in (0, 1):
        with connection:
            connection.execute(MIGRATION_FROM_1 if version else SCHEMA)
            connection.pragma("user_version", SCHEMA_VERSION)
        return SCHEMA_VERSION
    return version


@contextmanager
def write_lock(folder: Path) -> Iterator[None]:
    """Hold the exclusive right to write to `folder`. Other processes can read meanwhile."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / LOCK_NAME).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StorageError(f"{folder / DATABASE_NAME}: another process has it open; stop that one first") from None
        yield


class FileLog:
    """Open or create the database in `folder`. No other process may have it open for writing."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / DATABASE_NAME
        self._write_lock = ExitStack()
        self._write_lock.enter_context(write_lock(folder))
        try:
            self._connection = self._open()
        except apsw.FullError as error:
            self._write_lock.close()
            raise StorageError(f"{self.path}: the disk is full; free disk space and restart") from error
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
        version = migrate(connection)
        if version != SCHEMA_VERSION:
            raise StorageError(f"{self.path}: has schema version {version}; this program reads {SCHEMA_VERSION}")
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
                yield Entry(revision, Key(intern(resource), intern(namespace), name), raw)
        except apsw.Error as error:
            raise StorageError(f"{self.path}: {error}; restore a backup") from error

    def append(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        all_entries = [*entries, Entry(entries[-1].revision, EMPTY_KEY, b"")]
        # Keep the order: one batch can create and delete the same key.
        runs = [list(run) for _, run in groupby(all_entries, lambda entry: entry.raw is None)]
        try:
            with self._connection if len(runs) > 1 else nullcontext():  # a single statement is its own transaction
                for run in runs:
                    self._write(run)
        except apsw.Error as error:
            raise StorageError(f"{self.path}: nothing was written: {error}") from error
        self._connection.release_memory()

    def _write(self, entries: Sequence[Entry]) -> None:
        """Write entries that are either all puts or all deletes."""
        values: list[str | int | bytes] = []
        for revision, key, raw in entries:
            if raw is None:
                self._connection.execute(DELETE_ENTRY, key)
            else:
                values += (*key, revision, zlib.crc32(raw), raw)
        if values:
            statement, is_small = upsert_statement(len(entries)), len(entries) <= MAX_CACHED_ROWS
            self._connection.execute(statement, values, can_cache=is_small)

    def close(self) -> None:
        self._connection.close()
        self._write_lock.close()
