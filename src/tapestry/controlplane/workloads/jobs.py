"""Job controller: runs pods to completion.

`job_tracking` counts terminated pods and decides the outcome. This module writes the status in the order described
there, and creates and deletes pods.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice

from tapestry.client.client import Client
from tapestry.client.options import Propagation
from tapestry.controller import Informer, Manager, Result
from tapestry.controller.controller import own_namespace
from tapestry.controller.events import Recorder
from tapestry.controlplane.workloads import owned_pods
from tapestry.controlplane.workloads.job_failures import backoff_after, backoff_until, pod_finished_at
from tapestry.controlplane.workloads.job_tracking import (
    COMPLETION_INDEX,
    INDEX_FAILURE_COUNT,
    TRACKING_FINALIZER,
    JobCounts,
    JobOutcome,
    active_deadline,
    desired_pods,
    format_indexes,
    index_failures,
    index_of,
    is_indexed,
    is_tracked,
    job_counts,
    job_outcome,
    missing_indexes,
    replaces_only_failed,
)
from tapestry.kube.conditions import find_condition, is_condition_true, new_condition, with_condition
from tapestry.kube.errors import ApiError, NotFound
from tapestry.kube.objects import (
    Object,
    annotations_of,
    controller_of,
    is_deleting,
    key_of,
    labels_of,
    name_of,
    namespace_of,
    uid_of,
    value_at,
    version_of,
)
from tapestry.kube.patches import merge_patch
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.resources import JOBS, PODS
from tapestry.kube.selectors import label_selector
from tapestry.kube.times import parse_time, timestamp

CACHE_RETRY_INTERVAL = 0.1
"""Seconds until the next check whether the cache contains the last write of this controller."""


@dataclass(frozen=True)
class JobReconciler:
    """Create and delete the pods of each Job."""

    client: Client
    events: Recorder
    now: Callable[[], datetime]
    jobs: Informer
    pods: Informer
    deleted_pods: owned_pods.DeletedPods
    written_versions: dict[str, str] = field(default_factory=dict)
    """Resource version of the last write, by UID. An older cached Job has counts that are too low."""

    async def reconcile(self, key: str) -> Result | None:
        job = self.jobs.store.get(key)
        if job is None or is_managed_elsewhere(job):
            return None
        if not self.is_current(job):
            return Result(requeue_after=CACHE_RETRY_INTERVAL)
        selector = label_selector(value_at(job, "spec", "selector"))
        candidates = owned_pods.candidates(self.pods, job)
        pods = await owned_pods.claim_objects(self.client, JOBS, job, selector, candidates, PODS)
        if is_finished(job) or is_deleting(job):
            return await self.clean_up_finished(job, pods)
        pod_counts, now = job_counts(job, pods), self.now()
        outcome = job_outcome(job, pods, pod_counts, now)
        active = [pod for pod in pods if not is_pod_terminal(pod) and not is_deleting(pod)]
        status = job_status(job, pods, pod_counts, outcome, now)
        if not await self.update_status(job, status):
            return Result(requeue_after=CACHE_RETRY_INTERVAL)
        counted = uncounted_uids(status) | pod_counts.untracked_uids
        await self.remove_finalizers([pod for pod in pods if uid_of(pod) in counted])
        if outcome is not None or job["spec"].get("suspend"):
            for pod in active:
                await self.delete_pod(job, pod, counts_as_failure=outcome is not None and not outcome.succeeded)
            return None
        due = await self.scale(job, pods, active, pod_counts)
        times = [each for each in (active_deadline({**job, "status": status}), due) if each is not None and each > now]
        return Result(requeue_at=min(times)) if times else None

    def is_current(self, job: Object) -> bool:
        written = self.written_versions.get(uid_of(job))
        if written is None or int(version_of(job)) >= int(written):
            self.written_versions.pop(uid_of(job), None)
            return True
        return False

    async def update_status(self, job: Object, status: Object) -> bool:
        """Write the status. Return False if the Job no longer exists."""
        patch = merge_patch(job.get("status") or {}, status)
        if not patch:
            return True
        try:
            updated = await self.client.patch(JOBS, job, {"status": patch}, subresource="status")
        except NotFound:
            return False
        self.written_versions[uid_of(job)] = version_of(updated)
        self.record_events(job, status)
        return True

    def record_events(self, job: Object, status: Object) -> None:
        before = value_at(job, "status", "conditions", default=())
        for each in status.get("conditions", ()):
            previous = (find_condition(before, each["type"]) or {}).get("status", "False")
            if each["status"] == previous:
                continue
            match each["type"]:
                case "Complete":
                    self.events.normal(job, "Completed", "Job completed")
                case "Failed":
                    self.events.warning(job, each["reason"], each["message"])
                case "Suspended":
                    self.events.normal(job, "Suspended" if previous == "False" else "Resumed", each["message"])

    async def remove_finalizers(self, pods: Iterable[Object]) -> None:
        for pod in filter(is_tracked, pods):
            await remove_tracking_finalizer(self.client, pod)

    async def delete_pod(self, job: Object, pod: Object, *, counts_as_failure: bool = False) -> None:
        """Delete a pod. It counts as a failure of the Job only if `counts_as_failure`."""
        found = await remove_tracking_finalizer(self.client, pod) if not counts_as_failure and is_tracked(pod) else pod
        if found is not None:
            await self.client.delete_if_exists(PODS, found)
            self.events.normal(job, "SuccessfulDelete", f"Deleted pod: {name_of(pod)}")

    async def scale(
        self, job: Object, pods: Sequence[Object], working: Sequence[Object], pod_counts: JobCounts
    ) -> datetime | None:
        """Create or delete pods to reach the desired number. Return when to create more, if that is later."""
        desired = desired_pods(job, pod_counts)
        if job["spec"].get("completions") is None and pod_counts.successes:
            return None  # the remaining pods run to completion
        for pod in owned_pods.deletion_order(working)[: max(len(working) - desired, 0)]:
            await self.delete_pod(job, pod)
        terminating = [pod for pod in pods if is_deleting(pod) and not is_pod_terminal(pod)]
        not_replaced = terminating if replaces_only_failed(job) else []
        missing = min(desired - len(working) - len(not_replaced), owned_pods.BURST_REPLICAS)
        if missing <= 0:
            return None
        if job["spec"].get("backoffLimitPerIndex") is not None:
            return await self.create_indexed_pods(job, pods, [*working, *not_replaced], pod_counts, missing)
        due = backoff_until(pods)
        if due is not None and due > self.now():
            return due
        await self.create_pods(job, pods, [*working, *not_replaced], pod_counts, missing)
        return None

    async def create_pods(
        self, job: Object, pods: Sequence[Object], working: Sequence[Object], pod_counts: JobCounts, missing: int
    ) -> None:
        is_free = self.deleted_pods.name_check(job, pods)
        desired: list[tuple[str, int | None]]
        if is_indexed(job):
            indexes = islice(missing_indexes(job, pod_counts, map(index_of, working)), missing)
            desired = [(next(indexed_pod_names(job, index, is_free)), index) for index in indexes]
        else:
            names = owned_pods.pod_names(job, is_free)
            desired = [(next(names), None) for _ in range(missing)]
        for name, index in desired:
            await self.create_pod(job, job_pod(job, name, index))

    async def create_indexed_pods(
        self, job: Object, pods: Sequence[Object], working: Sequence[Object], pod_counts: JobCounts, missing: int
    ) -> datetime | None:
        """Create pods of indexes whose own backoff has passed. Return when the next index may start."""
        is_free, now, delayed = self.deleted_pods.name_check(job, pods), self.now(), []
        for index in missing_indexes(job, pod_counts, map(index_of, working)):
            failures = index_failures(job, pods, index)
            finish_times = [pod_finished_at(pod) for pod in pods if index_of(pod) == index]
            due = max(finish_times) + backoff_after(failures) if finish_times else now
            if due > now:
                delayed.append(due)
                continue
            await self.create_pod(job, job_pod(job, next(indexed_pod_names(job, index, is_free)), index, failures))
            missing -= 1
            if not missing:
                break  # there may be very many indexes
        return min(delayed, default=None)

    async def create_pod(self, job: Object, pod: Object) -> None:
        try:
            created = await owned_pods.create_pod(self.client, pod, job)
        except ApiError as error:
            self.events.warning(job, "FailedCreate", f"Error creating: {error.message}")
            raise
        if created is not None:
            self.events.normal(job, "SuccessfulCreate", f"Created pod: {name_of(pod)}")

    async def clean_up_finished(self, job: Object, pods: Sequence[Object]) -> Result | None:
        """Remove all finalizers of a finished Job, and delete it after its time to live."""
        await self.remove_finalizers(pods)
        seconds = job["spec"].get("ttlSecondsAfterFinished")
        if seconds is None or is_deleting(job):
            return None
        due = finished_at(job) + timedelta(seconds=seconds)
        if due > self.now():
            return Result(requeue_at=due)
        await self.client.delete_if_exists(JOBS, job, propagation=Propagation.FOREGROUND)
        return None


def is_managed_elsewhere(job: Object) -> bool:
    return job["spec"].get("managedBy") not in (None, "kubernetes.io/job-controller")


def is_finished(job: Object) -> bool:
    return is_condition_true(job, "Complete") or is_condition_true(job, "Failed")


def finished_at(job: Object) -> datetime:
    conditions = value_at(job, "status", "conditions", default=())
    condition = next(each for each in conditions if each["type"] in ("Complete", "Failed") and each["status"] == "True")
    return parse_time(condition["lastTransitionTime"])


def uncounted_uids(status: Object) -> set[str]:
    uncounted = status.get("uncountedTerminatedPods") or {}
    return {uid for result in ("succeeded", "failed") for uid in uncounted.get(result) or ()}


def indexed_pod_names(job: Object, index: int, is_free: owned_pods.IsFree) -> Iterator[str]:
    base = f"{name_of(job)[: owned_pods.MAX_BASE_LENGTH - len(str(index)) - 1]}-{index}"
    number = 0
    while True:
        name = f"{base}-{owned_pods.name_suffix(uid_of(job), index, number)}"
        if is_free(name):
            yield name
        number += 1


def job_pod(job: Object, name: str, index: int | None, failures: int | None = None) -> Object:
    """Return a pod of the Job. `failures` is the failure count of its index, if counted."""
    template = job["spec"]["template"]
    pod = owned_pods.pod_from_template(template, job, name)
    finalizers = [*(pod["metadata"].get("finalizers") or ()), TRACKING_FINALIZER]
    pod = {**pod, "metadata": {**pod["metadata"], "finalizers": finalizers}}
    if index is None:
        return pod
    index_entry = {COMPLETION_INDEX: str(index)}
    metadata = {
        **pod["metadata"],
        "labels": {**labels_of(pod), **index_entry},
        "annotations": {
            **annotations_of(pod),
            **index_entry,
            **({INDEX_FAILURE_COUNT: str(failures)} if failures is not None else {}),
        },
    }
    variable = {
        "name": "JOB_COMPLETION_INDEX",
        "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{COMPLETION_INDEX}']"}},
    }
    spec = {**pod["spec"], "hostname": pod["spec"].get("hostname") or f"{name_of(job)}-{index}"}
    for kind in ("containers", "initContainers"):
        if spec.get(kind):
            spec[kind] = [{**each, "env": [*(each.get("env") or ()), variable]} for each in spec[kind]]
    return {**pod, "metadata": metadata, "spec": spec}


def job_status(
    job: Object, pods: Sequence[Object], pod_counts: JobCounts, outcome: JobOutcome | None, now: datetime
) -> Object:
    before = job.get("status") or {}
    active = [pod for pod in pods if not is_pod_terminal(pod) and not is_deleting(pod)]
    terminating = [pod for pod in pods if not is_pod_terminal(pod) and is_deleting(pod)]
    suspended = bool(job["spec"].get("suspend"))
    counts = {"active": len(active), "succeeded": pod_counts.succeeded, "failed": pod_counts.failed}
    status: Object = {
        **{key: count for key, count in counts.items() if count},
        "ready": sum(map(owned_pods.is_ready, active)),
        "terminating": len(terminating),
        "uncountedTerminatedPods": {result: uids for result, uids in pod_counts.uncounted.items() if uids},
    }
    if suspended:
        conditions = with_condition(
            before.get("conditions"), new_condition("Suspended", True, "JobSuspended", "Job suspended"), now
        )
        if "startTime" in before:
            status["startTime"] = before["startTime"]
    else:
        conditions = before.get("conditions") or []
        is_resuming = is_condition_true(job, "Suspended")
        status["startTime"] = before.get("startTime") if not is_resuming and "startTime" in before else timestamp(now)
        if is_resuming:
            resumed = new_condition("Suspended", False, "JobResumed", "Job resumed")
            conditions = with_condition(conditions, resumed, now)
    if pod_counts.completed_indexes:
        status["completedIndexes"] = format_indexes(pod_counts.completed_indexes)
    if job["spec"].get("backoffLimitPerIndex") is not None:
        status["failedIndexes"] = format_indexes(pod_counts.failed_indexes)
    if outcome is not None:
        conditions = outcome_conditions(
            conditions, outcome, now, is_idle=not active and not terminating and not any(pod_counts.uncounted.values())
        )
        if is_condition_true({"status": {"conditions": conditions}}, "Complete"):
            status["completionTime"] = timestamp(now)
    return {**status, "conditions": conditions} if conditions else status


def outcome_conditions(conditions: list[Object], outcome: JobOutcome, now: datetime, *, is_idle: bool) -> list[Object]:
    """Return conditions with the decision, and with the final state once all pods are counted."""
    decision = "SuccessCriteriaMet" if outcome.succeeded else "FailureTarget"
    result = with_condition(conditions, new_condition(decision, True, outcome.reason, outcome.message), now)
    if is_idle:
        final = "Complete" if outcome.succeeded else "Failed"
        result = with_condition(result, new_condition(final, True, outcome.reason, outcome.message), now)
    return result


def install(manager: Manager) -> None:
    jobs = manager.informer(JOBS, indexers={"namespace": own_namespace})
    pods = manager.informer(PODS, indexers=owned_pods.OWNER_INDEXERS)
    reconciler = JobReconciler(manager.client, manager.events, manager.now, jobs, pods, owned_pods.DeletedPods(pods))
    controller = manager.controller("jobs", reconciler.reconcile)
    controller.watch(jobs)
    controller.watch(pods, owned_pods.matching_owner_keys(jobs, JOBS), after=owned_pods.BATCH_INTERVAL)
    orphans = OrphanedPodReconciler(manager.client, jobs, pods)
    orphan_controller = manager.controller("orphaned-job-pods", orphans.reconcile)
    orphan_controller.watch(pods, when=lambda _, new: new is not None and is_tracked(new))
    orphan_controller.watch(jobs, orphans.pod_keys_of_job, when=lambda _, new: new is None)


async def remove_tracking_finalizer(client: Client, pod: Object) -> Object | None:
    """Remove the finalizer and return the pod, or None if the pod is gone."""
    others = [each for each in pod["metadata"]["finalizers"] if each != TRACKING_FINALIZER]
    try:
        return await client.patch(PODS, pod, {"metadata": {"finalizers": others or None}})
    except NotFound:
        return None


@dataclass(frozen=True)
class OrphanedPodReconciler:
    """Remove the finalizer from pods without a Job. Keys are those of pods."""

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
