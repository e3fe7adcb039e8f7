"""Snapshots are deleted when they expire, their files with them, and incomplete ones fail with their operation."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tapestry.apis.keys import SNAPSHOT_FINALIZER
from tapestry.apis.operations import SNAPSHOTS
from tapestry.client.client import Client
from tapestry.controller.testing import InProcessApi
from tapestry.kube.objects import Object, key_of, uid_of
from tapestry.kube.times import timestamp
from tapestry.vclusters.snapshot_sweeper import RECHECK_SECONDS, SnapshotSweeper

NOON = datetime(2026, 1, 10, 12, tzinfo=UTC)


class Cache:
    def __init__(self, *objects: Object) -> None:
        self.objects = {key_of(each): each for each in objects}

    @property
    def store(self) -> "Cache":
        return self

    def get(self, key: str) -> Object | None:
        return self.objects.get(key)


@dataclass
class Files:
    deleted: list[str] = field(default_factory=list)

    def delete(self, name: str) -> None:
        self.deleted.append(name)


@dataclass
class World:
    """A management API with one snapshot."""

    time: datetime = NOON
    files: Files = field(default_factory=Files)

    def __post_init__(self) -> None:
        self.client = Client(InProcessApi([SNAPSHOTS], now=lambda: self.time).connect())

    async def add(self, phase: str, **spec: Any) -> Object:
        content = {"vcluster": "v", "vclusterUid": "u", "project": "shop", **spec}
        metadata = {"name": "snap-a", "namespace": "default", "finalizers": [SNAPSHOT_FINALIZER]}
        created = await self.client.create(SNAPSHOTS, {"metadata": metadata, "spec": content, "status": {}})
        return await self.client.patch(SNAPSHOTS, created, {"status": {"phase": phase}}, subresource="status")

    async def reconcile(self, *vclusters: Object) -> float | None:
        found = await self.client.find(SNAPSHOTS, "snap-a", "default")
        caches: Any = Cache(*([found] if found else [])), Cache(*vclusters)
        sweeper = SnapshotSweeper(*caches, self.client, self.files, lambda: self.time)  # type: ignore[arg-type]
        result = await sweeper.reconcile("default/snap-a")
        return result.requeue_after if result is not None else None

    async def phase(self) -> str | None:
        found = await self.client.find(SNAPSHOTS, "snap-a", "default")
        return found["status"]["phase"] if found else None


def vcluster(verb: str = "Snapshot", operation: str = "op-a", uid: str = "u") -> Object:
    metadata = {"name": "v", "namespace": "default", "uid": uid}
    return {"metadata": metadata, "status": {"journal": {"id": operation, "verb": verb}}}


async def test_snapshot_is_deleted_when_it_expires() -> None:
    world = World()
    made = await world.add("Ready", expireTime=timestamp(NOON + timedelta(hours=1)))
    assert await world.reconcile() == 3600
    world.time += timedelta(hours=1)
    await world.reconcile()  # deletes it
    assert world.files.deleted == []
    await world.reconcile()  # deletes the file, then removes the finalizer
    assert (await world.phase(), world.files.deleted) == (None, [uid_of(made)])


async def test_snapshot_without_expiry_stays() -> None:
    world = World()
    await world.add("Ready")
    assert await world.reconcile() is None
    assert await world.phase() == "Ready"


async def test_failed_snapshot_is_listed_for_a_week() -> None:
    world = World()
    await world.add("Failed")
    assert await world.reconcile() == pytest.approx(7 * 86400, abs=1)
    world.time += timedelta(days=8)
    await world.reconcile()
    await world.reconcile()
    assert await world.phase() is None


async def test_incomplete_snapshot_fails_only_without_its_operation() -> None:
    world = World()
    made = await world.add("Creating")
    assert await world.reconcile(vcluster()) == RECHECK_SECONDS
    assert await world.phase() == "Creating"
    await world.reconcile(vcluster(operation="op-b"))
    assert (await world.phase(), world.files.deleted) == ("Failed", [uid_of(made)])


async def test_incomplete_snapshot_of_a_cluster_that_is_gone_fails() -> None:
    for vclusters in ((), (vcluster(uid="other"),)):
        world = World()
        await world.add("Creating")
        await world.reconcile(*vclusters)
        assert await world.phase() == "Failed"


@pytest.mark.parametrize(("verb", "deleted"), [("Restore", []), ("Scale", ["safety-u"])])
async def test_safety_copy_stays_during_a_restore(verb: str, deleted: list[str]) -> None:
    files = Files()
    caches: Any = Cache(), Cache(vcluster(verb))
    sweeper = SnapshotSweeper(*caches, None, files, lambda: NOON)  # type: ignore[arg-type]
    await sweeper.remove_safety_copy("default/v")
    assert files.deleted == deleted
