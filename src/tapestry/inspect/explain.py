"""Explanations: why a node lends what it lends, and what a policy comes to.

The answer is made by the very functions that the syncer decides with, from the same facts.  Where the physical cluster
cannot be looked into, it is what the virtual node says of itself, and since when nothing newer is known.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.inspect.snapshots import ClusterUnreachable, ClusterUnreadable, PhysicalNodeSnapshot
from tapestry.inspect.status import (
    UNREACHABLE,
    Printable,
    applied_policies,
    limit_text,
    reclaim_terms_text,
    time_at,
    window_texts,
)
from tapestry.kube.objects import Object, annotations_of, is_deleting, name_of, value_at
from tapestry.kube.pod_requests import effective_requests, occupies_node, pod_allocation
from tapestry.kube.quantity import ZERO, ResourceList
from tapestry.syncer.leasing import (
    Grant,
    Lease,
    LeaseRules,
    LeaseState,
    Policy,
    PolicySide,
    deciding_policies,
    has_kill_switch,
    lease_for,
    matching_policies,
    soonest,
)
from tapestry.syncer.policies import ParsedPolicy, build_rules, parsed_policies, parsed_policy
from tapestry.syncer.total_limits import BY_TOTAL, combined_limits, limited_lease
from tapestry.syncer.virtual_nodes import lease_state_of, leased_amounts, with_removed_policies

NO_WARNING = timedelta(0)
"""When a syncer warns of an end is none of our business."""

REASONS = {
    "Leased": "every side that has policies for this node has an open one",
    "InvalidPolicy": "the only policies for this node cannot be read",
    "NodeNotSelected": "the binding's nodeSelector does not select this node",
    "NoPolicy": "no policy of either side selects this node",
    "OwnerPolicyRequired": (
        "no policy of the owner selects this node, and the mount namespace has"
        f" {keys.OWNER_POLICY}={keys.OWNER_POLICY_REQUIRED}"
    ),
    "PhysicalNodeGone": "the physical node is gone, or going",
    "Unbound": "the binding is being deleted",
}


class ResourceExplanation(Printable, frozen=True):
    """The arithmetic of one resource: idle = allocatable - foreign, and leased is what policies let go of that.

    Nothing is leased while the node is not open.  What is known only below is empty where that cannot be looked into.
    """

    resource: str
    leased: str
    used: str
    allocatable: str = ""
    foreign: str = ""
    idle: str = ""
    decided_by: str = ""
    rule: str = ""
    floored: str = ""
    """What the resource could not express: half a GPU."""


class PolicyEffect(Printable, frozen=True):
    """A policy for this binding, as it bears on the node."""

    policy: str
    selects: bool | None
    open: bool
    decides: bool | None
    windows: list[str]
    terms: str
    next_change: datetime | None
    complaint: str


class NodeExplanation(Printable, frozen=True):
    node: str
    """The virtual node; empty where there is none."""
    physical_node: str
    binding: str
    state: str
    reason: str
    why: str
    resources: tuple[ResourceExplanation, ...] = ()
    policies: tuple[PolicyEffect, ...] = ()
    next_change: datetime | None = None
    """When a window of its policies opens or closes next."""
    ends: datetime | None = None
    """When a node that is open closes."""
    deadline: datetime | None = None
    """When pods that are still there are deleted; without one they finish."""
    terms_by: str = ""
    behind: tuple[str, ...] = ()
    """Resources of which the virtual node still shows another amount: its syncer has yet to see to it."""
    unseen: str = ""
    """Why the physical cluster could not be looked into."""
    last_seen: datetime | None = None
    """When that last answered, where it does not now and anybody knows."""


class NodeShare(Printable, frozen=True):
    node: str
    state: str
    leased: dict[str, str]


class PolicyExplanation(Printable, frozen=True):
    policy: str
    cluster: str
    binding: str
    """The binding that it is for; empty where there is none."""
    open: bool
    since: datetime | None
    next_change: datetime | None
    windows: list[str]
    limits: dict[str, str]
    terms: str
    complaint: str
    uses_last_good: bool
    nodes: list[NodeShare]
    """That it lends now; none while it is closed."""
    others: int
    """How many nodes it is for beside these, which lend nothing now."""
    leased: dict[str, str]


@dataclass(frozen=True)
class NodeQuery:
    """The node that a question is about, as the virtual cluster knows it."""

    binding: Binding
    is_unbinding: bool
    physical_node: str
    virtual_node: Object | None
    pods: Sequence[Object]
    """On the virtual node."""
    operator_policies: Sequence[Object]
    time_zone: str
    """Of windows that name none."""
    last_seen: datetime | None = None
    """When the physical cluster last answered, as far as the virtual one knows."""

    def explanation(self, state: str, reason: str, why: str, **facts: Any) -> NodeExplanation:
        return NodeExplanation(
            node=name_of(self.virtual_node) if self.virtual_node else "",
            physical_node=self.physical_node,
            binding=self.binding.name,
            state=state,
            reason=reason,
            why=why,
            **facts,
        )

    def used_amounts(self) -> list[ResourceList]:
        return [effective_requests(pod) for pod in self.pods if occupies_node(pod)]


# -- a node


def node_explanation(query: NodeQuery, physical: PhysicalNodeSnapshot, now: datetime) -> NodeExplanation:
    """The lease of a physical node, decided anew."""
    node, binding, used = physical.node, query.binding, query.used_amounts()
    if query.is_unbinding:
        return query.explanation(LeaseState.WITHDRAWN, "Unbound", REASONS["Unbound"])
    if node is None or is_deleting(node):
        return query.explanation(LeaseState.WITHDRAWN, "PhysicalNodeGone", REASONS["PhysicalNodeGone"])
    operator = parsed_policies(query.operator_policies, PolicySide.OPERATOR, binding, query.time_zone)
    owner = parsed_policies(physical.policies, PolicySide.OWNER, binding, query.time_zone)
    rules = build_rules(binding, operator, owner, physical.mount_namespace, NO_WARNING)
    rules = with_removed_policies(rules, node, query.virtual_node, now)
    foreign = [pod_allocation(pod) for pod in physical.pods if occupies_node(pod) and not binding.owns(pod)]
    lease = with_total_share(lease_for(node, foreign, used, rules, now), rules, query.virtual_node, now)
    terms = lease_for(node, foreign, used, rules, lease.ends).terms if lease.ends else lease.terms
    held = sum((hold.amounts for hold in foreign), ResourceList())
    return query.explanation(
        lease.state,
        lease.reason,
        lease_reason_text(lease, node, rules, now),
        resources=resource_explanations(node, held, sum(used, ResourceList()), lease),
        policies=tuple(policy_effect(each, node, rules, query.time_zone, now) for each in (*operator, *owner)),
        next_change=soonest(*(policy.schedule.next_change(now) for policy in lease.policies)),
        ends=lease.ends,
        deadline=terms.deadline,
        terms_by=terms.by,
        behind=stale_resources(query.virtual_node, lease),
    )


def node_explanation_from_virtual(query: NodeQuery, error: ClusterUnreadable, now: datetime) -> NodeExplanation:
    """What the virtual node says of itself, where the physical cluster cannot be looked into."""
    node, unseen = query.virtual_node, str(error)
    if node is None:
        return query.explanation(
            "Unknown", "Unseen", "there is no virtual node, and nobody can tell why", unseen=unseen
        )
    used, leased = sum(query.used_amounts(), ResourceList()), leased_amounts(node)
    operator = parsed_policies(query.operator_policies, PolicySide.OPERATOR, query.binding, query.time_zone)
    policies = ", ".join(applied_policies(node)) or "no policy"
    state, reason, why = str(lease_state_of(node)), "AsShown", f"as the virtual node shows; it is lent under {policies}"
    if isinstance(error, ClusterUnreachable):
        why = f"the physical cluster does not answer; last known above: {state}, lent under {policies}"
        state, reason = "Unknown", UNREACHABLE
    return query.explanation(
        state,
        reason,
        why,
        resources=tuple(
            ResourceExplanation(resource=each, leased=str(amount), used=str(used[each]))
            for each, amount in sorted(leased.items())
        ),
        policies=tuple(policy_effect(each, None, None, query.time_zone, now) for each in operator),
        ends=time_at(annotations_of(node), keys.LEASE_ENDS),
        unseen=unseen,
        last_seen=query.last_seen if isinstance(error, ClusterUnreachable) else None,
    )


def lease_reason_text(lease: Lease, node: Object, rules: LeaseRules, now: datetime) -> str:
    """The reason of a lease's state as a sentence."""
    if lease.reason == "Reclaimed":
        place = "the physical node" if has_kill_switch(node) else "the mount namespace"
        return f"the owner's kill switch is on: {keys.RECLAIM}={keys.RECLAIM_NOW} on {place}"
    if lease.reason == "OutOfTimeWindows":
        sides = [matching_policies(policies, node) for policies in (rules.operator, rules.owner)]
        closed = [side[0].side for side in sides if side and not any(policy.is_open(now) for policy in side)]
        return f"no policy of the {' and of the '.join(closed)} is open now, so no new pods are let in"
    return REASONS.get(lease.reason, lease.reason)


