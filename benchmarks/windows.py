"""Accuracy of windows: 50 edges on the real clock, in five minutes and with ten policies.

Half of the policies open while the other half closes, with pods to reclaim five seconds later. A watch on the virtual
cluster measures all times, so they include the round trip.
"""

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.integration.bound_clusters import bound_clusters, install_kinds
from tests.integration.edges import POLICIES, Measured, measured

from benchmarks.table import Row, say, table
from tapestry.local.kubernetes import AssetsMissing, ControlPlane, find_assets

MINUTES = 5
WHAT = f"{MINUTES * POLICIES} edges"


def rows() -> Iterator[Row]:
    try:
        assets = find_assets(os.environ)
    except AssetsMissing as error:
        yield Row(WHAT, None, "s", at_most=1, detail=str(error))
        return
    say("windows: starting two control planes")
    with TemporaryDirectory() as name:
        folder = Path(name)
        with ControlPlane(folder / "virtual", assets) as virtual, ControlPlane(folder / "physical", assets) as physical:
            say(f"windows: following {WHAT} over {MINUTES} minutes")
            found = asyncio.run(edges(virtual, physical, folder))
    yield Row(f"{WHAT}: seen", len(found.lateness), "", at_least=MINUTES * POLICIES)
    yield Row(f"{WHAT}: edge to taint, worst", max(found.lateness), "s", at_most=1)
    yield Row(f"{WHAT}: edge to taint, p99", p99(found.lateness), "s", at_most=1)
    yield Row(f"{WHAT}: taints before their edge", sum(late < 0 for late in found.lateness), "", at_most=0)
    pods = f"of {len(found.deadline_error)} pods"
    yield Row("deadline to deletion, worst", max(found.deadline_error), "s", at_most=2, detail=pods)
    yield Row("deadline to deletion, p99", p99(found.deadline_error), "s", at_most=2, detail=pods)
    yield Row("deleted before the deadline", found.deleted_early, "", at_most=0, detail=pods)


async def edges(virtual: ControlPlane, physical: ControlPlane, folder: Path) -> Measured:
    for plane in (virtual, physical):
        await install_kinds(plane)
    async with bound_clusters(virtual, physical, folder) as clusters:
        return await measured(clusters, MINUTES)


def p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


if __name__ == "__main__":
    found = list(rows())
    print(table(found))
    sys.exit(any(row.verdict == "MISS" for row in found))
