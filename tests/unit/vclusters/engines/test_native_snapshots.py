"""Snapshots and restores of virtual clusters on real planes: the objects before and after."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.apis.operations import OPERATIONS, SNAPSHOTS
from tapestry.apis.vclusters import VCLUSTERS, Journal, Phase, Verb
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.kube.objects import Object, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES, PERSISTENT_VOLUME_CLAIMS, PODS, STORAGE_CLASSES
from tapestry.kube.times import parse_time
from tapestry.vclusters.app import run_vclusters
from tapestry.vclusters.engines.native import NativeEngine
from tapestry.vclusters.plans import Step

from ...tenants.running_tenants import TIMEOUT, bare_world, host_world, pod_named, run_pod, wait_for_pod
from .running_vclusters import NAMED, Service

MEMORY = {"storage": {"enablePersistence": False}}


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[Service]:
    async with bare_world(tmp_path) as world, run_vclusters(world.process):
        yield Service(world)


@pytest.fixture
async def hosted(tmp_path: Path) -> AsyncIterator[Service]:
    async with host_world(tmp_path) as world, run_vclusters(world.process):
        yield Service(world)


async def snapshots(service: Service) -> list[Object]:
    return list(await service.world.management.list(SNAPSHOTS, "default"))


async def snapshot(service: Service, phase: Phase = Phase.RUNNING, **arguments: Any) -> Object:
    before = {name_of(each) for each in await snapshots(service)}
    await service.request(Verb.SNAPSHOT, phase, **arguments)
    [made] = [each for each in await snapshots(service) if name_of(each) not in before]
    return made


async def last_error(service: Service) -> Object:
    vcluster = await service.world.management.get(VCLUSTERS, "v", "default")
    record = await service.world.management.get(OPERATIONS, vcluster["status"]["lastOperation"], "default")
    error: Object = record["status"]["error"]
    return error


def files(service: Service) -> list[str]:
    return sorted(each.name for each in (service.world.process.config.folder / "snapshots").glob("*"))


async def own_configmaps(client: Client) -> dict[str, str]:
    found = await client.list(CONFIGMAPS, "default")
    return {name_of(each): each["data"]["v"] for each in found if "data" in each and "v" in each["data"]}


async def put(client: Client, name: str, value: str) -> None:
    await client.create(CONFIGMAPS, {**object_named(name, "default"), "data": {"v": value}})


@pytest.mark.parametrize("spec", [{}, MEMORY], ids=["file", "memory"])
async def test_restore_in_place_returns_to_the_snapshot(alone: Service, spec: Object) -> None:
    await alone.create(**spec)
    client = await alone.client()
    identity = uid_of(await client.get(NAMESPACES, "kube-system"))
    await put(client, "a", "1")
    made = await snapshot(alone, snapshotName="before", retentionHours=2, labels={"team": "x"})
    status, expires = made["status"], parse_time(made["spec"]["expireTime"])
    assert (status["phase"], made["spec"]["displayName"]) == ("Ready", "before")
    assert timedelta(hours=1.9) < expires - parse_time(made["metadata"]["creationTimestamp"]) <= timedelta(hours=2)
    assert files(alone) == [f"{uid_of(made)}.tar"]
    await put(client, "b", "2")
    await client.patch(CONFIGMAPS, object_named("a", "default"), {"data": {"v": "3"}})
    restored = await alone.request(Verb.RESTORE, Phase.RUNNING, snapshotId=name_of(made))
    assert restored["status"]["lastSnapshot"]["id"] == name_of(made)
    client = await alone.client()
    assert await own_configmaps(client) == {"a": "1"}
    assert uid_of(await client.get(NAMESPACES, "kube-system")) == identity
    await put(client, "c", "4")
    await alone.delete()
    assert await alone.leftovers() == []


async def test_snapshot_becomes_a_new_cluster(alone: Service) -> None:
    await alone.create()
    await put(await alone.client(), "a", "1")
    made = await snapshot(alone)
    await alone.create_from(name_of(made), "w")
    client = await alone.client("w")
    assert await own_configmaps(client) == {"a": "1"}
    original = await (await alone.client()).get(NAMESPACES, "kube-system")
    assert uid_of(await client.get(NAMESPACES, "kube-system")) != uid_of(original)
    failed = await alone.create_from("snap-unknown", "x", Phase.ERROR)
    assert failed["status"]["reason"] == "SNAPSHOT_NOT_FOUND"
    foreign = await alone.create_from(name_of(made), "y", Phase.ERROR, project="other")
    assert foreign["status"]["reason"] == "SNAPSHOT_NOT_FOUND"
    assert len(await alone.leftovers()) == 2


INVALID_ARGUMENTS: list[Object] = [{"retentionHours": "x"}, {"labels": {"a b": "c"}}, {"snapshotName": "n" * 300}]


async def test_snapshot_with_invalid_arguments_fails_at_once(alone: Service) -> None:
    await alone.create()
    for arguments in INVALID_ARGUMENTS:
        await alone.request(Verb.SNAPSHOT, Phase.RUNNING, **arguments)
        assert (await last_error(alone))["code"] == "INVALID_ARGUMENT"
    for name in ("../x", None, 5, "a,metadata.namespace=b"):
        await alone.request(Verb.RESTORE, Phase.RUNNING, snapshotId=name)
        assert (await last_error(alone))["reason"] == "SNAPSHOT_NOT_FOUND"
    assert await snapshots(alone) == []


@pytest.mark.parametrize("spec", [{}, MEMORY], ids=["file", "memory"])
async def test_failed_restore_returns_to_the_safety_copy(alone: Service, spec: Object) -> None:
    await alone.create(**spec)
    await put(await alone.client(), "a", "1")
    made = await snapshot(alone)
    await put(await alone.client(), "b", "2")
    await alone.world.management.patch(
        SNAPSHOTS, made, {"status": {"objectCount": 7}}, subresource="status"
    )  # so that the counts differ when the objects are written
    steps = alone.request(Verb.RESTORE, Phase.RUNNING, snapshotId=name_of(made))
    await cancel_when_tried(alone, steps)
    assert await own_configmaps(await alone.client()) == {"a": "1", "b": "2"}
    assert files(alone) == [f"{uid_of(made)}.tar"]


async def cancel_when_tried(service: Service, restore: Awaitable[Object]) -> None:
    """Cancel a restore after its first attempt has failed, so that the test need not wait for the deadline."""

    async def cancel() -> None:
        def is_failing(obj: Object | None) -> bool:
            steps = value_at(obj, "status", "journal", "steps", default=[])
            return any(each["name"] == "Restore" and each.get("error") for each in steps)

        await wait_for(service.world.management, VCLUSTERS, "v", "default", until=is_failing, timeout=TIMEOUT)
        await service.world.management.patch(VCLUSTERS, NAMED, {"spec": {"operation": {"cancelled": True}}})

    async with asyncio.TaskGroup() as group:
        group.create_task(cancel())
        await restore


async def test_damaged_snapshot_is_not_restored(alone: Service) -> None:
    await alone.create()
    await put(await alone.client(), "a", "1")
    made = await snapshot(alone)
    file = alone.world.process.config.folder / "snapshots" / f"{uid_of(made)}.tar"
    content = bytearray(file.read_bytes())
    content[-20000] ^= 1
    file.write_bytes(content)
    await alone.request(Verb.RESTORE, Phase.RUNNING, snapshotId=name_of(made))
    assert (await last_error(alone))["reason"] == "SNAPSHOT_NOT_RESTORABLE"
    assert await own_configmaps(await alone.client()) == {"a": "1"}


SUSPENDS = [(False, False), (True, False), (False, True), (True, True)]


@pytest.mark.parametrize(("is_snapshot", "is_drain"), SUSPENDS)
async def test_suspended_cluster_has_its_snapshot(alone: Service, is_snapshot: bool, is_drain: bool) -> None:
    await alone.create()
    await put(await alone.client(), "a", "1")
    await alone.request(Verb.SUSPEND, Phase.SUSPENDED, createSnapshot=is_snapshot, drainWorkloads=is_drain)
    assert [each["status"]["phase"] for each in await snapshots(alone)] == ["Ready"] * is_snapshot
    closed = await snapshot(alone, Phase.SUSPENDED)
    await alone.request(Verb.RESTORE, Phase.SUSPENDED, snapshotId=name_of(closed))
    await alone.request(Verb.RESUME, Phase.RUNNING)
    assert await own_configmaps(await alone.client()) == {"a": "1"}


async def test_snapshots_are_deleted_with_the_cluster_if_requested(alone: Service) -> None:
    await alone.create()
    await snapshot(alone)
    await snapshot(alone)
    assert len(files(alone)) == 2
    operation = alone.operation(Verb.DELETE, deleteSnapshots=True)
    await alone.world.management.patch(VCLUSTERS, NAMED, {"spec": {"operation": operation}})
    gone = lambda obj: obj is None  # noqa: E731
    await wait_for(alone.world.management, VCLUSTERS, "v", "default", until=gone, timeout=TIMEOUT)
    assert (await snapshots(alone), files(alone), await alone.leftovers()) == ([], [], [])


async def test_deleted_snapshot_leaves_no_file(alone: Service) -> None:
    await alone.create()
    made = await snapshot(alone)
    await alone.world.management.delete(SNAPSHOTS, made)
    gone = lambda obj: obj is None  # noqa: E731
    await wait_for(alone.world.management, SNAPSHOTS, name_of(made), "default", until=gone, timeout=TIMEOUT)
    assert files(alone) == []


async def test_suspended_memory_has_its_objects_and_snapshots(alone: Service) -> None:
    await alone.create(**MEMORY)
    await put(await alone.client(), "a", "1")
    await alone.request(Verb.SUSPEND, Phase.SUSPENDED)
    made = await snapshot(alone, Phase.SUSPENDED)
    assert made["status"]["phase"] == "Ready"
    await alone.request(Verb.RESUME, Phase.RUNNING)
    client = await alone.client()
    assert await own_configmaps(client) == {"a": "1"}
    await put(client, "b", "2")
    await alone.request(Verb.SUSPEND, Phase.SUSPENDED)
    await alone.request(Verb.RESTORE, Phase.SUSPENDED, snapshotId=name_of(made))
    await alone.request(Verb.RESUME, Phase.RUNNING)
    assert await own_configmaps(await alone.client()) == {"a": "1"}


async def test_workloads_may_be_left_out(alone: Service) -> None:
    await alone.create(**MEMORY)
    client, metadata = await alone.client(), {"name": "work", "labels": {"app": "work"}}
    await client.create(PODS, {**pod_named("work"), "metadata": {**metadata, "namespace": "default"}})
    await put(client, "a", "1")
    every, without = await snapshot(alone), await snapshot(alone, includeWorkloads=False)
    assert without["status"]["objectCount"] == every["status"]["objectCount"] - 1
    for made, arguments, pods in ((every, {}, 1), (without, {}, 0), (every, {"restoreWorkloads": False}, 0)):
        await alone.request(Verb.RESTORE, Phase.RUNNING, snapshotId=name_of(made), **arguments)
        client = await alone.client()
        assert len(await client.list(PODS)) == pods
        assert await own_configmaps(client) == {"a": "1"}


async def test_pods_start_again_after_a_restore(hosted: Service) -> None:
    await hosted.create()
    await run_pod(await hosted.client(), "before")
    made = await snapshot(hosted)
    await run_pod(await hosted.client(), "after")
    await hosted.request(Verb.RESTORE, Phase.RUNNING, snapshotId=name_of(made))
    client = await hosted.client()
    await wait_for_pod(client, "before", lambda each: value_at(each, "status", "phase") == "Running")
    assert await client.find(NAMESPACES, "default")
    await hosted.delete()


@pytest.mark.parametrize("spec", [{}, MEMORY], ids=["file", "memory"])
async def test_each_step_may_be_repeated_after_its_effect(
    alone: Service, spec: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are repeated like those of a process that was killed before it could write that they are done."""
    run, done = NativeEngine.run, set[tuple[str, Step]]()

    async def run_twice(engine: NativeEngine, step: Step, vcluster: Object, journal: Journal) -> Mapping[str, Any]:
        result = await run(engine, step, vcluster, journal)
        if (journal.id, step) not in done:
            done.add((journal.id, step))
            raise OSError("killed")
        return result

    monkeypatch.setattr(NativeEngine, "run", run_twice)
    await alone.create(**spec)
    await put(await alone.client(), "a", "1")
    made = await snapshot(alone)
    await put(await alone.client(), "b", "2")
    await alone.request(Verb.RESTORE, Phase.RUNNING, snapshotId=name_of(made))
    assert await own_configmaps(await alone.client()) == {"a": "1"}
    await alone.create_from(name_of(made), "w", **spec)
    assert await own_configmaps(await alone.client("w")) == {"a": "1"}
    assert len(await snapshots(alone)) == 1
    steps = {step for _, step in done}
    assert steps >= {Step.SNAPSHOT, Step.PREFLIGHT, Step.SAFETY_COPY, Step.STOP, Step.RESTORE, Step.START}


