"""Virtual nodes on a real kube-apiserver: server defaults cause no second write."""

import secrets
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tapestry.apis.clusterbindings import Binding, ClusterBindingSpec
from tapestry.apis.field_types import SecretReference
from tapestry.apis.names import virtual_node_name
from tapestry.apis.policies import ResourceLeasingPolicySpec, ResourceLimit
from tapestry.client.client import Client
from tapestry.kube.objects import Object, labels_of, name_of, version_of
from tapestry.kube.patches import owned_patch
from tapestry.kube.pods import taint_named
from tapestry.kube.resources import NODES
from tapestry.kube.selectors import EVERY_NODE
from tapestry.syncer.leasing import LeaseRules, Policy, PolicySide, lease_for
from tapestry.syncer.virtual_nodes import virtual_node, withdrawal_patch
from tapestry.syncer.windows import NEVER_OPEN, Schedule

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
ALWAYS = Schedule()
BINDING = Binding("east", "uid-b", "v1", ClusterBindingSpec("east", SecretReference("east", "tapestry-system")))
HALF = ResourceLeasingPolicySpec(
    "east", resource_limits=tuple(ResourceLimit(name, percent=50) for name in ("cpu", "pods", "nvidia.com/gpu"))
)


@pytest.fixture
async def physical(client: Client) -> Object:
    """A physical node with the fields of a kubelet and its owner.  One server acts as both clusters."""
    amounts = {"cpu": "4001m", "memory": "8Gi", "pods": "97", "nvidia.com/gpu": "3"}
    times = {"lastHeartbeatTime": "2026-03-02T07:59:59Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    node = await client.create(
        NODES,
        {
            "metadata": {"name": f"n{secrets.token_hex(5)}", "labels": {"topology.kubernetes.io/zone": "z1"}},
            "spec": {"taints": [{"key": "own", "effect": effect} for effect in ("NoSchedule", "NoExecute")]},
        },
    )
    status = {
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready", **times},
            {"type": "Odd", "status": "False", **times},
        ],
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        "nodeInfo": {"architecture": "amd64", "kubeletVersion": "v1.34.3"},
    }
    return await client.patch(NODES, node, {"status": status}, subresource="status")


def wanted(node: Object, existing: Object | None, schedule: Schedule = ALWAYS, now: datetime = NOW) -> Object:
    policy = Policy("p", PolicySide.OPERATOR, HALF, schedule, EVERY_NODE, NOW)
    lease = lease_for(node, [], [], LeaseRules([policy], [], EVERY_NODE), now)
    return virtual_node(node, lease, BINDING, virtual_node_name("east", name_of(node)), existing, now)


@pytest.mark.parametrize("schedule", [ALWAYS, NEVER_OPEN], ids=["open", "closed"])
async def test_virtual_node_is_written_once(client: Client, physical: Object, schedule: Schedule) -> None:
    made = await client.converge(NODES, None, wanted(physical, None, schedule))
    assert made["status"]["allocatable"] == {"cpu": "2", "memory": "8Gi", "pods": "48", "nvidia.com/gpu": "1"}
    assert owned_patch(made, wanted(physical, made, schedule, now=LATER)) == {}
    again = await client.converge(NODES, made, wanted(physical, made, schedule, now=LATER))
    assert version_of(again) == version_of(made)


async def test_virtual_node_closes_opens_and_is_deleted(client: Client, physical: Object) -> None:
    node = await client.converge(NODES, None, wanted(physical, None))
    mine: dict[str, Any] = {"metadata": {"labels": {"team": "a", "topology.kubernetes.io/zone": "z9"}}}
    node = await client.patch(NODES, node, mine)
    for schedule in (NEVER_OPEN, ALWAYS, NEVER_OPEN):
        node = await client.converge(NODES, node, wanted(physical, node, schedule))
        is_closed = taint_named(node, "tapestry.io/out-of-time-windows") is not None
        assert is_closed is (schedule is NEVER_OPEN)
    node = await client.converge(NODES, node, withdrawal_patch(node, NOW))
    assert taint_named(node, "tapestry.io/withdrawing")
    node = await client.converge(NODES, node, wanted(physical, node))
    assert taint_named(node, "tapestry.io/withdrawing") is None
    assert labels_of(node)["team"] == "a"
    assert labels_of(node)["topology.kubernetes.io/zone"] == "z9"


async def test_device_removed_from_the_physical_node_disappears(client: Client, physical: Object) -> None:
    node = await client.converge(NODES, None, wanted(physical, None))
    gone = {"status": {"capacity": {"nvidia.com/gpu": None}, "allocatable": {"nvidia.com/gpu": None}}}
    physical = await client.patch(NODES, physical, gone, subresource="status")
    node = await client.converge(NODES, node, wanted(physical, node))
    assert set(node["status"]["capacity"]) == set(node["status"]["allocatable"]) == {"cpu", "memory", "pods"}
