"""Clients in processes of their own, which execute commands: one JSON object in a line each, and one for its answer."""

import asyncio
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

ANSWER_BYTES = 64 << 20
"""Maximum size of the answer of a client."""


@asynccontextmanager
async def client_process(module: str, *arguments: str) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """Start a client in a process of its own, and return a function that sends it commands."""
    command = [sys.executable, "-m", module, *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=ANSWER_BYTES)
    assert process.stdin is not None
    assert process.stdout is not None
    requests, answers = process.stdin, process.stdout

    async def ask(what: str, **arguments: Any) -> Any:
        requests.write(msgspec.json.encode({"do": what, **arguments}) + b"\n")
        answer = await answers.readline()
        assert answer, f"{what} failed"
        return msgspec.json.decode(answer)

    try:
        yield ask
    finally:
        requests.close()
        await process.wait()


async def execute_commands(client: object) -> None:
    """Execute the commands of the standard input with the methods of `client`, until the input ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        command = msgspec.json.decode(line)
        run: Callable[..., Awaitable[Any]] = getattr(client, command.pop("do"))
        started = time.monotonic()
        result = await run(**command)
        print(msgspec.json.encode({"result": result, "seconds": time.monotonic() - started}).decode(), flush=True)
