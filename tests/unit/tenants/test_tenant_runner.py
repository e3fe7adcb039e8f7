"""Syncers of tenants beside their planes: one at a time, whichever process has the plane."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tapestry.apis.planes import PLANES, plane_id
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.objects import is_deleting, uid_of
from tapestry.kube.resources import PODS

from ..syncer.world import Link
from .sync.twin_world import SyncerLink
from .tenant_world import Plane, TenantProcess, TenantWorld, has_phase, is_on, new_world

MINUTE = 60.0
PLACEMENTS = pytest.mark.parametrize("placement", ["host", "virtual"])


@dataclass
class Owner:
    """A process of its own that may have the plane, and its connections."""

    process: TenantProcess
    up: SyncerLink
    down: Link
    holds: list[bool] = field(default_factory=lambda: [True])
    """Whether no other process can have taken the plane."""

    def writes(self) -> list[str]:
        """Return the writes to the host cluster and to the plane, without those that only ask."""
        return [each for each in (*self.down.writes(), *self.up.writes()) if "reviews" not in each]

    def has_plane(self, has: bool, plane: str) -> None:
        self.process.is_responsible = lambda _: has
        self.process.recheck(plane)


async def owner(world: TenantWorld, *, has_plane: bool) -> Owner:
    id = plane_id(await world.management.get(PLANES, "blue"))
    up, down = SyncerLink(world.plane_links["blue"].api), Link(world.down.api)
    holds = [True]
    fence = SimpleNamespace(is_valid=lambda: holds[0])
    plane = Plane(id, up.connect, hold=SimpleNamespace(fence=fence))
    process = TenantProcess([plane], down=down, is_responsible=lambda _: has_plane)
    return Owner(process, up, down, holds)


async def run_pod(world: TenantWorld, name: str, placement: str) -> None:
    node: dict[str, Any] = {"nodeName": await world.wait_for_node("n1")} if placement == "virtual" else {}
    await world.add_pod(name, **node)
    await world.wait_for_twin(name=name)
    await world.place("n1", name)
    await world.start(name)
    await world.wait_for_pod(has_phase("Running"), name)


@PLACEMENTS
@in_virtual_time
async def test_safety_rule_4_tenant_moves_with_its_pods(placement: str) -> None:
    """The plane goes to another process while pods run: they go on, and only that process writes from then on."""
    world = await new_world("blue", placement=placement)
    first, second = await owner(world, has_plane=True), await owner(world, has_plane=False)
    plane = plane_id(await world.management.get(PLANES, "blue"))
    async with world.process(first.process), world.process(second.process):
        await world.wait_until_ready()
        await run_pod(world, "stays", placement)
        before = uid_of(await world.twin("stays"))
        assert second.writes() == []

        first.has_plane(False, plane)
        await first.process.tenants.slot(plane).stopped.wait()
        written = first.writes()
        second.has_plane(True, plane)
        await run_pod(world, "comes", placement)
        await world.delete_pod("stays", grace=0)
        await world.wait_for_twin(is_deleting, "stays", timeout=30)
        await asyncio.sleep(10 * MINUTE)
        assert first.writes() == written
        assert uid_of(await world.twin("stays")) == before
        assert len(await world.twins()) == 2


@PLACEMENTS
@in_virtual_time
async def test_safety_rule_4_process_that_lost_its_plane_writes_nothing_below(placement: str) -> None:
    """Another process may have taken the plane, and the first one has not noticed: its writes are stopped before."""
    world = await new_world("blue", placement=placement)
    first, second = await owner(world, has_plane=True), await owner(world, has_plane=False)
    plane = plane_id(await world.management.get(PLANES, "blue"))
    async with world.process(first.process), world.process(second.process):
        await world.wait_until_ready()
        await run_pod(world, "stays", placement)
        first.holds[0] = False
        written = first.down.writes("/pods")
        node = {"nodeName": await world.wait_for_node("n1")} if placement == "virtual" else {}
        await world.add_pod("waits", **node)
        await world.delete_pod("stays", grace=0)
        await asyncio.sleep(MINUTE)
        assert first.down.writes("/pods") == written
        assert [is_deleting(each) for each in await world.twins()] == [False]

        second.has_plane(True, plane)
        await world.wait_for_twin(name="waits", timeout=60)
        await world.wait_for_twin(is_deleting, "stays", timeout=60)
        await asyncio.sleep(MINUTE)
        assert first.down.writes("/pods") == written
        creates = [each for each in second.down.writes("POST", "/pods") if each.endswith("/pods")]
        assert len(creates) == 1


@in_virtual_time
async def test_syncer_stops_before_the_tenant_counts_as_removed() -> None:
    world = await new_world("blue")
    first = await owner(world, has_plane=True)
    plane = plane_id(await world.management.get(PLANES, "blue"))
    async with world.process(first.process):
        await world.wait_until_ready()
        assert first.process.tenants.is_running(plane)
        await first.process.tenants.remove(plane, uid_of(await world.binding()))
        assert not first.process.tenants.is_running(plane)
        assert first.process.tenants.report(plane) is None


@in_virtual_time
async def test_failing_syncer_starts_again_and_disturbs_no_other() -> None:
    world = await new_world("blue", "green")
    async with world.process() as process:
        await world.wait_until_ready("blue")
        await world.wait_until_ready("green")
        failing = next(each for each in process.managers if getattr(each.config, "binding", "") == "green")
        failing.stop()
        await world.run_pod(plane="blue")
        await world.run_pod(plane="green")


@in_virtual_time
async def test_pods_wait_for_their_syncer() -> None:
    world = await new_world("blue")
    async with world.process(TenantProcess(is_responsible=lambda _: False)) as process:
        await world.add_pod()
        await asyncio.sleep(MINUTE)
        assert await world.host.list(PODS) == []
        process.is_responsible = lambda _: True
        process.recheck(plane_id(await world.management.get(PLANES, "blue")))
        await world.wait_until_ready()
        await world.wait_for_twin(timeout=60)
        await world.place("n2")
        await world.wait_for_pod(is_on("n2"), timeout=60)
