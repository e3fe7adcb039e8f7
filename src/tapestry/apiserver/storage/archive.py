"""Backup, restore, check and repair of a data folder.

An archive is a tar file, optionally compressed with gzip. It contains the objects at one revision, and the keys:
without the keys, a restored server would not accept the tokens and certificates that it issued.

Archives are untrusted input. They are read in pieces, so a large archive needs disk space but no memory. An archive
that would fill the disk is rejected before it is written.
"""

import fcntl
import gzip
import io
import os
import re
import shutil
import tarfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, NamedTuple, cast

import apsw
import msgspec

from tapestry.apiserver.core.private_files import KEYS_FOLDER, lock_file, sync_to_disk
from tapestry.apiserver.core.store import Key, StorageError
from tapestry.apiserver.storage.log import Entry
from tapestry.apiserver.storage.sqlite_log import (
    DATABASE_NAME,
    DELETE_ENTRY,
    EMPTY_KEY,
    SCHEMA_VERSION,
    SELECT_LATEST,
    migrate,
    write_lock,
)

BACKUP_PREFIX, RESTORE_PREFIX = ".backup-", ".restore-"
"""Prefixes of the names of temporary folders."""
RESTORE_REVISION_GAP = 1_000_000
"""Added to the revision on restore, so that revisions assigned since the backup are not assigned again."""
SELECT_ROWS = """
    SELECT resource, namespace, name, revision, checksum, raw FROM objects
    WHERE resource <> '' ORDER BY resource, namespace, name
"""
MAX_KEY_BYTES = 1 << 20
"""Maximum size of a key or certificate file."""
MAX_ROW_BYTES = 16 << 20
"""Maximum size of a stored object. A request may have 3 MiB, and managedFields are added to that."""
MAX_HEADER_BYTES = 1 << 20
"""Maximum size of an extended tar header, which tarfile reads at once."""
MAX_MEMBERS = 1000
MEMBER_NAME = re.compile(rf"{re.escape(DATABASE_NAME)}|{KEYS_FOLDER}/[A-Za-z0-9][A-Za-z0-9._-]*")


class Finding(NamedTuple):
    """A problem that a check found in a data folder."""

    key: Key
    """Empty if the problem does not concern a single object."""
    problem: str

    def __str__(self) -> str:
        resource, namespace, name = self.key
        return f"{resource} {namespace}/{name}: {self.problem}" if resource else self.problem


class ObjectRow(NamedTuple):
    key: Key
    revision: int
    checksum: int
    raw: bytes

    @property
    def is_intact(self) -> bool:
        return zlib.crc32(self.raw) == self.checksum


def back_up(folder: Path, archive: Path) -> int:
    """Write an archive of the folder and return its revision. A server may be running meanwhile."""
    with locked_folder(archive.parent, BACKUP_PREFIX) as temporary:
        copy = temporary / DATABASE_NAME
        with closing(open_database(folder / DATABASE_NAME)) as connection:
            connection.execute("VACUUM INTO ?", (str(copy),))
        with closing(open_database(copy)) as connection:
            revision = latest_revision(connection)
            for _ in intact_entries(folder / DATABASE_NAME, connection):
                pass
        with lock_file(folder / KEYS_FOLDER):  # not in the middle of a rotation
            write_archive(archive, copy, sorted((folder / KEYS_FOLDER).glob("[!.]*")))
    return revision


