"""Processes of containers: their own, whose output several clients can follow, and those of `exec`.

The program `container_init` runs them in the namespaces of the pod, or without namespaces.
"""

import asyncio
import fcntl
import json
import os
import socket
import struct
import subprocess
import termios
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from tapestry.local.container_commands import Launch
from tapestry.local.container_init import TERMINAL_MESSAGE, Command
from tapestry.local.container_root import Mount, Root
from tapestry.local.descriptor_streams import DRAIN_SECONDS, read_output, receive_descriptors, write_input
from tapestry.local.pod_sandbox import INIT_PROGRAM, PodSandbox
from tapestry.process.child_processes import ChildProcess, Streams, child, guarded_process, pump_output

MAX_PENDING_OUTPUT = 4 << 20
"""Bytes that an attached client may be behind before it is detached."""
END_OF_TRANSMISSION = b"\x04"
"""Character that ends the input of a terminal."""
MAX_WINDOW = 0xFFFF
"""Maximum width and height of a terminal."""
START_TIMEOUT = 60.0
"""Seconds for a process to enter its namespaces and start."""
SHARED_NAMESPACES = 4
"""Number of namespaces that the containers of every pod share: user, network, IPC and UTS."""


class PodEnvironment(NamedTuple):
    """Namespaces and file system of the containers of one pod."""

    sandbox: PodSandbox
    root: Path
    """Empty folder where the root of a container is built."""
    hidden: Sequence[str]
    """Folders that are empty in containers."""


@dataclass
class ProcessStreams:
    """Our ends of the streams of a process; each is read or written by one task at a time."""

    output: FileIO
    errors: FileIO | None
    input: FileIO | None
    terminal: bool
    ended: asyncio.Future[None] = field(init=False)
    """Done when the process has ended."""
    _locks: tuple[asyncio.Lock, ...] = field(default_factory=lambda: tuple(asyncio.Lock() for _ in range(3)))
    _is_input_closed: bool = False

    async def read_output(self) -> bytes:
        return await self._read(self.output, self._locks[0])

    async def read_errors(self) -> bytes:
        return await self._read(self.errors, self._locks[1]) if self.errors is not None else b""

    async def _read(self, file: FileIO, lock: asyncio.Lock) -> bytes:
        async with lock:
            return b"" if file.closed else await read_output(file.fileno(), self.ended)

    async def write_input(self, data: bytes) -> None:
        async with self._locks[2]:
            if self.input is not None and not self.input.closed and not self._is_input_closed:
                await write_input(self.input.fileno(), data, self.ended)
        if self._is_input_closed:
            self.close_input()

    def close_input(self) -> None:
        """Close a pipe, or end the input of a terminal, which is also its output; after a write that waits."""
        self._is_input_closed = True
        if self.input is None or self.input.closed or self._locks[2].locked():
            return
        if self.terminal:
            with suppress(OSError):
                os.write(self.input.fileno(), END_OF_TRANSMISSION)
            self.input = None
        else:
            self.input.close()

    def resize(self, width: int, height: int) -> None:
        if self.terminal and not self.output.closed:
            size = struct.pack("HHHH", *(max(0, min(each, MAX_WINDOW)) for each in (height, width)), 0, 0)
            fcntl.ioctl(self.output.fileno(), termios.TIOCSWINSZ, size)

    async def close(self) -> None:
        """Wait for reads and writes, which end soon after the process, and close all streams."""
        for lock in self._locks:
            async with lock:
                pass
        for file in filter(None, (self.output, self.errors, self.input)):
            file.close()


@dataclass
class RunningContainer:
    """The process of a container, and the clients that follow its output."""

    process: ChildProcess
    launch: Launch
    streams: ProcessStreams | None = None
    """Streams of the process; None for our own program."""
    namespaces: Sequence[int] = ()
    """Descriptors of all namespaces of the container, that of processes last; empty if it has none."""
    clients: set["AttachedClient"] = field(default_factory=set)
    commands: set["ExecProcess"] = field(default_factory=set)

    @property
    def init_levels(self) -> int:
        """Number of generations of processes of `container_init` above the command."""
        if self.namespaces:
            return 2
        return int(self.launch.terminal and self.streams is not None)

    def publish(self, data: bytes) -> None:
        for each in list(self.clients):
            each.feed(data)

    def attach(self, *, stdin: bool) -> "AttachedClient":
        """Follow the output from now on."""
        client = AttachedClient(self, has_input=stdin)
        self.clients.add(client)
        return client

    async def close(self) -> None:
        """End the clients and commands of a container that has ended."""
        for client in list(self.clients):
            client.end()
        for command in list(self.commands):
            await command.close()


