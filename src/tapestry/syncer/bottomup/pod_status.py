"""Reconciler that writes the status of each twin to its virtual pod, and records the twin there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from tapestry.client.client import Client
from tapestry.client.options import PatchType
from tapestry.controller import Result
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, is_deleting, version_of
from tapestry.kube.pods import TERMINAL_PHASES
from tapestry.kube.resources import PODS
from tapestry.syncer import metrics
from tapestry.syncer.caches import CACHE_LAG_SECONDS, Caches
from tapestry.syncer.identity import Identity
from tapestry.syncer.partition import Partition
from tapestry.syncer.predicates import status_changed
from tapestry.syncer.translate.metadata import virtual_uid
from tapestry.syncer.translate.pod_status import is_suspended, mapped_uid, virtual_status_patch
from tapestry.syncer.views import Twin, VirtualPod

NODE_RECHECK_SECONDS = 30.0
"""Seconds before a pod that is not on one of our nodes is checked again."""


class Patch(NamedTuple):
    before: str
    """Resource version that was patched: while the cache still has it, another patch would conflict."""
    after: str
    """Resource version after the patch: it matches the twin and needs no comparison."""
    twin: str
    """Resource version of the twin."""
    resize: Object | None
    """Resize condition that the patch contained."""


@dataclass(frozen=True)
class PodStatusReconciler:
    """Keep the status of each virtual pod equal to its twin's; keyed by the virtual pod."""

    identity: Identity
    caches: Caches
    partition: Partition
    client: Client
    now: Callable[[], datetime]
    pending_resizes: Mapping[str, Object]
    """Conditions of resizes that are not applied to the twin, by the UID of the pod."""
    pending_disruptions: Mapping[str, Object]
    """Patches that mark reclaimed pods, by the UID of their twin, which was deleted first."""
    is_drained: Callable[[], bool] = lambda: False
    """Return whether the workloads of the binding are drained."""
    patches: dict[str, Patch] = field(default_factory=dict)
    """Last patch of each pod, by key."""

    def on_virtual_pod_change(self, old: VirtualPod | None, new: VirtualPod | None) -> None:
        """Handle a change of a virtual pod: forget the patch of a deleted pod."""
        if old is not None and new is None:
            self.patches.pop(old.key, None)

    def is_affected(self, old: VirtualPod | None, new: VirtualPod | None) -> bool:
        """Return whether a change of a virtual pod may need a patch. The result of the last patch needs none."""
        if not status_changed(old, new) or new is None:
            return False
        twin = self.caches.twin_of(new.key)
        return twin is not None and not self.is_patched(new, twin)

    def is_patched(self, pod: VirtualPod, twin: Twin) -> bool:
        """Return whether the pod is as the last patch left it, and nothing changed that the patch contained."""
        last = self.patches.get(pod.key)
        return last is not None and last[1:] == (pod.version, twin.version, self.pending_resizes.get(pod.uid))

    def counts_for_suspended_pod(self, twin: Twin) -> bool:
        """Return whether the status of a twin counts although its pod was marked: it has ended, or is to go on."""
        if is_deleting(twin.object):
            return False
        return not self.is_drained() or twin.status()["phase"] in TERMINAL_PHASES

    def must_wait(self, pod: VirtualPod, twin: Twin) -> bool:
        """Return whether the cache lacks the last patch, or a reclaimed pod is to be marked before its twin's end."""
        last = self.patches.get(pod.key)
        if last is not None and last.before == pod.version:
            return True
        return twin.uid in self.pending_disruptions and not is_deleting(pod.object)

    async def reconcile(self, key: str) -> Result | None:
        if self.partition.since is not None:
            return None  # the current status is unknown; all pods are requeued when the cluster responds again
        pod, twin = self.caches.virtual_pods.store.get(key), self.caches.twin_of(key)
        if pod is None or twin is None or virtual_uid(twin.object) != pod.uid:
            return None
        if not pod.node or mapped_uid(pod.object) not in (None, twin.uid):
            return None  # it is bound first, or its twin is lost
        if is_suspended(pod.object) and not self.counts_for_suspended_pod(twin):
            return None
        if self.caches.pod_on_our_nodes(key) is None:
            # The pod is on a node of another binding, which alone writes its status, or the cache lacks our node.
            return Result(requeue_after=NODE_RECHECK_SECONDS)
        if self.must_wait(pod, twin):
            return Result(requeue_after=CACHE_LAG_SECONDS)
        if self.is_patched(pod, twin):
            return None
        resize = self.pending_resizes.get(pod.uid)
        patch = virtual_status_patch(pod, twin.object, twin.status(), self.now(), resize)
        if patch is None:
            return None
        try:
            patched = await self.client.patch(PODS, pod.object, patch, type=PatchType.STRATEGIC, subresource="status")
        except NotFound:
            return None
        if version_of(patched) != pod.version:
            self.patches[key] = Patch(pod.version, version_of(patched), twin.version, resize)
            if mapped_uid(pod.object) is None:
                metrics.POD_OUTCOMES.labels(self.identity.binding_name, metrics.MAPPED, "").inc()
        return None
