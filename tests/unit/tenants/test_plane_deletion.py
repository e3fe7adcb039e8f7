"""Deletion of planes that have tenants."""

import asyncio

import pytest

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.planes import PLANES, plane_id
from tapestry.client.client import Client
from tapestry.controller.testing import InProcessApi, in_virtual_time, running_clock
from tapestry.kube.objects import Object, object_named
from tapestry.tenants.plane_deletion import is_too_late, obstacle_to_deletion

from .tenant_world import condition, message, new_world


@in_virtual_time
async def test_tenant_is_an_obstacle_until_it_is_gone() -> None:
    world = await new_world("blue", "green")
    id = plane_id(await world.management.get(PLANES, "blue"))
    found = await obstacle_to_deletion(world.management, id)
    assert found == "its pods run in HostCluster east; `tapestry tenant delete blue` removes them first"
    patch = {"metadata": {"finalizers": ["example.com/hold"]}}
    binding = await world.management.patch(CLUSTER_BINDINGS, object_named("blue"), patch)
    await world.management.delete(CLUSTER_BINDINGS, binding)
    assert "blue is being deleted first" in await obstacle_to_deletion(world.management, id)
    await world.management.patch(CLUSTER_BINDINGS, object_named("blue"), {"metadata": {"finalizers": []}})
    assert await obstacle_to_deletion(world.management, id) == ""


@in_virtual_time
async def test_management_api_without_bindings_has_no_tenants() -> None:
    api = InProcessApi([PLANES], now=running_clock().now)
    assert await obstacle_to_deletion(Client(api.connect()), "blue") == ""


@pytest.mark.parametrize(
    ("created", "deleted", "expected"),
    [("10:00:01", "10:00:00", True), ("10:00:00", "10:00:00", False), ("09:00:00", "10:00:00", False)],
)
def test_only_later_bindings_are_too_late(created: str, deleted: str, expected: bool) -> None:
    binding: Object = {"metadata": {"creationTimestamp": f"2026-01-01T{created}Z"}}
    plane: Object = {"metadata": {"deletionTimestamp": f"2026-01-01T{deleted}Z"}}
    assert is_too_late(binding, plane) is expected
    assert not is_too_late(binding, {"metadata": {}})


@in_virtual_time
async def test_deleted_plane_gets_no_tenant() -> None:
    world = await new_world()
    await world.add_plane("blue")
    patch = {"metadata": {"finalizers": ["example.com/hold"]}}
    plane = await world.management.patch(PLANES, object_named("blue"), patch)
    await world.management.delete(PLANES, plane)
    await asyncio.sleep(2)
    await world.add_binding()
    async with world.process():
        assert condition(await world.binding(), "Ready") == ("False", "PlaneDeleting")
        assert message(await world.binding(), "Ready") == "spec.virtualCluster: plane blue is being deleted"
