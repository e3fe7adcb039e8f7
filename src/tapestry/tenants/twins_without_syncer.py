"""Reclaim of twins without a running syncer: which must end, from the leases of their nodes. It is pure.

Pods cannot be evicted meanwhile, because their plane does not answer. So twins run until the deadline of their node's
lease, if it has one, and then they are deleted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tapestry.apis.ownership import is_ending_in_time
from tapestry.kube.objects import Object
from tapestry.kube.pod_requests import PodAllocation
from tapestry.kube.times import parse_time
from tapestry.syncer.leasing import (
    NO_DEADLINE,
    Lease,
    LeaseRules,
    LeaseState,
    ReclaimTerms,
    earliest,
    lease_for,
    soonest,
)
from tapestry.syncer.policies import stored_terms
from tapestry.syncer.reclaim import reclaim_all, reclaim_for
from tapestry.syncer.views import Twin

CLOCK_DIFFERENCE = timedelta(seconds=30)
"""Difference between the clocks of this process and of a kubelet that reclaims no pod."""


@dataclass(frozen=True, slots=True)
class NodeReclaim:
    """Twins on a node, or without one, that must end now."""

    delete: tuple[Object, ...] = ()
    reason: str = ""
    requeue_at: datetime | None = None
    is_withdrawn: bool = False
    """True if the node is not leased any more."""


def node_reclaim(
    node: Object,
    twins: Sequence[Twin],
    foreign: Sequence[PodAllocation],
    rules: LeaseRules,
    withdrawn_since: datetime | None,
    now: datetime,
) -> NodeReclaim:
    """Return the reclaim of the twins of one tenant on a node.

    `withdrawn_since` is when the node was first found not to be leased; None if it was leased until now.
    """
    running = [each for each in twins if each.requests is not None]
    pods = [each.object for each in running]
    lease = lease_for(node, foreign, [each.requests for each in running if each.requests is not None], rules, now)
    is_withdrawn = lease.state is LeaseState.WITHDRAWN
    if is_withdrawn:
        terms = earliest([lease.terms, recorded_terms(running, withdrawn_since or now)])
        reclaim = reclaim_all(pods, terms, now)
    else:
        reclaim = reclaim_for(lease, pods, now)
    closed_at = time_of_closing(lease, now)
    late = [each.object for each in running if closed_at is not None and is_started_after(each, closed_at)]
    delete = {id(each): each for each in (*reclaim.delete, *late) if not is_ending_in_time(each)}
    change = soonest(reclaim.requeue_at, lease.next_change)
    return NodeReclaim(tuple(delete.values()), lease.reason, change, is_withdrawn)


def recorded_terms(twins: Sequence[Twin], since: datetime) -> ReclaimTerms:
    """Return the terms that were recorded on twins when they were created: their policies may be deleted by now."""
    forced = [terms for twin in twins for terms in stored_terms(twin.object) if terms.force]
    if not forced:
        return NO_DEADLINE
    return ReclaimTerms(since + timedelta(seconds=max(each.grace for each in forced)), by=forced[0].policy)


def time_of_closing(lease: Lease, now: datetime) -> datetime | None:
    """Return when the policies of a node closed it; None if they did not."""
    if lease.state is not LeaseState.CLOSED:
        return None
    return max((each.closed_since(now) for each in lease.deciding_policies if not each.is_open(now)), default=None)


def is_started_after(twin: Twin, time: datetime) -> bool:
    """Return whether a kubelet accepted a twin after a time, or has not yet."""
    status = twin.status()
    if started_at := status.get("startTime"):
        return parse_time(started_at) > time + CLOCK_DIFFERENCE
    return bool(status["phase"] == "Pending")
