"""Admission of pods to the leases of their virtual nodes, decided like a kubelet does.

Taints and allocatable amounts only inform schedulers. The decision here applies to every pod, whatever its
tolerations and whichever scheduler bound it: a pod gets a twin only while the lease is open and has enough left for it.

    closed       A pod of a controller that a scheduler bound and that does not tolerate the taint was bound too
                 late: it fails, and its controller creates another one. Any other pod waits.
    no capacity  A pod that does not fit into the lease fails, with the reason that a kubelet gives. It waits if
                 only twins are in the way that schedulers do not count, e.g. those of pods deleted by force.

All functions are pure.
"""

from dataclasses import dataclass
from datetime import datetime

from tapestry.apis import keys
from tapestry.kube.objects import Object, controller_of, value_at
from tapestry.kube.pods import is_tolerated
from tapestry.kube.quantity import ZERO, ResourceList
from tapestry.kube.times import timestamp
from tapestry.syncer.leasing import Lease, LeaseState, lease_opening
from tapestry.syncer.views import VirtualPod

RECLAIMED = "Reclaimed"
WITHDRAWN = "Withdrawn"
CORDONED = "Cordoned"
CAPACITY_PENDING = "CapacityPending"
DEFERRED, INFEASIBLE = "Deferred", "Infeasible"
RESOURCE_ORDER = ("pods", "cpu", "memory", "ephemeral-storage")
"""Order in which a kubelet reports lacking resources; other resources follow by name."""


@dataclass(frozen=True, slots=True)
class NodeClosure:
    """Reason why a node takes no new pods."""

    reason: str
    message: str
    taint: str
    """Key of the taint that informs schedulers."""
    opens: datetime | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Decision that the pod stays Pending, or keeps its size."""

    reason: str
    message: str
    until: datetime | None = None
    """Time of the next check; None if a change will requeue the pod."""


@dataclass(frozen=True, slots=True)
class Reject:
    """Decision that the pod fails."""

    reason: str
    message: str
    is_disrupted: bool = False
    """True if its controller must learn that the pod did not fail by itself."""


def node_closure(node: Object | None, lease: Lease | None, now: datetime) -> NodeClosure | None:
    """Return why the physical `node` with this lease takes no new pods; None if it does.

    Without a node or a lease it takes none.
    """
    if node is None or lease is None or lease.state is LeaseState.WITHDRAWN:
        reason = lease.reason if lease is not None and node is not None else "PhysicalNodeGone"
        return NodeClosure(WITHDRAWN, f"the node is withdrawn ({reason}): it takes no new pods", keys.WITHDRAWING_TAINT)
    if lease.state is LeaseState.CLOSED:
        return lease_closure(lease, now)
    if value_at(node, "spec", "unschedulable"):
        message = "the owner has cordoned the physical node; the pod runs there once that is undone"
        return NodeClosure(CORDONED, message, keys.PHYSICAL_NODE_UNSCHEDULABLE_TAINT)
    return None


def lease_closure(lease: Lease, now: datetime) -> NodeClosure:
    if lease.reason == RECLAIMED:
        message = (
            f"the owner has reclaimed the node; it takes pods again once {keys.RECLAIM}={keys.RECLAIM_NOW} is removed"
        )
        return NodeClosure(RECLAIMED, message, keys.OUT_OF_TIME_WINDOWS_TAINT)
    opens = lease_opening(lease, now)
    when = f"it opens at {timestamp(opens)}" if opens is not None else "it has no known opening time"
    return NodeClosure(lease.reason, f"the lease of the node is closed; {when}", keys.OUT_OF_TIME_WINDOWS_TAINT, opens)


def closed_decision(pod: VirtualPod, closure: NodeClosure) -> Wait | Reject:
    """Return the decision for a pod on a node that takes no new pods."""
    if controller_of(pod.object) is not None and pod.is_scheduled and not tolerates(pod.object, closure.taint):
        return Reject(closure.reason, closure.message, is_disrupted=True)
    return Wait(closure.reason, closure.message, closure.opens)


def tolerates(pod: Object, taint: str) -> bool:
    return is_tolerated({"key": taint, "effect": keys.NO_SCHEDULE}, pod["spec"].get("tolerations") or ())


def capacity_decision(
    requests: ResourceList, leased: ResourceList, held: ResourceList, known_to_scheduler: ResourceList
) -> Wait | Reject | None:
    """Return the decision for a pod that does not fit into the lease; None if it fits.

    Twins hold `held` of the lease; `known_to_scheduler` is the part of it that schedulers count.
    """
    lacking = first_lacking(requests, leased, held)
    if lacking is None:
        return None
    known = first_lacking(requests, leased, known_to_scheduler)
    if known is None:
        message = f"{shortage_text(lacking, requests, leased, held)}; the pod runs once other twins have ended"
        return Wait(CAPACITY_PENDING, message)
    return Reject(f"OutOf{known}", shortage_text(known, requests, leased, known_to_scheduler))


def resize_decision(
    wanted: ResourceList, own: ResourceList, leased: ResourceList, held: ResourceList, closure: NodeClosure | None
) -> Wait | None:
    """Return why a pod that holds `own` is not resized to `wanted` now, with a reason of Kubernetes; None if it is.

    Amounts that do not grow need no capacity. `held` is what all twins of the node hold, including this one.
    """
    growing = ResourceList({each: amount for each, amount in wanted.items() if amount > own[each]})
    if not growing:
        return None
    if closure is not None:
        return Wait(DEFERRED, closure.message, closure.opens)
    if (infeasible := first_lacking(growing, leased, ResourceList())) is not None:
        return Wait(INFEASIBLE, shortage_text(infeasible, wanted, leased, ResourceList()))
    others = held - own
    if (lacking := first_lacking(growing, leased, others)) is not None:
        return Wait(DEFERRED, shortage_text(lacking, wanted, leased, others))
    return None


def first_lacking(requests: ResourceList, leased: ResourceList, held: ResourceList) -> str | None:
    """Return the first resource that is requested beyond what is left."""
    lacking = [each for each, amount in requests.items() if amount > ZERO and held[each] + amount > leased[each]]
    return min(lacking, key=resource_order) if lacking else None


def resource_order(resource: str) -> tuple[int, str]:
    return (RESOURCE_ORDER.index(resource) if resource in RESOURCE_ORDER else len(RESOURCE_ORDER)), resource


def shortage_text(resource: str, requests: ResourceList, leased: ResourceList, held: ResourceList) -> str:
    return (
        f"the lease of the node has too little {resource}: "
        f"requested {requests[resource]}, in use {held[resource]}, leased {leased[resource]}"
    )
