"""Whether the syncer of a tenant runs, as one of several processes observes it."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tapestry.apis.planes import PLANES, plane_id
from tapestry.controller import ObjectCache
from tapestry.controller.store import Store
from tapestry.controller.testing import in_virtual_time, running_clock
from tapestry.kube.conditions import new_condition
from tapestry.kube.objects import Object, object_named
from tapestry.planes.processes import NAMED_ONLY, Processes
from tapestry.tenants.syncer_liveness import SyncerLiveness, planes_by_id
from tapestry.tenants.tenant_set import TenantSet

PLANE = {"metadata": {"name": "blue", "uid": "11111111-2222-4333-8444-555555555555"}}
ID = plane_id(PLANE)
LEASING = new_condition("Leasing", True, "Leasing")
UNREACHABLE = new_condition("Leasing", False, "PhysicalClusterUnreachable")


def binding(ready: bool = True, leasing: Object = LEASING) -> Object:
    conditions = [new_condition("Ready", ready, "Ready"), leasing]
    return {**object_named("blue"), "spec": {"virtualCluster": ID}, "status": {"conditions": conditions}}


def lease(process: str, version: str = "1", end: str = "") -> Object:
    metadata = {"name": f"planes-{process}", "resourceVersion": version}
    return {"metadata": metadata, "spec": {"holderIdentity": f"{process}_id{end}", "leaseDurationSeconds": 15}}


@dataclass
class Observer:
    """A process that observes the others."""

    tenants: TenantSet = field(default_factory=TenantSet)
    holds: bool = True
    entries: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        elector: Any = SimpleNamespace(is_leading=True)
        self.elector = elector
        self.processes = Processes("here", elector, running_clock().monotonic)
        self.planes: ObjectCache = ObjectCache(PLANES, Store({"id": planes_by_id}), asyncio.Event())
        plane_set: Any = self.entries
        self.liveness = SyncerLiveness(self.planes, plane_set, self.tenants, self.processes)

    def plane_is(self, holder: str, phase: str) -> None:
        self.planes.store.put("blue", {**PLANE, "status": {"holder": holder, "phase": phase}})

    def hold_here(self) -> None:
        fence = SimpleNamespace(is_valid=lambda: self.holds)
        self.entries[ID] = SimpleNamespace(hold=SimpleNamespace(fence=fence))


@in_virtual_time
async def test_running_syncer_is_live_while_its_process_may_write() -> None:
    observer = Observer()
    observer.plane_is("here", "Open")
    observer.hold_here()
    assert not observer.liveness.is_syncer_live(binding())
    observer.tenants.started(ID)
    assert observer.liveness.is_syncer_live(binding())
    observer.holds = False
    assert not observer.liveness.is_syncer_live(binding())
    observer.holds = True
    observer.tenants.stopped(ID)
    assert not observer.liveness.is_syncer_live(binding())


@pytest.mark.parametrize("end", ["", NAMED_ONLY], ids=["any plane", "named planes"])
@in_virtual_time
async def test_live_process_runs_syncers_of_its_open_planes(end: str) -> None:
    observer = Observer()
    observer.plane_is("there", "Open")
    assert not observer.liveness.is_syncer_live(binding()), "the process was never observed"
    observer.processes.observe(None, lease("there", end=end))
    assert observer.liveness.is_syncer_live(binding())
    await asyncio.sleep(14)
    observer.processes.observe(lease("there", end=end), lease("there", "2", end))
    await asyncio.sleep(14)
    assert observer.liveness.is_syncer_live(binding())
    await asyncio.sleep(2)
    assert not observer.liveness.is_syncer_live(binding())


@pytest.mark.parametrize("phase", ["Opening", "Asleep", "Suspended", "Failed", "Released"])
@in_virtual_time
async def test_closed_plane_has_no_live_syncer(phase: str) -> None:
    observer = Observer()
    observer.processes.observe(None, lease("there"))
    observer.plane_is("there", phase)
    assert not observer.liveness.is_syncer_live(binding())


@pytest.mark.parametrize("given", [binding(ready=False), binding(leasing=UNREACHABLE)], ids=["not ready", "partition"])
@in_virtual_time
async def test_process_without_host_has_no_live_syncer(given: Object) -> None:
    observer = Observer()
    observer.processes.observe(None, lease("there"))
    observer.plane_is("there", "Open")
    assert not observer.liveness.is_syncer_live(given)


@in_virtual_time
async def test_missing_plane_has_no_live_syncer() -> None:
    assert not Observer().liveness.is_syncer_live(binding())


@in_virtual_time
async def test_death_of_a_process_is_reported_once() -> None:
    observer, reports = Observer(), []
    observer.processes.observe(None, lease("there"))
    task = asyncio.create_task(observer.liveness.watch_processes(lambda: reports.append(running_clock().monotonic())))
    await asyncio.sleep(60)
    assert len(reports) == 1
    assert 15 <= reports[0] <= 17
    observer.elector.is_leading = False
    await asyncio.sleep(60)
    assert len(reports) == 2
    task.cancel()
