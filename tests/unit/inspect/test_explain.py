"""Explanations: the answer is the syncer's own decision, with everything it was made of."""

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


def an_object(name: str, **content: Any) -> Object:
    return {"metadata": {"name": name, "uid": f"uid-of-{name}", "creationTimestamp": CREATED}, **content}


def a_binding(**spec: Any) -> Binding:
    reference = {"name": "east", "namespace": "tapestry-system"}
    given = {"clusterID": "east", "secretRef": reference, "mountNamespace": "leased", **spec}
    return binding_of(with_type_meta(CLUSTER_BINDINGS, an_object("east", spec=given)), "virtual")


def a_policy(name: str, **spec: Any) -> Object:
    return with_type_meta(POLICIES, an_object(name, spec={"cluster": "east", **spec}))


def half(resource: str = "cpu") -> list[Object]:
    return [{"resource": resource, "percent": 50}]


def a_node(**allocatable: str) -> Object:
    return an_object("n1", status={"allocatable": allocatable or {"cpu": "4", "pods": "11"}})


def a_pod(name: str, cpu: str, node: str = "n1", **labels: str) -> Object:
    pod = an_object(
        name, spec={"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}
    )
    return {**pod, "metadata": {**pod["metadata"], "namespace": "shop", "labels": labels}}


def a_virtual_node(**content: Any) -> Object:
    return {**an_object("vnode-east-n1"), **content}


def asked(operator: list[Object] | None = None, **given: Any) -> NodeQuery:
    facts = {
        "binding": a_binding(),
        "is_unbinding": False,
        "physical_node": "n1",
        "virtual_node": a_virtual_node(status={"allocatable": {}}),
        "pods": [],
        "operator_policies": operator or [],
        "zone": "UTC",
        **given,
    }
    return NodeQuery(**facts)


def below(owner: list[Object] | None = None, **given: Any) -> PhysicalNodeSnapshot:
    return PhysicalNodeSnapshot(**{"node": a_node(), "pods": [], "policies": owner or [], "mount": None, **given})


def cell(answer: NodeExplanation, resource: str) -> tuple[str, ...]:
    (found,) = (each for each in answer.resources if each.resource == resource)
    return found.allocatable, found.foreign, found.idle, found.leased, found.used


def test_resource_shows_arithmetic_decider_and_rounding() -> None:
    limits = [*half(), *half("pods")]
    answer = node_explanation(
        asked(pods=[a_pod("work", "500m", "vnode-east-n1")]),
        below([a_policy("half", resourceLimits=limits)], pods=[a_pod("shop", "1")]),
        MONDAY_NOON,
    )
    assert (answer.state, answer.reason) == ("Open", "Leased")
    assert cell(answer, "cpu") == ("4", "1", "3", "1500m", "500m")
    assert cell(answer, "pods") == ("11", "1", "10", "5", "1")
    cpu, pods = answer.resources
    assert (cpu.decided_by, cpu.rule, cpu.floored) == ("owner/half", "50% of idle", "")
    assert (pods.decided_by, pods.floored) == ("owner/half", "")


def test_amount_lost_by_rounding_is_reported() -> None:
    gpus = below([a_policy("half", resourceLimits=half("gpu"))], node=a_node(gpu="3"))
    (answer,) = node_explanation(asked(), gpus, MONDAY_NOON).resources
    assert (answer.leased, answer.floored) == ("1", "500m")


def test_side_with_smaller_share_decides() -> None:
    operator = a_policy("generous", resourceLimits=[{"resource": "cpu", "quantity": "3"}])
    answer = node_explanation(asked([operator]), below([a_policy("half", resourceLimits=half())]), MONDAY_NOON)
    decided = {each.resource: (each.decided_by, each.rule) for each in answer.resources}
    assert decided["cpu"] == ("owner/half", "50% of idle")
    assert decided["pods"] == ("idle", "no deciding policy limits it: all that is idle")


def test_own_pods_are_not_foreign() -> None:
    binding = a_binding()
    twin = a_pod("twin", "2", **binding.owner_labels())
    answer = node_explanation(asked(binding=binding), below([a_policy("all")], pods=[twin]), MONDAY_NOON)
    assert cell(answer, "cpu")[:3] == ("4", "0", "4")


def test_open_node_shows_end_and_terms() -> None:
    policy = a_policy("night", timeWindows=[NIGHT], forceReclaim=True, gracefulReclaimPeriodSeconds=60)
    answer = node_explanation(asked(), below([policy]), MONDAY_NIGHT)
    assert answer.ends == answer.next_change == datetime(2026, 3, 3, 6, 0, tzinfo=UTC)
    assert answer.deadline == datetime(2026, 3, 3, 6, 1, tzinfo=UTC)
    assert answer.terms_by == "owner/night"
    (shown,) = answer.policies
    assert (shown.open, shown.decides, shown.windows) == (True, True, ["22:00-06:00 UTC"])
    assert shown.terms == "reclaimed 60 s after the end"


def test_closed_node_shows_side_and_next_opening() -> None:
    answer = node_explanation(asked([a_policy("all")]), below([a_policy("night", timeWindows=[NIGHT])]), MONDAY_NOON)
    assert (answer.state, answer.reason) == ("Closed", "OutOfTimeWindows")
    assert answer.why.startswith("no policy of the owner is open now")
    assert answer.next_change == datetime(2026, 3, 2, 22, 0, tzinfo=UTC)
    assert answer.deadline is None


def test_windows_without_zone_use_zone_of_query() -> None:
    policy = a_policy("night", timeWindows=[NIGHT])
    answer = node_explanation(asked(zone="Asia/Shanghai"), below([policy]), datetime(2026, 3, 2, 15, 0, tzinfo=UTC))
    assert answer.state == "Open"
    assert answer.policies[0].windows == ["22:00-06:00 Asia/Shanghai"]


def test_kill_switch_is_named_with_its_place() -> None:
    mark = {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}
    mount = {"metadata": {"name": "leased", **mark}}
    answer = node_explanation(asked(), below([a_policy("all")], mount=mount), MONDAY_NOON)
    assert (answer.state, answer.reason) == ("Closed", "Reclaimed")
    assert answer.why.endswith("on the mount namespace")
    assert answer.deadline == MONDAY_NOON
    node = {**a_node(), "metadata": {**a_node()["metadata"], **mark}}
    assert node_explanation(asked(), below([a_policy("all")], node=node), MONDAY_NOON).why.endswith(
        "on the physical node"
    )


def test_unleased_node_explains_reason() -> None:
    required = {"metadata": {"name": "leased", "labels": {keys.OWNER_POLICY: keys.OWNER_POLICY_REQUIRED}}}
    terms = [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
    elsewhere = a_binding(nodeSelector={"nodeSelectorTerms": terms})
    reasons = {
        "NoPolicy": node_explanation(asked(), below(), MONDAY_NOON),
        "OwnerPolicyRequired": node_explanation(asked([a_policy("all")]), below(mount=required), MONDAY_NOON),
        "NodeNotSelected": node_explanation(asked(binding=elsewhere), below([a_policy("all")]), MONDAY_NOON),
        "PhysicalNodeGone": node_explanation(asked(), below(node=None), MONDAY_NOON),
        "Unbound": node_explanation(asked(is_unbinding=True), below([a_policy("all")]), MONDAY_NOON),
    }
    for reason, answer in reasons.items():
        assert (answer.state, answer.reason, answer.resources) == ("Withdrawn", reason, ())
        assert answer.why != reason


def test_policy_for_other_nodes_does_not_count() -> None:
    terms = [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
    policies = [a_policy("all"), a_policy("gpus", nodeSelector={"nodeSelectorTerms": terms})]
    shown = {
        each.policy: (each.selects, each.decides)
        for each in node_explanation(asked(), below(policies), MONDAY_NOON).policies
    }
    assert shown == {"owner/all": (True, True), "owner/gpus": (False, False)}


def test_invalid_policy_is_shown_with_error() -> None:
    policy = a_policy("bad", resourceLimits=[{"resource": "cpu", "percent": 140}])
    answer = node_explanation(asked(), below([policy]), MONDAY_NOON)
    assert answer.reason == "InvalidPolicy"
    assert answer.policies[0].complaint.startswith("spec.resourceLimits[0].percent")


def test_outdated_virtual_node_is_behind() -> None:
    owner = below([a_policy("half", resourceLimits=half())])
    shown = a_virtual_node(status={"allocatable": {"cpu": "4", "pods": "11"}})
    assert node_explanation(asked(virtual_node=shown), owner, MONDAY_NOON).behind == ("cpu",)
    shown = a_virtual_node(status={"allocatable": {"cpu": "2000m", "pods": "11"}})
    assert node_explanation(asked(virtual_node=shown), owner, MONDAY_NOON).behind == ()


def test_share_of_total_is_taken_from_virtual_node() -> None:
    owner = below([a_policy("few", totalLimits=[{"resource": "cpu", "quantity": "10"}])])
    shown = a_virtual_node(status={"allocatable": {"cpu": "1500m", "pods": "11"}})
    answer = node_explanation(asked(virtual_node=shown), owner, MONDAY_NOON)
    cpu, _ = answer.resources
    assert (cpu.leased, cpu.decided_by, cpu.rule) == ("1500m", "total", "its share of the total for all nodes")
    assert answer.behind == ()


@given(allocatable=st.integers(0, 64), foreign=st.integers(0, 80), percent=st.integers(0, 100))
def test_columns_of_a_row_add_up(allocatable: int, foreign: int, percent: int) -> None:
    policy = a_policy("some", resourceLimits=[{"resource": "cpu", "percent": percent}])
    facts = below([policy], node=a_node(cpu=str(allocatable)), pods=[a_pod("shop", str(foreign))])
    have, held, idle, leased, _ = map(parse_quantity, cell(node_explanation(asked(), facts, MONDAY_NOON), "cpu"))
    assert idle.nano == max(have.nano - held.nano, 0)
    assert leased.nano <= idle.nano


# -- where the physical cluster cannot be looked into


def test_unreadable_cluster_is_explained_from_virtual_node() -> None:
    node = a_virtual_node(
        spec={"taints": [{"key": keys.OUT_OF_TIME_WINDOWS_TAINT, "effect": "NoSchedule"}]},
        status={"allocatable": {"cpu": "2"}},
    )
    node["metadata"]["annotations"] = {keys.POLICIES_APPLIED: "owner/half", keys.LEASE_ENDS: CREATED}
    pods = [a_pod("work", "500m", "vnode-east-n1")]
    answer = node_explanation_from_virtual(
        asked([a_policy("all")], virtual_node=node, pods=pods), ClusterUnreadable("no answer"), MONDAY_NOON
    )
    assert (answer.state, answer.unseen) == ("Closed", "no answer")
    assert "owner/half" in answer.why
    (cpu,) = answer.resources
    assert (cpu.leased, cpu.used, cpu.idle) == ("0", "500m", "")  # it is closed
    assert [(each.policy, each.selects) for each in answer.policies] == [("operator/all", None)]


def test_node_of_unreachable_cluster_is_unknown_with_last_contact() -> None:
    node = a_virtual_node(status={"allocatable": {"cpu": "2"}})
    node["metadata"]["annotations"] = {keys.POLICIES_APPLIED: "owner/half"}
    seen = MONDAY_NOON - timedelta(seconds=40)
    question = replace(asked([a_policy("all")], virtual_node=node), last_seen=seen)
    answer = node_explanation_from_virtual(question, ClusterUnreachable("no answer in 1.2 s"), MONDAY_NOON)
    assert (answer.state, answer.reason, answer.last_seen) == ("Unknown", "PhysicalClusterUnreachable", seen)
    assert answer.why == "the physical cluster does not answer; last known state: Open, leased under owner/half"
    text = node_text(answer, MONDAY_NOON)
    assert "it last answered at" in text
    assert "(40s ago)" in text


def test_node_is_unknown_without_both_clusters() -> None:
    assert (
        node_explanation_from_virtual(asked(virtual_node=None), ClusterUnreadable("no answer"), MONDAY_NOON).state
        == "Unknown"
    )


# -- a policy


def test_policy_shows_window_limits_terms_and_nodes() -> None:
    policy = a_policy("night", timeWindows=[NIGHT], resourceLimits=half())
    lent = a_virtual_node(status={"allocatable": {"cpu": "2"}})
    lent["metadata"]["annotations"] = {keys.POLICIES_APPLIED: "operator/night,owner/other"}
    other = a_virtual_node(status={"allocatable": {"cpu": "1"}})
    answer = policy_explanation(policy, PolicySide.OPERATOR, a_binding(), [lent, other], "UTC", MONDAY_NIGHT)
    assert (answer.policy, answer.binding, answer.open) == ("operator/night", "east", True)
    assert answer.since == datetime(2026, 3, 2, 22, 0, tzinfo=UTC)
    assert answer.next_change == datetime(2026, 3, 3, 6, 0, tzinfo=UTC)
    assert (answer.limits, answer.terms) == ({"cpu": "50% of idle"}, "pods finish")
    assert [(each.node, each.state) for each in answer.nodes] == [("vnode-east-n1", "Open")]
    assert answer.leased == {"cpu": "2"}


def test_closed_policy_leases_no_nodes() -> None:
    policy = a_policy("night", timeWindows=[NIGHT])
    node = a_virtual_node(status={"allocatable": {"cpu": "2"}})
    node["metadata"]["annotations"] = {keys.POLICIES_APPLIED: "operator/night"}
    answer = policy_explanation(policy, PolicySide.OPERATOR, a_binding(), [node], "UTC", MONDAY_NOON)
    assert (answer.open, answer.nodes, answer.others, answer.leased) == (False, [], 1, {})
    assert "leases nothing now; 1 node under it closed" in policy_text(answer, MONDAY_NOON)


def test_next_change_is_of_windows_not_deadline() -> None:
    policy = a_policy("night", timeWindows=[NIGHT], forceReclaim=True, gracefulReclaimPeriodSeconds=600)
    policy["metadata"]["creationTimestamp"] = "2026-03-02T11:59:57Z"
    answer = node_explanation(asked([policy]), below(), MONDAY_NOON)
    assert (answer.state, answer.reason) == ("Closed", "OutOfTimeWindows")
    assert answer.next_change == datetime(2026, 3, 2, 22, 0, tzinfo=UTC)
    assert answer.deadline == MONDAY_NOON + timedelta(seconds=597)
    assert {each.leased for each in answer.resources} == {"0"}


def test_closed_node_with_deadline_never_says_pods_stay() -> None:
    policy = a_policy("night", timeWindows=[NIGHT], forceReclaim=True)
    answer = node_explanation(asked([policy]), below(), MONDAY_NOON)
    text = node_text(answer, MONDAY_NOON)
    assert "stays" not in text
    assert "no policy of the operator is open now, so no new pods are admitted" in text
    assert "remaining pods are being reclaimed, by operator/night" in text


def test_invalid_policy_reports_last_good_spec() -> None:
    policy = a_policy("bad", timeZone="Mars")
    answer = policy_explanation(policy, PolicySide.OWNER, None, [], "UTC", MONDAY_NOON)
    assert answer.complaint.startswith("spec.timeZone")
    assert (answer.uses_last_good, answer.open, answer.binding) == (False, False, "")
    good = {**policy, "status": {"lastGood": {"cluster": "east"}}}
    answer = policy_explanation(good, PolicySide.OWNER, None, [], "UTC", MONDAY_NOON)
    assert (answer.uses_last_good, answer.open) == (True, True)
