"""Controller that marks nodes without heartbeats as unknown and taints unhealthy nodes.

A kubelet renews the Lease of its node. If it stops, the node's conditions become Unknown and its pods not ready.
NoSchedule taints keep new pods away, and NoExecute taints evict the running ones (`pod_deletion`). Times are taken from
the local clock: a heartbeat counts from when it was observed.

Nodes of a zone are evicted one at a time. If most nodes of a zone are unready, a large zone evicts more slowly and a
small one not at all: the cause is then probably not the nodes. If every node of the cluster is unready, no pod is
evicted.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import NamedTuple

from tapestry.client.client import Client
from tapestry.client.options import PatchType
from tapestry.controller import Informer, Manager, Result
from tapestry.controller.events import Recorder
from tapestry.controlplane import pod_deletion
from tapestry.kube.conditions import find_condition, is_condition_true, with_condition
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, is_deleting, labels_of, name_of, value_at
from tapestry.kube.pods import CORDON_TAINT, NOT_READY, UNREACHABLE
from tapestry.kube.resources import LEASES, NODE_LEASE_NAMESPACE, NODES, PODS
from tapestry.kube.times import timestamp

EXCLUDE_DISRUPTION_LABEL = "node.kubernetes.io/exclude-disruption"
ZONE_LABELS = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")
UNHEALTHY_ZONE_THRESHOLD, TOLERATED_UNREADY_NODES = 0.55, 2
"""A zone is partially disrupted from this share of unready nodes on, if more than this number are unready."""
LARGE_ZONE_SIZE = 50
"""A partially disrupted zone with more nodes than this still evicts."""
EVICTION_INTERVAL, SECONDARY_EVICTION_INTERVAL = timedelta(seconds=10), timedelta(seconds=100)
"""Time between evictions from two nodes of one zone."""


class ZoneState(Enum):
    NORMAL = "normal"
    PARTIAL_DISRUPTION = "most nodes are unready"
    FULL_DISRUPTION = "all nodes are unready"


@dataclass
class EvictionLimiter:
    """Readiness of the nodes by zone, and the time of the next eviction in each."""

    nodes: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """Zone and readiness by node name."""
    counts: Counter[tuple[str, bool]] = field(default_factory=Counter)
    next_evictions: dict[str, datetime] = field(default_factory=dict)
    """Earliest time of the next eviction, by zone."""

    def set_node(self, node: Object) -> None:
        self.remove_node(name_of(node))
        if EXCLUDE_DISRUPTION_LABEL not in labels_of(node):
            entry = self.nodes[name_of(node)] = zone_of(node), is_condition_true(node, "Ready")
            self.counts[entry] += 1

    def remove_node(self, name: str) -> None:
        if (entry := self.nodes.pop(name, None)) is not None:
            self.counts[entry] -= 1

    def state(self, zone: str) -> ZoneState:
        return zone_state_of(self.counts[zone, True], self.counts[zone, False])

    @property
    def is_fully_disrupted(self) -> bool:
        return not any(number for (_, is_ready), number in self.counts.items() if is_ready)

    def reserve_eviction(self, zone: str, now: datetime) -> datetime | None:
        """Return when a node of the zone may be evicted, or None. If that time has come, reserve the eviction."""
        interval = eviction_interval(self.state(zone), self.counts[zone, True] + self.counts[zone, False])
        if interval is None:
            return None
        due = self.next_evictions.get(zone, now)
        if due <= now:
            self.next_evictions[zone] = now + interval
        return due


def zone_of(node: Object) -> str:
    return "/".join(labels_of(node).get(label, "") for label in ZONE_LABELS)


def zone_state_of(ready: int, unready: int) -> ZoneState:
    if not ready and unready:
        return ZoneState.FULL_DISRUPTION
    if unready > TOLERATED_UNREADY_NODES and unready / (unready + ready) >= UNHEALTHY_ZONE_THRESHOLD:
        return ZoneState.PARTIAL_DISRUPTION
    return ZoneState.NORMAL


def eviction_interval(state: ZoneState, size: int) -> timedelta | None:
    """Return the time between two evictions in a zone of that size, or None if it must not evict."""
    if state is ZoneState.PARTIAL_DISRUPTION:
        return SECONDARY_EVICTION_INTERVAL if size > LARGE_ZONE_SIZE else None
    return EVICTION_INTERVAL


GRACE_PERIOD = timedelta(seconds=40)
"""Time without a heartbeat after which a node is marked unknown."""
STARTUP_GRACE_PERIOD = timedelta(seconds=60)
"""The same for a new node that has not posted a status yet."""
KUBELET_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
"""Conditions that only the kubelet reports."""
CONDITION_TAINTS = {
    ("Ready", "False"): NOT_READY,
    ("Ready", "Unknown"): UNREACHABLE,
    ("MemoryPressure", "True"): "node.kubernetes.io/memory-pressure",
    ("DiskPressure", "True"): "node.kubernetes.io/disk-pressure",
    ("PIDPressure", "True"): "node.kubernetes.io/pid-pressure",
    ("NetworkUnavailable", "True"): "node.kubernetes.io/network-unavailable",
}
"""NoSchedule taints by condition type and status."""
MANAGED_TAINTS = frozenset({*CONDITION_TAINTS.values(), CORDON_TAINT["key"]})
NODE_INDEX = "placed"


# -- pure


def ready_status(node: Object) -> str:
    """Return the status of the Ready condition, or an empty string without one."""
    return str((find_condition(value_at(node, "status", "conditions"), "Ready") or {}).get("status", ""))


def heartbeat_deadline(node: Object, observed_at: datetime) -> datetime:
    """Return the time at which the node is marked unknown."""
    return observed_at + (GRACE_PERIOD if ready_status(node) else STARTUP_GRACE_PERIOD)


def unknown_conditions(node: Object, now: datetime) -> list[Object]:
    """Return the conditions of a node whose kubelet stopped posting status."""
    conditions: list[Object] = value_at(node, "status", "conditions", default=[])
    for type in KUBELET_CONDITIONS:
        old = find_condition(conditions, type)
        if old is None:
            cause = {"reason": "NodeStatusNeverUpdated", "message": "Kubelet never posted node status."}
            heartbeat = node["metadata"].get("creationTimestamp")
        elif old["status"] == "Unknown":
            continue
        else:
            cause = {"reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}
            heartbeat = old.get("lastHeartbeatTime")
        new = {"type": type, "status": "Unknown", "lastHeartbeatTime": heartbeat, **cause}
        conditions = with_condition(conditions, new, now)
    return conditions


def no_schedule_taints(node: Object) -> Iterator[str]:
    """Yield the keys of the NoSchedule taints that the node's conditions require."""
    for each in value_at(node, "status", "conditions", default=()):
        if (key := CONDITION_TAINTS.get((each["type"], each["status"]))) is not None:
            yield key
    if value_at(node, "spec", "unschedulable"):
        yield CORDON_TAINT["key"]


