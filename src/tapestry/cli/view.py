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
from tapestry.inspect.live import Live
from tapestry.inspect.scene import Scene
from tapestry.inspect.screen import Prompt, screen

GLANCE = 1.0
"""Seconds between looks at who has the terminal."""
GUARD = ("sh", "-c", r"read -r _ || printf '\033[?1049l\033[?25h'")
"""A shell that gives the terminal back where nobody says that this is done: then we are gone."""


@dataclass
class View:
    console: Console
    notes: list[str] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    guard: subprocess.Popen[bytes] | None = None

    # -- before there is anything to see

    def begin(self, what: str) -> None:
        """Tell what is about to be done; what is said next takes its line."""
        self.console.print(f"    ...    {what}", end="\r", markup=False, highlight=False)

    def say(self, text: str) -> None:
        self.console.print(text.ljust(self.console.width - 1), markup=False, highlight=False)

    def happened(self, text: str) -> None:
        """Tell what nobody asked for; on the screen, once there is one."""
        self.notes.append(f"{here():%H:%M:%S} {text}")
        self.news.set()

    # -- then

    async def run(self, virtual: Client, lines: Sequence[str]) -> None:
        """Show the world until cancelled; then the terminal is as it was.

        It is so, too, while a shell has it: after Ctrl-Z, and after `bg`.
        """
        loop = asyncio.get_running_loop()

        def show(scene: Scene) -> None:
            self.have_screen(is_in_front(self.console))
            if not self.console.is_alt_screen:
                loop.call_later(GLANCE, self.news.set)  # nobody tells us when a shell gives it back
                return
            # As it is now: rich would rather believe COLUMNS and LINES, which do not change.
            self.console.size = size = ConsoleDimensions(*os.get_terminal_size(self.console.file.fileno()))
            self.console.update_screen(screen(scene, Prompt(lines, self.notes), size.width, size.height))

        def pause() -> None:
            self.have_screen(False)
            os.kill(os.getpid(), signal.SIGSTOP)

        loop.add_signal_handler(signal.SIGTSTP, pause)
        for number in (signal.SIGWINCH, signal.SIGCONT):
            loop.add_signal_handler(number, self.news.set)
        try:
            await Live(virtual, show, here, self.news).run()
        finally:
            self.have_screen(False)

    def have_screen(self, wanted: bool) -> None:
        """Take the terminal for a screen of our own, or give it back; it is given back, too, if we are killed."""
        if self.console.is_alt_screen == wanted:
            return
        if wanted:
            self.guard = subprocess.Popen(
                GUARD,
                stdin=subprocess.PIPE,
                stdout=self.console.file,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            self.console.set_alt_screen(wanted)
            self.console.show_cursor(not wanted)
        finally:
            if not wanted and self.guard is not None:
                self.guard.communicate(b"\n")


def is_in_front(console: Console) -> bool:
    """Whether the terminal is ours to write on: a shell gives it to one job at a time."""
    try:
        return os.tcgetpgrp(console.file.fileno()) == os.getpgrp()
    except OSError:  # it is not the one that a shell started us on, and nobody else's either
        return True


def here() -> datetime:
    return datetime.now().astimezone()


def view_of_terminal() -> View | None:
    """A view, where there is a terminal to have it on."""
    console = Console()
    able = console.is_terminal and not console.is_dumb_terminal
    return View(console) if able and is_in_front(console) else None
