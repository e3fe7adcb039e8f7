"""Connections to host clusters: their status, and clusters that are not those with the objects of the tenants."""

import asyncio

import pytest

from tapestry.apis import keys
from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.objects import Object, is_deleting, object_named, uid_of
from tapestry.kube.resources import NAMESPACES, SECRETS
from tapestry.tenants.host_clusters import HOSTS_NAMESPACE

from .tenant_world import (
    HOST,
    TenantProcess,
    TenantWorld,
    condition,
    has_condition,
    has_phase,
    message,
    new_host,
    new_world,
)

MINUTE = 60.0


async def replace_cluster(world: TenantWorld) -> str:
    """Let another cluster answer, and return its identity."""
    reference = object_named("kube-system")
    await world.host.delete(NAMESPACES, reference)
    found = await world.host.find(NAMESPACES, "kube-system")
    if found is not None:
        await world.host.replace(NAMESPACES, {**found, "spec": {"finalizers": []}}, subresource="finalize")
    return uid_of(await world.host.create(NAMESPACES, reference))


async def approve(world: TenantWorld, identity: str) -> None:
    patch = {"metadata": {"annotations": {keys.APPROVE_IDENTITY: identity}}}
    await world.management.patch(HOST_CLUSTERS, object_named(HOST), patch)


# -- status


@in_virtual_time
async def test_status_shows_the_host_cluster() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        host = await world.wait_for_host(lambda each: each["status"].get("tenants") == 1)
        assert condition(host, "Reachable") == ("True", "Reachable")
        assert host["status"]["identity"] == uid_of(await world.host.get(NAMESPACES, "kube-system"))
        assert host["status"]["nodes"] == 2


@in_virtual_time
async def test_silent_host_becomes_unreachable_and_reachable_again() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        world.down.cut()
        await world.wait_for_host(has_condition("Reachable", "False", "Unreachable"), timeout=60)
        world.down.restore()
        await world.wait_for_host(has_condition("Reachable", "True", "Reachable"), timeout=60)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"secretRef": {"name": "missing", "namespace": HOSTS_NAMESPACE}}, "SecretMissing"),
        ({"secretRef": {"name": HOST, "namespace": "default"}}, "SecretNamespaceNotAllowed"),
    ],
)
@in_virtual_time
async def test_host_without_usable_secret_says_so(spec: Object, reason: str) -> None:
    world = await new_world()
    await world.management.create(HOST_CLUSTERS, {**object_named("west"), "spec": spec})
    async with world.process():
        await world.wait_for_host(has_condition("Reachable", "False", reason), "west", timeout=60)


@in_virtual_time
async def test_host_connects_when_its_secret_appears() -> None:
    world = await new_world()
    await world.management.delete(SECRETS, object_named(HOST, HOSTS_NAMESPACE))
    async with world.process():
        await world.wait_for_host(has_condition("Reachable", "False", "SecretMissing"), timeout=60)
        await world.add_kubeconfig()
        await world.wait_for_host(has_condition("Reachable", "True", "Reachable"), timeout=60)


@in_virtual_time
async def test_deleted_host_stays_until_its_tenants_are_gone() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        await world.management.delete(HOST_CLUSTERS, object_named(HOST))
        await asyncio.sleep(10 * MINUTE)
        assert is_deleting(await world.management.get(HOST_CLUSTERS, HOST))
        assert condition(await world.binding(), "Ready") is not None


@in_virtual_time
async def test_only_one_process_writes_the_status() -> None:
    world = await new_world()
    async with world.process(TenantProcess(writes_status=lambda _: False)):
        await asyncio.sleep(MINUTE)
        assert world.up.writes("PATCH", "/hostclusters/") == []


# -- other clusters


@in_virtual_time
async def test_safety_rule_5_replaced_host_gets_no_writes_until_approved() -> None:
    """Another cluster answers behind the same kubeconfig: nothing is written to it before an operator agrees."""
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        await world.run_pod()
        identity = await replace_cluster(world)
        await world.wait_for_host(has_condition("Reachable", "False", "IdentityChanged"), timeout=10)
        assert f"{keys.APPROVE_IDENTITY}={identity}" in message(await world.host_cluster(), "Reachable")
        await world.wait_for_binding(has_condition("Ready", "False", "HostNotConnected"), timeout=10)
        writes = world.down.writes("/api")
        await world.add_pod("late")
        await world.delete_pod()
        await asyncio.sleep(10 * MINUTE)
        assert [each for each in world.down.writes("/api")[len(writes) :] if "selfsubject" not in each] == []
        assert (await world.host_cluster())["status"]["identity"] != identity

        await approve(world, identity)
        await world.wait_until_ready()
        await world.wait_for_twin(name="late", timeout=60)
        assert (await world.host_cluster())["status"]["identity"] == identity


@in_virtual_time
async def test_safety_rule_5_first_host_is_used_again_when_it_is_back() -> None:
    world = await new_world("blue")
    async with world.process() as process:
        await world.wait_until_ready()
        await world.run_pod()
        assert process.clusters is not None
        host = process.clusters.get(HOST)
        assert host is not None
        host.connection.observe_identity("another")
        await world.wait_for_binding(has_condition("Ready", "True", "Ready"), timeout=60)
        assert (await world.pod())["status"]["phase"] == "Running"
        await world.run_pod("more")
        await world.wait_for_pod(has_phase("Running"), "more")


@in_virtual_time
async def test_safety_rule_5_kubeconfig_of_other_cluster_is_refused() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        await world.run_pod()
        await replace_cluster(world)
        await world.set_kubeconfig(server="https://127.0.0.1:6444")
        await world.wait_for_host(has_condition("Reachable", "False", "IdentityChanged"), timeout=10)


@in_virtual_time
async def test_safety_rule_5_second_record_of_a_host_is_rejected() -> None:
    world = await new_world("blue")
    async with world.process():
        await world.wait_until_ready()
        await world.add_kubeconfig("west")
        await world.management.create(HOST_CLUSTERS, new_host("west"))
        await world.wait_for_host(has_condition("Reachable", "False", "DuplicateCluster"), "west", timeout=60)
        assert condition(await world.host_cluster(), "Reachable") == ("True", "Reachable")
