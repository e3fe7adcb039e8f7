"""Status of bindings, virtual nodes and policies."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, binding_of
from tapestry.apis.policies import POLICIES
from tapestry.inspect.status import binding_status, node_status, policy_status
from tapestry.kube.objects import Object, with_type_meta
from tapestry.syncer.leasing import PolicySide

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
CREATED = "2026-03-01T12:00:00Z"


def new_object(name: str, **content: Any) -> Object:
    return {"metadata": {"name": name, "uid": f"uid-of-{name}", "creationTimestamp": CREATED}, **content}


def new_binding(**status: Any) -> Object:
    spec = {"clusterID": "e1", "secretRef": {"name": "east", "namespace": "s"}, "mountNamespace": "leased"}
    return with_type_meta(CLUSTER_BINDINGS, new_object("east", spec=spec, status=status))


def new_condition(type: str, status: str, reason: str, message: str = "") -> Object:
    return {"type": type, "status": status, "reason": reason, "message": message}


def test_new_binding_has_status() -> None:
    result = binding_status(new_binding())
    assert (result.name, result.cluster_id, result.phase, result.leasing, result.nodes) == ("east", "e1", "", "", 0)
    assert result.created == datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def test_binding_shows_totals_and_times() -> None:
    status = {"phase": "Ready", "nodes": 2, "pods": 3, "leased": {"cpu": "4"}, "used": {"cpu": "1"}, "identity": "x"}
    result = binding_status(new_binding(**status, lastSeen="2026-03-02T11:59:00Z", nextChange="2026-03-02T22:00:00Z"))
    assert (result.phase, result.nodes, result.pods, result.leased, result.used) == (
        "Ready",
        2,
        3,
        {"cpu": "4"},
        {"cpu": "1"},
    )
    assert result.next_change == datetime(2026, 3, 2, 22, 0, tzinfo=UTC)


def test_problems_are_listed_once_without_closed_windows() -> None:
    conditions = [
        new_condition("Connected", "True", "Connected"),
        new_condition("Permitted", "False", "PermissionsMissing", "list nodes"),
        new_condition("Ready", "False", "PermissionsMissing", "list nodes"),
        new_condition("Leasing", "False", "OutOfTimeWindows", "every window is closed"),
    ]
    result = binding_status(new_binding(conditions=conditions))
    assert result.troubles == ["Permitted=False: PermissionsMissing: list nodes"]
    assert result.leasing == "OutOfTimeWindows"


def test_reclaim_is_no_problem_but_unreachable_cluster_is() -> None:
    taken = new_condition("Leasing", "False", "Reclaimed", "the owner's kill switch is on")
    unreachable = new_condition("Leasing", "False", "PhysicalClusterUnreachable", "no answer since noon")
    assert binding_status(new_binding(conditions=[taken])).troubles == []
    assert binding_status(new_binding(conditions=[unreachable])).troubles == [
        "Leasing=False: PhysicalClusterUnreachable: no answer since noon"
    ]


def test_deleted_binding_is_deleting_in_any_phase() -> None:
    binding = new_binding(phase="Ready")
    binding["metadata"]["deletionTimestamp"] = CREATED
    assert binding_status(binding).phase == "Deleting"


def new_virtual_node(*taints: str, **content: Any) -> Object:
    node = new_object("vnode-e1-n1", spec={"taints": [{"key": each, "effect": "NoSchedule"} for each in taints]})
    node["metadata"]["annotations"] = {
        keys.CLUSTER_BINDING: "east",
        keys.PHYSICAL_NODE_NAME: "n1",
        keys.POLICIES_APPLIED: "operator/a,owner/b",
    }
    return {**node, **content}


def test_node_state_is_from_taints() -> None:
    assert node_status(new_virtual_node(), []).state == "Open"
    assert node_status(new_virtual_node(keys.OUT_OF_TIME_WINDOWS_TAINT), []).state == "Closed"
    assert (
        node_status(new_virtual_node(keys.OUT_OF_TIME_WINDOWS_TAINT, keys.WITHDRAWING_TAINT), []).state == "Withdrawn"
    )
    assert node_status(new_virtual_node(keys.PHYSICAL_NODE_UNSCHEDULABLE_TAINT), []).cordoned


def test_node_counts_active_pods() -> None:
    requests = {"resources": {"requests": {"cpu": "500m"}}}
    pod = new_object("p", spec={"nodeName": "vnode-e1-n1", "containers": [{"name": "c", **requests}]})
    done = {**pod, "status": {"phase": "Succeeded"}}
    result = node_status(new_virtual_node(status={"allocatable": {"cpu": "2"}}), [pod, done, pod])
    assert (result.pods, result.used["cpu"], result.leased) == (2, "1", {"cpu": "2"})
    assert (result.binding, result.physical_node, result.policies) == ("east", "n1", ["operator/a", "owner/b"])


def new_policy(status: Object | None = None, **spec: Any) -> Object:
    return with_type_meta(POLICIES, new_object("night", spec={"cluster": "east", **spec}, status=status or {}))


def test_policy_state_is_computed_not_read() -> None:
    windows = [{"start": "22:00", "end": "06:00", "days": ["monday"]}]
    limits = [{"resource": "cpu", "percent": 50, "quantity": "4"}, {"resource": "gpu"}]
    policy = new_policy({"active": True, "nodes": 2}, timeWindows=windows, resourceLimits=limits, timeZone="Asia/Tokyo")
    result = policy_status(policy, PolicySide.OPERATOR, None, None, "UTC", NOW)
    assert (result.open, result.nodes) == (False, 0)
    assert result.next_change == datetime(2026, 3, 2, 13, 0, tzinfo=UTC)
    assert result.windows == ["22:00-06:00 Mon Asia/Tokyo"]
    assert result.limits == {"cpu": "50% of idle, at most 4", "gpu": "all that is idle"}


def test_owner_policy_shows_only_own_lease() -> None:
    binding = binding_of(new_binding(), "virtual")
    lease = {"clusterBinding": "east", "active": True, "leased": {"cpu": "1"}}
    leases = [
        {**lease, "virtualCluster": "somebody-elses", "nodes": 7},
        {**lease, "virtualCluster": binding.virtual_cluster, "nodes": 1},
    ]
    result = policy_status(new_policy({"nodes": 8, "leases": leases}), PolicySide.OWNER, binding, None, "UTC", NOW)
    assert (result.nodes, result.leased, result.seen_by) == (1, {"cpu": "1"}, "east")


def test_reclaim_terms_are_described() -> None:
    def terms(**spec: Any) -> str:
        return policy_status(new_policy(**spec), PolicySide.OWNER, None, None, "UTC", NOW).terms

    assert terms() == "pods finish"
    assert terms(forceReclaim=True, gracefulReclaimPeriodSeconds=5) == "reclaimed 5 s after the end"
    assert terms(forceReclaim=True, evictDuringGrace=True).endswith("evictions before that")


def test_fields_are_camel_case() -> None:
    result = msgspec.to_builtins(binding_status(new_binding(lastSeen=CREATED)))
    assert (result["clusterId"], result["lastSeen"], result["nextChange"]) == ("e1", CREATED, None)