async def test_claim_keeps_its_volume_through_a_restore(hosted: Service) -> None:
    """No syncer sees the plane without its objects, or it would delete the claim in the host cluster."""
    offer = {"spec": {"storageClasses": [{"name": "fast", "hostName": "standard"}]}}
    await hosted.world.management.patch(HOST_CLUSTERS, object_named("east"), offer)
    await hosted.create(storage={"defaultStorageClass": "fast"}, sync={"syncStorageClasses": True})
    client = await hosted.client()
    await wait_for(client, STORAGE_CLASSES, "fast", until=bool, timeout=TIMEOUT)
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await client.create(PERSISTENT_VOLUME_CLAIMS, {**object_named("data", "default"), "spec": claim})
    await run_pod(client, volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
    before = await bound_claim(client)
    [twin] = await hosted.world.host.client.list(PERSISTENT_VOLUME_CLAIMS)
    made = await snapshot(hosted)
    await client.create(CONFIGMAPS, object_named("later", "default"))
    await hosted.request(Verb.RESTORE, Phase.RUNNING, snapshotId=name_of(made))
    client = await hosted.client()
    await wait_for_pod(client, "work", lambda each: value_at(each, "status", "phase") == "Running")
    assert await bound_claim(client) == before
    assert [uid_of(each) for each in await hosted.world.host.client.list(PERSISTENT_VOLUME_CLAIMS)] == [uid_of(twin)]
    await hosted.delete()


async def bound_claim(client: Client) -> tuple[str, str]:
    """Return the UID of the claim and the name of its volume."""
    found = await wait_for(
        *(client, PERSISTENT_VOLUME_CLAIMS, "data", "default"),
        until=lambda each: value_at(each, "status", "phase") == "Bound",
        timeout=TIMEOUT,
    )
    assert found is not None
    return uid_of(found), found["spec"]["volumeName"]
