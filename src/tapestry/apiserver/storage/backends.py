"""Which store a server has: the one that its configuration asks for."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from tapestry.apiserver.config import ApiServerConfig
from tapestry.apiserver.rows import built_in
from tapestry.apiserver.storage.file import FileLog
from tapestry.apiserver.storage.local import LocalStore
from tapestry.apiserver.storage.log import Log
from tapestry.apiserver.storage.memory import MemoryLog
from tapestry.apiserver.storage.store import Store
from tapestry.apiserver.storage.values import labels_in


def opened_store(config: ApiServerConfig, folder: Path) -> AbstractAsyncContextManager[Store]:
    """The store, filled; who has it runs it.  Raises LogError, ValueError and OSError."""
    return shared(config) if config.backend == "etcd" else local(config, folder)


@asynccontextmanager
async def local(config: ApiServerConfig, folder: Path) -> AsyncIterator[Store]:
    log: Log = FileLog(folder) if config.backend == "file" else MemoryLog()
    store = LocalStore(log)
    try:
        store.load(labels_in)
        yield store
    finally:
        store.close()


def shared(config: ApiServerConfig) -> AbstractAsyncContextManager[Store]:
    try:
        from tapestry.apiserver.storage.etcd.opening import opened  # noqa: PLC0415  gRPC is for those who have an etcd
    except ModuleNotFoundError as error:
        raise ValueError(
            f"backend etcd needs {error.name}; install it with: pip install 'kube-tapestry[etcd]'"
        ) from error
    return opened(config.etcd, {row.storage for row in built_in().rows}, config.history_seconds)
