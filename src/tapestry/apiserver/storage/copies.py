"""Copies: archives of the objects at one revision, without keys.

A copy is made from a store, which may be in use, or from the folder of a server, which may be running.
"""

import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

from tapestry.apiserver.core.private_files import sync_to_disk
from tapestry.apiserver.core.store import StorageError, Store
from tapestry.apiserver.storage.archive import (
    intact_entries,
    latest_revision,
    open_database,
    write_archive,
)
from tapestry.apiserver.storage.log import Entry
from tapestry.apiserver.storage.sqlite_log import DATABASE_NAME, EMPTY_KEY, migrate, upsert_statement

Snapshot = tuple[int, Iterable[Entry]]
"""A revision, and the objects at that revision."""


def store_snapshot(store: Store) -> Snapshot:
    """Return the objects as readers see them now. This takes microseconds, because versions are immutable."""
    versions = store.snapshot()
    return store.revision, (Entry(each.revision, each.key, each.raw) for each in versions)


@contextmanager
def folder_snapshot(folder: Path) -> Iterator[Snapshot]:
    """Yield the objects in a folder in one read transaction. Raises StorageError."""
    path = folder / DATABASE_NAME
    try:
        with closing(open_database(path)) as connection, connection:
            yield latest_revision(connection), intact_entries(path, connection)
    except apsw.Error as error:
        raise StorageError(f"{path}: {error}; restore a backup") from error


def write_copy(file: Path, snapshot: Snapshot, temporary: Path) -> int:
    """Write a copy and return its revision. `temporary` is an empty folder on the same disk."""
    revision, _ = snapshot
    write_database(temporary / DATABASE_NAME, snapshot)
    write_archive(file, temporary / DATABASE_NAME)
    return revision


def write_database(path: Path, snapshot: Snapshot) -> None:
    """Write a new database durably."""
    revision, entries = snapshot
    path.touch(mode=0o600, exist_ok=False)
    with closing(apsw.Connection(str(path))) as connection:
        connection.pragma("synchronous", "OFF")  # the complete file is synced at the end
        migrate(connection)
        with connection:
            rows = ((*key, each, zlib.crc32(raw), raw) for each, key, raw in entries if raw is not None)
            connection.executemany(upsert_statement(1), rows)
            connection.execute(upsert_statement(1), (*EMPTY_KEY, revision, 0, b""))
    sync_to_disk(path)