@dataclass(eq=False)
class AttachedClient:
    """Streams of a running container for one client."""

    container: RunningContainer
    has_input: bool
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    _pending: deque[bytes] = field(default_factory=deque)
    _pending_bytes: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def feed(self, data: bytes) -> None:
        """Queue output; end a client that is too far behind."""
        self._pending.append(data)
        self._pending_bytes += len(data)
        self._changed.set()
        if self._pending_bytes > MAX_PENDING_OUTPUT:
            self.end()

    def end(self) -> None:
        self.container.clients.discard(self)
        self.ended.set()
        self._changed.set()

    async def read_stdout(self) -> bytes:
        while not self._pending and not self.ended.is_set():
            self._changed.clear()
            await self._changed.wait()
        data = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        return data

    async def read_stderr(self) -> bytes:
        return b""  # both outputs of a container are one stream, in the order in which they were written

    async def write_stdin(self, data: bytes) -> None:
        if self.has_input and self.container.streams is not None:
            await self.container.streams.write_input(data)

    def close_stdin(self) -> None:
        """Close the input of the container if it is for one client only."""
        if self.has_input and self.container.launch.stdin_once and self.container.streams is not None:
            self.container.streams.close_input()
        self.has_input = False

    def resize(self, width: int, height: int) -> None:
        if self.container.streams is not None:
            self.container.streams.resize(width, height)

    async def wait(self) -> int:
        """Return 0 at the end: clients read the exit code of the container from the status of the pod."""
        await self.ended.wait()
        return 0

    async def close(self) -> None:
        self.close_stdin()
        self.end()


@dataclass(eq=False)
class ExecProcess:
    """A command in a running container, with its streams."""

    container: RunningContainer
    process: ChildProcess
    streams: ProcessStreams
    _stack: AsyncExitStack

    async def read_stdout(self) -> bytes:
        return await self.streams.read_output()

    async def read_stderr(self) -> bytes:
        return await self.streams.read_errors()

    async def write_stdin(self, data: bytes) -> None:
        await self.streams.write_input(data)

    def close_stdin(self) -> None:
        self.streams.close_input()

    def resize(self, width: int, height: int) -> None:
        self.streams.resize(width, height)

    async def wait(self) -> int:
        return await self.process.wait()

    async def close(self) -> None:
        """Kill what still runs; a second call does nothing."""
        self.container.commands.discard(self)
        await self._stack.aclose()


# -- starting


@asynccontextmanager
async def container_process(
    launch: Launch, environment: PodEnvironment | None, write: Callable[[bytes], None], target: int | None = None
) -> AsyncIterator[RunningContainer]:
    """Run a container while the context is open and pass its output to `write`; then kill it.  Raise OSError.

    `target` is the descriptor of a PID namespace to join.
    """
    if launch.limits is None:
        async with own_program(launch, write) as running:
            yield running
        return
    async with AsyncExitStack() as stack:
        command = init_command(launch)
        if environment is not None:
            joined = [target] if target is not None else []
            command["namespaces"] = [*environment.sandbox.namespaces, *joined]
            command["root"] = container_root(launch, environment)
            command["new_pids"] = not joined and not environment.sandbox.shares_pids
        mode = "plain" if environment is None else "container"
        process, streams, own = await start_init(stack, mode, command, stdin=launch.stdin, errors=False)
        shared = environment.sandbox.namespaces[:SHARED_NAMESPACES] if environment is not None else []
        running = RunningContainer(process, launch, streams, [*shared, *own])

        def publish(data: bytes) -> None:
            write(data)
            running.publish(data)

        with pump_output(streams.output.fileno(), publish) as emptied:
            try:
                yield running
            finally:
                process.kill()
                try:
                    await asyncio.wait([emptied], timeout=DRAIN_SECONDS)
                finally:
                    await running.close()


@asynccontextmanager
async def own_program(launch: Launch, write: Callable[[bytes], None]) -> AsyncIterator[RunningContainer]:
    """Run our own program: it needs neither limits nor namespaces, and has no input."""

    def publish(data: bytes) -> None:
        write(data)
        running.publish(data)

    async with child(launch.command, launch.environment, launch.folder, publish) as process:
        running = RunningContainer(process, launch)
        try:
            yield running
        finally:
            await running.close()


