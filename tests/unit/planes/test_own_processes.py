"""Child processes that hold single planes: connections are passed to them, and they are restarted."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from tapestry.planes.config import PlanesConfig
from tapestry.planes.own_processes import (
    OwnProcesses,
    OwnProcessSettings,
    ParentListener,
    receive_connections,
    remove_own_leftovers,
)

from .test_client_hello import hello

CHILD = """
import os, socket
source = socket.socket(fileno=0)
while True:
    data, descriptors, *_ = socket.recv_fds(source, 1, 1)
    with socket.socket(fileno=descriptors[0]) as client:
        client.sendall(f"{os.getpid()}".encode())
"""


@asynccontextmanager
async def own_processes(folder: Path, held: tuple[str, ...] = ()) -> AsyncIterator[OwnProcesses]:
    config = PlanesConfig(data=str(folder), name="a")
    async with asyncio.TaskGroup() as group:
        own = OwnProcesses(config, (sys.executable, "-c", CHILD), lambda name: name, lambda id: id in held, group)
        try:
            yield own
        finally:
            await own.stop_all()


async def answer(own: OwnProcesses, name: str) -> int | None:
    """Connect with a server name. Return the id of the process that answers; None if it is this one."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for each in (ours, theirs):
            each.setblocking(False)
        theirs.send(hello(name))
        if not await own.hand_over(ours):
            return None
        loop = asyncio.get_running_loop()
        return int(await loop.sock_recv(theirs, 100))


async def test_connections_go_to_the_process_of_their_plane(tmp_path: Path) -> None:
    async with asyncio.timeout(30), own_processes(tmp_path, held=("moving",)) as own:
        assert await answer(own, "blue") is None
        for each in ("blue", "green", "moving"):
            own.start(each)
        blue, green = await answer(own, "blue"), await answer(own, "green")
        assert len({blue, green, None}) == 3
        own.start("blue")
        assert await answer(own, "blue") == blue
        assert await answer(own, "moving") is None, "this process still holds the plane"
        assert await answer(own, "other") is None
        await own.stop("blue")
        assert await answer(own, "blue") is None


async def test_killed_process_is_restarted_and_gets_waiting_connections(tmp_path: Path) -> None:
    async with asyncio.timeout(30), own_processes(tmp_path) as own:
        own.start("blue")
        first = await answer(own, "blue")
        assert first is not None
        os.kill(first, signal.SIGKILL)
        second = await answer(own, "blue")
        assert second not in (None, first)


async def test_process_keeps_its_identity_until_its_plane_is_gone(tmp_path: Path) -> None:
    async with own_processes(tmp_path) as own:
        assert own.identity("blue") == ""
        own.start("blue")
        identity = own.identity("blue")
        assert identity.startswith("own-blue_")
        settings = msgspec.json.decode((own.folder("blue") / "settings.json").read_bytes(), type=OwnProcessSettings)
        assert (settings.planes.name, settings.planes.named_only) == ("own-blue", True)
        await own.stop("blue")
        assert own.identity("blue") == identity
        own.start("green")
        remove_own_leftovers(tmp_path, {"blue"})
        assert (own.identity("blue"), own.identity("green")) == (identity, "")
        await own.remove("blue")
        assert own.identity("blue") == ""


async def test_process_ends_with_its_parent() -> None:
    parent, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ended, adopted = asyncio.Event(), asyncio.Queue[socket.socket]()
    receive_connections(ParentListener(1, Path(), child, ended.set), adopted.put_nowait)
    passed, other = socket.socketpair()
    socket.send_fds(parent, [b"c"], [passed.fileno()])
    async with asyncio.timeout(5):
        with await adopted.get() as received:
            received.send(b"x")
            assert other.recv(1) == b"x"
        parent.close()
        await ended.wait()
    for each in (child, passed, other):
        each.close()
