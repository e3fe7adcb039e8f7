"""Interface between the kubelet API and a container runtime: logs, usage and streams of containers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from tapestry.kube.objects import Object
from tapestry.kube.usage import PodUsage


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Requested part of a log."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail: int | None = None
    limit: int | None = None
    """Limit in bytes."""
    since: datetime | None = None


class LogNotFound(Exception):
    """There is no such log; the message says why."""


class StreamRejected(Exception):
    """A container cannot serve a stream; the message says why."""


class ContainerProcess(Protocol):
    """A process in a container, with its streams."""

    async def read_stdout(self) -> bytes:
        """Return the next output; empty at its end."""
        ...

    async def read_stderr(self) -> bytes:
        """Return the next error output; empty at its end, and at once with a terminal."""
        ...

    async def write_stdin(self, data: bytes) -> None:
        """Wait while the process does not read; ignore a process that closed its input."""
        ...

    def close_stdin(self) -> None: ...

    def resize(self, width: int, height: int) -> None: ...

    async def wait(self) -> int:
        """Return the exit code to report to the client: 128 plus the signal number after a signal."""
        ...

    async def close(self) -> None:
        """Kill what still runs of an exec; detach from an attached container."""
        ...


class Runtime(Protocol):
    """Container runtime of some nodes."""

    def log(self, pod: Object, container: str, query: LogQuery, /) -> AsyncIterator[bytes]:
        """Yield the log of a container as it is written; raise LogNotFound."""
        ...

    def usage(self, node: Object) -> Sequence[PodUsage]: ...

    async def exec(
        self, pod: Object, container: str, command: Sequence[str], *, stdin: bool, terminal: bool
    ) -> ContainerProcess:
        """Run a command in a running container; raise StreamRejected."""
        ...

    async def attach(self, pod: Object, container: str, *, stdin: bool, terminal: bool) -> ContainerProcess:
        """Return the streams of a running container, from now on; raise StreamRejected."""
        ...

    async def dial(self, pod: Object, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a port of 127.0.0.1 in the pod; raise StreamRejected."""
        ...