async def start_command(
    container: RunningContainer, launch: Launch, *, stdin: bool, terminal: bool, errors: bool = True
) -> ExecProcess:
    """Run a command in a running container; without `errors` it has one output.  Raise OSError."""
    command = init_command(launch._replace(terminal=terminal))
    if terminal:
        command["environment"].setdefault("TERM", "xterm")
    command["namespaces"] = list(container.namespaces)
    mode = "exec" if container.namespaces else "plain"
    async with AsyncExitStack() as stack:
        process, streams, _ = await start_init(stack, mode, command, stdin=stdin, errors=errors and not terminal)
        if container.process.ended.done():
            raise OSError("the container has ended")
        running = ExecProcess(container, process, streams, stack.pop_all())
        container.commands.add(running)
        return running


def init_command(launch: Launch) -> Command:
    return {
        "command": list(launch.command),
        "environment": dict(launch.environment),
        "folder": str(launch.folder),
        "terminal": launch.terminal,
        "limits": dict(launch.limits or {}),
        "namespaces": [],
        "root": None,
        "new_pids": False,
    }


def container_root(launch: Launch, environment: PodEnvironment) -> Root:
    mounts: list[Mount] = [
        {"path": each.path, "source": str(each.source), "sub_path": each.sub_path, "read_only": each.read_only}
        for each in launch.mounts
    ]
    return {"folder": str(environment.root), "hidden": list(environment.hidden), "mounts": mounts}


async def start_init(
    stack: AsyncExitStack, mode: str, command: Command, *, stdin: bool, errors: bool
) -> tuple[ChildProcess, ProcessStreams, list[int]]:
    """Start a command with `container_init`, until the stack is closed.

    Return its process, our ends of its streams and its own namespaces.  Raise OSError if it cannot be started.
    """
    opened: list[ProcessStreams] = []
    stack.push_async_callback(close_streams, opened)
    with ExitStack() as theirs:  # what only the process needs
        child_streams = Streams(subprocess.DEVNULL)
        if not command["terminal"]:
            pipes, child_streams = open_pipes(theirs, stdin=stdin, errors=errors)
            opened.append(pipes)
        status, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.enter_context(other_end)
        request = theirs.enter_context(FileIO(os.memfd_create("command"), "r+"))
        write_all(request, json.dumps(command).encode())
        inherited = [other_end.fileno(), request.fileno(), *command["namespaces"]]
        arguments = [*INIT_PROGRAM, mode, str(other_end.fileno()), str(request.fileno())]
        with status:
            process = await stack.enter_async_context(
                guarded_process(arguments, {}, Path("/"), child_streams._replace(inherited=inherited))
            )
            theirs.close()
            status.setblocking(False)
            namespaces: list[int] = []
            stack.callback(close_all, namespaces)
            async with asyncio.timeout(START_TIMEOUT):
                while (received := await receive_descriptors(status))[0]:
                    message, descriptors = received
                    if not descriptors:
                        raise OSError(message.decode(errors="replace"))
                    if message == TERMINAL_MESSAGE:
                        opened.append(terminal_streams(descriptors[0], stdin=stdin))
                    else:
                        namespaces += descriptors
    if not opened:
        raise OSError("the terminal could not be opened")
    opened[0].ended = process.ended
    return process, opened[0], namespaces


async def close_streams(opened: Sequence[ProcessStreams]) -> None:
    for each in opened:
        await each.close()


def terminal_streams(descriptor: int, *, stdin: bool) -> ProcessStreams:
    os.set_blocking(descriptor, False)
    terminal = FileIO(descriptor, "rb+")
    return ProcessStreams(terminal, None, terminal if stdin else None, terminal=True)


def open_pipes(theirs: ExitStack, *, stdin: bool, errors: bool) -> tuple[ProcessStreams, Streams]:
    """Open the streams of a process: our ends are non-blocking, and without `errors` it has one output."""

    def stream(read_end: int, write_end: int, *, is_input: bool = False) -> tuple[FileIO, int]:
        own, other = (write_end, read_end) if is_input else (read_end, write_end)
        theirs.callback(os.close, other)
        os.set_blocking(own, False)
        return FileIO(own, "wb" if is_input else "rb"), other

    output, their_output = stream(*os.pipe())
    error_output, their_errors = stream(*os.pipe()) if errors else (None, subprocess.STDOUT)
    source, their_input = stream(*os.pipe(), is_input=True) if stdin else (None, subprocess.DEVNULL)
    ours = ProcessStreams(output, error_output, source, terminal=False)
    return ours, Streams(their_output, their_errors, their_input)


def write_all(file: FileIO, data: bytes) -> None:
    """Write everything and go back to the start."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
    file.seek(0)


def close_all(descriptors: Sequence[int]) -> None:
    for each in descriptors:
        os.close(each)
