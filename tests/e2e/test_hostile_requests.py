"""Short runs of the hostile-requests benchmark on both storage backends."""

from pathlib import Path

import pytest
from benchmarks import hostile
from benchmarks.table import table

WORST = 1.0
"""Seconds that the other client may wait for a response."""


def test_hostile_requests_do_not_block_other_clients() -> None:
    check_run("file")


@pytest.mark.long  # takes 50 s beside other tests: etcd shares the cores with the server
def test_hostile_requests_do_not_block_other_clients_on_etcd(kube_assets: Path) -> None:
    check_run("etcd")


def check_run(backend: str) -> None:
    [(name, run)] = hostile.runs([backend], is_quick=True, at_once=hostile.AT_ONCE)
    found = list(hostile.rows(name, run, WORST))
    missed = [row.what for row in found if row.verdict == "MISS"]
    # `make bench-hostile` measures memory, on a quiet machine: other tests run at the same time here
    assert not [what for what in missed if "growth of memory" not in what], table(found)
