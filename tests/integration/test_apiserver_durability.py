"""Durability of our API server when it is killed repeatedly under load.

Writers, readers and watchers connect over TLS.  Each writer has its own keys, and some watchers are slow.  The server
gets SIGKILL at random times and is restarted on its data.  The answers that clients received are compared with the
stored objects.
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
import pytest

from .ledgers import Ledger, PromiseBroken, Watcher, check_same
from .servers import OwnServer

PATH = "/api/v1/namespaces/default/configmaps"
WRITERS, KEYS_EACH = 12, 4
READERS = 2
SLOW = 2
PAUSE = 0.05
"""Seconds that a slow watcher waits after each chunk."""
RETRY = 0.05
"""Seconds after which a client retries a request without an answer."""
REST = 1.0
"""Seconds for which clients continue after the last kill."""
decode = msgspec.json.decode


class Lost(Exception):
    """The request got no answer, or an answer that leaves its outcome open."""


class Storm:
    """Clients of one server that is killed and restarted."""

    def __init__(self, server: OwnServer, session: aiohttp.ClientSession, watchers: int) -> None:
        self.server, self.session = server, session
        self.ledger = Ledger()
        self.watchers = [Watcher(self.ledger) for _ in range(watchers)]
        self.over = False
        self.serving_seconds = 0.0

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self.session.request(method, self.server.url + path, data=data) as response:
                found = decode(await response.read())
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError) as error:
            raise Lost(str(error)) from error
        if response.status >= 500 or response.status == 429:
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
            key = f"k-{random.randrange(WRITERS)}-{random.randrange(KEYS_EACH)}"
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
        async with self.session.get(f"{self.server.url}{PATH}?{query}") as response:
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

    async def kill(self, times: int, between: tuple[float, float]) -> None:
        for _ in range(times):
            begun = time.monotonic()
            await asyncio.sleep(random.uniform(*between))
            self.serving_seconds += time.monotonic() - begun
            await asyncio.to_thread(self.server.kill)
            await asyncio.to_thread(self.server.start)
        await asyncio.sleep(REST)
        self.over = True


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


async def storm(server: OwnServer, kills: int, watchers: int, between: tuple[float, float]) -> Storm:
    tls = ssl.create_default_context(cafile=server.ca)
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
    connector, timeout = aiohttp.TCPConnector(ssl=tls, limit=0), aiohttp.ClientTimeout(total=20)
    async with aiohttp.ClientSession(headers=headers, connector=connector, timeout=timeout) as session:
        found = Storm(server, session, watchers)
        async with asyncio.TaskGroup() as group:
            for each in range(WRITERS):
                group.create_task(found.write(each))
            for _ in range(READERS):
                group.create_task(found.read())
            for number, watcher in enumerate(found.watchers):
                group.create_task(found.watch(watcher, PAUSE if number < SLOW else 0))
            group.create_task(found.kill(kills, between))
        await check_final_state(found)
        return found


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


def summary(found: Storm, kills: int) -> str:
    events = sum(each.events for each in found.watchers)
    rate = found.ledger.count / found.serving_seconds
    bookmarks, lists = (sum(getattr(each, what) for each in found.watchers) for what in ("bookmarks", "lists"))
    return (
        f"durability: {kills} kills under {rate:,.0f} acknowledged writes a second: {found.ledger.count:,} writes, "
        f"{events:,} events, {bookmarks} bookmarks and {lists} lists; 0 lost, 0 revisions twice, 0 torn"
    )


def test_kills_lose_no_acknowledged_write_and_no_event(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with OwnServer(tmp_path / "data", "--controllers", "none") as server:
        found = asyncio.run(storm(server, 10, 8, (0.2, 0.8)))
    record_property("figure", summary(found, 10))
    assert found.ledger.count > 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_hundred_kills_lose_nothing(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    with OwnServer(tmp_path / "data", "--controllers", "none") as server:
        found = asyncio.run(storm(server, 100, 12, (0.5, 1.5)))
    record_property("figure", summary(found, 100))
    assert found.ledger.count / found.serving_seconds >= 300
    assert sum(each.events for each in found.watchers) >= 200_000
