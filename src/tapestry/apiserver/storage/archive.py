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

from tapestry.apiserver.storage.file import DELETE, LATEST, NAME, NOBODY, VERSION, brought_up, writing
from tapestry.apiserver.storage.log import Entry, Key, LogError

KEYS = "pki"
LEAP = 1_000_000
"""By how much revisions go on after a restore: none that somebody may have seen since is given out again."""
ROWS = """
    SELECT resource, namespace, name, revision, checksum, raw FROM objects
    WHERE resource <> '' ORDER BY resource, namespace, name
"""
LARGEST_KEY = 1 << 20
"""Bytes of a file with a key or a certificate."""
LARGEST_ROW = 16 << 20
"""Bytes of an object as it is stored: a server takes 3 MiB, and adds to it who owns what."""
LARGEST_HEADER = 1 << 20
"""Bytes of an extended header of a tar file, which tarfile reads at once."""
MOST_MEMBERS = 1000
MEMBER = re.compile(rf"{re.escape(NAME)}|{KEYS}/[A-Za-z0-9][A-Za-z0-9._-]*")


class Finding(NamedTuple):
    """Something that is not as a server would have written it."""

    key: Key
    """Empty where it is not about one object."""
    why: str

    def __str__(self) -> str:
        resource, namespace, name = self.key
        return f"{resource} {namespace}/{name}: {self.why}" if resource else self.why


class Row(NamedTuple):
    key: Key
    revision: int
    checksum: int
    raw: bytes

    @property
    def is_as_written(self) -> bool:
        return zlib.crc32(self.raw) == self.checksum


def back_up(folder: Path, archive: Path) -> int:
    """Write an archive of the folder as it is at one revision, which is returned; a server may go on meanwhile."""
    with TemporaryDirectory(dir=archive.parent, prefix=".backup-") as name:
        copy = Path(name) / NAME
        with closing(opened(folder / NAME)) as connection:
            connection.execute("VACUUM INTO ?", (str(copy),))
        with closing(opened(copy)) as connection:
            revision = latest(connection)
            for row in rows(connection):
                if not row.is_as_written:
                    raise LogError(f"{folder / NAME}: {Finding(row.key, NOT_AS_WRITTEN)}; see `apiserver check`")
        made = Path(name) / "archive"
        with tarfile.open(made, "w") as tar:
            tar.add(copy, NAME)
            for path in sorted((folder / KEYS).glob("*")):
                tar.add(path, f"{KEYS}/{path.name}")
        os.chmod(made, 0o600)
        synced(made)
        made.replace(archive)
        synced(archive.parent)
    return revision


def restore(archive: Path, folder: Path) -> int:
    """Have the folder as an archive has it; returns the revision it begins with.  What was there is kept beside it."""
    with TemporaryDirectory(dir=folder.absolute().parent, prefix=".restore-") as name:
        fresh = Path(name) / "data"
        (fresh / KEYS).mkdir(parents=True, mode=0o700)
        fresh.chmod(0o700)
        unpack(archive, fresh)
        with closing(apsw.Connection(str(fresh / NAME))) as connection, suppress(apsw.Error):  # of which `check` tells
            connection.limit(apsw.SQLITE_LIMIT_LENGTH, LARGEST_ROW)
            if connection.pragma("user_version"):
                brought_up(connection)
        if found := check(fresh):
            raise LogError(f"{archive}: {found[0]}{f' and {len(found) - 1} more' if found[1:] else ''}")
        with closing(apsw.Connection(str(fresh / NAME))) as connection:
            connection.execute("UPDATE objects SET revision = revision + ? WHERE resource = ''", (LEAP,))
            revision = latest(connection)
        for path in (fresh / NAME, fresh):
            synced(path)
        with writing(folder):
            if any(path.name != "lock" for path in folder.iterdir()):
                folder.rename(folder.with_name(f"{folder.name}.before-{time.strftime('%Y%m%d-%H%M%S')}"))
            else:
                (folder / "lock").unlink()
                folder.rmdir()
            fresh.rename(folder)
    synced(folder.absolute().parent)
    return revision


def unpack(archive: Path, folder: Path) -> None:
    total = 0
    try:
        with plain(archive) as file, tarfile.open(fileobj=cast(IO[bytes], BoundedReads(file)), mode="r:") as tar:
            for count, member in enumerate(tar, 1):
                if not member.isfile() or member.issparse() or not MEMBER.fullmatch(member.name):
                    raise LogError(f"{archive}: {member.name[:100]!r} does not belong into an archive of ours")
                if count > MOST_MEMBERS:
                    raise LogError(f"{archive}: has more than {MOST_MEMBERS} files")
                if member.name != NAME and member.size > LARGEST_KEY:
                    raise LogError(f"{archive}: {member.name} is over {LARGEST_KEY} bytes")
                total += member.size
                if total > shutil.disk_usage(folder).free:
                    raise LogError(f"{archive}: {total} bytes and more do not fit on the disk of {folder.parent}")
                path = folder / member.name
                path.touch(mode=0o600)
                with path.open("wb") as target:
                    shutil.copyfileobj(tar.extractfile(member) or io.BytesIO(), target)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LogError(f"{archive}: is no archive: {error}") from error
    if not (folder / NAME).exists():
        raise LogError(f"{archive}: has no {NAME} in it")


