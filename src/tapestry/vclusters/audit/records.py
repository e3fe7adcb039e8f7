"""Records of the audit log of the service, and the segments of the log in which they are stored."""

import hashlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

SUFFIX = ".jsonl"
MAX_TEXT = 1024
"""Characters of a text that a client has chosen. The rest is left out."""

Stage = Literal["received", "completed", "started", "removed"]


class AuditEvent(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """One stage of a request: received before its effects, and completed after them.

    The log itself adds `started` when an instance has opened it, and `removed` when it has removed old segments.
    """

    time: datetime
    stage: Stage
    id: str = ""
    """Id of the request, the same in both stages."""
    principal: str = ""
    credential: str = ""
    """Id of the access key, or fingerprint of the certificate, of the caller."""
    address: str = ""
    user_agent: str = ""
    protocol: str = ""
    method: str = ""
    namespace: str = ""
    name: str = ""
    project: str = ""
    request_id: str = ""
    digest: str = ""
    """SHA-256 of the request, whose content is not stored because it may contain secrets."""
    operation: str = ""
    code: str = ""
    reason: str = ""
    message: str = ""
    seconds: float = 0.0


class AuditRecord(AuditEvent, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """An event with its place in the chain of an instance."""

    instance: str
    sequence: int
    """Number of the record in the chain, from 1."""
    previous: str
    """SHA-256 of the line before, in hexadecimal digits. Empty in the first record."""


class Head(NamedTuple):
    """The last record of a chain at some time."""

    sequence: int
    digest: str


def chained(event: AuditEvent, instance: str, sequence: int, previous: str) -> bytes:
    """Return the line of an event in the chain, without the newline."""
    fields: dict[str, Any] = {name: short(getattr(event, name)) for name in event.__struct_fields__}
    return msgspec.json.encode(AuditRecord(**fields, instance=instance, sequence=sequence, previous=previous))


def short(value: object) -> object:
    return value[:MAX_TEXT] if isinstance(value, str) else value


def digest_of(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


DECODER = msgspec.json.Decoder(AuditRecord)


def segments(folder: Path) -> list[Path]:
    """Return the files of one instance, oldest first."""
    return sorted(folder.glob(f"{'[0-9]' * 20}{SUFFIX}"))


def segment_name(first_sequence: int) -> str:
    return f"{first_sequence:020d}{SUFFIX}"


def lines_of(segment: Path) -> list[bytes]:
    """Return the complete lines of a file. A line without a newline is not complete."""
    return segment.read_bytes().split(b"\n")[:-1]


def records_of(segment: Path) -> Iterator[AuditRecord]:
    """Yield the records of a file, newest first. Damaged lines are left out: `verify` reports them."""
    for line in reversed(lines_of(segment)):
        try:
            yield DECODER.decode(line)
        except msgspec.MsgspecError:
            continue


def last_line(segment: Path) -> bytes:
    """Return the last complete line of a file, or nothing if it has none."""
    return segment.read_bytes().rpartition(b"\n")[0].rpartition(b"\n")[2]
