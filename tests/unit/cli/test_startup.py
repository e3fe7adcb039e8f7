"""Short-lived commands start quickly: they import only what they need."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.startup import LIBRARIES, least_cpu

HEAVY = ("prometheus_client", "aiohttp", "uvloop", "rich", "cryptography", "apsw", "opentelemetry", "grpc")
SERVERS = ("tapestry.controller.manager", "tapestry.syncer.components", "tapestry.apiserver", "tapestry.local.world")
COMMANDS = ("status", "pods", "tree", "top", "explain")
GENEROUS = 1.8
"""Limit as a multiple of the libraries' CPU time; the target is 1.5 on an idle machine (`make bench-startup`)."""


def load(command: str) -> str:
    return f"from tapestry.cli.main import main; main.get_command(None, {command!r})"


def test_commands_import_no_server_and_no_metrics_library() -> None:
    code = f"{'; '.join(map(load, COMMANDS))}; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert set(done.stdout.split()) & {*HEAVY, *SERVERS} == set()


def test_command_starts_nearly_as_fast_as_its_libraries(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    libraries, status = least_cpu([LIBRARIES, (sys.executable, "-c", load("status"))], tmp_path, runs=4)
    record_property("startup ratio", round(status / libraries, 2))
    assert status / libraries <= GENEROUS
