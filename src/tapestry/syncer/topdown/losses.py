"""Twins that were lost: they went before their pods had ended, and the pods have ended with them.

How it came to that nobody may know but the twin, which is gone: what was seen of it last is kept for its pod.
"""

from dataclasses import dataclass, field

import msgspec

from tapestry.apis.belongings import grace_of
from tapestry.apis.clusterbindings import Binding
from tapestry.client.options import PatchType
from tapestry.controller import Result
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, key_of, uid_of
from tapestry.kube.pods import ENDED, is_over
from tapestry.kube.resources import PODS
from tapestry.syncer import metrics
from tapestry.syncer.site import LAG, Site
from tapestry.syncer.topdown.verdicts import Verdicts
from tapestry.syncer.translate import pod_status
from tapestry.syncer.translate.meta import virtual_key, virtual_uid
from tapestry.syncer.translate.pod_status import mapped_uid


@dataclass(frozen=True)
class Losses:
    """Knows the twins that are missed, and tells their pods."""

    site: Site
    verdicts: Verdicts
    missed: dict[str, Object] = field(default_factory=dict)
    """Twins as they were last seen, by the UIDs of their pods."""
    deleted: set[str] = field(default_factory=set)
    """UIDs of the missed twins whose deletion the physical API server reported."""

    def saw_going(self, twin: Object) -> None:
        """The twin is gone; it is missed if its pod is there and has not ended."""
        for pod in map(self.site.virtual_pods.store.get, virtual_key(twin)):
            if pod is not None and uid_of(pod) == virtual_uid(twin) and not is_over(pod):
                self.missed[uid_of(pod)] = twin

    def saw_deletion(self, twin: Object) -> None:
        """Note that the physical API server reported the deletion of a twin."""
        if self.missed.get(virtual_uid(twin)) is twin:
            self.deleted.add(uid_of(twin))

    def is_deleted(self, pod: Object) -> bool:
        """Whether the physical API server reported the deletion of the pod's twin: no live read can say more."""
        twin = self.missed.get(uid_of(pod))
        return twin is not None and uid_of(twin) in self.deleted and mapped_uid(pod) in (None, uid_of(twin))

    def forget(self, pod: Object) -> None:
        """The pod has ended, or is gone."""
        if (twin := self.missed.pop(uid_of(pod), None)) is not None:
            self.deleted.discard(uid_of(twin))

    async def settle(self, pod: Object, binding: Binding) -> Result | None:
        """The pod had a twin; where a live read does not find it either, the pod has ended with it."""
        uid = mapped_uid(pod) or uid_of(self.missed[uid_of(pod)])
        held = await self.site.live_twin(key_of(pod))
        if held is not None and uid_of(held) == uid and binding.owns(held):
            return Result(requeue_after=LAG)
        if mark := self.site.reclaimed.get(uid):
            await self.reclaim(pod, uid, mark)
        elif not await self.show_end(pod):
            conditions = [*self.last_status(pod)["conditions"], *pod["status"]["conditions"]]
            reason = pod_status.reason_of_loss({"status": {"conditions": conditions}})
            what = "is gone" if held is None else "is another one now" if uid_of(held) != uid else "is no longer ours"
            await self.verdicts.end(pod, reason, f"the pod {key_of(self.site.below(key_of(pod)))} below {what}")
        return None

    async def reclaim(self, pod: Object, uid: str, mark: Object) -> None:
        """Let the pod go as it would have gone, had the virtual cluster been there when its twin was taken back."""
        try:
            marked = await self.site.virtual.patch(PODS, pod, mark, type=PatchType.STRATEGIC, subresource="status")
            await self.site.virtual.delete(PODS, marked, grace_seconds=grace_of(pod))
        except NotFound:
            return
        self.verdicts.count(metrics.FAILED, "Reclaimed")
        del self.site.reclaimed[uid]

    async def show_end(self, pod: Object) -> bool:
        """Show how the twin ended, where that was seen before it went; whether it was."""
        status = self.last_status(pod)
        if status["phase"] not in ENDED:
            return False
        patch = pod_status.to_virtual(pod, self.missed[uid_of(pod)], status, self.site.now())
        if patch is not None:
            await self.verdicts.patch(pod, patch)
        return True

    def last_status(self, pod: Object) -> Object:
        """What the twin said last, as far as anybody saw it."""
        last = self.missed.get(uid_of(pod))
        if last is None or mapped_uid(pod) not in (None, uid_of(last)):
            return {"phase": "Pending", "conditions": []}
        status: Object = msgspec.json.decode(last["twin"])
        return status
