"""Snapshots of planes, with all their objects at one revision, and their restore into the same plane or a new one.

A restored plane has its old identity, users and keys. Its pods start again, because the host cluster has other ones by
now; its volumes stay. Functions that are not async block and may take seconds, so servers call them in a thread.
"""

import asyncio
import hashlib
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import apsw
import msgspec

from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.epochs import EpochFence
from tapestry.apiserver.core.store import StorageError
from tapestry.apiserver.storage.archive import latest_revision, open_database, read_entries, unpack_checked
from tapestry.apiserver.storage.backends import etcd_imports
from tapestry.apiserver.storage.copies import Snapshot, write_database
from tapestry.apiserver.storage.log import Entry
from tapestry.apiserver.storage.raw_objects import with_revision
from tapestry.apiserver.storage.sqlite_log import (
    DATABASE_NAME,
    EMPTY_KEY,
    RESTORED_FOLDER,
    migrate,
    upsert_statement,
    write_lock,
)
from tapestry.kube.resources import (
    CONTROLLER_REVISIONS,
    CRON_JOBS,
    DAEMON_SETS,
    DEPLOYMENTS,
    JOBS,
    PODS,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    STATEFUL_SETS,
)
from tapestry.planes.copy_rules import (
    MARKED_RESOURCES,
    Elsewhere,
    decoded,
    elsewhere,
    is_left_behind,
    restarted_pod,
)
from tapestry.planes.plane_copies import new_plane_snapshot, write_all_objects
from tapestry.planes.plane_data import CopySource, copy_source
from tapestry.planes.plane_folders import create_plane_folder, temporary_folder
from tapestry.process.tasks import first_error

REVISION_GAP = 1000
"""Added to the revision of a restored plane, so that a watch from before the restore gets 410 and lists again."""
WORKLOADS = frozenset(
    each.name
    for each in (
        *(PODS, REPLICATION_CONTROLLERS, REPLICA_SETS, DEPLOYMENTS, STATEFUL_SETS, DAEMON_SETS),
        *(CONTROLLER_REVISIONS, JOBS, CRON_JOBS),
    )
)
"""Pods, and the kinds whose objects create pods."""
HASHED_BYTES = 1 << 20
FREE_SPACE_FACTOR, MIN_FREE_BYTES = 3, 64 << 20
"""A snapshot needs free disk space for its database, its archive and as much again."""
SELECT_COUNT = "SELECT count(*) FROM objects WHERE resource <> ''"


class NotEnoughSpace(Exception):
    """The disk has no space for a snapshot. Nothing was written."""


class SnapshotFile(NamedTuple):
    """A complete file."""

    revision: int
    objects: int
    size: int
    sha256: str


class Restored(NamedTuple):
    revision: int
    objects: int


async def snapshot_plane(source: CopySource, size: int, file: Path, *, with_workloads: bool = True) -> SnapshotFile:
    """Write a snapshot of a plane with about `size` bytes of objects. The file appears when it is complete.

    Without workloads, it has no pods, and nothing that creates pods.

    Raises NotEnoughSpace, StorageError and OSError.
    """
    written: list[SnapshotFile] = []

    def write(snapshot: Snapshot, target: Path) -> int:
        revision, entries = snapshot
        objects = Counted(entries if with_workloads else without_workloads(entries))
        write_all_objects((revision, objects), target)
        written.append(SnapshotFile(revision, objects.count, target.stat().st_size, file_hash(target)))
        return revision

    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    needed, free = FREE_SPACE_FACTOR * size + MIN_FREE_BYTES, shutil.disk_usage(file.parent).free
    if free < needed:
        raise NotEnoughSpace(f"a snapshot needs {needed} bytes of free disk space, and there are {free}")
    await copy_source(source, file, write)
    return written[0]


def without_workloads(entries: Iterable[Entry]) -> Iterator[Entry]:
    return (each for each in entries if each.key.resource not in WORKLOADS)


