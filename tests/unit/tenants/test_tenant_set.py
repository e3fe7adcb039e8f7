"""The set of tenants of a process: which may run, and waiting until one does not."""

import asyncio

from tapestry.apis.clusterbindings import TenantSync
from tapestry.client.access import Access
from tapestry.controller.testing import in_virtual_time
from tapestry.tenants.host_connection import HostConnection
from tapestry.tenants.network_rules import Destinations
from tapestry.tenants.tenant_binding import TenantAddresses
from tapestry.tenants.tenant_set import Tenant, TenantSet


def new_tenant(binding_uid: str = "uid-1", plane_id: str = "blue", **fields: str) -> Tenant:
    values = {"namespace": "tapestry-blue", "host_name": "east", "host_identity": "host-uid", **fields}
    return Tenant(
        plane_id=plane_id,
        binding_name="blue",
        binding_uid=binding_uid,
        schedules_on_host=True,
        sync=TenantSync(),
        host=HostConnection("east"),
        addresses=TenantAddresses(),
        destinations=Destinations(),
        priority_classes=(),
        service_account="",
        access=Access("https://east.example"),
        **values,
    )


@in_virtual_time
async def test_only_a_changed_tenant_gets_a_new_syncer() -> None:
    tenants = TenantSet()
    tenants.put(new_tenant())
    slot = tenants.slot("blue")
    assert slot.changed.is_set()
    slot.changed.clear()
    tenants.put(new_tenant())  # another connection and access with the same identity
    assert not slot.changed.is_set()
    tenants.put(new_tenant(namespace="tapestry-other"))
    assert slot.changed.is_set()
    assert tenants.get("blue") == new_tenant(namespace="tapestry-other")


@in_virtual_time
async def test_removal_waits_for_the_end_of_the_syncer() -> None:
    tenants = TenantSet()
    tenants.put(new_tenant())
    slot = tenants.slot("blue")
    slot.stopped.clear()
    assert tenants.is_running("blue")
    async with asyncio.TaskGroup() as group:
        removal = group.create_task(tenants.remove("blue", "uid-1"))
        await asyncio.sleep(60)
        assert not removal.done()
        assert (tenants.get("blue"), slot.changed.is_set()) == (None, True)
        slot.stopped.set()
    await removal
    assert not tenants.is_running("blue")


@in_virtual_time
async def test_removal_of_another_binding_changes_nothing() -> None:
    tenants = TenantSet()
    tenants.put(new_tenant("uid-2"))
    tenants.slot("blue").stopped.clear()
    await tenants.remove("blue", "uid-1")  # an older binding of the same plane
    await tenants.remove("unknown", "uid-2")
    assert tenants.get("blue") == new_tenant("uid-2")


@in_virtual_time
async def test_plane_is_forgotten_only_when_nothing_runs() -> None:
    tenants = TenantSet()
    tenants.put(new_tenant())
    tenants.slot("blue").stopped.clear()
    tenants.forget("blue")
    assert tenants.get("blue") is not None
    tenants.slot("blue").stopped.set()
    tenants.forget("blue")
    assert tenants.get("blue") is None
    tenants.forget("blue")


@in_virtual_time
async def test_report_is_that_of_the_running_syncer() -> None:
    tenants, notified = TenantSet(), []
    tenants.on_report(notified.append)
    assert tenants.report("blue") is None
    tenants.slot("blue").report = lambda: {"nodes": 3}
    assert tenants.report("blue") == {"nodes": 3}
    tenants.reported("blue")
    assert notified == ["blue"]
