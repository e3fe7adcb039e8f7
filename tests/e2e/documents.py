"""Documents that are followed: their commands, typed in order by somebody who has just cloned the repository.

What a document shows right after its commands, in a block of `text`, is then to be seen, line for line.  Spaces count
once; `...` is anything, in a line or in place of lines; a number that stands alone is any number but zero, and zero is
zero.  What is not seen yet may take a moment: the last command of a block, a line of its own, is typed again.  All
others, and those of a block of which nothing is shown, have to go well at once.

Commands that serve until Ctrl-C get a terminal of their own, and are at work once what the document shows is seen, or
once they say how to stop them.
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
SERVING = re.compile(r"^(make up|(\S*/)?tapestry (up|apiserver(?! [a-z])|cluster|run)\b[^&|\n]*)\n?\Z", re.MULTILINE)
WORLD = re.compile(r"^(make up|(\S*/)?tapestry up\b)", re.MULTILINE)
SERVING_OUTPUT = "...\nCtrl-C stops...\n..."
TIMEOUT_SECONDS = 90.0
"""Seconds for commands to end, and for what they are to show."""
PAUSE = 0.3
CLONED = ("Makefile", "examples", "docs", "README.md")


def blocks_of(document: Path) -> list[CommandBlock]:
    """The commands of a document that are typed here."""
    return [block for block in command_blocks(document.read_text()) if block.runner == RUNNER]


def pattern_of(expected: str) -> re.Pattern[str]:
    """What is on a terminal where a document shows this."""
    lines = [r"(.*\n)*?" if line.strip() == "..." else line_pattern(line) + r"\n" for line in expected.splitlines()]
    return re.compile("".join(lines))


def line_pattern(line: str) -> str:
    return r"[ \t]*" + r"[ \t]+".join(map(word_pattern, line.split())) + r"[ \t]*"


def word_pattern(word: str) -> str:
    if re.fullmatch("[0-9.]*[1-9][0-9.]*", word):
        return "[0-9.]*[1-9][0-9.]*"
    return ".*".join(map(re.escape, word.split("...")))


def clone(folder: Path) -> None:
    """A folder that looks like a clone in which `make setup` was run."""
    for name in CLONED:
        (folder / name).symlink_to(ROOT / name)
    for name in ("requirements.lock", "pyproject.toml"):
        (folder / name).touch()
    (folder / ".venv").mkdir()
    (folder / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    (folder / ".venv" / "installed").touch()  # after everything that it depends on


@dataclass
class Reader:
    """Somebody who follows a document: in one shell, and in more terminals for what serves."""

    folder: Path
    environment: Mapping[str, str]
    shell: subprocess.Popen[str]
    serving: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def follow(self, block: CommandBlock) -> None:
        """Type the commands of a block, and see what the document shows."""
        serves = SERVING.search(block.script) is not None
        attempt = self.serve(block.script) if serves else self.attempts(block)
        pattern = pattern_of(block.shown or (SERVING_OUTPUT if serves else "..."))
        due = time.monotonic() + (TIMEOUT_SECONDS if block.shown or serves else 0)
        while True:
            succeeded, output = attempt()
            if succeeded and pattern.fullmatch(output):
                return
            wanted = f"and shows not\n{block.shown}" if succeeded else "and fails"
            assert time.monotonic() < due, f"line {block.line} says\n{output}\n{wanted}"
            threading.Event().wait(PAUSE)

    def attempts(self, block: CommandBlock) -> Callable[[], tuple[bool, str]]:
        """Type what a block does, once; a look at what its last command then says, after what all others said."""
        if not block.shown:
            return lambda: self.type(block.script)
        before, _, last = block.script.rstrip("\n").rpartition("\n")
        succeeded, setup_output = self.type(before)
        assert succeeded, f"line {block.line} says\n{setup_output}\nand fails"

        def attempt() -> tuple[bool, str]:
            succeeded, output = self.type(last)
            return succeeded, setup_output + output

        return attempt

    def type(self, script: str) -> tuple[bool, str]:
        """Whether commands all end well, and what they say."""
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
        """Have commands serve in a terminal of their own; a look at what they have said so far.

        A world is told to a file: on a terminal it is a screen that is drawn again and again.
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
        """Close the shell with what runs behind it, and press Ctrl-C in the other terminals."""
        self.shell.communicate(
            "kill $(jobs -p) 2> /dev/null; wait\n" if self.shell.poll() is None else None, timeout=TIMEOUT_SECONDS
        )
        for process in reversed(self.serving):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
            process.wait(TIMEOUT_SECONDS)


@contextmanager
def terminal(screen: IO[bytes]) -> Iterator[int]:
    """The descriptor of a terminal whose output goes into `screen` until everyone who writes there has ended."""
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
    """A reader who has cloned the repository into `folder`."""
    clone(folder)
    bin_folder = str(Path(sys.executable).parent)
    environment = {
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "PATH": os.pathsep.join(each for each in os.get_exec_path() if each != bin_folder),
        **{f"TAPESTRY_{name}_ADDRESS": "127.0.0.1:0" for name in ("LOCAL", "SECURE")},  # the usual ones may be taken
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
