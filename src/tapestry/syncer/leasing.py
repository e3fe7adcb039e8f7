"""Lease decisions: how much of a physical node is leased, until when, and on which terms it is reclaimed.

There are two sides of policies: the operator's in the virtual cluster and the owner's in the physical one. Within a
side the most generous open policy counts, separately for each resource; a resource that none of them names is leased
whole. Between the sides the smaller amount counts. A side whose policies are all closed closes the node: it takes no
more pods, but its amounts stay. Without a policy there is no lease. All functions are pure: no clock, no state, no I/O.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from fractions import Fraction

from tapestry.apis.keys import RECLAIM, RECLAIM_NOW
from tapestry.apis.policies import ResourceLeasingPolicySpec, ResourceLimit
from tapestry.kube.objects import Object, value_at
from tapestry.kube.pod_requests import PodAllocation
from tapestry.kube.quantity import ZERO, Quantity, ResourceList, floored, parse_quantity
from tapestry.kube.selectors import NodeSelector
from tapestry.syncer.windows import Schedule

LOOKAHEAD = 64
"""Maximum number of schedule changes that are followed to find the end of a lease."""
WARNING = timedelta(minutes=10)
NEVER = datetime.max.replace(tzinfo=UTC)


class PolicySide(StrEnum):
    OPERATOR = "operator"
    OWNER = "owner"


class LeaseState(StrEnum):
    OPEN = "Open"
    CLOSED = "Closed"
    """Only adds a taint: pods may run until the deadline, if there is one."""
    WITHDRAWN = "Withdrawn"
    """The virtual node is deleted after its last pod."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy in effect: its own spec or its last valid one."""

    name: str
    side: PolicySide
    spec: ResourceLeasingPolicySpec
    schedule: Schedule
    selector: NodeSelector
    changed_at: datetime
    """Time of the last spec change. A policy that a user closed was closed then, not at an edge of its windows."""
    is_valid: bool = True
    """A policy that never had a valid spec leases nothing and reclaims nothing."""
    removed_at: datetime | None = None
    """Time since which the policy no longer exists; it counts as open until then."""

    def is_open(self, now: datetime) -> bool:
        if self.removed_at is not None:
            return now < self.removed_at
        return self.is_valid and self.schedule.is_open(now)

    @property
    def forces_reclaim(self) -> bool:
        """True if pods must leave at a deadline after the policy closes."""
        return self.is_valid and self.spec.force_reclaim

    def closed_since(self, now: datetime) -> datetime:
        return self.removed_at or max(self.schedule.last_change(now) or self.changed_at, self.changed_at)

    def limit_of(self, resource: str) -> ResourceLimit | None:
        if not self.is_valid:
            return ResourceLimit(resource, percent=0)
        return next((limit for limit in self.spec.resource_limits if limit.resource == resource), None)

    def __str__(self) -> str:
        return f"{self.side}/{self.name}"


@dataclass(frozen=True, slots=True)
class ReclaimTerms:
    """Terms on which pods leave; without a deadline none is forced to."""

    deadline: datetime | None = None
    evict: bool = False
    """Use the Eviction API until the deadline, so that disruption budgets are respected."""
    by: str = ""
    """The policy or event that these terms belong to."""
    twins_first: bool = False
    """Delete twins before their pods: the node is wanted back at once."""


NO_DEADLINE = ReclaimTerms()
"""Pods may finish."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Leased amount of one resource, and the policy that decided it."""

    amount: Quantity
    by: str
    lost: Quantity
    """Remainder that the resource cannot express, e.g. half a GPU."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Lease of a node at one moment."""

    state: LeaseState
    reason: str
    idle: ResourceList = field(default_factory=ResourceList)
    grants: dict[str, Grant] = field(default_factory=dict)
    terms: ReclaimTerms = NO_DEADLINE
    """Terms for all pods on the node; unused while it is open."""
    excess: tuple[ResourceList, ReclaimTerms] | None = None
    """Amounts, and the terms on which pods beyond them leave: a policy that leased more has closed."""
    policies: tuple[Policy, ...] = ()
    deciding_policies: tuple[Policy, ...] = ()
    """Policies that determine the amounts: those that are open, or closed last."""
    removed_policies: tuple[Policy, ...] = ()
    """Policies that no longer exist but still have an effect."""
    next_change: datetime | None = None
    ends: datetime | None = None
    """Time at which an open node closes."""
    ends_soon: bool = False
    """True if the end is near enough for a warning."""

    @property
    def amounts(self) -> ResourceList:
        return ResourceList({resource: grant.amount for resource, grant in self.grants.items()})

    def is_stable(self, now: datetime) -> bool:
        """Return whether the lease is open, does not end soon and reclaims nothing, whichever pods use it."""
        if self.state is not LeaseState.OPEN or self.ends_soon:
            return False
        return not any(
            policy.forces_reclaim and not policy.is_open(now) for policy in (*self.policies, *self.removed_policies)
        )


