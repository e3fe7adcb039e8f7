"""Folders of planes below one root: creation, deletion, and removal of what a crash has left behind.

The folder of a plane appears and disappears by a rename. Everything else happens in temporary folders, whose names
begin with a prefix that no plane has. So after a crash at any moment, each folder is a complete plane or temporary.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from tapestry.apiserver.access.certificates import CertificateAuthority, front_proxy_ca
from tapestry.apiserver.access.rotation import SIGNING_KEY_FILE
from tapestry.apiserver.access.token_keys import load_token_keys
from tapestry.apiserver.core.private_files import KEYS_FOLDER, sync_to_disk
from tapestry.apiserver.storage.archive import remove_stale_folders
from tapestry.apiserver.storage.sqlite_log import write_lock

TEMPORARY_PREFIX = ".tmp-"
PLANE_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Leftovers:
    """Entries of a root that belong to no known plane."""

    removed: list[str] = field(default_factory=list)
    """Names of temporary folders that were removed."""
    unknown: list[str] = field(default_factory=list)
    """Names of complete folders that belong to no known plane. They were not changed."""


@contextmanager
def temporary_folder(root: Path) -> Iterator[Path]:
    """Yield a folder that is removed at the end, and after a crash by `remove_leftovers`."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with lock_root(root, fcntl.LOCK_SH), TemporaryDirectory(dir=root, prefix=TEMPORARY_PREFIX) as name:
        yield Path(name)


@contextmanager
def lock_root(root: Path, mode: int) -> Iterator[None]:
    """Hold a lock of the root: shared while temporary folders are in use, exclusive while leftovers are removed."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, mode)
        yield
    finally:
        os.close(descriptor)


def plane_folder(root: Path, plane_id: str) -> Path:
    """Return the folder of a plane. Raises ValueError for an ID that is not a DNS label."""
    if not PLANE_ID.fullmatch(plane_id):
        raise ValueError(f"{plane_id!r} is not a plane ID: use lower-case letters, digits and hyphens, at most 63")
    return root / plane_id


def create_plane_folder(root: Path, plane_id: str) -> None:
    """Create the folder of an empty plane, with its own CA and keys. Raises FileExistsError if it exists."""
    with temporary_folder(root) as temporary:
        add_plane_folder(temporary / "data", plane_folder(root, plane_id))


def add_plane_folder(prepared: Path, target: Path) -> None:
    """Add keys to a prepared folder without keys, and make it the folder of a plane."""
    if target.exists():
        raise FileExistsError(f"{target} exists: choose another plane ID, or delete that plane")
    prepared.mkdir(exist_ok=True, mode=0o700)
    for authority in (CertificateAuthority(prepared / KEYS_FOLDER), front_proxy_ca(prepared)):
        authority.certificate_pem()
    load_token_keys(prepared / KEYS_FOLDER / SIGNING_KEY_FILE)
    for folder, _, names in os.walk(prepared):
        for each in (*names, ""):
            sync_to_disk(Path(folder) / each)
    prepared.rename(target)
    sync_to_disk(target.parent)


def delete_plane_folder(root: Path, plane_id: str) -> None:
    """Delete the folder of a plane, if it exists. Raises StorageError while the plane is open."""
    folder = plane_folder(root, plane_id)
    if not folder.exists():
        return
    with temporary_folder(root) as temporary, write_lock(folder):
        folder.rename(temporary / "data")
        sync_to_disk(root)


def remove_leftovers(root: Path, known_ids: Collection[str]) -> Leftovers:
    """Remove what interrupted operations have left in a root. Do nothing while another process works there."""
    leftovers = Leftovers(remove_stale_folders(root))
    with suppress(FileNotFoundError, BlockingIOError), lock_root(root, fcntl.LOCK_EX | fcntl.LOCK_NB):
        for path in sorted(root.iterdir()):
            if path.name.startswith(TEMPORARY_PREFIX):
                shutil.rmtree(path)
                leftovers.removed.append(path.name)
            elif PLANE_ID.fullmatch(path.name) and path.is_dir() and path.name not in known_ids:
                leftovers.unknown.append(path.name)
    return leftovers
