"""Liveness of syncers of tenants: which process is responsible for one, and whether it runs in a live process."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tapestry.apis.planes import plane_id
from tapestry.controller import ObjectCache
from tapestry.kube.conditions import find_condition, is_condition_true
from tapestry.kube.objects import Object, value_at
from tapestry.planes.plane_set import PlaneSet, PlaneState
from tapestry.planes.processes import Processes
from tapestry.tenants.tenant_controller import READY, plane_of
from tapestry.tenants.tenant_set import TenantSet

CHECK_SECONDS = 1.0
"""Seconds between two checks which processes are live: no event tells that one is dead."""
UNREACHABLE = "PhysicalClusterUnreachable"


@dataclass(frozen=True)
class SyncerLiveness:
    """Observation of the syncers of all tenants by this process."""

    planes: ObjectCache
    """With the index `id`."""
    plane_set: PlaneSet
    tenants: TenantSet
    processes: Processes

    def is_responsible(self, id: str) -> bool:
        """Return whether this process takes care of the tenant of a plane, by the id of the plane.

        It holds the plane, and no other process may have taken it; or it would take it if the plane existed.
        """
        if (entry := self.plane_set.get(id)) is not None:
            return entry.hold is None or entry.hold.fence.is_valid()
        exists = any(True for _ in self.planes.store.by("id", id))
        return not exists and self.processes.is_candidate(id)

    def is_syncer_live(self, binding: Object) -> bool:
        """Return whether a syncer that may write to the host cluster runs for a tenant."""
        id = plane_of(binding)
        if self.tenants.is_running(id):
            return self.is_responsible(id)
        plane = next(iter(self.planes.store.by("id", id)), None)
        holder, phase = plane_state(plane)
        is_elsewhere = holder != self.processes.own_name and self.processes.is_live(holder)
        return is_elsewhere and phase == PlaneState.OPEN and is_connected(binding)

    async def watch_processes(self, recheck: Callable[[], None]) -> None:
        """Call `recheck` when a process appears or is dead, or this one may not write any more, until cancelled."""
        live = self.processes.live_names()
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            before, live = live, self.processes.live_names()
            if live != before:
                recheck()


def plane_state(plane: Object | None) -> tuple[str, str]:
    """Return the process that holds a plane, and the phase of the plane."""
    return value_at(plane, "status", "holder", default=""), value_at(plane, "status", "phase", default="")


def planes_by_id(plane: Object) -> list[str]:
    return [plane_id(plane)]


def is_connected(binding: Object) -> bool:
    """Return whether the process of a tenant's plane reports that it reaches the host cluster."""
    conditions = value_at(binding, "status", "conditions")
    leasing = find_condition(conditions, "Leasing") or {}
    return is_condition_true(binding, READY) and leasing.get("reason") != UNREACHABLE
