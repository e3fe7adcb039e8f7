"""What can be done with a data folder from outside, while a server writes to it or not: copied, put back, checked.

An archive is a tar file, which may be compressed by gzip, with the objects as they were at one revision and with the
keys beside them: without those a restored server would not know the tokens and certificates that it gave out.

Somebody else may have written an archive.  It is read piece by piece, so its size costs disk space and no memory, and
one that would fill the disk is refused before anything of it is written.
"""

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
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, NamedTuple, cast

import apsw
import msgspec

from tapestry.apiserver.storage.log import Entry, Key, StorageError
from tapestry.apiserver.storage.sqlite_log import (
    DATABASE_NAME,
    DELETE_ENTRY,
    EMPTY_KEY,
    SCHEMA_VERSION,
    SELECT_LATEST,
    migrate,
    write_lock,
)

KEYS_FOLDER = "pki"
RESTORE_REVISION_GAP = 1_000_000
"""By how much revisions go on after a restore: none that somebody may have seen since is given out again."""
SELECT_ROWS = """
    SELECT resource, namespace, name, revision, checksum, raw FROM objects
    WHERE resource <> '' ORDER BY resource, namespace, name
"""
MAX_KEY_BYTES = 1 << 20
"""Bytes of a file with a key or a certificate."""
MAX_ROW_BYTES = 16 << 20
"""Bytes of an object as it is stored: a server takes 3 MiB, and adds to it who owns what."""
MAX_HEADER_BYTES = 1 << 20
"""Bytes of an extended header of a tar file, which tarfile reads at once."""
MAX_MEMBERS = 1000
MEMBER_NAME = re.compile(rf"{re.escape(DATABASE_NAME)}|{KEYS_FOLDER}/[A-Za-z0-9][A-Za-z0-9._-]*")


class Finding(NamedTuple):
    """Something that is not as a server would have written it."""

    key: Key
    """Empty where it is not about one object."""
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
    """Write an archive of the folder as it is at one revision, which is returned; a server may go on meanwhile."""
    with TemporaryDirectory(dir=archive.parent, prefix=".backup-") as name:
        copy = Path(name) / DATABASE_NAME
        with closing(open_database(folder / DATABASE_NAME)) as connection:
            connection.execute("VACUUM INTO ?", (str(copy),))
        with closing(open_database(copy)) as connection:
            revision = latest_revision(connection)
            for row in read_rows(connection):
                if not row.is_intact:
                    raise StorageError(
                        f"{folder / DATABASE_NAME}: {Finding(row.key, CHECKSUM_MISMATCH)}; see `apiserver check`"
                    )
        made = Path(name) / "archive"
        with tarfile.open(made, "w") as tar:
            tar.add(copy, DATABASE_NAME)
            for path in sorted((folder / KEYS_FOLDER).glob("*")):
                tar.add(path, f"{KEYS_FOLDER}/{path.name}")
        os.chmod(made, 0o600)
        sync_to_disk(made)
        made.replace(archive)
        sync_to_disk(archive.parent)
    return revision


def restore(archive: Path, folder: Path) -> int:
    """Have the folder as an archive has it; returns the revision it begins with.  What was there is kept beside it."""
    with TemporaryDirectory(dir=folder.absolute().parent, prefix=".restore-") as name:
        fresh = Path(name) / "data"
        (fresh / KEYS_FOLDER).mkdir(parents=True, mode=0o700)
        fresh.chmod(0o700)
        unpack(archive, fresh)
        with (
            closing(apsw.Connection(str(fresh / DATABASE_NAME))) as connection,
            suppress(apsw.Error),
        ):  # of which `check` tells
            connection.limit(apsw.SQLITE_LIMIT_LENGTH, MAX_ROW_BYTES)
            if connection.pragma("user_version"):
                migrate(connection)
        if found := check_folder(fresh):
            raise StorageError(f"{archive}: {found[0]}{f' and {len(found) - 1} more' if found[1:] else ''}")
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


def unpack(archive: Path, folder: Path) -> None:
    total = 0
    try:
        with (
            open_uncompressed(archive) as file,
            tarfile.open(fileobj=cast(IO[bytes], BoundedReader(file)), mode="r:") as tar,
        ):
            for count, member in enumerate(tar, 1):
                if not member.isfile() or member.issparse() or not MEMBER_NAME.fullmatch(member.name):
                    raise StorageError(f"{archive}: {member.name[:100]!r} does not belong into an archive of ours")
                if count > MAX_MEMBERS:
                    raise StorageError(f"{archive}: has more than {MAX_MEMBERS} files")
                if member.name != DATABASE_NAME and member.size > MAX_KEY_BYTES:
                    raise StorageError(f"{archive}: {member.name} is over {MAX_KEY_BYTES} bytes")
                total += member.size
                if total > shutil.disk_usage(folder).free:
                    raise StorageError(f"{archive}: {total} bytes and more do not fit on the disk of {folder.parent}")
                path = folder / member.name
                path.touch(mode=0o600)
                with path.open("wb") as target:
                    shutil.copyfileobj(tar.extractfile(member) or io.BytesIO(), target)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise StorageError(f"{archive}: is no archive: {error}") from error
    if not (folder / DATABASE_NAME).exists():
        raise StorageError(f"{archive}: has no {DATABASE_NAME} in it")


