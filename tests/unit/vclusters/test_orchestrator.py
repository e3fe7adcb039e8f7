"""The orchestrator on an in-process API, with an engine that fails, waits and kills the process."""

from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import REGISTRY

from tapestry.apis.operations import OPERATIONS
from tapestry.apis.vclusters import VCLUSTERS, Phase, Verb
from tapestry.kube.objects import name_of, value_at
from tapestry.kube.times import timestamp
from tapestry.vclusters.metrics import STEP_FAILURES
from tapestry.vclusters.plans import Step

from .fake_engine import Faults
from .orchestrator_world import NOON, World, running


async def test_create_passes_its_phases() -> None:
    world = World()
    operation = await world.create()
    await world.run_until_idle()
    assert world.phases == [None, Phase.PENDING, Phase.CREATING, Phase.RUNNING]
    assert world.engine.calls == ["Place", "Install", "WaitReady"]
    status = await world.status()
    assert (status["hostCluster"], status.get("journal"), status["lastOperation"]) == ("host", None, operation)
    [record] = await world.records()
    assert (name_of(record), record["status"]["result"]) == (operation, "Succeeded")
    assert [each["kind"] for each in status["outbox"]] == ["vcluster.phase.changed"] * 3


SUSPENDS = [
    (False, False, ["Stop"], [Phase.SUSPENDED]),
    (True, False, ["Snapshot", "Stop"], [Phase.SUSPENDING, Phase.SUSPENDED]),
    (False, True, ["Drain", "Stop"], [Phase.SUSPENDING, Phase.SUSPENDED]),
    (True, True, ["Snapshot", "Drain", "Stop"], [Phase.SUSPENDING, Phase.SUSPENDED]),
]


@pytest.mark.parametrize(("snapshot", "drain", "steps", "phases"), SUSPENDS)
async def test_suspend_takes_requested_steps(
    snapshot: bool, drain: bool, steps: list[str], phases: list[Phase]
) -> None:
    world = await running()
    await world.request(Verb.SUSPEND, createSnapshot=snapshot, drainWorkloads=drain)
    await world.run_until_idle()
    assert world.engine.calls == steps
    assert world.phases[4:] == phases
    await world.request(Verb.RESUME)
    await world.run_until_idle()
    assert world.phases[-2:] == [Phase.RESUMING, Phase.RUNNING]


async def test_failed_create_is_undone() -> None:
    world = World()
    world.engine.faults[Step.WAIT_READY] = Faults(is_impossible=True)
    failed = {"verb": Verb.CREATE.value, "result": "Failed"}
    operations = REGISTRY.get_sample_value("tapestry_vclusters_operation_seconds_count", failed) or 0
    failures = STEP_FAILURES.values().get((Verb.CREATE.value, Step.WAIT_READY.value), 0)
    operation = await world.create()
    await world.run_until_idle()
    assert REGISTRY.get_sample_value("tapestry_vclusters_operation_seconds_count", failed) == operations + 1
    assert STEP_FAILURES.values()[Verb.CREATE.value, Step.WAIT_READY.value] == failures + 1
    status = await world.status()
    assert (status["phase"], status["reason"]) == (Phase.ERROR, "IMPOSSIBLE")
    assert world.engine.calls[-2:] == ["undo Install", "undo Place"]
    assert not world.engine.clusters
    [record] = await world.records()
    assert (name_of(record), record["status"]["result"]) == (operation, "Failed")
    assert record["status"]["error"]["reason"] == "IMPOSSIBLE"


async def test_step_ends_at_its_deadline() -> None:
    world = World()
    world.engine.faults[Step.WAIT_READY] = Faults(waits=10_000)
    await world.create()
    for _ in range(10):
        await world.reconcile()
    assert (await world.status())["message"] == "WaitReady waits"
    world.time += timedelta(minutes=6)
    await world.run_until_idle()
    [record] = await world.records()
    assert record["status"]["error"]["code"] == "DEADLINE_EXCEEDED"
    assert "WaitReady waits" in record["status"]["error"]["message"]


async def test_errors_are_tried_again() -> None:
    world = World()
    world.engine.faults[Step.INSTALL] = Faults(errors=3)
    await world.create()
    await world.run_until_idle()
    [record] = await world.records()
    assert [step["attempt"] for step in record["status"]["steps"]] == [1, 4, 1]
    assert (await world.status())["phase"] == Phase.RUNNING


@pytest.mark.parametrize("is_healthy", [True, False])
async def test_failed_snapshot_is_an_error_only_without_control_plane(is_healthy: bool) -> None:
    world = await running()
    world.engine.faults[Step.SNAPSHOT] = Faults(is_impossible=True)
    if not is_healthy:
        world.engine.unhealthy.update(world.engine.clusters)
    await world.request(Verb.SNAPSHOT)
    await world.run_until_idle()
    assert world.phases[4:] == [Phase.SNAPSHOTTING, Phase.RUNNING if is_healthy else Phase.ERROR]


