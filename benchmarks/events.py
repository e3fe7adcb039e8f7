"""Rate of handled events: a Controller and a kopf operator on the same stream.

A server process sends rounds of MODIFIED events, one for each of 1,000 custom resources of 1.5 kB. The next round
starts when the last event of the previous one was handled. Neither side can merge two events, and both are called
10,000 times. Neither handler does anything.
"""

from collections.abc import Iterator
from typing import Any

from benchmarks.fresh import fresh
from benchmarks.sides import api
from benchmarks.table import Row, alone, say

OBJECTS, ROUNDS = 1_000, 10
REPEATS = 3
SIDES = {"ours": "benchmarks.sides.manager_events:reconciled", "kopf": "benchmarks.sides.kopf_events:handled"}


def rows() -> Iterator[Row]:
    best: dict[str, dict[str, Any]] = {}
    for number in range(REPEATS):
        for side, target in SIDES.items():
            say(f"events: run {number + 1} of {REPEATS}, {side}")
            with api.running(OBJECTS, ROUNDS) as url:
                found = fresh(target, url, OBJECTS, ROUNDS)
            best[side] = {name: min(value, best.get(side, found)[name]) for name, value in found.items()}
    for kind, what in (("cpu", "second of CPU"), ("wall", "second")):
        ours, theirs = best["ours"][kind], best["kopf"][kind]
        yield Row(
            f"events handled per {what}, ours / kopf",
            theirs / ours,
            "x",
            at_least=5,
            detail=f"{1 / ours:,.0f}, kopf {1 / theirs:,.0f}",
        )


if __name__ == "__main__":
    alone(rows)