@contextmanager
def locked_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a new temporary folder, which is locked while it is in use and removed at the end."""
    with TemporaryDirectory(dir=parent, prefix=prefix) as name:
        descriptor = os.open(name, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(descriptor)


def remove_stale_folders(parent: Path) -> list[str]:
    """Remove the temporary folders of backups and restores that were killed, and return their names."""
    removed = []
    for path in sorted([*parent.glob(f"{BACKUP_PREFIX}*"), *parent.glob(f"{RESTORE_PREFIX}*")]):
        if path.is_symlink() or not path.is_dir():
            continue
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)
            removed.append(path.name)
        except BlockingIOError:  # in use
            continue
        finally:
            os.close(descriptor)
    return removed


def write_archive(archive: Path, database: Path, keys: Sequence[Path] = ()) -> None:
    """Write an archive durably, with a temporary file beside the database on the same disk."""
    temporary = database.with_name("archive")
    with tarfile.open(temporary, "w") as tar:
        tar.add(database, DATABASE_NAME)
        for path in keys:
            tar.add(path, f"{KEYS_FOLDER}/{path.name}")
    os.chmod(temporary, 0o600)
    sync_to_disk(temporary)
    temporary.replace(archive)
    sync_to_disk(archive.parent)


def restore(archive: Path, folder: Path) -> int:
    """Replace the folder with the content of an archive and return the new revision. The old folder is renamed."""
    with locked_folder(folder.absolute().parent, RESTORE_PREFIX) as temporary:
        fresh = temporary / "data"
        unpack_checked(archive, fresh)
        with closing(apsw.Connection(str(fresh / DATABASE_NAME))) as connection:
            connection.execute(
                "UPDATE objects SET revision = revision + ? WHERE resource = ''", (RESTORE_REVISION_GAP,)
            )
            revision = latest_revision(connection)
        for path in (fresh / DATABASE_NAME, fresh):
            sync_to_disk(path)
        with write_lock(folder):
            if any(path.name != "lock" for path in folder.iterdir()):
                folder.rename(folder.with_name(f"{folder.name}.before-{time.strftime('%Y%m%d-%H%M%S')}"))
            else:
                (folder / "lock").unlink()
                folder.rmdir()
            fresh.rename(folder)
    sync_to_disk(folder.absolute().parent)
    return revision


def unpack_checked(archive: Path, folder: Path) -> None:
    """Unpack an archive into a new folder, migrate its database and check all objects. Raises StorageError."""
    (folder / KEYS_FOLDER).mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    unpack(archive, folder)
    with (
        closing(apsw.Connection(str(folder / DATABASE_NAME))) as connection,
        suppress(apsw.Error),
    ):  # `check_folder` reports the error
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, MAX_ROW_BYTES)
        if connection.pragma("user_version"):
            migrate(connection)
    if findings := check_folder(folder):
        raise StorageError(f"{archive}: {findings[0]}{f' and {len(findings) - 1} more' if findings[1:] else ''}")


def unpack(archive: Path, folder: Path) -> None:
    total = 0
    try:
        with (
            open_uncompressed(archive) as file,
            tarfile.open(fileobj=cast(IO[bytes], BoundedReader(file)), mode="r:") as tar,
        ):
            for count, member in enumerate(tar, 1):
                if not member.isfile() or member.issparse() or not MEMBER_NAME.fullmatch(member.name):
                    raise StorageError(f"{archive}: {member.name[:100]!r} does not belong in a Tapestry archive")
                if count > MAX_MEMBERS:
                    raise StorageError(f"{archive}: has more than {MAX_MEMBERS} files")
                if member.name != DATABASE_NAME and member.size > MAX_KEY_BYTES:
                    raise StorageError(f"{archive}: {member.name} is over {MAX_KEY_BYTES} bytes")
                total += member.size
                if total > shutil.disk_usage(folder).free:
                    raise StorageError(f"{archive}: at least {total} bytes do not fit on the disk of {folder.parent}")
                path = folder / member.name
                path.touch(mode=0o600)
                with path.open("wb") as target:
                    shutil.copyfileobj(tar.extractfile(member) or io.BytesIO(), target)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise StorageError(f"{archive}: is not an archive: {error}") from error
    if not (folder / DATABASE_NAME).exists():
        raise StorageError(f"{archive}: has no {DATABASE_NAME} in it")


def open_uncompressed(archive: Path) -> IO[bytes]:
    """Open an archive, decompressing it if necessary."""
    with archive.open("rb") as file:
        is_compressed = file.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(archive)) if is_compressed else archive.open("rb")


class BoundedReader:
    """A file for tarfile that rejects large reads, whatever size an extended header claims."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        if size > MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes is over {MAX_HEADER_BYTES}")
        return self.file.read(size)


def check_folder(folder: Path) -> list[Finding]:
    """Return all problems in a data folder."""
    findings: list[Finding] = []
    try:
        with closing(open_database(folder / DATABASE_NAME)) as connection, connection:  # one consistent snapshot
            damage = [text for (text,) in connection.execute("PRAGMA integrity_check") if text != "ok"]
            findings += [Finding(EMPTY_KEY, text) for text in damage]
            if not damage:
                findings += [
                    *cross_row_findings(connection),
                    *(finding for row in read_rows(connection) for finding in row_findings(row)),
                ]
    except apsw.Error as error:
        findings.append(Finding(EMPTY_KEY, f"{folder / DATABASE_NAME}: {error}"))
    return findings


CHECKSUM_MISMATCH = "is not what was written"


