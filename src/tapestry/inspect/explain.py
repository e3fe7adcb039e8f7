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
from tapestry.inspect.facts import Below, Silent, Unseen
from tapestry.inspect.status import UNREACHABLE, Value, applied, limit_text, moment_at, terms_of, windows_of
from tapestry.kube.objects import Object, annotations_of, is_deleting, name_of, value_at
from tapestry.kube.quantity import ZERO, Amounts
from tapestry.kube.requests import effective_requests, hold_of, holds_its_node
from tapestry.syncer.leasing import (
    Grant,
    Lease,
    Policy,
    Rules,
    Side,
    State,
    counting,
    deciding,
    is_reclaimed,
    lease_of,
    soonest,
)
from tapestry.syncer.policies import Reading, reading_of, readings, rules_of
from tapestry.syncer.totals import BY_TOTAL, limited, totals_of
from tapestry.syncer.virtual_nodes import leased_of, remembering, state_of

NO_WARNING = timedelta(0)
"""When a syncer warns of an end is none of our business."""

REASONS = {
    "Leased": "every side that has policies for this node has an open one",
    "InvalidPolicy": "the only policies for this node cannot be read",
    "NodeNotSelected": "the binding's nodeSelector does not select this node",
    "NoPolicy": "no policy of either side selects this node",
    "OwnerPolicyRequired": (
        f"no policy of the owner selects this node, and the mount namespace has {keys.OWNER_POLICY}={keys.REQUIRED}"
    ),
    "PhysicalNodeGone": "the physical node is gone, or going",
    "Unbound": "the binding is being deleted",
}


class ResourceAnswer(Value, frozen=True):
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


class PolicyAnswer(Value, frozen=True):
    """A policy for this binding, as it bears on the node."""

    policy: str
    selects: bool | None
    open: bool
    decides: bool | None
    windows: list[str]
    terms: str
    next_change: datetime | None
    complaint: str


class NodeAnswer(Value, frozen=True):
    node: str
    """The virtual node; empty where there is none."""
    physical_node: str
    binding: str
    state: str
    reason: str
    why: str
    resources: tuple[ResourceAnswer, ...] = ()
    policies: tuple[PolicyAnswer, ...] = ()
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


class NodeShare(Value, frozen=True):
    node: str
    state: str
    leased: dict[str, str]


class PolicyExplanation(Value, frozen=True):
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
class Asked:
    """The node that a question is about, as the virtual cluster knows it."""

    binding: Binding
    is_unbinding: bool
    physical_node: str
    virtual_node: Object | None
    pods: Sequence[Object]
    """On the virtual node."""
    operator_policies: Sequence[Object]
    zone: str
    """Of windows that name none."""
    last_seen: datetime | None = None
    """When the physical cluster last answered, as far as the virtual one knows."""

    def answer(self, state: str, reason: str, why: str, **facts: Any) -> NodeAnswer:
        return NodeAnswer(
            node=name_of(self.virtual_node) if self.virtual_node else "",
            physical_node=self.physical_node,
            binding=self.binding.name,
            state=state,
            reason=reason,
            why=why,
            **facts,
        )

    def used(self) -> list[Amounts]:
        return [effective_requests(pod) for pod in self.pods if holds_its_node(pod)]


# -- a node


def explained_node(asked: Asked, below: Below, now: datetime) -> NodeAnswer:
    """The lease of a physical node, decided anew."""
    node, binding, used = below.node, asked.binding, asked.used()
    if asked.is_unbinding:
        return asked.answer(State.WITHDRAWN, "Unbound", REASONS["Unbound"])
    if node is None or is_deleting(node):
        return asked.answer(State.WITHDRAWN, "PhysicalNodeGone", REASONS["PhysicalNodeGone"])
    operator = readings(asked.operator_policies, Side.OPERATOR, binding, asked.zone)
    owner = readings(below.policies, Side.OWNER, binding, asked.zone)
    rules = rules_of(binding, operator, owner, below.mount, NO_WARNING)
    rules = remembering(rules, node, asked.virtual_node, now)
    foreign = [hold_of(pod) for pod in below.pods if holds_its_node(pod) and not binding.owns(pod)]
    lease = with_share(lease_of(node, foreign, used, rules, now), rules, asked.virtual_node, now)
    terms = lease_of(node, foreign, used, rules, lease.ends).terms if lease.ends else lease.terms
    held = sum((hold.amounts for hold in foreign), Amounts())
    return asked.answer(
        lease.state,
        lease.reason,
        why(lease, node, rules, now),
        resources=resource_answers(node, held, sum(used, Amounts()), lease),
        policies=tuple(policy_answer(each, node, rules, asked.zone, now) for each in (*operator, *owner)),
        next_change=soonest(*(policy.schedule.next_change(now) for policy in lease.policies)),
        ends=lease.ends,
        deadline=terms.deadline,
        terms_by=terms.by,
        behind=behind(asked.virtual_node, lease),
    )


