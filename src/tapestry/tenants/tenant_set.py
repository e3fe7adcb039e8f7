"""The tenants of a process, by plane: which may run now, and which do.

The controller of tenants prepares their host clusters and adds them here. The work beside each open plane waits for the
tenant of its plane, and runs its syncer until the tenant changes.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tapestry.apis.clusterbindings import TenantSync
from tapestry.client.access import Access
from tapestry.kube.objects import Object
from tapestry.tenants.host_connection import HostConnection
from tapestry.tenants.network_rules import Destinations
from tapestry.tenants.tenant_binding import TenantAddresses


@dataclass(frozen=True)
class Tenant:
    """A tenant whose namespace in the host cluster is prepared. A syncer runs for it until one of these changes."""

    plane_id: str
    binding_name: str
    binding_uid: str
    schedules_on_host: bool
    sync: TenantSync
    host_name: str
    host: HostConnection = field(compare=False)
    host_identity: str
    """UID of the host cluster."""
    namespace: str
    addresses: TenantAddresses
    destinations: Destinations
    priority_classes: tuple[str, ...]
    """Classes of the host cluster for the priorities of its pods; empty if all have the same."""
    service_account: str
    """Account of its pods in the host cluster; empty for `default`."""
    access: Access = field(compare=False, repr=False)
    """Access to the host cluster with the account of the tenant."""


@dataclass(eq=False)
class TenantSlot:
    """The place of one plane's tenant."""

    tenant: Tenant | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no syncer runs."""
    report: Callable[[], Object] | None = None
    """Return the status fields of the binding that the running syncer knows."""
    sync_lag: Callable[[], float] | None = None
    """Return the age of the oldest change in the plane that the running syncer has not carried to the host cluster."""


class TenantSet:
    """The tenants that may run, by the id of their plane."""

    def __init__(self) -> None:
        self._slots: dict[str, TenantSlot] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._run_listeners: list[Callable[[str], None]] = []

    def on_run(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the id of a plane when the syncer of its tenant starts or has stopped."""
        self._run_listeners.append(listener)

    def started(self, plane_id: str) -> None:
        """Tell that the syncer of a plane's tenant runs from now on."""
        self.slot(plane_id).stopped.clear()
        self._report_run(plane_id)

    def stopped(self, plane_id: str) -> None:
        """Tell that no syncer runs for a plane any more."""
        self.slot(plane_id).stopped.set()
        self._report_run(plane_id)

    def _report_run(self, plane_id: str) -> None:
        for listener in self._run_listeners:
            listener(plane_id)

    def on_report(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the id of a plane when the report of its tenant may have changed."""
        self._listeners.append(listener)

    def reported(self, plane_id: str) -> None:
        """Tell that the report of a tenant may have changed."""
        for listener in self._listeners:
            listener(plane_id)

    def report(self, plane_id: str) -> Object | None:
        """Return the status fields of a binding that its running syncer knows; None if none runs."""
        slot = self._slots.get(plane_id)
        return slot.report() if slot is not None and slot.report is not None else None

    def sync_lags(self) -> list[tuple[str, str, float]]:
        """Return the id of each plane with a running syncer, its host cluster, and the lag of the syncer in seconds."""
        slots = self._slots.copy().items()
        return [(id, each.tenant.host_name, each.sync_lag()) for id, each in slots if each.tenant and each.sync_lag]

    def slot(self, plane_id: str) -> TenantSlot:
        slot = self._slots.get(plane_id)
        if slot is None:
            slot = self._slots[plane_id] = TenantSlot()
            slot.stopped.set()
        return slot

    def get(self, plane_id: str) -> Tenant | None:
        slot = self._slots.get(plane_id)
        return slot.tenant if slot is not None else None

    def is_running(self, plane_id: str) -> bool:
        """Return whether the syncer of the plane's tenant runs in this process."""
        slot = self._slots.get(plane_id)
        return slot is not None and not slot.stopped.is_set()

    def put(self, tenant: Tenant) -> None:
        """Let the syncer of a tenant run, when its plane is open. A changed tenant gets a new syncer."""
        slot = self.slot(tenant.plane_id)
        if slot.tenant != tenant:
            slot.tenant = tenant
            slot.changed.set()

    async def remove(self, plane_id: str, binding_uid: str) -> None:
        """Let no syncer run for the tenant of this binding, and wait until none does."""
        slot = self._slots.get(plane_id)
        if slot is None or slot.tenant is None or slot.tenant.binding_uid != binding_uid:
            return
        slot.tenant = None
        slot.changed.set()
        await slot.stopped.wait()

    def forget(self, plane_id: str) -> None:
        """Forget a plane that this process does not hold any more."""
        slot = self._slots.get(plane_id)
        if slot is not None and slot.stopped.is_set():
            del self._slots[plane_id]
