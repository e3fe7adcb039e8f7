"""Files of snapshots in the data folder of a process of planes, and what they are written from and restored to.

The name of a file is the UID of its Snapshot, so nobody who can write objects can choose it. A virtual cluster has at
most one more file, the safety copy of its running restore.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from tapestry.apis.planes import Backend, plane_id
from tapestry.apiserver.core.epochs import EpochFence
from tapestry.apiserver.core.store import StorageError
from tapestry.apiserver.storage.sqlite_log import RESTORED_FOLDER
from tapestry.kube.objects import Object, name_of, value_at
from tapestry.planes.config import PlanesConfig, plane_storage_config
from tapestry.planes.plane_data import CopySource, has_plane_data
from tapestry.planes.plane_folders import remove_leftovers
from tapestry.planes.plane_restores import (
    Restored,
    SnapshotFile,
    file_hash,
    restore_plane,
    restore_shared_plane,
    snapshot_plane,
)
from tapestry.planes.plane_set import PlaneSet, PlaneState

SAFETY_PREFIX = "safety-"


class NotRestorable(Exception):
    """The snapshot cannot be written or restored, now or later."""


@dataclass(frozen=True)
class SnapshotFiles:
    config: PlanesConfig
    plane_set: PlaneSet
    root: Path
    """Folder that all processes of a group share."""
    may_write: Callable[[], bool] = lambda: True
    """Return whether no other process can restore planes in etcd."""

    @property
    def folder(self) -> Path:
        return self.root / "snapshots"

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.tar"

    async def write(self, plane: Object, name: str, *, with_workloads: bool) -> SnapshotFile:
        """Write all objects of a plane at one revision. Raises NotRestorable, NotEnoughSpace and StorageError."""
        source = await self._source(plane)
        store = source.open_store
        size = store.object_bytes if store is not None else value_at(plane, "status", "bytes", default=0)
        return await snapshot_plane(source, size, self.path(name), with_workloads=with_workloads)

    async def check(self, name: str, size: int, sha256: str) -> None:
        """Raise NotRestorable unless a file is complete."""
        path = self.path(name)
        if not path.exists():
            raise NotRestorable("the file of the snapshot is gone")
        if path.stat().st_size != size or await asyncio.to_thread(file_hash, path) != sha256:
            raise NotRestorable("the file of the snapshot is not what was written")

    async def restore(
        self, plane: Object, name: str, objects: int, after: int, *, is_new: bool, with_workloads: bool
    ) -> Restored:
        """Replace the objects of a plane that is closed. Raises StorageError while it is open, and NotRestorable."""
        self.check_is_here(plane)
        id, backend = plane_id(plane), backend_of(plane)
        config = plane_storage_config(self.config, id, backend)
        if backend == "etcd":
            fence = EpochFence(plane["status"]["epoch"], self.may_write)
            shared = partial(restore_shared_plane, config, fence, self.path(name), objects=objects)
            return await shared(is_new=is_new, with_workloads=with_workloads)
        entry = self.plane_set.get(id)
        if entry is None or entry.state is not PlaneState.SUSPENDED or entry.task is not None:
            raise StorageError(f"plane {name_of(plane)} is not closed yet")
        folder = Path(config.file_rootpath)
        restore = partial(restore_plane, folder, self.path(name), objects=objects, after=after)
        in_memory = backend == "memory"
        return await asyncio.to_thread(restore, is_new=is_new, in_memory=in_memory, with_workloads=with_workloads)

    def check_is_here(self, plane: Object) -> None:
        """Raise NotRestorable unless this process can restore a plane."""
        holder = value_at(plane, "status", "holder", default="")
        if backend_of(plane) != "etcd" and holder not in ("", self.config.name):
            raise NotRestorable(f"the plane is in a folder of the process {holder}")

    def delete(self, name: str) -> None:
        """Delete a file, if it exists. This is not done in a thread, so that no later file of that name is hit."""
        self.path(name).unlink(missing_ok=True)

    def remove_leftovers(self) -> None:
        """Remove what a process that was killed has left of incomplete files."""
        remove_leftovers(self.folder, ())

    async def _source(self, plane: Object) -> CopySource:
        id, backend = plane_id(plane), backend_of(plane)
        config = plane_storage_config(self.config, id, backend)
        entry = self.plane_set.get(id)
        if entry is not None and entry.plane is not None:
            return CopySource(config, entry.plane.opened.store, no_check)
        if backend != "etcd":
            self.check_is_here(plane)
        if entry is not None and entry.task is not None:
            raise StorageError(f"plane {name_of(plane)} is being closed")
        if backend == "memory":
            folder = Path(config.file_rootpath) / RESTORED_FOLDER
            config = msgspec.structs.replace(config, file_rootpath=str(folder), backend="file")
        if not await has_plane_data(config):
            raise NotRestorable("the plane has no data")
        return CopySource(config, None, no_check)


def backend_of(plane: Object) -> Backend:
    backend: Backend = value_at(plane, "spec", "backend", default="file")
    return backend


async def no_check() -> None:
    """Check nothing: the objects of a snapshot are read before its status says that it is ready."""
