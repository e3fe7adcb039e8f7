"""Queries to the DNS resolver of a tenant, compared with packets that a bare loop sends back.

Both use one core of the machine, together with the processes that send the packets. So the figure for comparison is the
number of queries in a second of CPU time of the server.
"""

from collections.abc import Iterator

from benchmarks.fresh import fresh
from benchmarks.table import Row, alone, say

SIDE = "benchmarks.sides.dns"
SECONDS, LISTENERS = 3, 500
KINDS = {
    "few names": "10 names again and again",
    "many names": "1,000 names",
    "no such names": "names that do not exist",
    "headless": "a headless Service with 20 addresses",
}


def rows() -> Iterator[Row]:
    say("dns: queries in a second")
    found = fresh(f"{SIDE}:rates", SECONDS)
    echo = found["echo"]
    yield Row("bare UDP echo", echo["rate"], "/s", detail=f"{echo['per cpu second']:.0f} in a second of CPU")
    for kind, what in KINDS.items():
        each = found[kind]
        share = each["per cpu second"] / echo["per cpu second"]
        detail = f"{each['per cpu second']:.0f} in a second of CPU, {share:.0%} of the echo"
        yield Row(f"DNS: {what}", each["rate"], "/s", detail=detail)
    say("dns: a flood")
    flood = fresh(f"{SIDE}:flood", SECONDS)
    what = "queries of another tenant while one floods, p99"
    detail = f"{flood['quiet p99'] * 1e3:.1f} ms without the flood of {flood['sent']:.0f} packets in a second"
    yield Row(what, flood["flooded p99"] * 1e3, "ms", detail=detail)
    yield Row("CPU of the process meanwhile", flood["cpu"] * 100, "% of a core")
    yield Row("idle resolver", fresh(f"{SIDE}:idle", LISTENERS)["kilobytes"], "kB", at_most=100)


if __name__ == "__main__":
    alone(rows)
