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

from tapestry.apis.keys import NOW, RECLAIM
from tapestry.apis.policies import ResourceLeasingPolicySpec, ResourceLimit
from tapestry.kube.objects import Object, value_at
from tapestry.kube.quantity import ZERO, Amounts, Quantity, floored, parse
from tapestry.kube.requests import Hold
from tapestry.kube.selectors import NodeSelector
from tapestry.syncer.windows import Schedule

LOOKAHEAD = 64
"""Changes of the schedules that are followed to find the end of a lease."""
WARNING = timedelta(minutes=10)
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
    """A policy as it counts: by its own spec, or by its last good one."""

    name: str
    side: Side
    spec: ResourceLeasingPolicySpec
    schedule: Schedule
    selector: NodeSelector
    changed_at: datetime
    """Since when the spec is as it is: a policy that was closed by hand closed then, not at a time of its windows."""
    readable: bool = True
    """One that cannot be read and was never good offers nothing, and takes nothing back."""
    gone: datetime | None = None
    """Since when it is no more: it counts as one that was open until then."""

    def is_open(self, now: datetime) -> bool:
        if self.gone is not None:
            return now < self.gone
        return self.readable and self.schedule.is_open(now)

    @property
    def takes_back(self) -> bool:
        """Whether pods have to leave at a deadline once it has closed."""
        return self.readable and self.spec.force_reclaim

    def closed_since(self, now: datetime) -> datetime:
        return self.gone or max(self.schedule.last_change(now) or self.changed_at, self.changed_at)

    def limit_of(self, resource: str) -> ResourceLimit | None:
        if not self.readable:
            return ResourceLimit(resource, percent=0)
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
    """For everything on the node, unless it is open."""
    trimming: tuple[Amounts, Terms] | None = None
    """Pods beyond these amounts leave on these terms: a policy has closed that had room for them."""
    policies: tuple[Policy, ...] = ()
    deciders: tuple[Policy, ...] = ()
    """Those that say how much: open, or closed last."""
    gone: tuple[Policy, ...] = ()
    """Those that are no more, and still make a difference."""
    next_change: datetime | None = None
    ends: datetime | None = None
    """When an open node closes."""
    ends_soon: bool = False
    """Whether that is near enough to be told."""

    @property
    def amounts(self) -> Amounts:
        return Amounts({resource: grant.amount for resource, grant in self.grants.items()})

    def is_settled(self, now: datetime) -> bool:
        """Whether the lease is open, has no end in sight, and takes nothing back, whichever pods use it."""
        if self.state is not State.OPEN or self.ends_soon:
            return False
        return not any(policy.takes_back and not policy.is_open(now) for policy in (*self.policies, *self.gone))


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
    warning: timedelta = WARNING
    """How long before its end a lease says so."""
    gone: Sequence[Policy] = ()
    """Policies that the node was lent under and that are no more: they lend nothing, but what they lent is taken back
    on their terms, and not on those of a policy that closed long before."""


def lease_of(node: Object, foreign: Iterable[Hold], used: Iterable[Amounts], rules: Rules, now: datetime) -> Lease:
    """The lease of `node`, of which `foreign` pods hold so much and `used` is held by ours."""
    foreign, used = list(foreign), list(used)
    lease = decided(node, foreign, used, rules, now)
    if not rules.gone:
        return lease
    without = decided(node, foreign, used, replace(rules, gone=()), now)
    return without if essence(lease) == essence(without) else lease


def essence(lease: Lease) -> tuple[object, ...]:
    """What a lease lends, and on which terms it takes back."""
    return lease.state, lease.terms, lease.trimming, lease.amounts


def decided(node: Object, foreign: list[Hold], used: list[Amounts], rules: Rules, now: datetime) -> Lease:
    """The lease by these rules, whether or not policies that are gone make a difference to it."""
    sides = [side for policies in (rules.operator, rules.owner) if (side := counting(policies, node))]
    killed = Terms(now, by="the owner's kill switch") if rules.reclaim_now or is_reclaimed(node) else None
    if reason := withdrawal(node, sides, rules):
        return Lease(State.WITHDRAWN, reason, terms=killed or FINISH)
    policies, sides = flat(sides), [with_gone(side, rules.gone) for side in sides]
    deciders, idle = [deciding(side, now) for side in sides], idle_of(node, foreign)
    lease = Lease(
        State.OPEN,
        "Leased",
        idle,
        grants(idle, deciders),
        policies=policies,
        deciders=flat(deciders),
        gone=tuple(rules.gone),
        next_change=next_change(sides, now),
    )
    if killed:
        return closed(lease, "Reclaimed", killed, now)
    lease = trimmed(lease, node, foreign, used, sides, now)
    if shut := [policy for policy in lease.deciders if not policy.is_open(now)]:
        return closed_by(shut, lease, now)
    return ending(lease, end_of(sides, now), rules.warning, now)


