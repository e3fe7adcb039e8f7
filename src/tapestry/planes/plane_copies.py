"""Copies of planes: files with the objects at one revision, from which other planes are created.

Functions that are not async block and may take seconds, so servers call them in a thread.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import msgspec

from tapestry.apiserver.core.store import Key, ObjectVersion, StorageError, Store
from tapestry.apiserver.storage.archive import latest_revision, open_database, read_entries, unpack_checked
from tapestry.apiserver.storage.copies import Snapshot, folder_snapshot, store_snapshot, write_copy, write_database
from tapestry.apiserver.storage.log import Entry
from tapestry.apiserver.storage.raw_objects import with_revision, without_revision
from tapestry.apiserver.storage.sqlite_log import DATABASE_NAME
from tapestry.kube.objects import uid_of
from tapestry.planes.copy_rules import (
    IDENTITY_NAMESPACE,
    MARKED_RESOURCES,
    IdentityChange,
    elsewhere,
    is_included,
    is_left_behind,
    new_plane_entry,
)
from tapestry.planes.plane_folders import add_plane_folder, plane_folder, temporary_folder

PARALLEL_WRITES = 64
T = TypeVar("T")


def write_plane_copy(snapshot: Snapshot, file: Path) -> int:
    """Write the objects that may leave a plane. The file appears when it is complete."""
    revision, entries = snapshot
    return write_all_objects((revision, filter(is_included, entries)), file)


def write_all_objects(snapshot: Snapshot, file: Path) -> int:
    """Write all objects, from which the same plane can be restored. The file appears when it is complete."""
    with temporary_folder(file.parent) as temporary:
        return write_copy(file, snapshot, temporary)


WriteSnapshot = Callable[[Snapshot, Path], int]
"""Write a file with the objects, and return their revision."""


async def copy_open_plane(store: Store, file: Path, write: WriteSnapshot = write_plane_copy) -> int:
    """Write a copy of an open plane and return its revision. The plane handles requests meanwhile.

    Raises StorageUnavailable if the plane has closed.
    """
    await store.wait_for_latest()
    store.get(*IDENTITY_NAMESPACE)  # raises an error if the store is closed, which has no objects
    return await asyncio.to_thread(write, store_snapshot(store), file)


def copy_plane_folder(folder: Path, file: Path, write: WriteSnapshot = write_plane_copy) -> int:
    """Write a copy of the plane in a folder, which may be closed or open, and return its revision."""
    with folder_snapshot(folder) as snapshot:
        return write(snapshot, file)


def create_plane_from_copy(root: Path, plane_id: str, file: Path) -> None:
    """Create the folder of a plane with the objects of a copy and its own keys. It appears when it is complete.

    A backup of a server can be used too; its keys are ignored. Raises StorageError for an invalid file, and
    FileExistsError if the folder exists.
    """
    target = plane_folder(root, plane_id)
    with temporary_folder(root) as temporary:
        snapshot = new_plane_snapshot(file, temporary / "copy")
        prepared = temporary / "data"
        prepared.mkdir(mode=0o700)
        write_database(prepared / DATABASE_NAME, snapshot)
        add_plane_folder(prepared, target)


async def fill_store(store: Store, file: Path) -> None:
    """Write the objects of a copy to the empty store of a new plane, for example below a prefix in etcd.

    The namespace kube-system is written last. A store without it is incomplete: it must not be opened, and must be
    emptied before another attempt.
    """
    if store.snapshot():
        raise StorageError(f"{file}: cannot be restored, because the store has objects; empty it first")
    with temporary_folder(file.parent) as temporary:
        entries = await asyncio.to_thread(new_plane_entries, file, temporary / "copy")
    await replace_objects(store, entries)


async def replace_objects(store: Store, entries: Sequence[Entry]) -> None:
    """Make these the only objects of the store of a plane. The namespace kube-system is deleted first and written last.

    Objects that stay as they are keep their revision.
    """
    before = {each.key: each for each in store.snapshot()}
    if (identity := before.pop(IDENTITY_NAMESPACE, None)) is not None:
        await delete_all(store, [identity])
    wanted = {each.key: each.raw or b"" for each in entries if each.key != IDENTITY_NAMESPACE}
    await in_parts(partial(delete_all, store), [each for key, each in before.items() if key not in wanted])
    changed = [key for key, raw in wanted.items() if key not in before or is_changed(before[key], raw)]
    await in_parts(partial(put_all, store, wanted, before), changed)
    await put_all(store, {each.key: each.raw or b"" for each in entries}, {}, [IDENTITY_NAMESPACE])


def is_changed(before: ObjectVersion, raw: bytes) -> bool:
    return without_revision(before.raw) != without_revision(raw)


async def in_parts(write: Callable[[Sequence[T]], Awaitable[None]], items: Sequence[T]) -> None:
    for start in range(0, len(items), PARALLEL_WRITES):
        await write(items[start : start + PARALLEL_WRITES])


async def put_all(
    store: Store, objects: Mapping[Key, bytes], before: Mapping[Key, ObjectVersion], keys: Sequence[Key]
) -> None:
    async with asyncio.TaskGroup() as group:
        for key in keys:
            group.create_task(store.put(key, before.get(key), partial(with_revision, objects[key])))


async def delete_all(store: Store, versions: Sequence[ObjectVersion]) -> None:
    async with asyncio.TaskGroup() as group:
        for each in versions:
            group.create_task(store.delete(each.key, each, partial(with_revision, each.raw)))


def new_plane_entries(file: Path, folder: Path) -> list[Entry]:
    _, entries = new_plane_snapshot(file, folder)
    return list(entries)


def new_plane_snapshot(file: Path, folder: Path) -> Snapshot:
    """Unpack a copy into a new folder, and return its objects for a plane with a new identity."""
    unpack_checked(file, folder)
    namespaces = read_entries(folder, [IDENTITY_NAMESPACE.resource])
    old_uid = next(
        (uid_of(msgspec.json.decode(each.raw or b"")) for each in namespaces if each.key == IDENTITY_NAMESPACE), ""
    )
    identity = IdentityChange(old_uid, str(uuid4()))
    with closing(open_database(folder / DATABASE_NAME)) as connection:
        revision = latest_revision(connection)
    has = elsewhere(read_entries(folder, MARKED_RESOURCES))
    entries = (each for each in read_entries(folder) if is_included(each) and not is_left_behind(each, has))
    return revision, (new_plane_entry(each, identity, has) for each in entries)
