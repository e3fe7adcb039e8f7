"""Admits virtual pods to the leases of their nodes: reserves what each takes, and wakes those that wait."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from tapestry.apis import keys
from tapestry.kube.objects import Object, annotations_of, is_deleting, key_of, uid_of, value_at
from tapestry.kube.pod_requests import effective_requests
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.quantity import ResourceList
from tapestry.kube.times import timestamp
from tapestry.syncer.admission import (
    NodeClosure,
    PendingResize,
    Reject,
    Wait,
    capacity_decision,
    closed_decision,
    node_closure,
    resize_decision,
    total_requests,
)
from tapestry.syncer.context import SyncContext
from tapestry.syncer.lease_cache import LeaseCache
from tapestry.syncer.ledger import RESERVATION_TTL
from tapestry.syncer.translate.pod_status import sanitized_pod_conditions
from tapestry.syncer.virtual_nodes import taint_named

RESIZE_PENDING = "PodResizePending"
CLOSURE_RECHECK = timedelta(seconds=10)
"""Until a pod is looked at again that waits for a node which does not show yet that it takes no pods."""


def ignore(_: str) -> None:
    """What is called where nobody has to know."""


@dataclass(frozen=True)
class Admitter:
    """Decides by the leases as they are now.  From a decision to its reservation nothing else runs."""

    context: SyncContext
    lease_cache: LeaseCache
    requeue_pod: Callable[[str], None] = ignore
    """Has a virtual pod looked at."""
    requeue_status: Callable[[str], None] = ignore
    """Has the status of a virtual pod shown."""
    waiting: dict[str, set[str]] = field(default_factory=dict)
    """By virtual node, the pods that wait for its lease to open or to have more."""

    def closure(self, node: str) -> NodeClosure | None:
        """Why a physical node takes no new pods now."""
        now = self.context.now()
        return node_closure(*self.lease_cache.current_lease(node, now), now)

    def admit(self, pod: Object, twin: str, node: str) -> Wait | Reject | None:
        """Why the pod gets no twin under the key `twin` now; None where it may, with its requests reserved."""
        now, ledger, above = self.context.now(), self.context.ledger, pod["spec"]["nodeName"]
        physical, lease = self.lease_cache.current_lease(node, now)
        if closure := node_closure(physical, lease, now):
            return self.record_wait(pod, closed_decision(pod, closure), closure)
        assert lease is not None
        requests, leased = pod["held"], lease.amounts
        refusal = capacity_decision(
            requests, leased, ledger.held_amounts(above) - ledger.twin_amounts(twin), ResourceList()
        )
        if refusal is not None:
            ledger.release_expired(above, now)
            held = ledger.held_amounts(above) - ledger.twin_amounts(twin)
            refusal = capacity_decision(requests, leased, held, self.known_to_scheduler(above, twin))
        if refusal is not None:
            return self.record_wait(pod, refusal)
        self.forget(pod)
        ledger.reserve(twin, pod, requests)
        return None

    def known_to_scheduler(self, node: str, excluded_twin: str) -> ResourceList:
        """What schedulers count for the pods of a virtual node that have twins, but for one."""
        found = []
        for key, entry in self.context.ledger.entries_on(node):
            pod = self.context.virtual_pods.store.get(entry.pod)
            if key != excluded_twin and pod is not None and uid_of(pod) == entry.uid and not is_pod_terminal(pod):
                found.append(pod)
        return total_requests(found)

    def admit_resize(self, pod: Object, twin: Object, node: str) -> PendingResize | None:
        """Why the twin is not resized as the pod now; None where it may be, with what it grows by reserved."""
        now, ledger = self.context.now(), self.context.ledger
        key, above = key_of(twin), pod["spec"]["nodeName"]
        physical, lease = self.lease_cache.current_lease(node, now)
        leased = lease.amounts if lease is not None else ResourceList()
        wanted, own = effective_requests({"spec": pod["spec"]}), ledger.twin_amounts(key)
        closure = node_closure(physical, lease, now)
        pending = resize_decision(wanted, own, leased, ledger.held_amounts(above), closure)
        if pending is not None and ledger.release_expired(above, now):
            own = ledger.twin_amounts(key)
            pending = resize_decision(wanted, own, leased, ledger.held_amounts(above), closure)
        if pending is None:
            self.clear_pending_resize(pod)
            ledger.reserve(key, pod, wanted)
            return None
        self.waiting.setdefault(above, set()).add(key_of(pod))
        told = {"type": RESIZE_PENDING, "status": "True", "reason": pending.reason, "message": pending.message}
        before = self.context.pending_resizes.get(uid_of(pod), {})
        if {**before, **told} != before:
            since = before.get("lastTransitionTime") if before.get("reason") == pending.reason else None
            [self.context.pending_resizes[uid_of(pod)]] = sanitized_pod_conditions(
                [{**told, "lastTransitionTime": since or timestamp(now)}]
            )
            self.requeue_status(key_of(pod))
        return replace(pending, until=self.recheck_time(above, closure))

    def clear_pending_resize(self, pod: Object) -> None:
        """The pod waits for no resize, or no longer."""
        if self.context.pending_resizes.pop(uid_of(pod), None) is not None:
            self.requeue_status(key_of(pod))
            self.forget(pod)

    def record_wait(self, pod: Object, decision: Wait | Reject, closure: NodeClosure | None = None) -> Wait | Reject:
        if isinstance(decision, Reject):
            return decision
        node = pod["spec"]["nodeName"]
        self.waiting.setdefault(node, set()).add(key_of(pod))
        return replace(decision, until=self.recheck_time(node, closure))

    def recheck_time(self, node: str, closure: NodeClosure | None) -> datetime | None:
        """When to look again at a pod that waits for a virtual node; None where `wake_on` is sure to be called.

        A node that does not show its closure may never do so: the lease may open first.  A reservation may end without
        a twin.
        """
        if closure is None:
            is_reserved = any(entry.reserved is not None for _, entry in self.context.ledger.entries_on(node))
            return self.context.now() + RESERVATION_TTL if is_reserved else None
        if taint_named(self.context.virtual_nodes.store.get(node), closure.taint) is None:
            return self.context.now() + CLOSURE_RECHECK
        return closure.opens

    def forget(self, pod: Object) -> None:
        """The pod waits for nothing."""
        node = pod["spec"]["nodeName"]
        if waiting := self.waiting.get(node):
            waiting.discard(key_of(pod))
            if not waiting:
                del self.waiting[node]

    def on_pod_ended(self, pod: Object) -> None:
        """The pod has ended or is gone."""
        self.forget(pod)
        self.context.pending_resizes.pop(uid_of(pod), None)
        if self.context.ledger.has_twin(uid_of(pod)):
            self.context.ledger.mark_written(self.context.twin_key(key_of(pod)), self.context.now())

    def on_physical_pod_change(self, old: Object | None, new: Object | None) -> None:
        """A handler of the physical pods' changes: what a twin gives back may be what others wait for."""
        if self.waiting and old is not None and old.get("held") and (new is None or new.get("held") != old["held"]):
            self.requeue_waiting(annotations_of(old).get(keys.VIRTUAL_NODE_NAME, ""))

    def on_virtual_node_change(self, old: Object | None, new: Object | None) -> None:
        """A handler of the virtual nodes' changes: they show what their leases have become."""
        if new is not None and (old is None or lease_changed(old, new)):
            self.requeue_waiting(new["metadata"]["name"])

    def requeue_waiting(self, node: str) -> None:
        for key in sorted(self.waiting.pop(node, ())):
            self.requeue_pod(key)


def lease_changed(old: Object, new: Object) -> bool:
    """Whether a virtual node shows another lease than before."""
    return any(
        value_at(old, *path) != value_at(new, *path) for path in (("spec", "taints"), ("status", "allocatable"))
    ) or is_deleting(old) != is_deleting(new)


def with_resources_of(twin: Object, pod: Object) -> Object:
    """The pod with the resources that its twin has, where those may differ by a resize."""
    spec = dict(pod["spec"])
    for field_name in ("initContainers", "containers"):
        have = {each["name"]: each.get("resources") for each in twin["spec"].get(field_name) or ()}
        if spec.get(field_name):
            spec[field_name] = [
                {**each, "resources": have.get(each["name"]) or {}} if each["name"] in have else each
                for each in spec[field_name]
            ]
    return {**pod, "spec": spec}
