"""Construction of an etcd store from its configuration."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from tapestry.apiserver.core.config import Etcd
from tapestry.apiserver.core.store import Store
from tapestry.apiserver.storage.etcd.client import Certificates, EtcdClient
from tapestry.apiserver.storage.etcd.layout import KeyLayout
from tapestry.apiserver.storage.etcd.store import EtcdStore


@asynccontextmanager
async def open_etcd_store(config: Etcd, built_in: Iterable[str], history_seconds: float) -> AsyncIterator[Store]:
    """Open and load the store. Raises StorageError, ValueError and OSError."""
    certificates = Certificates(
        file_content(config.cafile), file_content(config.certfile), file_content(config.keyfile)
    )
    async with EtcdClient(config.servers, certificates) as client:
        store = EtcdStore(client, KeyLayout(config.prefix, built_in), history_seconds=history_seconds)
        await store.load()
        yield store


def file_content(path: str) -> bytes | None:
    return Path(path).read_bytes() if path else None
