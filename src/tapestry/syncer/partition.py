"""Detection of physical cluster partitions, and of their end.

A missing response decides nothing about a pod. After some time without any response the virtual nodes get Ready=Unknown
and their leases are no longer renewed, so that nothing new is scheduled there. That alone would make the virtual
cluster evict their pods. With `onPartition: Hold`, the default, the pods therefore first get unlimited tolerations for
an unreachable node. When the cluster responds again their original tolerations are restored.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from tapestry.apis import keys
from tapestry.kube.errors import Conflict, KubeError, NotFound
from tapestry.kube.objects import Object, annotations_of, is_deleting, key_of, value_at
from tapestry.kube.resources import PODS
from tapestry.kube.times import parse_time
from tapestry.process.logs import logger
from tapestry.syncer import metrics
from tapestry.syncer.caches import Caches
from tapestry.syncer.clients import Clients
from tapestry.syncer.current_binding import CurrentBinding
from tapestry.syncer.identity import Identity
from tapestry.syncer.switchable_transport import SwitchableTransport

log = logger(__name__)

UNREACHABLE_TAINTS = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
PROBES_PER_TIMEOUT = 4


@dataclass(slots=True)
class Partition:
    """Reachability of the physical cluster."""

    current_binding: CurrentBinding
    transport: SwitchableTransport
    now: Callable[[], datetime]
    since: datetime | None = None
    """Start of the current partition; None while the physical cluster is reachable."""

    def last_seen(self) -> datetime | None:
        """Return the time of the last response, or before we are connected the one in the binding's status."""
        if self.transport.is_connected:
            return self.now() - timedelta(seconds=self.transport.seconds_since_response())
        last = value_at(self.current_binding.object(), "status", "lastSeen")
        return parse_time(last) if last else None


@dataclass(frozen=True)
class PartitionDetector:
    """Detect the start and the end of a partition and handle both."""

    identity: Identity
    current_binding: CurrentBinding
    caches: Caches
    clients: Clients
    partition: Partition
    silence_seconds: float
    requeue_all: Callable[[], None]
    """Requeue all keys of all controllers."""
    sends_probes: bool = True
    """False if somebody else sends requests on the same transport, so that silence means that nothing answers."""

    async def run(self) -> None:
        metrics.register_binding(self.identity.binding_name, self.last_seen)
        try:
            while True:
                await self.check()
                await asyncio.sleep(self.probe_interval)
        finally:
            metrics.unregister_binding(self.identity.binding_name)

    @property
    def probe_interval(self) -> float:
        """Seconds between two probes."""
        return self.silence_seconds / PROBES_PER_TIMEOUT

    async def check(self) -> None:
        if self.sends_probes:
            await self.probe(self.probe_interval)
        if self.partition.transport.seconds_since_response() >= self.silence_seconds:
            await self.begin_partition()
        elif self.partition.since is not None:
            self.end_partition()
        elif self.partition.transport.is_connected:
            await self.restore_tolerations()

    def last_seen(self) -> float:
        """Return the value of the metric; 0 if the cluster was never seen."""
        last = self.partition.last_seen()
        return last.timestamp() if last is not None else 0.0

    async def probe(self, timeout: float) -> None:
        """Request the server version; a response of any kind counts."""
        try:
            async with asyncio.timeout(timeout):
                await self.clients.physical_reads.server_version()
        except (KubeError, TimeoutError):
            return

    async def begin_partition(self) -> None:
        """Mark the cluster as unreachable after every pod tolerates that. Later passes do so for new pods."""
        binding = None if self.current_binding.is_unbinding else self.current_binding.get()
        holds = binding is not None and binding.spec.on_partition == "Hold"
        if holds and not await self.patch_pods(hold_patch):
            return  # conflicts: the next pass sees the current pods
        if self.partition.since is None:
            log.warning("physical cluster unreachable", binding=self.identity.binding_name)
            self.partition.since = self.partition.last_seen() or self.partition.now()
            metrics.UNREACHABLE.labels(self.identity.binding_name).set(1)
            self.requeue_all()

    def end_partition(self) -> None:
        log.info("physical cluster reachable again", binding=self.identity.binding_name)
        self.partition.since = None
        metrics.UNREACHABLE.labels(self.identity.binding_name).set(0)
        self.requeue_all()

    async def restore_tolerations(self) -> None:
        """Restore tolerations that this or an earlier process lifted, once the node's taint is removed.

        While the node is tainted, a toleration of a few seconds would expire at once.
        """
        await self.patch_pods(lambda pod: None if self.is_node_tainted(pod) else restore_patch(pod))

    def is_node_tainted(self, pod: Object) -> bool:
        """Return whether the virtual cluster still evicts pods from the pod's node."""
        node = self.caches.virtual_nodes.store.get(pod["spec"]["nodeName"])
        taints: list[Object] = value_at(node, "spec", "taints", default=[])
        return any(taint["key"] in UNREACHABLE_TAINTS and taint["effect"] == "NoExecute" for taint in taints)

    async def patch_pods(self, patch_for: Callable[[Object], Object | None]) -> bool:
        """Patch pods and return True if no patch had a conflict."""
        done = True
        nodes = list(self.caches.virtual_nodes.store)  # the pod cache may hold pods of bindings with the same prefix
        for pod in [pod.object for node in nodes for pod in self.caches.pods_on(node)]:
            patch = None if is_deleting(pod) else patch_for(pod)
            if patch is None:
                continue
            try:
                await self.clients.virtual.patch(PODS, pod, patch)
            except NotFound:
                continue
            except Conflict as error:
                log.debug("partition: pod changed during toleration patch", pod=key_of(pod), error=str(error))
                done = False
        return done


def hold_patch(pod: Object) -> Object | None:
    """Return the patch that makes tolerations unlimited and records their limits; None if there is nothing to do."""
    tolerations: list[Object] = value_at(pod, "spec", "tolerations", default=[])
    limited = {each["key"]: each["tolerationSeconds"] for each in tolerations if is_limited(each)}
    if not limited or keys.HELD_TOLERATIONS in annotations_of(pod):
        return None
    unlimited = [without_limit(each) if is_limited(each) else each for each in tolerations]
    annotation = {keys.HELD_TOLERATIONS: msgspec.json.encode(limited).decode()}
    return {"metadata": {"annotations": annotation}, "spec": {"tolerations": unlimited}}


def restore_patch(pod: Object) -> Object | None:
    """Return the patch that reverts `hold_patch`; None if it was not applied."""
    text = annotations_of(pod).get(keys.HELD_TOLERATIONS)
    if text is None:
        return None
    try:
        limits: dict[str, int] = msgspec.json.decode(text, type=dict[str, int])
    except msgspec.ValidationError:  # written by a tenant: the content cannot be trusted
        limits = {}
    tolerations: list[Object] = value_at(pod, "spec", "tolerations", default=[])
    restored: list[Any] = [
        {**each, "tolerationSeconds": limits[each["key"]]}
        if each.get("key") in UNREACHABLE_TAINTS and each["key"] in limits
        else each
        for each in tolerations
    ]
    return {"metadata": {"annotations": {keys.HELD_TOLERATIONS: None}}, "spec": {"tolerations": restored}}


def is_limited(toleration: Object) -> bool:
    return toleration.get("key") in UNREACHABLE_TAINTS and toleration.get("tolerationSeconds") is not None


def without_limit(toleration: Object) -> Object:
    return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}
