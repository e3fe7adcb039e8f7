"""Data of planes outside their open servers: whether it exists, keys in etcd, copies, and deletion."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.epochs import EpochFence
from tapestry.apiserver.core.private_files import change_local_keys
from tapestry.apiserver.core.store import Store
from tapestry.apiserver.storage.backends import etcd_imports
from tapestry.apiserver.storage.sqlite_log import DATABASE_NAME
from tapestry.planes.plane_copies import (
    WriteSnapshot,
    copy_open_plane,
    copy_plane_folder,
    create_plane_from_copy,
    write_plane_copy,
)
from tapestry.planes.plane_folders import delete_plane_folder, temporary_folder
from tapestry.planes.sealing import GroupKey

if TYPE_CHECKING:
    from tapestry.planes.sealed_files import SealedFiles

T = TypeVar("T")


@dataclass(frozen=True)
class PlaneHold:
    """Right of a process to a plane, and the key for the secrets of the plane in etcd."""

    fence: EpochFence
    group_key: GroupKey | None
    """Key that seals the keys of planes in etcd. None in a process without etcd."""


async def has_plane_data(config: ApiServerConfig) -> bool:
    """Return whether there is a complete plane in the folder or below the prefix. Raises StorageError and OSError."""
    if config.backend == "etcd":
        with etcd_imports():
            from tapestry.planes.etcd_prefixes import has_plane  # noqa: PLC0415
        return await has_plane(config.etcd)
    return await asyncio.to_thread((Path(config.file_rootpath) / DATABASE_NAME).exists)


async def restore_keys(plane_id: str, config: ApiServerConfig, hold: PlaneHold) -> None:
    """Unseal the keys of a plane in etcd into its folder. A new plane gets keys, which are stored in etcd.

    Does nothing for other planes, whose keys are only in their folders. Raises StorageError, ValueError and OSError.
    """
    if config.backend == "etcd":
        async with sealed_files(plane_id, config, hold):
            pass


async def update_keys(plane_id: str, config: ApiServerConfig, hold: PlaneHold | None, change: Callable[[], T]) -> T:
    """Change keys or tokens in the folder of a plane. If it is in etcd, they are stored there before this returns.

    `change` may be called again, with the files as another process has changed them.
    """
    if config.backend != "etcd":
        return await change_local_keys(change)
    if hold is None:
        raise ValueError(f"plane {plane_id} is in etcd, so a process must hold it before its keys change")
    async with sealed_files(plane_id, config, hold) as files:
        return await files.update(change)


def sealed_files(plane_id: str, config: ApiServerConfig, hold: PlaneHold) -> "AbstractAsyncContextManager[SealedFiles]":
    with etcd_imports():
        from tapestry.planes.sealed_files import open_sealed_files  # noqa: PLC0415
    if hold.group_key is None:
        raise ValueError("etcd.servers: there is none, but the plane is in etcd; name one or more")
    return open_sealed_files(config.etcd, Path(config.file_rootpath), hold.group_key, plane_id, hold.fence)


@dataclass(frozen=True)
class CopySource:
    """A plane that is copied to a new one."""

    config: ApiServerConfig
    open_store: Store | None
    """Its store, if this process has the plane open."""
    check: Callable[[], Awaitable[None]]
    """Called when the objects have been read. Raises an exception if they may have been deleted meanwhile."""


async def create_copied_plane(source: CopySource, target: ApiServerConfig, fence: EpochFence) -> None:
    """Create the data of a plane with the objects of another one. The plane is complete when this returns.

    The caller makes sure that the target has no complete plane. Raises StorageError and OSError.
    """
    folder = Path(target.file_rootpath)
    with temporary_folder(folder.parent) as temporary:
        file = temporary / "copy.tar"
        await copy_source(source, file)
        await source.check()
        if target.backend == "etcd":
            with etcd_imports():
                from tapestry.planes.etcd_prefixes import fill_prefix  # noqa: PLC0415
            await fill_prefix(target, fence, file)
        else:
            await asyncio.to_thread(create_plane_from_copy, folder.parent, folder.name, file)


async def copy_source(source: CopySource, file: Path, write: WriteSnapshot = write_plane_copy) -> None:
    """Write a copy of a plane, which may be closed, or open in this process or another one."""
    if source.open_store is not None:
        await copy_open_plane(source.open_store, file, write)
    elif source.config.backend == "etcd":
        with etcd_imports():
            from tapestry.planes.etcd_prefixes import prefix_snapshot  # noqa: PLC0415
        await asyncio.to_thread(write, await prefix_snapshot(source.config.etcd), file)
    else:
        await asyncio.to_thread(copy_plane_folder, Path(source.config.file_rootpath), file, write)


async def delete_plane_data(config: ApiServerConfig, hold: PlaneHold) -> None:
    """Delete the data of a closed plane: its keys in etcd, then its folder. The second call does nothing."""
    if config.backend == "etcd":
        with etcd_imports():
            from tapestry.apiserver.storage.etcd.connection import delete_prefix  # noqa: PLC0415
        await delete_prefix(config.etcd, hold.fence)
    folder = Path(config.file_rootpath)
    await asyncio.to_thread(delete_plane_folder, folder.parent, folder.name)
