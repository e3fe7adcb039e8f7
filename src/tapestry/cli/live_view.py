"""Full-screen live view of `tapestry up` on a terminal."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from rich.console import Console, ConsoleDimensions

from tapestry.client.client import Client
from tapestry.inspect.screen import Footer, screen
from tapestry.inspect.world_state import WorldState, WorldWatcher
from tapestry.process.child_processes import input_guard

TERMINAL_POLL_INTERVAL = 1.0
"""Seconds between checks whether this process is in the foreground of the terminal."""
TERMINAL_GUARD = input_guard(
    r"read -r _ || printf '\033[?1049l\033[?25h'",
    r"import os; os.read(0, 1) or os.write(1, b'\033[?1049l\033[?25h')",
)
"""Process that restores the terminal when this process dies without doing so."""


@dataclass
class LiveView:
    console: Console
    notes: list[str] = field(default_factory=list)
    refresh: asyncio.Event = field(default_factory=asyncio.Event)
    guard: subprocess.Popen[bytes] | None = None

    # -- before the screen is shown

    def show_step(self, what: str) -> None:
        """Print the step that starts now; the next printed line overwrites it."""
        self.console.print(f"    ...    {what}", end="\r", markup=False, highlight=False)

    def print_line(self, text: str) -> None:
        self.console.print(text.ljust(self.console.width - 1), markup=False, highlight=False)

    def add_note(self, text: str) -> None:
        """Record an event; the screen shows it."""
        self.notes.append(f"{local_now():%H:%M:%S} {text}")
        self.refresh.set()

    # -- the screen

    async def run(self, virtual: Client, lines: Sequence[str]) -> None:
        """Show the world until cancelled, then restore the terminal.

        The terminal is also restored while the process is stopped (Ctrl-Z) or in the background (`bg`).
        """
        loop = asyncio.get_running_loop()

        def show(state: WorldState) -> None:
            self.set_alternate_screen(is_foreground(self.console))
            if not self.console.is_alt_screen:
                loop.call_later(TERMINAL_POLL_INTERVAL, self.refresh.set)  # no signal announces the foreground
                return
            # Use the current size: rich prefers COLUMNS and LINES, which do not change.
            self.console.size = size = ConsoleDimensions(*os.get_terminal_size(self.console.file.fileno()))
            self.console.update_screen(screen(state, Footer(lines, self.notes), size.width, size.height))

        def pause() -> None:
            self.set_alternate_screen(False)
            os.kill(os.getpid(), signal.SIGSTOP)

        loop.add_signal_handler(signal.SIGTSTP, pause)
        for number in (signal.SIGWINCH, signal.SIGCONT):
            loop.add_signal_handler(number, self.refresh.set)
        try:
            await WorldWatcher(virtual, show, local_now, self.refresh).run()
        finally:
            self.set_alternate_screen(False)

    def set_alternate_screen(self, enabled: bool) -> None:
        """Switch to the alternate screen or back; a guard process switches back if we are killed."""
        if self.console.is_alt_screen == enabled:
            return
        if enabled:
            self.guard = subprocess.Popen(
                TERMINAL_GUARD,
                stdin=subprocess.PIPE,
                stdout=self.console.file,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            self.console.set_alt_screen(enabled)
            self.console.show_cursor(not enabled)
        finally:
            if not enabled and self.guard is not None:
                self.guard.communicate(b"\n")


def is_foreground(console: Console) -> bool:
    try:
        return os.tcgetpgrp(console.file.fileno()) == os.getpgrp()
    except OSError:  # not our controlling terminal, so no shell manages it
        return True


def local_now() -> datetime:
    return datetime.now().astimezone()


def terminal_view() -> LiveView | None:
    """Return a view, or None if the terminal cannot show one."""
    console = Console()
    able = console.is_terminal and not console.is_dumb_terminal
    return LiveView(console) if able and is_foreground(console) else None
