"""Files of the data folder that only their owner can read, replaced atomically and changed under a lock."""

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

KEYS_FOLDER = "pki"
"""Folder of keys and certificates in the data folder."""
UNFINISHED_SUFFIX = ".new"
"""Suffix of a file that is not complete yet."""
ETCD_MARKER = "keys-in-etcd"
"""File of a data folder whose keys and tokens are a copy of those in etcd. It tells whose keys they are."""

T = TypeVar("T")


class ChangeKeys(Protocol):
    """Call a function that changes keys or tokens in a data folder, and store the change."""

    async def __call__(self, change: Callable[[], T], /) -> T: ...


async def change_local_keys(change: Callable[[], T]) -> T:
    """Change keys or tokens that are only in the data folder."""
    return await asyncio.to_thread(change)


def check_keys_are_local(folder: Path, instead: str) -> None:
    """Raise ValueError if the keys in a data folder are a copy of those in etcd, where a change would be lost.

    `instead` is the command that changes those of a plane.
    """
    marker = folder / ETCD_MARKER
    if marker.exists():
        raise ValueError(
            f"{folder}: its keys are a copy of those in etcd, so a change would be lost; they belong to "
            f"{marker.read_text()}. For planes, use `{instead}`"
        )


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Serialize changes of a file between processes. The folder is created if needed."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(path.with_name(f".{path.name}.lock"), "w") as lock:
        os.chmod(lock.fileno(), 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file durably: after a crash, it has either the old or the new content."""
    temporary = path.with_name(f".{path.name}{UNFINISHED_SUFFIX}")
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    sync_to_disk(path.parent)


def sync_to_disk(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
