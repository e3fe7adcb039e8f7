"""Twins tell how their pods are: one patch for each real change, the first of which also says that there is a twin."""

from dataclasses import dataclass

import msgspec

from tapestry.client.client import PatchType
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import uid_of
from tapestry.kube.resources import PODS
from tapestry.syncer.site import Site
from tapestry.syncer.translate.meta import virtual_uid
from tapestry.syncer.translate.pod_status import mapped_uid, to_virtual


@dataclass(frozen=True)
class PhysicalPods:
    """Keeps the status of each virtual pod that of its twin; keyed by the virtual pod."""

    site: Site

    async def reconcile(self, key: str) -> None:
        if self.site.partition.since is not None:
            return  # nobody knows how it is now; all of them are looked at when the cluster answers again
        pod, twin = self.site.virtual_pods.store.get(key), self.site.twin_of(key)
        if pod is None or twin is None or virtual_uid(twin) != uid_of(pod):
            return
        if mapped_uid(pod) not in (None, uid_of(twin)):
            return  # the twin it had is lost
        patch = to_virtual(pod, twin, msgspec.json.decode(twin["twin"]), self.site.now())
        if patch is None:
            return
        try:
            await self.site.virtual.patch(PODS, pod, patch, type=PatchType.STRATEGIC, subresource="status")
        except NotFound:
            return
