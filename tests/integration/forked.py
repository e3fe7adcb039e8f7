"""`tapestry` in a process that is forked from one with its modules, because importing them takes most of its start.

Each pytest worker has one such fork server, which starts with the first process.
"""

import multiprocessing
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tapestry.cli.main import main

FORK_SERVER = multiprocessing.get_context("forkserver")
FORK_SERVER.set_forkserver_preload(
    ["tapestry.cli.syncer", "tapestry.cli.manager", "tapestry.cli.join", "tapestry.cli.repair", "uvloop"]
)


class ForkedTapestry:
    """A started `tapestry` with the methods of `Popen` that tests use.  Its log is its standard error."""

    def __init__(
        self, arguments: Sequence[object], environ: Mapping[str, str], log: Path, output: Path = Path(os.devnull)
    ) -> None:
        words = [str(argument) for argument in arguments]
        self._process = FORK_SERVER.Process(target=run, args=(words, dict(environ), output, log))
        self._process.start()
        self.pid = self._process.pid
        self.terminate, self.kill = self._process.terminate, self._process.kill

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("tapestry", timeout or 0)
        return self._process.exitcode


def completed(arguments: Sequence[object], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, like `subprocess.run` with captured output."""
    with tempfile.TemporaryDirectory() as folder:
        output, log = Path(folder, "output"), Path(folder, "log")
        code = ForkedTapestry(arguments, environ, log, output).wait()
        return subprocess.CompletedProcess(["tapestry", *arguments], code, output.read_text(), log.read_text())


def run(arguments: list[str], environ: dict[str, str], output: Path, log: Path) -> None:
    """Run the command line in this process, which has just been forked."""
    os.environ.clear()
    os.environ.update(environ)
    for descriptor, file in ((1, output), (2, log)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT), descriptor)
    main(arguments, prog_name="tapestry")