def shrunk(lease: Lease, lacking: Amounts) -> Lease:
    """`lease` without what the node turned out not to have."""
    less = {
        resource: replace(grant, amount=max(grant.amount - lacking[resource], ZERO))
        for resource, grant in lease.grants.items()
    }
    return replace(lease, grants=less)


def counting(policies: Iterable[Policy], node: Object) -> list[Policy]:
    """The policies of one side for a node; those that cannot be read only where there are no others."""
    matching = [policy for policy in policies if policy.selector.matches(node)]
    return [policy for policy in matching if policy.readable] or matching


def with_gone(side: list[Policy], gone: Iterable[Policy]) -> list[Policy]:
    """The policies of a side, and those that were of this side."""
    return [*side, *(policy for policy in gone if policy.side is side[0].side)]


def flat(sides: Iterable[list[Policy]]) -> tuple[Policy, ...]:
    return tuple(policy for side in sides for policy in side)


def deciding(side: list[Policy], now: datetime) -> list[Policy]:
    """The policies of a side that say how much: those that are open, else those that closed last."""
    if open_now := [policy for policy in side if policy.is_open(now)]:
        return open_now
    edge = max(policy.closed_since(now) for policy in side)
    return [policy for policy in side if policy.closed_since(now) == edge]


def withdrawal(node: Object, sides: list[list[Policy]], rules: Rules) -> str:
    """Why the node lends nothing at all, if so."""
    if not rules.selector.matches(node):
        return "NodeNotSelected"
    if not sides:
        return "NoPolicy"
    if rules.owner_required and not any(policy.side is Side.OWNER for side in sides for policy in side):
        return "OwnerPolicyRequired"
    return ""


def idle_of(node: Object, foreign: Iterable[Hold]) -> Amounts:
    """What the owner's own pods leave of the node."""
    status = node.get("status") or {}
    have = Amounts.parse(status.get("allocatable") or status.get("capacity"), "status.allocatable")
    left = have - sum((hold.amounts for hold in foreign), Amounts())
    return Amounts({resource: max(left[resource], ZERO) for resource in have})


def grants(idle: Amounts, deciders: list[list[Policy]]) -> dict[str, Grant]:
    return {resource: granted(resource, amount, deciders) for resource, amount in idle.items()}


def lent(idle: Amounts, deciders: list[list[Policy]]) -> Amounts:
    return Amounts({resource: grant.amount for resource, grant in grants(idle, deciders).items()})


def granted(resource: str, idle: Quantity, deciders: Iterable[list[Policy]]) -> Grant:
    """What every side lets go of one resource: the smallest of what each would lend."""
    amount, by = min((offered(resource, idle, side) for side in deciders), key=lambda offer: offer[0])
    whole = floored(resource, amount)
    return Grant(whole, by, amount - whole)


def offered(resource: str, idle: Quantity, policies: list[Policy]) -> tuple[Quantity, str]:
    """The most that one of the policies lends, and which; all that is idle where none of them names the resource."""
    if not policies:
        return ZERO, "nobody"
    named = [
        (capped(limit, idle), str(policy)) for policy in policies if (limit := policy.limit_of(resource)) is not None
    ]
    return max(named, key=lambda offer: offer[0]) if named else (idle, "idle")


def capped(limit: ResourceLimit, idle: Quantity) -> Quantity:
    """Zero means zero."""
    caps = [idle]
    if limit.quantity is not None:
        caps.append(parse(limit.quantity))
    if limit.percent is not None:
        caps.append(idle.scaled(Fraction(limit.percent, 100)))
    return min(caps)


def policy_terms(policy: Policy, edge: datetime) -> Terms:
    """The terms on which a policy that closed at `edge` takes back what it lent."""
    if not policy.takes_back:
        return Terms(by=str(policy))
    grace = timedelta(seconds=policy.spec.graceful_reclaim_period_seconds)
    return Terms(edge + grace, policy.spec.evict_during_grace, by=str(policy))


