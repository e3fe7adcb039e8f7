"""Selection of the storage backend from the configuration."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.resource_registry import published_api
from tapestry.apiserver.core.store import Store
from tapestry.apiserver.storage.local_store import LocalStore
from tapestry.apiserver.storage.log import Log
from tapestry.apiserver.storage.memory_log import MemoryLog
from tapestry.apiserver.storage.raw_objects import raw_labels
from tapestry.apiserver.storage.sqlite_log import FileLog


def open_store(config: ApiServerConfig, folder: Path) -> AbstractAsyncContextManager[Store]:
    """Open and load the configured store. The caller runs it. Raises StorageError, ValueError and OSError."""
    return open_shared_store(config) if config.backend == "etcd" else open_local_store(config, folder)


@asynccontextmanager
async def open_local_store(config: ApiServerConfig, folder: Path) -> AsyncIterator[Store]:
    log: Log = FileLog(folder) if config.backend == "file" else MemoryLog()
    store = LocalStore(log)
    try:
        store.load(raw_labels)
        yield store
    finally:
        store.close()


def open_shared_store(config: ApiServerConfig) -> AbstractAsyncContextManager[Store]:
    try:
        from tapestry.apiserver.storage.etcd.factory import open_etcd_store  # noqa: PLC0415  gRPC is optional
    except ModuleNotFoundError as error:
        raise ValueError(
            f"backend etcd needs {error.name}; install it with: pip install 'kube-tapestry[etcd]'"
        ) from error
    return open_etcd_store(config.etcd, {info.storage for info in published_api().resources}, config.history_seconds)
