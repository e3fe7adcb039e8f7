"""Leasing: how much of a physical node is lent, until when, and on which terms it is taken back.

Policies come from two sides.  The operator's live in the virtual cluster, the owner's in the physical one.  Within a
side the most generous open policy counts, for each resource on its own; a resource that none of them names is lent
whole.  Between the sides the smaller amount counts, and a side whose policies are all closed closes the node: no more
pods, but what it lends stays as it was.  No policy, no lease.  Everything here follows from its arguments: no clock, no
state, no I/O.
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
"""Changes of the schedules that are followed to find the end of a lease."""
WARNING = timedelta(minutes=10)
NEVER = datetime.max.replace(tzinfo=UTC)


class PolicySide(StrEnum):
    OPERATOR = "operator"
    OWNER = "owner"


class LeaseState(StrEnum):
    OPEN = "Open"
    CLOSED = "Closed"
    """Only a taint: what runs may run on until the deadline, if there is one."""
    WITHDRAWN = "Withdrawn"
    """The virtual node is to go, once its pods are gone."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy as it counts: by its own spec, or by its last good one."""

    name: str
    side: PolicySide
    spec: ResourceLeasingPolicySpec
    schedule: Schedule
    selector: NodeSelector
    changed_at: datetime
    """Since when the spec is as it is: a policy that was closed by hand closed then, not at a time of its windows."""
    is_valid: bool = True
    """One that cannot be read and was never good offers nothing, and takes nothing back."""
    removed_at: datetime | None = None
    """Since when it is no more: it counts as one that was open until then."""

    def is_open(self, now: datetime) -> bool:
        if self.removed_at is not None:
            return now < self.removed_at
        return self.is_valid and self.schedule.is_open(now)

    @property
    def forces_reclaim(self) -> bool:
        """Whether pods have to leave at a deadline once it has closed."""
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
    """How pods leave: never by force where there is no deadline."""

    deadline: datetime | None = None
    evict: bool = False
    """Try the Eviction API until the deadline, so that disruption budgets hold."""
    by: str = ""
    """Whose terms these are."""


NO_DEADLINE = ReclaimTerms()
"""Pods finish when they do."""


@dataclass(frozen=True, slots=True)
class Grant:
    """How much is lent of one resource, and who decided."""

    amount: Quantity
    by: str
    lost: Quantity
    """What the resource could not express: half a GPU."""


@dataclass(frozen=True, slots=True)
class Lease:
    """What a node lends at one moment."""

    state: LeaseState
    reason: str
    idle: ResourceList = field(default_factory=ResourceList)
    grants: dict[str, Grant] = field(default_factory=dict)
    terms: ReclaimTerms = NO_DEADLINE
    """For everything on the node, unless it is open."""
    excess: tuple[ResourceList, ReclaimTerms] | None = None
    """Pods beyond these amounts leave on these terms: a policy has closed that had room for them."""
    policies: tuple[Policy, ...] = ()
    deciding_policies: tuple[Policy, ...] = ()
    """Those that say how much: open, or closed last."""
    removed_policies: tuple[Policy, ...] = ()
    """Those that are no more, and still make a difference."""
    next_change: datetime | None = None
    ends: datetime | None = None
    """When an open node closes."""
    ends_soon: bool = False
    """Whether that is near enough to be told."""

    @property
    def amounts(self) -> ResourceList:
        return ResourceList({resource: grant.amount for resource, grant in self.grants.items()})

    def is_stable(self, now: datetime) -> bool:
        """Whether the lease is open, has no end in sight, and takes nothing back, whichever pods use it."""
        if self.state is not LeaseState.OPEN or self.ends_soon:
            return False
        return not any(
            policy.forces_reclaim and not policy.is_open(now) for policy in (*self.policies, *self.removed_policies)
        )


@dataclass(frozen=True, slots=True)
class LeaseRules:
    """Everything but the node and its pods that decides."""

    operator: Sequence[Policy]
    owner: Sequence[Policy]
    selector: NodeSelector
    """The binding's."""
    owner_required: bool = False
    reclaim_now: bool = False
    """The owner's kill switch for the whole cluster."""
    warning: timedelta = WARNING
    """How long before its end a lease says so."""
    removed_policies: Sequence[Policy] = ()
    """Policies that the node was lent under and that are no more: they lend nothing, but what they lent is taken back
    on their terms, and not on those of a policy that closed long before."""


def lease_for(
    node: Object, foreign: Iterable[PodAllocation], used: Iterable[ResourceList], rules: LeaseRules, now: datetime
) -> Lease:
    """The lease of `node`, of which `foreign` pods hold so much and `used` is held by ours."""
    foreign, used = list(foreign), list(used)
    lease = decide_lease(node, foreign, used, rules, now)
    if not rules.removed_policies:
        return lease
    without = decide_lease(node, foreign, used, replace(rules, removed_policies=()), now)
    return without if lease_effect(lease) == lease_effect(without) else lease


