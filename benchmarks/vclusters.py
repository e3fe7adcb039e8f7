"""Times and rates of the lifecycle service in one process of planes.

A virtual cluster is created through REST, and its API answers when a GET with a new connection and the kubeconfig of
the service returns. Gets through the whole gateway are those of eight identities, with authentication, authorization,
rate limits and audit. They are compared with GETs of the same objects from our API server in the same run and process.

To add a measurement, write a function that yields rows, and add it to `MEASUREMENTS`.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from benchmarks.fresh import fresh
from benchmarks.table import Row, say, table

SIDE = "benchmarks.sides.vclusters"
SHARES = {"rest": ("REST", 1 / 4), "grpc": ("gRPC", 1 / 8)}
"""Name of each way to get a virtual cluster, and the required share of the rate of our API server."""


@dataclass(frozen=True)
class Scale:
    """Size of the measurements."""

    created: int = 100
    at_once: int = 8
    """Virtual clusters that are created at the same time."""
    listed: int = 1_000
    gets: int = 4_000
    rounds: int = 3


QUICK = Scale(created=10, listed=200, gets=500, rounds=2)


def created_rows(scale: Scale) -> Iterator[Row]:
    say(f"virtual clusters: create {scale.created}")
    found = fresh(f"{SIDE}:created", scale.created, scale.at_once)
    detail = f"worst {found['worst']:.2f} s; load {found['load']:.1f}"
    yield Row("create until the API answers a GET, p50", found["p50"], "s", at_most=0.5, detail=detail)
    detail = f"{scale.at_once} at once; {found['cpu'] / scale.created * 1e3:.0f} ms of CPU each"
    total = 30.0 * scale.created / Scale.created
    yield Row(f"create {scale.created} virtual clusters", found["total"], "s", at_most=total, detail=detail)


def read_rows(scale: Scale) -> Iterator[Row]:
    say(f"virtual clusters: list {scale.listed:,}, and get them")
    found = fresh(f"{SIDE}:reads", scale.listed, scale.gets, scale.rounds)
    what = f"list {scale.listed:,} virtual clusters in {found['pages']} pages"
    limit = 150.0 * scale.listed / Scale.listed
    first, *others = (each * 1e3 for each in found["lists"])
    yield Row(f"{what}, first time since the start", first, "ms", detail=f"load {found['load']:.1f}")
    detail = f"{found['list_cpu'] * 1e3:.0f} ms of CPU"
    yield Row(f"{what}, p50 of later times", median(others), "ms", at_most=limit, detail=detail)
    rate, cpu = found["turns"]["api"]
    yield Row("GETs from our API server", rate, "/s", detail=f"{cpu * 1e6:.0f} us of CPU each")
    for name, (what, share) in SHARES.items():
        its_rate, its_cpu = found["turns"][name]
        detail = f"{its_rate:.0f} /s; {its_cpu * 1e6:.0f} us of CPU each, {cpu / its_cpu:.2f} by CPU"
        yield Row(f"gets by {what} / GETs from our API server", its_rate / rate, "x", at_least=share, detail=detail)


MEASUREMENTS: dict[str, Callable[[Scale], Iterator[Row]]] = {"created": created_rows, "reads": read_rows}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vclusters", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="use fewer virtual clusters and requests")
    parser.add_argument(
        "--only", choices=MEASUREMENTS, action="append", help="run only this measurement; may be given several times"
    )
    arguments = parser.parse_args()
    scale = QUICK if arguments.quick else Scale()
    rows = [row for name in arguments.only or MEASUREMENTS for row in MEASUREMENTS[name](scale)]
    print(table(rows))
    return int(any(row.verdict == "MISS" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
