"""Controller that removes the tracking finalizer from pods that no Job tracks any more.

A deleted Job, or one that releases a pod it no longer selects, leaves its finalizer on the pod.
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
    """Remove the finalizer and return the pod, or None if the pod is gone."""
    others = [each for each in pod["metadata"]["finalizers"] if each != TRACKING_FINALIZER]
    try:
        return await client.patch(PODS, pod, {"metadata": {"finalizers": others or None}})
    except NotFound:
        return None


@dataclass(frozen=True)
class OrphanedPodReconciler:
    """Removes the finalizer from pods without a Job. Keys are those of pods."""

    client: Client
    jobs: Informer
    pods: Informer

    async def reconcile(self, key: str) -> None:
        pod = self.pods.store.get(key)
        if pod is not None and is_tracked(pod) and not await self.has_job(pod):
            await remove_tracking_finalizer(self.client, pod)

    async def has_job(self, pod: Object) -> bool:
        """Return whether a Job owns the pod or is about to adopt it."""
        owner = controller_of(pod)
        if owner is None:
            jobs = self.jobs.store.by("namespace", namespace_of(pod) or "")
            return any(owned_pods.selector_of(each).matches(labels_of(pod)) for each in jobs)
        job = self.jobs.store.get(f"{namespace_of(pod)}/{owner['name']}")
        if job is None:  # the Job cache may lag behind the pod cache
            job = await self.client.find(JOBS, owner["name"], namespace_of(pod))
        return job is not None and bool(uid_of(job) == owner["uid"])

    def pod_keys_of_job(self, job: Object) -> list[str]:
        return [key_of(pod) for pod in self.pods.store.by("owner", uid_of(job))]
