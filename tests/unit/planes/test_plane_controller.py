"""The controller of planes: records lead to open, suspended and deleted planes, whatever call fails."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

import pytest

from tapestry.apis.planes import PLANES, plane_id
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controller.testing import InProcessApi, Scenario, in_virtual_time, perturb, running_clock
from tapestry.kube.conditions import is_condition_true, new_condition
from tapestry.kube.objects import Object, object_named, value_at
from tapestry.kube.resources import EVENTS, LEASES
from tapestry.planes import plane_controller
from tapestry.planes.plane_certificates import CERTIFICATES_EXPIRING
from tapestry.planes.plane_controller import STATUS_INTERVAL
from tapestry.planes.plane_set import PlaneState
from tapestry.planes.processes import Processes, process_lease

from . import recorded_planes
from .recorded_planes import AN_HOUR, Disk, RecordedPlanes, wait_for_phase

PROCESS = "here"
WITH_LEASE = ManagerConfig(leader_election=process_lease(PROCESS))


async def obstacle(client: Client, id: str) -> str:
    """Return that a plane is in use while there is a plane with the name `user`."""
    user = await client.find(PLANES, "user")
    return "user needs it" if user is not None and plane_id(user) != id else ""


def installer(failures: int = 0, disk_failures: int = 0) -> Callable[[Manager], None]:
    """Return the setup of a process, whose disk stays when it dies."""
    disk = Disk()

    def install(manager: Manager) -> None:
        disk.failures = disk_failures
        processes = Processes(PROCESS, manager.elector, running_clock().monotonic)
        planes = RecordedPlanes(disk, failures=failures)
        planes.obstacle_to_deletion = partial(obstacle, manager.client)
        recorded_planes.install(manager, processes, planes)

    return install


async def change_spec(client: Client, name: str = "p", **spec: object) -> None:
    await client.patch(PLANES, object_named(name), {"spec": spec})


async def delete(client: Client, name: str = "p") -> None:
    await client.delete(PLANES, await client.get(PLANES, name))
    await wait_for(client, PLANES, name, until=lambda plane: plane is None, timeout=AN_HOUR)


async def open_suspend_resume_delete(client: Client) -> None:
    await client.create(PLANES, object_named("p") | {"spec": {}})
    opened = await wait_for_phase(client, "Open")
    assert opened["status"]["holder"] == PROCESS
    assert opened["status"]["address"] == f"https://{opened['status']['id']}.planes"
    await change_spec(client, state="Suspended", suspendReason="over budget")
    suspended = await wait_for_phase(client, "Suspended")
    assert suspended["status"]["message"] == "over budget"
    await change_spec(client, state="Open")
    await wait_for_phase(client, "Open")
    await delete(client)


async def release_and_take_back(client: Client) -> None:
    await client.create(PLANES, object_named("p") | {"spec": {}})
    await wait_for_phase(client, "Open")
    await change_spec(client, process="there")
    released = await wait_for_phase(client, "Released")
    assert "holder" not in released["status"]
    await change_spec(client, process=PROCESS)
    taken = await wait_for_phase(client, "Open")
    assert taken["status"]["epoch"] >= 2
    await delete(client)


async def move_there_and_back(client: Client) -> None:
    """The plane moves to another process, which this function plays."""
    await client.create(PLANES, object_named("p") | {"spec": {"backend": "etcd"}})
    await wait_for_phase(client, "Open")
    await change_spec(client, process="there")
    released = await wait_for_phase(client, "Released")
    held = {"holder": "there", "epoch": released["status"]["epoch"] + 1, "phase": "Open"}
    await client.patch(PLANES, released, {"status": held}, subresource="status")
    await change_spec(client, process=PROCESS)
    plane = await client.get(PLANES, "p")
    assert plane["status"] == {**released["status"], **held}, "a plane that another process holds is left alone"
    released_there = {"holder": None, "phase": "Released"}
    await client.patch(PLANES, object_named("p"), {"status": released_there}, subresource="status")
    taken = await wait_for_phase(client, "Open")
    assert (taken["status"]["holder"], taken["status"]["epoch"] > held["epoch"]) == (PROCESS, True)
    await delete(client)


async def copy_and_delete_the_source(client: Client) -> None:
    await client.create(PLANES, object_named("p") | {"spec": {}})
    await wait_for_phase(client, "Open")
    await client.create(PLANES, object_named("q") | {"spec": {"copyOf": "p"}})
    await wait_for_phase(client, "Open", "q")
    await delete(client, "p")
    await change_spec(client, "q", state="Suspended")
    await wait_for_phase(client, "Suspended", "q")
    await change_spec(client, "q", state="Open")
    await wait_for_phase(client, "Open", "q")
    await delete(client, "q")


async def copy_of_a_plane_that_is_created_later(client: Client) -> None:
    await client.create(PLANES, object_named("q") | {"spec": {"copyOf": "p"}})
    failed = await wait_for_phase(client, "Failed", "q")
    assert "there is no plane 'p'" in failed["status"]["message"]
    await client.create(PLANES, object_named("p") | {"spec": {}})
    await wait_for_phase(client, "Open", "q")
    await delete(client, "q")
    await delete(client, "p")


async def deletion_of_a_plane_in_use(client: Client) -> None:
    for name in ("p", "user"):
        await client.create(PLANES, object_named(name) | {"spec": {}})
        await wait_for_phase(client, "Open", name)
    await client.delete(PLANES, await client.get(PLANES, "p"))
    found = await wait_for(
        client, PLANES, "p", until=lambda plane: message_of(plane) == "user needs it", timeout=AN_HOUR
    )
    assert found is not None
    assert found["status"]["phase"] == "Open"
    await delete(client, "user")
    await wait_for(client, PLANES, "p", until=lambda plane: plane is None, timeout=AN_HOUR)


async def deletion_of_a_plane_that_was_released(client: Client) -> None:
    await client.create(PLANES, object_named("p") | {"spec": {}})
    await wait_for_phase(client, "Open")
    await change_spec(client, process="apiserver")
    await wait_for_phase(client, "Released")
    await delete(client)


async def two_planes(client: Client) -> None:
    for name in ("p", "q"):
        await client.create(PLANES, object_named(name) | {"spec": {}})
    for name in ("p", "q"):
        await wait_for_phase(client, "Open", name)
    await delete(client, "p")
    await delete(client, "q")


@dataclass(frozen=True)
class Case:
    world: Callable[[Client], Awaitable[None]]
    failures: int = 0
    """Number of planes that fail to open after each start of the process."""
    disk_failures: int = 0
    """Number of copies and deletions that fail after each start."""
    config: ManagerConfig = field(default_factory=ManagerConfig)


CASES = {
    "plane opens, is suspended, resumed and deleted": Case(open_suspend_resume_delete),
    "plane of a process with a Lease": Case(open_suspend_resume_delete, config=WITH_LEASE),
    "plane is released and taken back": Case(release_and_take_back),
    "plane moves to another process and back": Case(move_there_and_back),
    "plane is released and deleted": Case(deletion_of_a_plane_that_was_released),
    "plane in use is deleted": Case(deletion_of_a_plane_in_use),
    "plane fails to open twice": Case(open_suspend_resume_delete, failures=2),
    "two planes": Case(two_planes),
    "plane is copied, then the source is deleted": Case(copy_and_delete_the_source),
    "copies and deletions fail twice": Case(copy_and_delete_the_source, disk_failures=2),
    "plane is a copy of a later one": Case(copy_of_a_plane_that_is_created_later),
}


def test_planes_reach_their_state_whatever_call_fails(record_property: Callable[[str, object], None]) -> None:
    replays = 0
    for name, case in CASES.items():
        setup = installer(case.failures, case.disk_failures)
        scenario = Scenario(name, [PLANES], setup, case.world, case.config, counts=lambda call: "leases" not in call)
        report = perturb(scenario)
        report.check()
        replays += report.cases
    record_property("figure", f"perturbed planes: {replays} replays of {len(CASES)} scenarios")


# -- one process without faults


@asynccontextmanager
async def running_process() -> AsyncIterator[tuple[Client, RecordedPlanes]]:
    api = InProcessApi([PLANES, LEASES, EVENTS], now=running_clock().now)
    config, planes = ManagerConfig(metrics=Metrics(address=""), probes=Probes(address="")), RecordedPlanes()
    manager = Manager(config, api.connect, identity=PROCESS, now=running_clock().now)
    manager.register("planes", lambda each: recorded_planes.install(each, Processes(PROCESS, None), planes))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(manager.run())
        yield Client(api), planes
        task.cancel()


@in_virtual_time
async def test_plane_with_invalid_spec_can_be_suspended_and_deleted() -> None:
    async with running_process() as (client, planes):
        await client.create(PLANES, object_named("p") | {"spec": {"limits": {"bytes": "-1"}}})
        failed = await wait_for_phase(client, "Failed")
        assert failed["status"]["message"].startswith("spec.limits.bytes: expected `str` matching regex")
        assert value_at(failed, "status", "conditions", 0, "status") == "False"
        assert not list(planes)
        await change_spec(client, state="Suspended", suspendReason="over budget")
        suspended = await wait_for_phase(client, "Suspended")
        assert suspended["status"]["message"] == "over budget"
        await delete(client)


@in_virtual_time
async def test_invalid_size_is_reported_until_it_changes() -> None:
    async with running_process() as (client, _):
        await client.create(PLANES, object_named("p") | {"spec": {"limits": {"bytes": "1e999"}}})
        failed = await wait_for_phase(client, "Failed")
        assert "'1e999' is not a quantity" in failed["status"]["message"]
        await change_spec(client, limits={"bytes": "1Gi"})
        await wait_for_phase(client, "Open")
        await change_spec(client, limits={"bytes": "1e999"})
        found = await wait_for(client, PLANES, "p", until=lambda plane: bool(message_of(plane)), timeout=AN_HOUR)
        assert value_at(found, "status", "phase") == "Open", "it keeps its configuration"
        assert "'1e999' is not a quantity" in message_of(found)


def message_of(plane: Object | None) -> str:
    message: str = value_at(plane, "status", "message", default="")
    return message


@in_virtual_time
async def test_deletion_that_fails_tells_why() -> None:
    async with running_process() as (client, planes):
        await client.create(PLANES, object_named("p") | {"spec": {}})
        await wait_for_phase(client, "Open")
        planes.disk.failures = 3
        await client.delete(PLANES, await client.get(PLANES, "p"))
        deleting = await wait_for(client, PLANES, "p", until=lambda plane: bool(message_of(plane)), timeout=AN_HOUR)
        assert deleting is not None
        assert deleting["status"]["phase"] == "Deleting"
        assert message_of(deleting).startswith("the disk is full")
        await wait_for(client, PLANES, "p", until=lambda plane: plane is None, timeout=AN_HOUR)
        assert not planes.disk.origins


@in_virtual_time
async def test_attempts_become_rarer_even_if_each_message_differs() -> None:
    async with running_process() as (client, planes):
        await client.create(PLANES, object_named("p") | {"spec": {}})
        await wait_for_phase(client, "Open")
        planes.disk.failures = 100
        await client.create(PLANES, object_named("q") | {"spec": {"copyOf": "p"}})
        await asyncio.sleep(60)
        assert 80 < planes.disk.failures < 95
        assert "is full" in message_of(await client.get(PLANES, "q"))


@in_virtual_time
async def test_stopping_process_does_not_report_planes_asleep() -> None:
    async with running_process() as (client, planes):
        await client.create(PLANES, object_named("p") | {"spec": {"idleSeconds": 60}})
        await wait_for_phase(client, "Open")
        await planes.close_all()
        for entry in planes:
            entry.state = PlaneState.ASLEEP
        await change_spec(client, limits={"watches": 7})
        await client.create(PLANES, object_named("q") | {"spec": {}})
        await asyncio.sleep(2 * STATUS_INTERVAL)
        assert (await client.get(PLANES, "p"))["status"]["phase"] == "Open"
        assert "status" not in await client.get(PLANES, "q"), "it takes no planes"


@in_virtual_time
async def test_stopping_process_does_not_report_opening_planes_asleep() -> None:
    async with running_process() as (client, planes):
        planes.may_open.clear()
        await client.create(PLANES, object_named("p") | {"spec": {}})
        await wait_for(client, PLANES, "p", until=lambda plane: epoch_of(plane) == 1, timeout=AN_HOUR)
        await planes.close_all()
        planes.may_open.set()
        await asyncio.sleep(2 * STATUS_INTERVAL)
        assert "phase" not in (await client.get(PLANES, "p"))["status"]


@in_virtual_time
async def test_plane_taken_elsewhere_is_claimed_in_later_epoch() -> None:
    async with running_process() as (client, planes):
        await client.create(PLANES, object_named("p") | {"spec": {}})
        await wait_for_phase(client, "Open")
        [entry] = planes
        entry.state, entry.message, entry.later_epoch = PlaneState.FAILED, "taken", 7
        planes.report(entry)
        claimed = await wait_for(client, PLANES, "p", until=lambda plane: epoch_of(plane) == 8, timeout=AN_HOUR)
        assert claimed is not None
        assert entry.hold is not None
        await wait_for_phase(client, "Open")
        assert entry.hold.fence.epoch == 8


def epoch_of(plane: Object | None) -> int:
    epoch: int = value_at(plane, "status", "epoch", default=0)
    return epoch


@in_virtual_time
async def test_record_that_is_created_again_is_another_plane() -> None:
    async with running_process() as (client, planes):
        first = await client.create(PLANES, object_named("p") | {"spec": {}})
        await wait_for_phase(client, "Open")
        planes.may_open.clear()
        await change_spec(client, state="Suspended")
        await wait_for_phase(client, "Suspended")
        await change_spec(client, state="Open")
        await asyncio.sleep(1)  # virtual: the controller is opening the plane, and sees only the second record
        await client.patch(PLANES, object_named("p"), {"metadata": {"finalizers": None}})
        await client.delete(PLANES, object_named("p"))
        second = await client.create(PLANES, object_named("p") | {"spec": {}})
        await asyncio.sleep(1)
        planes.may_open.set()
        await wait_for_phase(client, "Open")
        assert plane_id(first) != plane_id(second)
        assert [each.id for each in planes] == [plane_id(second)]


@in_virtual_time
async def test_certificates_of_suspended_planes_are_checked_daily(monkeypatch: pytest.MonkeyPatch) -> None:
    start = running_clock().now()

    def condition(_: object, now: datetime) -> Object:
        is_expiring = now - start > timedelta(hours=12)
        return new_condition(CERTIFICATES_EXPIRING, is_expiring, "ExpiresSoon" if is_expiring else "Valid", "")

    monkeypatch.setattr(plane_controller, "certificates_expiring", condition)
    async with running_process() as (client, _):
        await client.create(PLANES, object_named("p") | {"spec": {"state": "Suspended"}})
        suspended = await wait_for_phase(client, "Suspended")
        assert not is_condition_true(suspended, CERTIFICATES_EXPIRING)
        expiring = lambda plane: is_condition_true(plane or {}, CERTIFICATES_EXPIRING)  # noqa: E731
        assert await wait_for(client, PLANES, "p", until=expiring, timeout=25 * AN_HOUR)
