"""The live view of `tapestry up`: a screen of its own while the world is at work, on a terminal that can have one."""

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
from tapestry.inspect.world_state import WorldState
from tapestry.inspect.world_watcher import WorldWatcher

TERMINAL_POLL_INTERVAL = 1.0
"""Seconds between looks at who has the terminal."""
TERMINAL_GUARD = ("sh", "-c", r"read -r _ || printf '\033[?1049l\033[?25h'")
"""A shell that gives the terminal back where nobody says that this is done: then we are gone."""


@dataclass
class LiveView:
    console: Console
    notes: list[str] = field(default_factory=list)
    refresh: asyncio.Event = field(default_factory=asyncio.Event)
    guard: subprocess.Popen[bytes] | None = None

    # -- before there is anything to see

    def show_step(self, what: str) -> None:
        """Tell what is about to be done; what is said next takes its line."""
        self.console.print(f"    ...    {what}", end="\r", markup=False, highlight=False)

    def print_line(self, text: str) -> None:
        self.console.print(text.ljust(self.console.width - 1), markup=False, highlight=False)

    def add_note(self, text: str) -> None:
        """Tell what nobody asked for; on the screen, once there is one."""
        self.notes.append(f"{local_now():%H:%M:%S} {text}")
        self.refresh.set()

    # -- then

    async def run(self, virtual: Client, lines: Sequence[str]) -> None:
        """Show the world until cancelled; then the terminal is as it was.

        It is so, too, while a shell has it: after Ctrl-Z, and after `bg`.
        """
        loop = asyncio.get_running_loop()

        def show(scene: WorldState) -> None:
            self.set_alternate_screen(is_foreground(self.console))
            if not self.console.is_alt_screen:
                loop.call_later(TERMINAL_POLL_INTERVAL, self.refresh.set)  # nobody tells us when a shell gives it back
                return
            # As it is now: rich would rather believe COLUMNS and LINES, which do not change.
            self.console.size = size = ConsoleDimensions(*os.get_terminal_size(self.console.file.fileno()))
            self.console.update_screen(screen(scene, Footer(lines, self.notes), size.width, size.height))

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
        """Take the terminal for a screen of our own, or give it back; it is given back, too, if we are killed."""
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
    """Whether the terminal is ours to write on: a shell gives it to one job at a time."""
    try:
        return os.tcgetpgrp(console.file.fileno()) == os.getpgrp()
    except OSError:  # it is not the one that a shell started us on, and nobody else's either
        return True


def local_now() -> datetime:
    return datetime.now().astimezone()


def terminal_view() -> LiveView | None:
    """A view, where there is a terminal to have it on."""
    console = Console()
    able = console.is_terminal and not console.is_dumb_terminal
    return LiveView(console) if able and is_foreground(console) else None
