"""Selection of the storage backend from the configuration."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path

from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.epochs import EpochFence
from tapestry.apiserver.core.resource_registry import published_api
from tapestry.apiserver.core.store import Store
from tapestry.apiserver.storage.archive import latest_revision, open_database, read_entries
from tapestry.apiserver.storage.local_store import LocalStore
from tapestry.apiserver.storage.log import Log, MemoryLog
from tapestry.apiserver.storage.sqlite_log import DATABASE_NAME, RESTORED_FOLDER, FileLog


def open_store(
    config: ApiServerConfig, folder: Path, log_writers: ThreadPoolExecutor, fence: EpochFence | None = None
) -> AbstractAsyncContextManager[Store]:
    """Open the configured store. The caller loads and runs it. Raises StorageError, ValueError and OSError.

    With a fence, a store in etcd has no other writers. Local stores never have any.
    """
    if config.backend == "etcd":
        return open_shared_store(config, fence)
    return open_local_store(config, folder, log_writers)


@asynccontextmanager
async def open_local_store(
    config: ApiServerConfig, folder: Path, log_writers: ThreadPoolExecutor
) -> AsyncIterator[Store]:
    run = partial(asyncio.get_running_loop().run_in_executor, log_writers)  # for work that waits for the disk
    log: Log = await run(FileLog if config.backend == "file" else memory_log, folder)
    store = LocalStore(log, log_writers)
    try:
        yield store
    finally:
        await run(store.close)


def memory_log(folder: Path) -> MemoryLog:
    """Return a log with the objects that were restored into a folder, if there are any. They are used once."""
    restored = folder / RESTORED_FOLDER
    if not (restored / DATABASE_NAME).exists():
        return MemoryLog()
    with closing(open_database(restored / DATABASE_NAME)) as connection:
        revision = latest_revision(connection)
    log = MemoryLog(revision, [*read_entries(restored)])
    shutil.rmtree(restored)
    return log


def open_shared_store(config: ApiServerConfig, fence: EpochFence | None) -> AbstractAsyncContextManager[Store]:
    with etcd_imports():
        from tapestry.apiserver.storage.etcd.store import open_etcd_store  # noqa: PLC0415  gRPC is optional
    built_in = {info.storage for info in published_api().resources}
    return open_etcd_store(config.etcd, built_in, config.history_seconds, fence)


@contextmanager
def etcd_imports() -> Iterator[None]:
    """Import modules for etcd in this context. Raises ValueError if gRPC is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ValueError(
            f"backend etcd needs {error.name}; install it with: pip install 'kube-tapestry[etcd]'"
        ) from error
