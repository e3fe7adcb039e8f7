"""Files of the data folder that only their owner can read, replaced atomically and changed under a lock."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KEYS_FOLDER = "pki"
"""Folder of keys and certificates in the data folder."""
UNFINISHED_SUFFIX = ".new"
"""Suffix of a file that is not complete yet."""


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
