"""What does it cost to have 5,000 pods in a cache?  Our informer against the list of the official client.

Both sides are given the same pods as bytes, 25 MiB of them: ours in the pages or the stream that it asks for, the
official client in the one answer that its informer asks for.  Ours strips, shares and indexes them twice; of the
official one only models in a dict are asked.  Each measurement is a fresh process, the sides take turns, and the best
of each counts.
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
    """For each side the least that any of its rounds took."""
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
