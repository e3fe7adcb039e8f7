"""Clients of etcd for the keys below one prefix."""

from pathlib import Path

from tapestry.apiserver.core.config import Etcd
from tapestry.apiserver.core.epochs import EpochFence
from tapestry.apiserver.storage.etcd.client import Certificates, EpochGuard, EtcdClient
from tapestry.apiserver.storage.etcd.layout import key_prefix, range_end

EPOCH_KEY = "epoch"
"""Key below the prefix that has the epoch of the only writer. No object has such a key."""


def etcd_client(config: Etcd, fence: EpochFence | None = None) -> EtcdClient:
    """Return a client. With a fence, all of its transactions are in that epoch. Raises ValueError and OSError."""
    certificates = Certificates(
        file_content(config.cafile), file_content(config.certfile), file_content(config.keyfile)
    )
    epoch = epoch_guard(config.prefix, fence) if fence is not None else None
    return EtcdClient(config.servers, certificates, epoch)


def epoch_guard(prefix: str, fence: EpochFence) -> EpochGuard:
    return EpochGuard(f"{key_prefix(prefix)}{EPOCH_KEY}".encode(), fence)


def file_content(path: str) -> bytes | None:
    return Path(path).read_bytes() if path else None


async def delete_prefix(config: Etcd, fence: EpochFence) -> None:
    """Delete all keys below the prefix, the epoch last. The second call does nothing. Raises StorageError.

    Another writer of the prefix loses its epoch before anything is deleted.
    """
    await empty_prefix(config, fence)
    async with etcd_client(config, fence) as client:
        epoch = epoch_guard(config.prefix, fence).path
        await client.delete_range(epoch, epoch + b"\0")


async def empty_prefix(config: Etcd, fence: EpochFence) -> None:
    """Take the epoch of a prefix, and delete all other keys below it."""
    prefix = key_prefix(config.prefix)
    async with etcd_client(config, fence) as client:
        await client.take_epoch()
        epoch = epoch_guard(config.prefix, fence).path
        await client.delete_range(prefix.encode(), epoch)
        await client.delete_range(epoch + b"\0", range_end(prefix))
