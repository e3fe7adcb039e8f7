"""Idle planes fall asleep, and wake for scheduled work."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from tapestry.apis import keys
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import APISERVER_USER
from tapestry.apiserver.core.store import ObjectVersion
from tapestry.client.client import Client
from tapestry.controller.controller import Controller
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.objects import Object, object_named
from tapestry.kube.resources import CRON_JOBS, PODS
from tapestry.planes.idle_planes import (
    MAX_WAKING,
    MIN_IDLE_TIMEOUT,
    POD_DECODER,
    IdlePlanes,
    PlaneActivity,
    in_slices,
    may_sleep,
)
from tapestry.planes.open_plane import OpenPlane, SyncerRule
from tapestry.planes.plane_set import PlaneEntry, PlaneState

from .listening_planes import IDLE_TIMEOUT as TIMEOUT
from .listening_planes import MAPS, ListeningPlanes, listening_planes

NOW = datetime(2026, 1, 1, 10, 30, tzinfo=UTC)
IDLE = PlaneActivity(connections=0, idle_time=TIMEOUT, has_running_pods=False, next_due=None)
CONTAINERS = [{"name": "main", "image": "main"}]


@pytest.mark.parametrize(
    ("changes", "sleeps"),
    [
        ({}, True),
        ({"connections": 1}, False),
        ({"idle_time": TIMEOUT - timedelta(seconds=1)}, False),
        ({"has_running_pods": True}, False),
        ({"next_due": NOW}, False),
        ({"next_due": NOW + TIMEOUT}, False),
        ({"next_due": NOW + TIMEOUT + timedelta(seconds=1)}, True),
    ],
)
def test_only_idle_plane_may_sleep(changes: dict[str, object], sleeps: bool) -> None:
    assert may_sleep(PlaneActivity(**{**vars(IDLE), **changes}), NOW, TIMEOUT) is sleeps  # type: ignore[arg-type]


class Clock:
    """The time of the machine, which tests advance."""

    def __init__(self) -> None:
        self.advanced = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self.advanced

    def monotonic(self) -> float:
        return time.monotonic() + self.advanced.total_seconds()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[ListeningPlanes]:
    async with listening_planes(tmp_path) as running:
        yield running


def idle_planes(running: ListeningPlanes, clock: Clock) -> IdlePlanes:
    return IdlePlanes(running.planes, clock.now, clock.monotonic)


async def create(entry: PlaneEntry, resource: object, name: str, spec: Object) -> None:
    assert entry.plane is not None
    client = Client(InProcessTransport(entry.plane.opened.request_handler, APISERVER_USER))
    await client.create(resource, {**object_named(name, "default"), "spec": spec})  # type: ignore[arg-type]


async def test_plane_without_idle_timeout_never_sleeps(running: ListeningPlanes, clock: Clock) -> None:
    entry = await running.opened("a")
    entry.idle_timeout = None
    clock.advanced = 100 * TIMEOUT
    await idle_planes(running, clock).check(entry)
    assert entry.state is PlaneState.OPEN


async def test_plane_sleeps_after_idle_timeout(running: ListeningPlanes, clock: Clock) -> None:
    entry = await running.opened("a")
    idle = idle_planes(running, clock)
    assert 0 < await idle.check(entry) <= 60
    assert entry.state is PlaneState.OPEN
    clock.advanced = TIMEOUT
    await idle.check(entry)
    assert (entry.state, entry.wake_at) == (PlaneState.ASLEEP, None)


async def test_plane_with_connection_stays_awake(running: ListeningPlanes, clock: Clock) -> None:
    entry = await running.opened("a")
    client = await running.connect("a", running.tls(running.admin("a")))
    client.send("GET", f"{MAPS}?watch=1")
    await client.response()
    clock.advanced = TIMEOUT * 2
    await idle_planes(running, clock).check(entry)
    assert entry.state is PlaneState.OPEN


@pytest.mark.parametrize(("node", "state"), [("worker", PlaneState.OPEN), ("", PlaneState.ASLEEP)])
async def test_plane_with_running_pod_stays_awake(
    running: ListeningPlanes, clock: Clock, node: str, state: PlaneState
) -> None:
    entry = await running.opened("a", pod_accounts=False)
    await create(entry, PODS, "web", {"containers": CONTAINERS, **({"nodeName": node} if node else {})})
    clock.advanced = TIMEOUT
    await idle_planes(running, clock).check(entry)
    assert entry.state is state


@pytest.mark.parametrize(("seconds", "state"), [(0, PlaneState.OPEN), (1, PlaneState.OPEN), (3600, PlaneState.ASLEEP)])
async def test_plane_whose_controllers_have_work_stays_awake(
    running: ListeningPlanes, clock: Clock, seconds: float, state: PlaneState
) -> None:
    entry = await running.opened("a")
    assert entry.plane is not None
    started, stop = asyncio.Event(), asyncio.Event()

    async def reconcile(_: str) -> None:
        started.set()
        await stop.wait()

    controller = Controller("slow", reconcile)
    entry.plane.manager.controllers.append(controller)
    async with asyncio.TaskGroup() as group:
        group.create_task(controller.run())
        if seconds:
            controller.queue.add_after("key", seconds)
        else:
            controller.queue.add("key")
            await started.wait()
        clock.advanced = TIMEOUT
        assert 0 < await idle_planes(running, clock).check(entry) <= 60
        assert entry.state is state
        stop.set()
        controller.queue.close()


CRON_SPEC = {
    "schedule": "0 0 1 1 *",
    "jobTemplate": {"spec": {"template": {"spec": {"containers": CONTAINERS, "restartPolicy": "Never"}}}},
}


async def test_plane_wakes_for_its_next_cron_job(running: ListeningPlanes, clock: Clock) -> None:
    entry = await running.opened("a", controllers=["none", "cronjobs"])
    await create(entry, CRON_JOBS, "yearly", CRON_SPEC)
    idle, clock.advanced = idle_planes(running, clock), TIMEOUT
    async with asyncio.timeout(10):
        while entry.state is PlaneState.OPEN:  # while the controller reconciles the new object
            await idle.check(entry)
            await asyncio.sleep(0)
    next_year = datetime(clock.now().year + 1, 1, 1, tzinfo=UTC)
    assert (entry.state, entry.wake_at) == (PlaneState.ASLEEP, next_year)
    await idle.check(entry)
    assert entry.state is PlaneState.ASLEEP
    clock.advanced += next_year - clock.now()
    await idle.check(entry)
    assert entry.state is PlaneState.OPEN


async def test_plane_without_its_controller_ignores_cron_jobs(running: ListeningPlanes, clock: Clock) -> None:
    entry = await running.opened("a")
    await create(entry, CRON_JOBS, "yearly", CRON_SPEC)
    clock.advanced = TIMEOUT
    await idle_planes(running, clock).check(entry)
    assert (entry.state, entry.wake_at) == (PlaneState.ASLEEP, None)


async def test_suspended_plane_is_not_woken(running: ListeningPlanes, clock: Clock) -> None:
    entry = await running.opened("a")
    await running.planes.close(entry, PlaneState.SUSPENDED, wake_at=clock.now())
    clock.advanced = TIMEOUT
    await idle_planes(running, clock).check(entry)
    assert entry.state is PlaneState.SUSPENDED


async def test_loop_survives_failure_of_one_plane(
    running: ListeningPlanes, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, sound = await running.opened("broken"), await running.opened("sound")
    assert broken.plane is not None
    monkeypatch.setattr(broken.plane.opened.http_handler.active_requests, "last_end", None)
    clock.advanced = TIMEOUT
    async with asyncio.TaskGroup() as group:
        loop = group.create_task(idle_planes(running, clock).run())
        async with asyncio.timeout(10):
            await sound.closing.wait()
        loop.cancel()
    assert (sound.state, broken.state) == (PlaneState.ASLEEP, PlaneState.OPEN)
    assert "idle check failed" in caplog.text


async def test_loop_wakes_plane_that_is_added_later(running: ListeningPlanes, clock: Clock) -> None:
    async with asyncio.TaskGroup() as group:
        loop = group.create_task(idle_planes(running, clock).run())
        await asyncio.sleep(0)
        config = ApiServerConfig(file_rootpath=str(running.folder / "a"), controllers=["none"])
        entry = running.planes.add("a", config, wake_at=clock.now())
        async with asyncio.timeout(10):
            await entry.ready.wait()
        assert entry.state is PlaneState.OPEN
        loop.cancel()


async def test_plane_that_does_not_open_delays_no_other(
    running: ListeningPlanes, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    wake = running.planes.wake

    async def hang_or_wake(entry: PlaneEntry) -> OpenPlane | None:
        if entry.id.startswith("hanging"):
            await asyncio.get_running_loop().create_future()
        return await wake(entry)

    monkeypatch.setattr(running.planes, "wake", hang_or_wake)
    monkeypatch.setattr("tapestry.planes.idle_planes.WAKE_SECONDS", 0.01)
    async with asyncio.TaskGroup() as group:
        loop = group.create_task(idle_planes(running, clock).run())
        await asyncio.sleep(0)
        for name in (*(f"hanging-{number}" for number in range(3 * MAX_WAKING)), "woken"):
            config = ApiServerConfig(file_rootpath=str(running.folder / name), controllers=["none"])
            entry = running.planes.add(name, config, wake_at=clock.now())
        async with asyncio.timeout(20):
            await entry.ready.wait()
        loop.cancel()
    assert entry.state is PlaneState.OPEN


async def test_few_planes_are_woken_at_the_same_time(
    running: ListeningPlanes, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waking, most, opened = 0, 0, asyncio.Event()

    async def wake(entry: PlaneEntry) -> None:
        nonlocal waking, most
        waking += 1
        most = max(most, waking)
        await asyncio.sleep(0)
        waking -= 1
        entry.state = PlaneState.SUSPENDED
        if entry.id == "19":
            opened.set()

    monkeypatch.setattr(running.planes, "wake", wake)
    async with asyncio.TaskGroup() as group:
        for number in range(20):
            running.planes.add(str(number), ApiServerConfig(), wake_at=clock.now())
        loop = group.create_task(idle_planes(running, clock).run())
        async with asyncio.timeout(20):
            await opened.wait()
        loop.cancel()
    assert most == MAX_WAKING


async def test_short_idle_timeout_is_ten_seconds(running: ListeningPlanes, clock: Clock) -> None:
    entry = await running.opened("a")
    entry.idle_timeout, clock.advanced = timedelta(seconds=1), MIN_IDLE_TIMEOUT / 2
    await idle_planes(running, clock).check(entry)
    assert entry.state is PlaneState.OPEN
    clock.advanced = MIN_IDLE_TIMEOUT
    await idle_planes(running, clock).check(entry)
    assert entry.state is PlaneState.ASLEEP


async def test_plane_with_client_in_this_process_stays_awake(running: ListeningPlanes, clock: Clock) -> None:
    entry = await running.opened("a")
    assert entry.plane is not None
    clock.advanced = TIMEOUT
    async with entry.plane.transport(APISERVER_USER) as transport:
        assert await Client(transport).list(PODS) == []
        await idle_planes(running, clock).check(entry)
        assert entry.state is PlaneState.OPEN
    await idle_planes(running, clock).check(entry)
    assert entry.state is PlaneState.ASLEEP


async def test_other_tasks_run_while_many_objects_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapestry.planes.idle_planes.SLICE_SECONDS", 0.0)
    steps = 0

    async def count() -> None:
        nonlocal steps
        while True:
            steps += 1
            await asyncio.sleep(0)

    counter = asyncio.create_task(count())
    versions = [ObjectVersion(("default", str(number)), 1, b"", {}) for number in range(100)]
    assert [each async for each in in_slices(versions)] == versions
    counter.cancel()
    assert steps >= 99


async def test_plane_that_is_used_during_the_check_stays_awake(
    running: ListeningPlanes, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = await running.opened("a")
    assert entry.plane is not None
    plane, clock.advanced = entry.plane, TIMEOUT

    async def connect(_: object, *, or_waiting: bool) -> bool:
        plane.clients.count += 1
        return False

    monkeypatch.setattr("tapestry.planes.idle_planes.has_running_pods", connect)
    await idle_planes(running, clock).check(entry)
    assert entry.state is PlaneState.OPEN


@pytest.mark.parametrize(
    ("spec", "status", "waits"),
    [
        ({}, {}, True),
        ({}, {"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "Unschedulable"}]}, True),
        ({"nodeName": "n1"}, {"phase": "Pending"}, False),
        ({"schedulingGates": [{"name": "example.com/wait"}]}, {"phase": "Pending"}, False),
        ({}, {"phase": "Failed"}, False),
        ({}, {"phase": "Pending", "conditions": [{"type": keys.MAPPED_CONDITION, "reason": "Suspended"}]}, False),
    ],
)
def test_waiting_pod_may_get_a_node(spec: Object, status: Object, waits: bool) -> None:
    pod = POD_DECODER.decode(msgspec.json.encode({"spec": {"containers": [], **spec}, "status": status}))
    assert pod.is_waiting is waits


@pytest.mark.parametrize(("schedules_pods", "state"), [(True, PlaneState.OPEN), (False, PlaneState.ASLEEP)])
async def test_plane_stays_awake_while_its_host_places_a_pod(
    running: ListeningPlanes, clock: Clock, schedules_pods: bool, state: PlaneState
) -> None:
    entry = await running.opened("a", pod_accounts=False)
    assert entry.plane is not None
    entry.plane.restrict_to_syncer(SyncerRule(schedules_pods=schedules_pods))
    await create(entry, PODS, "web", {"containers": CONTAINERS})
    clock.advanced = TIMEOUT
    await idle_planes(running, clock).check(entry)
    assert entry.state is state