@dataclass(frozen=True, slots=True)
class LeaseRules:
    """All inputs of a decision except the node and its pods."""

    operator: Sequence[Policy]
    owner: Sequence[Policy]
    selector: NodeSelector
    """Node selector of the binding."""
    owner_required: bool = False
    reclaim_now: bool = False
    """The owner's kill switch for the whole cluster."""
    warning: timedelta = WARNING
    """Time before its end at which a lease warns."""


def lease_for(
    node: Object,
    foreign: Iterable[PodAllocation],
    used: Iterable[ResourceList],
    rules: LeaseRules,
    now: datetime,
    removed: Sequence[Policy] = (),
) -> Lease:
    """Return the lease of `node`; `foreign` pods hold part of it, `used` is held by our pods.

    `removed` policies no longer exist: they lease nothing, but what they leased is reclaimed on their terms. They are
    forgotten once they make no difference, so with them the lease is decided twice.
    """
    foreign, used = list(foreign), list(used)
    lease = decide_lease(node, foreign, used, rules, (), now)
    if not removed:
        return lease
    extended = decide_lease(node, foreign, used, rules, removed, now)
    return lease if lease_effect(extended) == lease_effect(lease) else extended


def lease_effect(lease: Lease) -> tuple[object, ...]:
    """Return what a lease offers, and its reclaim terms."""
    return lease.state, lease.terms, lease.excess, lease.amounts


def decide_lease(
    node: Object,
    foreign: list[PodAllocation],
    used: list[ResourceList],
    rules: LeaseRules,
    removed: Sequence[Policy],
    now: datetime,
) -> Lease:
    sides = [side for policies in (rules.operator, rules.owner) if (side := matching_policies(policies, node))]
    is_killed = rules.reclaim_now or has_kill_switch(node)
    killed = ReclaimTerms(now, by="the owner's kill switch", twins_first=True) if is_killed else None
    if reason := withdrawal_reason(node, sides, rules):
        return Lease(LeaseState.WITHDRAWN, reason, terms=killed or NO_DEADLINE)
    policies, sides = flatten_sides(sides), [side_with_removed(side, removed) for side in sides]
    deciders, idle = [deciding_policies(side, now) for side in sides], idle_amounts(node, foreign)
    lease = Lease(
        LeaseState.OPEN,
        "Leased",
        idle,
        grants_for(idle, deciders),
        policies=policies,
        deciding_policies=flatten_sides(deciders),
        removed_policies=tuple(removed),
        next_change=next_change(sides, now),
    )
    if killed:
        return closed_lease(lease, "Reclaimed", killed, now)
    lease = lease_with_excess(lease, node, foreign, used, sides, now)
    if closed := [policy for policy in lease.deciding_policies if not policy.is_open(now)]:
        return lease_closed_by(closed, lease, now)
    return lease_with_end(lease, lease_end(sides, now), rules.warning, now)


def reduced_lease(lease: Lease, lacking: ResourceList) -> Lease:
    """Return `lease` without what the node turned out not to have."""
    reduced = {
        resource: replace(grant, amount=max(grant.amount - lacking[resource], ZERO))
        for resource, grant in lease.grants.items()
    }
    return replace(lease, grants=reduced)


def matching_policies(policies: Iterable[Policy], node: Object) -> list[Policy]:
    """Return the policies of one side for a node; invalid ones only if there are no others."""
    matching = [policy for policy in policies if policy.selector.matches(node)]
    return [policy for policy in matching if policy.is_valid] or matching


