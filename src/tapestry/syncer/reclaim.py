"""Reclaim: which pods of a virtual node leave, how, and when to look again.

Until the deadline of its terms a pod may finish; with `evict` it is asked to go, as disruption budgets allow.  At the
deadline it goes, whatever it tolerates.  A pod that is being deleted already is deleted again, unless it has no more
time than that.  Without a deadline nobody is made to go.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from tapestry.apis.ownership import is_ending_in_time
from tapestry.kube.objects import Object, is_deleting, key_of, value_at
from tapestry.kube.pod_requests import effective_requests, occupies_node
from tapestry.kube.quantity import ZERO, ResourceList
from tapestry.syncer.leasing import NO_DEADLINE, Lease, LeaseState, ReclaimTerms, soonest

EVICTION_INTERVAL = timedelta(seconds=10)
"""Between two tries to evict what a disruption budget holds back."""


@dataclass(frozen=True, slots=True)
class Reclaim:
    """What to do now."""

    delete: tuple[Object, ...] = ()
    evict: tuple[Object, ...] = ()
    terms: ReclaimTerms = NO_DEADLINE
    requeue_at: datetime | None = None
    empties_node: bool = False
    """Whether nothing of ours may stay on the node."""


def reclaim_for(lease: Lease, pods: Iterable[Object], now: datetime) -> Reclaim:
    """Who leaves a node with that lease now: everybody if it is not open, and those it has no room for any more."""
    staying = [pod for pod in pods if occupies_node(pod)]
    everybody = reclaim_all(staying, lease.terms, now) if lease.state is not LeaseState.OPEN else Reclaim()
    if everybody.empties_node or lease.excess is None:
        return everybody
    amounts, terms = lease.excess
    some = reclaim_all(excess_pods(staying, amounts), terms, now)
    return Reclaim(
        delete=some.delete,
        evict=tuple(pod for pod in everybody.evict or some.evict if pod not in some.delete),
        terms=terms,
        requeue_at=soonest(everybody.requeue_at, some.requeue_at),
    )


def reclaim_all(pods: list[Object], terms: ReclaimTerms, now: datetime) -> Reclaim:
    """All of `pods`, on these terms."""
    if terms.deadline is not None and terms.deadline <= now:
        return Reclaim(delete=tuple(pod for pod in pods if not is_ending_in_time(pod)), terms=terms, empties_node=True)
    evictable = tuple(pod for pod in pods if not is_deleting(pod))
    if terms.evict and evictable:
        return Reclaim(evict=evictable, terms=terms, requeue_at=soonest(terms.deadline, now + EVICTION_INTERVAL))
    return Reclaim(terms=terms, requeue_at=terms.deadline if pods else None)


def excess_pods(pods: list[Object], amounts: ResourceList) -> list[Object]:
    """The pods for which there is no room in `amounts`: those of the lowest priority, of these the newest, first.

    A pod is spared where it fits into what is left by one that goes, as when a scheduler preempts.
    """
    left, out = amounts, []
    for pod in sorted(pods, key=retention_order):
        requests = effective_requests(pod)
        rest = left - requests
        if any(rest[resource] < ZERO for resource in requests if resource in amounts):
            out.append(pod)
        else:
            left = rest
    return out


def retention_order(pod: Object) -> tuple[bool, int, str, str]:
    """Who stays longest comes first; who is being deleted comes last."""
    made = pod["metadata"].get("creationTimestamp", "")
    return is_deleting(pod), -value_at(pod, "spec", "priority", default=0), made, key_of(pod)
