"""How much longer than its libraries does a command take to start?  CPU of whole commands, in a world of its own.

What is compared are commands that ask a running API server and end, and `python -c 'import aiohttp, click'`, turn by
turn on the same machine; of each the least of several runs counts.
"""

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.table import Row, alone, say

LIBRARIES = (sys.executable, "-c", "import aiohttp, click")
TAPESTRY = str(Path(sys.executable).with_name("tapestry"))
COMMANDS = ("status", "nodes", "pods", "policies", "tree", "top", "explain node vnode-cluster-1-cluster-1-1")
RUNS = 10
BAR = 1.5


def rows() -> Iterator[Row]:
    say("startup: a world, and commands that ask it")
    with tempfile.TemporaryDirectory() as folder, world(Path(folder)):
        asked = [(TAPESTRY, *command.split()) for command in COMMANDS]
        least, *found = least_cpu([LIBRARIES, *asked], Path(folder))
    for command, seconds in zip(COMMANDS, found, strict=True):
        yield Row(
            f"tapestry {command}: CPU / import aiohttp, click",
            seconds / least,
            "x",
            at_most=BAR,
            detail=f"{seconds * 1000:.0f} ms, libraries {least * 1000:.0f} ms",
        )


def least_cpu(commands: Sequence[Sequence[str]], folder: Path, runs: int = RUNS) -> list[float]:
    """Seconds of CPU, own and the kernel's, of the best of several runs of each, with compiled modules."""
    environ = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    found = [float("inf")] * len(commands)
    for _ in range(runs + 1):  # the first compiles, and is never the best
        for index, command in enumerate(commands):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, cwd=folder, env=environ, check=True, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            found[index] = min(found[index], spent)
    return found


@contextmanager
def world(folder: Path) -> Iterator[None]:
    """A world at work in that folder."""
    command = (TAPESTRY, "up", "--clusters", "1")
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            for line in running.stdout:
                if "Ctrl-C" in line:
                    break
            yield
        finally:
            running.terminate()
            running.communicate()


if __name__ == "__main__":
    alone(rows)