def no_execute_taint(node: Object) -> str | None:
    """Return the key of the NoExecute taint that the node's readiness requires, if any."""
    return {"False": NOT_READY, "Unknown": UNREACHABLE}.get(ready_status(node))


def has_no_execute_taint(node: Object) -> bool:
    """Return whether the node has a NoExecute taint of this controller, correct or not."""
    return any(each["effect"] == "NoExecute" and each["key"] in (NOT_READY, UNREACHABLE) for each in taints_of(node))


def desired_taints(node: Object, eviction_taint: str | None, now: datetime) -> list[Object]:
    """Return the desired taints of a node. Unmanaged taints and those already correct are left unchanged."""
    desired = {(key, "NoSchedule") for key in no_schedule_taints(node)}
    if eviction_taint is not None:
        desired.add((eviction_taint, "NoExecute"))
    valid = [each for each in taints_of(node) if not is_managed_taint(each) or (each["key"], each["effect"]) in desired]
    present = {(each["key"], each["effect"]) for each in valid}
    new = [{"key": key, "effect": effect, "timeAdded": timestamp(now)} for key, effect in sorted(desired - present)]
    return [*valid, *new]


def is_managed_taint(taint: Object) -> bool:
    if taint["effect"] == "NoExecute":
        return taint["key"] in (NOT_READY, UNREACHABLE)
    return taint["effect"] == "NoSchedule" and taint["key"] in MANAGED_TAINTS


def taints_of(node: Object) -> list[Object]:
    taints: list[Object] = value_at(node, "spec", "taints", default=[])
    return taints


# -- reconciler


class Heartbeat(NamedTuple):
    """Timestamps of the last heartbeat of a node, and the time it was observed."""

    timestamps: tuple[str | None, str | None]
    observed_at: datetime


