"""Draining: the pods of a binding keep existing, and nothing of them runs in the physical cluster.

Each pod is first marked in the virtual cluster: `Mapped=False` with the reason Suspended, and the status of a pod that
never started. Then its twin is deleted, with little grace and finally with none. No object of the virtual cluster is
deleted, so controllers create no replacements. When the workloads are to run again, each marked pod gets a new twin.

The mark is the only state. It decides who ends with whom: a twin that disappears is not lost if its pod is marked, or
will be. A twin that ended by itself before its deletion is no part of this: its pod ends, too.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from tapestry.apis.clusterbindings import Binding
from tapestry.client.client import Client
from tapestry.controller import Result
from tapestry.kube.objects import is_deleting
from tapestry.kube.pods import TERMINAL_PHASES
from tapestry.kube.resources import PODS
from tapestry.syncer.caches import CACHE_LAG_SECONDS
from tapestry.syncer.drains import FORCE_MARGIN, drain_grace_seconds, force_time, is_drained, must_suspend
from tapestry.syncer.leasing import soonest
from tapestry.syncer.topdown.pods import PodReconciler
from tapestry.syncer.translate.metadata import virtual_uid
from tapestry.syncer.translate.pod_status import SUSPENDED, SUSPENDED_MESSAGE, is_suspended, suspended_status_patch
from tapestry.syncer.views import Twin, VirtualPod


@dataclass(frozen=True)
class DrainingReconciler:
    """Mark pods and end their twins while the workloads are drained; else reconcile pods. Keyed by the virtual pod."""

    pods: PodReconciler

    def is_active(self) -> bool:
        """Return whether the workloads are to be drained now."""
        binding = self.pods.current_binding.get()
        return binding is not None and is_drained(binding)

    async def reconcile(self, key: str) -> Result | None:
        pods = self.pods
        binding = pods.current_binding.get()
        if binding is None or not pods.caches.is_physical_synced:
            return None
        pod, twin = pods.caches.virtual_pods.store.get(key), pods.caches.twin_of(key)
        if pod is not None and is_suspended(pod.object):
            self._forget_drained_twin(pod)
        if not is_drained(binding):
            return await pods.reconcile(key)
        if pod is None or not must_suspend(pod, binding, pods.caches) or pods.current_binding.is_unbinding:
            result = await pods.reconcile(key)  # a twin that the pod's deletion ends may take no longer, either
            return later_of(result, await end_in_time(twin, binding, pods.now(), pods.clients.physical))
        return await self._suspend(pod, twin, binding)

    async def _suspend(self, pod: VirtualPod, twin: Twin | None, binding: Binding) -> Result | None:
        """Mark the pod, then end its twin."""
        pods = self.pods
        if twin is not None and virtual_uid(twin.object) != pod.uid:  # of an earlier pod with the same name
            await pods.remove_stale_twin(pod, twin.object)
            return await end_in_time(twin, binding, pods.now(), pods.clients.physical)
        is_marked = is_suspended(pod.object)
        if twin is not None and has_ended(twin) and not (is_marked and is_deleting(twin.object)):
            return None  # the pod gets the status of its twin, and ends
        if not is_marked:
            if twin is None and await self._has_unseen_twin(pod, binding):
                return Result(requeue_after=CACHE_LAG_SECONDS)
            if twin is None and await pods.lost_twins.show_final_status(pod):
                return None
            await pods.status_writer.patch(pod, suspended_status_patch(pod, pods.now()))
            pods.clients.events.normal(pod.object, SUSPENDED, SUSPENDED_MESSAGE)
            pods.admission_timeout.forget(pod)
            pods.grant_waits.clear(pod.uid)
        if twin is None:
            return None
        if not is_deleting(twin.object):
            await delete_twin(twin, binding, pods.clients.physical)
            return None  # the change of the twin requeues the pod
        return await end_in_time(twin, binding, pods.now(), pods.clients.physical)

    async def _has_unseen_twin(self, pod: VirtualPod, binding: Binding) -> bool:
        """Return whether a twin exists that the cache does not show yet."""
        live = await self.pods.clients.live_twin(pod.key)
        return live is not None and binding.owns(live) and virtual_uid(live) == pod.uid

    def _forget_drained_twin(self, pod: VirtualPod) -> None:
        """Do not count the missing twin of a marked pod as lost, unless it ended by itself."""
        missing = self.pods.lost_twins.missing_twins.get(pod.uid)
        if missing is not None and (is_deleting(missing.object) or not has_ended(missing)):
            self.pods.lost_twins.forget(pod)


def has_ended(twin: Twin) -> bool:
    return twin.status()["phase"] in TERMINAL_PHASES


def later_of(result: Result | None, end: Result | None) -> Result | None:
    """Return the result of a reconcile, or an earlier time at which the end of its twin must be checked."""
    if result is None or end is None or result.requeue_after is not None:
        return result or end
    return Result(requeue_at=soonest(result.requeue_at, end.requeue_at))


# -- the end of twins


async def delete_twin(twin: Twin, binding: Binding, client: Client) -> None:
    """Delete a twin with the grace of a drain. Raises Conflict if it has changed, for example because it ended."""
    grace = drain_grace_seconds(twin.object, binding.spec.drain_timeout_seconds)
    await client.delete_if_exists(PODS, twin.object, grace_seconds=grace)


async def end_in_time(twin: Twin | None, binding: Binding, now: datetime, client: Client) -> Result | None:
    """Shorten the grace of a twin that is being deleted, and end it when the timeout is over."""
    if twin is None or not is_deleting(twin.object):
        return None
    timeout, given = binding.spec.drain_timeout_seconds, twin.object["metadata"].get("deletionGracePeriodSeconds") or 0
    if not given:
        return None  # nothing more can be done: it has a finalizer of the owner
    if given > drain_grace_seconds(twin.object, timeout):
        await delete_twin(twin, binding, client)
        return Result(requeue_at=now + timedelta(seconds=timeout) + FORCE_MARGIN)
    if now < (due := force_time(twin.object, timeout)):
        return Result(requeue_at=due)
    await client.delete_if_exists(PODS, twin.object, grace_seconds=0)
    return None
