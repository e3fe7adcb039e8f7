"""Startup cost of commands: their CPU time compared with that of importing the libraries.

The commands query a running API server and exit. They take turns with `python -c 'import aiohttp, click'` on the same
machine. The lowest of several runs counts.
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
        commands = [(TAPESTRY, *command.split()) for command in COMMANDS]
        baseline, *measured = least_cpu([LIBRARIES, *commands], Path(folder))
    for command, seconds in zip(COMMANDS, measured, strict=True):
        yield Row(
            f"tapestry {command}: CPU / import aiohttp, click",
            seconds / baseline,
            "x",
            at_most=BAR,
            detail=f"{seconds * 1000:.0f} ms, libraries {baseline * 1000:.0f} ms",
        )


def least_cpu(commands: Sequence[Sequence[str]], folder: Path, runs: int = RUNS) -> list[float]:
    """Return the lowest user and system CPU seconds of each command, with compiled modules."""
    environ = compiling_environ(folder)
    found = [float("inf")] * len(commands)
    for _ in range(runs + 1):  # the first run compiles and is never the best
        for index, command in enumerate(commands):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, cwd=folder, env=environ, check=True, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            found[index] = min(found[index], seconds)
    return found


def compiling_environ(folder: Path) -> dict[str, str]:
    """Return variables with which Python compiles each module once, into that folder."""
    environ = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    return environ


@contextmanager
def world(folder: Path) -> Iterator[None]:
    """Run a world in that folder within the context."""
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