@dataclass
class NodeLifecycleReconciler:
    """Update conditions and taints of nodes according to their heartbeats. Keys are node names."""

    client: Client
    events: Recorder
    now: Callable[[], datetime]
    nodes: Informer
    leases: Informer
    pods: Informer
    has_heartbeats: Callable[[], bool] = lambda: True
    """False while a syncer in this process writes the conditions of nodes, whose age then means nothing."""
    heartbeats: dict[str, Heartbeat] = field(default_factory=dict)
    eviction_limiter: EvictionLimiter = field(default_factory=EvictionLimiter)
    enqueue_key: Callable[[str], None] = lambda _: None

    # -- event handlers

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
            if before:  # give every node a new grace period
                self.heartbeats = {
                    name: Heartbeat(each.timestamps, self.now()) for name, each in self.heartbeats.items()
                }
            for name in self.nodes.store:
                self.enqueue_key(name)

    def lease_changed(self, _old: Object | None, new: Object | None) -> None:
        if new is not None and (node := self.nodes.store.get(name_of(new))) is not None:
            self.observe_heartbeat(node)

    def observe_heartbeat(self, node: Object) -> Heartbeat:
        """Record the heartbeat of a node, from its Lease and its Ready condition, and return the latest."""
        lease = self.leases.store.get(f"{NODE_LEASE_NAMESPACE}/{name_of(node)}")
        ready = find_condition(value_at(node, "status", "conditions"), "Ready") or {}
        timestamps = value_at(lease, "spec", "renewTime"), ready.get("lastHeartbeatTime")
        last = self.heartbeats.get(name_of(node))
        if last is None or last.timestamps != timestamps:
            last = self.heartbeats[name_of(node)] = Heartbeat(timestamps, self.now())
        return last

    # -- one node

    async def reconcile(self, name: str) -> Result | None:
        node = self.nodes.store.get(name)
        if node is None or is_deleting(node):
            return None
        now, due = self.now(), None
        if self.has_heartbeats():
            due = heartbeat_deadline(node, self.observe_heartbeat(node).observed_at)
            if due <= now:
                node, due = await self.mark_unknown(node, now), None
        retry_at = await self.update_taints(node, now)
        if ready_status(node) in ("False", "Unknown"):
            await self.mark_pods_not_ready(node)
        times = [each for each in (due, retry_at) if each is not None]
        return Result(requeue_at=min(times)) if times else None

    async def mark_unknown(self, node: Object, now: datetime) -> Object:
        conditions = unknown_conditions(node, now)
        if conditions == value_at(node, "status", "conditions"):
            return node
        was_ready = is_condition_true(node, "Ready")
        patch = {"status": {"conditions": conditions}}
        updated = await self.client.patch(NODES, node, patch, subresource="status")
        if was_ready:
            self.events.normal(node, "NodeNotReady", f"Node {name_of(node)} status is now: NodeNotReady")
        return updated

    async def update_taints(self, node: Object, now: datetime) -> datetime | None:
        """Set the taints that the conditions require. Return when to retry if the eviction is delayed."""
        taint, retry_at = no_execute_taint(node), None
        if taint is not None and self.eviction_limiter.is_fully_disrupted:
            taint = None
        elif taint is not None and not has_no_execute_taint(node):
            due = self.eviction_limiter.reserve_eviction(zone_of(node), now)
            if due is None or due > now:
                taint, retry_at = None, due or now + EVICTION_INTERVAL
        taints = desired_taints(node, taint, now)
        if taints != taints_of(node):
            await self.client.patch(NODES, node, {"spec": {"taints": taints or None}})
        return retry_at

    async def mark_pods_not_ready(self, node: Object) -> None:
        """Mark the pods of an unready node as not ready, so that Services send them no traffic."""
        for pod in self.pods.store.by(NODE_INDEX, name_of(node)):
            ready = find_condition(value_at(pod, "status", "conditions"), "Ready")
            if ready is None or ready["status"] == "False":
                continue
            condition = {**ready, "status": "False", "lastTransitionTime": timestamp(self.now())}
            patch = {"status": {"conditions": [condition]}}
            try:
                await self.client.patch(PODS, pod, patch, type=PatchType.STRATEGIC, subresource="status")
            except NotFound:
                continue
            self.events.warning(pod, "NodeNotReady", "Node is not ready")


def node_name_keys(pod: Object) -> Iterable[str]:
    node = value_at(pod, "spec", "nodeName")
    return (node,) if node else ()


def has_relevant_change(old: Object | None, new: Object | None) -> bool:
    """Return whether a field changed that this controller acts on. Heartbeats alone are ignored."""
    if old is None or new is None:
        return True
    return (
        [(each["type"], each["status"]) for each in value_at(old, "status", "conditions", default=())]
        != [(each["type"], each["status"]) for each in value_at(new, "status", "conditions", default=())]
        or old.get("spec") != new.get("spec")
        or zone_of(old) != zone_of(new)
    )


def install(manager: Manager, has_heartbeats: Callable[[], bool] = lambda: True) -> None:
    """Add the node lifecycle and pod deletion controllers to `manager`."""
    nodes = manager.informer(NODES)
    leases = manager.informer(LEASES, namespace=NODE_LEASE_NAMESPACE)
    pods = manager.informer(PODS, indexers={NODE_INDEX: node_name_keys})
    reconciler = NodeLifecycleReconciler(
        *(manager.client, manager.events, manager.now, nodes, leases, pods), has_heartbeats=has_heartbeats
    )
    controller = manager.controller("nodes", reconciler.reconcile)
    reconciler.enqueue_key = controller.queue.add
    nodes.on_change(reconciler.node_changed)
    leases.on_change(reconciler.lease_changed)
    controller.watch(nodes, when=has_relevant_change)
    controller.watch(pods, node_name_keys, when=is_newly_bound)
    pod_deletion.install(manager, nodes, pods, NODE_INDEX)


def is_newly_bound(old: Object | None, new: Object | None) -> bool:
    """Return whether a pod was bound to a node. If the node is not ready, the pod is not ready either."""
    return new is not None and (old is None or list(node_name_keys(old)) != list(node_name_keys(new)))
