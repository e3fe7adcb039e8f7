"""Leasing: how much of a physical node is lent, until when, and on which terms it is taken back.

Policies come from two sides.  The operator's live in the virtual cluster, the owner's in the physical one.  Within a
side the most generous open policy counts, for each resource on its own; a resource that none of them names is lent
whole.  Between the sides the smaller amount counts, and a side whose policies are all closed closes the node.  No
policy, no lease.  Everything here follows from its arguments: no clock, no state, no I/O.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from fractions import Fraction

from tapestry.apis.keys import NOW, RECLAIM
from tapestry.apis.policies import ResourceLeasingPolicySpec, ResourceLimit
from tapestry.kube.objects import Object, value_at
from tapestry.kube.quantity import Amounts, Quantity, floored, parse
from tapestry.kube.selectors import NodeSelector
from tapestry.syncer.windows import Schedule

LOOKAHEAD = 64
"""Changes of the schedules that are followed to find the end of a lease."""


NEVER = datetime.max.replace(tzinfo=UTC)


class Side(StrEnum):
    OPERATOR = "operator"
    OWNER = "owner"


class State(StrEnum):
    OPEN = "Open"
    CLOSED = "Closed"
    """Only a taint: what runs may run on until the deadline, if there is one."""
    WITHDRAWN = "Withdrawn"
    """The virtual node is to go, once its pods are gone."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy that can be used: its own spec, or the last good one."""

    name: str
    side: Side
    spec: ResourceLeasingPolicySpec
    schedule: Schedule
    selector: NodeSelector
    changed_at: datetime
    """Since when the spec is as it is: a policy that was closed by hand closed then, not at a time of its windows."""

    def closed_since(self, now: datetime) -> datetime:
        return max(self.schedule.last_change(now) or self.changed_at, self.changed_at)

    def limit_of(self, resource: str) -> ResourceLimit | None:
        return next((limit for limit in self.spec.resource_limits if limit.resource == resource), None)

    def __str__(self) -> str:
        return f"{self.side}/{self.name}"


@dataclass(frozen=True, slots=True)
class Terms:
    """How pods leave: never by force where there is no deadline."""

    deadline: datetime | None = None
    evict: bool = False
    """Try the Eviction API until the deadline, so that disruption budgets hold."""
    by: str = ""
    """Whose terms these are."""


FINISH = Terms()
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

    state: State
    reason: str
    idle: Amounts = field(default_factory=Amounts)
    grants: dict[str, Grant] = field(default_factory=dict)
    terms: Terms = FINISH
    """For everything on the node, while it is closed."""
    trimming: tuple[Amounts, Terms] | None = None
    """Pods beyond these amounts leave on these terms: an open node of which a policy has closed."""
    policies: tuple[Policy, ...] = ()
    next_change: datetime | None = None
    ends: datetime | None = None
    """When an open node closes."""

    @property
    def amounts(self) -> Amounts:
        return Amounts({resource: grant.amount for resource, grant in self.grants.items()})


@dataclass(frozen=True, slots=True)
class Rules:
    """Everything but the node and its pods that decides."""

    operator: Sequence[Policy]
    owner: Sequence[Policy]
    selector: NodeSelector
    """The binding's."""
    owner_required: bool = False
    reclaim_now: bool = False
    """The owner's kill switch for the whole cluster."""


def lease_of(node: Object, foreign: Iterable[Amounts], used: Iterable[Amounts], rules: Rules, now: datetime) -> Lease:
    """The lease of `node`, of which `foreign` pods hold so much and `used` is held by ours."""
    sides = [
        matching
        for policies in (rules.operator, rules.owner)
        if (matching := [policy for policy in policies if policy.selector.matches(node)])
    ]
    if reason := withdrawal(node, sides, rules):
        return Lease(State.WITHDRAWN, reason)
    idle = idle_of(node, foreign)
    grants = {resource: granted(resource, idle[resource], sides, now) for resource in idle}
    lease = Lease(
        State.OPEN,
        "Leased",
        idle,
        grants,
        policies=tuple(policy for side in sides for policy in side),
        next_change=next_change(sides, now),
        ends=end_of(sides, now),
    )
    if rules.reclaim_now or is_reclaimed(node):
        return closed(lease, "Reclaimed", Terms(now, by="the owner's kill switch"), now)
    shut = [side for side in sides if not any_open(side, now)]
    if shut:
        return closed(lease, "OutOfTimeWindows", earliest(terms_of(side, now) for side in shut), now)
    return trimmed(lease, sides, used, now)


def withdrawal(node: Object, sides: list[list[Policy]], rules: Rules) -> str:
    """Why the node lends nothing at all, if so."""
    if not rules.selector.matches(node):
        return "NodeNotSelected"
    if not sides:
        return "NoPolicy"
    if rules.owner_required and not any(policy.side is Side.OWNER for side in sides for policy in side):
        return "OwnerPolicyRequired"
    return ""


