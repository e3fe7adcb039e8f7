"""CPU time of the smallest steps of the controller framework, in microseconds."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import aiohttp
import msgspec

from benchmarks import pods
from benchmarks.sides.api import SMALL, running
from benchmarks.sides.informer import INDEXERS, Prepared
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.responses import OBJECT_DECODER
from tapestry.client.watch import Synced, Watch
from tapestry.controller.app import configure_process, run_app
from tapestry.controller.config import ManagerConfig
from tapestry.controller.queue import Queue
from tapestry.controller.store import Store
from tapestry.kube.objects import key_of
from tapestry.kube.resources import CONFIGMAPS, PODS

REPEATS = 5
KEYS = 20_000
REQUESTS = 2_000
IN_FLIGHT = 16


def measured() -> dict[str, float]:
    """Return the best of several repeats of each step. The two HTTP clients take turns."""
    configure_process(ManagerConfig())
    best: dict[str, float] = {}

    async def run(url: str) -> None:
        client = Client(HttpTransport(Access(url)))
        steps: dict[str, Callable[[], Awaitable[float]]] = {
            "queue": queue_steps,
            "store put": store_puts,
            "store get": store_gets,
            "watch event": watch_events,
        }
        async with aiohttp.ClientSession(url) as session:
            steps["get, bare"] = lambda: requests(lambda: bare_get(session))
            steps["get"] = lambda: requests(lambda: client.get(CONFIGMAPS, "small", "default"))
            for _ in range(REPEATS):
                for name, step in steps.items():
                    best[name] = min(best.get(name, 1e9), await step() * 1e6)
        await client.close()

    with running(objects=0, rounds=0) as url:
        run_app(lambda: run(url))
    return best


async def queue_steps() -> float:
    """Return the seconds to add, take and finish a key."""
    queue, keys = Queue(), [f"team-{number % 40}/object-{number}" for number in range(KEYS)]
    started = time.process_time()
    for key in keys:
        queue.add(key)
    for _ in keys:
        queue.done(await queue.take())
    return (time.process_time() - started) / KEYS


POD = [msgspec.json.decode(msgspec.json.encode(pods.pod(number))) for number in range(2_000)]


async def store_puts() -> float:
    """Return the seconds to replace an object with two indexes."""
    store = Store(INDEXERS)
    for pod in POD:
        store.put(key_of(pod), pod)
    started = time.process_time()
    for pod in POD:
        store.put(key_of(pod), pod)
    return (time.process_time() - started) / len(POD)


async def store_gets() -> float:
    store, keys = Store(), [key_of(pod) for pod in POD]
    for pod in POD:
        store.put(key_of(pod), pod)
    started = time.process_time()
    for key in keys:
        store.get(key)
    return (time.process_time() - started) / len(keys)


EVENTS = b"".join(pods.events(2_000))


async def watch_events() -> float:
    """Return the seconds to decode an event of 5 kB."""
    started = time.process_time()
    async with aclosing(Watch(Client(Prepared(EVENTS, [])), PODS).events()) as events:
        async for event in events:
            if isinstance(event, Synced):
                break
    return (time.process_time() - started) / 2_000


async def requests(send: Callable[[], Awaitable[Any]]) -> float:
    """Return the seconds per request, with several requests in flight."""

    async def send_part() -> None:
        for _ in range(REQUESTS // IN_FLIGHT):
            await send()

    started = time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(send_part())
    return (time.process_time() - started) / REQUESTS


async def bare_get(session: aiohttp.ClientSession) -> Any:
    async with session.get(SMALL) as response:
        return OBJECT_DECODER.decode(await response.read())
