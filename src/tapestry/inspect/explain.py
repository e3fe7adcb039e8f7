"""Explanations of the lease of a node and the effect of a policy.

The syncer's own functions compute them from the same data.  If the physical cluster is unreadable, the explanation
shows what the virtual node reports and when the cluster was last seen.
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
from tapestry.syncer.policies import ParsedPolicy, build_rules, parsed_policies, parsed_policy, removed_policies
from tapestry.syncer.total_limits import BY_TOTAL, combined_limits, limited_lease
from tapestry.syncer.virtual_nodes import lease_state_of, leased_amounts

NO_WARNING = timedelta(0)
"""Lead time of warnings before a lease ends; explanations need none."""

REASONS = {
    "Leased": "every side with policies for this node has an open one",
    "InvalidPolicy": "the only policies for this node are invalid",
    "NodeNotSelected": "the binding's nodeSelector does not select this node",
    "NoPolicy": "no policy of either side selects this node",
    "OwnerPolicyRequired": (
        "no policy of the owner selects this node, and the mount namespace has"
        f" {keys.OWNER_POLICY}={keys.OWNER_POLICY_REQUIRED}"
    ),
    "PhysicalNodeGone": "the physical node is deleted or being deleted",
    "Unbound": "the binding is being deleted",
}


class ResourceExplanation(Printable, frozen=True):
    """Arithmetic of one resource: idle = allocatable - foreign, and policies limit the leased share of that.

    Nothing is leased while the node is not open.  Fields of the physical node are empty if it cannot be read.
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
    """Amount lost by rounding down, for example half a GPU."""


class PolicyEffect(Printable, frozen=True):
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
    """Name of the virtual node; empty if there is none."""
    physical_node: str
    binding: str
    state: str
    reason: str
    why: str
    resources: tuple[ResourceExplanation, ...] = ()
    policies: tuple[PolicyEffect, ...] = ()
    next_change: datetime | None = None
    """Time when a window of its policies opens or closes next."""
    ends: datetime | None = None
    """Time when an open node closes."""
    deadline: datetime | None = None
    """Time when remaining pods are deleted; without one they run to completion."""
    terms_by: str = ""
    behind: tuple[str, ...] = ()
    """Resources for which the syncer has not updated the virtual node yet."""
    unseen: str = ""
    """Reason why the physical cluster could not be read."""
    last_seen: datetime | None = None
    """Time when an unreachable cluster last responded, if known."""


class NodeShare(Printable, frozen=True):
    node: str
    state: str
    leased: dict[str, str]


class PolicyExplanation(Printable, frozen=True):
    policy: str
    cluster: str
    binding: str
    """Name of its binding; empty if there is none."""
    open: bool
    since: datetime | None
    next_change: datetime | None
    windows: list[str]
    limits: dict[str, str]
    terms: str
    complaint: str
    uses_last_good: bool
    nodes: list[NodeShare]
    """Nodes that are leased now; none while the policy is closed."""
    others: int
    """Number of other nodes that it applies to, which lease nothing now."""
    leased: dict[str, str]


@dataclass(frozen=True)
class NodeQuery:
    """The queried node as the virtual cluster knows it."""

    binding: Binding
    is_unbinding: bool
    physical_node: str
    virtual_node: Object | None
    pods: Sequence[Object]
    operator_policies: Sequence[Object]
    time_zone: str
    """Time zone of windows without one."""
    last_seen: datetime | None = None
    """Time when the physical cluster last responded, as far as the virtual cluster knows."""

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
    """Compute the lease of a physical node again and explain it."""
    node, binding, used = physical.node, query.binding, query.used_amounts()
    if query.is_unbinding:
        return query.explanation(LeaseState.WITHDRAWN, "Unbound", REASONS["Unbound"])
    if node is None or is_deleting(node):
        return query.explanation(LeaseState.WITHDRAWN, "PhysicalNodeGone", REASONS["PhysicalNodeGone"])
    operator = parsed_policies(query.operator_policies, PolicySide.OPERATOR, binding, query.time_zone)
    owner = parsed_policies(physical.policies, PolicySide.OWNER, binding, query.time_zone)
    rules = build_rules(binding, operator, owner, physical.mount_namespace, NO_WARNING)
    removed = removed_policies(rules, node, query.virtual_node, now)
    foreign = [pod_allocation(pod) for pod in physical.pods if occupies_node(pod) and not binding.owns(pod)]
    lease = with_total_share(lease_for(node, foreign, used, rules, now, removed), rules, query.virtual_node, now)
    terms = lease_for(node, foreign, used, rules, lease.ends, removed).terms if lease.ends else lease.terms
    foreign_total = sum((hold.amounts for hold in foreign), ResourceList())
    return query.explanation(
        lease.state,
        lease.reason,
        lease_reason_text(lease, node, rules, now),
        resources=resource_explanations(node, foreign_total, sum(used, ResourceList()), lease),
        policies=tuple(policy_effect(each, node, rules, query.time_zone, now) for each in (*operator, *owner)),
        next_change=soonest(*(policy.schedule.next_change(now) for policy in lease.policies)),
        ends=lease.ends,
        deadline=terms.deadline,
        terms_by=terms.by,
        behind=stale_resources(query.virtual_node, lease),
    )