def lease_effect(lease: Lease) -> tuple[object, ...]:
    """What a lease lends, and on which terms it takes back."""
    return lease.state, lease.terms, lease.excess, lease.amounts


def decide_lease(
    node: Object, foreign: list[PodAllocation], used: list[ResourceList], rules: LeaseRules, now: datetime
) -> Lease:
    """The lease by these rules, whether or not policies that are gone make a difference to it."""
    sides = [side for policies in (rules.operator, rules.owner) if (side := matching_policies(policies, node))]
    killed = ReclaimTerms(now, by="the owner's kill switch") if rules.reclaim_now or has_kill_switch(node) else None
    if reason := withdrawal_reason(node, sides, rules):
        return Lease(LeaseState.WITHDRAWN, reason, terms=killed or NO_DEADLINE)
    policies, sides = flatten_sides(sides), [side_with_removed(side, rules.removed_policies) for side in sides]
    deciders, idle = [deciding_policies(side, now) for side in sides], idle_amounts(node, foreign)
    lease = Lease(
        LeaseState.OPEN,
        "Leased",
        idle,
        grants_for(idle, deciders),
        policies=policies,
        deciding_policies=flatten_sides(deciders),
        removed_policies=tuple(rules.removed_policies),
        next_change=next_change(sides, now),
    )
    if killed:
        return closed_lease(lease, "Reclaimed", killed, now)
    lease = lease_with_excess(lease, node, foreign, used, sides, now)
    if shut := [policy for policy in lease.deciding_policies if not policy.is_open(now)]:
        return lease_closed_by(shut, lease, now)
    return lease_with_end(lease, lease_end(sides, now), rules.warning, now)


def reduced_lease(lease: Lease, lacking: ResourceList) -> Lease:
    """`lease` without what the node turned out not to have."""
    less = {
        resource: replace(grant, amount=max(grant.amount - lacking[resource], ZERO))
        for resource, grant in lease.grants.items()
    }
    return replace(lease, grants=less)


def matching_policies(policies: Iterable[Policy], node: Object) -> list[Policy]:
    """The policies of one side for a node; those that cannot be read only where there are no others."""
    matching = [policy for policy in policies if policy.selector.matches(node)]
    return [policy for policy in matching if policy.is_valid] or matching


def side_with_removed(side: list[Policy], removed: Iterable[Policy]) -> list[Policy]:
    """The policies of a side, and those that were of this side."""
    return [*side, *(policy for policy in removed if policy.side is side[0].side)]


def flatten_sides(sides: Iterable[list[Policy]]) -> tuple[Policy, ...]:
    return tuple(policy for side in sides for policy in side)


def deciding_policies(side: list[Policy], now: datetime) -> list[Policy]:
    """The policies of a side that say how much: those that are open, else those that closed last."""
    if open_now := [policy for policy in side if policy.is_open(now)]:
        return open_now
    edge = max(policy.closed_since(now) for policy in side)
    return [policy for policy in side if policy.closed_since(now) == edge]


def withdrawal_reason(node: Object, sides: list[list[Policy]], rules: LeaseRules) -> str:
    """Why the node lends nothing at all, if so."""
    if not rules.selector.matches(node):
        return "NodeNotSelected"
    if not sides:
        return "NoPolicy"
    if rules.owner_required and not any(policy.side is PolicySide.OWNER for side in sides for policy in side):
        return "OwnerPolicyRequired"
    return ""


def idle_amounts(node: Object, foreign: Iterable[PodAllocation]) -> ResourceList:
    """What the owner's own pods leave of the node."""
    status = node.get("status") or {}
    have = ResourceList.parse(status.get("allocatable") or status.get("capacity"), "status.allocatable")
    left = have - sum((hold.amounts for hold in foreign), ResourceList())
    return ResourceList({resource: max(left[resource], ZERO) for resource in have})


def grants_for(idle: ResourceList, deciders: list[list[Policy]]) -> dict[str, Grant]:
    return {resource: grant_for(resource, amount, deciders) for resource, amount in idle.items()}


def lent_amounts(idle: ResourceList, deciders: list[list[Policy]]) -> ResourceList:
    return ResourceList({resource: grant.amount for resource, grant in grants_for(idle, deciders).items()})


def grant_for(resource: str, idle: Quantity, deciders: Iterable[list[Policy]]) -> Grant:
    """What every side lets go of one resource: the smallest of what each would lend."""
    amount, by = min((best_offer(resource, idle, side) for side in deciders), key=lambda offer: offer[0])
    whole = floored(resource, amount)
    return Grant(whole, by, amount - whole)


