"""Work beside each open plane: the syncer of its tenant, again whenever the tenant changes."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from tapestry.controller.manager import Manager
from tapestry.planes.open_plane import OpenPlane
from tapestry.planes.plane_set import PlaneEntry
from tapestry.process.logs import logger
from tapestry.tenants.tenant_set import Tenant, TenantSet, TenantSlot
from tapestry.tenants.tenant_syncer import (
    ManagementCaches,
    TenantSyncer,
    build_tenant_syncer,
    close_tenant_syncer,
)

log = logger(__name__)

MIN_BACKOFF, MAX_BACKOFF = 1.0, 60.0
"""Seconds before a syncer that failed starts again."""

Wire = Callable[[TenantSyncer, OpenPlane, TenantSlot], None]
"""Register the controllers of a syncer with its manager, and its report with the slot of the tenant."""


@dataclass(frozen=True)
class TenantRunner:
    """Run the syncers of the tenants in `tenants`, each beside its open plane."""

    tenants: TenantSet
    management: ManagementCaches
    wire: Wire
    now: Callable[[], datetime]

    async def run_beside(self, entry: PlaneEntry, plane: OpenPlane) -> None:
        """Run the syncer of a plane's tenant, if it has one, until cancelled. This is a task beside an open plane."""
        slot, backoff = self.tenants.slot(entry.id), MIN_BACKOFF
        while True:
            slot.changed.clear()
            tenant = slot.tenant
            if tenant is None:
                await slot.changed.wait()
                continue
            self.tenants.started(entry.id)
            try:
                await self._run(tenant, entry, plane, slot)
                backoff = MIN_BACKOFF
            except Exception:  # an error of a tenant affects no other work of the process
                log.exception("syncer of a tenant failed", plane=entry.id, binding=tenant.binding_name, pause=backoff)
                with suppress(TimeoutError):
                    async with asyncio.timeout(backoff):
                        await slot.changed.wait()
                backoff = min(backoff * 2, MAX_BACKOFF)
            finally:
                self.tenants.stopped(entry.id)

    async def _run(self, tenant: Tenant, entry: PlaneEntry, plane: OpenPlane, slot: TenantSlot) -> None:
        """Run one syncer until the tenant changes."""
        fence = entry.hold.fence if entry.hold is not None else None
        running = build_tenant_syncer(tenant, plane.syncer_transport, self.management, fence, self.now)
        manager = running.syncer.manager
        try:
            await running.syncer.transports[1].switch_to(tenant.access)
            manager.register("syncer", lambda _: self.wire(running, plane, slot))
            log.info("syncer of a tenant started", plane=entry.id, binding=tenant.binding_name, host=tenant.host_name)
            await run_until(manager, slot.changed)
        finally:
            slot.report = slot.sync_lag = None
            await close_tenant_syncer(running, self.management)
            log.info("syncer of a tenant stopped", plane=entry.id, binding=tenant.binding_name)


async def run_until(manager: Manager, changed: asyncio.Event) -> None:
    """Run a manager until `changed` is set, or until cancelled. Reconciles in flight finish first."""
    async with asyncio.TaskGroup() as group:
        running = group.create_task(manager.run(), name="tenant-syncer")
        stopping = group.create_task(changed.wait(), name="tenant-changed")
        try:
            await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            manager.stop()
            stopping.cancel()
            await asyncio.wait([running])
