"""Run the commands of a document in order, in a folder that looks like a fresh clone.

If a `text` block follows the commands, their output must match it line by line. Runs of spaces match each other. `...`
matches anything, within a line or in place of lines. A separate number matches any number except zero, and zero matches
only zero. If the output does not match yet, the last command of the block (its last line) is repeated until a timeout.
All other commands, and blocks without expected output, must succeed at once.

A command that serves until Ctrl-C gets its own terminal. It is ready when the expected output appears, or when it
prints how to stop it.
"""

import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from smells import CommandBlock, command_blocks

ROOT = Path(__file__).parents[2]
RUNNER = "tests/e2e/test_documents.py"
SERVING = re.compile(
    r"^(make up|(\S*/)?tapestry (up|apiserver(?! [a-z])|cluster|planes run|run)\b[^&|\n]*)\n?\Z", re.MULTILINE
)
WORLD = re.compile(r"^(make up|(\S*/)?tapestry up\b)", re.MULTILINE)
SERVING_OUTPUT = "...\nCtrl-C stops...\n..."
TIMEOUT_SECONDS = 90.0
"""Seconds for commands to end, and for the expected output to appear."""
PAUSE = 0.3
CLONED = ("Makefile", "examples", "manifests", "docs", "README.md")


def blocks_of(document: Path) -> list[CommandBlock]:
    """Return the command blocks of a document that name this runner."""
    return [block for block in command_blocks(document.read_text()) if block.runner == RUNNER]


def pattern_of(expected: str) -> re.Pattern[str]:
    """Return a pattern that matches the output for a `text` block of a document."""
    lines = [r"(.*\n)*?" if line.strip() == "..." else line_pattern(line) + r"\n" for line in expected.splitlines()]
    return re.compile("".join(lines))


def line_pattern(line: str) -> str:
    return r"[ \t]*" + r"[ \t]+".join(map(word_pattern, line.split())) + r"[ \t]*"


def word_pattern(word: str) -> str:
    if re.fullmatch("[0-9.]*[1-9][0-9.]*", word):
        return "[0-9.]*[1-9][0-9.]*"
    return ".*".join(map(re.escape, word.split("...")))


def clone(folder: Path) -> None:
    """Fill a folder like a clone in which `make setup` was run."""
    for name in CLONED:
        (folder / name).symlink_to(ROOT / name)
    for name in ("requirements.lock", "pyproject.toml"):
        (folder / name).touch()
    (folder / ".venv").mkdir()
    (folder / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    (folder / ".venv" / "installed").touch()  # newer than everything that it depends on


@dataclass
class Reader:
    """Run the commands of a document in one shell, and each serving command in its own terminal."""

    folder: Path
    environment: Mapping[str, str]
    shell: subprocess.Popen[str]
    serving: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def follow(self, block: CommandBlock) -> None:
        """Run the commands of a block and wait for the expected output."""
        serves = SERVING.search(block.script) is not None
        attempt = self.serve(block.script) if serves else self.attempts(block)
        pattern = pattern_of(block.output or (SERVING_OUTPUT if serves else "..."))
        due = time.monotonic() + (TIMEOUT_SECONDS if block.output or serves else 0)
        while True:
            succeeded, output = attempt()
            if succeeded and pattern.fullmatch(output):
                return
            wanted = f"instead of\n{block.output}" if succeeded else "and fails"
            assert time.monotonic() < due, f"line {block.line} prints\n{output}\n{wanted}"
            threading.Event().wait(PAUSE)

    def attempts(self, block: CommandBlock) -> Callable[[], tuple[bool, str]]:
        """Run all but the last command once. Return a function that runs the last one and returns all output."""
        if not block.output:
            return lambda: self.type(block.script)
        before, _, last = block.script.rstrip("\n").rpartition("\n")
        succeeded, setup_output = self.type(before)
        assert succeeded, f"line {block.line} prints\n{setup_output}\nand fails"

        def attempt() -> tuple[bool, str]:
            succeeded, output = self.type(last)
            return succeeded, setup_output + output

        return attempt

    def type(self, script: str) -> tuple[bool, str]:
        """Run commands in the shell. Return True if all succeeded, and their output."""
        assert self.shell.stdin is not None
        assert self.shell.stdout is not None
        typed, screen = self.folder / ".typed", self.folder / ".screen"
        typed.write_text(script)
        line = f"failed=no; source {typed} < /dev/null > {screen} 2>&1; echo $failed"
        print(line, file=self.shell.stdin, flush=True)
        watchdog = threading.Timer(TIMEOUT_SECONDS, os.killpg, (self.shell.pid, signal.SIGKILL))
        watchdog.start()
        failed = self.shell.stdout.readline()
        watchdog.cancel()
        output = screen.read_text()
        assert failed, f"this ended the shell:\n{script}\n{output}"
        return failed == "no\n", output

    def serve(self, script: str) -> Callable[[], tuple[bool, str]]:
        """Run serving commands in their own terminal. Return a function that returns their output so far.

        The output of `tapestry up` is redirected to a file: on a terminal it would redraw a screen.
        """
        screen = self.folder / f".screen-{len(self.serving)}"
        capture = nullcontext if WORLD.search(script) else terminal
        with screen.open("wb") as file, capture(file) as out:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", script],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.serving.append(process)

        def attempt() -> tuple[bool, str]:
            output = screen.read_text().replace("\r\n", "\n")
            assert process.poll() is None, f"this ended:\n{script}\n{output}"
            return True, output

        return attempt

    def close(self) -> None:
        """End the shell with its background jobs, and send SIGINT to the serving commands."""
        self.shell.communicate(
            "kill $(jobs -p) 2> /dev/null; wait\n" if self.shell.poll() is None else None, timeout=TIMEOUT_SECONDS
        )
        for process in reversed(self.serving):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
            process.wait(TIMEOUT_SECONDS)


@contextmanager
def terminal(screen: IO[bytes]) -> Iterator[int]:
    """Open a terminal and yield its descriptor. Output is copied to `screen` until the last writer closes it."""
    controller, terminal_end = pty.openpty()
    copy = os.dup(screen.fileno())

    def follow() -> None:
        with suppress(OSError):  # the other end is closed
            while chunk := os.read(controller, 1 << 16):
                os.write(copy, chunk)
        for descriptor in (controller, copy):
            os.close(descriptor)

    threading.Thread(target=follow, daemon=True).start()
    try:
        yield terminal_end
    finally:
        os.close(terminal_end)


@contextmanager
def open_reader(folder: Path) -> Iterator[Reader]:
    """Open a Reader whose clone of the repository is `folder`."""
    clone(folder)
    bin_folder = str(Path(sys.executable).parent)
    environment = {
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "PATH": os.pathsep.join(each for each in os.get_exec_path() if each != bin_folder),
        **{
            f"TAPESTRY_{name}_ADDRESS": "127.0.0.1:0" for name in ("LOCAL", "SECURE")
        },  # the default ports may be in use
    }
    shell = subprocess.Popen(
        ["bash", "-uo", "pipefail"],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert shell.stdin is not None
    print("trap 'failed=yes' ERR", file=shell.stdin, flush=True)
    found = Reader(folder, environment, shell)
    try:
        yield found
    finally:
        found.close()