def best_offer(resource: str, idle: Quantity, policies: list[Policy]) -> tuple[Quantity, str]:
    """The most that one of the policies lends, and which; all that is idle where none of them names the resource."""
    if not policies:
        return ZERO, "nobody"
    named = [
        (limit_amount(limit, idle), str(policy))
        for policy in policies
        if (limit := policy.limit_of(resource)) is not None
    ]
    return max(named, key=lambda offer: offer[0]) if named else (idle, "idle")


def limit_amount(limit: ResourceLimit, idle: Quantity) -> Quantity:
    """Zero means zero."""
    caps = [idle]
    if limit.quantity is not None:
        caps.append(parse_quantity(limit.quantity))
    if limit.percent is not None:
        caps.append(idle.scaled(Fraction(limit.percent, 100)))
    return min(caps)


def reclaim_terms(policy: Policy, edge: datetime) -> ReclaimTerms:
    """The terms on which a policy that closed at `edge` takes back what it lent."""
    if not policy.forces_reclaim:
        return ReclaimTerms(by=str(policy))
    grace = timedelta(seconds=policy.spec.graceful_reclaim_period_seconds)
    return ReclaimTerms(edge + grace, policy.spec.evict_during_grace, by=str(policy))


def earliest(terms: Iterable[ReclaimTerms]) -> ReclaimTerms:
    """The terms that end first; those without a deadline end last."""
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
    """An open lease that knows when it ends, and looks up in time to tell."""
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
    """`lease`, with what is to become of pods that a policy had room for which has closed, while others lend on.

    What it narrowed is told by the moment it closed.  Foreign pods that came later do not count: what they take is for
    priorities to settle.  Nor do policies that closed later: those have terms of their own.
    """
    holding, found = sum(used, ResourceList()), []
    for side in sides:
        for policy in side:
            if policy.forces_reclaim and not policy.is_open(now):
                # Whoever edits another of them narrows anew, and what is over the lease then has the same grace again.
                edge = max(policy.closed_since(now), *(each.changed_at for each in side))
                idle = idle_amounts(node, (hold for hold in foreign if hold.since <= edge))
                left = amounts_after_close(policy, edge, sides, idle, now)
                if over := ResourceList({each: amount for each, amount in left.items() if holding[each] > amount}):
                    found.append((over, reclaim_terms(policy, edge)))
    if not found:
        return lease
    first = min(found, key=lambda each: each[1].deadline or NEVER)
    return replace(lease, excess=first, next_change=soonest(lease.next_change, if_future(first[1].deadline, now)))


def amounts_after_close(
    policy: Policy, edge: datetime, sides: list[list[Policy]], idle: ResourceList, now: datetime
) -> ResourceList:
    """What is lent of everything of which less was lent from the moment on at which the policy closed."""
    others = [
        [each for each in side if each.is_open(edge)] if policy in side else deciding_policies(side, edge)
        for side in sides
    ]
    with_it = [[*some, policy] if policy in side else some for some, side in zip(others, sides, strict=True)]
    before = lent_amounts(idle, with_it)
    left = lent_amounts(idle, others).larger(lent_amounts(idle, [deciding_policies(side, now) for side in sides]))
    return ResourceList({resource: left[resource] for resource in idle if left[resource] < before[resource]})


def next_change(sides: list[list[Policy]], now: datetime) -> datetime | None:
    return soonest(*(policy.schedule.next_change(now) for side in sides for policy in side))


def lease_end(sides: list[list[Policy]], now: datetime) -> datetime | None:
    """When a node that is open closes; None where that is not in sight."""
    moment: datetime | None = now
    for _ in range(LOOKAHEAD):
        if moment is None:
            return None
        if not all(any(policy.is_open(moment) for policy in side) for side in sides):
            return moment
        moment = next_change(sides, moment)
    return None


def lease_opening(lease: Lease, now: datetime) -> datetime | None:
    """When a lease whose windows are closed opens; None where that is not in sight."""
    every = (*lease.policies, *lease.removed_policies)
    sides = [found for side in PolicySide if (found := [policy for policy in every if policy.side is side])]
    moment = next_change(sides, now)
    for _ in range(LOOKAHEAD):
        if moment is None or all(any(policy.is_open(moment) for policy in side) for side in sides):
            return moment
        moment = next_change(sides, moment)
    return None


def if_future(moment: datetime | None, now: datetime) -> datetime | None:
    """The moment, where it is still to come."""
    return moment if moment is not None and moment > now else None


def soonest(*moments: datetime | None) -> datetime | None:
    return min((moment for moment in moments if moment is not None), default=None)


def has_kill_switch(node: Object) -> bool:
    """The owner's kill switch, on the physical node."""
    return bool(value_at(node, "metadata", "annotations", RECLAIM) == RECLAIM_NOW)
