"""The live view of `tapestry up`: a screen of its own while the world is at work, on a terminal that can have one."""

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from rich.console import Console, ConsoleDimensions

from tapestry.client.client import Client
from tapestry.inspect.live import Live
from tapestry.inspect.scene import Scene
from tapestry.inspect.screen import Prompt, screen


@dataclass
class View:
    console: Console
    notes: list[str] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

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
        """Show the world until cancelled; then the terminal is as it was."""

        def show(scene: Scene) -> None:
            # As it is now: rich would rather believe COLUMNS and LINES, which do not change.
            self.console.size = size = ConsoleDimensions(*os.get_terminal_size(self.console.file.fileno()))
            self.console.update_screen(screen(scene, Prompt(lines, self.notes), size.width, size.height))

        asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, self.news.set)
        with self.console.screen():
            await Live(virtual, show, here, self.news).run()


def here() -> datetime:
    return datetime.now().astimezone()


def view_of_terminal() -> View | None:
    """A view, where there is a terminal to have it on."""
    console = Console()
    return View(console) if console.is_terminal and not console.is_dumb_terminal else None
