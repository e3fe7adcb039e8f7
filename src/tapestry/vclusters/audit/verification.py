"""Verification of the chain of an instance: gaps, changed records, and records cut off at either end."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tapestry.vclusters.audit.records import DECODER, Head, digest_of, lines_of, segments


@dataclass(frozen=True)
class Verification:
    """Result of a verification. Without problems, the chain is complete between the first and the last record."""

    instance: str
    records: int
    first: int
    last: int
    problems: tuple[str, ...]


MAX_PROBLEMS = 100


def verify(folder: Path, head: Head | None = None, lost: Sequence[Head] = ()) -> Verification:
    """Verify the chain in the folder of an instance.

    `head` is a record that the chain must contain, from a place that who can change the folder cannot change. Without
    it, records cut off the end are not noticed. `lost` are earlier heads that were found missing.
    """
    problems = [
        f"record {each.sequence} was missing or had been changed when the instance started again" for each in lost
    ]
    records, first, sequence, digest, removed_up_to = 0, 0, 0, "", 0
    is_head_found = head is None or head[0] == 0
    for segment in segments(folder):
        for number, line in enumerate(lines_of(segment), start=1):
            place = f"{segment.name} line {number}"
            try:
                record = DECODER.decode(line)
            except msgspec.MsgspecError:
                problems.append(f"{place}: not a record")
                sequence, digest = sequence + 1, digest_of(line)
                continue
            if not records:
                first = record.sequence
            elif record.sequence != sequence + 1:
                problems.append(f"{place}: record {record.sequence} follows record {sequence}")
            elif record.previous != digest:
                problems.append(f"{place}: the record before record {record.sequence} was changed")
            records, sequence, digest = records + 1, record.sequence, digest_of(line)
            if record.stage == "removed" and record.code.isdecimal():
                removed_up_to = max(removed_up_to, int(record.code))
            if head is not None and head == (sequence, digest):
                is_head_found = True
    if records and first > 1 and first != removed_up_to + 1:
        problems.append(f"records 1 to {first - 1} are missing")
    if not is_head_found and head is not None:
        problems.append(f"record {head[0]} is missing or was changed; the last record is {sequence}")
    return Verification(folder.name, records, first, sequence, tuple(problems[:MAX_PROBLEMS]))
