"""Cost of planes in one process: memory, times, garbage collection, and how much they delay each other.

Planes have the configuration, the limits, the audit log and the listener of `tapestry planes run`, the default
controllers, and the file backend. The memory of a plane is the growth of the resident memory, divided by the number of
planes. Each measurement runs in a new process. The load of the machine is printed, because other work makes all times
longer; CPU times depend less on it.

To add a measurement, write a function that yields rows, and add it to `MEASUREMENTS`.
"""

import argparse
import os
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
    asleep_and_awake: int = 1_000
    awake: int = 50
    awake_objects: int = 500
    definitions: int = 1_000
    watches: int = 500
    idle_seconds: int = 30
    rounds: int = 200
    """Number of times that the same requests are sent."""


QUICK = Scale(
    planes=30,
    cycles=100,
    asleep_and_awake=100,
    awake=10,
    awake_objects=100,
    definitions=100,
    watches=100,
    idle_seconds=5,
    rounds=50,
)


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
    what = f"longest garbage collection while {scale.planes} planes open, and a full one then"
    yield Row(what, found["collection"] * 1e3, "ms CPU", at_most=20)


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


def awake_rows(scale: Scale) -> Iterator[Row]:
    count, awake = scale.asleep_and_awake, scale.awake
    say(f"planes: {count:,} planes, {awake} of them awake")
    found = fresh(f"{SIDE}:awake", count, awake, scale.awake_objects, scale.idle_seconds)
    what = f"{count:,} planes, {awake} awake with {scale.awake_objects} objects and informers on 10 kinds"
    yield Row(f"{what}: RSS", found["megabytes"], "MB", at_most=400, detail=f"{found['base']:.0f} MB without planes")
    yield Row("idle CPU of the same", found["cpu"] * 100, "% of a core", at_most=2)


def neighbour_rows(scale: Scale) -> Iterator[Row]:
    say("planes: GETs of a plane while another one is busy")
    found = fresh(f"{SIDE}:neighbour", scale.objects, scale.definitions, scale.watches, scale.idle_seconds)
    idle, burdened = found["idle"], found["burdened"]
    counts = ", ".join(f"{count} {name}" for name, count in {**found["lists"], **found["managed"]}.items())
    detail = (
        f"{burdened['count']:.0f} GETs in {burdened['seconds']:.0f} s, p50 {burdened['p50'] * 1e3:.0f} ms; idle p99 "
        f"{idle['p99'] * 1e3:.0f} ms; load {found['load']:.1f}; {counts}"
    )
    limit = max(30.0, 3e3 * idle["p99"])
    yield Row("GET p99 of a neighbour of a busy plane", burdened["p99"] * 1e3, "ms", at_most=limit, detail=detail)
    detail = f"longest time without another task {found['blocked_cpu'] * 1e3:.0f} ms of CPU"
    yield Row("worst of the same", burdened["worst"] * 1e3, "ms", at_most=250, detail=detail)
    detail = f"p50 {burdened['p50_cpu'] * 1e3:.1f} ms; the server used {found['cpu']:.0%} of a core"
    yield Row("CPU time of the server meanwhile, p99", burdened["p99_cpu"] * 1e3, "ms", at_most=30, detail=detail)
    yield Row("worst of the same", burdened["worst_cpu"] * 1e3, "ms", at_most=250)


def step_rows(scale: Scale) -> Iterator[Row]:
    say("planes: CPU time of the measurement of steps")
    found = fresh(f"{SIDE}:steps", 20, scale.rounds)
    for what in ("get", "create"):
        measured, plain = found[f"{what}-measured"], found[f"{what}-plain"]
        detail = f"{measured * 1e6:.0f} and {plain * 1e6:.0f} us of CPU, load {os.getloadavg()[0]:.1f}"
        share = (measured / plain - 1) * 100
        yield Row(f"measurement of steps, {what}", share, "% of CPU", at_most=2, detail=detail)


MEASUREMENTS: dict[str, Callable[[Scale], Iterator[Row]]] = {
    "idle": idle_rows,
    "documents": document_rows,
    "resume": resume_rows,
    "cycles": cycle_rows,
    "awake": awake_rows,
    "neighbour": neighbour_rows,
    "steps": step_rows,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planes", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="use fewer planes and objects")
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
