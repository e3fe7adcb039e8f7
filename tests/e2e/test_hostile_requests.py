"""One client cannot keep others from being answered: the benchmark of hostile requests, in short and on files."""

from benchmarks import hostile
from benchmarks.table import table

WORST = 1.0
"""Seconds that the other client may wait for an answer."""


def test_hostile_requests_do_not_block_other_clients() -> None:
    [(name, run)] = hostile.runs(["file"], is_quick=True, at_once=hostile.AT_ONCE)
    found = list(hostile.rows(name, run, WORST))
    assert not [row.what for row in found if row.verdict == "MISS"], table(found)
