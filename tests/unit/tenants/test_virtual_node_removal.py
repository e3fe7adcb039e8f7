"""What is left in a plane of pods and nodes when its tenant is removed."""

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.objects import is_deleting, object_named, uid_of

from .tenant_world import TenantWorld, has_phase, new_world

MINUTE = 60.0


async def remove_tenant(world: TenantWorld) -> None:
    await world.management.delete(CLUSTER_BINDINGS, object_named("blue"))
    await world.finalize_namespace()
    await world.wait_until_binding_is_gone()


@in_virtual_time
async def test_deleting_pod_ends_with_the_tenant() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        await world.run_pod()
        await world.delete_pod()
        await world.wait_for_twin(is_deleting)
        await remove_tenant(world)
        await world.wait_until_pod_is_gone()


@in_virtual_time
async def test_pods_run_on_the_host_of_another_tenant() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        await world.run_pod()
        before = uid_of(await world.pod())
        await remove_tenant(world)
        await world.add_binding()
        await world.wait_until_ready()
        await world.wait_for_twin(timeout=10 * MINUTE)
        await world.place("n1")
        await world.start()
        assert uid_of(await world.wait_for_pod(has_phase("Running"), timeout=MINUTE)) == before
