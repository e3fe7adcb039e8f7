"""Cost of planes: memory, time to create, suspend and resume them, and garbage collection in their process.

Planes have the default controllers and the file backend, and share one process without listeners. The memory of a plane
is the growth of the resident memory, divided by the number of planes. Each measurement runs in a new process.

To add a measurement, write a function that yields rows, and add it to `MEASUREMENTS`.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.fresh import fresh
from benchmarks.table import Row, say, table

SIDE = "benchmarks.sides.planes"


@dataclass(frozen=True)
class Scale:
    """Size of the measurements."""

    planes: int = 100
    objects: int = 10_000
    cycles: int = 1_000


QUICK = Scale(planes=30, cycles=100)


def idle_rows(scale: Scale) -> Iterator[Row]:
    say(f"planes: {scale.planes} idle planes")
    found = fresh(f"{SIDE}:idle", scale.planes)
    detail = f"{found['tasks']:.0f} tasks each; {found['base']:.0f} MB without planes"
    yield Row("idle plane", found["megabytes"], "MB", at_most=1.5, detail=detail)
    yield Row("idle plane after kubectl has read all documents", found["megabytes_read"], "MB", at_most=2.0)
    detail = f"{found['create_cpu'] * 1e3:.0f} ms of CPU each, with the first work of the controllers"
    yield Row("create a plane until it answers, p50", found["create_p50"], "s", at_most=0.3, detail=detail)
    total = 20.0 * scale.planes / Scale.planes
    yield Row(f"create {scale.planes} planes", found["create_total"], "s", at_most=total)
    yield Row(f"full garbage collection with {scale.planes} planes", found["collection"] * 1e3, "ms", at_most=20)


def document_rows(scale: Scale) -> Iterator[Row]:
    say(f"planes: documents of {scale.planes} planes with a custom resource each")
    found = fresh(f"{SIDE}:documents", scale.planes)
    detail = f"{found['megabytes_read']:.2f} MB before they are dropped"
    yield Row(
        "plane with a custom resource, documents read, then idle", found["megabytes"], "MB", at_most=2.0, detail=detail
    )


def resume_rows(scale: Scale) -> Iterator[Row]:
    say(f"planes: suspend and resume a plane with {scale.objects:,} objects")
    found = fresh(f"{SIDE}:resume", scale.objects)
    what = f"with {scale.objects:,} objects"
    yield Row(f"suspend a plane {what}, p50", found["suspend"] * 1e3, "ms", at_most=50)
    yield Row(f"resume a plane {what} until it answers, p50", found["resume"], "s", at_most=0.6)
    detail = f"waited {found['blocked'] * 1e3:.0f} ms at most, other processes included"
    yield Row(
        f"event loop meanwhile, worst block {what}", found["blocked_cpu"] * 1e3, "ms CPU", at_most=20, detail=detail
    )


def cycle_rows(scale: Scale) -> Iterator[Row]:
    say(f"planes: open and close a plane {scale.cycles:,} times")
    found = fresh(f"{SIDE}:cycles", scale.cycles)
    what = f"after {scale.cycles:,} times open and close"
    yield Row(f"memory {what}", found["bytes"], "x", at_most=1.05, detail=f"from {found['megabytes']:.0f} MB")
    yield Row(f"descriptors {what}", found["descriptors"], "x", at_most=1.05)


MEASUREMENTS: dict[str, Callable[[Scale], Iterator[Row]]] = {
    "idle": idle_rows,
    "documents": document_rows,
    "resume": resume_rows,
    "cycles": cycle_rows,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planes", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="use fewer planes, and open and close one 100 times only")
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
