"""Cost of tenants in one process of planes: memory, idle CPU, times, and how much they delay each other.

Each tenant has a plane with all controllers and a syncer. The host cluster is our own, with simulated nodes and with
pods that are not those of tenants, in a process of its own. The memory of a tenant is the growth of the resident
memory, divided by the number of tenants. Each measurement runs in new processes. They share the cores of the machine
with each other and with all other work, so times are compared with another figure of the same run where possible.

To add a measurement, write a function that yields rows, and add it to `MEASUREMENTS`.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

from benchmarks.fresh import fresh
from benchmarks.table import Row, say, table

SIDE = "benchmarks.sides.tenants"
PLACEMENTS = "host", "virtual"
WALL, CPU = 0, 1
"""Columns of the times of a pod: seconds, and CPU seconds of the processes of planes and of the host cluster.

On an otherwise idle machine, the second is about an upper limit of the first.
"""


@dataclass(frozen=True)
class Scale:
    """Size of the measurements. Each field is an option."""

    nodes: int = 100
    """Nodes of the host cluster."""
    foreign: int = 2_000
    """Pods of the host cluster that are not those of tenants."""
    tenants: int = 100
    """Tenants of which the memory and the idle CPU are measured."""
    all_tenants: int = 30
    """The same with all nodes of the host in each plane."""
    churned: int = 50
    """Tenants whose pods are replaced."""
    pods: int = 20
    """Pods of each of these."""
    rate: int = 20
    """Pods of all these that are replaced in a second."""
    reclaimed: int = 100
    """Pods of the tenant whose owner sets the kill switch."""
    seconds: int = 30
    """Seconds for which tenants are idle, and for which pods are replaced."""


QUICK = Scale(nodes=20, foreign=100, tenants=10, all_tenants=10, churned=4, pods=5, reclaimed=20, seconds=4)


def pseudo_rows(scale: Scale) -> Iterator[Row]:
    say(f"tenants: {scale.tenants} idle tenants with the nodes of their pods")
    found = fresh(f"{SIDE}:idle", scale.tenants, scale.nodes, scale.foreign, "pseudo", scale.seconds)
    detail = f"{found['tasks']:.0f} tasks each; {found['base']:.0f} MB without tenants"
    yield Row("tenant with the nodes of its pods", found["megabytes"], "MB", at_most=5.0, detail=detail)
    detail = f"{found['create_cpu'] * 1e3:.0f} ms of CPU each; load {found['load']:.1f}"
    yield Row("create a tenant until its first pod runs, p50", found["first_pod"], "s", at_most=1.0, detail=detail)
    share = 5.0 * scale.tenants / Scale.tenants
    yield Row(f"idle CPU of {scale.tenants} tenants", found["cpu"] * 100, "% of a core", at_most=share)


def small_host_rows(scale: Scale) -> Iterator[Row]:
    say(f"tenants: {scale.all_tenants} idle tenants of a small host cluster")
    found = fresh(f"{SIDE}:idle", scale.all_tenants, 2, 0, "pseudo", 1)
    yield Row("the same on a host of 2 nodes without other pods", found["megabytes"], "MB", at_most=5.0)


def all_rows(scale: Scale) -> Iterator[Row]:
    say(f"tenants: {scale.all_tenants} idle tenants with all nodes")
    found = fresh(f"{SIDE}:idle", scale.all_tenants, scale.nodes, scale.foreign, "all", scale.seconds)
    detail = f"{found['tasks']:.0f} tasks each; idle CPU of 100 would be {found['cpu'] / scale.all_tenants * 1e4:.1f} %"
    yield Row(f"tenant with all {found['nodes']} nodes", found["megabytes"], "MB", at_most=8.0, detail=detail)


def churn_rows(scale: Scale) -> Iterator[Row]:
    count = scale.churned
    say(f"tenants: {scale.rate} pods a second of {count} tenants with {scale.pods} pods each")
    arguments = scale.churned, scale.nodes, scale.foreign, scale.pods, scale.rate, scale.seconds
    found = fresh(f"{SIDE}:churn", *arguments)
    for placement in PLACEMENTS:
        one, many = found[f"one {placement}"][placement], found["all"][placement]
        what = f"create until twin, p99, placement {placement}, {count} tenants"
        for name, unit, column in ((what, "ms", WALL), ("the same in CPU time", "ms CPU", CPU)):
            p50, p99 = (quantile(one, share, column) for share in (0.5, 0.99))
            detail = f"p50 {quantile(many, 0.5, column):.0f} ms; one tenant p50 {p50:.0f}, p99 {p99:.0f} ms"
            limit = max(1_000.0, 3 * p99)
            yield Row(
                name, quantile(many, 0.99, column), unit, at_most=limit, detail=f"{detail}; load {found['load']:.1f}"
            )
    for placement in PLACEMENTS:
        cpu_one, cpu = found[f"one {placement}"]["cpu"] * 1e3, found["all"]["cpu"] * 1e3
        detail = f"{cpu:.1f} ms, one tenant {cpu_one:.1f}; the host {found['all']['host cpu'] * 1e3:.1f} ms"
        what = f"CPU of a replaced pod, {count} tenants / one, placement {placement}"
        yield Row(what, cpu / cpu_one, "x", detail=detail)
    answers = ", ".join(f"{number} with {status}" for status, number in found["answers"].items())
    what = "requests of a tenant that creates pods without pause, rejected with 429"
    yield Row(what, found["answers"].get("429", 0), "", at_least=1, detail=answers)
    for placement in PLACEMENTS:
        without, beside = found["all"][placement], found["flooded"][placement]
        what = f"p99 of the others meanwhile, placement {placement}"
        for name, column in ((what, WALL), ("the same in CPU time", CPU)):
            p99, p99_without = quantile(beside, 0.99, column), quantile(without, 0.99, column)
            detail = (
                f"p50 {quantile(beside, 0.5, column):.0f} ms, without it {quantile(without, 0.5, column):.0f}; "
                f"p99 {p99:.0f} ms, without it {p99_without:.0f}"
            )
            yield Row(name, p99 / p99_without, "x", at_most=2.0, detail=detail)


def kill_switch_rows(scale: Scale) -> Iterator[Row]:
    say(f"tenants: kill switch for {scale.reclaimed} pods")
    found = fresh(f"{SIDE}:kill_switch", scale.reclaimed, 2)
    for placement in PLACEMENTS:
        what = f"kill switch until all {scale.reclaimed} twins of a tenant are deleting, placement {placement}"
        seconds, cpu_seconds = found[placement]
        detail = f"{cpu_seconds:.2f} s of CPU with the host; load {found['load']:.1f}"
        yield Row(what, seconds, "s", at_most=2.0, detail=detail)


def quantile(times: list[tuple[float, float]], share: float, column: int) -> float:
    """Return a quantile in milliseconds."""
    return sorted(each[column] for each in times)[int(len(times) * share)] * 1e3


MEASUREMENTS: dict[str, Callable[[Scale], Iterator[Row]]] = {
    "pseudo": pseudo_rows,
    "small-host": small_host_rows,
    "all": all_rows,
    "churn": churn_rows,
    "kill-switch": kill_switch_rows,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tenants", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="use small numbers unless they are given")
    parser.add_argument(
        "--only", choices=MEASUREMENTS, action="append", help="run only this measurement; may be given several times"
    )
    for each in fields(Scale):
        parser.add_argument(f"--{each.name.replace('_', '-')}", type=int, metavar="N", help=f"default: {each.default}")
    arguments = parser.parse_args()
    given = {each.name: value for each in fields(Scale) if (value := getattr(arguments, each.name)) is not None}
    scale = replace(QUICK if arguments.quick else Scale(), **given)
    rows = [row for name in arguments.only or MEASUREMENTS for row in MEASUREMENTS[name](scale)]
    print(table(rows))
    return int(any(row.verdict == "MISS" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