def node_explanation_from_virtual(query: NodeQuery, error: ClusterUnreadable, now: datetime) -> NodeExplanation:
    """Explain what the virtual node reports if the physical cluster cannot be read."""
    node, unread = query.virtual_node, str(error)
    if node is None:
        return query.explanation(
            "Unknown", "Unseen", "there is no virtual node, and the reason is unknown", unseen=unread
        )
    used, leased = sum(query.used_amounts(), ResourceList()), leased_amounts(node)
    operator = parsed_policies(query.operator_policies, PolicySide.OPERATOR, query.binding, query.time_zone)
    policies = ", ".join(applied_policies(node)) or "no policy"
    state, reason, why = str(lease_state_of(node)), "AsShown", f"as the virtual node reports; leased under {policies}"
    if isinstance(error, ClusterUnreachable):
        why = f"the physical cluster does not answer; last known state: {state}, leased under {policies}"
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
        unseen=unread,
        last_seen=query.last_seen if isinstance(error, ClusterUnreachable) else None,
    )


def lease_reason_text(lease: Lease, node: Object, rules: LeaseRules, now: datetime) -> str:
    if lease.reason == "Reclaimed":
        place = "the physical node" if has_kill_switch(node) else "the mount namespace"
        return f"the owner's kill switch is on: {keys.RECLAIM}={keys.RECLAIM_NOW} on {place}"
    if lease.reason == "OutOfTimeWindows":
        sides = [matching_policies(policies, node) for policies in (rules.operator, rules.owner)]
        closed = [side[0].side for side in sides if side and not any(policy.is_open(now) for policy in side)]
        return f"no policy of the {' and of the '.join(closed)} is open now, so no new pods are admitted"
    return REASONS.get(lease.reason, lease.reason)


def resource_explanations(
    node: Object, foreign: ResourceList, used: ResourceList, lease: Lease
) -> tuple[ResourceExplanation, ...]:
    allocatable = ResourceList.parse(value_at(node, "status", "allocatable") or value_at(node, "status", "capacity"))
    policies = {str(policy): policy for policy in lease.policies}
    return tuple(
        ResourceExplanation(
            resource=resource,
            allocatable=str(allocatable[resource]),
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
    policy = policies.get(grant.by)
    limit = policy.limit_of(resource) if policy else None
    if limit is not None:
        return limit_text(limit)
    if grant.by == BY_TOTAL:
        return "its share of the total for all nodes"
    return "no deciding policy limits it: all that is idle" if grant.by == "idle" else ""


def policy_effect(
    reading: ParsedPolicy, node: Object | None, rules: LeaseRules | None, time_zone: str, now: datetime
) -> PolicyEffect:
    """Return the effect of a policy on a node; without the node, only the policy's own data."""
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
    """Apply the share of each total that the virtual node shows; only its syncer knows all nodes."""
    allocatable = ResourceList.parse(value_at(virtual_node, "status", "allocatable"))
    return limited_lease(
        lease, ResourceList({each: allocatable[each] for each in combined_limits(rules, now) if each in allocatable})
    )


def stale_resources(virtual_node: Object | None, lease: Lease) -> tuple[str, ...]:
    if virtual_node is None or lease.state is LeaseState.WITHDRAWN:
        return ()
    allocatable = ResourceList.parse(value_at(virtual_node, "status", "allocatable"))
    return tuple(sorted(each for each in {*allocatable, *lease.amounts} if allocatable[each] != lease.amounts[each]))


# -- a policy


def policy_explanation(
    policy: Object, side: PolicySide, binding: Binding | None, nodes: Iterable[Object], time_zone: str, now: datetime
) -> PolicyExplanation:
    """Explain a policy and its effect on the virtual `nodes` of its binding."""
    reading = parsed_policy(policy, side, time_zone)
    found = reading.policy
    selected = [node for node in nodes if str(found) in applied_policies(node)]
    open_nodes = [node for node in selected if found.is_open(now) and lease_state_of(node) is LeaseState.OPEN]
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
            for node in sorted(open_nodes, key=name_of)
        ],
        others=len(selected) - len(open_nodes),
        leased=sum(map(leased_amounts, open_nodes), ResourceList()).texts(),
    )
