"""Cost of listing 5,000 pods into a cache: the Tapestry informer and the official client.

Both sides receive the same pods as bytes, 25 MiB of them: the informer as pages or as a stream, the official client as
the one response that its informer requests. The informer strips, deduplicates and indexes the objects twice. The
official client only creates models in a dict. Each measurement runs in a new process, the sides take turns, and the
best result of each counts.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import pods
from benchmarks.fresh import fresh
from benchmarks.table import Row, alone, say

ROUNDS = 3
SIDES = {
    "paged": ("benchmarks.sides.informer:filled", "pages", "slim"),
    "streamed": ("benchmarks.sides.informer:filled", "events", "slim"),
    "official": ("benchmarks.sides.official_list:listed", "list"),
}


def rows() -> Iterator[Row]:
    best = measured()
    theirs = best["official"]
    for side, how in (("paged", "in pages"), ("streamed", "as a stream")):
        ours = best[side]
        yield Row(
            f"5,000 pods listed {how}: CPU, official client / ours",
            theirs["cpu"] / ours["cpu"],
            "x",
            at_least=10,
            detail=f"{ours['cpu']:.3f} s, official {theirs['cpu']:.3f} s",
        )
        yield Row(
            f"5,000 pods listed {how}: memory held, ours / official client",
            ours["held"] / theirs["held"],
            "x",
            at_most=0.3,
            detail=f"{ours['held'] / 1e6:.0f} MB, official {theirs['held'] / 1e6:.0f} MB",
        )


def measured() -> dict[str, dict[str, Any]]:
    """Return the lowest values of all rounds, by side."""
    best: dict[str, dict[str, Any]] = {}
    with TemporaryDirectory() as folder:
        say(f"list_decode: generating {pods.COUNT} pods")
        (Path(folder) / "pages").write_bytes(b"\n".join(pods.pages()))
        (Path(folder) / "events").write_bytes(b"".join(pods.events()))
        (Path(folder) / "list").write_bytes(b"".join(pods.pages(page=pods.COUNT)))
        for number in range(ROUNDS):
            for side, (target, file, *how) in SIDES.items():
                say(f"list_decode: round {number + 1} of {ROUNDS}, {side}")
                found = fresh(target, Path(folder) / file, *how)
                if found.pop("objects") != pods.COUNT:
                    raise RuntimeError(f"{target} lost pods: it holds {found}")
                best[side] = {name: min(value, best.get(side, found)[name]) for name, value in found.items()}
    return best


if __name__ == "__main__":
    alone(rows)
