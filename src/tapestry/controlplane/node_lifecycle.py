"""Node lifecycle: what becomes of a node that is not heard of, as far as its pods and the scheduler can see.

A kubelet renews its node's Lease.  When it has not for a while, nobody knows how the node is: its conditions become
Unknown, its pods count as not ready, and taints keep new pods away and, after what each tolerates, send those that are
there elsewhere (`departures`).  Times are those of our own clock: what counts is when we last heard something new.

How many of them are given up at once, `zones` says; where every node of the cluster is silent, the fault is likely on
our side: then nobody is sent away.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from tapestry.client.client import Client
from tapestry.client.options import PatchType
from tapestry.controller import Informer, Manager, Result
from tapestry.controller.events import Recorder
from tapestry.controlplane import pod_deletion
from tapestry.controlplane.eviction_limiter import EVICTION_INTERVAL, EvictionLimiter, zone_of
from tapestry.kube.conditions import find_condition, is_condition_true, with_condition
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, is_deleting, name_of, value_at
from tapestry.kube.resources import LEASES, NODE_LEASE_NAMESPACE, NODES, PODS
from tapestry.kube.taints import CORDON_TAINT, NOT_READY, UNREACHABLE
from tapestry.kube.times import timestamp

GRACE_PERIOD = timedelta(seconds=40)
"""How long a node may be silent."""
STARTUP_GRACE_PERIOD = timedelta(seconds=60)
"""How long a new one may take until it says anything."""
KUBELET_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
"""Conditions that only the kubelet knows about."""
CONDITION_TAINTS = {
    ("Ready", "False"): NOT_READY,
    ("Ready", "Unknown"): UNREACHABLE,
    ("MemoryPressure", "True"): "node.kubernetes.io/memory-pressure",
    ("DiskPressure", "True"): "node.kubernetes.io/disk-pressure",
    ("PIDPressure", "True"): "node.kubernetes.io/pid-pressure",
    ("NetworkUnavailable", "True"): "node.kubernetes.io/network-unavailable",
}
"""What keeps new pods away, by condition and status."""
MANAGED_TAINTS = frozenset({*CONDITION_TAINTS.values(), CORDON_TAINT["key"]})
NODE_INDEX = "placed"


# -- pure


def ready_status(node: Object) -> str:
    """Of its Ready condition; empty where nobody has said anything."""
    return str((find_condition(value_at(node, "status", "conditions"), "Ready") or {}).get("status", ""))


def heartbeat_deadline(node: Object, observed_at: datetime) -> datetime:
    """When it has been silent for too long."""
    return observed_at + (GRACE_PERIOD if ready_status(node) else STARTUP_GRACE_PERIOD)


def unknown_conditions(node: Object, now: datetime) -> list[Object]:
    """Its conditions, now that nobody knows."""
    conditions: list[Object] = value_at(node, "status", "conditions", default=[])
    for type in KUBELET_CONDITIONS:
        old = find_condition(conditions, type)
        if old is None:
            said = {"reason": "NodeStatusNeverUpdated", "message": "Kubelet never posted node status."}
            heartbeat = node["metadata"].get("creationTimestamp")
        elif old["status"] == "Unknown":
            continue
        else:
            said = {"reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}
            heartbeat = old.get("lastHeartbeatTime")
        new = {"type": type, "status": "Unknown", "lastHeartbeatTime": heartbeat, **said}
        conditions = with_condition(conditions, new, now)
    return conditions


def no_schedule_taints(node: Object) -> Iterator[str]:
    """The taints that keep new pods away, as its conditions have it."""
    for each in value_at(node, "status", "conditions", default=()):
        if (key := CONDITION_TAINTS.get((each["type"], each["status"]))) is not None:
            yield key
    if value_at(node, "spec", "unschedulable"):
        yield CORDON_TAINT["key"]


def no_execute_taint(node: Object) -> str | None:
    """The taint that it should have for its pods to go."""
    return {"False": NOT_READY, "Unknown": UNREACHABLE}.get(ready_status(node))


def has_no_execute_taint(node: Object) -> bool:
    """Whether it has such a taint, be it the right one or not."""
    return any(each["effect"] == "NoExecute" and each["key"] in (NOT_READY, UNREACHABLE) for each in taints_of(node))


def desired_taints(node: Object, eviction_taint: str | None, now: datetime) -> list[Object]:
    """Its taints as they should be; those of others, and those that are right already, stay as they are."""
    wanted = {(key, "NoSchedule") for key in no_schedule_taints(node)}
    if eviction_taint is not None:
        wanted.add((eviction_taint, "NoExecute"))
    kept = [each for each in taints_of(node) if not is_managed_taint(each) or (each["key"], each["effect"]) in wanted]
    there = {(each["key"], each["effect"]) for each in kept}
    new = [{"key": key, "effect": effect, "timeAdded": timestamp(now)} for key, effect in sorted(wanted - there)]
    return [*kept, *new]


def is_managed_taint(taint: Object) -> bool:
    if taint["effect"] == "NoExecute":
        return taint["key"] in (NOT_READY, UNREACHABLE)
    return taint["effect"] == "NoSchedule" and taint["key"] in MANAGED_TAINTS


def taints_of(node: Object) -> list[Object]:
    taints: list[Object] = value_at(node, "spec", "taints", default=[])
    return taints


# -- what is remembered


class Heartbeat(NamedTuple):
    """What was last heard of a node, and when we heard it."""

    timestamps: tuple[str | None, str | None]
    observed_at: datetime


@dataclass
class NodeLifecycleReconciler:
    """Keeps conditions and taints of nodes as they are heard of; keyed by name."""

    client: Client
    events: Recorder
    now: Callable[[], datetime]
    nodes: Informer
    leases: Informer
    pods: Informer
    heartbeats: dict[str, Heartbeat] = field(default_factory=dict)
    eviction_limiter: EvictionLimiter = field(default_factory=EvictionLimiter)
    enqueue_key: Callable[[str], None] = lambda _: None

    # -- what happens

    def node_changed(self, old: Object | None, new: Object | None) -> None:
        before = self.eviction_limiter.is_fully_disrupted
        if new is None:
            assert old is not None
            self.eviction_limiter.remove_node(name_of(old))
            self.heartbeats.pop(name_of(old), None)
        else:
            self.eviction_limiter.set_node(new)
            self.observe_heartbeat(new)
        if self.eviction_limiter.is_fully_disrupted != before:
            if before:  # whoever was not heard in the silence may be heard now
                self.heartbeats = {
                    name: Heartbeat(each.timestamps, self.now()) for name, each in self.heartbeats.items()
                }
            for name in self.nodes.store:
                self.enqueue_key(name)

    def lease_changed(self, _old: Object | None, new: Object | None) -> None:
        if new is not None and (node := self.nodes.store.get(name_of(new))) is not None:
            self.observe_heartbeat(node)

    def observe_heartbeat(self, node: Object) -> Heartbeat:
        """What was last heard of the node: its Lease, and what it says itself."""
        lease = self.leases.store.get(f"{NODE_LEASE_NAMESPACE}/{name_of(node)}")
        ready = find_condition(value_at(node, "status", "conditions"), "Ready") or {}
        sign = value_at(lease, "spec", "renewTime"), ready.get("lastHeartbeatTime")
        last = self.heartbeats.get(name_of(node))
        if last is None or last.timestamps != sign:
            last = self.heartbeats[name_of(node)] = Heartbeat(sign, self.now())
        return last

    # -- one node

    async def reconcile(self, name: str) -> Result | None:
        node = self.nodes.store.get(name)
        if node is None or is_deleting(node):
            return None
        now = self.now()
        due = heartbeat_deadline(node, self.observe_heartbeat(node).observed_at)
        if due <= now:
            node = await self.mark_unknown(node, now)
        again = await self.update_taints(node, now)
        if ready_status(node) in ("False", "Unknown"):
            await self.mark_pods_not_ready(node)
        waits = [each for each in (due if due > now else None, again) if each is not None]
        return Result(requeue_at=min(waits)) if waits else None

    async def mark_unknown(self, node: Object, now: datetime) -> Object:
        conditions = unknown_conditions(node, now)
        if conditions == value_at(node, "status", "conditions"):
            return node
        was_ready = is_condition_true(node, "Ready")
        patch = {"status": {"conditions": conditions}}
        found = await self.client.patch(NODES, node, patch, subresource="status")
        if was_ready:
            self.events.normal(node, "NodeNotReady", f"Node {name_of(node)} status is now: NodeNotReady")
        return found

    async def update_taints(self, node: Object, now: datetime) -> datetime | None:
        """Taint the node as its conditions have it; when to look again, if its turn has not come."""
        wanted, again = no_execute_taint(node), None
        if wanted is not None and self.eviction_limiter.is_fully_disrupted:
            wanted = None
        elif wanted is not None and not has_no_execute_taint(node):
            due = self.eviction_limiter.reserve_eviction(zone_of(node), now)
            if due is None or due > now:
                wanted, again = None, due or now + EVICTION_INTERVAL
        taints = desired_taints(node, wanted, now)
        if taints != taints_of(node):
            await self.client.patch(NODES, node, {"spec": {"taints": taints or None}})
        return again

    async def mark_pods_not_ready(self, node: Object) -> None:
        """Nobody should be sent to pods of a node that is not ready."""
        for pod in self.pods.store.by(NODE_INDEX, name_of(node)):
            ready = find_condition(value_at(pod, "status", "conditions"), "Ready")
            if ready is None or ready["status"] == "False":
                continue
            said = {**ready, "status": "False", "lastTransitionTime": timestamp(self.now())}
            patch = {"status": {"conditions": [said]}}
            try:
                await self.client.patch(PODS, pod, patch, type=PatchType.STRATEGIC, subresource="status")
            except NotFound:
                continue
            self.events.warning(pod, "NodeNotReady", "Node is not ready")


def node_name_keys(pod: Object) -> Iterable[str]:
    node = value_at(pod, "spec", "nodeName")
    return (node,) if node else ()


def has_relevant_change(old: Object | None, new: Object | None) -> bool:
    """Whether anything changed that we act on: heartbeats alone come by the thousand."""
    if old is None or new is None:
        return True
    return (
        [(each["type"], each["status"]) for each in value_at(old, "status", "conditions", default=())]
        != [(each["type"], each["status"]) for each in value_at(new, "status", "conditions", default=())]
        or old.get("spec") != new.get("spec")
        or zone_of(old) != zone_of(new)
    )


def install(manager: Manager) -> None:
    """Have this manager see to nodes that are not heard of, and to pods whose node is lost to them."""
    nodes = manager.informer(NODES)
    leases = manager.informer(LEASES, namespace=NODE_LEASE_NAMESPACE)
    pods = manager.informer(PODS, indexers={NODE_INDEX: node_name_keys})
    keeper = NodeLifecycleReconciler(manager.client, manager.events, manager.now, nodes, leases, pods)
    controller = manager.controller("nodes", keeper.reconcile)
    keeper.enqueue_key = controller.queue.add
    nodes.on_change(keeper.node_changed)
    leases.on_change(keeper.lease_changed)
    controller.watch(nodes, when=has_relevant_change)
    controller.watch(pods, node_name_keys, when=is_newly_bound)
    pod_deletion.install(manager, nodes, pods, NODE_INDEX)


def is_newly_bound(old: Object | None, new: Object | None) -> bool:
    """Whether a pod came to a node: if that is not ready, neither is the pod."""
    return new is not None and (old is None or list(node_name_keys(old)) != list(node_name_keys(new)))
