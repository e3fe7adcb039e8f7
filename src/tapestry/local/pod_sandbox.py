"""Namespaces that the containers of a pod share, and connections into its network.

The network of a pod has only a loopback device.  `PodNetwork` relays the pod's declared ports from its address on this
machine, and connections of the pod to API servers.
"""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import tapestry
from tapestry.local import container_init
from tapestry.local.descriptor_streams import CHUNK, receive_descriptors
from tapestry.process.child_processes import Streams, guarded_process

INIT_SCRIPT = f"import sys; sys.path.append(sys.argv.pop(1)); from {container_init.__name__} import main; main()"
INIT_PROGRAM = (sys.executable, "-I", "-S", "-c", INIT_SCRIPT, str(Path(tapestry.__file__).parents[1]))
"""Program that starts containers."""
LOOPBACK = "127.0.0.1"
CONNECT_TIMEOUT = 10.0
"""Seconds to connect to a port of a pod."""
MAX_CONNECTIONS = 64
"""Limit of relayed connections of one pod at a time."""

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Acceptor = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]


class Endpoint(NamedTuple):
    host: str
    port: int


@dataclass
class PodSandbox:
    namespaces: list[int]
    """Descriptors of the user, network, IPC and UTS namespaces, and of the PID namespace if containers share it."""
    shares_pids: bool
    _control: socket.socket
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def new_socket(self) -> socket.socket:
        """Return a non-blocking TCP socket in the pod's network.  Raise OSError."""
        async with self._lock:
            self._control.send(b"s")
            _, descriptors = await receive_descriptors(self._control)
        if not descriptors:
            raise OSError("the sandbox of the pod has ended")
        made = socket.socket(fileno=descriptors[0])
        made.setblocking(False)
        return made

    async def connect(self, host: str, port: int) -> Connection:
        """Connect to an address in the pod's network.  Raise OSError."""
        made = await self.new_socket()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await asyncio.get_running_loop().sock_connect(made, (host, port))
            return await asyncio.open_connection(sock=made)
        except BaseException:
            made.close()
            raise


@asynccontextmanager
async def pod_sandbox(
    hostname: str, *, user: int | None = None, shares_pids: bool = False
) -> AsyncIterator[PodSandbox]:
    """Hold the namespaces of a pod while the context is open.  Raise OSError.

    `user` is the ID that the user of this process has in the pod; None is the same as outside.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        arguments = (
            "sandbox",
            str(theirs.fileno()),
            hostname,
            str(os.geteuid() if user is None else user),
            str(shares_pids).lower(),
        )
        streams = Streams(subprocess.DEVNULL, stderr=None, inherited=[theirs.fileno()])
        async with guarded_process([*INIT_PROGRAM, *arguments], {}, Path("/"), streams):
            theirs.close()
            message, namespaces = await receive_descriptors(ours)
            with closed_descriptors(namespaces):
                if not namespaces:
                    raise OSError(message.decode(errors="replace") or "the sandbox of the pod has ended")
                yield PodSandbox(namespaces, shares_pids, ours)


@contextmanager
def closed_descriptors(descriptors: Sequence[int]) -> Iterator[None]:
    """Close the descriptors at the end."""
    try:
        yield
    finally:
        for each in descriptors:
            os.close(each)


@dataclass
class PodNetwork:
    """Relayed connections of one pod."""

    sandbox: PodSandbox
    address: str
    """Address of the pod, on this machine and in its own network."""
    group: asyncio.TaskGroup
    connections: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def close(self) -> None:
        """End all connections and listeners."""
        for each in list(self._tasks):
            each.cancel()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def serve_ports(self, ports: Collection[int]) -> list[str]:
        """Listen on the pod's address and relay to the pod until the group ends; return what failed."""
        failures = []
        for port in ports:
            try:
                server = await asyncio.start_server(
                    self.acceptor(Endpoint(self.address, port), True), self.address, port
                )
            except OSError as error:
                failures.append(f"{self.address}:{port}: {error}")
            else:
                self.start(serve(server))
        return failures

    async def allow_servers(self, servers: Collection[Endpoint]) -> list[str]:
        """Let the pod connect to these loopback addresses of this machine; return what failed."""
        failures = []
        for server in servers:
            try:
                listener = await self.sandbox.new_socket()
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(server)
                self.start(serve(await asyncio.start_server(self.acceptor(server, False), sock=listener)))
            except OSError as error:
                failures.append(f"{server.host}:{server.port}: {error}")
        return failures

    def acceptor(self, target: Endpoint, is_inbound: bool) -> Acceptor:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self.connections >= MAX_CONNECTIONS:
                writer.close()
                return
            self.connections += 1
            self.start(self.relay((reader, writer), target, is_inbound))

        return accept

    async def relay(self, client: Connection, target: Endpoint, is_inbound: bool) -> None:
        try:
            with suppress(OSError):
                connect = self.sandbox.connect if is_inbound else asyncio.open_connection
                await relay_streams(client, await connect(target.host, target.port))
        finally:
            self.connections -= 1
            client[1].close()


async def serve(server: asyncio.Server) -> None:
    async with server:
        await server.serve_forever()


async def relay_streams(left: Connection, right: Connection) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(copy_stream(left[0], right[1]))
            group.create_task(copy_stream(right[0], left[1]))
    finally:
        left[1].close()
        right[1].close()


async def copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end of input, then close that direction; a broken connection ends both."""
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except (OSError, RuntimeError):  # uvloop raises RuntimeError if the connection is closed
        writer.transport.abort()
