"""Twins tell how their pods are: one patch for each real change, the first of which also says that there is a twin."""

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from tapestry.client.options import PatchType
from tapestry.controller import Result
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, key_of, uid_of, version_of
from tapestry.kube.resources import PODS
from tapestry.syncer import metrics
from tapestry.syncer.context import CACHE_LAG_SECONDS, SyncContext
from tapestry.syncer.translate.metadata import virtual_uid
from tapestry.syncer.translate.pod_status import mapped_uid, virtual_status_patch

NODE_RECHECK_SECONDS = 30.0
"""Until a pod is looked at again whose node is not among ours."""


class Patch(NamedTuple):
    """A patch of a pod's status."""

    before: str
    """The version that was patched: while the cache still shows it, another patch would conflict."""
    after: str
    """The version that came of it: it shows the twin, and needs no comparison."""
    twin: str
    """The version of the twin."""
    resize: Object | None
    """The condition of a resize that was shown with it."""


@dataclass(frozen=True)
class PodStatusReconciler:
    """Keeps the status of each virtual pod that of its twin; keyed by the virtual pod."""

    context: SyncContext
    patches: dict[str, Patch] = field(default_factory=dict)
    """By key, the last patch of each pod."""

    def on_virtual_pod_change(self, old: Object | None, new: Object | None) -> None:
        """A handler of the virtual pods' changes: forget what was patched of a pod that is gone."""
        if old is not None and new is None:
            self.patches.pop(key_of(old), None)

    async def reconcile(self, key: str) -> Result | None:
        if self.context.partition.since is not None:
            return None  # nobody knows how it is now; all of them are looked at when the cluster answers again
        pod, twin = self.context.virtual_pods.store.get(key), self.context.twin_of(key)
        if pod is None or twin is None or virtual_uid(twin) != uid_of(pod):
            return None
        if mapped_uid(pod) not in (None, uid_of(twin)):
            return None  # the twin it had is lost
        if self.context.pod_on_our_nodes(key) is None:
            # It is on a node of another binding, whose cluster alone may tell how it is; or our node is not seen yet.
            return Result(requeue_after=NODE_RECHECK_SECONDS)
        resize, last = self.context.pending_resizes.get(uid_of(pod)), self.patches.get(key)
        if last is not None and last.before == version_of(pod):
            return Result(requeue_after=CACHE_LAG_SECONDS)
        if last is not None and last[1:] == (version_of(pod), version_of(twin), resize):
            return None
        patch = virtual_status_patch(pod, twin, msgspec.json.decode(twin["twin"]), self.context.now(), resize)
        if patch is None:
            return None
        try:
            shown = await self.context.virtual_client.patch(
                PODS, pod, patch, type=PatchType.STRATEGIC, subresource="status"
            )
        except NotFound:
            return None
        if version_of(shown) != version_of(pod):
            self.patches[key] = Patch(version_of(pod), version_of(shown), version_of(twin), resize)
            if mapped_uid(pod) is None:
                metrics.POD_OUTCOMES.labels(self.context.binding_name, metrics.MAPPED, "").inc()
        return None
