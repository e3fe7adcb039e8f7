"""Explanations of nodes and policies."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, Binding, binding_of
from tapestry.apis.policies import POLICIES
from tapestry.inspect.explain import (
    NodeExplanation,
    NodeQuery,
    node_explanation,
    node_explanation_from_virtual,
    policy_explanation,
)
from tapestry.inspect.snapshots import ClusterUnreachable, ClusterUnreadable, PhysicalNodeSnapshot
from tapestry.inspect.tables import node_text, policy_text
from tapestry.kube.objects import Object, with_type_meta
from tapestry.kube.quantity import parse_quantity
from tapestry.syncer.leasing import PolicySide

CREATED = "2026-01-01T00:00:00Z"
MONDAY_NIGHT = datetime(2026, 3, 2, 23, 0, tzinfo=UTC)
MONDAY_NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
NIGHT = {"start": "22:00", "end": "06:00"}


def new_object(name: str, **content: Any) -> Object:
    return {"metadata": {"name": name, "uid": f"uid-of-{name}", "creationTimestamp": CREATED}, **content}


def new_binding(**spec: Any) -> Binding:
    reference = {"name": "east", "namespace": "tapestry-system"}
    fields = {"clusterID": "east", "secretRef": reference, "mountNamespace": "leased", **spec}
    return binding_of(with_type_meta(CLUSTER_BINDINGS, new_object("east", spec=fields)), "virtual")


def new_policy(name: str, **spec: Any) -> Object:
    return with_type_meta(POLICIES, new_object(name, spec={"cluster": "east", **spec}))


def half(resource: str = "cpu") -> list[Object]:
    return [{"resource": resource, "percent": 50}]


def new_node(**allocatable: str) -> Object:
    return new_object("n1", status={"allocatable": allocatable or {"cpu": "4", "pods": "11"}})


def new_pod(name: str, cpu: str, node: str = "n1", **labels: str) -> Object:
    pod = new_object(
        name, spec={"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}
    )
    return {**pod, "metadata": {**pod["metadata"], "namespace": "shop", "labels": labels}}


def new_virtual_node(**content: Any) -> Object:
    return {**new_object("vnode-east-n1"), **content}


def node_query(operator: list[Object] | None = None, **fields: Any) -> NodeQuery:
    facts = {
        "binding": new_binding(),
        "is_unbinding": False,
        "physical_node": "n1",
        "virtual_node": new_virtual_node(status={"allocatable": {}}),
        "pods": [],
        "operator_policies": operator or [],
        "time_zone": "UTC",
        **fields,
    }
    return NodeQuery(**facts)


def physical_snapshot(owner: list[Object] | None = None, **fields: Any) -> PhysicalNodeSnapshot:
    return PhysicalNodeSnapshot(
        **{"node": new_node(), "pods": [], "policies": owner or [], "mount_namespace": None, **fields}
    )


def cell(explanation: NodeExplanation, resource: str) -> tuple[str, ...]:
    (found,) = (each for each in explanation.resources if each.resource == resource)
    return found.allocatable, found.foreign, found.idle, found.leased, found.used


def test_resource_shows_arithmetic_decider_and_rounding() -> None:
    limits = [*half(), *half("pods")]
    explanation = node_explanation(
        node_query(pods=[new_pod("work", "500m", "vnode-east-n1")]),
        physical_snapshot([new_policy("half", resourceLimits=limits)], pods=[new_pod("shop", "1")]),
        MONDAY_NOON,
    )
    assert (explanation.state, explanation.reason) == ("Open", "Leased")
    assert cell(explanation, "cpu") == ("4", "1", "3", "1500m", "500m")
    assert cell(explanation, "pods") == ("11", "1", "10", "5", "1")
    cpu, pods = explanation.resources
    assert (cpu.decided_by, cpu.rule, cpu.floored) == ("owner/half", "50% of idle", "")
    assert (pods.decided_by, pods.floored) == ("owner/half", "")


def test_amount_lost_by_rounding_is_reported() -> None:
    gpus = physical_snapshot([new_policy("half", resourceLimits=half("gpu"))], node=new_node(gpu="3"))
    (explanation,) = node_explanation(node_query(), gpus, MONDAY_NOON).resources
    assert (explanation.leased, explanation.floored) == ("1", "500m")


def test_side_with_smaller_share_decides() -> None:
    operator = new_policy("generous", resourceLimits=[{"resource": "cpu", "quantity": "3"}])
    explanation = node_explanation(
        node_query([operator]), physical_snapshot([new_policy("half", resourceLimits=half())]), MONDAY_NOON
    )
    decided = {each.resource: (each.decided_by, each.rule) for each in explanation.resources}
    assert decided["cpu"] == ("owner/half", "50% of idle")
    assert decided["pods"] == ("idle", "no deciding policy limits it: all that is idle")


def test_own_pods_are_not_foreign() -> None:
    binding = new_binding()
    twin = new_pod("twin", "2", **binding.owner_labels())
    explanation = node_explanation(
        node_query(binding=binding), physical_snapshot([new_policy("all")], pods=[twin]), MONDAY_NOON
    )
    assert cell(explanation, "cpu")[:3] == ("4", "0", "4")


def test_open_node_shows_end_and_terms() -> None:
    policy = new_policy("night", timeWindows=[NIGHT], forceReclaim=True, gracefulReclaimPeriodSeconds=60)
    explanation = node_explanation(node_query(), physical_snapshot([policy]), MONDAY_NIGHT)
    assert explanation.ends == explanation.next_change == datetime(2026, 3, 3, 6, 0, tzinfo=UTC)
    assert explanation.deadline == datetime(2026, 3, 3, 6, 1, tzinfo=UTC)
    assert explanation.terms_by == "owner/night"
    (reported,) = explanation.policies
    assert (reported.open, reported.decides, reported.windows) == (True, True, ["22:00-06:00 UTC"])
    assert reported.terms == "reclaimed 60 s after the end"


def test_closed_node_shows_side_and_next_opening() -> None:
    explanation = node_explanation(
        node_query([new_policy("all")]), physical_snapshot([new_policy("night", timeWindows=[NIGHT])]), MONDAY_NOON
    )
    assert (explanation.state, explanation.reason) == ("Closed", "OutOfTimeWindows")
    assert explanation.why.startswith("no policy of the owner is open now")
    assert explanation.next_change == datetime(2026, 3, 2, 22, 0, tzinfo=UTC)
    assert explanation.deadline is None


def test_windows_without_zone_use_zone_of_query() -> None:
    policy = new_policy("night", timeWindows=[NIGHT])
    explanation = node_explanation(
        node_query(time_zone="Asia/Shanghai"), physical_snapshot([policy]), datetime(2026, 3, 2, 15, 0, tzinfo=UTC)
    )
    assert explanation.state == "Open"
    assert explanation.policies[0].windows == ["22:00-06:00 Asia/Shanghai"]


def test_kill_switch_is_named_with_its_place() -> None:
    mark = {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}
    mount = {"metadata": {"name": "leased", **mark}}
    explanation = node_explanation(
        node_query(), physical_snapshot([new_policy("all")], mount_namespace=mount), MONDAY_NOON
    )
    assert (explanation.state, explanation.reason) == ("Closed", "Reclaimed")
    assert explanation.why.endswith("on the mount namespace")
    assert explanation.deadline == MONDAY_NOON
    node = {**new_node(), "metadata": {**new_node()["metadata"], **mark}}
    assert node_explanation(node_query(), physical_snapshot([new_policy("all")], node=node), MONDAY_NOON).why.endswith(
        "on the physical node"
    )


def test_unleased_node_explains_reason() -> None:
    required = {"metadata": {"name": "leased", "labels": {keys.OWNER_POLICY: keys.OWNER_POLICY_REQUIRED}}}
    terms = [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
    elsewhere = new_binding(nodeSelector={"nodeSelectorTerms": terms})
    reasons = {
        "NoPolicy": node_explanation(node_query(), physical_snapshot(), MONDAY_NOON),
        "OwnerPolicyRequired": node_explanation(
            node_query([new_policy("all")]), physical_snapshot(mount_namespace=required), MONDAY_NOON
        ),
        "NodeNotSelected": node_explanation(
            node_query(binding=elsewhere), physical_snapshot([new_policy("all")]), MONDAY_NOON
        ),
        "PhysicalNodeGone": node_explanation(node_query(), physical_snapshot(node=None), MONDAY_NOON),
        "Unbound": node_explanation(node_query(is_unbinding=True), physical_snapshot([new_policy("all")]), MONDAY_NOON),
    }
    for reason, explanation in reasons.items():
        assert (explanation.state, explanation.reason, explanation.resources) == ("Withdrawn", reason, ())
        assert explanation.why != reason


def test_policy_for_other_nodes_does_not_count() -> None:
    terms = [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
    policies = [new_policy("all"), new_policy("gpus", nodeSelector={"nodeSelectorTerms": terms})]
    reported = {
        each.policy: (each.selects, each.decides)
        for each in node_explanation(node_query(), physical_snapshot(policies), MONDAY_NOON).policies
    }
    assert reported == {"owner/all": (True, True), "owner/gpus": (False, False)}


def test_invalid_policy_is_explained_with_error() -> None:
    policy = new_policy("bad", resourceLimits=[{"resource": "cpu", "percent": 140}])
    explanation = node_explanation(node_query(), physical_snapshot([policy]), MONDAY_NOON)
    assert explanation.reason == "InvalidPolicy"
    assert explanation.policies[0].complaint.startswith("spec.resourceLimits[0].percent")


def test_outdated_virtual_node_is_behind() -> None:
    owner = physical_snapshot([new_policy("half", resourceLimits=half())])
    reported = new_virtual_node(status={"allocatable": {"cpu": "4", "pods": "11"}})
    assert node_explanation(node_query(virtual_node=reported), owner, MONDAY_NOON).behind == ("cpu",)
    reported = new_virtual_node(status={"allocatable": {"cpu": "2000m", "pods": "11"}})
    assert node_explanation(node_query(virtual_node=reported), owner, MONDAY_NOON).behind == ()


def test_share_of_total_is_taken_from_virtual_node() -> None:
    owner = physical_snapshot([new_policy("few", totalLimits=[{"resource": "cpu", "quantity": "10"}])])
    reported = new_virtual_node(status={"allocatable": {"cpu": "1500m", "pods": "11"}})
    explanation = node_explanation(node_query(virtual_node=reported), owner, MONDAY_NOON)
    cpu, _ = explanation.resources
    assert (cpu.leased, cpu.decided_by, cpu.rule) == ("1500m", "total", "its share of the total for all nodes")
    assert explanation.behind == ()


@given(allocatable=st.integers(0, 64), foreign=st.integers(0, 80), percent=st.integers(0, 100))
def test_columns_of_a_row_add_up(allocatable: int, foreign: int, percent: int) -> None:
    policy = new_policy("some", resourceLimits=[{"resource": "cpu", "percent": percent}])
    facts = physical_snapshot([policy], node=new_node(cpu=str(allocatable)), pods=[new_pod("shop", str(foreign))])
    have, held, idle, leased, _ = map(parse_quantity, cell(node_explanation(node_query(), facts, MONDAY_NOON), "cpu"))
    assert idle.nano == max(have.nano - held.nano, 0)
    assert leased.nano <= idle.nano


# -- unreadable physical cluster


def test_unreadable_cluster_is_explained_from_virtual_node() -> None:
    node = new_virtual_node(
        spec={"taints": [{"key": keys.OUT_OF_TIME_WINDOWS_TAINT, "effect": "NoSchedule"}]},
        status={"allocatable": {"cpu": "2"}},
    )
    node["metadata"]["annotations"] = {keys.POLICIES_APPLIED: "owner/half", keys.LEASE_ENDS: CREATED}
    pods = [new_pod("work", "500m", "vnode-east-n1")]
    explanation = node_explanation_from_virtual(
        node_query([new_policy("all")], virtual_node=node, pods=pods), ClusterUnreadable("no answer"), MONDAY_NOON
    )
    assert (explanation.state, explanation.unseen) == ("Closed", "no answer")
    assert "owner/half" in explanation.why
    (cpu,) = explanation.resources
    assert (cpu.leased, cpu.used, cpu.idle) == ("0", "500m", "")  # closed
    assert [(each.policy, each.selects) for each in explanation.policies] == [("operator/all", None)]


def test_node_of_unreachable_cluster_is_unknown_with_last_contact() -> None:
    node = new_virtual_node(status={"allocatable": {"cpu": "2"}})
    node["metadata"]["annotations"] = {keys.POLICIES_APPLIED: "owner/half"}
    seen = MONDAY_NOON - timedelta(seconds=40)
    query = replace(node_query([new_policy("all")], virtual_node=node), last_seen=seen)
    explanation = node_explanation_from_virtual(query, ClusterUnreachable("no answer in 1.2 s"), MONDAY_NOON)
    assert (explanation.state, explanation.reason, explanation.last_seen) == (
        "Unknown",
        "PhysicalClusterUnreachable",
        seen,
    )
    assert explanation.why == "the physical cluster does not answer; last known state: Open, leased under owner/half"
    text = node_text(explanation, MONDAY_NOON)
    assert "it last answered at" in text
    assert "(40s ago)" in text


def test_node_is_unknown_without_both_clusters() -> None:
    assert (
        node_explanation_from_virtual(node_query(virtual_node=None), ClusterUnreadable("no answer"), MONDAY_NOON).state
        == "Unknown"
    )


# -- policies


def test_policy_shows_window_limits_terms_and_nodes() -> None:
    policy = new_policy("night", timeWindows=[NIGHT], resourceLimits=half())
    leased_node = new_virtual_node(status={"allocatable": {"cpu": "2"}})
    leased_node["metadata"]["annotations"] = {keys.POLICIES_APPLIED: "operator/night,owner/other"}
    other = new_virtual_node(status={"allocatable": {"cpu": "1"}})
    explanation = policy_explanation(
        policy, PolicySide.OPERATOR, new_binding(), [leased_node, other], "UTC", MONDAY_NIGHT
    )
    assert (explanation.policy, explanation.binding, explanation.open) == ("operator/night", "east", True)
    assert explanation.since == datetime(2026, 3, 2, 22, 0, tzinfo=UTC)
    assert explanation.next_change == datetime(2026, 3, 3, 6, 0, tzinfo=UTC)
    assert (explanation.limits, explanation.terms) == ({"cpu": "50% of idle"}, "pods finish")
    assert [(each.node, each.state) for each in explanation.nodes] == [("vnode-east-n1", "Open")]
    assert explanation.leased == {"cpu": "2"}


def test_closed_policy_leases_no_nodes() -> None:
    policy = new_policy("night", timeWindows=[NIGHT])
    node = new_virtual_node(status={"allocatable": {"cpu": "2"}})
    node["metadata"]["annotations"] = {keys.POLICIES_APPLIED: "operator/night"}
    explanation = policy_explanation(policy, PolicySide.OPERATOR, new_binding(), [node], "UTC", MONDAY_NOON)
    assert (explanation.open, explanation.nodes, explanation.others, explanation.leased) == (False, [], 1, {})
    assert "lends nothing now; 1 node under it closed" in policy_text(explanation, MONDAY_NOON)


def test_next_change_is_of_windows_not_deadline() -> None:
    policy = new_policy("night", timeWindows=[NIGHT], forceReclaim=True, gracefulReclaimPeriodSeconds=600)
    policy["metadata"]["creationTimestamp"] = "2026-03-02T11:59:57Z"
    explanation = node_explanation(node_query([policy]), physical_snapshot(), MONDAY_NOON)
    assert (explanation.state, explanation.reason) == ("Closed", "OutOfTimeWindows")
    assert explanation.next_change == datetime(2026, 3, 2, 22, 0, tzinfo=UTC)
    assert explanation.deadline == MONDAY_NOON + timedelta(seconds=597)
    assert {each.leased for each in explanation.resources} == {"0"}


def test_closed_node_with_deadline_never_says_pods_stay() -> None:
    policy = new_policy("night", timeWindows=[NIGHT], forceReclaim=True)
    explanation = node_explanation(node_query([policy]), physical_snapshot(), MONDAY_NOON)
    text = node_text(explanation, MONDAY_NOON)
    assert "stays" not in text
    assert "no policy of the operator is open now, so no new pods are admitted" in text
    assert "remaining pods are being reclaimed, by operator/night" in text


def test_invalid_policy_reports_last_good_spec() -> None:
    policy = new_policy("bad", timeZone="Mars")
    explanation = policy_explanation(policy, PolicySide.OWNER, None, [], "UTC", MONDAY_NOON)
    assert explanation.complaint.startswith("spec.timeZone")
    assert (explanation.uses_last_good, explanation.open, explanation.binding) == (False, False, "")
    good = {**policy, "status": {"lastGood": {"cluster": "east"}}}
    explanation = policy_explanation(good, PolicySide.OWNER, None, [], "UTC", MONDAY_NOON)
    assert (explanation.uses_last_good, explanation.open) == (True, True)