def earliest(terms: Iterable[Terms]) -> Terms:
    """The terms that end first; those without a deadline end last."""
    return min(terms, key=lambda each: each.deadline or NEVER)


def closed_by(shut: list[Policy], lease: Lease, now: datetime) -> Lease:
    reason = "OutOfTimeWindows" if any(policy.readable for policy in shut) else "InvalidPolicy"
    return closed(lease, reason, earliest(policy_terms(policy, policy.closed_since(now)) for policy in shut), now)


def closed(lease: Lease, reason: str, terms: Terms, now: datetime) -> Lease:
    return replace(
        lease,
        state=State.CLOSED,
        reason=reason,
        terms=terms,
        next_change=soonest(lease.next_change, later(terms.deadline, now)),
    )


def ending(lease: Lease, ends: datetime | None, warning: timedelta, now: datetime) -> Lease:
    """An open lease that knows when it ends, and looks up in time to tell."""
    if ends is None:
        return lease
    warn_at, change = ends - warning, lease.next_change
    return replace(lease, ends=ends, ends_soon=warn_at <= now, next_change=soonest(change, later(warn_at, now)))


def trimmed(
    lease: Lease, node: Object, foreign: list[Hold], used: Iterable[Amounts], sides: list[list[Policy]], now: datetime
) -> Lease:
    """`lease`, with what is to become of pods that a policy had room for which has closed, while others lend on.

    What it narrowed is told by the moment it closed.  Foreign pods that came later do not count: what they take is for
    priorities to settle.  Nor do policies that closed later: those have terms of their own.
    """
    holding, found = sum(used, Amounts()), []
    for side in sides:
        for policy in side:
            if policy.takes_back and not policy.is_open(now):
                # Whoever edits another of them narrows anew, and what is over the lease then has the same grace again.
                edge = max(policy.closed_since(now), *(each.changed_at for each in side))
                idle = idle_of(node, (hold for hold in foreign if hold.since <= edge))
                left = left_by(policy, edge, sides, idle, now)
                if over := Amounts({each: amount for each, amount in left.items() if holding[each] > amount}):
                    found.append((over, policy_terms(policy, edge)))
    if not found:
        return lease
    first = min(found, key=lambda each: each[1].deadline or NEVER)
    return replace(lease, trimming=first, next_change=soonest(lease.next_change, later(first[1].deadline, now)))


def left_by(policy: Policy, edge: datetime, sides: list[list[Policy]], idle: Amounts, now: datetime) -> Amounts:
    """What is lent of everything of which less was lent from the moment on at which the policy closed."""
    others = [
        [each for each in side if each.is_open(edge)] if policy in side else deciding(side, edge) for side in sides
    ]
    with_it = [[*some, policy] if policy in side else some for some, side in zip(others, sides, strict=True)]
    before = lent(idle, with_it)
    left = lent(idle, others).larger(lent(idle, [deciding(side, now) for side in sides]))
    return Amounts({resource: left[resource] for resource in idle if left[resource] < before[resource]})


def next_change(sides: list[list[Policy]], now: datetime) -> datetime | None:
    return soonest(*(policy.schedule.next_change(now) for side in sides for policy in side))


def end_of(sides: list[list[Policy]], now: datetime) -> datetime | None:
    """When a node that is open closes; None where that is not in sight."""
    moment: datetime | None = now
    for _ in range(LOOKAHEAD):
        if moment is None:
            return None
        if not all(any(policy.is_open(moment) for policy in side) for side in sides):
            return moment
        moment = next_change(sides, moment)
    return None


def opening_of(lease: Lease, now: datetime) -> datetime | None:
    """When a lease whose windows are closed opens; None where that is not in sight."""
    every = (*lease.policies, *lease.gone)
    sides = [found for side in Side if (found := [policy for policy in every if policy.side is side])]
    moment = next_change(sides, now)
    for _ in range(LOOKAHEAD):
        if moment is None or all(any(policy.is_open(moment) for policy in side) for side in sides):
            return moment
        moment = next_change(sides, moment)
    return None


def later(moment: datetime | None, now: datetime) -> datetime | None:
    """The moment, where it is still to come."""
    return moment if moment is not None and moment > now else None


def soonest(*moments: datetime | None) -> datetime | None:
    return min((moment for moment in moments if moment is not None), default=None)


def is_reclaimed(node: Object) -> bool:
    """The owner's kill switch, on the physical node."""
    return bool(value_at(node, "metadata", "annotations", RECLAIM) == NOW)