def resource_explanations(
    node: Object, foreign: ResourceList, used: ResourceList, lease: Lease
) -> tuple[ResourceExplanation, ...]:
    have = ResourceList.parse(value_at(node, "status", "allocatable") or value_at(node, "status", "capacity"))
    policies = {str(policy): policy for policy in lease.policies}
    return tuple(
        ResourceExplanation(
            resource=resource,
            allocatable=str(have[resource]),
            foreign=str(foreign[resource]),
            idle=str(lease.idle[resource]),
            leased=str(grant.amount if lease.state is LeaseState.OPEN else ZERO),
            used=str(used[resource]),
            decided_by=grant.by,
            rule=rule_text(resource, grant, policies),
            floored=str(grant.lost) if grant.lost else "",
        )
        for resource, grant in sorted(lease.grants.items())
    )


def rule_text(resource: str, grant: Grant, policies: dict[str, Policy]) -> str:
    """What the decision about a resource rests on, in words."""
    policy = policies.get(grant.by)
    limit = policy.limit_of(resource) if policy else None
    if limit is not None:
        return limit_text(limit)
    if grant.by == BY_TOTAL:
        return "its share of the total for all nodes"
    return "no policy that decides names it: all that is idle" if grant.by == "idle" else ""


def policy_effect(
    reading: ParsedPolicy, node: Object | None, rules: LeaseRules | None, time_zone: str, now: datetime
) -> PolicyEffect:
    """How a policy bears on a node; without the node, only what it says of itself."""
    policy, selects, decides = reading.policy, None, None
    if node is not None and rules is not None:
        side = matching_policies(rules.operator if policy.side is PolicySide.OPERATOR else rules.owner, node)
        selects, decides = policy.selector.matches(node), bool(side) and policy in deciding_policies(side, now)
    return PolicyEffect(
        policy=str(policy),
        selects=selects,
        open=policy.is_open(now),
        decides=decides,
        windows=window_texts(policy.spec, time_zone),
        terms=reclaim_terms_text(policy.spec),
        next_change=policy.schedule.next_change(now),
        complaint=reading.error,
    )


