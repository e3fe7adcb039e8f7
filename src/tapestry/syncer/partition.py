"""When the physical cluster falls silent.

Silence is not an answer: nothing that it could mean for a pod is decided by it.  After some time without any answer the
virtual nodes say that nobody knows (Ready=Unknown) and their leases stop, so that nothing new is placed there.  That
alone would have the virtual cluster evict what runs there.  A binding that holds (`onPartition: Hold`, the default)
therefore first lets its pods tolerate an unreachable node for ever; when the cluster answers again, they get their
patience back as it was.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from tapestry.apis import keys
from tapestry.kube.errors import Conflict, KubeError, NotFound
from tapestry.kube.objects import Object, annotations_of, is_deleting, key_of, value_at
from tapestry.kube.resources import PODS
from tapestry.process.logs import logger
from tapestry.syncer import metrics
from tapestry.syncer.context import SyncContext

log = logger(__name__)

UNREACHABLE_TAINTS = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
PROBES_PER_TIMEOUT = 4


@dataclass(frozen=True)
class PartitionDetector:
    """Notices that the physical cluster fell silent, or answers again, and sees to both."""

    context: SyncContext
    requeue_all: Callable[[], None]
    """Has everything looked at."""

    async def run(self) -> None:
        metrics.register_binding(self.context.binding_name, self.last_seen)
        try:
            while True:
                await self.check()
                await asyncio.sleep(self.probe_interval)
        finally:
            metrics.unregister_binding(self.context.binding_name)

    @property
    def probe_interval(self) -> float:
        """Seconds between looks."""
        return self.context.config.silence_seconds / PROBES_PER_TIMEOUT

    async def check(self) -> None:
        await self.probe(self.probe_interval)
        if self.context.read_transport.seconds_since_response() >= self.context.config.silence_seconds:
            await self.begin_partition()
        elif self.context.partition.since is not None:
            self.end_partition()
        elif self.context.read_transport.is_connected:
            await self.restore_tolerations()

    def last_seen(self) -> float:
        """For the metric: 0 where the cluster was never seen."""
        found = self.context.last_seen()
        return found.timestamp() if found is not None else 0.0

    async def probe(self, timeout: float) -> None:
        """Ask for something that costs nothing; an answer of any kind counts."""
        try:
            async with asyncio.timeout(timeout):
                await self.context.physical_read_client.server_version()
        except (KubeError, TimeoutError):
            return

    async def begin_partition(self) -> None:
        """Say that nobody knows, once every pod may wait; those that came later may then, too."""
        site = self.context
        binding = None if site.is_unbinding else site.binding()
        holds = binding is not None and binding.spec.on_partition == "Hold"
        if holds and not await self.patch_pods(hold_patch):
            return  # the next pass sees those as they are now
        if site.partition.since is None:
            log.warning("the physical cluster does not answer", binding=site.binding_name)
            site.partition.since = site.last_seen() or site.now()
            metrics.UNREACHABLE.labels(site.binding_name).set(1)
            self.requeue_all()

    def end_partition(self) -> None:
        log.info("the physical cluster answers again", binding=self.context.binding_name)
        self.context.partition.since = None
        metrics.UNREACHABLE.labels(self.context.binding_name).set(0)
        self.requeue_all()

    async def restore_tolerations(self) -> None:
        """Give back what we, or a process that is no more, held back: where the virtual cluster has noticed, too.

        As long as the node is tainted, patience of a few seconds would be used up at once.
        """
        await self.patch_pods(lambda pod: None if self.is_node_tainted(pod) else restore_patch(pod))

    def is_node_tainted(self, pod: Object) -> bool:
        """Whether the virtual cluster still makes pods leave the pod's node."""
        node = self.context.virtual_nodes.store.get(pod["spec"]["nodeName"])
        taints: list[Object] = value_at(node, "spec", "taints", default=[])
        return any(taint["key"] in UNREACHABLE_TAINTS and taint["effect"] == "NoExecute" for taint in taints)

    async def patch_pods(self, patch_for: Callable[[Object], Object | None]) -> bool:
        """Whether there is nothing left to do: no pod was in other hands just then."""
        done = True
        nodes = list(self.context.virtual_nodes.store)  # the cache of pods may also have those of a binding named alike
        for pod in [pod for node in nodes for pod in self.context.pods_on(node)]:
            patch = None if is_deleting(pod) else patch_for(pod)
            if patch is None:
                continue
            try:
                await self.context.virtual_client.patch(PODS, pod, patch)
            except NotFound:
                continue
            except Conflict as error:
                log.debug("pod moved on", pod=key_of(pod), error=str(error))
                done = False
        return done


def hold_patch(pod: Object) -> Object | None:
    """The patch that lets a pod wait for ever, and keeps how long it would have; None where there is nothing to do."""
    tolerations: list[Object] = value_at(pod, "spec", "tolerations", default=[])
    limited = {each["key"]: each["tolerationSeconds"] for each in tolerations if is_limited(each)}
    if not limited or keys.HELD_TOLERATIONS in annotations_of(pod):
        return None
    patient = [without_limit(each) if is_limited(each) else each for each in tolerations]
    annotation = {keys.HELD_TOLERATIONS: msgspec.json.encode(limited).decode()}
    return {"metadata": {"annotations": annotation}, "spec": {"tolerations": patient}}


def restore_patch(pod: Object) -> Object | None:
    """The patch that undoes `lifted`; None where it was not done."""
    text = annotations_of(pod).get(keys.HELD_TOLERATIONS)
    if text is None:
        return None
    try:
        limits: dict[str, int] = msgspec.json.decode(text, type=dict[str, int])
    except msgspec.ValidationError:  # a tenant wrote there: nothing of it can be trusted
        limits = {}
    tolerations: list[Object] = value_at(pod, "spec", "tolerations", default=[])
    limited: list[Any] = [
        {**each, "tolerationSeconds": limits[each["key"]]}
        if each.get("key") in UNREACHABLE_TAINTS and each["key"] in limits
        else each
        for each in tolerations
    ]
    return {"metadata": {"annotations": {keys.HELD_TOLERATIONS: None}}, "spec": {"tolerations": limited}}


def is_limited(toleration: Object) -> bool:
    return toleration.get("key") in UNREACHABLE_TAINTS and toleration.get("tolerationSeconds") is not None


def without_limit(toleration: Object) -> Object:
    return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}
