"""Tenants under faults at every call: the controllers of hosts and of tenants, and the reclaim without a syncer."""

import asyncio
from collections.abc import Callable

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.apis.policies import POLICIES
from tapestry.controller.testing import perturb
from tapestry.kube.objects import is_deleting, object_named, uid_of
from tapestry.kube.resources import (
    LIMIT_RANGES,
    NAMESPACES,
    NETWORK_POLICIES,
    NODES,
    PODS,
    RESOURCE_QUOTAS,
    ROLE_BINDINGS,
    SECRETS,
    SERVICE_ACCOUNTS,
)

from .tenant_world import HOST, Story, Tenants, has_condition, has_phase, is_about, tenant_scenario

pytestmark = pytest.mark.timeout(600)  # hundreds of replays
SETUP = (NAMESPACES, LIMIT_RANGES, NETWORK_POLICIES, RESOURCE_QUOTAS, ROLE_BINDINGS, SECRETS, SERVICE_ACCOUNTS)
LONG_ENOUGH = 60.0
"""Seconds after which the syncer has written everything, also after a fault."""
RECLAIM_NOW = {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}


# -- controllers of hosts and of tenants


async def tenant_gets_another_quota(world: Tenants) -> None:
    await world.set_binding(quota={"pods": "5"})
    await world.wait_for_binding(lambda each: each["status"]["observedGeneration"] == each["metadata"]["generation"])


async def host_is_deleted_after_its_tenant(world: Tenants) -> None:
    await asyncio.sleep(LONG_ENOUGH)
    await world.management.delete(HOST_CLUSTERS, object_named(HOST))
    await world.management.delete(CLUSTER_BINDINGS, object_named("blue"))
    await world.finalize_namespace()
    await world.wait_until_binding_is_gone()
    await world.wait_until_host_is_gone()


async def virtual_nodes_go_with_their_tenant(world: Tenants) -> None:
    await world.run_pod()
    await asyncio.sleep(LONG_ENOUGH)
    await world.management.delete(CLUSTER_BINDINGS, object_named("blue"))
    await world.finalize_namespace()
    await world.wait_until_binding_is_gone()


# -- planes without a syncer


async def kill_switch_ends_pods_of_suspended_plane(world: Tenants) -> None:
    await world.run_pod(terminationGracePeriodSeconds=3600)
    await asyncio.sleep(LONG_ENOUGH)
    await world.suspend_plane()
    await world.host.patch(NAMESPACES, object_named(await world.namespace()), RECLAIM_NOW)
    await world.wait_for_twin(is_deleting)


async def policy_of_suspended_plane_is_deleted(world: Tenants) -> None:
    await world.set_policy(forceReclaim=True, gracefulReclaimPeriodSeconds=60)
    await world.run_pod()
    await asyncio.sleep(LONG_ENOUGH)
    await world.suspend_plane()
    await world.management.delete(POLICIES, object_named(HOST))
    await world.wait_for_twin(is_deleting)


async def waiting_pod_outlasts_a_suspended_plane(world: Tenants) -> None:
    await world.add_pod()
    first = uid_of(await world.wait_for_twin())
    await world.suspend_plane()
    await world.wait_until_twin_is_gone()
    await world.suspend_plane(state="Open")
    await world.wait_for_twin(lambda twin: uid_of(twin) != first)
    await world.place("n1")
    await world.start()
    await world.wait_for_pod(has_phase("Running"))


# -- drained tenants


async def pods_run_again_after_a_drain(world: Tenants) -> None:
    await world.run_pod()
    await world.set_binding(workloads="Drained", drainTimeoutSeconds=5)
    await world.wait_for_twin(is_deleting)
    await world.stop()
    await world.wait_for_binding(has_condition("Drained", "True", "Drained"))
    await world.set_binding(workloads="Run")
    await world.wait_for_twin(lambda twin: not is_deleting(twin))
    await world.place("n2")
    await world.start()
    await world.wait_for_pod(has_phase("Running"))


STORIES = {
    tenant_gets_another_quota: is_about(*SETUP, CLUSTER_BINDINGS, HOST_CLUSTERS),
    host_is_deleted_after_its_tenant: is_about(*SETUP, CLUSTER_BINDINGS, HOST_CLUSTERS),
    virtual_nodes_go_with_their_tenant: is_about(NODES, PODS),
    kill_switch_ends_pods_of_suspended_plane: is_about(PODS),
    policy_of_suspended_plane_is_deleted: is_about(PODS),
    waiting_pod_outlasts_a_suspended_plane: is_about(PODS),
    pods_run_again_after_a_drain: is_about(PODS),
}


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_tenants_reach_same_state_despite_faults(story: Story, record_property: Callable[[str, object], None]) -> None:
    scenario = tenant_scenario(story, STORIES[story])
    report = perturb(scenario)
    record_property("figure", f"perturbed tenants: {report.cases} replays: {scenario.name}")
    report.check()