def side_with_removed(side: list[Policy], removed: Iterable[Policy]) -> list[Policy]:
    """Return the policies of a side, including its removed ones."""
    return [*side, *(policy for policy in removed if policy.side is side[0].side)]


def flatten_sides(sides: Iterable[list[Policy]]) -> tuple[Policy, ...]:
    return tuple(policy for side in sides for policy in side)


def deciding_policies(side: list[Policy], now: datetime) -> list[Policy]:
    """Return the policies of a side that determine the amounts: the open ones, else those that closed last."""
    if open_now := [policy for policy in side if policy.is_open(now)]:
        return open_now
    edge = max(policy.closed_since(now) for policy in side)
    return [policy for policy in side if policy.closed_since(now) == edge]


def withdrawal_reason(node: Object, sides: list[list[Policy]], rules: LeaseRules) -> str:
    """Return why the node is not leased at all; empty if it is."""
    if not rules.selector.matches(node):
        return "NodeNotSelected"
    if not sides:
        return "NoPolicy"
    if rules.owner_required and not any(policy.side is PolicySide.OWNER for side in sides for policy in side):
        return "OwnerPolicyRequired"
    return ""


def idle_amounts(node: Object, foreign: Iterable[PodAllocation]) -> ResourceList:
    """Return what the owner's own pods leave of the node."""
    status = node.get("status") or {}
    total = ResourceList.parse(status.get("allocatable") or status.get("capacity"), "status.allocatable")
    left = total - sum((hold.amounts for hold in foreign), ResourceList())
    return ResourceList({resource: max(left[resource], ZERO) for resource in total})


def grants_for(idle: ResourceList, deciders: list[list[Policy]]) -> dict[str, Grant]:
    return {resource: grant_for(resource, amount, deciders) for resource, amount in idle.items()}


def lent_amounts(idle: ResourceList, deciders: list[list[Policy]]) -> ResourceList:
    return ResourceList({resource: grant.amount for resource, grant in grants_for(idle, deciders).items()})


def grant_for(resource: str, idle: Quantity, deciders: Iterable[list[Policy]]) -> Grant:
    """Return the grant of one resource: the smallest offer of all sides."""
    amount, by = min((best_offer(resource, idle, side) for side in deciders), key=lambda offer: offer[0])
    whole = floored(resource, amount)
    return Grant(whole, by, amount - whole)


def best_offer(resource: str, idle: Quantity, policies: list[Policy]) -> tuple[Quantity, str]:
    """Return the largest offer of the policies and its policy; all that is idle if none of them names the resource."""
    if not policies:
        return ZERO, "nobody"
    offers = [
        (limit_amount(limit, idle), str(policy))
        for policy in policies
        if (limit := policy.limit_of(resource)) is not None
    ]
    return max(offers, key=lambda offer: offer[0]) if offers else (idle, "idle")


def limit_amount(limit: ResourceLimit, idle: Quantity) -> Quantity:
    """Return the amount that a limit permits; zero means zero."""
    caps = [idle]
    if limit.quantity is not None:
        caps.append(parse_quantity(limit.quantity))
    if limit.percent is not None:
        caps.append(idle.scaled(Fraction(limit.percent, 100)))
    return min(caps)


def reclaim_terms(policy: Policy, edge: datetime) -> ReclaimTerms:
    """Return the terms on which a policy that closed at `edge` reclaims what it leased."""
    if not policy.forces_reclaim:
        return ReclaimTerms(by=str(policy))
    grace = timedelta(seconds=policy.spec.graceful_reclaim_period_seconds)
    return ReclaimTerms(edge + grace, policy.spec.evict_during_grace, by=str(policy))


def earliest(terms: Iterable[ReclaimTerms]) -> ReclaimTerms:
    """Return the terms with the earliest deadline; terms without a deadline count as the latest."""
    return min(terms, key=lambda each: each.deadline or NEVER)


def lease_closed_by(closed_policies: list[Policy], lease: Lease, now: datetime) -> Lease:
    reason = "OutOfTimeWindows" if any(policy.is_valid for policy in closed_policies) else "InvalidPolicy"
    return closed_lease(
        lease, reason, earliest(reclaim_terms(policy, policy.closed_since(now)) for policy in closed_policies), now
    )