async def test_cancelled_suspend_returns_to_running() -> None:
    world = await running()
    world.engine.faults[Step.DRAIN] = Faults(waits=10_000)
    operation = await world.request(Verb.SUSPEND, drainWorkloads=True)
    for _ in range(3):
        await world.reconcile()
    await world.cancel()
    await world.run_until_idle()
    assert world.phases[4:] == [Phase.SUSPENDING, Phase.RUNNING]
    assert world.engine.calls[-1] == "undo Drain"
    results = {name_of(each): each["status"]["result"] for each in await world.records()}
    assert results[operation] == "Cancelled"
    assert value_at(await world.vcluster(), "spec", "suspended") is False, "it can be requested again"


async def test_rejected_suspend_leaves_suspended_cluster_suspended() -> None:
    world = await running()
    await world.request(Verb.SUSPEND)
    await world.run_until_idle()
    await world.request(Verb.SUSPEND)
    await world.run_until_idle()
    assert world.phases[4:] == [Phase.SUSPENDED]
    assert value_at(await world.vcluster(), "spec", "suspended") is True


async def test_failed_resume_can_be_requested_again() -> None:
    world = await running()
    await world.request(Verb.SUSPEND)
    await world.run_until_idle()
    world.engine.faults[Step.START] = Faults(is_impossible=True)
    await world.request(Verb.RESUME)
    await world.run_until_idle()
    assert world.phases[5:] == [Phase.RESUMING, Phase.ERROR]
    assert value_at(await world.vcluster(), "spec", "suspended") is True


async def test_waiting_operation_runs_after_the_running_one() -> None:
    world = await running()
    first = await world.request(Verb.SUSPEND, drainWorkloads=True)
    await world.reconcile()
    second = await world.request(Verb.RESUME)
    await world.run_until_idle()
    assert world.phases[4:] == [Phase.SUSPENDING, Phase.SUSPENDED, Phase.RESUMING, Phase.RUNNING]
    assert {first, second} < {name_of(each) for each in await world.records()}


async def test_record_has_the_result_of_the_last_attempt() -> None:
    world = World()
    operation = await world.create()
    error = {"code": "CANCELLED", "reason": "CANCELLED", "message": "by an attempt that was killed"}
    spec = {"verb": "Create", "vcluster": "v", "vclusterUid": "u", "project": "shop", "principal": "jane"}
    record = await world.client.create(
        OPERATIONS, {"metadata": {"name": operation, "namespace": "default"}, "spec": spec}
    )
    status = {"result": "Cancelled", "error": error}
    await world.client.patch(OPERATIONS, record, {"status": status}, subresource="status")
    await world.run_until_idle()
    [record] = await world.records()
    assert (record["status"]["result"], record["status"].get("error")) == ("Succeeded", None)


async def test_operation_in_wrong_phase_fails_and_changes_nothing() -> None:
    world = await running()
    operation = await world.request(Verb.RESUME)
    await world.run_until_idle()
    assert world.phases[-1] is Phase.RUNNING
    [record] = [each for each in await world.records() if name_of(each) == operation]
    assert record["status"]["error"]["reason"] == "PHASE_NOT_ALLOWED"


@pytest.mark.parametrize("verb", [Verb.SCALE, Verb.SUSPEND, Verb.SNAPSHOT, Verb.RESTORE])
async def test_delete_ends_the_running_operation(verb: Verb) -> None:
    world = await running()
    world.engine.faults = {step: Faults(waits=10_000) for step in (Step.APPLY, Step.DRAIN, Step.SNAPSHOT, Step.RESTORE)}
    ended = await world.request(verb, drainWorkloads=True)
    for _ in range(8):
        await world.reconcile()
    deletion = await world.request(Verb.DELETE)
    await world.run_until_idle()
    assert world.phases[-2:] == [Phase.DELETING, None]
    assert not world.engine.clusters
    results = {name_of(each): each["status"]["result"] for each in await world.records()}
    assert (results[ended], results[deletion]) == ("Cancelled", "Succeeded")


async def test_kubectl_deletes_without_a_request() -> None:
    world = await running()
    found = await world.vcluster()
    assert found is not None
    await world.client.delete(VCLUSTERS, found)
    await world.run_until_idle()
    assert await world.vcluster() is None
    assert not world.engine.clusters


async def test_failed_delete_is_repeated() -> None:
    world = await running()
    world.engine.faults[Step.UNINSTALL] = Faults(is_impossible=True)
    await world.request(Verb.DELETE)
    for _ in range(12):
        await world.reconcile()
    assert world.phases[-2:] == [Phase.DELETING, Phase.ERROR]
    world.engine.faults.clear()
    await world.run_until_idle()
    assert world.phases[-2:] == [Phase.DELETING, None]


