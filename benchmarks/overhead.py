"""Cost of the smallest steps of the controller framework, without bars."""

from collections.abc import Iterator

from benchmarks.fresh import fresh
from benchmarks.table import Row, alone, say


def rows() -> Iterator[Row]:
    say("overhead: the smallest steps")
    found = fresh("benchmarks.sides.overheads:measured")
    yield Row(
        "GET of 140 B over loopback: CPU, ours / bare aiohttp",
        found["get"] / found["get, bare"],
        "x",
        detail=f"{found['get']:.0f} us, bare {found['get, bare']:.0f} us",
    )
    yield Row("queue: add, take and give back a key", found["queue"], "us")
    yield Row("store: replace an object with two indexes", found["store put"], "us")
    yield Row("store: get an object", found["store get"], "us")
    yield Row("watch: make an object of an event of 5 kB", found["watch event"], "us")


if __name__ == "__main__":
    alone(rows)
