"""Queries of the audit logs of all instances whose folders are in one folder."""

import heapq
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from tapestry.vclusters.audit.records import AuditRecord, records_of, segments


def newest_first(
    root: Path, *, since: datetime | None = None, until: datetime | None = None, matches: Callable[[AuditRecord], bool]
) -> Iterator[AuditRecord]:
    """Yield the records of all instances from `since` until before `until`, newest first. Files are read on demand."""
    instances = [folder for folder in sorted(root.iterdir()) if folder.is_dir()] if root.is_dir() else []
    chains = [instance_records(folder, since) for folder in instances]
    for record in heapq.merge(*chains, key=lambda each: each.time, reverse=True):
        if since is not None and record.time < since:
            continue
        if (until is None or record.time < until) and matches(record):
            yield record


def instance_records(folder: Path, since: datetime | None) -> Iterator[AuditRecord]:
    for segment in reversed(segments(folder)):
        try:
            records = list(records_of(segment))
        except FileNotFoundError:  # removed because it was old
            return
        yield from records
        if since is not None and records and records[-1].time < since:
            return