def closed_lease(lease: Lease, reason: str, terms: ReclaimTerms, now: datetime) -> Lease:
    return replace(
        lease,
        state=LeaseState.CLOSED,
        reason=reason,
        terms=terms,
        next_change=soonest(lease.next_change, if_future(terms.deadline, now)),
    )


def lease_with_end(lease: Lease, ends: datetime | None, warning: timedelta, now: datetime) -> Lease:
    """Return an open lease with its end, and a next change in time for the warning."""
    if ends is None:
        return lease
    warn_at, change = ends - warning, lease.next_change
    return replace(lease, ends=ends, ends_soon=warn_at <= now, next_change=soonest(change, if_future(warn_at, now)))


def lease_with_excess(
    lease: Lease,
    node: Object,
    foreign: list[PodAllocation],
    used: Iterable[ResourceList],
    sides: list[list[Policy]],
    now: datetime,
) -> Lease:
    """Return `lease` with the pods' excess over what is left after a policy closed while others stay open.

    The reduction is computed at the moment of closing. Foreign pods created later do not count: priorities decide about
    them. Policies that closed later do not count either: they have their own terms.
    """
    held, excesses = sum(used, ResourceList()), []
    for side in sides:
        for policy in side:
            if policy.forces_reclaim and not policy.is_open(now):
                # An edit of another policy is a new reduction, so excess pods get the full grace again.
                edge = max(policy.closed_since(now), *(each.changed_at for each in side))
                idle = idle_amounts(node, (hold for hold in foreign if hold.since <= edge))
                left = amounts_after_close(policy, edge, sides, idle, now)
                if excess := ResourceList({each: amount for each, amount in left.items() if held[each] > amount}):
                    excesses.append((excess, reclaim_terms(policy, edge)))
    if not excesses:
        return lease
    first = min(excesses, key=lambda each: each[1].deadline or NEVER)
    return replace(lease, excess=first, next_change=soonest(lease.next_change, if_future(first[1].deadline, now)))


def amounts_after_close(
    policy: Policy, edge: datetime, sides: list[list[Policy]], idle: ResourceList, now: datetime
) -> ResourceList:
    """Return the new amounts of the resources that were reduced when the policy closed."""
    others = [
        [each for each in side if each.is_open(edge)] if policy in side else deciding_policies(side, edge)
        for side in sides
    ]
    including = [[*rest, policy] if policy in side else rest for rest, side in zip(others, sides, strict=True)]
    before = lent_amounts(idle, including)
    left = lent_amounts(idle, others).larger(lent_amounts(idle, [deciding_policies(side, now) for side in sides]))
    return ResourceList({resource: left[resource] for resource in idle if left[resource] < before[resource]})


def next_change(sides: list[list[Policy]], now: datetime) -> datetime | None:
    return soonest(*(policy.schedule.next_change(now) for side in sides for policy in side))


def lease_end(sides: list[list[Policy]], now: datetime) -> datetime | None:
    """Return when an open node closes; None if no end is known."""
    moment: datetime | None = now
    for _ in range(LOOKAHEAD):
        if moment is None:
            return None
        if not all(any(policy.is_open(moment) for policy in side) for side in sides):
            return moment
        moment = next_change(sides, moment)
    return None


def lease_opening(lease: Lease, now: datetime) -> datetime | None:
    """Return when a closed lease opens; None if no opening is known."""
    policies = (*lease.policies, *lease.removed_policies)
    sides = [matching for side in PolicySide if (matching := [policy for policy in policies if policy.side is side])]
    moment = next_change(sides, now)
    for _ in range(LOOKAHEAD):
        if moment is None or all(any(policy.is_open(moment) for policy in side) for side in sides):
            return moment
        moment = next_change(sides, moment)
    return None


def if_future(moment: datetime | None, now: datetime) -> datetime | None:
    """Return the moment if it is in the future."""
    return moment if moment is not None and moment > now else None


def soonest(*moments: datetime | None) -> datetime | None:
    return min((moment for moment in moments if moment is not None), default=None)


def has_kill_switch(node: Object) -> bool:
    """Return whether the owner's kill switch is set on the physical node."""
    return bool(value_at(node, "metadata", "annotations", RECLAIM) == RECLAIM_NOW)
