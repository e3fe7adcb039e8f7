"""Times at which access keys were used last."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from tapestry.apis.projects import ACCESS_KEYS
from tapestry.client.client import Client
from tapestry.kube.errors import ServerError
from tapestry.kube.objects import object_named, value_at
from tapestry.kube.times import timestamp
from tapestry.vclusters.access.key_usage import KeyUsage
from tapestry.vclusters.stored_objects import StoredObjects

from ..management_world import ManagementWorld, management_world

START = datetime(2031, 5, 1, tzinfo=UTC)


@dataclass
class Keys:
    world: ManagementWorld
    time: datetime = START

    def usage(self, client: Client | None = None) -> KeyUsage:
        """Return the uses that an instance of the service sees."""
        stored = partial(StoredObjects(self.world.process.management.store).get, ACCESS_KEYS, "")
        return KeyUsage(client or self.world.orchestrator, stored, lambda: self.time)

    async def last_used(self, name: str = "a") -> str | None:
        found: str | None = value_at(await self.world.orchestrator.get(ACCESS_KEYS, name), "status", "lastUsedTime")
        return found

    async def version(self) -> str:
        return str((await self.world.orchestrator.get(ACCESS_KEYS, "a"))["metadata"]["resourceVersion"])


@pytest.fixture
async def keys(tmp_path: Path) -> AsyncIterator[Keys]:
    async with management_world(tmp_path) as world:
        for name in ("a", "b"):
            spec = {"principal": "alice", "secretSha256": "0" * 64}
            await world.orchestrator.create(ACCESS_KEYS, {**object_named(name), "spec": spec})
        yield Keys(world)


async def test_each_key_is_written_once_in_five_minutes(keys: Keys) -> None:
    usage = keys.usage()
    await usage.write()
    assert await keys.last_used() is None
    usage.record("a")
    await usage.write()
    assert await keys.last_used() == timestamp(START)
    version = await keys.version()
    for _ in range(4):
        keys.time += timedelta(minutes=1)
        usage.record("a")
        await usage.write()
    assert await keys.version() == version
    keys.time += timedelta(minutes=1)
    usage.record("a")
    await usage.write()
    assert await keys.last_used() == timestamp(START + timedelta(minutes=5))
    assert await keys.last_used("b") is None


async def test_instances_share_the_interval(keys: Keys) -> None:
    one, other = keys.usage(), keys.usage()
    for each in (one, other):
        each.record("a")
    await one.write()
    version = await keys.version()
    await other.write()
    assert await keys.version() == version


async def test_deleted_keys_are_forgotten(keys: Keys) -> None:
    usage = keys.usage()
    usage.record("a")
    await keys.world.orchestrator.delete(ACCESS_KEYS, object_named("a"))
    await usage.write()
    assert not usage._used


async def test_failed_write_is_repeated(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    client = keys.world.orchestrator
    usage = keys.usage(client)
    usage.record("a")

    async def fail(*_: object, **options: object) -> None:
        raise ServerError(500, "InternalError", "the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(client, "patch", fail)
        await usage.write()
    assert await keys.last_used() is None
    await usage.write()
    assert await keys.last_used() == timestamp(START)