async def test_expired_cluster_is_deleted() -> None:
    world = await running()
    found = await world.vcluster()
    assert found is not None
    await world.client.patch(VCLUSTERS, found, {"spec": {"expireTime": timestamp(NOON + timedelta(hours=1))}})
    await world.run_until_idle()
    assert await world.vcluster() is not None
    world.time += timedelta(hours=1)
    await world.run_until_idle()
    assert await world.vcluster() is None


async def test_lost_control_plane_is_an_error_until_it_recovers() -> None:
    world = await running()
    world.engine.unhealthy.update(world.engine.clusters)
    await world.run_until_idle()
    assert world.phases[-1] is Phase.RUNNING
    world.time += timedelta(seconds=31)
    await world.run_until_idle()
    assert world.phases[-1] is Phase.ERROR
    world.engine.unhealthy.clear()
    await world.run_until_idle()
    assert world.phases[-2:] == [Phase.ERROR, Phase.RUNNING]


async def test_old_version_in_cache_is_not_acted_on() -> None:
    world = World()
    await world.create()
    for _ in range(3):
        await world.reconcile()
    old = world.cache.objects["default/v"]
    await world.reconcile()
    world.cache.objects = {"default/v": old}
    calls = list(world.engine.calls)
    assert await world.orchestrator.reconcile("default/v") is None
    assert world.engine.calls == calls


# -- kills at every step boundary

OPERATIONS_AND_STEPS: list[tuple[Verb, dict[str, Any], list[Step]]] = [
    (Verb.CREATE, {}, [Step.PLACE, Step.INSTALL, Step.WAIT_READY]),
    (Verb.UPDATE, {}, [Step.APPLY, Step.WAIT_READY]),
    (Verb.SCALE, {}, [Step.APPLY, Step.WAIT_READY]),
    (Verb.SUSPEND, {"createSnapshot": True, "drainWorkloads": True}, [Step.SNAPSHOT, Step.DRAIN, Step.STOP]),
    (Verb.SNAPSHOT, {}, [Step.SNAPSHOT]),
    (Verb.RESTORE, {}, [Step.PREFLIGHT, Step.SAFETY_COPY, Step.STOP, Step.RESTORE, Step.START, Step.WAIT_READY]),
    (Verb.DELETE, {"deleteSnapshots": True}, [Step.UNINSTALL, Step.VERIFY_REMOVED, Step.DELETE_SNAPSHOTS]),
]
BOUNDARIES = [
    (verb, arguments, step, where)
    for verb, arguments, steps in OPERATIONS_AND_STEPS
    for step in steps
    for where in ("kills_before", "kills_after")
]


@pytest.mark.parametrize(("verb", "arguments", "step", "where"), BOUNDARIES)
async def test_killed_operation_ends_like_an_undisturbed_one(
    verb: Verb, arguments: dict[str, Any], step: Step, where: str
) -> None:
    ends = []
    for faults in ({}, {step: Faults(**{where: 2})}):
        world = World() if verb is Verb.CREATE else await running()
        world.engine.faults = dict(faults)
        await (world.create() if verb is Verb.CREATE else world.request(verb, **arguments))
        await world.run_until_idle()
        ends.append((world.phases, list(world.engine.clusters.values()), await world.vcluster() is None))
        assert len(await world.records()) == world.requests
        assert world.engine.installs == 1
    assert ends[0] == ends[1]


NEW_STEPS = [Step.PLACE, Step.PREFLIGHT, Step.INSTALL, Step.RESTORE, Step.START, Step.WAIT_READY]


@pytest.mark.parametrize("step", NEW_STEPS)
@pytest.mark.parametrize("where", ["kills_before", "kills_after"])
async def test_killed_restore_makes_one_new_cluster(step: Step, where: str) -> None:
    world = World()
    world.engine.faults = {step: Faults(**{where: 2})}
    operation = await world.create(Verb.RESTORE, snapshotId="s")
    await world.run_until_idle()
    assert world.phases == [None, Phase.PENDING, Phase.RESTORING, Phase.RUNNING]
    [cluster] = world.engine.clusters.values()
    assert (world.engine.installs, cluster.version, cluster.is_running) == (1, operation, True)


RESTORED_IN_PLACE = [Step.SAFETY_COPY, Step.STOP, Step.RESTORE, Step.WAIT_READY]


@pytest.mark.parametrize("failing", RESTORED_IN_PLACE)
@pytest.mark.parametrize("killed", RESTORED_IN_PLACE)
async def test_failed_restore_is_undone_through_kills(failing: Step, killed: Step) -> None:
    world = await running()
    world.engine.faults = {killed: Faults(kills_after_undo=2)}
    world.engine.faults[failing] = Faults(kills_after_undo=2 * (failing is killed), is_impossible=True)
    await world.request(Verb.RESTORE, snapshotId="s")
    await world.run_until_idle()
    assert world.phases[4:] == [Phase.RESTORING, Phase.RUNNING]
    [cluster] = world.engine.clusters.values()
    assert (cluster.is_running, cluster.version, cluster.copies) == (True, "", set())
