"""Placement by the scheduler of a host cluster, for pods of planes that have no scheduler of their own.

A pod without a node gets a twin that may run on any open node of the host cluster that the pod matches. When the host's
scheduler has bound the twin, the lease of the node is checked again, the plane gets a Node, and then the pod is bound
to it. Until then the pod is not mapped, so its twin may be replaced at any time:

    the candidates changed      the twin is deleted and created again with the current ones.
    the node has closed         the twin is deleted, and the pod waits for an open node. If the twin has ended, the pod
                                ends without a node: it must not run twice.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.ownership import capped_grace_seconds, is_ending_in_time
from tapestry.controller import Result
from tapestry.kube.errors import Conflict, NotFound
from tapestry.kube.objects import Object, annotations_of, name_of, namespace_of
from tapestry.kube.pods import TERMINAL_PHASES
from tapestry.kube.resources import PODS
from tapestry.kube.times import parse_time
from tapestry.process.logs import logger
from tapestry.syncer.admission import NodeClosure, Wait
from tapestry.syncer.caches import CACHE_LAG_SECONDS, Caches
from tapestry.syncer.clients import Clients
from tapestry.syncer.open_nodes import OpenNodes
from tapestry.syncer.topdown.admission_timeout import unscheduled_condition
from tapestry.syncer.topdown.pod_status_writer import PodStatusWriter
from tapestry.syncer.translate import pod_status
from tapestry.syncer.translate.host_placement import HostPlacement
from tapestry.syncer.translate.pod_status import SCHEDULED
from tapestry.syncer.views import Twin, VirtualPod

log = logger(__name__)


@dataclass(frozen=True)
class NeededNodes:
    """Nodes of the host cluster that the plane needs, because pods or their twins are on them."""

    caches: Caches
    waiting: dict[str, set[str]] = field(default_factory=dict)
    """Keys of the pods whose twins are on a node that the plane does not have yet, by node."""

    def is_needed(self, name: str) -> bool:
        return name in self.waiting or bool(self.caches.pods_on(name))


@dataclass(frozen=True)
class HostScheduling:
    """Follow the decisions of the scheduler of the host cluster."""

    caches: Caches
    clients: Clients
    now: Callable[[], datetime]
    open_nodes: OpenNodes
    status_writer: PodStatusWriter
    closure: Callable[[str], NodeClosure | None]
    """Return why a node takes no pods now."""
    requeue_pod: Callable[[str], None]
    requeue_node: Callable[[str], None]
    """Requeue a node of the host cluster, so that the plane gets a Node for it."""
    needed_nodes: NeededNodes
    messages: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Last reason and message of the host's scheduler, by the UID of the pod."""

    # -- events

    def forget(self, pod: VirtualPod) -> None:
        self.messages.pop(pod.uid, None)

    def on_physical_node_change(self, old: Object | None, new: Object | None) -> None:
        self.open_nodes.on_physical_node_change(old, new)

    def on_virtual_node_change(self, old: Object | None, new: Object | None) -> None:
        """Handle a change of a Node of the plane: pods may wait for it."""
        if old is None and new is not None:
            for key in self.needed_nodes.waiting.pop(name_of(new), ()):
                self.requeue_pod(key)

    def requeue_unscheduled(self) -> None:
        """Requeue all pods without a node."""
        for pod in self.caches.pods_on(""):
            self.requeue_pod(pod.key)

    # -- pods without a node

    def placement(self, pod: VirtualPod, binding: Binding) -> HostPlacement | Wait:
        return self.open_nodes.placement(pod.object, binding)

    def is_current(self, pod: VirtualPod, placement: HostPlacement, binding: Binding) -> bool:
        """Return whether the candidates of a pod are still those of `placement`."""
        current = self.placement(pod, binding)
        return isinstance(current, HostPlacement) and current.hostnames == placement.hostnames

    async def follow(self, pod: VirtualPod, twin: Twin, binding: Binding) -> Result | None:
        """Bind a pod to the node of its twin, or follow the twin until it has one."""
        node = twin.object["spec"].get("nodeName")
        return await self.bind(pod, twin, node) if node else await self.wait_for_host(pod, twin, binding)

    async def wait_for_host(self, pod: VirtualPod, twin: Twin, binding: Binding) -> Result | None:
        """Replace a twin whose candidates have changed, or report why the host does not place it."""
        placement = self.placement(pod, binding)
        if isinstance(placement, Wait):
            await self.clients.physical.delete_if_exists(PODS, twin.object)
            await self.status_writer.set_deferred(pod, placement.reason, placement.message)
            return Result(requeue_at=placement.until) if placement.until is not None else None
        if annotations_of(twin.object).get(keys.PLACEMENT) != placement.digest:
            await self.clients.physical.delete_if_exists(PODS, twin.object)
            return None  # its end requeues the pod
        await self.report(pod, twin)
        change = self.open_nodes.next_change(binding)
        return Result(requeue_at=change) if change is not None else None

    async def report(self, pod: VirtualPod, twin: Twin) -> None:
        """Write the message of the host's scheduler to the pod, once."""
        condition = unscheduled_condition(twin)
        if condition is None:
            return
        said = condition.get("reason") or "Unschedulable", condition.get("message") or "the host cluster has no node"
        if self.messages.get(pod.uid) == said:
            return
        since = parse_time(condition.get("lastTransitionTime") or twin.object["metadata"]["creationTimestamp"])
        await self.status_writer.patch(pod, pod_status.false_condition_patch(SCHEDULED, *said, since))
        self.messages[pod.uid] = said

    async def end(self, pod: VirtualPod, twin: Twin) -> None:
        """Write the final status of a twin on a closed node to its pod, which stays without a node."""
        patch = pod_status.virtual_status_patch(pod, twin.object, twin.status(), self.now())
        if patch is not None:
            await self.status_writer.patch(pod, patch)

    async def bind(self, pod: VirtualPod, twin: Twin, node: str) -> Result | None:
        """Bind the pod to the node that the host's scheduler chose, unless the node takes no pods any more."""
        if closure := self.closure(node):
            if twin.status()["phase"] in TERMINAL_PHASES:
                await self.end(pod, twin)
                return None
            if not is_ending_in_time(twin.object):
                grace = capped_grace_seconds(twin.object)
                await self.clients.physical.delete_if_exists(PODS, twin.object, grace_seconds=grace)
                log.info("twin on a closed node deleted", pod=pod.key, node=node, reason=closure.reason)
            await self.status_writer.set_deferred(pod, closure.reason, closure.message)
            return Result(requeue_at=closure.opens) if closure.opens is not None else None
        if node not in self.caches.virtual_nodes.store:
            self.needed_nodes.waiting.setdefault(node, set()).add(pod.key)
            self.requeue_node(node)
            return None
        metadata = {"name": name_of(pod.object), "namespace": namespace_of(pod.object), "uid": pod.uid}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        try:
            await self.clients.virtual.create(PODS, binding, subresource="binding")
        except NotFound:
            return None
        except Conflict:  # it is bound or deleted, which the cache will show
            return Result(requeue_after=CACHE_LAG_SECONDS)
        self.messages.pop(pod.uid, None)
        return None