def idle_of(node: Object, foreign: Iterable[Amounts]) -> Amounts:
    """What the owner's own pods leave of the node."""
    status = node.get("status") or {}
    idle = have = Amounts.parse(status.get("allocatable") or status.get("capacity"), "status.allocatable")
    for requests in foreign:
        idle = idle - requests
    return Amounts({resource: max(idle[resource], parse(0)) for resource in have})


def granted(
    resource: str, idle: Quantity, sides: list[list[Policy]], now: datetime, *, also: Policy | None = None
) -> Grant:
    """What every side lets go of one resource: the smallest of what each would lend.  `also` counts as open."""
    offers = [
        offered(resource, idle, [each for each in side if each is also or each.schedule.is_open(now)] or side)
        for side in sides
    ]
    amount, by = min(offers, key=lambda offer: offer[0])
    whole = floored(resource, amount)
    return Grant(whole, by, amount - whole)


def offered(resource: str, idle: Quantity, policies: list[Policy]) -> tuple[Quantity, str]:
    """The most that one of the policies lends, and which; all that is idle where none of them names the resource."""
    named = [
        (capped(limit, idle), str(policy)) for policy in policies if (limit := policy.limit_of(resource)) is not None
    ]
    return max(named, key=lambda offer: offer[0]) if named else (idle, "idle")


def capped(limit: ResourceLimit, idle: Quantity) -> Quantity:
    """Zero means zero."""
    caps = [idle]
    if limit.quantity is not None:
        caps.append(max(parse(limit.quantity), parse(0)))
    if limit.percent is not None:
        caps.append(idle.scaled(Fraction(limit.percent, 100)))
    return min(caps)


def any_open(side: list[Policy], now: datetime) -> bool:
    return any(policy.schedule.is_open(now) for policy in side)


def terms_of(side: list[Policy], now: datetime) -> Terms:
    """The terms on which a side that has closed takes its nodes back: those of the policy that closed last."""
    last = max(side, key=lambda policy: (policy.closed_since(now), policy.name))
    return policy_terms(last, now)


def policy_terms(policy: Policy, now: datetime) -> Terms:
    edge = policy.closed_since(now)
    grace = timedelta(seconds=policy.spec.graceful_reclaim_period_seconds)
    return Terms(
        deadline=edge + grace if policy.spec.force_reclaim else None,
        evict=policy.spec.evict_during_grace,
        by=str(policy),
    )


def earliest(terms: Iterable[Terms]) -> Terms:
    """The terms that end first; those without a deadline end last."""
    return min(terms, key=lambda each: each.deadline or NEVER)


def closed(lease: Lease, reason: str, terms: Terms, now: datetime) -> Lease:
    return replace(
        lease,
        state=State.CLOSED,
        reason=reason,
        terms=terms,
        next_change=soonest(lease.next_change, due(terms, now)),
        ends=None,
    )


def due(terms: Terms, now: datetime) -> datetime | None:
    """The deadline, where it is still to come."""
    return terms.deadline if terms.deadline is not None and terms.deadline > now else None


def trimmed(lease: Lease, sides: list[list[Policy]], used: Iterable[Amounts], now: datetime) -> Lease:
    """An open lease, with what is to become of pods that a policy which has closed had room for.

    Only what that policy would still allow is counted against it: what foreign pods took is for priorities to settle.
    """
    holding = sum(used, Amounts())
    leaving = [
        policy for side in sides for policy in side if policy.spec.force_reclaim and not policy.schedule.is_open(now)
    ]
    beyond = [policy for policy in leaving if had_room(policy, lease, sides, holding, now)]
    if not beyond:
        return lease
    terms = earliest(policy_terms(policy, now) for policy in beyond)
    return replace(lease, trimming=(lease.amounts, terms), next_change=soonest(lease.next_change, due(terms, now)))


def had_room(policy: Policy, lease: Lease, sides: list[list[Policy]], holding: Amounts, now: datetime) -> bool:
    """Whether pods hold more than is lent, of something that `policy` would lend more of if it were open."""
    for resource, grant in lease.grants.items():
        if holding[resource] > grant.amount:
            with_it = granted(resource, lease.idle[resource], sides, now, also=policy)
            if with_it.amount > grant.amount:
                return True
    return False


def next_change(sides: list[list[Policy]], now: datetime) -> datetime | None:
    return soonest(*(policy.schedule.next_change(now) for side in sides for policy in side))


def end_of(sides: list[list[Policy]], now: datetime) -> datetime | None:
    """When a node that is open now closes; None where that is not in sight."""
    moment: datetime | None = now
    for _ in range(LOOKAHEAD):
        if moment is None:
            return None
        if not all(any_open(side, moment) for side in sides):
            return moment if moment > now else None
        moment = next_change(sides, moment)
    return None


def soonest(*moments: datetime | None) -> datetime | None:
    return min((moment for moment in moments if moment is not None), default=None)


def is_reclaimed(node: Object) -> bool:
    """The owner's kill switch, on the physical node."""
    return bool(value_at(node, "metadata", "annotations", RECLAIM) == NOW)