def cross_row_findings(connection: apsw.Connection) -> Iterator[Finding]:
    last = latest_revision(connection)
    revisions, uids = Counter[int](), Counter[str]()
    for row in read_rows(connection):
        revisions[row.revision] += 1
        uid = row_metadata(row).get("uid", "")
        uids[uid] += 1
        if row.revision > last:
            yield Finding(row.key, f"revision {row.revision} is beyond the last one given out, {last}")
        if revisions[row.revision] > 1:
            yield Finding(row.key, f"revision {row.revision} was given out twice")
        if uid and uids[uid] > 1:
            yield Finding(row.key, f"uid {uid} is another object's")


def row_findings(row: ObjectRow) -> Iterator[Finding]:
    if not row.is_intact:
        yield Finding(row.key, CHECKSUM_MISMATCH)
        return
    metadata = row_metadata(row)
    stored_name = metadata.get("namespace", ""), metadata.get("name", "")
    if stored_name != (row.key.namespace, row.key.name):
        yield Finding(row.key, f"says that it is {'/'.join(stored_name)}")
    if metadata.get("resourceVersion") != str(row.revision):
        yield Finding(row.key, f"says that it is of revision {metadata.get('resourceVersion')}, not {row.revision}")


def row_metadata(row: ObjectRow) -> dict[str, Any]:
    """The object's metadata; empty if they cannot be decoded."""
    try:
        metadata = msgspec.json.decode(row.raw)["metadata"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return {}
    return metadata if isinstance(metadata, dict) else {}


def repair(folder: Path) -> list[Key]:
    """Move unreadable objects to a file next to the database. Other objects are not changed."""
    with write_lock(folder), closing(open_database(folder / DATABASE_NAME)) as connection:
        corrupt = [row for row in read_rows(connection) if not row.is_intact]
        if not corrupt:
            return []
        removed = folder / f"removed-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
        removed.touch(mode=0o600)
        removed.write_bytes(msgspec.json.Encoder().encode_lines([{"key": row.key, "raw": row.raw} for row in corrupt]))
        sync_to_disk(removed)
        with connection:
            for row in corrupt:
                connection.execute(DELETE_ENTRY, row.key)
        return [row.key for row in corrupt]


def read_entries(folder: Path, resources: Sequence[str] = ()) -> Iterator[Entry]:
    """The objects at one revision, sorted by resource, namespace and name, optionally of some resources only."""
    try:
        with closing(open_database(folder / DATABASE_NAME)) as connection, connection:
            yield from intact_entries(folder / DATABASE_NAME, connection, resources)
    except apsw.Error as error:
        raise StorageError(f"{folder / DATABASE_NAME}: {error}; restore a backup") from error


def intact_entries(path: Path, connection: apsw.Connection, resources: Sequence[str] = ()) -> Iterator[Entry]:
    """The objects of a connection, optionally of some resources only. Raises StorageError with `path` for damage."""
    for row in read_rows(connection):
        if not resources or row.key.resource in resources:
            if not row.is_intact:
                raise StorageError(f"{path}: {Finding(row.key, CHECKSUM_MISMATCH)}; see `apiserver check`")
            yield Entry(row.revision, row.key, row.raw)


def read_rows(connection: apsw.Connection) -> Iterator[ObjectRow]:
    for resource, namespace, name, revision, checksum, raw in connection.execute(SELECT_ROWS):
        yield ObjectRow(Key(resource, namespace, name), revision, checksum, raw)


def latest_revision(connection: apsw.Connection) -> int:
    [[revision]] = connection.execute(SELECT_LATEST)
    return int(revision)


def open_database(path: Path) -> apsw.Connection:
    """Open a connection next to the server's own."""
    if not path.exists():
        raise StorageError(f"{path}: there is no such file; name the folder with --file-rootpath")
    # Even a reader needs write access if it is the first: it creates SQLite's shared-memory file.
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.limit(apsw.SQLITE_LIMIT_LENGTH, MAX_ROW_BYTES)
    try:
        version = connection.pragma("user_version")
    except apsw.Error as error:
        connection.close()
        raise StorageError(f"{path}: {error}; restore a backup") from error
    if version != SCHEMA_VERSION:
        connection.close()
        hint = "; start a server on it once to migrate it" if 0 < version < SCHEMA_VERSION else ""
        raise StorageError(f"{path}: has schema version {version}; this program reads {SCHEMA_VERSION}{hint}")
    return connection