def with_total_share(lease: Lease, rules: LeaseRules, virtual_node: Object | None, now: datetime) -> Lease:
    """The lease with the share of each total that the virtual node shows: only its syncer knows all nodes."""
    shown = ResourceList.parse(value_at(virtual_node, "status", "allocatable"))
    return limited_lease(
        lease, ResourceList({each: shown[each] for each in combined_limits(rules, now) if each in shown})
    )


def stale_resources(virtual_node: Object | None, lease: Lease) -> tuple[str, ...]:
    """Resources of which the virtual node shows something else than is lent."""
    if virtual_node is None or lease.state is LeaseState.WITHDRAWN:
        return ()
    shown = ResourceList.parse(value_at(virtual_node, "status", "allocatable"))
    return tuple(sorted(each for each in {*shown, *lease.amounts} if shown[each] != lease.amounts[each]))


# -- a policy


def policy_explanation(
    policy: Object, side: PolicySide, binding: Binding | None, nodes: Iterable[Object], time_zone: str, now: datetime
) -> PolicyExplanation:
    """What a policy says, and what comes of it on the virtual `nodes` of its binding."""
    reading = parsed_policy(policy, side, time_zone)
    found = reading.policy
    under = [node for node in nodes if str(found) in applied_policies(node)]
    lent = [node for node in under if found.is_open(now) and lease_state_of(node) is LeaseState.OPEN]
    return PolicyExplanation(
        policy=str(found),
        cluster=value_at(policy, "spec", "cluster", default=""),
        binding=binding.name if binding else "",
        open=found.is_open(now),
        since=found.closed_since(now) if not found.is_open(now) else found.schedule.last_change(now),
        next_change=found.schedule.next_change(now),
        windows=window_texts(found.spec, time_zone),
        limits={limit.resource: limit_text(limit) for limit in found.spec.resource_limits},
        terms=reclaim_terms_text(found.spec),
        complaint=reading.error,
        uses_last_good=bool(reading.error) and found.is_valid,
        nodes=[
            NodeShare(node=name_of(node), state=lease_state_of(node), leased=leased_amounts(node).texts())
            for node in sorted(lent, key=name_of)
        ],
        others=len(under) - len(lent),
        leased=sum(map(leased_amounts, lent), ResourceList()).texts(),
    )
