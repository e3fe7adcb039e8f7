"""A short run of the hostile-requests benchmark on file storage."""

from benchmarks import hostile
from benchmarks.table import table

WORST = 1.0
"""Seconds that the other client may wait for a response."""


def test_hostile_requests_do_not_block_other_clients() -> None:
    [(name, run)] = hostile.runs(["file"], is_quick=True, at_once=hostile.AT_ONCE)
    found = list(hostile.rows(name, run, WORST))
    assert not [row.what for row in found if row.verdict == "MISS"], table(found)
