"""Live view on a terminal: only a foreground job writes to it."""

import os
import pty
import subprocess
import sys
from contextlib import suppress

FOREGROUND_AND_BACKGROUND = """
import os, sys
from tapestry.cli.live_view import terminal_view
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
has_view = terminal_view() is not None
if child == 0:
    os._exit(has_view)
assert has_view, "foreground"
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
KILLED = """
import os, signal
from tapestry.cli.live_view import terminal_view
terminal_view().set_alternate_screen(True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def run_on_terminal(script: str) -> tuple[int, bytes]:
    """Run a script on its own terminal; return its exit status and output."""
    master, slave = pty.openpty()
    ran = subprocess.run(
        ["setsid", "--wait", "--ctty", sys.executable, "-c", script],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm-256color"},
        timeout=60,
        check=False,
    )
    os.close(slave)
    written = b""
    with open(master, "rb", buffering=0) as terminal, suppress(OSError):  # raised when the last process has closed it
        while more := terminal.read(1 << 16):
            written += more
    return ran.returncode, written


def test_only_foreground_job_has_view() -> None:
    assert run_on_terminal(FOREGROUND_AND_BACKGROUND) == (0, b"")


def test_guard_restores_terminal_after_kill() -> None:
    _, written = run_on_terminal(KILLED)
    assert written.startswith(b"\x1b[?1049h")
    assert written.endswith(b"\x1b[?1049l\x1b[?25h")
