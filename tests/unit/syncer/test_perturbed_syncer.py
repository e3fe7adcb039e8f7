"""The syncer under faults at every call to either cluster: the final state is always the same."""

import asyncio
from collections.abc import Callable

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.policies import POLICIES
from tapestry.client.client import Client
from tapestry.client.transport import Transport
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.testing import Scenario, perturb, running_clock
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object, is_deleting, object_named, value_at
from tapestry.kube.pods import taint_named
from tapestry.kube.resources import NODES, PODS
from tapestry.syncer.app import build_syncer
from tapestry.syncer.config import SyncerConfig, SyncerLeaderElection

from .world import A_DAY, SERVED, Clusters

pytestmark = pytest.mark.timeout(600)  # hundreds of replays
CONFIG = SyncerConfig(
    binding="east", name="east", silence_seconds=3600, leader_election=SyncerLeaderElection(enabled=False)
)


async def setup(manager: Manager, physical: Transport) -> None:
    await wait_for(manager.reads, CLUSTER_BINDINGS, "east", until=bool, timeout=A_DAY)
    await build_syncer(CONFIG, manager, connect=lambda _: physical, monotonic=running_clock().monotonic)


async def reaches(client: Client, resource, name: str, until: Callable[[Object], bool], namespace=None) -> Object:
    found = await wait_for(
        client, resource, name, namespace, until=lambda obj: obj is not None and until(obj), timeout=2 * A_DAY
    )
    assert found is not None
    return found


async def binding_is_created_and_deleted(virtual: Client, physical: Client) -> None:
    clusters = Clusters(virtual, physical)
    await clusters.populate("east", policy={"resourceLimits": [{"resource": "cpu", "percent": 50}]})
    await reaches(virtual, NODES, "vnode-east-n1", lambda node: value_at(node, "status", "allocatable", "cpu") == "2")
    await clusters.add_foreign_pod("online", "n1", requests={"cpu": "1"})
    await reaches(
        virtual, NODES, "vnode-east-n1", lambda node: value_at(node, "status", "allocatable", "cpu") == "1500m"
    )
    await reaches(
        virtual, CLUSTER_BINDINGS, "east", lambda binding: value_at(binding, "status", "leased", "cpu") == "1500m"
    )
    await reaches(virtual, POLICIES, "east-all", lambda policy: value_at(policy, "status", "leased", "cpu") == "1500m")
    await virtual.delete(CLUSTER_BINDINGS, object_named("east"))
    await wait_for(virtual, CLUSTER_BINDINGS, "east", until=lambda obj: obj is None, timeout=A_DAY)
    assert await virtual.list(NODES) == []


async def window_closes(virtual: Client, physical: Client) -> None:
    window = {"start": "00:02", "end": "00:05"}
    policy = {"timeWindows": [window], "forceReclaim": True, "gracefulReclaimPeriodSeconds": 60}
    clusters = Clusters(virtual, physical)
    await clusters.populate("east", policy=policy)
    open_ = lambda node: taint_named(node, keys.OUT_OF_TIME_WINDOWS_TAINT) is None  # noqa: E731
    await reaches(virtual, NODES, "vnode-east-n1", open_)
    await clusters.add_pod()
    await reaches(virtual, PODS, "work", lambda pod: is_condition_true(pod, keys.MAPPED_CONDITION), "default")
    await reaches(virtual, NODES, "vnode-east-n1", lambda node: not open_(node))
    going = await reaches(virtual, PODS, "work", is_deleting, "default")
    assert is_condition_true(going, "DisruptionTarget")
    await clusters.wait_until_pod_is_gone(timeout=A_DAY)
    assert await clusters.twins() == []
    await asyncio.sleep(30)


def is_not_heartbeat(call: str) -> bool:
    return (
        call != "GET /version" and not call.startswith("watch") and not (call.startswith("PUT") and "/leases/" in call)
    )


SCENARIOS = [
    Scenario(name, SERVED, setup, world, CONFIG, others=[SERVED], counts=is_not_heartbeat)
    for name, world in {
        "a binding comes and goes": binding_is_created_and_deleted,
        "a window closes": window_closes,
    }.items()
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_syncer_reaches_same_state_despite_faults(
    scenario: Scenario, record_property: Callable[[str, object], None]
) -> None:
    report = perturb(scenario)
    record_property("figure", f"perturbed syncer: {report.cases} replays: {scenario.name}")
    assert not report.failures, str(report)
