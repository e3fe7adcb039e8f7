"""Memory of a pod in a cache: an informer with 20,000 pods of 5 kB of JSON, in a new process.

The pods are stored once with the default transform and once as a projection: name, namespace, UID, version, node,
requests and phase. They are listed in pages and as a stream, because a list affects the heap that remains.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import pods
from benchmarks.fresh import fresh
from benchmarks.table import Row, alone, say

COUNT = 20_000
BARS = {"slim": ("with the default transform", 20), "projection": ("as a projection", 3)}


def rows() -> Iterator[Row]:
    with TemporaryDirectory() as folder:
        say(f"cached_pods: generating {COUNT} pods")
        (Path(folder) / "pages").write_bytes(b"\n".join(pods.pages(COUNT)))
        (Path(folder) / "events").write_bytes(b"".join(pods.events(COUNT)))
        for transform, (title, bar) in BARS.items():
            for file, how in (("pages", "in pages"), ("events", "as a stream")):
                say(f"cached_pods: {title}, listed {how}")
                found = fresh("benchmarks.sides.informer:filled", Path(folder) / file, transform)
                yield Row(
                    f"memory per cached 5 kB pod {title}, listed {how}",
                    found["held"] / found["objects"] / 1000,
                    "kB",
                    at_most=bar,
                    detail=f"{found['held'] / 1e6:.0f} MB for {found['objects']:,}",
                )


if __name__ == "__main__":
    alone(rows)