def plain(archive: Path) -> IO[bytes]:
    """An archive without its compression."""
    with archive.open("rb") as file:
        is_compressed = file.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(archive)) if is_compressed else archive.open("rb")


class BoundedReads:
    """A file for tarfile that gives no more than a header at once, whatever size an extended header claims."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        if size > LARGEST_HEADER:
            raise tarfile.ReadError(f"a header of {size} bytes is over {LARGEST_HEADER}")
        return self.file.read(size)


def check(folder: Path) -> list[Finding]:
    """Everything below `folder` that is not as a server would have written it."""
    found: list[Finding] = []
    try:
        with closing(opened(folder / NAME)) as connection, connection:  # one transaction: one moment
            damage = [text for (text,) in connection.execute("PRAGMA integrity_check") if text != "ok"]
            found += [Finding(NOBODY, text) for text in damage]
            if not damage:
                found += [*about_all(connection), *(each for row in rows(connection) for each in about(row))]
    except apsw.Error as error:
        found.append(Finding(NOBODY, f"{folder / NAME}: {error}"))
    return found


NOT_AS_WRITTEN = "is not what was written"


def about_all(connection: apsw.Connection) -> Iterator[Finding]:
    last = latest(connection)
    revisions, uids = Counter[int](), Counter[str]()
    for row in rows(connection):
        revisions[row.revision] += 1
        uid = identity(row).get("uid", "")
        uids[uid] += 1
        if row.revision > last:
            yield Finding(row.key, f"revision {row.revision} is beyond the last one given out, {last}")
        if revisions[row.revision] > 1:
            yield Finding(row.key, f"revision {row.revision} was given out twice")
        if uid and uids[uid] > 1:
            yield Finding(row.key, f"uid {uid} is another object's")


def about(row: Row) -> Iterator[Finding]:
    if not row.is_as_written:
        yield Finding(row.key, NOT_AS_WRITTEN)
        return
    metadata = identity(row)
    said = metadata.get("namespace", ""), metadata.get("name", "")
    if said != (row.key.namespace, row.key.name):
        yield Finding(row.key, f"says that it is {'/'.join(said)}")
    if metadata.get("resourceVersion") != str(row.revision):
        yield Finding(row.key, f"says that it is of revision {metadata.get('resourceVersion')}, not {row.revision}")


def identity(row: Row) -> dict[str, Any]:
    """The object's metadata; empty where nobody can read them."""
    try:
        found = msgspec.json.decode(row.raw)["metadata"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def repair(folder: Path) -> list[Key]:
    """Take what cannot be read out of the way, into a file beside the objects; the rest stays as it is."""
    with writing(folder), closing(opened(folder / NAME)) as connection:
        lost = [row for row in rows(connection) if not row.is_as_written]
        if not lost:
            return []
        aside = folder / f"removed-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
        aside.touch(mode=0o600)
        aside.write_bytes(msgspec.json.Encoder().encode_lines([{"key": row.key, "raw": row.raw} for row in lost]))
        synced(aside)
        with connection:
            for row in lost:
                connection.execute(DELETE, row.key)
        return [row.key for row in lost]


def entries(folder: Path, resources: Sequence[str] = ()) -> Iterator[Entry]:
    """The objects at one revision, by resource, namespace and name; of some resources or of all."""
    try:
        with closing(opened(folder / NAME)) as connection, connection:
            for row in rows(connection):
                if not resources or row.key.resource in resources:
                    if not row.is_as_written:
                        raise LogError(f"{folder / NAME}: {Finding(row.key, NOT_AS_WRITTEN)}; see `apiserver check`")
                    yield Entry(row.revision, row.key, row.raw)
    except apsw.Error as error:
        raise LogError(f"{folder / NAME}: {error}; restore a backup") from error


def rows(connection: apsw.Connection) -> Iterator[Row]:
    for resource, namespace, name, revision, checksum, raw in connection.execute(ROWS):
        yield Row(Key(resource, namespace, name), revision, checksum, raw)


def latest(connection: apsw.Connection) -> int:
    [[revision]] = connection.execute(LATEST)
    return int(revision)


def opened(path: Path) -> apsw.Connection:
    """A connection beside the server's own."""
    if not path.exists():
        raise LogError(f"{path}: there is no such file; name the folder with --file-rootpath")
    # A reader needs to write, too, where it is the first: to the file by which SQLite's processes know of each other.
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.limit(apsw.SQLITE_LIMIT_LENGTH, LARGEST_ROW)
    try:
        found = connection.pragma("user_version")
    except apsw.Error as error:
        connection.close()
        raise LogError(f"{path}: {error}; restore a backup") from error
    if found != VERSION:
        connection.close()
        how = "; start a server on it once, which brings it up to that" if 0 < found < VERSION else ""
        raise LogError(f"{path}: is of version {found}, and this program reads version {VERSION}{how}")
    return connection


def synced(path: Path) -> None:
    """See that a file, or what a folder has in it, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
