"""`tapestry` in a process that is forked from one with its modules, because importing them takes most of its start.

Each pytest worker has one such fork server, which starts with the first process.
"""

import multiprocessing
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tapestry.cli.main import main

FORK_SERVER = multiprocessing.get_context("forkserver")
FORK_SERVER.set_forkserver_preload(["tapestry.cli.main", "tapestry.cli.syncer", "uvloop"])


class ForkedTapestry:
    """A started `tapestry` with the methods of `Popen` that tests use.  Its log is its standard error."""

    def __init__(self, arguments: Sequence[object], environ: Mapping[str, str], log: Path) -> None:
        words = [str(argument) for argument in arguments]
        self._process = FORK_SERVER.Process(target=run, args=(words, dict(environ), str(log)))
        self._process.start()
        self.pid = self._process.pid
        self.terminate, self.kill = self._process.terminate, self._process.kill

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("tapestry", timeout or 0)
        return self._process.exitcode


def run(arguments: list[str], environ: dict[str, str], log: str) -> None:
    """Run the command line in this process, which has just been forked."""
    os.environ.clear()
    os.environ.update(environ)
    os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), 2)
    main(arguments, prog_name="tapestry")
