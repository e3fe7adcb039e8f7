"""A client that asks for little, again and again, until its standard input ends; then prints how long each answer took.

It is a process of its own, so that what other clients do costs it nothing.  A sample is when it began, by the monotonic
clock that processes of a machine share, what was asked for, and the seconds that the answer took, or null for none.
"""

import asyncio
import ssl
import sys
import time
from contextlib import suppress

import aiohttp
import msgspec
import uvloop

PAUSE = 0.005
"""Seconds between an answer and the next request."""
PATIENCE = 60.0
Sample = tuple[float, str, float | None]


async def poll(session: aiohttp.ClientSession, url: str, what: str, samples: list[Sample]) -> None:
    while True:
        begun, seconds = time.monotonic(), None
        with suppress(aiohttp.ClientError, TimeoutError):
            async with session.get(url) as response:
                await response.read()
                if response.status == 200:
                    seconds = time.monotonic() - begun
        samples.append((begun, what, seconds))
        await asyncio.sleep(PAUSE)


async def until_end_of_input() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


async def main(url: str, ca: str, token: str, path: str) -> list[Sample]:
    samples: list[Sample] = []
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=ca))
    timeout, headers = aiohttp.ClientTimeout(total=PATIENCE), {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        asked = {"livez": f"{url}/livez", "get": f"{url}{path}"}
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(poll(session, at, what, samples)) for what, at in asked.items()]
            await until_end_of_input()
            for task in tasks:
                task.cancel()
    return samples


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(main(*sys.argv[1:]))))
