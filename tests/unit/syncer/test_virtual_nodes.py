"""Virtual nodes: copied and hidden fields of a physical node, and fields of other writers."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding, ClusterBindingSpec
from tapestry.apis.field_types import SecretReference
from tapestry.apis.names import virtual_node_name
from tapestry.apis.policies import ResourceLeasingPolicySpec, ResourceLimit
from tapestry.kube.conditions import find_condition
from tapestry.kube.names import label_value_error
from tapestry.kube.objects import Object, annotations_of, labels_of, with_value
from tapestry.kube.patches import apply_merge_patch, owned_patch
from tapestry.kube.pods import taint_named
from tapestry.kube.quantity import ResourceList
from tapestry.kube.selectors import EVERY_NODE, node_selector
from tapestry.syncer.leasing import NO_DEADLINE, Grant, Lease, LeaseRules, LeaseState, Policy, PolicySide, ReclaimTerms
from tapestry.syncer.policies import last_reclaim_terms, removed_policies
from tapestry.syncer.virtual_nodes import Endpoint, virtual_node, withdrawal_patch
from tapestry.syncer.windows import Schedule

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
ROLE = "node-role.kubernetes.io/tapestry"
BALANCERS = "node.kubernetes.io/exclude-from-external-load-balancers"


def new_binding(name: str = "east", **spec: Any) -> Binding:
    reference = SecretReference("east", "tapestry-system")
    return Binding(name, "uid-b", "v1", ClusterBindingSpec("east", reference, **spec))


def new_policy(name: str = "p", is_valid: bool = True, **spec: Any) -> Policy:
    return Policy(
        name, PolicySide.OWNER, ResourceLeasingPolicySpec("east", **spec), Schedule(), EVERY_NODE, NOW, is_valid
    )


def new_lease(
    state: LeaseState = LeaseState.OPEN, *policies: Policy, ends: datetime | None = None, **amounts: str
) -> Lease:
    nothing = ResourceList()["cpu"]
    found = ResourceList.parse(amounts or {"cpu": "4", "memory": "8Gi", "pods": "100"})
    grants = {resource: Grant(amount, "idle", nothing) for resource, amount in found.items()}
    reported = {"ends": ends, "ends_soon": ends is not None}
    return Lease(state, "", found, grants, policies=policies, deciding_policies=policies, **reported)


READY = {
    "type": "Ready",
    "status": "True",
    "reason": "KubeletReady",
    "message": "kubelet is posting ready status",
    "lastHeartbeatTime": "2026-03-02T07:59:59Z",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


def new_node(name: str = "n1", **parts: Any) -> Object:
    labels = {"topology.kubernetes.io/zone": "z1", "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name}
    return {
        "metadata": {"name": name, "uid": "uid-n", "labels": {**labels, **parts.get("labels", {})}},
        "spec": {"taints": parts.get("taints", []), "unschedulable": parts.get("unschedulable", False)},
        "status": {
            "conditions": parts.get("conditions", [READY]),
            "addresses": [
                {"type": "InternalIP", "address": "10.0.0.1"},
                {"type": "ExternalIP", "address": "203.0.113.1"},
                {"type": "Hostname", "address": name},
            ],
            "nodeInfo": {"architecture": "amd64", "kubeletVersion": "v1.34.3"},
        },
    }


def new_taint(key: str, effect: str = "NoSchedule", **rest: str) -> Object:
    return {"key": key, "effect": effect, **rest}


def desired(
    node: Object | None = None,
    lease: Lease | None = None,
    binding: Binding | None = None,
    existing: Object | None = None,
    now: datetime = NOW,
) -> Object:
    return virtual_node(
        node or new_node(), lease or new_lease(), binding or new_binding(), "vnode-east-n1", existing, now
    )


def converged(existing: Object | None, node: Object) -> Object:
    """Return the object on the server after `node` was written."""
    found: Object = apply_merge_patch(existing or {}, owned_patch(existing or {}, node))
    return found


def pairs(node: Object) -> list[tuple[str, str]]:
    return [(taint["key"], taint["effect"]) for taint in node["spec"]["taints"] or ()]


# -- labels and annotations


def test_virtual_node_has_physical_and_own_labels() -> None:
    labels = labels_of(desired())
    assert (labels["topology.kubernetes.io/zone"], labels["kubernetes.io/arch"]) == ("z1", "amd64")
    assert labels["kubernetes.io/hostname"] == "vnode-east-n1"
    assert (labels[ROLE], labels[BALANCERS]) == ("", "")
    assert {key: value for key, value in labels.items() if key.startswith(keys.PREFIX)} == {
        keys.MANAGED_BY: "tapestry",
        keys.NODE_TYPE: "virtual",
        keys.CLUSTER_BINDING: "east",
        keys.CLUSTER_BINDING_UID: "uid-b",
        keys.PHYSICAL_CLUSTER_ID: "east",
        keys.PHYSICAL_NODE_NAME: "n1",
    }


@pytest.mark.parametrize(
    "reserved",
    [
        "node-role.kubernetes.io/control-plane",
        "node-restriction.kubernetes.io/fips",
        "tapestry.io/virtual-cluster",
        "tapestry.io/anything",
    ],
)
def test_cluster_specific_label_is_not_copied(reserved: str) -> None:
    assert reserved not in labels_of(desired(new_node(labels={reserved: "x"})))


def test_physical_node_cannot_imitate_another_binding() -> None:
    pretender = new_node(labels={keys.CLUSTER_BINDING_UID: "another", keys.NODE_TYPE: "real"})
    assert labels_of(desired(pretender)) == labels_of(desired())


def test_long_names_are_complete_in_annotations() -> None:
    name, binding = "ip-10-0-0-1." + "region." * 12 + "internal", "b" * 100
    found = virtual_node(
        new_node(name), new_lease(), new_binding(binding), virtual_node_name("east", name), existing=None, now=NOW
    )
    assert not [value for value in labels_of(found).values() if label_value_error(value)]
    assert labels_of(found)[keys.PHYSICAL_NODE_NAME].startswith("ip-10-0-0-1.region")
    assert annotations_of(found)[keys.PHYSICAL_NODE_NAME] == name
    assert annotations_of(found)[keys.CLUSTER_BINDING] == binding


def test_policies_are_named_with_their_side() -> None:
    found = desired(lease=new_lease(LeaseState.OPEN, new_policy("a"), new_policy("b")))
    assert annotations_of(found)[keys.POLICIES_APPLIED] == "owner/a,owner/b"
    assert annotations_of(found)[keys.PHYSICAL_NODE_UID] == "uid-n"


def test_lease_end_is_annotated_while_near() -> None:
    assert keys.LEASE_ENDS not in annotations_of(desired())
    far = replace(new_lease(ends=LATER), ends_soon=False)
    assert keys.LEASE_ENDS not in annotations_of(desired(lease=far))
    near = converged(None, desired(lease=new_lease(ends=LATER)))
    assert annotations_of(near)[keys.LEASE_ENDS] == "2026-03-02T09:00:00Z"
    over = converged(near, desired(lease=new_lease(LeaseState.CLOSED), existing=near))
    assert keys.LEASE_ENDS not in annotations_of(over)


def test_closed_node_gives_its_reason() -> None:
    closed = converged(None, desired(lease=new_lease(LeaseState.CLOSED)))
    assert annotations_of(closed)[keys.CLOSED_REASON] == new_lease(LeaseState.CLOSED).reason
    assert keys.CLOSED_REASON not in annotations_of(converged(closed, desired(existing=closed)))


# -- taints


def test_default_taint_unless_binding_disables_it() -> None:
    assert pairs(desired()) == [(keys.VNODE_TAINT, "NoSchedule")]
    assert pairs(desired(binding=new_binding(disable_node_default_taint=True))) == []


def test_empty_taints_cause_no_second_write() -> None:
    bare = desired(binding=new_binding(disable_node_default_taint=True))
    assert owned_patch({**bare, "spec": {}}, bare) == {}


def test_owners_taints_precede_ours_in_order() -> None:
    node = new_node(taints=[new_taint("b", value="x"), new_taint("a", "PreferNoSchedule")])
    assert desired(node)["spec"]["taints"] == [
        new_taint("b", value="x"),
        new_taint("a", "PreferNoSchedule"),
        new_taint(keys.VNODE_TAINT),
    ]


def test_no_execute_becomes_no_schedule() -> None:
    node = new_node(taints=[new_taint("a", "NoExecute", timeAdded="2026-01-01T00:00:00Z")])
    assert desired(node)["spec"]["taints"][0] == new_taint("a")


def test_key_with_both_effects_has_one() -> None:
    node = new_node(
        taints=[new_taint("a", value="x"), new_taint("a", "NoExecute", value="x"), new_taint("a", "PreferNoSchedule")]
    )
    assert pairs(desired(node))[:-1] == [("a", "NoSchedule"), ("a", "PreferNoSchedule")]


@pytest.mark.parametrize(
    "key",
    [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unschedulable",
        "node.kubernetes.io/disk-pressure",
        "tapestry.io/vnode",
        "tapestry.io/withdrawing",
    ],
)
def test_lifecycle_and_own_taints_are_not_copied(key: str) -> None:
    assert desired(new_node(taints=[new_taint(key, effect) for effect in ("NoSchedule", "NoExecute")])) == desired()


def test_cordon_becomes_a_taint() -> None:
    assert (keys.PHYSICAL_NODE_UNSCHEDULABLE_TAINT, "NoSchedule") in pairs(desired(new_node(unschedulable=True)))


def test_closed_taint_keeps_its_start_time() -> None:
    closed = converged(None, desired(lease=new_lease(LeaseState.CLOSED)))
    taint = new_taint(keys.OUT_OF_TIME_WINDOWS_TAINT, timeAdded="2026-03-02T08:00:00Z")
    assert taint_named(closed, keys.OUT_OF_TIME_WINDOWS_TAINT) == taint
    still = converged(closed, desired(lease=new_lease(LeaseState.CLOSED), existing=closed, now=LATER))
    assert taint_named(still, keys.OUT_OF_TIME_WINDOWS_TAINT) == taint
    opened = converged(still, desired(existing=still, now=LATER))
    assert taint_named(opened, keys.OUT_OF_TIME_WINDOWS_TAINT) is None
    again = desired(lease=new_lease(LeaseState.CLOSED), existing=opened, now=LATER)
    assert taint_named(again, keys.OUT_OF_TIME_WINDOWS_TAINT) == {**taint, "timeAdded": "2026-03-02T09:00:00Z"}


def test_withdrawn_taint_is_removed_when_leased_again() -> None:
    node = converged(None, desired())
    going = converged(node, withdrawal_patch(node, NOW))
    assert pairs(going) == [(keys.VNODE_TAINT, "NoSchedule"), (keys.WITHDRAWING_TAINT, "NoSchedule")]
    assert taint_named(going, keys.WITHDRAWING_TAINT) == new_taint(
        keys.WITHDRAWING_TAINT, timeAdded="2026-03-02T08:00:00Z"
    )
    assert pairs(converged(going, desired(existing=going, now=LATER))) == [(keys.VNODE_TAINT, "NoSchedule")]


def test_no_taint_has_effect_no_execute() -> None:
    node = new_node(taints=[new_taint("a", "NoExecute")], unschedulable=True)
    found = desired(node, new_lease(LeaseState.CLOSED))
    assert {effect for _, effect in pairs(converged(found, withdrawal_patch(found, NOW)))} == {"NoSchedule"}


# -- status


def test_capacity_and_allocatable_are_the_leased_amounts() -> None:
    status = desired(lease=new_lease(cpu="2", memory="4Gi", **{"nvidia.com/gpu": "1"}))["status"]
    assert status["capacity"] == status["allocatable"] == {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "1"}


def test_missing_resource_is_removed() -> None:
    before = converged(None, desired(lease=new_lease(cpu="2", **{"nvidia.com/gpu": "1"})))
    after = converged(before, desired(lease=new_lease(cpu="2"), existing=before))
    assert after["status"]["capacity"] == after["status"]["allocatable"] == {"cpu": "2"}


def test_addresses_are_internal_and_virtual_hostname() -> None:
    assert desired()["status"]["addresses"] == [
        {"type": "InternalIP", "address": "10.0.0.1"},
        {"type": "Hostname", "address": "vnode-east-n1"},
    ]
    assert desired()["status"]["nodeInfo"]["kubeletVersion"] == "v1.34.3"


def test_kubelet_address_is_first_without_hostname() -> None:
    def node_with(host: str) -> Object:
        kubelet = Endpoint(host, 10250)
        return virtual_node(new_node(), new_lease(), new_binding(), "vnode-east-n1", None, NOW, kubelet)

    def status_with(host: str) -> Object:
        status: Object = node_with(host)["status"]
        return status

    own = {"type": "InternalIP", "address": "10.0.0.1"}
    assert status_with("10.9.9.9")["addresses"] == [{"type": "InternalIP", "address": "10.9.9.9"}, own]
    assert status_with("10.0.0.1")["addresses"] == [own]
    assert status_with("10.9.9.9")["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 10250}}
    path = annotations_of(node_with("10.9.9.9"))[keys.METRICS_PATH]
    assert (path, keys.METRICS_PATH in annotations_of(desired())) == ("/nodes/vnode-east-n1/metrics/resource", False)


def test_heartbeat_changes_nothing() -> None:
    beats = [new_node(conditions=[{**READY, "lastHeartbeatTime": f"2026-03-02T08:00:0{at}Z"}]) for at in range(3)]
    assert desired(beats[0]) == desired(beats[1]) == desired(beats[2])


def test_unready_node_is_unready_in_virtual_cluster() -> None:
    down = {**READY, "status": "False", "reason": "KubeletNotReady", "lastTransitionTime": "2026-03-02T07:00:00Z"}
    found = find_condition(desired(new_node(conditions=[down]))["status"]["conditions"], "Ready")
    assert found == {**down, "lastHeartbeatTime": "2026-03-02T07:00:00Z"}


def test_untrusted_conditions_are_bounded() -> None:
    many = [{**READY, "type": f"C{at}", "message": "\N{SNOWMAN}" * 4000, "extra": "x"} for at in range(100)]
    found = desired(new_node(conditions=many))["status"]["conditions"]
    assert len(found) == 32
    assert max(len(each["message"].encode()) for each in found) <= 4096
    assert all("extra" not in each for each in found)


def test_condition_without_message_stays_without() -> None:
    """A server would drop an empty message, and every pass would write it again."""
    quiet = {key: value for key, value in READY.items() if key != "message"}
    assert "message" not in desired(new_node(conditions=[{**quiet, "message": ""}]))["status"]["conditions"][0]


# -- other writers


def test_second_pass_writes_nothing() -> None:
    for lease in (new_lease(), new_lease(LeaseState.CLOSED, new_policy()), new_lease(ends=LATER)):
        node = new_node(taints=[new_taint("a", "NoExecute")], unschedulable=True)
        found = converged(None, desired(node, lease))
        assert owned_patch(found, desired(node, lease, existing=found, now=LATER)) == {}


def edited(node: Object, **parts: Any) -> Object:
    """Return the node after a user has set labels, annotations or taints; None removes one."""
    taints = [*node["spec"]["taints"], *parts.pop("taints", [])]
    found: Object = apply_merge_patch(node, {"metadata": parts, "spec": {"taints": taints}})
    return found


def test_users_additions_survive() -> None:
    node = converged(None, desired())
    own = edited(node, labels={"team": "a"}, annotations={"note": "b"}, taints=[new_taint("mine", "NoExecute")])
    later = converged(own, desired(new_node(labels={"new": "1"}), existing=own))
    assert labels_of(later)["team"] == "a"
    assert annotations_of(later)["note"] == "b"
    assert taint_named(later, "mine") == new_taint("mine", "NoExecute")
    assert labels_of(later)["new"] == "1"


@pytest.mark.parametrize("mine", ["z9", None])
def test_users_change_stays_until_the_owner_changes_it(mine: str | None) -> None:
    zone = "topology.kubernetes.io/zone"
    node = edited(converged(None, desired()), labels={zone: mine})
    for _ in range(2):
        node = converged(node, desired(existing=node))
        assert labels_of(node).get(zone) == mine
    node = converged(node, desired(new_node(labels={zone: "z2"}), existing=node))
    assert labels_of(node)[zone] == "z2"


def test_unwanted_own_values_are_removed() -> None:
    old = new_node(labels={"pool": "spot"}, taints=[new_taint("spot")])
    node = converged(None, desired(old))
    node = converged(node, desired(existing=node))
    assert "pool" not in labels_of(node)
    assert taint_named(node, "spot") is None


def test_unwanted_value_changed_by_user_stays() -> None:
    node = edited(converged(None, desired(new_node(labels={"pool": "spot"}))), labels={"pool": "mine"})
    node = converged(node, desired(existing=node))
    assert labels_of(node)["pool"] == "mine"


@pytest.mark.parametrize("theirs", ["another", None])
def test_own_keys_cannot_be_changed(theirs: str | None) -> None:
    node = converged(None, desired(lease=new_lease(LeaseState.OPEN, new_policy(), ends=LATER)))
    changed = edited(
        node,
        labels={keys.CLUSTER_BINDING_UID: theirs, keys.NODE_TYPE: theirs},
        annotations={keys.POLICIES_APPLIED: theirs, keys.LEASE_ENDS: theirs},
    )
    again = converged(changed, desired(lease=new_lease(LeaseState.OPEN, new_policy()), existing=changed))
    assert labels_of(again)[keys.CLUSTER_BINDING_UID] == "uid-b"
    assert labels_of(again)[keys.NODE_TYPE] == "virtual"
    assert annotations_of(again)[keys.POLICIES_APPLIED] == "owner/p"
    assert keys.LEASE_ENDS not in annotations_of(again)


def test_removed_own_taint_is_restored() -> None:
    node = converged(None, desired(lease=new_lease(LeaseState.CLOSED)))
    bare = with_value(node, ("spec", "taints"), [])
    assert pairs(converged(bare, desired(lease=new_lease(LeaseState.CLOSED), existing=bare))) == pairs(node)


def test_taints_of_virtual_controllers_stay() -> None:
    node = edited(converged(None, desired()), taints=[new_taint("node.kubernetes.io/unschedulable")])
    assert taint_named(converged(node, desired(existing=node)), "node.kubernetes.io/unschedulable")


@pytest.mark.parametrize(
    "text", ["", "nonsense", "[]", '{"labels": 1}', '{"taints": ["ab", 1]}', '{"taints": [["a"]]}']
)
def test_unreadable_record_counts_as_empty(text: str) -> None:
    node = edited(converged(None, desired()), annotations={keys.EXPECTED_METADATA: text}, labels={"team": "a"})
    again = converged(node, desired(existing=node))
    assert labels_of(again)["team"] == "a"
    assert owned_patch(again, desired(existing=again)) == {}


words = st.dictionaries(st.sampled_from(["a", "b", "c", "tapestry.io/x"]), st.sampled_from(["1", "2"]))
taints = st.lists(
    st.builds(new_taint, st.sampled_from(["a", "b"]), st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"])),
    max_size=3,
    unique_by=lambda taint: (taint["key"], taint["effect"]),
)


@given(
    st.lists(
        st.tuples(words, taints, words, st.sampled_from([LeaseState.OPEN, LeaseState.CLOSED])), min_size=1, max_size=4
    )
)
def test_one_pass_suffices_and_taints_are_unique(
    steps: list[tuple[dict[str, str], list[Object], dict[str, str], LeaseState]],
) -> None:
    node: Object | None = None
    for physical_labels, tainted, virtual_labels, state in steps:
        physical, lease = new_node(labels=physical_labels, taints=tainted), new_lease(state)
        node = converged(node, desired(physical, lease, existing=node))
        assert owned_patch(node, desired(physical, lease, existing=node, now=LATER)) == {}
        assert len(set(pairs(node))) == len(pairs(node))
        node = edited(node, labels=virtual_labels)


# -- terms of the last lease


def test_last_terms_count_from_the_withdrawal() -> None:
    lease = new_lease(
        LeaseState.OPEN,
        new_policy("a", force_reclaim=True, graceful_reclaim_period_seconds=60),
        new_policy("b", force_reclaim=True, graceful_reclaim_period_seconds=600, evict_during_grace=True),
        new_policy("c", graceful_reclaim_period_seconds=6000),
    )
    node = converged(None, desired(lease=lease))
    assert last_reclaim_terms(node, NOW).deadline == NOW + timedelta(minutes=10)
    going = converged(node, withdrawal_patch(node, NOW))
    assert last_reclaim_terms(going, LATER) == ReclaimTerms(
        NOW + timedelta(minutes=10), True, by="the policy it was leased under"
    )


def test_pods_finish_without_forced_policy() -> None:
    node = converged(None, desired(lease=new_lease(LeaseState.OPEN, new_policy(evict_during_grace=True))))
    found = last_reclaim_terms(node, NOW)
    assert (found.deadline, found.evict) == (None, False)


@pytest.mark.parametrize(
    "text",
    [
        *("", "nonsense", "[]", '{"force": true}', '[{"force": true}]'),
        *(
            f'[{{"policy": "owner/p", "force": true, {rest}}}]'
            for rest in ('"grace": -1', '"grace": 1e30', '"gone": "2026-01-01T00:00:00"', '"lent": {"cpu": "lots"}')
        ),
        *(f'[{{"policy": "{policy}", "force": true}}]' for policy in ("p", "nobody/p", "owner/")),
    ],
)
def test_unreadable_terms_evict_no_pod(text: str) -> None:
    node = edited(converged(None, desired()), annotations={keys.LAST_TERMS: text})
    assert last_reclaim_terms(node, NOW) == NO_DEADLINE
    rules = LeaseRules([], [new_policy("other")], EVERY_NODE)
    assert removed_policies(rules, new_node(), node, NOW) == []


def test_last_terms_survive_invalid_policies() -> None:
    strict, typo = new_policy(force_reclaim=True), new_policy(is_valid=False)
    node = converged(None, desired(lease=new_lease(LeaseState.OPEN, strict)))
    held = converged(node, desired(lease=new_lease(LeaseState.CLOSED, typo), existing=node))
    assert last_reclaim_terms(held, NOW).deadline == NOW
    fresh = converged(None, desired(lease=new_lease(LeaseState.CLOSED, typo)))
    assert last_reclaim_terms(fresh, NOW).deadline is None


# -- removed policies


def rules_with(*policies: Policy) -> LeaseRules:
    return LeaseRules([], list(policies), EVERY_NODE)


def test_removed_policy_is_remembered_with_its_amounts() -> None:
    given = new_policy("a", force_reclaim=True, graceful_reclaim_period_seconds=60, evict_during_grace=True)
    node = converged(None, desired(lease=new_lease(LeaseState.OPEN, given, cpu="3")))
    assert removed_policies(rules_with(given), new_node(), node, LATER) == []
    (deleted,) = removed_policies(rules_with(new_policy("b")), new_node(), node, LATER)
    assert (str(deleted), deleted.removed_at, deleted.is_open(NOW), deleted.is_open(LATER)) == (
        "owner/a",
        LATER,
        True,
        False,
    )
    assert (deleted.spec.force_reclaim, deleted.spec.graceful_reclaim_period_seconds) == (True, 60)
    assert deleted.spec.evict_during_grace
    assert deleted.limit_of("cpu") == ResourceLimit("cpu", quantity="3")


def test_policy_that_stops_selecting_counts_as_removed() -> None:
    node = converged(None, desired(lease=new_lease(LeaseState.OPEN, new_policy("a"))))
    elsewhere = replace(new_policy("a"), selector=node_selector({"nodeSelectorTerms": []}))
    assert list(map(str, removed_policies(rules_with(elsewhere), new_node(), node, LATER))) == ["owner/a"]


def test_removal_time_and_amounts_remain_while_needed() -> None:
    node = converged(None, desired(lease=new_lease(LeaseState.OPEN, new_policy("a"), cpu="3")))
    removed = removed_policies(rules_with(new_policy("b")), new_node(), node, LATER)
    closed = replace(
        new_lease(LeaseState.CLOSED, new_policy("b"), cpu="1"),
        removed_policies=tuple(removed),
        deciding_policies=tuple(removed),
    )
    held = converged(node, desired(lease=closed, existing=node, now=LATER))
    again = removed_policies(rules_with(new_policy("b")), new_node(), held, LATER + timedelta(hours=1))
    assert again == removed
    assert owned_patch(held, desired(lease=closed, existing=held, now=LATER)) == {}
    opened = converged(held, desired(lease=new_lease(LeaseState.OPEN, new_policy("b")), existing=held))
    assert removed_policies(rules_with(new_policy("b")), new_node(), opened, LATER) == []
