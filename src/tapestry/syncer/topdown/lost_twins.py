"""Twins that were lost: they went before their pods had ended, and the pods have ended with them.

How it came to that nobody may know but the twin, which is gone: what was seen of it last is kept for its pod.
"""

from dataclasses import dataclass, field

import msgspec

from tapestry.apis.clusterbindings import Binding
from tapestry.apis.ownership import capped_grace_seconds
from tapestry.client.options import PatchType
from tapestry.controller import Result
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, key_of, uid_of
from tapestry.kube.pods import TERMINAL_PHASES, is_pod_terminal
from tapestry.kube.resources import PODS
from tapestry.syncer import metrics
from tapestry.syncer.context import CACHE_LAG_SECONDS, SyncContext
from tapestry.syncer.topdown.pod_status_writer import PodStatusWriter
from tapestry.syncer.translate import pod_status
from tapestry.syncer.translate.metadata import virtual_key, virtual_uid
from tapestry.syncer.translate.pod_status import mapped_uid


@dataclass(frozen=True)
class LostTwins:
    """Knows the twins that are missed, and tells their pods."""

    context: SyncContext
    status_writer: PodStatusWriter
    missing_twins: dict[str, Object] = field(default_factory=dict)
    """Twins as they were last seen, by the UIDs of their pods."""
    deleted_uids: set[str] = field(default_factory=set)
    """UIDs of the missed twins whose deletion the physical API server reported."""

    def on_twin_gone(self, twin: Object) -> None:
        """The twin is gone; it is missed if its pod is there and has not ended."""
        for pod in map(self.context.virtual_pods.store.get, virtual_key(twin)):
            if pod is not None and uid_of(pod) == virtual_uid(twin) and not is_pod_terminal(pod):
                self.missing_twins[uid_of(pod)] = twin

    def on_twin_deleted(self, twin: Object) -> None:
        """Note that the physical API server reported the deletion of a twin."""
        if self.missing_twins.get(virtual_uid(twin)) is twin:
            self.deleted_uids.add(uid_of(twin))

    def is_twin_deleted(self, pod: Object) -> bool:
        """Whether the physical API server reported the deletion of the pod's twin: no live read can say more."""
        twin = self.missing_twins.get(uid_of(pod))
        return twin is not None and uid_of(twin) in self.deleted_uids and mapped_uid(pod) in (None, uid_of(twin))

    def forget(self, pod: Object) -> None:
        """The pod has ended, or is gone."""
        if (twin := self.missing_twins.pop(uid_of(pod), None)) is not None:
            self.deleted_uids.discard(uid_of(twin))

    async def resolve_loss(self, pod: Object, binding: Binding) -> Result | None:
        """The pod had a twin; where a live read does not find it either, the pod has ended with it."""
        uid = mapped_uid(pod) or uid_of(self.missing_twins[uid_of(pod)])
        held = await self.context.live_twin(key_of(pod))
        if held is not None and uid_of(held) == uid and binding.owns(held):
            return Result(requeue_after=CACHE_LAG_SECONDS)
        if mark := self.context.pending_disruptions.get(uid):
            await self.delete_reclaimed_pod(pod, uid, mark)
        elif not await self.show_final_status(pod):
            conditions = [*self.last_status(pod)["conditions"], *pod["status"]["conditions"]]
            reason = pod_status.loss_reason({"status": {"conditions": conditions}})
            what = "is gone" if held is None else "is another one now" if uid_of(held) != uid else "is no longer ours"
            await self.status_writer.fail_pod(
                pod, reason, f"the pod {key_of(self.context.twin_ref(key_of(pod)))} below {what}"
            )
        return None

    async def delete_reclaimed_pod(self, pod: Object, uid: str, patch: Object) -> None:
        """Let the pod go as it would have gone, had the virtual cluster been there when its twin was taken back."""
        try:
            marked = await self.context.virtual_client.patch(
                PODS, pod, patch, type=PatchType.STRATEGIC, subresource="status"
            )
            await self.context.virtual_client.delete(PODS, marked, grace_seconds=capped_grace_seconds(pod))
        except NotFound:
            return
        self.status_writer.count(metrics.FAILED, "Reclaimed")
        del self.context.pending_disruptions[uid]

    async def show_final_status(self, pod: Object) -> bool:
        """Show how the twin ended, where that was seen before it went; whether it was."""
        status = self.last_status(pod)
        if status["phase"] not in TERMINAL_PHASES:
            return False
        patch = pod_status.virtual_status_patch(pod, self.missing_twins[uid_of(pod)], status, self.context.now())
        if patch is not None:
            await self.status_writer.patch(pod, patch)
        return True

    def last_status(self, pod: Object) -> Object:
        """What the twin said last, as far as anybody saw it."""
        last = self.missing_twins.get(uid_of(pod))
        if last is None or mapped_uid(pod) not in (None, uid_of(last)):
            return {"phase": "Pending", "conditions": []}
        status: Object = msgspec.json.decode(last["twin"])
        return status