class Counted:
    """Entries that are counted while they are read."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries, self.count = entries, 0

    def __iter__(self) -> Iterator[Entry]:
        for each in self._entries:
            self.count += 1
            yield each


def file_hash(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while part := content.read(HASHED_BYTES):
            digest.update(part)
    return digest.hexdigest()


def restore_plane(
    folder: Path,
    file: Path,
    *,
    objects: int,
    is_new: bool,
    in_memory: bool,
    after: int = 0,
    with_workloads: bool = True,
) -> Restored:
    """Replace the objects of a closed plane with those of a snapshot, completely or not at all.

    `objects` is the number of objects in the file. A new plane gets an identity of its own, and nothing that proves
    that of the other plane. All revisions are beyond `after` and those that the folder has. The second call does the
    same again. Raises StorageError, also while the plane is open, and OSError.
    """
    if not folder.exists():
        create_plane_folder(folder.parent, folder.name)
    with temporary_folder(folder.parent) as temporary:
        revision, entries = checked_snapshot(file, temporary / "copy", objects, is_new=is_new)
        start = max(revision, after) + REVISION_GAP
        entries = entries if with_workloads else without_workloads(entries)
        if in_memory:
            return prepare_memory(folder, temporary, start, entries)
        return replace_objects(folder, start, entries)


async def restore_shared_plane(
    config: ApiServerConfig, fence: EpochFence, file: Path, *, objects: int, is_new: bool, with_workloads: bool = True
) -> Restored:
    """Replace the objects of a closed plane in etcd like `restore_plane`.

    An interrupted restore leaves no plane, which therefore cannot open, until a later one is complete. Raises
    StorageError, also if another process has taken the plane, and OSError.
    """
    with etcd_imports():
        from tapestry.planes.etcd_prefixes import replace_prefix  # noqa: PLC0415

    def read() -> list[Entry]:
        _, entries = checked_snapshot(file, temporary / "copy", objects, is_new=is_new)
        return list(entries if with_workloads else without_workloads(entries))

    with temporary_folder(Path(config.file_rootpath).parent) as temporary:
        entries = await asyncio.to_thread(read)
        try:
            revision = await replace_prefix(config, fence, entries)
        except ExceptionGroup as errors:
            raise first_error(errors) from errors
    return Restored(revision, len(entries))


def checked_snapshot(file: Path, folder: Path, objects: int, *, is_new: bool) -> Snapshot:
    """Unpack a snapshot into a new folder, and return its objects. Raises StorageError if it has not so many."""
    result = (new_plane_snapshot if is_new else same_plane_snapshot)(file, folder)
    with closing(open_database(folder / DATABASE_NAME)) as connection:
        [[found]] = connection.execute(SELECT_COUNT)
    if found != objects:
        raise StorageError(f"{file}: has {found} objects instead of {objects}; use another snapshot")
    return result


def same_plane_snapshot(file: Path, folder: Path) -> Snapshot:
    """Unpack a snapshot into a new folder, and return its objects for the plane that they are from.

    Its virtual nodes are left behind, because the syncer makes them from the host cluster.
    """
    unpack_checked(file, folder)
    with closing(open_database(folder / DATABASE_NAME)) as connection:
        revision = latest_revision(connection)
    has = Elsewhere(elsewhere(read_entries(folder, MARKED_RESOURCES)).nodes)
    entries = (each for each in read_entries(folder) if not is_left_behind(each, has))
    return revision, (restarted_entry(each, has) for each in entries)


def restarted_entry(entry: Entry, has: Elsewhere) -> Entry:
    """Return a pod that ran in the host cluster as one that has not started, and other objects as they are."""
    if entry.key.resource != PODS.name:
        return entry
    pod = decoded(entry)
    changed = restarted_pod(pod, has)
    return entry._replace(raw=msgspec.json.encode(changed)) if changed != pod else entry


def renumbered(entries: Iterable[Entry], start: int) -> Iterator[Entry]:
    """Yield the objects with revisions of their own: no client has an object with one of them."""
    for revision, each in enumerate(entries, start + 1):
        yield Entry(revision, each.key, with_revision(each.raw or b"", revision)[0])


def replace_objects(folder: Path, start: int, entries: Iterable[Entry]) -> Restored:
    """Replace all objects of a database in one transaction."""
    path = folder / DATABASE_NAME
    try:
        with write_lock(folder), closing(apsw.Connection(str(path))) as connection:
            path.chmod(0o600)
            connection.pragma("journal_mode", "WAL")
            connection.pragma("synchronous", "FULL")
            migrate(connection)
            with connection:
                latest = [revision for (revision,) in connection.execute("SELECT max(revision) FROM objects")]
                start = max(start, (latest[0] or 0) + REVISION_GAP)
                connection.execute("DELETE FROM objects")
                objects = Counted(renumbered(entries, start))
                rows = ((*key, number, zlib.crc32(raw), raw) for number, key, raw in objects if raw is not None)
                connection.executemany(upsert_statement(1), rows)
                [[count]] = connection.execute(SELECT_COUNT)
                if count != objects.count:
                    raise StorageError(f"{path}: has {count} objects instead of {objects.count}; nothing was changed")
                connection.execute(upsert_statement(1), (*EMPTY_KEY, start + count, 0, b""))
    except apsw.Error as error:
        raise StorageError(f"{path}: nothing was changed: {error}") from error
    return Restored(start + count, count)


def prepare_memory(folder: Path, temporary: Path, start: int, entries: Iterable[Entry]) -> Restored:
    objects = list(renumbered(entries, start))
    write_memory(folder, temporary, (start + len(objects), objects))
    return Restored(start + len(objects), len(objects))


def write_memory(folder: Path, temporary: Path, snapshot: Snapshot) -> None:
    """Write the objects with which a plane in memory opens next time."""
    with write_lock(folder):
        prepared = temporary / RESTORED_FOLDER
        prepared.mkdir(mode=0o700)
        write_database(prepared / DATABASE_NAME, snapshot)
        if (target := folder / RESTORED_FOLDER).exists():
            shutil.rmtree(target)
        prepared.rename(target)


def keep_memory(folder: Path, snapshot: Snapshot) -> None:
    """Write the objects of a plane in memory that is about to close. It has them, and its revision, when it opens."""
    with temporary_folder(folder.parent) as temporary:
        write_memory(folder, temporary, snapshot)
