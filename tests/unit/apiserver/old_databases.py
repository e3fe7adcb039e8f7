"""Writers of database files in the schemas of earlier versions."""

import zlib
from collections.abc import Iterable
from pathlib import Path

import apsw

from tapestry.apiserver.storage.log import Entry


def write_version_1(path: Path, entries: Iterable[Entry], latest: int) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("""
        CREATE TABLE objects (
            resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
            revision INTEGER NOT NULL, checksum INTEGER NOT NULL, raw BLOB NOT NULL,
            PRIMARY KEY (resource, namespace, name)
        ) WITHOUT ROWID;
        CREATE TABLE latest (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL);
    """)
    connection.execute("INSERT INTO latest VALUES (1, ?)", (latest,))
    rows = [(*key, revision, zlib.crc32(raw or b""), raw) for revision, key, raw in entries]
    connection.executemany("INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?)", rows)
    connection.pragma("user_version", 1)
    connection.close()
