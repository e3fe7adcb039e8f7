"""The live view of `tapestry up`: it shows changes and restores the terminal."""

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tapestry.kube.objects import Object, object_named
from tapestry.kube.resources import DEPLOYMENTS
from tapestry.local.cluster_processes import open_client
from tapestry.local.world import World

from .worlds import TAPESTRY, TIMEOUT_SECONDS, command_of, parent_pids

CONTROL = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")
TO_SCREEN, FROM_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"
HIDE_CURSOR, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"


@dataclass
class Terminal:
    """A terminal and the process that it controls."""

    master: int
    process: subprocess.Popen[bytes]
    written: bytes = b""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def read(self) -> None:
        try:
            self.written += os.read(self.master, 1 << 16)
        except OSError:  # the process has closed it
            asyncio.get_running_loop().remove_reader(self.master)
            self.closed.set()
        self.changed.set()

    async def wait_for_text(self, text: str) -> None:
        """Wait until the text is written after this call."""
        begin = len(self.written)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while text not in CONTROL.sub(b"", self.written[begin:]).decode(errors="replace"):
                self.changed.clear()
                await self.changed.wait()

    async def wait_until_restored(self) -> None:
        """Wait until the process has left the alternate screen and shown the cursor."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while self.written.rfind(SHOW_CURSOR) < self.written.rfind(FROM_SCREEN) or FROM_SCREEN not in self.written:
                self.changed.clear()
                await self.changed.wait()

    async def wait(self) -> int:
        """Read all output and return the exit code."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self.closed.wait()
        return await asyncio.to_thread(self.process.wait, TIMEOUT_SECONDS)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)


def open_terminal(command: Sequence[object]) -> Terminal:
    master, slave = pty.openpty()
    # setsid makes it the controlling terminal, so that Ctrl-C and size changes become signals.
    process = subprocess.Popen(
        ["setsid", "--ctty", *map(str, command)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(slave)
    return Terminal(master, process)


@asynccontextmanager
async def terminal(*command: object) -> AsyncIterator[Terminal]:
    found = open_terminal(command)
    found.resize(130, 40)
    asyncio.get_running_loop().add_reader(found.master, found.read)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait()
        asyncio.get_running_loop().remove_reader(found.master)
        os.close(found.master)


def new_deployment(replicas: int) -> Object:
    container = {"name": "c", "image": "nginx", "resources": {"requests": {"cpu": "3"}}}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    return {"metadata": {"name": "web", "namespace": "default"}, "spec": spec}


def process_of(cluster: Path) -> int:
    (found,) = [pid for pid in parent_pids() if f"cluster --data {cluster} " in command_of(pid)]
    return found


@pytest.mark.timeout(300)
async def test_view_updates_and_restores_terminal_on_exit(tmp_path: Path) -> None:
    folder = tmp_path / "world"
    async with terminal(TAPESTRY, "up", "--data", folder, "--clusters", "1", "--nodes", "2") as screen:
        before = termios.tcgetattr(screen.master)
        await screen.wait_for_text("in another terminal")
        assert re.search(rb"\d s  virtual nodes", screen.written)
        async with open_client(folder / "virtual" / "kubeconfig") as virtual:
            await virtual.create(DEPLOYMENTS, new_deployment(3))
        await screen.wait_for_text("1 Pending, 2 Running")
        await screen.wait_for_text("Unscheduled: 0/")
        os.kill(process_of(folder / "virtual"), signal.SIGKILL)
        await screen.wait_for_text("virtual was killed by SIGKILL; restarting")
        await World(folder).wait_for_cluster("virtual")
        async with open_client(folder / "virtual" / "kubeconfig") as virtual:
            await virtual.delete(DEPLOYMENTS, object_named("web", "default"))
        await screen.wait_for_text("PODS  none yet")
        screen.resize(40, 40)
        await screen.wait_for_text("export KUBECONFIG=" + str(folder)[:21] + "\\")
        assert screen.written.count(FROM_SCREEN) == 0
        screen.type(b"\x1a")
        await asyncio.to_thread(os.waitid, os.P_PID, screen.process.pid, os.WSTOPPED | os.WNOWAIT)
        await screen.wait_until_restored()
        screen.process.send_signal(signal.SIGCONT)
        await screen.wait_for_text("in another terminal")
        screen.type(b"\x03")
        await screen.wait_for_text("s  stopping")
        assert await screen.wait() == 0
        assert screen.written.count(TO_SCREEN) == screen.written.count(FROM_SCREEN) == 2
        assert screen.written.rfind(SHOW_CURSOR) > screen.written.rfind(HIDE_CURSOR) > 0
        assert termios.tcgetattr(screen.master) == before
