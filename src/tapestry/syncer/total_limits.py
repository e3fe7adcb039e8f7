"""Totals: how the most that all nodes of a binding lend together is divided among them.

Each node gets a share in proportion to what it could lend by itself, in whole units of the resource, and the shares add
up to the total.  A division follows the one before it as far as that is still nearly proportional: where one node of a
thousand changes, a handful of others do.  A share is not cut below what pods hold of it, unless the total itself is.
Everything here follows from its arguments.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from tapestry.kube.quantity import Quantity, ResourceList, smallest_unit
from tapestry.syncer.leasing import Lease, LeaseRules, Policy

TOLERANCE = 10
"""A share may differ from the proportional one by one part in so many, and at least by one unit."""
BY_TOTAL = "total"


@dataclass(frozen=True, slots=True)
class ShareRequest:
    """What one node brings to a division, in units of the resource."""

    weight: int
    """What it could lend by itself."""
    before: int | None = None
    """Its share so far."""
    used: int = 0
    """What pods hold of it."""

    @property
    def least(self) -> int:
        return min(self.used, self.weight)


def combined_limits(rules: LeaseRules, now: datetime) -> ResourceList:
    """The most that is lent of all nodes together.

    Within a side the most generous open policy counts, of those that name a total; where none is open, all of them.
    Between the sides the smaller total counts.
    """
    found: dict[str, Quantity] = {}
    for side in (rules.operator, rules.owner):
        for resource, amount in side_limits(side, now).items():
            found[resource] = min(amount, found.get(resource, amount))
    return ResourceList(found).floored()


def side_limits(policies: Iterable[Policy], now: datetime) -> ResourceList:
    naming = [policy for policy in policies if policy.is_valid and policy.spec.total_limits]
    counting = [policy for policy in naming if policy.is_open(now)] or naming
    found = ResourceList()
    for policy in counting:
        found = found.larger(ResourceList.parse({limit.resource: limit.quantity for limit in policy.spec.total_limits}))
    return found


def limited_lease(lease: Lease, share: ResourceList) -> Lease:
    """`lease`, of which no more is lent than a share says of the resources that it names."""
    grants = {
        resource: replace(grant, amount=Quantity(share[resource].nano, grant.amount.format), by=BY_TOTAL)
        if resource in share and share[resource] < grant.amount
        else grant
        for resource, grant in lease.grants.items()
    }
    return replace(lease, grants=grants)


def in_units(resource: str, amount: Quantity) -> int:
    return amount.nano // smallest_unit(resource).nano


def from_units(resource: str, units: int) -> Quantity:
    return Quantity(units * smallest_unit(resource).nano)


def node_shares(total: int, requests: Mapping[str, ShareRequest]) -> dict[str, int]:
    """The share of each node: together they are the total, or all that there is where that is less."""
    weights = sum(claim.weight for claim in requests.values())
    if weights <= max(total, 0):
        return {name: claim.weight for name, claim in requests.items()}
    fair = proportional(max(total, 0), {name: claim.weight for name, claim in requests.items()}, weights)
    spread = {name: max(1, share // TOLERANCE) for name, share in fair.items()}
    shares = {
        name: max(claim.least, min(claim.before, claim.weight))
        if claim.before is not None and abs(claim.before - fair[name]) <= spread[name]
        else max(claim.least, fair[name])
        for name, claim in requests.items()
    }
    over = sum(shares.values()) - max(total, 0)
    if over < 0:
        room = {name: min(requests[name].weight, fair[name] + spread[name]) - shares[name] for name in shares}
        adjust(shares, room, requests, -over, 1)
    least = {name: claim.least for name, claim in requests.items()}
    near = {name: max(least[name], fair[name] - spread[name]) for name in shares}
    for floors in (near, least, dict.fromkeys(shares, 0)):
        if over > 0:
            over -= adjust(shares, {name: shares[name] - floors[name] for name in shares}, requests, over, -1)
    return shares


def proportional(total: int, weights: Mapping[str, int], sum_of_weights: int) -> dict[str, int]:
    """`total` in proportion to the weights, rounded down; what is left goes to those with the largest remainders."""
    shares = {name: total * weight // sum_of_weights for name, weight in weights.items()}
    left = total - sum(shares.values())
    order = sorted(weights, key=lambda name: (-(total * weights[name] % sum_of_weights), name))
    for name in order[:left]:
        shares[name] += 1
    return shares


def adjust(
    shares: dict[str, int], headroom: Mapping[str, int], requests: Mapping[str, ShareRequest], amount: int, sign: int
) -> int:
    """Change shares by `amount` in all, each by no more than its room; returns by how much.

    Those that change anyway come first, then those with the most room: few nodes have to be written.
    """
    left = amount
    for name in sorted(headroom, key=lambda name: (shares[name] == requests[name].before, -headroom[name], name)):
        step = min(left, max(headroom[name], 0))
        shares[name] += sign * step
        left -= step
        if left == 0:
            break
    return amount - left