def told_node(asked: Asked, error: Unseen, now: datetime) -> NodeAnswer:
    """What the virtual node says of itself, where the physical cluster cannot be looked into."""
    node, unseen = asked.virtual_node, str(error)
    if node is None:
        return asked.answer("Unknown", "Unseen", "there is no virtual node, and nobody can tell why", unseen=unseen)
    used, leased = sum(asked.used(), Amounts()), leased_of(node)
    operator = readings(asked.operator_policies, Side.OPERATOR, asked.binding, asked.zone)
    policies = ", ".join(applied(node)) or "no policy"
    state, reason, why = str(state_of(node)), "AsShown", f"as the virtual node shows; it is lent under {policies}"
    if isinstance(error, Silent):
        why = f"the physical cluster does not answer; last known above: {state}, lent under {policies}"
        state, reason = "Unknown", UNREACHABLE
    return asked.answer(
        state,
        reason,
        why,
        resources=tuple(
            ResourceAnswer(resource=each, leased=str(amount), used=str(used[each]))
            for each, amount in sorted(leased.items())
        ),
        policies=tuple(policy_answer(each, None, None, asked.zone, now) for each in operator),
        ends=moment_at(annotations_of(node), keys.LEASE_ENDS),
        unseen=unseen,
        last_seen=asked.last_seen if isinstance(error, Silent) else None,
    )


def why(lease: Lease, node: Object, rules: Rules, now: datetime) -> str:
    """The reason of a lease's state as a sentence."""
    if lease.reason == "Reclaimed":
        place = "the physical node" if is_reclaimed(node) else "the mount namespace"
        return f"the owner's kill switch is on: {keys.RECLAIM}={keys.NOW} on {place}"
    if lease.reason == "OutOfTimeWindows":
        sides = [counting(policies, node) for policies in (rules.operator, rules.owner)]
        closed = [side[0].side for side in sides if side and not any(policy.is_open(now) for policy in side)]
        return f"no policy of the {' and of the '.join(closed)} is open now, so no new pods are let in"
    return REASONS.get(lease.reason, lease.reason)


def resource_answers(node: Object, foreign: Amounts, used: Amounts, lease: Lease) -> tuple[ResourceAnswer, ...]:
    have = Amounts.parse(value_at(node, "status", "allocatable") or value_at(node, "status", "capacity"))
    policies = {str(policy): policy for policy in lease.policies}
    return tuple(
        ResourceAnswer(
            resource=resource,
            allocatable=str(have[resource]),
            foreign=str(foreign[resource]),
            idle=str(lease.idle[resource]),
            leased=str(grant.amount if lease.state is State.OPEN else ZERO),
            used=str(used[resource]),
            decided_by=grant.by,
            rule=rule(resource, grant, policies),
            floored=str(grant.lost) if grant.lost else "",
        )
        for resource, grant in sorted(lease.grants.items())
    )


def rule(resource: str, grant: Grant, policies: dict[str, Policy]) -> str:
    """What the decision about a resource rests on, in words."""
    policy = policies.get(grant.by)
    limit = policy.limit_of(resource) if policy else None
    if limit is not None:
        return limit_text(limit)
    if grant.by == BY_TOTAL:
        return "its share of the total for all nodes"
    return "no policy that decides names it: all that is idle" if grant.by == "idle" else ""


def policy_answer(reading: Reading, node: Object | None, rules: Rules | None, zone: str, now: datetime) -> PolicyAnswer:
    """How a policy bears on a node; without the node, only what it says of itself."""
    policy, selects, decides = reading.policy, None, None
    if node is not None and rules is not None:
        side = counting(rules.operator if policy.side is Side.OPERATOR else rules.owner, node)
        selects, decides = policy.selector.matches(node), bool(side) and policy in deciding(side, now)
    return PolicyAnswer(
        policy=str(policy),
        selects=selects,
        open=policy.is_open(now),
        decides=decides,
        windows=windows_of(policy.spec, zone),
        terms=terms_of(policy.spec),
        next_change=policy.schedule.next_change(now),
        complaint=reading.complaint,
    )


def with_share(lease: Lease, rules: Rules, virtual_node: Object | None, now: datetime) -> Lease:
    """The lease with the share of each total that the virtual node shows: only its syncer knows all nodes."""
    shown = Amounts.parse(value_at(virtual_node, "status", "allocatable"))
    return limited(lease, Amounts({each: shown[each] for each in totals_of(rules, now) if each in shown}))


def behind(virtual_node: Object | None, lease: Lease) -> tuple[str, ...]:
    """Resources of which the virtual node shows something else than is lent."""
    if virtual_node is None or lease.state is State.WITHDRAWN:
        return ()
    shown = Amounts.parse(value_at(virtual_node, "status", "allocatable"))
    return tuple(sorted(each for each in {*shown, *lease.amounts} if shown[each] != lease.amounts[each]))


# -- a policy


def explained_policy(
    policy: Object, side: Side, binding: Binding | None, nodes: Iterable[Object], zone: str, now: datetime
) -> PolicyExplanation:
    """What a policy says, and what comes of it on the virtual `nodes` of its binding."""
    reading = reading_of(policy, side, zone)
    found = reading.policy
    under = [node for node in nodes if str(found) in applied(node)]
    lent = [node for node in under if found.is_open(now) and state_of(node) is State.OPEN]
    return PolicyExplanation(
        policy=str(found),
        cluster=value_at(policy, "spec", "cluster", default=""),
        binding=binding.name if binding else "",
        open=found.is_open(now),
        since=found.closed_since(now) if not found.is_open(now) else found.schedule.last_change(now),
        next_change=found.schedule.next_change(now),
        windows=windows_of(found.spec, zone),
        limits={limit.resource: limit_text(limit) for limit in found.spec.resource_limits},
        terms=terms_of(found.spec),
        complaint=reading.complaint,
        uses_last_good=bool(reading.complaint) and found.readable,
        nodes=[
            NodeShare(node=name_of(node), state=state_of(node), leased=leased_of(node).texts())
            for node in sorted(lent, key=name_of)
        ],
        others=len(under) - len(lent),
        leased=sum(map(leased_of, lent), Amounts()).texts(),
    )
