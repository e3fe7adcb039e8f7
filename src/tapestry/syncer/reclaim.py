"""Reclaim decisions: which pods leave a virtual node, how, and when to check again.

Until the deadline of its terms a pod may finish; with `evict` it is evicted as disruption budgets allow. At the
deadline it is deleted, whatever it tolerates. A pod that is already being deleted is deleted again unless its remaining
grace is short enough. Without a deadline no pod is deleted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from tapestry.apis.clusterbindings import UNBIND_GRACE_SECONDS
from tapestry.apis.ownership import is_ending_in_time
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, is_deleting, key_of, value_at
from tapestry.kube.pod_requests import effective_requests, occupies_node
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.quantity import ZERO, ResourceList
from tapestry.kube.times import parse_time, timestamp
from tapestry.syncer.leasing import NO_DEADLINE, Lease, LeaseState, ReclaimTerms, earliest, soonest
from tapestry.syncer.policies import last_reclaim_terms

EVICTION_INTERVAL = timedelta(seconds=10)
"""Time between two attempts to evict a pod that a disruption budget protects."""


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Actions that are due now."""

    delete: tuple[Object, ...] = ()
    evict: tuple[Object, ...] = ()
    terms: ReclaimTerms = NO_DEADLINE
    requeue_at: datetime | None = None
    empties_node: bool = False
    """True if none of our pods may stay on the node."""


def reclaim_for(lease: Lease, pods: Iterable[Object], now: datetime) -> Reclaim:
    """Return the reclaim for a node with that lease: all pods if it is not open, else those that no longer fit."""
    staying = [pod for pod in pods if occupies_node(pod)]
    all_pods = reclaim_all(staying, lease.terms, now) if lease.state is not LeaseState.OPEN else Reclaim()
    if all_pods.empties_node or lease.excess is None:
        return all_pods
    amounts, terms = lease.excess
    excess = reclaim_all(excess_pods(staying, amounts), terms, now)
    return Reclaim(
        delete=excess.delete,
        evict=tuple(pod for pod in all_pods.evict or excess.evict if pod not in excess.delete),
        terms=terms,
        requeue_at=soonest(all_pods.requeue_at, excess.requeue_at),
    )


def reclaim_all(pods: list[Object], terms: ReclaimTerms, now: datetime) -> Reclaim:
    if terms.deadline is not None and terms.deadline <= now:
        return Reclaim(delete=tuple(pod for pod in pods if not is_ending_in_time(pod)), terms=terms, empties_node=True)
    evictable = tuple(pod for pod in pods if not is_deleting(pod))
    if terms.evict and evictable:
        return Reclaim(evict=evictable, terms=terms, requeue_at=soonest(terms.deadline, now + EVICTION_INTERVAL))
    return Reclaim(terms=terms, requeue_at=terms.deadline if pods else None)


def excess_pods(pods: list[Object], amounts: ResourceList) -> list[Object]:
    """Return the pods that do not fit into `amounts`: first those of the lowest priority, and of these the newest.

    A pod stays if it fits into what a leaving pod frees, as in preemption by a scheduler.
    """
    left, excess = amounts, []
    for pod in sorted(pods, key=retention_order):
        requests = effective_requests(pod)
        remaining = left - requests
        if any(remaining[resource] < ZERO for resource in requests if resource in amounts):
            excess.append(pod)
        else:
            left = remaining
    return excess


def retention_order(pod: Object) -> tuple[bool, int, str, str]:
    """Sort key that puts the pods that stay longest first, and those being deleted last."""
    created = pod["metadata"].get("creationTimestamp", "")
    return is_deleting(pod), -value_at(pod, "spec", "priority", default=0), created, key_of(pod)


def unbinding_terms(binding: Object | None, now: datetime) -> ReclaimTerms:
    """Return the terms on which pods leave a binding that is being deleted, or is already."""
    if binding is None:
        return ReclaimTerms(now, by="the binding is deleted")
    grace = timedelta(seconds=binding["spec"].get("unbindGraceSeconds", UNBIND_GRACE_SECONDS))
    return ReclaimTerms(parse_time(binding["metadata"]["deletionTimestamp"]) + grace, by="unbinding")


def withdrawal_terms(lease: Lease, existing: Object, now: datetime) -> ReclaimTerms:
    """Return the terms of a withdrawn lease: those of its policies, or the owner's kill switch if it is earlier."""
    return earliest([lease.terms, last_reclaim_terms(existing, now)])


def propagates_deletion(pod: Object) -> bool:
    """Return whether the pod's deletion and grace reach its twin: not if it has ended or was deleted by force."""
    return not is_pod_terminal(pod) and not (is_deleting(pod) and not pod["metadata"].get("deletionGracePeriodSeconds"))


def disruption_patch(reason: str, terms: ReclaimTerms, now: datetime) -> Object:
    """Return the DisruptionTarget condition, which tells controllers that the pod did not fail by itself."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "Reclaimed",
        "message": f"{reason}: reclaimed by {terms.by}",
        "lastTransitionTime": timestamp(now),
    }
    return {"status": {"conditions": [condition]}}


def is_marked_reclaimed(pod: Object) -> bool:
    """Return whether the pod has the condition of `disruption_patch`."""
    condition = find_condition(value_at(pod, "status", "conditions"), "DisruptionTarget") or {}
    return condition.get("status") == "True" and condition.get("reason") == "Reclaimed"
