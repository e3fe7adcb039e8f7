"""The controller of planes: records lead to open, suspended and deleted planes, whatever call fails."""

from collections.abc import Awaitable, Callable

from tapestry.apis.planes import PLANES
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.config import ManagerConfig
from tapestry.controller.testing import Scenario, perturb, running_clock
from tapestry.kube.objects import object_named
from tapestry.planes.processes import Processes, process_lease

from . import recorded_planes
from .recorded_planes import AN_HOUR, RecordedPlanes, wait_for_phase

PROCESS = "here"
WITH_LEASE = ManagerConfig(leader_election=process_lease(PROCESS))


def installer(failures: int = 0) -> Callable[[Manager], None]:
    def install(manager: Manager) -> None:
        processes = Processes(PROCESS, manager.elector, running_clock().monotonic)
        recorded_planes.install(manager, processes, RecordedPlanes(failures=failures))

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


async def two_planes(client: Client) -> None:
    for name in ("p", "q"):
        await client.create(PLANES, object_named(name) | {"spec": {}})
    for name in ("p", "q"):
        await wait_for_phase(client, "Open", name)
    await delete(client, "p")
    await delete(client, "q")


SCENARIOS: dict[str, tuple[Callable[[Client], Awaitable[None]], int, ManagerConfig]] = {
    "plane opens, is suspended, resumed and deleted": (open_suspend_resume_delete, 0, ManagerConfig()),
    "plane of a process with a Lease": (open_suspend_resume_delete, 0, WITH_LEASE),
    "plane is released and taken back": (release_and_take_back, 0, ManagerConfig()),
    "plane fails to open twice": (open_suspend_resume_delete, 2, ManagerConfig()),
    "two planes": (two_planes, 0, ManagerConfig()),
}


def is_no_heartbeat(call: str) -> bool:
    return "leases" not in call


def test_planes_reach_their_state_whatever_call_fails(record_property: Callable[[str, object], None]) -> None:
    replays = 0
    for name, (world, failures, config) in SCENARIOS.items():
        scenario = Scenario(
            name, [PLANES], installer(failures), world, config, counts=lambda call: "leases" not in call
        )
        report = perturb(scenario)
        report.check()
        replays += report.cases
    record_property("figure", f"perturbed planes: {replays} replays of {len(SCENARIOS)} scenarios")
