"""Processes that hold a single plane each, as children of this process.

Such a process is one of the group: it renews a Lease, holds only the plane whose record names it, and checks the epoch.
It serves the plane at the address of its parent, which passes it the sockets of new connections before it reads from
them. It ends with its parent.
"""

import asyncio
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec import structs

from tapestry.apis.planes import own_process_name
from tapestry.apiserver.access.certificates import write_private_file
from tapestry.apiserver.core.private_files import KEYS_FOLDER
from tapestry.planes.client_hello import peek_server_name
from tapestry.planes.config import PlanesConfig
from tapestry.planes.endpoints import server_names
from tapestry.planes.management import IDENTITY_FILE, process_identity
from tapestry.process.child_processes import Streams, guarded_process
from tapestry.process.config import Section
from tapestry.process.logs import logger
from tapestry.process.supervised_processes import exit_text

log = logger(__name__)

SETTINGS_FILE = "settings.json"
STOP_SECONDS = 30.0
"""Seconds after SIGTERM until a process is killed."""
SOON_SECONDS, MAX_BACKOFF = 10.0, 30.0
"""A process that ended this soon after its start is restarted with backoff."""


class OwnProcessSettings(Section, frozen=True):
    """Settings of a process that another one starts."""

    planes: PlanesConfig
    port: int
    """Port of the parent, at which the plane is reached."""
    pki: str
    """Folder with the CA of the parent."""


@dataclass(frozen=True)
class ParentListener:
    """The listener of the parent process, which serves the plane of this one, too."""

    port: int
    pki: Path
    connections: socket.socket
    """Socket from which accepted connections are received."""
    on_end: Callable[[], None]
    """Called when the parent has ended, so that this process ends, too."""


@dataclass(eq=False)
class OwnProcess:
    """A process that is restarted whenever it ends, until `stop`."""

    plane_id: str
    command: Sequence[str]
    _task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._sender, self._receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sender.setblocking(False)

    def start(self, group: asyncio.TaskGroup) -> None:
        self._task = group.create_task(self._supervise(), name=own_process_name(self.plane_id))

    async def stop(self) -> None:
        """Stop the process. It releases its plane before it ends."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._sender.close()
        self._receiver.close()

    def pass_connection(self, client: socket.socket) -> None:
        """Pass a connection to the process, or to the next one while it restarts. Raises OSError if too many wait."""
        socket.send_fds(self._sender, [b"c"], [client.fileno()])

    async def _supervise(self) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            message = await self._run_once()
            failures = failures + 1 if time.monotonic() - began < SOON_SECONDS else 0
            log.warning("process of a plane ended, restarting", plane=self.plane_id, reason=message)
            await asyncio.sleep(min(2.0**failures - 1, MAX_BACKOFF))

    async def _run_once(self) -> str:
        streams = Streams(subprocess.DEVNULL, None, self._receiver.fileno())
        try:
            async with guarded_process(self.command, os.environ, Path.cwd(), streams) as process:
                try:
                    code = await process.wait()
                except asyncio.CancelledError:
                    await process.stop(STOP_SECONDS)
                    raise
        except OSError as error:
            return str(error)
        return exit_text(code, "")


@dataclass(eq=False)
class OwnProcesses:
    """The processes of single planes that this process runs."""

    config: PlanesConfig
    command: Sequence[str]
    """Command that runs a process, without the file of its settings. Empty: this process starts none."""
    plane_of: Callable[[str], str]
    """Return the id of the plane with a server name; empty if there is none."""
    is_held_here: Callable[[str], bool]
    """Return whether this process itself holds a plane, by its id."""
    group: asyncio.TaskGroup
    port: int = 0
    """Port of the listener of this process."""
    _running: dict[str, OwnProcess] = field(default_factory=dict)

    def folder(self, plane_id: str) -> Path:
        return own_folder(self.config.folder) / plane_id

    def identity(self, plane_id: str) -> str:
        """Return the identity of the process of a plane, which it has in its Lease; empty if it never ran here."""
        config = self._config_of(plane_id)
        return process_identity(config) if (config.folder / IDENTITY_FILE).exists() else ""

    def is_running(self, plane_id: str) -> bool:
        return plane_id in self._running

    def start(self, plane_id: str) -> None:
        """Run the process of a plane, unless it runs."""
        if plane_id in self._running:
            return
        config = self._config_of(plane_id)
        process_identity(config)
        settings = msgspec.json.encode(
            OwnProcessSettings(config, self.port, str((self.config.folder / KEYS_FOLDER).absolute()))
        )
        write_private_file(config.folder / SETTINGS_FILE, settings)
        process = self._running[plane_id] = OwnProcess(plane_id, [*self.command, str(config.folder / SETTINGS_FILE)])
        process.start(self.group)

    async def stop(self, plane_id: str) -> None:
        """Stop the process of a plane, if it runs."""
        process = self._running.get(plane_id)
        if process is not None:
            await process.stop()
            self._running.pop(plane_id, None)

    async def remove(self, plane_id: str) -> None:
        """Stop the process of a plane that was deleted, and delete its folder."""
        await self.stop(plane_id)
        await asyncio.to_thread(shutil.rmtree, self.folder(plane_id), ignore_errors=True)

    async def stop_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            for each in list(self._running):
                group.create_task(self.stop(each))

    async def hand_over(self, client: socket.socket) -> bool:
        """Pass a new connection to the process of its plane. Return whether it has one. Raises OSError."""
        if not self._running:
            return False
        id = self.plane_of(await peek_server_name(client))
        process = self._running.get(id)
        if process is None or self.is_held_here(id):
            return False
        process.pass_connection(client)
        return True

    def _config_of(self, plane_id: str) -> PlanesConfig:
        return structs.replace(
            self.config,
            data=str(self.folder(plane_id)),
            name=own_process_name(plane_id),
            named_only=True,
            server_names=server_names(self.config),
            group_key=str(self.config.group_key_file),
        )


def own_folder(folder: Path) -> Path:
    """Return the folder of the processes in a data folder."""
    return folder / "own"


def remove_own_leftovers(folder: Path, known_ids: Collection[str]) -> None:
    """Remove the folders of processes whose planes have no record any more."""
    for each in own_folder(folder).glob("*"):
        if each.name not in known_ids:
            shutil.rmtree(each, ignore_errors=True)


def receive_connections(parent: ParentListener | None, adopt: Callable[[socket.socket], None]) -> None:
    """Call `adopt` with each connection from the parent, if there is one, as long as the event loop runs."""
    if parent is None:
        return
    loop, source = asyncio.get_running_loop(), parent.connections
    source.setblocking(False)

    def receive() -> None:
        with suppress(BlockingIOError):
            data, descriptors, *_ = socket.recv_fds(source, 1, 1)
            for each in descriptors:
                adopt(socket.socket(fileno=each))
            if not data:
                loop.remove_reader(source)
                parent.on_end()

    loop.add_reader(source, receive)
