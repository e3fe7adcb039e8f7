"""Prefixes of planes in etcd: whether one has a plane, its objects, their copies, and what belongs to no plane.

The namespace kube-system exists from the first opening of a plane to its deletion, and a copy writes it last. So a
prefix without it has no plane, or what an interrupted copy or deletion left.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from tapestry.apiserver.core.config import ApiServerConfig, Etcd
from tapestry.apiserver.core.epochs import EpochFence
from tapestry.apiserver.core.resource_registry import published_api
from tapestry.apiserver.core.store import StorageError, Store
from tapestry.apiserver.storage.backends import open_shared_store
from tapestry.apiserver.storage.copies import Snapshot
from tapestry.apiserver.storage.etcd.client import EtcdClient, KeyValue
from tapestry.apiserver.storage.etcd.connection import EPOCH_KEY, delete_prefix, empty_prefix, etcd_client
from tapestry.apiserver.storage.etcd.layout import KeyLayout, key_prefix, range_end
from tapestry.apiserver.storage.log import Entry
from tapestry.apiserver.storage.raw_objects import with_revision
from tapestry.planes.copy_rules import IDENTITY_NAMESPACE
from tapestry.planes.plane_copies import fill_store, replace_objects


@dataclass(frozen=True)
class PrefixLeftovers:
    """Prefixes that belong to no known plane, by the ids of their planes."""

    incomplete: list[str] = field(default_factory=list)
    """Prefixes without a plane."""
    unknown: list[str] = field(default_factory=list)
    """Prefixes with a complete plane."""


def key_layout(config: Etcd) -> KeyLayout:
    return KeyLayout(config.prefix, (info.storage for info in published_api().resources))


async def has_plane(config: Etcd) -> bool:
    """Return whether a prefix has a complete plane. Raises StorageError."""
    async with etcd_client(config) as client:
        return await has_identity(client, config)


async def has_identity(client: EtcdClient, config: Etcd) -> bool:
    found, _ = await client.get(key_layout(config).path(IDENTITY_NAMESPACE))
    return found.value is not None


async def prefix_snapshot(config: Etcd) -> Snapshot:
    """Return the objects of the plane below a prefix at one revision, whichever process holds it.

    Raises StorageError, also if there is no complete plane.
    """
    layout, entries, revision = key_layout(config), list[Entry](), 0
    async with etcd_client(config) as client:
        async for page_revision, page in client.list_pages(layout.prefix.encode(), layout.range_end):
            revision = page_revision
            entries += await asyncio.to_thread(page_entries, layout, page)
    if not any(each.key == IDENTITY_NAMESPACE for each in entries):
        raise StorageError(f"etcd: {config.prefix} has no plane")
    return revision, entries


def page_entries(layout: KeyLayout, page: list[KeyValue]) -> list[Entry]:
    keys = ((layout.key(each.path), each) for each in page)
    return [
        Entry(each.revision, key, with_revision(each.value or b"", each.revision)[0])
        for key, each in keys
        if key is not None
    ]


async def fill_prefix(config: ApiServerConfig, fence: EpochFence, file: Path) -> None:
    """Write the objects of a copy below the prefix of a new plane, which is emptied before.

    The prefix has a complete plane when this returns, and no plane before.
    """
    await empty_prefix(config.etcd, fence)
    async with written_store(config, fence) as store:
        await fill_store(store, file)


async def replace_prefix(config: ApiServerConfig, fence: EpochFence, entries: Sequence[Entry]) -> int:
    """Replace the objects of a closed plane, and return their revision. Its keys stay.

    The prefix has no complete plane meanwhile. What an interrupted attempt has written is replaced, too.
    """
    async with written_store(config, fence) as store:
        await replace_objects(store, entries)
        return store.revision


@asynccontextmanager
async def written_store(config: ApiServerConfig, fence: EpochFence) -> AsyncIterator[Store]:
    """Open the store of a plane that is closed, to write its objects."""
    async with open_shared_store(config, fence) as store, asyncio.TaskGroup() as group:
        await store.load()
        running = group.create_task(store.run(), name="copy")
        try:
            await store.wait_for_latest()
            yield store
        finally:
            running.cancel()
            await store.clear()


# -- leftovers


async def find_prefixes(root: Etcd) -> list[str]:
    """Return the ids of all planes with a key below a prefix."""
    prefix, ids = key_prefix(root.prefix), list[str]()
    start, end = prefix.encode(), range_end(prefix)
    async with etcd_client(root) as client:
        while (key := await client.first_key(start, end)) is not None:
            id, slash, _ = key.removeprefix(prefix.encode()).partition(b"/")
            if slash:
                ids.append(id.decode())
            start = range_end(f"{prefix}{id.decode()}/") if slash else key + b"\0"
    return ids


async def find_leftovers(root: Etcd, ids: Collection[str]) -> PrefixLeftovers:
    """Sort the prefixes of planes that have no record."""
    leftovers = PrefixLeftovers()
    async with etcd_client(root) as client:
        for id in ids:
            is_complete = await has_identity(client, plane_prefix(root, id))
            (leftovers.unknown if is_complete else leftovers.incomplete).append(id)
    return leftovers


async def remove_incomplete(root: Etcd, id: str) -> None:
    """Delete all keys of a prefix without a plane. A process that still writes there loses its epoch first."""
    config = plane_prefix(root, id)
    async with etcd_client(config) as client:
        current, _ = await client.get(f"{key_prefix(config.prefix)}{EPOCH_KEY}".encode())
    await delete_prefix(config, EpochFence(int(current.value or 0) + 1, lambda: True))


def plane_prefix(root: Etcd, id: str) -> Etcd:
    return structs.replace(root, prefix=f"{root.prefix}/{id}")
