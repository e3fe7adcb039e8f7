"""Division of total limits among the nodes of a binding. Pure.

Each node gets a share in proportion to what it could lease by itself, in whole units of the resource, and the shares
add up to the total. A division keeps the previous shares while they are nearly proportional: if one node of a thousand
changes, only a few others change too. A share is not reduced below what pods hold of it unless the total itself is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from tapestry.kube.quantity import Quantity, ResourceList, smallest_unit
from tapestry.syncer.leasing import Lease, LeaseRules, Policy

TOLERANCE = 10
"""A share may deviate from the proportional one by this fraction (1/n), and by at least one unit."""
BY_TOTAL = "total"


@dataclass(frozen=True, slots=True)
class ShareRequest:
    """Input of one node to a division, in units of the resource."""

    weight: int
    """Amount that the node could lease by itself."""
    before: int | None = None
    """Previous share of the node."""
    used: int = 0
    """Amount that pods hold of it."""

    @property
    def least(self) -> int:
        return min(self.used, self.weight)


def combined_limits(rules: LeaseRules, now: datetime) -> ResourceList:
    """Return the total limits of all nodes together.

    Within a side the most generous open policy counts, of those that name a total; if none is open, all of them count.
    Between the sides the smaller total counts.
    """
    limits: dict[str, Quantity] = {}
    for side in (rules.operator, rules.owner):
        for resource, amount in side_limits(side, now).items():
            limits[resource] = min(amount, limits.get(resource, amount))
    return ResourceList(limits).floored()


def side_limits(policies: Iterable[Policy], now: datetime) -> ResourceList:
    with_limits = [policy for policy in policies if policy.is_valid and policy.spec.total_limits]
    counting = [policy for policy in with_limits if policy.is_open(now)] or with_limits
    limits = ResourceList()
    for policy in counting:
        limits = limits.larger(ResourceList.parse({each.resource: each.quantity for each in policy.spec.total_limits}))
    return limits


def limited_lease(lease: Lease, share: ResourceList) -> Lease:
    """Return `lease` limited to the share of each resource that the share names."""
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
    """Return the share of each node. Their sum is the total, or all that the nodes could lease if that is less."""
    weights = sum(request.weight for request in requests.values())
    if weights <= max(total, 0):
        return {name: request.weight for name, request in requests.items()}
    fair = proportional(max(total, 0), {name: request.weight for name, request in requests.items()}, weights)
    spread = {name: max(1, share // TOLERANCE) for name, share in fair.items()}
    shares = {
        name: max(request.least, min(request.before, request.weight))
        if request.before is not None and abs(request.before - fair[name]) <= spread[name]
        else max(request.least, fair[name])
        for name, request in requests.items()
    }
    excess = sum(shares.values()) - max(total, 0)
    if excess < 0:
        headroom = {name: min(requests[name].weight, fair[name] + spread[name]) - shares[name] for name in shares}
        adjust(shares, headroom, requests, -excess, 1)
    least = {name: request.least for name, request in requests.items()}
    near = {name: max(least[name], fair[name] - spread[name]) for name in shares}
    for floors in (near, least, dict.fromkeys(shares, 0)):
        if excess > 0:
            excess -= adjust(shares, {name: shares[name] - floors[name] for name in shares}, requests, excess, -1)
    return shares


def proportional(total: int, weights: Mapping[str, int], sum_of_weights: int) -> dict[str, int]:
    """Divide `total` in proportion to the weights, rounded down; the rest is given to the largest remainders."""
    shares = {name: total * weight // sum_of_weights for name, weight in weights.items()}
    left = total - sum(shares.values())
    order = sorted(weights, key=lambda name: (-(total * weights[name] % sum_of_weights), name))
    for name in order[:left]:
        shares[name] += 1
    return shares


def adjust(
    shares: dict[str, int], headroom: Mapping[str, int], requests: Mapping[str, ShareRequest], amount: int, sign: int
) -> int:
    """Change shares by up to `amount` in all, each within its headroom; return the sum of the changes.

    Shares that change anyway are changed first, then those with the most headroom, so that few nodes are written.
    """
    left = amount
    for name in sorted(headroom, key=lambda name: (shares[name] == requests[name].before, -headroom[name], name)):
        step = min(left, max(headroom[name], 0))
        shares[name] += sign * step
        left -= step
        if left == 0:
            break
    return amount - left
