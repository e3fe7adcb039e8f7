"""Clients that write, read and watch while their API server is killed and restarted.

The answers that they received are compared with the stored objects.
"""

import asyncio
import random
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from .ledgers import Ledger, PromiseBroken, Watcher, check_same
from .servers import ServerProcess

PATH = "/api/v1/namespaces/default/configmaps"
KEYS_EACH = 4
PAUSE = 0.05
"""Seconds that a slow watcher waits after each chunk."""
RETRY = 0.05
"""Seconds after which a client retries a request without an answer."""
UNAVAILABLE = (401, 429)
"""Statuses of a server that does not serve yet, besides 5xx. A process that starts does not know all of its planes."""
decode = msgspec.json.decode


class Lost(Exception):
    """The request got no answer, or an answer that leaves its outcome open."""


class Storm:
    """Clients of one API server, which is killed and restarted."""

    def __init__(self, url: str, session: aiohttp.ClientSession, *, writers: int, watchers: int) -> None:
        self.url, self.session, self.writers = url, session, writers
        self.ledger = Ledger()
        self.watchers = [Watcher(self.ledger) for _ in range(watchers)]
        self.over = False
        self.acknowledged = asyncio.Event()
        """Set at each acknowledged write."""

    async def wait_for_write(self, count: int) -> None:
        """Wait until more than `count` writes are acknowledged."""
        while self.ledger.count <= count:
            self.acknowledged.clear()
            await self.acknowledged.wait()

    def start(self, group: asyncio.TaskGroup, *, readers: int = 0, slow_watchers: int = 0) -> None:
        """Start the clients. They run until `over` is set."""
        for each in range(self.writers):
            group.create_task(self.write(each))
        for _ in range(readers):
            group.create_task(self.read())
        for number, watcher in enumerate(self.watchers):
            group.create_task(self.watch(watcher, PAUSE if number < slow_watchers else 0))

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self.session.request(method, self.url + path, data=data) as response:
                found = decode(await response.read())
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError) as error:
            raise Lost(str(error)) from error
        if response.status >= 500 or response.status in UNAVAILABLE:
            raise Lost(str(found))
        return response.status, found

    async def write(self, number: int) -> None:
        keys = [f"k-{number}-{each}" for each in range(KEYS_EACH)]
        value = 0
        while not self.over:
            value += 1
            key = random.choice(keys)
            try:
                await self.change(key, value)
            except Lost:
                await self.find_out(keys)

    async def change(self, key: str, value: int) -> None:
        known = self.ledger.acknowledged.get(key)
        if known is not None and value % 7 == 0:
            self.ledger.record_request(key, None)
            status, found = await self.ask("DELETE", f"{PATH}/{key}")
        else:
            body = {"metadata": {"name": key}, "data": {"count": str(value), "echo": str(value) * 50}}
            self.ledger.record_request(key, value)
            method, path = ("POST", PATH) if known is None else ("PUT", f"{PATH}/{key}")
            status, found = await self.ask(method, path, body)
        if status >= 300:
            raise PromiseBroken(f"{key}: {known} was acknowledged, and then: {status} {found['message']}")
        revision = found["metadata"].get("resourceVersion")
        self.ledger.record_answer(key, int(revision) if revision else None)
        self.acknowledged.set()

    async def find_out(self, keys: list[str]) -> None:
        """Read each key until the server answers."""
        for key in keys:
            while not self.over:
                try:
                    status, found = await self.ask("GET", f"{PATH}/{key}")
                except Lost:
                    await asyncio.sleep(RETRY)
                    continue
                self.ledger.check_own_read(key, value_of(found) if status == 200 else None)
                break

    async def read(self) -> None:
        while not self.over:
            key = f"k-{random.randrange(self.writers)}-{random.randrange(KEYS_EACH)}"
            known = self.ledger.acknowledged.get(key)
            try:
                status, found = await self.ask("GET", f"{PATH}/{key}")
            except Lost:
                await asyncio.sleep(RETRY)
                continue
            self.ledger.check_other_read(key, value_of(found) if status == 200 else None, known)

    async def watch(self, watcher: Watcher, pause: float) -> None:
        fresh = True
        while not self.over:
            try:
                if fresh:
                    await self.list_for(watcher)
                fresh = await self.follow(watcher, pause)
            except (Lost, aiohttp.ClientError, OSError, TimeoutError):
                fresh = False
                await asyncio.sleep(RETRY)

    async def list_for(self, watcher: Watcher) -> None:
        status, found = await self.ask("GET", PATH)
        assert status == 200
        ours = {name: value_of(each) for each in found["items"] if (name := each["metadata"]["name"]).startswith("k-")}
        watcher.record_list(int(found["metadata"]["resourceVersion"]), ours)

    async def follow(self, watcher: Watcher, pause: float) -> bool:
        """Watch from the last revision of the watcher.  Return True if it must list again."""
        query = f"watch=1&allowWatchBookmarks=true&timeoutSeconds=3&resourceVersion={watcher.last}"
        async with self.session.get(f"{self.url}{PATH}?{query}") as response:
            if response.status in UNAVAILABLE or response.status >= 500:
                raise Lost(str(response.status))
            rest = b""
            while chunk := await response.content.readany():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = decode(line)
                    if event["type"] == "ERROR":
                        assert event["object"]["code"] == 410, event
                        return True
                    record(watcher, event)
                await asyncio.sleep(pause)
        return False


def value_of(obj: Any) -> int:
    """Return the value of an object and check that the object is not torn."""
    count, echo = obj["data"]["count"], obj["data"]["echo"]
    if echo != count * 50:
        raise PromiseBroken(f"torn: {obj}")
    return int(count)


def record(watcher: Watcher, event: Any) -> None:
    metadata = event["object"]["metadata"]
    revision = int(metadata["resourceVersion"])
    if event["type"] == "BOOKMARK":
        watcher.record_bookmark(revision)
    elif metadata["name"].startswith("k-"):
        watcher.record_event(event["type"], metadata["name"], value_of(event["object"]), revision)


async def kill(server: ServerProcess, times: int, between: Callable[[], Any], rest: float) -> float:
    """Kill and restart the server; `between` waits before each kill. Return the seconds in which it served."""
    serving_seconds = 0.0
    for _ in range(times):
        begun = time.monotonic()
        await between()
        serving_seconds += time.monotonic() - begun
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    await asyncio.sleep(rest)
    return serving_seconds


def session_of(ca: Path, token: str) -> aiohttp.ClientSession:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=ca), limit=0)
    return aiohttp.ClientSession(headers=headers, connector=connector, timeout=aiohttp.ClientTimeout(total=20))


async def check_final_state(found: Storm) -> None:
    """Check that every watcher, after the remaining events, has the objects of a list."""
    status, listed = await found.ask("GET", PATH)
    assert status == 200
    objects = [
        (name, value_of(each)) for each in listed["items"] if (name := each["metadata"]["name"]).startswith("k-")
    ]
    for key in found.ledger.acknowledged:
        found.ledger.check_own_read(key, dict(objects).get(key))
    with suppress(TimeoutError):
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            for watcher in found.watchers:
                group.create_task(found.follow(watcher, 0))
    for watcher in found.watchers:
        watcher.check_complete()
        check_same(watcher.objects_seen, objects)
