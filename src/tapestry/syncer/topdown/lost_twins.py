"""Handling of lost twins, which were deleted before their pods had ended: the pods end with them.

The last known state of a lost twin is kept for its pod, because it may explain the loss.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from tapestry.apis.clusterbindings import Binding
from tapestry.apis.ownership import capped_grace_seconds
from tapestry.client.options import PatchType
from tapestry.controller import ObjectCache, Result
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, uid_of
from tapestry.kube.pods import TERMINAL_PHASES, is_pod_terminal
from tapestry.kube.resources import PODS
from tapestry.syncer import metrics
from tapestry.syncer.caches import CACHE_LAG_SECONDS
from tapestry.syncer.clients import Clients
from tapestry.syncer.identity import Identity
from tapestry.syncer.reclaim import is_marked_reclaimed
from tapestry.syncer.topdown.pod_status_writer import PodStatusWriter
from tapestry.syncer.translate import pod_status
from tapestry.syncer.translate.metadata import virtual_key, virtual_uid
from tapestry.syncer.translate.pod_status import mapped_uid
from tapestry.syncer.views import PhysicalPod, Twin, VirtualPod


@dataclass(frozen=True)
class LostTwins:
    """Track lost twins and end their pods."""

    identity: Identity
    virtual_pods: ObjectCache[VirtualPod]
    clients: Clients
    now: Callable[[], datetime]
    pending_disruptions: dict[str, Object]
    """Patches that mark reclaimed pods, by the UID of their twin."""
    status_writer: PodStatusWriter
    missing_twins: dict[str, Twin] = field(default_factory=dict)
    """Last known state of twins, by the UIDs of their pods."""
    deleted_uids: set[str] = field(default_factory=set)
    """UIDs of the lost twins whose deletion the physical API server reported."""

    def on_twin_gone(self, twin: Twin) -> None:
        """Handle the disappearance of a twin; it is lost if its pod exists and has not ended."""
        for pod in map(self.virtual_pods.store.get, virtual_key(twin.object)):
            # A pod without a node is not mapped yet: its twin is replaced.
            if pod is not None and pod.node and pod.uid == virtual_uid(twin.object) and not is_pod_terminal(pod.object):
                self.missing_twins[pod.uid] = twin

    def on_pod_deleted(self, pod: PhysicalPod) -> None:
        """Record that the physical API server reported the deletion of a twin."""
        if isinstance(pod, Twin) and self.missing_twins.get(virtual_uid(pod.object)) is pod:
            self.deleted_uids.add(pod.uid)

    def is_twin_deleted(self, pod: VirtualPod) -> bool:
        """Return whether the physical API server reported the twin's deletion, so that no live read is needed."""
        twin = self.missing_twins.get(pod.uid)
        return twin is not None and twin.uid in self.deleted_uids and mapped_uid(pod.object) in (None, twin.uid)

    def forget(self, pod: VirtualPod) -> None:
        if (twin := self.missing_twins.pop(pod.uid, None)) is not None:
            self.deleted_uids.discard(twin.uid)

    async def resolve_loss(self, pod: VirtualPod, binding: Binding) -> Result | None:
        """End the pod if a live read confirms that its twin is lost."""
        uid = mapped_uid(pod.object) or self.missing_twins[pod.uid].uid
        live = await self.clients.live_twin(pod.key)
        if live is not None and uid_of(live) == uid and binding.owns(live):
            return Result(requeue_after=CACHE_LAG_SECONDS)
        if patch := self.pending_disruptions.get(uid):
            await self.delete_reclaimed_pod(pod, uid, patch)
        elif is_marked_reclaimed(pod.object):  # by a process that has ended before it deleted the pod
            grace = capped_grace_seconds(pod.object)
            await self.clients.virtual.delete_if_exists(PODS, pod.object, grace_seconds=grace)
        elif not await self.show_final_status(pod):
            conditions = [*self.last_status(pod)["conditions"], *pod.object["status"]["conditions"]]
            reason = pod_status.loss_reason({"status": {"conditions": conditions}})
            state = "is deleted" if live is None else "was replaced" if uid_of(live) != uid else "is no longer ours"
            await self.status_writer.fail_pod(
                pod, reason, f"the pod {self.identity.twin_key(pod.key)} in the physical cluster {state}"
            )
        return None

    async def delete_reclaimed_pod(self, pod: VirtualPod, uid: str, patch: Object) -> None:
        """Mark and delete the pod of a twin that was reclaimed first, as if it had left before its twin."""
        try:
            marked = await self.clients.virtual.patch(
                PODS, pod.object, patch, type=PatchType.STRATEGIC, subresource="status"
            )
            await self.clients.virtual.delete(PODS, marked, grace_seconds=capped_grace_seconds(pod.object))
        except NotFound:
            return
        self.clients.events.warning(pod.object, "Reclaimed", patch["status"]["conditions"][0]["message"])
        self.status_writer.count(metrics.FAILED, "Reclaimed")
        del self.pending_disruptions[uid]

    async def show_final_status(self, pod: VirtualPod) -> bool:
        """Write the final status of the twin if it was known; return whether it was."""
        status = self.last_status(pod)
        if status["phase"] not in TERMINAL_PHASES:
            return False
        patch = pod_status.virtual_status_patch(pod, self.missing_twins[pod.uid].object, status, self.now())
        if patch is not None:
            await self.status_writer.patch(pod, patch)
        return True

    def last_status(self, pod: VirtualPod) -> Object:
        """Return the last known status of the twin."""
        last = self.missing_twins.get(pod.uid)
        if last is None or mapped_uid(pod.object) not in (None, last.uid):
            return {"phase": "Pending", "conditions": []}
        return last.status()
