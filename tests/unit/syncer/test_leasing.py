"""Leases: an example of each rule, and properties of all leases."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.apis.keys import RECLAIM, RECLAIM_NOW
from tapestry.apis.policies import ResourceLeasingPolicySpec, ResourceLimit, TimeWindow
from tapestry.kube.objects import Object
from tapestry.kube.pod_requests import PodAllocation
from tapestry.kube.quantity import ZERO, Quantity, ResourceList, parse_quantity, smallest_unit
from tapestry.kube.selectors import EVERY_NODE, node_selector
from tapestry.syncer.leasing import (
    NO_DEADLINE,
    Lease,
    LeaseRules,
    LeaseState,
    Policy,
    PolicySide,
    ReclaimTerms,
    lease_for,
)
from tapestry.syncer.reclaim import reclaim_for
from tapestry.syncer.windows import NEVER_OPEN, schedule_of

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


def at(clock: str, day: int = 2) -> datetime:
    """Return a time on a day of March 2026 in UTC; the 2nd is a Monday."""
    hour, minute = map(int, clock.split(":"))
    return datetime(2026, 3, day, hour, minute, tzinfo=UTC)


def new_policy(
    name: str = "p",
    hours: str = "",
    *,
    side: PolicySide = PolicySide.OPERATOR,
    changed_at: datetime = LONG_AGO,
    only: str = "",
    is_valid: bool = True,
    force: bool = False,
    grace: int = 0,
    evict: bool = False,
    **limits: str,
) -> Policy:
    """Return a policy, as in `new_policy("night", "22:00-06:00", cpu="4", memory="50%", pods="10 50%")`."""
    windows = tuple(TimeWindow(*each.split("-")) for each in hours.split())
    found = []
    for resource, texts in limits.items():
        percent = next((int(text[:-1]) for text in texts.split() if text.endswith("%")), None)
        quantity = next((text for text in texts.split() if not text.endswith("%")), None)
        found.append(ResourceLimit({"gpu": "nvidia.com/gpu"}.get(resource, resource), quantity, percent))
    spec = ResourceLeasingPolicySpec(
        "east",
        time_windows=windows,
        resource_limits=tuple(found),
        force_reclaim=force,
        graceful_reclaim_period_seconds=grace,
        evict_during_grace=evict,
    )
    term = {"matchExpressions": [{"key": only, "operator": "Exists"}]}
    selector = node_selector({"nodeSelectorTerms": [term]}) if only else EVERY_NODE
    schedule = schedule_of(spec, "UTC") if is_valid else NEVER_OPEN
    return Policy(name, side, spec, schedule, selector, changed_at, is_valid)


def new_owners(name: str = "p", hours: str = "", **rest: Any) -> Policy:
    return new_policy(name, hours, side=PolicySide.OWNER, **rest)


def new_node(labels: Sequence[str] = (), reclaim: str = "", **allocatable: str) -> Object:
    amounts = {"cpu": "8", "memory": "16Gi", "pods": "110", **allocatable}
    annotations = {RECLAIM: reclaim} if reclaim else {}
    metadata = {"name": "n1", "labels": dict.fromkeys(labels, ""), "annotations": annotations}
    return {"metadata": metadata, "status": {"allocatable": amounts, "capacity": amounts}}


def new_hold(since: datetime = LONG_AGO, **amounts: str) -> PodAllocation:
    return PodAllocation(ResourceList.parse(amounts), since)


def lease(
    *policies: Policy,
    node: Object | None = None,
    now: datetime | None = None,
    foreign: Sequence[PodAllocation] = (),
    used: str = "0",
    removed_policies: Sequence[Policy] = (),
    **rules: Any,
) -> Lease:
    """Return the lease of a node of which our pods use so much CPU."""
    operator = [policy for policy in policies if policy.side is PolicySide.OPERATOR]
    owner = [policy for policy in policies if policy.side is PolicySide.OWNER]
    given = LeaseRules(operator, owner, **{"selector": EVERY_NODE, **rules})
    amounts = [ResourceList.parse({"cpu": used})]
    return lease_for(node or new_node(), foreign, amounts, given, now or at("12:00"), removed_policies)


def texts(lease: Lease) -> tuple[str, str]:
    return str(lease.amounts["cpu"]), str(lease.amounts["memory"])


# -- withdrawal


def test_no_policy_means_no_lease() -> None:
    found = lease()
    assert (found.state, found.reason) == (LeaseState.WITHDRAWN, "NoPolicy")
    assert found.amounts == {}
    assert found.next_change is None


def test_policy_for_other_nodes_does_not_count() -> None:
    assert lease(new_policy(only="gpu")).reason == "NoPolicy"
    assert lease(new_policy(only="gpu"), node=new_node(["gpu"])).state is LeaseState.OPEN


def test_unselected_node_is_not_leased() -> None:
    nowhere = node_selector({"nodeSelectorTerms": []})
    assert lease(new_policy(), selector=nowhere).reason == "NodeNotSelected"


def test_policy_of_one_side_is_enough() -> None:
    assert lease(new_policy()).state is LeaseState.OPEN
    assert lease(new_owners()).state is LeaseState.OPEN


def test_required_owner_policy_must_exist() -> None:
    found = lease(new_policy(), new_owners(only="gpu"), owner_required=True)
    assert (found.state, found.reason) == (LeaseState.WITHDRAWN, "OwnerPolicyRequired")
    assert lease(new_policy(), new_owners(), owner_required=True).state is LeaseState.OPEN
    assert lease(new_owners(), owner_required=True).state is LeaseState.OPEN


# -- amounts


def test_policy_without_limits_leases_all_idle_amounts() -> None:
    found = lease(new_policy(), foreign=[new_hold(cpu="1500m", memory="3Gi", pods="2")])
    assert texts(found) == ("6500m", "13Gi")
    assert str(found.amounts["pods"]) == "108"
    assert found.amounts == found.idle


def test_foreign_overcommit_leaves_zero() -> None:
    assert lease(new_policy(), foreign=[new_hold(cpu="5"), new_hold(cpu="5")]).amounts["cpu"] == ZERO


def test_most_generous_policy_counts_per_resource() -> None:
    found = lease(new_policy("a", cpu="2", memory="12Gi"), new_policy("b", cpu="6", memory="4Gi"))
    assert texts(found) == ("6", "12Gi")
    assert (found.grants["cpu"].by, found.grants["memory"].by) == ("operator/b", "operator/a")


def test_resource_is_limited_if_any_policy_names_it() -> None:
    found = lease(new_policy("a", cpu="2"), new_policy("b"))
    assert texts(found) == ("2", "16Gi")
    assert found.grants["memory"].by == "idle"


def test_closed_policy_neither_extends_nor_limits() -> None:
    day, night = new_policy("day", "08:00-20:00", cpu="2"), new_policy("night", "20:00-08:00", cpu="6", memory="1Gi")
    assert texts(lease(day, night, now=at("12:00"))) == ("2", "16Gi")
    assert texts(lease(day, night, now=at("22:00"))) == ("6", "1Gi")


def test_smaller_amount_of_both_sides_counts() -> None:
    found = lease(new_policy("a", cpu="6", memory="4Gi"), new_owners("b", cpu="2", memory="8Gi"))
    assert texts(found) == ("2", "4Gi")
    assert (found.grants["cpu"].by, found.grants["memory"].by) == ("owner/b", "operator/a")


def test_resource_named_by_one_side_is_limited() -> None:
    assert texts(lease(new_policy("a", cpu="3"), new_owners("b", memory="4Gi"))) == ("3", "4Gi")


@pytest.mark.parametrize("zero", ["0", "0%", "5 0%", "0 50%"])
def test_zero_limit_means_zero(zero: str) -> None:
    found = lease(new_policy(cpu=zero))
    assert found.amounts["cpu"] == ZERO
    assert str(found.amounts["memory"]) == "16Gi"


def test_percent_is_of_idle_and_smaller_limit_counts() -> None:
    found = lease(new_policy(cpu="3 50%", memory="10Gi 25%"), foreign=[new_hold(cpu="4")])
    assert texts(found) == ("2", "4Gi")


@pytest.mark.parametrize(
    ("resource", "have", "percent", "whole", "lost"),
    [
        ("gpu", "3", "50%", "1", "500m"),
        ("gpu", "1", "99%", "0", "990m"),
        ("pods", "97", "50%", "48", "500m"),
        ("memory", "1001", "50%", "500", "500m"),
        ("cpu", "1001m", "50%", "500m", "500u"),
        ("hugepages-2Mi", "6Mi", "50%", "2Mi", "1Mi"),
    ],
)
def test_whole_resources_are_floored_with_remainder(
    resource: str, have: str, percent: str, whole: str, lost: str
) -> None:
    name = {"gpu": "nvidia.com/gpu"}.get(resource, resource)
    found = lease(new_policy(**{resource: percent}), node=new_node(**{name: have})).grants[name]
    assert (str(found.amount), str(found.lost)) == (whole, lost)


def test_limit_for_a_missing_resource_adds_nothing() -> None:
    assert "nvidia.com/gpu" not in lease(new_policy(gpu="4")).amounts


def test_capacity_replaces_missing_allocatable() -> None:
    node = new_node()
    assert texts(lease(new_policy(), node={**node, "status": {"capacity": {"cpu": "4"}}})) == ("4", "0")
    assert lease(new_policy(), node={**node, "status": {}}).amounts == {}


@pytest.mark.parametrize(
    ("have", "used", "limits", "leased"),
    [
        pytest.param(("4", "8Gi"), ("1500m", "3Gi"), {}, ("2500m", "5Gi"), id="N3"),
        pytest.param(("4", "8Gi"), ("500m", "1Gi"), {"cpu": "2", "memory": "4Gi"}, ("2", "4Gi"), id="N4"),
        pytest.param(("4", "8Gi"), ("1", "2Gi"), {"cpu": "3 50%", "memory": "2Gi 75%"}, ("1500m", "2Gi"), id="N6"),
    ],
)
def test_kubeocean_scenarios_give_the_same_amounts(
    have: tuple[str, str], used: tuple[str, str], limits: dict[str, str], leased: tuple[str, str]
) -> None:
    node = new_node(cpu=have[0], memory=have[1])
    found = lease(new_policy(**limits), node=node, foreign=[new_hold(cpu=used[0], memory=used[1])])
    assert texts(found) == leased


def test_more_generous_policy_counts_not_the_older() -> None:
    """Kubeocean takes the policy that was created first (N5)."""
    older, newer = new_policy("older", cpu="1500m", memory="3Gi"), new_policy("newer", cpu="3", memory="6Gi")
    assert texts(lease(older, newer)) == texts(lease(newer, older)) == ("3", "6Gi")


# -- times


def test_closed_window_only_adds_a_taint() -> None:
    night = new_policy("night", "22:00-06:00", cpu="4")
    before, after = lease(night, now=at("05:59")), lease(night, now=at("06:00"))
    assert (before.state, after.state, after.reason) == (LeaseState.OPEN, LeaseState.CLOSED, "OutOfTimeWindows")
    assert after.amounts == before.amounts


def test_closed_node_keeps_amounts_of_last_policies() -> None:
    early, late = new_policy("early", "00:00-06:00", cpu="6"), new_policy("late", "00:00-08:00", cpu="2")
    assert texts(lease(early, late, now=at("05:00")))[0] == "6"
    assert texts(lease(early, late, now=at("07:00")))[0] == "2"
    assert texts(lease(early, late, now=at("09:00")))[0] == "2"


def test_one_closed_side_closes_the_node() -> None:
    always, night = new_policy("always"), new_owners("night", "22:00-06:00")
    assert lease(always, night, now=at("12:00")).state is LeaseState.CLOSED
    assert lease(always, night, now=at("23:00")).state is LeaseState.OPEN


def test_side_is_open_while_any_policy_is() -> None:
    day, night = new_policy("day", "08:00-20:00"), new_policy("night", "22:00-06:00")
    states = [lease(day, night, now=at(clock)).state for clock in ("07:00", "12:00", "21:00", "23:00")]
    assert states == [LeaseState.CLOSED, LeaseState.OPEN, LeaseState.CLOSED, LeaseState.OPEN]


def test_lease_ends_when_its_first_side_closes() -> None:
    short, long = new_policy("short", "08:00-12:00"), new_policy("long", "10:00-20:00")
    assert lease(short, long, now=at("11:00")).ends == at("20:00")
    assert lease(short, long, new_owners("owner", "00:00-18:00"), now=at("11:00")).ends == at("18:00")
    assert lease(new_policy("always"), now=at("11:00")).ends is None
    assert lease(new_policy("always"), short, now=at("11:00")).ends is None
    assert lease(short, now=at("13:00")).ends is None


def test_lease_warns_before_its_end() -> None:
    day = new_policy("day", "08:00-18:00")
    assert not lease(day, now=at("17:49")).ends_soon
    assert lease(day, now=at("17:49")).next_change == at("17:50")
    assert lease(day, now=at("17:50")).ends_soon
    assert lease(day, now=at("17:50")).next_change == at("18:00")
    assert not lease(day, now=at("18:00")).ends_soon
    assert lease(day, now=at("17:00"), warning=timedelta(hours=2)).ends_soon


def test_next_change_is_the_first_of_all_policies() -> None:
    found = lease(new_policy("a", "08:00-18:00"), new_owners("b", "06:00-16:00"), now=at("12:00"), warning=timedelta(0))
    assert found.next_change == at("16:00")


# -- reclaim terms


def test_pods_may_finish_without_force() -> None:
    gentle = new_policy("p", "08:00-18:00", grace=600, evict=True)
    found = lease(gentle, now=at("18:00"))
    assert found.terms == ReclaimTerms(deadline=None, evict=False, by="operator/p")
    assert found.next_change == at("08:00", day=3)


def test_forced_deadline_is_edge_plus_grace() -> None:
    strict = new_policy("p", "08:00-18:00", force=True, grace=600)
    found = lease(strict, now=at("18:05"))
    assert found.terms == ReclaimTerms(deadline=at("18:10"), evict=False, by="operator/p")
    assert found.next_change == at("18:10")
    assert lease(strict, now=at("18:10")).next_change == at("08:00", day=3)
    assert lease(strict, now=at("07:00")).terms.deadline == at("18:10", day=1)


def test_evictions_only_if_the_policy_asks() -> None:
    assert lease(new_policy("p", "08:00-18:00", force=True, evict=True), now=at("18:05")).terms.evict


def test_terms_are_of_the_closing_policy() -> None:
    early = new_policy("early", "00:00-06:00", force=True, grace=60)
    late = new_policy("late", "00:00-08:00", force=True, grace=600)
    found = lease(early, late, now=at("08:00"))
    assert (found.terms.deadline, found.terms.by) == (at("08:10"), "operator/late")


def test_first_deadline_counts_of_two_closing_policies() -> None:
    a, b = new_policy("a", "00:00-06:00"), new_policy("b", "01:00-06:00", force=True, grace=60)
    assert lease(a, b, now=at("06:00")).terms == lease(b, a, now=at("06:00")).terms
    assert lease(a, b, now=at("06:00")).terms.by == "operator/b"


def test_first_deadline_counts_of_two_closed_sides() -> None:
    operator = new_policy("a", "00:00-06:00", force=True, grace=7200)
    owner = new_owners("b", "00:00-07:00", force=True, grace=60)
    assert lease(operator, owner, now=at("06:30")).terms.deadline == at("08:00")
    assert lease(operator, owner, now=at("07:00")).terms == ReclaimTerms(at("07:01"), by="owner/b")


def test_open_side_does_not_affect_terms() -> None:
    found = lease(new_policy("a", "00:00-06:00"), new_owners("b", force=True), now=at("06:30"))
    assert found.terms == ReclaimTerms(by="operator/a")


def test_edited_policy_closes_at_the_edit() -> None:
    """The policy was always open, and at 12:00 got a window that ended at 06:00."""
    by_hand = new_policy("p", "00:00-06:00", force=True, grace=600, changed_at=at("12:00"))
    assert lease(by_hand, now=at("12:01")).terms.deadline == at("12:10")
    assert lease(by_hand, now=at("12:01")).next_change == at("12:10")


def test_edit_of_closed_policy_restarts_its_grace() -> None:
    edited = new_policy("p", "08:00-18:00", force=True, grace=600, changed_at=at("19:00"))
    assert lease(edited, now=at("19:01")).terms.deadline == at("19:10")


def test_open_node_has_no_terms() -> None:
    assert lease(new_policy("p", "08:00-18:00", force=True), now=at("12:00")).terms == NO_DEADLINE


# -- the owner's kill switch


@pytest.mark.parametrize("where", ["node", "cluster"])
@pytest.mark.parametrize("clock", ["12:00", "20:00"])
def test_kill_switch_reclaims_everything_now(where: str, clock: str) -> None:
    now, gentle = at(clock), new_policy("p", "08:00-18:00", grace=3600)
    marked = {"node": new_node(reclaim=RECLAIM_NOW)} if where == "node" else {"reclaim_now": True}
    found = lease(gentle, now=now, used="8", **marked)
    assert (found.state, found.reason) == (LeaseState.CLOSED, "Reclaimed")
    assert found.terms == ReclaimTerms(deadline=now, by="the owner's kill switch", twins_first=True)
    assert found.ends is None


def test_only_the_value_now_is_a_kill_switch() -> None:
    assert lease(new_policy(), node=new_node(reclaim="later")).state is LeaseState.OPEN


def test_kill_switch_applies_to_withdrawn_nodes() -> None:
    found = lease(node=new_node(reclaim=RECLAIM_NOW))
    assert (found.state, found.terms.deadline) == (LeaseState.WITHDRAWN, at("12:00"))
    assert lease().terms == NO_DEADLINE


# -- excess over a reduced lease

DAY = new_policy("day", cpu="50%")
NIGHT = new_policy("night", "20:00-08:00", force=True, grace=600, evict=True, cpu="100%")


def excess_of(found: Lease) -> str | None:
    return str(found.excess[0]["cpu"]) if found.excess else None


def test_forced_policy_reclaims_what_others_do_not_lease() -> None:
    found = lease(DAY, NIGHT, now=at("08:00"), used="6")
    assert (found.state, str(found.amounts["cpu"])) == (LeaseState.OPEN, "4")
    assert found.excess == (ResourceList.parse({"cpu": "4"}), ReclaimTerms(at("08:10"), True, by="operator/night"))
    assert found.next_change == at("08:10")


def test_pods_within_the_rest_are_not_reclaimed() -> None:
    assert lease(DAY, NIGHT, now=at("08:00"), used="4").excess is None


def test_closing_policy_without_force_reclaims_nothing() -> None:
    gentle = new_policy("night", "20:00-08:00", cpu="100%")
    assert lease(DAY, gentle, now=at("08:00"), used="6").excess is None


def test_foreign_pods_cause_no_reclaim() -> None:
    assert lease(DAY, foreign=[new_hold(at("09:00"), cpu="6")], now=at("09:30"), used="4").excess is None
    late = new_hold(at("09:00"), cpu="6")
    assert lease(DAY, NIGHT, foreign=[late], now=at("09:30"), used="4").excess is None


def test_foreign_pods_before_the_edge_count() -> None:
    found = lease(DAY, NIGHT, foreign=[new_hold(at("07:00"), cpu="4")], now=at("08:00"), used="4")
    assert excess_of(found) == "2"


def test_foreign_pods_during_grace_do_not_count() -> None:
    found = lease(DAY, NIGHT, foreign=[new_hold(at("08:05"), cpu="4")], now=at("08:06"), used="6")
    assert (str(found.amounts["cpu"]), excess_of(found)) == ("2", "4")


def test_only_the_closed_policys_amount_is_reclaimed() -> None:
    night = new_policy("night", "20:00-08:00", force=True, cpu="100%", memory="2Gi")
    day = new_policy("day", cpu="50%", memory="2Gi")
    found = lease(day, night, now=at("08:00"), used="6")
    assert found.excess is not None
    assert set(found.excess[0]) == {"cpu"}


def test_policy_limited_by_other_side_reclaims_nothing() -> None:
    assert lease(DAY, NIGHT, new_owners("low", cpu="1"), now=at("08:00"), used="6").excess is None


def test_forced_policy_reclaims_although_other_side_closed() -> None:
    owners = (replace(DAY, side=PolicySide.OWNER), replace(NIGHT, side=PolicySide.OWNER))
    found = lease(new_policy("early", "00:00-07:00"), *owners, now=at("08:00"), used="6")
    assert (found.state, found.terms.deadline, excess_of(found)) == (LeaseState.CLOSED, None, "4")


def test_later_closing_policy_has_its_own_terms() -> None:
    noon = new_policy("noon", "00:00-12:00", cpu="75%")
    assert excess_of(lease(DAY, noon, NIGHT, now=at("08:30"), used="8")) == "6"
    assert lease(DAY, noon, NIGHT, now=at("12:30"), used="6").excess is None


def test_deadline_survives_reopening_in_between() -> None:
    night = new_policy("night", "20:00-08:00", force=True, grace=6 * 3600)
    lunch = new_policy("lunch", "12:00-13:00", cpu="2")
    for clock, state in (("12:30", LeaseState.OPEN), ("13:30", LeaseState.CLOSED)):
        found = lease(night, lunch, now=at(clock), used="6")
        assert (found.state, excess_of(found)) == (state, "2")
        assert found.excess is not None
        assert found.excess[1].deadline == at("14:00")
    assert lease(night, lunch, now=at("13:30"), used="6").terms == ReclaimTerms(by="operator/lunch")


def test_manual_reduction_restarts_the_grace() -> None:
    narrowed = new_policy("day", cpu="25%", changed_at=at("12:00"))
    found = lease(narrowed, NIGHT, now=at("12:01"), used="4")
    assert found.excess is not None
    assert (excess_of(found), found.excess[1].deadline) == ("2", at("12:10"))


def test_amount_leased_by_another_policy_is_not_reclaimed() -> None:
    soon = new_policy("soon", "00:00-07:30", force=True, cpu="100%")
    assert lease(DAY, NIGHT, soon, now=at("07:45"), used="8").excess is None


def test_first_deadline_counts_of_two_reclaims() -> None:
    strict = new_policy("strict", "00:00-08:00", force=True, grace=60, cpu="75%")
    found = lease(DAY, NIGHT, strict, now=at("08:00"), used="8")
    assert found.excess is not None
    assert found.excess[1] == ReclaimTerms(at("08:01"), by="operator/strict")
    assert lease(DAY, NIGHT, strict, now=at("08:00"), used="8", foreign=[new_hold(cpu="4")]).excess is not None


# -- removed policies


def removed(policy: Policy, clock: str) -> Policy:
    """Return the policy as it is remembered after its removal."""
    return replace(policy, schedule=NEVER_OPEN, removed_at=at(clock))


def test_removed_policy_without_force_protects_its_pods() -> None:
    gentle = new_policy("gentle", cpu="75%")
    assert lease(NIGHT, gentle, now=at("12:00"), used="6").state is LeaseState.OPEN
    found = lease(NIGHT, removed_policies=[removed(gentle, "12:00")], now=at("12:01"), used="6")
    assert (found.state, found.terms, found.excess) == (LeaseState.CLOSED, ReclaimTerms(by="operator/gentle"), None)
    assert str(found.amounts["cpu"]) == "6"
    assert [str(policy) for policy in found.policies] == ["operator/night"]


def test_removed_forced_policy_reclaims_on_its_terms() -> None:
    forceful = new_policy("strict", force=True, grace=60)
    found = lease(
        new_policy("old", "00:00-06:00"), removed_policies=[removed(forceful, "12:00")], now=at("12:00"), used="6"
    )
    assert (found.state, found.terms) == (LeaseState.CLOSED, ReclaimTerms(at("12:01"), by="operator/strict"))


def test_removed_policy_protects_only_its_own_amount() -> None:
    small = removed(new_policy("small", cpu="1"), "08:04")
    found = lease(NIGHT, removed_policies=[small], now=at("08:05"), used="6")
    assert (found.state, found.terms) == (LeaseState.CLOSED, ReclaimTerms(by="operator/small"))
    assert found.excess == (ResourceList.parse({"cpu": "1"}), ReclaimTerms(at("08:10"), True, by="operator/night"))


def test_pods_of_removed_policy_finish_beside_an_open_one() -> None:
    more = new_policy("more", cpu="75%")
    assert lease(DAY, NIGHT, now=at("12:00"), used="6").excess is not None
    found = lease(DAY, NIGHT, removed_policies=[removed(more, "12:00")], now=at("12:01"), used="6")
    assert (found.state, str(found.amounts["cpu"]), found.excess) == (LeaseState.OPEN, "4", None)


def test_removed_policy_is_remembered_while_it_matters() -> None:
    past = removed(new_policy("gentle", cpu="75%"), "12:00")
    assert lease(NIGHT, removed_policies=[past], now=at("12:01"), used="6").removed_policies == (past,)
    assert lease(NIGHT, removed_policies=[past], now=at("21:00"), used="6").removed_policies == ()
    assert lease(DAY, removed_policies=[past], now=at("12:01"), used="4").removed_policies == ()


def test_edit_after_removal_takes_precedence() -> None:
    past = removed(new_policy("gentle"), "12:00")
    edited = replace(NIGHT, changed_at=at("13:00"))
    assert lease(edited, removed_policies=[past], now=at("13:05"), used="6").terms.deadline == at("13:10")


def test_removed_policies_alone_lease_nothing() -> None:
    assert lease(removed_policies=[removed(DAY, "12:00")]).state is LeaseState.WITHDRAWN


# -- invalid policies


def test_invalid_policy_leases_and_reclaims_nothing() -> None:
    found = lease(new_policy("typo", is_valid=False, force=True))
    assert (found.state, found.reason) == (LeaseState.CLOSED, "InvalidPolicy")
    assert set(map(str, found.amounts.values())) == {"0"}
    assert found.terms.deadline is None
    assert found.excess is None


def test_invalid_policy_is_ignored_beside_a_valid_one() -> None:
    good, typo = new_policy("good", "08:00-18:00", force=True, cpu="2"), new_policy("typo", is_valid=False)
    for clock in ("12:00", "18:00"):
        assert lease(good, typo, now=at(clock)) == lease(good, now=at(clock))


def test_invalid_owner_policy_never_extends_the_lease() -> None:
    found = lease(new_policy(), new_owners("typo", is_valid=False), owner_required=True)
    assert (found.state, found.reason, found.terms.deadline) == (LeaseState.CLOSED, "InvalidPolicy", None)
    assert found.amounts["cpu"] == ZERO


# -- properties of every lease

RESOURCES = ("cpu", "memory", "pods", "nvidia.com/gpu", "hugepages-2Mi")
HOURS = ["", "08:00-18:00", "22:00-06:00", "12:00-13:00 20:00-21:00", "00:00-24:00", "18:00-08:00", "06:00-06:30"]
SCHEDULES = [new_policy(hours=hours).schedule for hours in HOURS]
INSTANTS = [at("00:00") + timedelta(minutes=5 * place, seconds=place % 60) for place in range(4 * 288)]
LABELED = node_selector({"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]})

# One draw each: most of the time is spent on drawing.
QUANTITIES = ["0", "1", "100m", "1500m", "2", "7", "64", "1Gi", "10G", "3000001", "2Mi"]
LIMITS = [
    ResourceLimit(resource, quantity, percent)
    for resource in RESOURCES
    for quantity in (None, *QUANTITIES)
    for percent in (None, 0, 1, 33, 50, 99, 100)
]
TERMS = [
    (force, grace, evict) for force in (False, True) for grace in (0, 60, 3600, 100_000) for evict in (False, True)
]
AMOUNTS = [(resource, parse_quantity(quantity)) for resource in RESOURCES for quantity in QUANTITIES]


def new_generated_policy(
    side: PolicySide, limits: list[ResourceLimit], terms: tuple[bool, int, bool], rest: dict[str, Any]
) -> Policy:
    force, grace, evict = terms
    spec = ResourceLeasingPolicySpec(
        "east",
        resource_limits=tuple({limit.resource: limit for limit in limits}.values()),
        force_reclaim=force,
        graceful_reclaim_period_seconds=grace,
        evict_during_grace=evict,
    )
    return Policy("p", side, spec, **rest)


RESTS = [
    {"schedule": schedule, "selector": selector, "changed_at": changed_at, "is_valid": is_valid}
    for schedule in SCHEDULES
    for selector in (EVERY_NODE, EVERY_NODE, LABELED)
    for changed_at in (LONG_AGO, LONG_AGO, at("09:30", 4))
    for is_valid in (*[True] * 7, False)
]


def policies_of(side: PolicySide) -> st.SearchStrategy[list[Policy]]:
    one = st.builds(
        new_generated_policy,
        st.just(side),
        st.lists(st.sampled_from(LIMITS), max_size=4),
        st.sampled_from(TERMS),
        st.sampled_from(RESTS),
    )
    return st.lists(one, max_size=3).map(
        lambda found: [replace(policy, name=name) for policy, name in zip(found, "abc", strict=False)]
    )


amounts = st.lists(st.sampled_from(AMOUNTS), max_size=5).map(ResourceList)
holds = st.builds(PodAllocation, amounts, st.sampled_from(INSTANTS))


@dataclass(frozen=True)
class Case:
    """All inputs of a lease."""

    allocatable: ResourceList
    labels: list[str]
    operator: list[Policy]
    owner: list[Policy]
    foreign: list[PodAllocation]
    used: list[ResourceList]
    now: datetime
    owner_required: bool = False
    reclaim: bool = False
    removed: Sequence[Policy] = ()

    @property
    def node(self) -> Object:
        return new_node(self.labels) | {"status": {"allocatable": self.allocatable.texts()}}

    def lease(self, **changes: Any) -> Lease:
        case = replace(self, **changes)
        rules = LeaseRules(case.operator, case.owner, EVERY_NODE, case.owner_required, case.reclaim)
        return lease_for(case.node, case.foreign, case.used, rules, case.now, case.removed)


cases = st.builds(
    Case,
    allocatable=st.lists(st.sampled_from(AMOUNTS), min_size=2, max_size=6).map(ResourceList),
    labels=st.sampled_from([[], ["gpu"]]),
    operator=policies_of(PolicySide.OPERATOR),
    owner=policies_of(PolicySide.OWNER),
    foreign=st.lists(holds, max_size=2),
    used=st.lists(amounts, max_size=1),
    now=st.sampled_from(INSTANTS),
    owner_required=st.booleans(),
    reclaim=st.sampled_from([False] * 7 + [True]),
)


@pytest.fixture
def generated(record_property: Callable[[str, object], None]) -> Callable[[int, Callable[[Case], None]], None]:
    """Check a property against that many generated cases, and record the number."""

    def run(examples: int, claim: Callable[[Case], None]) -> None:
        tried = 0

        @settings(max_examples=examples)
        @given(cases)
        def each(case: Case) -> None:
            nonlocal tried
            tried += 1
            claim(case)

        each()
        assert tried >= examples
        record_property("figure", f"leases: {tried:,} generated cases: {claim.__name__.replace('_', ' ')}")

    return run


Generated = Callable[[int, Callable[[Case], None]], None]


def test_lease_is_within_idle_and_in_whole_units(generated: Generated) -> None:
    def between_zero_and_idle_and_whole(case: Case) -> None:
        found = case.lease()
        idle = {
            name: max(amount.nano - sum(hold.amounts[name].nano for hold in case.foreign), 0)
            for name, amount in case.allocatable.items()
        }
        for name, grant in found.grants.items():
            assert 0 <= grant.amount.nano <= idle[name] == found.idle[name].nano
            assert grant.amount.nano % smallest_unit(name).nano == 0
            assert 0 <= grant.lost.nano < smallest_unit(name).nano
        assert found.amounts.keys() == (set() if found.state is LeaseState.WITHDRAWN else case.allocatable.keys())

    generated(1000, between_zero_and_idle_and_whole)


def test_first_owner_policy_never_extends_a_lease(generated: Generated) -> None:
    def first_owner_policy_never_extends(case: Case) -> None:
        first = [replace(policy, side=PolicySide.OWNER) for policy in (case.owner or case.operator)[:1]]
        alone, both = case.lease(owner=[], owner_required=False), case.lease(owner=first, owner_required=False)
        if alone.state is LeaseState.WITHDRAWN:
            return
        assert both.state is not LeaseState.WITHDRAWN
        assert alone.state is LeaseState.OPEN or both.state is LeaseState.CLOSED
        assert all(both.amounts[name] <= alone.amounts[name] for name in case.allocatable)

    generated(600, first_owner_policy_never_extends)


def test_zero_of_one_side_is_not_leased(generated: Generated) -> None:
    def zero_is_zero(case: Case) -> None:
        for zero in (ResourceLimit("cpu", quantity="0"), ResourceLimit("cpu", quantity=5, percent=0)):
            spec = ResourceLeasingPolicySpec("east", resource_limits=(zero,))
            found = case.lease(owner=[replace(policy, spec=spec) for policy in case.owner])
            if any(policy.side is PolicySide.OWNER for policy in found.policies):
                assert found.amounts["cpu"] == ZERO

    generated(400, zero_is_zero)


def test_node_is_open_as_its_policies_say(generated: Generated) -> None:
    def open_as_its_policies_say(case: Case) -> None:
        sides = [
            [policy for policy in side if policy.selector is EVERY_NODE or case.labels]
            for side in (case.operator, case.owner)
        ]
        if not any(sides) or (case.owner_required and not sides[1]):
            wanted = LeaseState.WITHDRAWN
        elif case.reclaim:
            wanted = LeaseState.CLOSED
        else:
            willing = [
                any(policy.is_valid and policy.schedule.is_open(case.now) for policy in side) for side in sides if side
            ]
            wanted = LeaseState.OPEN if all(willing) else LeaseState.CLOSED
        assert case.lease().state is wanted

    generated(600, open_as_its_policies_say)


def test_removed_policies_neither_open_nor_extend(generated: Generated) -> None:
    def removed_policies_lease_nothing(case: Case) -> None:
        moments = (case.now, case.now - timedelta(hours=3))
        past = [replace(each, removed_at=moment) for moment in moments for each in (*case.owner, *case.operator)]
        alone, found = case.lease(), case.lease(removed=past)
        assert (found.state, found.policies) == (alone.state, alone.policies)
        if found.state is LeaseState.OPEN:
            assert found.amounts == alone.amounts

    generated(400, removed_policies_lease_nothing)


def new_pod(case: Case) -> Object:
    """Return a pod that holds everything that our pods hold."""
    total = sum(case.used, ResourceList())
    return {
        "metadata": {"name": "p", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "resources": {"requests": total.texts()}}]},
    }


def test_nothing_changes_before_the_next_change(generated: Generated) -> None:
    def nothing_before_the_next_change(case: Case) -> None:
        case = replace(case, operator=[*case.operator, NIGHT], used=[*case.used, case.allocatable])
        found = case.lease()
        if case.reclaim or found.state is LeaseState.WITHDRAWN:
            return
        until = found.next_change or case.now + timedelta(days=8)
        for part in (Fraction(1, 3), Fraction(999, 1000)):
            moment = case.now + timedelta(seconds=int((until - case.now).total_seconds() * part))
            later = case.lease(now=moment)
            assert (later.state, later.amounts, later.terms) == (found.state, found.amounts, found.terms)
            assert (later.excess, later.ends_soon) == (found.excess, found.ends_soon)
            pods = [new_pod(case)]
            assert reclaim_for(later, pods, moment).delete == reclaim_for(found, pods, case.now).delete

    generated(600, nothing_before_the_next_change)


def test_no_deletion_without_force_or_during_grace(generated: Generated) -> None:
    def no_deletion_without_force_or_during_grace(case: Case) -> None:
        gentle = [replace(policy, spec=replaced(policy.spec, force_reclaim=False)) for policy in case.operator]
        found = case.lease(operator=gentle, owner=[], owner_required=False, reclaim=False)
        assert reclaim_for(found, [new_pod(case)], case.now) == reclaim_for(found, [], case.now)
        patient = [
            replace(policy, spec=replaced(policy.spec, graceful_reclaim_period_seconds=30 * 86400), changed_at=LONG_AGO)
            for policy in case.operator
        ]
        found = case.lease(operator=patient, owner=[], owner_required=False, reclaim=False)
        assert not reclaim_for(found, [new_pod(case)], case.now).delete

    generated(400, no_deletion_without_force_or_during_grace)


def replaced(spec: ResourceLeasingPolicySpec, **changes: Any) -> ResourceLeasingPolicySpec:
    return type(spec)(**{name: changes.get(name, getattr(spec, name)) for name in spec.__struct_fields__})


def test_leased_amounts_are_never_reclaimed(generated: Generated) -> None:
    def excess_is_never_below_the_lease(case: Case) -> None:
        found = case.lease(operator=[*case.operator, DAY, NIGHT], used=[*case.used, case.allocatable])
        if found.excess is not None:
            left, terms = found.excess
            assert all(left[name] >= found.amounts[name] for name in left)
            assert terms.deadline is not None
            assert any(str(policy) == terms.by and policy.spec.force_reclaim for policy in found.policies)

    generated(400, excess_is_never_below_the_lease)


def test_quantities_keep_their_unit() -> None:
    assert str(lease(new_policy(memory="50%")).amounts["memory"]) == "8Gi"
    assert isinstance(lease(new_policy()).amounts["cpu"], Quantity)
