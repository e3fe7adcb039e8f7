"""Pods that a Job held back until it had counted them, and that no Job counts any more.

A Job that is deleted, or that lets go of a pod which it no longer selects, leaves its finalizer behind.
"""

from dataclasses import dataclass

from tapestry.client.client import Client
from tapestry.controller import Informer
from tapestry.controlplane.workloads import owned_pods
from tapestry.controlplane.workloads.job_tracking import TRACKING_FINALIZER, is_tracked
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, controller_of, key_of, labels_of, namespace_of, uid_of
from tapestry.kube.resources import JOBS, PODS


async def remove_tracking_finalizer(client: Client, pod: Object) -> Object | None:
    """The pod without the finalizer; None where it is not what it was."""
    left = [each for each in pod["metadata"]["finalizers"] if each != TRACKING_FINALIZER]
    try:
        return await client.patch(PODS, pod, {"metadata": {"finalizers": left or None}})
    except NotFound:
        return None


@dataclass(frozen=True)
class OrphanedPodReconciler:
    """Lets such pods go; keyed by pod."""

    client: Client
    jobs: Informer
    pods: Informer

    async def reconcile(self, key: str) -> None:
        pod = self.pods.store.get(key)
        if pod is not None and is_tracked(pod) and not await self.has_job(pod):
            await remove_tracking_finalizer(self.client, pod)

    async def has_job(self, pod: Object) -> bool:
        """Whether there is a Job that has the pod, or is about to take it."""
        owner = controller_of(pod)
        if owner is None:
            jobs = self.jobs.store.by("namespace", namespace_of(pod) or "")
            return any(owned_pods.selector_of(each).matches(labels_of(pod)) for each in jobs)
        job = self.jobs.store.get(f"{namespace_of(pod)}/{owner['name']}")
        if job is None:  # the cache of Jobs may be behind that of pods
            job = await self.client.find(JOBS, owner["name"], namespace_of(pod))
        return job is not None and bool(uid_of(job) == owner["uid"])

    def pod_keys_of_job(self, job: Object) -> list[str]:
        return [key_of(pod) for pod in self.pods.store.by("owner", uid_of(job))]
