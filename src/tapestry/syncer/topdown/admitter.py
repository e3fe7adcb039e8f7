"""Admission of virtual pods to current leases: reserves amounts and requeues waiting pods."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from tapestry.kube.objects import Object, is_deleting, value_at
from tapestry.kube.pod_requests import effective_requests
from tapestry.kube.pods import is_pod_terminal, taint_named
from tapestry.kube.quantity import ResourceList
from tapestry.kube.times import timestamp
from tapestry.syncer.admission import (
    NodeClosure,
    Reject,
    Wait,
    capacity_decision,
    closed_decision,
    node_closure,
    resize_decision,
)
from tapestry.syncer.caches import Caches
from tapestry.syncer.identity import Identity
from tapestry.syncer.lease_cache import LeaseCache
from tapestry.syncer.ledger import RESERVATION_TTL, Ledger
from tapestry.syncer.translate.metadata import virtual_node_name_of
from tapestry.syncer.translate.pod_status import sanitized_pod_conditions
from tapestry.syncer.views import PhysicalPod, Twin, VirtualPod

RESIZE_PENDING = "PodResizePending"
CLOSURE_RECHECK = timedelta(seconds=10)
"""Time between checks of a pod that waits for a node whose taint does not show its closure yet."""


@dataclass(frozen=True)
class Admitter:
    """Admit pods by the current leases. A decision and its reservation are made without suspension."""

    identity: Identity
    caches: Caches
    ledger: Ledger
    now: Callable[[], datetime]
    lease_cache: LeaseCache
    requeue_pod: Callable[[str], None]
    """Requeue a virtual pod."""
    requeue_status: Callable[[str], None]
    """Requeue the status of a virtual pod."""
    pending_resizes: dict[str, Object] = field(default_factory=dict)
    """Conditions that explain why a resize is not applied to the twin, by the UID of the pod."""
    waiting: dict[str, set[str]] = field(default_factory=dict)
    """Keys of the pods that wait for a lease to open or grow, by virtual node."""

    def closure(self, node: str) -> NodeClosure | None:
        """Return why a physical node takes no new pods now."""
        now = self.now()
        return node_closure(*self.lease_cache.current_lease(node, now), now)

    def admit(self, pod: VirtualPod, twin: str, node: str) -> Wait | Reject | None:
        """Reserve the pod's requests for the twin under the key `twin`; return a decision if it is not admitted."""
        now, ledger, virtual_node = self.now(), self.ledger, pod.node
        physical, lease = self.lease_cache.current_lease(node, now)
        if closure := node_closure(physical, lease, now):
            return self.record_wait(pod, closed_decision(pod, closure), closure)
        assert lease is not None
        requests, leased = pod.requests, lease.amounts
        decision = capacity_decision(
            requests, leased, ledger.held_amounts(virtual_node) - ledger.twin_amounts(twin), ResourceList()
        )
        if decision is not None:
            ledger.release_expired(virtual_node, now)
            held = ledger.held_amounts(virtual_node) - ledger.twin_amounts(twin)
            decision = capacity_decision(requests, leased, held, self.known_to_scheduler(virtual_node, twin))
        if decision is not None:
            return self.record_wait(pod, decision)
        self.forget(pod)
        ledger.reserve(twin, pod, requests)
        return None

    def known_to_scheduler(self, node: str, excluded_twin: str) -> ResourceList:
        """Return what schedulers count for the pods of a virtual node that have twins, except one."""
        counted = []
        for key, entry in self.ledger.entries_on(node):
            pod = self.caches.virtual_pods.store.get(entry.pod)
            if key != excluded_twin and pod is not None and pod.uid == entry.uid and not is_pod_terminal(pod.object):
                counted.append(pod.requests)
        return ResourceList.total(counted)

    def admit_resize(self, pod: VirtualPod, twin: Twin, node: str) -> Wait | None:
        """Reserve the growth of a resize; return the pending resize if it is not admitted."""
        now, ledger = self.now(), self.ledger
        key, virtual_node = twin.key, pod.node
        physical, lease = self.lease_cache.current_lease(node, now)
        leased = lease.amounts if lease is not None else ResourceList()
        requested, own = effective_requests({"spec": pod.object["spec"]}), ledger.twin_amounts(key)
        closure = node_closure(physical, lease, now)
        pending = resize_decision(requested, own, leased, ledger.held_amounts(virtual_node), closure)
        if pending is not None and ledger.release_expired(virtual_node, now):
            own = ledger.twin_amounts(key)
            pending = resize_decision(requested, own, leased, ledger.held_amounts(virtual_node), closure)
        if pending is None:
            self.clear_pending_resize(pod)
            ledger.reserve(key, pod, requested)
            return None
        self.waiting.setdefault(virtual_node, set()).add(pod.key)
        condition = {"type": RESIZE_PENDING, "status": "True", "reason": pending.reason, "message": pending.message}
        before = self.pending_resizes.get(pod.uid, {})
        if {**before, **condition} != before:
            since = before.get("lastTransitionTime") if before.get("reason") == pending.reason else None
            [self.pending_resizes[pod.uid]] = sanitized_pod_conditions(
                [{**condition, "lastTransitionTime": since or timestamp(now)}]
            )
            self.requeue_status(pod.key)
        return replace(pending, until=self.recheck_time(virtual_node, closure))

    def clear_pending_resize(self, pod: VirtualPod) -> None:
        """Clear the pending resize of the pod, if there is one."""
        if self.pending_resizes.pop(pod.uid, None) is not None:
            self.requeue_status(pod.key)
            self.forget(pod)

    def record_wait(
        self, pod: VirtualPod, decision: Wait | Reject, closure: NodeClosure | None = None
    ) -> Wait | Reject:
        if isinstance(decision, Reject):
            return decision
        node = pod.node
        self.waiting.setdefault(node, set()).add(pod.key)
        return replace(decision, until=self.recheck_time(node, closure))

    def recheck_time(self, node: str, closure: NodeClosure | None) -> datetime | None:
        """Return when to check a waiting pod again; None if `requeue_waiting` is certain to be called.

        A node that does not show its closure may never do so, because the lease may open first. A reservation may end
        without a twin.
        """
        if closure is None:
            is_reserved = any(entry.reserved is not None for _, entry in self.ledger.entries_on(node))
            return self.now() + RESERVATION_TTL if is_reserved else None
        if taint_named(self.caches.virtual_nodes.store.get(node), closure.taint) is None:
            return self.now() + CLOSURE_RECHECK
        return closure.opens

    def forget(self, pod: VirtualPod) -> None:
        """Stop waiting for a lease."""
        node = pod.node
        if waiting := self.waiting.get(node):
            waiting.discard(pod.key)
            if not waiting:
                del self.waiting[node]

    def on_pod_ended(self, pod: VirtualPod) -> None:
        """Handle the end or deletion of a pod."""
        self.forget(pod)
        self.pending_resizes.pop(pod.uid, None)
        if self.ledger.has_twin(pod.uid):
            self.ledger.mark_written(self.identity.twin_key(pod.key), self.now())

    def on_physical_pod_change(self, old: PhysicalPod | None, new: PhysicalPod | None) -> None:
        """Handle a change of a physical pod: others may wait for the amounts that a twin frees."""
        if not self.waiting or not isinstance(old, Twin) or not old.requests:
            return
        if not isinstance(new, Twin) or new.requests != old.requests:
            self.requeue_waiting(virtual_node_name_of(old.object))

    def on_virtual_node_change(self, old: Object | None, new: Object | None) -> None:
        """Handle a change of a virtual node, which shows a change of its lease."""
        if new is not None and (old is None or lease_changed(old, new)):
            self.requeue_waiting(new["metadata"]["name"])

    def requeue_waiting(self, node: str) -> None:
        for key in sorted(self.waiting.pop(node, ())):
            self.requeue_pod(key)


def lease_changed(old: Object, new: Object) -> bool:
    """Return whether the lease that a virtual node shows has changed."""
    return any(
        value_at(old, *path) != value_at(new, *path) for path in (("spec", "taints"), ("status", "allocatable"))
    ) or is_deleting(old) != is_deleting(new)


def with_resources_of(twin: Object, pod: Object) -> Object:
    """Return the pod with the resources of its twin, which may differ during a resize."""
    spec = dict(pod["spec"])
    for field_name in ("initContainers", "containers"):
        current = {each["name"]: each.get("resources") for each in twin["spec"].get(field_name) or ()}
        if spec.get(field_name):
            spec[field_name] = [
                {**each, "resources": current.get(each["name"]) or {}} if each["name"] in current else each
                for each in spec[field_name]
            ]
    return {**pod, "spec": spec}
