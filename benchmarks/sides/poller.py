"""A client that repeats small requests until its input ends, and prints all response times.

It runs in its own process, so that other clients do not affect it. A sample is the start time on the monotonic clock
that all processes share, the kind of request, and the seconds until the response, or null without one.
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
"""Seconds between a response and the next request."""
TIMEOUT = 60.0
Sample = tuple[float, str, float | None]


async def poll(session: aiohttp.ClientSession, url: str, what: str, samples: list[Sample]) -> None:
    while True:
        started, seconds = time.monotonic(), None
        with suppress(aiohttp.ClientError, TimeoutError):
            async with session.get(url) as response:
                await response.read()
                if response.status == 200:
                    seconds = time.monotonic() - started
        samples.append((started, what, seconds))
        await asyncio.sleep(PAUSE)


async def until_end_of_input() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


async def main(url: str, ca: str, token: str, path: str) -> list[Sample]:
    samples: list[Sample] = []
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=ca))
    timeout, headers = aiohttp.ClientTimeout(total=TIMEOUT), {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        urls = {"livez": f"{url}/livez", "get": f"{url}{path}"}
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(poll(session, target, what, samples)) for what, target in urls.items()]
            await until_end_of_input()
            for task in tasks:
                task.cancel()
    return samples


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(main(*sys.argv[1:]))))
