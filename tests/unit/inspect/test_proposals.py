"""Effect of a policy in a file that is not applied yet."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, Binding, binding_of
from tapestry.apis.policies import POLICIES
from tapestry.inspect.proposals import PolicyPlan, Proposal, policy_plan, proposed_policy
from tapestry.inspect.snapshots import PhysicalSnapshot, VirtualSnapshot
from tapestry.inspect.tables import plan_text
from tapestry.kube.objects import Object, with_type_meta
from tapestry.syncer.leasing import PolicySide

CREATED = "2026-01-01T00:00:00Z"
NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
NIGHT = {"start": "22:00", "end": "06:00"}
EAST = {
    "clusterID": "e1",
    "secretRef": {"name": "east", "namespace": "tapestry-system"},
    "mountNamespace": "leased",
}


def new_object(name: str, **content: Any) -> Object:
    return {"metadata": {"name": name, "uid": f"uid-of-{name}", "creationTimestamp": CREATED}, **content}


def new_policy(name: str, **spec: Any) -> Object:
    return with_type_meta(POLICIES, new_object(name, spec={"cluster": "east", **spec}))


def file_policy(name: str, **spec: Any) -> Object:
    written = {"apiVersion": POLICIES.api_version, "kind": POLICIES.kind, "metadata": {"name": name}}
    return proposed_policy([{**written, "spec": {"cluster": "east", **spec}}], "file.yaml")


def new_pod(name: str, cpu: str, node: str, priority: int = 0) -> Object:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    pod = new_object(name, spec={"nodeName": node, "priority": priority, "containers": [container]})
    return {**pod, "metadata": {**pod["metadata"], "namespace": "shop"}}


BINDING: Binding = binding_of(with_type_meta(CLUSTER_BINDINGS, new_object("east", spec=EAST)), "virtual")


def plan(
    proposed: Object, *policies: Object, owner: tuple[Object, ...] = (), pods: tuple[Object, ...] = ()
) -> PolicyPlan:
    """Plan for a cluster of one node with 4 CPUs, of which foreign pods use one."""
    virtual = new_object("vnode-e1-n1", status={"allocatable": {"cpu": "3"}})
    virtual["metadata"]["labels"] = {keys.CLUSTER_BINDING_UID: BINDING.uid}
    virtual["metadata"]["annotations"] = {keys.PHYSICAL_NODE_NAME: "n1"}
    node = new_object("n1", status={"allocatable": {"cpu": "4"}})
    cluster = PhysicalSnapshot([node], [new_pod("foreign", "1", "n1")], list(owner), None)
    facts = VirtualSnapshot("virtual", [], [virtual], {"vnode-e1-n1": list(pods)}, list(policies))
    existing = {each["metadata"]["name"]: each for each in policies}
    proposal = Proposal(proposed, existing.get(proposed["metadata"]["name"]), PolicySide.OPERATOR)
    return policy_plan(proposal, BINDING, cluster, facts, "UTC", NOON)


def test_new_policy_leases_where_nothing_was_leased() -> None:
    found = plan(file_policy("half", resourceLimits=[{"resource": "cpu", "percent": 50}]))
    (node,) = found.nodes
    assert (found.is_new, node.state_now, node.state_then) == (True, "Withdrawn", "Open")
    assert (found.leased_now, found.leased_then) == ({}, {"cpu": "1500m"})


def test_changed_policy_replaces_existing_one() -> None:
    found = plan(file_policy("all", resourceLimits=[{"resource": "cpu", "quantity": 1}]), new_policy("all"))
    assert (found.is_new, found.leased_now, found.leased_then) == (False, {"cpu": "3"}, {"cpu": "1"})


def test_closed_policy_reclaims_pods_by_deadline() -> None:
    pods = (new_pod("web", "1", "vnode-e1-n1"), new_pod("db", "1", "vnode-e1-n1"))
    night = file_policy("all", timeWindows=[NIGHT], forceReclaim=True, gracefulReclaimPeriodSeconds=600)
    found = plan(night, new_policy("all"), pods=pods)
    (node,) = found.nodes
    assert (found.open, node.state_then, node.leased_then) == (False, "Closed", {"cpu": "0"})
    assert (node.reclaimed, node.deadline) == (["shop/db", "shop/web"], NOON + timedelta(minutes=10))
    text = plan_text(found, NOON)
    assert "Open -> Closed" in text
    assert "2 in 10m0s" in text
    assert "shop/web on n1" in text
    assert max(map(len, text.splitlines())) <= 80


def test_pods_that_may_finish_are_not_reclaimed() -> None:
    found = plan(file_policy("all", timeWindows=[NIGHT]), new_policy("all"), pods=(new_pod("web", "1", "vnode-e1-n1"),))
    (node,) = found.nodes
    assert (node.state_then, node.reclaimed, node.deadline) == ("Closed", [], None)


def test_unchanged_policy_changes_nothing() -> None:
    night = {"timeWindows": [NIGHT], "forceReclaim": True, "gracefulReclaimPeriodSeconds": 600}
    found = plan(file_policy("all", **night), new_policy("all", **night))
    assert (found.leased_now, found.leased_then) == ({"cpu": "0"}, {"cpu": "0"})
    assert found.nodes[0].state_now == found.nodes[0].state_then == "Closed"


def test_owner_limit_applies_in_plan() -> None:
    owner = (new_policy("little", resourceLimits=[{"resource": "cpu", "quantity": "500m"}]),)
    assert plan(file_policy("all"), owner=owner).leased_then == {"cpu": "500m"}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"kind": "Pod"}, "f: expected cloud.tencent.com/v1beta1 ResourceLeasingPolicy, found"),
        ({"spec": None}, "f: spec: is missing"),
        ({"spec": {}}, "f: spec.cluster: is required"),
        ({"spec": {"cluster": "east", "timeWindow": []}}, "f: spec.timeWindow: unknown field"),
        (
            {"spec": {"cluster": "e", "timeWindows": [{"from": "1"}]}},
            r"f: spec.timeWindows\[0\].from: unknown field",
        ),
        ({"spec": {"cluster": "e", "resourceLimits": [{"resource": "cpu", "percent": 140}]}}, r"\[0\].percent: .* 140"),
        ({"spec": {"cluster": "e", "timeZone": "Mars"}}, "f: spec.timeZone: 'Mars' is not a time zone"),
        ({"spec": {"cluster": "e", "nodeSelector": {"nodeSelectorTerms": []}}}, "spec.nodeSelector"),
    ],
)
def test_invalid_file_is_rejected_with_field(change: dict[str, Any], complaint: str) -> None:
    written = {"apiVersion": POLICIES.api_version, "kind": POLICIES.kind, "metadata": {"name": "x"}, **change}
    with pytest.raises(ValueError, match=complaint):
        proposed_policy([written], "f")


def test_file_must_have_one_policy() -> None:
    with pytest.raises(ValueError, match="expected one ResourceLeasingPolicy, found 0 objects"):
        proposed_policy([], "f")
