"""Admits virtual pods to the leases of their nodes: reserves what each takes, and wakes those that wait."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from tapestry.apis import keys
from tapestry.kube.objects import Object, annotations_of, is_deleting, key_of, uid_of, value_at
from tapestry.kube.pods import is_over
from tapestry.kube.quantity import Amounts
from tapestry.kube.requests import effective_requests
from tapestry.kube.times import timestamp
from tapestry.syncer.admission import (
    Closure,
    Pending,
    Reject,
    Wait,
    capacity_decision,
    closed_decision,
    closure_of,
    counted_above,
    resize_decision,
)
from tapestry.syncer.leases import Leases
from tapestry.syncer.ledger import RESERVED_FOR
from tapestry.syncer.site import Site
from tapestry.syncer.translate.pod_status import shown_conditions
from tapestry.syncer.virtual_nodes import taint_named

RESIZE_PENDING = "PodResizePending"
SHOWN_WITHIN = timedelta(seconds=10)
"""Until a pod is looked at again that waits for a node which does not show yet that it takes no pods."""


def nobody(_: str) -> None:
    """What is called where nobody has to know."""


@dataclass(frozen=True)
class Admitter:
    """Decides by the leases as they are now.  From a decision to its reservation nothing else runs."""

    site: Site
    leases: Leases
    wake: Callable[[str], None] = nobody
    """Has a virtual pod looked at."""
    show: Callable[[str], None] = nobody
    """Has the status of a virtual pod shown."""
    waiting: dict[str, set[str]] = field(default_factory=dict)
    """By virtual node, the pods that wait for its lease to open or to have more."""

    def closure(self, node: str) -> Closure | None:
        """Why a physical node takes no new pods now."""
        now = self.site.now()
        return closure_of(*self.leases.current(node, now), now)

    def admit(self, pod: Object, twin: str, node: str) -> Wait | Reject | None:
        """Why the pod gets no twin under the key `twin` now; None where it may, with its requests reserved."""
        now, ledger, above = self.site.now(), self.site.ledger, pod["spec"]["nodeName"]
        physical, lease = self.leases.current(node, now)
        if closure := closure_of(physical, lease, now):
            return self.noted(pod, closed_decision(pod, closure), closure)
        assert lease is not None
        requests, leased = pod["held"], lease.amounts
        refusal = capacity_decision(requests, leased, ledger.held(above) - ledger.held_by(twin), Amounts())
        if refusal is not None:
            ledger.release_expired(above, now)
            held = ledger.held(above) - ledger.held_by(twin)
            refusal = capacity_decision(requests, leased, held, self.counted_above(above, twin))
        if refusal is not None:
            return self.noted(pod, refusal)
        self.forget(pod)
        ledger.reserve(twin, pod, requests)
        return None

    def counted_above(self, node: str, but: str) -> Amounts:
        """What schedulers count for the pods of a virtual node that have twins, but for one."""
        found = []
        for key, entry in self.site.ledger.on(node):
            pod = self.site.virtual_pods.store.get(entry.pod)
            if key != but and pod is not None and uid_of(pod) == entry.uid and not is_over(pod):
                found.append(pod)
        return counted_above(found)

    def resize(self, pod: Object, twin: Object, node: str) -> Pending | None:
        """Why the twin is not resized as the pod now; None where it may be, with what it grows by reserved."""
        now, ledger = self.site.now(), self.site.ledger
        key, above = key_of(twin), pod["spec"]["nodeName"]
        physical, lease = self.leases.current(node, now)
        leased = lease.amounts if lease is not None else Amounts()
        wanted, own = effective_requests({"spec": pod["spec"]}), ledger.held_by(key)
        closure = closure_of(physical, lease, now)
        pending = resize_decision(wanted, own, leased, ledger.held(above), closure)
        if pending is not None and ledger.release_expired(above, now):
            own = ledger.held_by(key)
            pending = resize_decision(wanted, own, leased, ledger.held(above), closure)
        if pending is None:
            self.resized(pod)
            ledger.reserve(key, pod, wanted)
            return None
        self.waiting.setdefault(above, set()).add(key_of(pod))
        told = {"type": RESIZE_PENDING, "status": "True", "reason": pending.reason, "message": pending.message}
        before = self.site.resizes.get(uid_of(pod), {})
        if {**before, **told} != before:
            since = before.get("lastTransitionTime") if before.get("reason") == pending.reason else None
            [self.site.resizes[uid_of(pod)]] = shown_conditions(
                [{**told, "lastTransitionTime": since or timestamp(now)}]
            )
            self.show(key_of(pod))
        return replace(pending, until=self.look_again(above, closure))

    def resized(self, pod: Object) -> None:
        """The pod waits for no resize, or no longer."""
        if self.site.resizes.pop(uid_of(pod), None) is not None:
            self.show(key_of(pod))
            self.forget(pod)

    def noted(self, pod: Object, decision: Wait | Reject, closure: Closure | None = None) -> Wait | Reject:
        if isinstance(decision, Reject):
            return decision
        node = pod["spec"]["nodeName"]
        self.waiting.setdefault(node, set()).add(key_of(pod))
        return replace(decision, until=self.look_again(node, closure))

    def look_again(self, node: str, closure: Closure | None) -> datetime | None:
        """When to look again at a pod that waits for a virtual node; None where `wake_on` is sure to be called.

        A node that does not show its closure may never do so: the lease may open first.  A reservation may end without
        a twin.
        """
        if closure is None:
            is_reserved = any(entry.reserved is not None for _, entry in self.site.ledger.on(node))
            return self.site.now() + RESERVED_FOR if is_reserved else None
        if taint_named(self.site.virtual_nodes.store.get(node), closure.taint) is None:
            return self.site.now() + SHOWN_WITHIN
        return closure.opens

    def forget(self, pod: Object) -> None:
        """The pod waits for nothing."""
        node = pod["spec"]["nodeName"]
        if waiting := self.waiting.get(node):
            waiting.discard(key_of(pod))
            if not waiting:
                del self.waiting[node]

    def saw(self, pod: Object) -> None:
        """The pod has ended or is gone."""
        self.forget(pod)
        self.site.resizes.pop(uid_of(pod), None)
        if self.site.ledger.has(uid_of(pod)):
            self.site.ledger.written(self.site.twin_key(key_of(pod)), self.site.now())

    def saw_below(self, old: Object | None, new: Object | None) -> None:
        """A handler of the physical pods' changes: what a twin gives back may be what others wait for."""
        if self.waiting and old is not None and old.get("held") and (new is None or new.get("held") != old["held"]):
            self.wake_on(annotations_of(old).get(keys.VIRTUAL_NODE_NAME, ""))

    def saw_node(self, old: Object | None, new: Object | None) -> None:
        """A handler of the virtual nodes' changes: they show what their leases have become."""
        if new is not None and (old is None or is_other_lease(old, new)):
            self.wake_on(new["metadata"]["name"])

    def wake_on(self, node: str) -> None:
        for key in sorted(self.waiting.pop(node, ())):
            self.wake(key)


def is_other_lease(old: Object, new: Object) -> bool:
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
