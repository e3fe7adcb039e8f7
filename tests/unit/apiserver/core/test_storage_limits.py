"""Limits on the number and the size of objects, and of the history that watches read."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import APISERVER_USER, MASTERS_GROUP, User
from tapestry.apiserver.core.store import Compacted, Store

from ..conftest import ServerClient

MAPS = "/api/v1/namespaces/default/configmaps"
ROOT = User("root", (MASTERS_GROUP,))


@asynccontextmanager
async def limited_server(folder: Path, **limits: int) -> AsyncIterator[tuple[ServerClient, Store]]:
    """Run a server with limits above what it creates itself."""
    options: dict[str, Any] = {"backend": "memory", "secure_address": "", "file_rootpath": str(folder)}
    async with run_apiserver(ApiServerConfig(**options)) as plain:
        used = {"max_objects": plain.store.object_count, "max_bytes": plain.store.object_bytes}
    config = ApiServerConfig(**options, **{name: used[name] + limit for name, limit in limits.items()})
    async with run_apiserver(config) as running:
        yield ServerClient(running.server, running.account_tokens, ROOT), running.store


def map_of(name: str, size: int = 1) -> Any:
    return {"metadata": {"name": name}, "data": {"a": "x" * size}}


@pytest.mark.parametrize("user", [ROOT, APISERVER_USER])
async def test_creates_over_number_of_objects_are_forbidden(tmp_path: Path, user: User) -> None:
    async with limited_server(tmp_path, max_objects=2) as (admin, store):
        call = admin.being(user)
        await call.made(MAPS, map_of("a"))
        await call.made(MAPS, map_of("b"))
        status, body = await call("POST", MAPS, map_of("c"))
        used = store.object_count
        assert (status, body["reason"]) == (403, "Forbidden")
        assert body["message"] == (
            f'configmaps "c" is forbidden: exceeded quota of objects, requested: 1, used: {used}, limited: {used}: '
            "delete objects, or ask the operator of this API server for a higher limit"
        )
        assert (await call("PUT", f"{MAPS}/a", map_of("a", 2)))[0] == 200
        assert (await call("DELETE", f"{MAPS}/a"))[0] == 200
        await call.made(MAPS, map_of("c"))


async def test_objects_that_are_being_created_count(tmp_path: Path) -> None:
    async with limited_server(tmp_path, max_objects=3) as (call, _):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call("POST", MAPS, map_of(f"m{number}"))) for number in range(10)]
        assert sorted(task.result()[0] for task in tasks) == [201] * 3 + [403] * 7


async def test_size_of_objects_is_limited(tmp_path: Path) -> None:
    async with limited_server(tmp_path, max_bytes=100_000) as (call, store):
        await call.made(MAPS, map_of("a", 90_000))
        status, body = await call("POST", MAPS, map_of("b", 20_000))
        assert (status, "exceeded quota of bytes" in body["message"]) == (403, True)
        assert (await call("PUT", f"{MAPS}/a", map_of("a", 250_000)))[0] == 403
        assert (await call("PUT", f"{MAPS}/a", map_of("a", 101_000)))[0] == 200  # updates have a reserve
        assert (await call("PUT", f"{MAPS}/a", map_of("a", 10)))[0] == 200
        await call.made(MAPS, map_of("b", 20_000))
        assert store.object_bytes == sum(
            len(version.raw) for name in store.resources() for version in store.list_objects(name)
        )


async def test_object_with_finalizer_can_be_deleted_at_limit(tmp_path: Path) -> None:
    async with limited_server(tmp_path, max_objects=1, max_bytes=1_000) as (call, _):
        body = {**map_of("a"), "metadata": {"name": "a", "finalizers": ["example.com/a"]}}
        await call.made(MAPS, body)
        assert (await call("DELETE", f"{MAPS}/a"))[1]["metadata"]["deletionTimestamp"]
        patch = {"metadata": {"finalizers": None}}
        assert (await call("PATCH", f"{MAPS}/a", patch, kind="application/merge-patch+json"))[0] == 200
        assert (await call("GET", f"{MAPS}/a"))[0] == 404


async def test_history_is_limited_with_objects(tmp_path: Path) -> None:
    """Changes of few objects of many kinds must not hold more memory than their limit."""
    async with limited_server(tmp_path, max_bytes=200_000) as (call, store):
        await call.made(MAPS, map_of("a"))
        start = store.revision
        watched, unread = store.watch("configmaps", after=start), store.watch("secrets", after=start)
        await call.made("/api/v1/namespaces/default/secrets", {"metadata": {"name": "s"}})
        for number in range(50):
            assert (await call("PUT", f"{MAPS}/a", map_of("a", 20_000 + number)))[0] == 200
            await watched.next_events()
        assert 0 < store.history_bytes <= store.max_history_bytes
        assert not watched.dropped
        assert not unread.dropped
        with pytest.raises(Compacted):
            store.watch("configmaps", after=start)
        store.compact_events(store.revision)
        assert store.history_bytes == 0


async def test_watcher_that_does_not_read_is_dropped_with_history(tmp_path: Path) -> None:
    async with limited_server(tmp_path, max_bytes=200_000) as (call, store):
        await call.made(MAPS, map_of("a"))
        watched = store.watch("configmaps", after=store.revision)
        for number in range(50):
            assert (await call("PUT", f"{MAPS}/a", map_of("a", 20_000 + number)))[0] == 200
        assert watched.dropped