def open_uncompressed(archive: Path) -> IO[bytes]:
    """An archive without its compression."""
    with archive.open("rb") as file:
        is_compressed = file.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(archive)) if is_compressed else archive.open("rb")


class BoundedReader:
    """A file for tarfile that gives no more than a header at once, whatever size an extended header claims."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        if size > MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes is over {MAX_HEADER_BYTES}")
        return self.file.read(size)


def check_folder(folder: Path) -> list[Finding]:
    """Everything below `folder` that is not as a server would have written it."""
    found: list[Finding] = []
    try:
        with closing(open_database(folder / DATABASE_NAME)) as connection, connection:  # one transaction: one moment
            damage = [text for (text,) in connection.execute("PRAGMA integrity_check") if text != "ok"]
            found += [Finding(EMPTY_KEY, text) for text in damage]
            if not damage:
                found += [
                    *cross_row_findings(connection),
                    *(each for row in read_rows(connection) for each in row_findings(row)),
                ]
    except apsw.Error as error:
        found.append(Finding(EMPTY_KEY, f"{folder / DATABASE_NAME}: {error}"))
    return found


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
    said = metadata.get("namespace", ""), metadata.get("name", "")
    if said != (row.key.namespace, row.key.name):
        yield Finding(row.key, f"says that it is {'/'.join(said)}")
    if metadata.get("resourceVersion") != str(row.revision):
        yield Finding(row.key, f"says that it is of revision {metadata.get('resourceVersion')}, not {row.revision}")


def row_metadata(row: ObjectRow) -> dict[str, Any]:
    """The object's metadata; empty where nobody can read them."""
    try:
        found = msgspec.json.decode(row.raw)["metadata"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def repair(folder: Path) -> list[Key]:
    """Take what cannot be read out of the way, into a file beside the objects; the rest stays as it is."""
    with write_lock(folder), closing(open_database(folder / DATABASE_NAME)) as connection:
        lost = [row for row in read_rows(connection) if not row.is_intact]
        if not lost:
            return []
        aside = folder / f"removed-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
        aside.touch(mode=0o600)
        aside.write_bytes(msgspec.json.Encoder().encode_lines([{"key": row.key, "raw": row.raw} for row in lost]))
        sync_to_disk(aside)
        with connection:
            for row in lost:
                connection.execute(DELETE_ENTRY, row.key)
        return [row.key for row in lost]


def read_entries(folder: Path, resources: Sequence[str] = ()) -> Iterator[Entry]:
    """The objects at one revision, by resource, namespace and name; of some resources or of all."""
    try:
        with closing(open_database(folder / DATABASE_NAME)) as connection, connection:
            for row in read_rows(connection):
                if not resources or row.key.resource in resources:
                    if not row.is_intact:
                        raise StorageError(
                            f"{folder / DATABASE_NAME}: {Finding(row.key, CHECKSUM_MISMATCH)}; see `apiserver check`"
                        )
                    yield Entry(row.revision, row.key, row.raw)
    except apsw.Error as error:
        raise StorageError(f"{folder / DATABASE_NAME}: {error}; restore a backup") from error


def read_rows(connection: apsw.Connection) -> Iterator[ObjectRow]:
    for resource, namespace, name, revision, checksum, raw in connection.execute(SELECT_ROWS):
        yield ObjectRow(Key(resource, namespace, name), revision, checksum, raw)


def latest_revision(connection: apsw.Connection) -> int:
    [[revision]] = connection.execute(SELECT_LATEST)
    return int(revision)


def open_database(path: Path) -> apsw.Connection:
    """A connection beside the server's own."""
    if not path.exists():
        raise StorageError(f"{path}: there is no such file; name the folder with --file-rootpath")
    # A reader needs to write, too, where it is the first: to the file by which SQLite's processes know of each other.
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.limit(apsw.SQLITE_LIMIT_LENGTH, MAX_ROW_BYTES)
    try:
        found = connection.pragma("user_version")
    except apsw.Error as error:
        connection.close()
        raise StorageError(f"{path}: {error}; restore a backup") from error
    if found != SCHEMA_VERSION:
        connection.close()
        how = "; start a server on it once, which brings it up to that" if 0 < found < SCHEMA_VERSION else ""
        raise StorageError(f"{path}: is of version {found}, and this program reads version {SCHEMA_VERSION}{how}")
    return connection


def sync_to_disk(path: Path) -> None:
    """See that a file, or what a folder has in it, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
