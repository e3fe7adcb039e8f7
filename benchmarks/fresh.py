"""Run one side of a comparison in a new process, without memory or caches of earlier runs.

    fresh("benchmarks.sides.informer:paged", path)

calls `paged(path)` of that module in the process and returns the JSON object that it returned.
"""

import gc
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

STATUS = Path("/proc/self/status")


def fresh(target: str, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.fresh", target, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def held_bytes() -> int:
    """Return the resident memory of this process in bytes, after a garbage collection."""
    gc.collect()
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    target, *arguments = sys.argv[1:]
    module, _, function = target.partition(":")
    print(json.dumps(getattr(importlib.import_module(module), function)(*arguments)))


if __name__ == "__main__":
    main()
