"""Jobs: pods that are to end, as often as one says.

What a Job's pods have come to is worked out in `completions`; here it is written down, step by step as it says there,
and pods are made and let go.
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
from tapestry.controlplane.workloads import members
from tapestry.controlplane.workloads.completions import (
    FINALIZER,
    INDEX,
    INDEX_FAILURES,
    End,
    Tally,
    counted,
    deadline_of,
    end_of,
    failures_of,
    index_of,
    is_indexed,
    is_tracked,
    missing_indexes,
    replaces_only_failed,
    wanted_pods,
    written_indexes,
)
from tapestry.controlplane.workloads.failures import ended_at, may_start_at, pause_after
from tapestry.controlplane.workloads.orphans import Orphans, freed
from tapestry.kube.conditions import condition, find, is_true, with_condition
from tapestry.kube.errors import ApiError, NotFound
from tapestry.kube.objects import (
    Object,
    annotations_of,
    is_deleting,
    labels_of,
    name_of,
    uid_of,
    value_at,
    version_of,
)
from tapestry.kube.patches import merge_patch
from tapestry.kube.pods import is_over
from tapestry.kube.resources import JOBS, PODS
from tapestry.kube.selectors import label_selector
from tapestry.kube.times import parse_time, timestamp

LAG = 0.1
"""Seconds until a cache is asked again whether it has seen our own write."""


@dataclass(frozen=True)
class Jobs:
    """Keeps the pods of each Job."""

    client: Client
    events: Recorder
    now: Callable[[], datetime]
    jobs: Informer
    pods: Informer
    gone: members.Gone
    written: dict[str, str] = field(default_factory=dict)
    """By UID, the version of a Job that our last write made: before the cache has it, numbers there are too low."""

    async def reconcile(self, key: str) -> Result | None:
        job = self.jobs.store.get(key)
        if job is None or is_managed_elsewhere(job):
            return None
        if not self.is_current(job):
            return Result(requeue_after=LAG)
        selector = label_selector(value_at(job, "spec", "selector"))
        candidates = members.candidates(self.pods, job)
        pods = await members.claimed(self.client, JOBS, job, selector, candidates, PODS)
        if is_finished(job) or is_deleting(job):
            return await self.after_the_end(job, pods)
        tally, now = counted(job, pods), self.now()
        end = end_of(job, pods, tally, now)
        working = [pod for pod in pods if not is_over(pod) and not is_deleting(pod)]
        status = status_of(job, pods, tally, end, now)
        if not await self.tell(job, status):
            return Result(requeue_after=LAG)
        done = noted(status) | tally.settled
        await self.untrack([pod for pod in pods if uid_of(pod) in done])
        if end is not None or job["spec"].get("suspend"):
            for pod in working:
                await self.remove(job, pod, counts=end is not None and not end.succeeded)
            return None
        due = await self.scale(job, pods, working, tally)
        moments = [each for each in (deadline_of({**job, "status": status}), due) if each is not None and each > now]
        return Result(requeue_at=min(moments)) if moments else None

    def is_current(self, job: Object) -> bool:
        ours = self.written.get(uid_of(job))
        if ours is None or int(version_of(job)) >= int(ours):
            self.written.pop(uid_of(job), None)
            return True
        return False

    async def tell(self, job: Object, status: Object) -> bool:
        """Write the status; whether the Job is still the one that it is about."""
        patch = merge_patch(job.get("status") or {}, status)
        if not patch:
            return True
        try:
            made = await self.client.patch(JOBS, job, {"status": patch}, subresource="status")
        except NotFound:
            return False
        self.written[uid_of(job)] = version_of(made)
        self.announce(job, status)
        return True

    def announce(self, job: Object, status: Object) -> None:
        """Events for what has become true of the Job."""
        before = value_at(job, "status", "conditions", default=())
        for each in status.get("conditions", ()):
            was = (find(before, each["type"]) or {}).get("status", "False")
            if each["status"] == was:
                continue
            match each["type"]:
                case "Complete":
                    self.events.normal(job, "Completed", "Job completed")
                case "Failed":
                    self.events.warning(job, each["reason"], each["message"])
                case "Suspended":
                    self.events.normal(job, "Suspended" if was == "False" else "Resumed", each["message"])

    async def untrack(self, pods: Iterable[Object]) -> None:
        """Let pods go that have been written down."""
        for pod in filter(is_tracked, pods):
            await freed(self.client, pod)

    async def remove(self, job: Object, pod: Object, *, counts: bool = False) -> None:
        """Delete a pod; it is no failure of the Job's unless it `counts` as one."""
        left = await freed(self.client, pod) if not counts and is_tracked(pod) else pod
        if left is not None:
            await self.client.remove(PODS, left)
            self.events.normal(job, "SuccessfulDelete", f"Deleted pod: {name_of(pod)}")

    async def scale(
        self, job: Object, pods: Sequence[Object], working: Sequence[Object], tally: Tally
    ) -> datetime | None:
        """As many pods as should be at work; when to make more, if that is not yet."""
        wanted = wanted_pods(job, tally)
        if job["spec"].get("completions") is None and tally.successes:
            return None  # those that still work finish by themselves
        for pod in members.first_to_go(working)[: max(len(working) - wanted, 0)]:
            await self.remove(job, pod)
        going = [pod for pod in pods if is_deleting(pod) and not is_over(pod)]
        waits_for = going if replaces_only_failed(job) else []
        missing = min(wanted - len(working) - len(waits_for), members.AT_ONCE)  # which bring us back
        if missing <= 0:
            return None
        if job["spec"].get("backoffLimitPerIndex") is not None:
            return await self.add_indexes(job, pods, [*working, *waits_for], tally, missing)
        due = may_start_at(pods)
        if due is not None and due > self.now():
            return due
        await self.add(job, pods, [*working, *waits_for], tally, missing)
        return None

    async def add(
        self, job: Object, pods: Sequence[Object], working: Sequence[Object], tally: Tally, missing: int
    ) -> None:
        is_free = self.gone.leaves(job, pods)
        wanted: list[tuple[str, int | None]]
        if is_indexed(job):
            free = islice(missing_indexes(job, tally, map(index_of, working)), missing)
            wanted = [(next(indexed_names(job, index, is_free)), index) for index in free]
        else:
            names = members.names_for(job, is_free)
            wanted = [(next(names), None) for _ in range(missing)]
        for name, index in wanted:
            await self.make(job, pod_of(job, name, index))

    async def add_indexes(
        self, job: Object, pods: Sequence[Object], working: Sequence[Object], tally: Tally, missing: int
    ) -> datetime | None:
        """Pods for indexes that each pause by themselves after they failed; when the next of them may start."""
        is_free, now, later = self.gone.leaves(job, pods), self.now(), []
        for index in missing_indexes(job, tally, map(index_of, working)):
            failures = failures_of(job, pods, index)
            ends = [ended_at(pod) for pod in pods if index_of(pod) == index]
            due = max(ends) + pause_after(failures) if ends else now
            if due > now:
                later.append(due)
                continue
            await self.make(job, pod_of(job, next(indexed_names(job, index, is_free)), index, failures))
            missing -= 1
            if not missing:
                break  # there may be no end of indexes
        return min(later, default=None)

    async def make(self, job: Object, pod: Object) -> None:
        try:
            made = await members.create(self.client, pod, job)
        except ApiError as error:
            self.events.warning(job, "FailedCreate", f"Error creating: {error.message}")
            raise
        if made is not None:
            self.events.normal(job, "SuccessfulCreate", f"Created pod: {name_of(pod)}")

    async def after_the_end(self, job: Object, pods: Sequence[Object]) -> Result | None:
        """Nothing is held back for its sake; after some time it goes by itself."""
        await self.untrack(pods)
        seconds = job["spec"].get("ttlSecondsAfterFinished")
        if seconds is None or is_deleting(job):
            return None
        due = finished_at(job) + timedelta(seconds=seconds)
        if due > self.now():
            return Result(requeue_at=due)
        await self.client.remove(JOBS, job, propagation=Propagation.FOREGROUND)
        return None


def is_managed_elsewhere(job: Object) -> bool:
    return job["spec"].get("managedBy") not in (None, "kubernetes.io/job-controller")


def is_finished(job: Object) -> bool:
    return is_true(job, "Complete") or is_true(job, "Failed")


def finished_at(job: Object) -> datetime:
    conditions = value_at(job, "status", "conditions", default=())
    found = next(each for each in conditions if each["type"] in ("Complete", "Failed") and each["status"] == "True")
    return parse_time(found["lastTransitionTime"])


def noted(status: Object) -> set[str]:
    waiting = status.get("uncountedTerminatedPods") or {}
    return {uid for how in ("succeeded", "failed") for uid in waiting.get(how) or ()}


def indexed_names(job: Object, index: int, is_free: members.IsFree) -> Iterator[str]:
    base = f"{name_of(job)[: members.LONGEST_BASE - len(str(index)) - 1]}-{index}"
    number = 0
    while True:
        name = f"{base}-{members.suffix_of(uid_of(job), index, number)}"
        if is_free(name):
            yield name
        number += 1


def pod_of(job: Object, name: str, index: int | None, failures: int | None = None) -> Object:
    """A pod of the Job's; `failures` is how often its index has failed, where that is counted."""
    template = job["spec"]["template"]
    pod = members.pod_from(template, job, name)
    finalizers = [*(pod["metadata"].get("finalizers") or ()), FINALIZER]
    pod = {**pod, "metadata": {**pod["metadata"], "finalizers": finalizers}}
    if index is None:
        return pod
    said = {INDEX: str(index)}
    metadata = {
        **pod["metadata"],
        "labels": {**labels_of(pod), **said},
        "annotations": {
            **annotations_of(pod),
            **said,
            **({INDEX_FAILURES: str(failures)} if failures is not None else {}),
        },
    }
    variable = {
        "name": "JOB_COMPLETION_INDEX",
        "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}},
    }
    spec = {**pod["spec"], "hostname": pod["spec"].get("hostname") or f"{name_of(job)}-{index}"}
    for kind in ("containers", "initContainers"):
        if spec.get(kind):
            spec[kind] = [{**each, "env": [*(each.get("env") or ()), variable]} for each in spec[kind]]
    return {**pod, "metadata": metadata, "spec": spec}


def status_of(job: Object, pods: Sequence[Object], tally: Tally, end: End | None, now: datetime) -> Object:
    before = job.get("status") or {}
    working = [pod for pod in pods if not is_over(pod) and not is_deleting(pod)]
    going = [pod for pod in pods if not is_over(pod) and is_deleting(pod)]
    suspended = bool(job["spec"].get("suspend"))
    counts = {"active": len(working), "succeeded": tally.succeeded, "failed": tally.failed}
    found: Object = {
        **{key: count for key, count in counts.items() if count},
        "ready": sum(map(members.is_ready, working)),
        "terminating": len(going),
        "uncountedTerminatedPods": {how: uids for how, uids in tally.uncounted.items() if uids},
    }
    if suspended:
        conditions = with_condition(
            before.get("conditions"), condition("Suspended", True, "JobSuspended", "Job suspended"), now
        )
        if "startTime" in before:
            found["startTime"] = before["startTime"]
    else:
        conditions = before.get("conditions") or []
        resumes = is_true(job, "Suspended")
        found["startTime"] = before.get("startTime") if not resumes and "startTime" in before else timestamp(now)
        if resumes:
            resumed = condition("Suspended", False, "JobResumed", "Job resumed")
            conditions = with_condition(conditions, resumed, now)
    if tally.completed:
        found["completedIndexes"] = written_indexes(tally.completed)
    if job["spec"].get("backoffLimitPerIndex") is not None:
        found["failedIndexes"] = written_indexes(tally.lost)
    if end is not None:
        conditions = ended(
            conditions, end, now, at_rest=not working and not going and not any(tally.uncounted.values())
        )
        if is_true({"status": {"conditions": conditions}}, "Complete"):
            found["completionTime"] = timestamp(now)
    return {**found, "conditions": conditions} if conditions else found


def ended(conditions: list[Object], end: End, now: datetime, *, at_rest: bool) -> list[Object]:
    """What is decided is said at once; that it is done, when no pod is left that could say otherwise."""
    first = "SuccessCriteriaMet" if end.succeeded else "FailureTarget"
    found = with_condition(conditions, condition(first, True, end.reason, end.message), now)
    if at_rest:
        last = "Complete" if end.succeeded else "Failed"
        found = with_condition(found, condition(last, True, end.reason, end.message), now)
    return found


def install(manager: Manager) -> None:
    jobs = manager.informer(JOBS, indexers={"namespace": own_namespace})
    pods = manager.informer(PODS, indexers=members.BY_OWNER)
    reconciler = Jobs(manager.client, manager.events, manager.now, jobs, pods, members.Gone(pods))
    controller = manager.controller("jobs", reconciler.reconcile)
    controller.watch(jobs)
    controller.watch(pods, members.keepers_among(jobs, JOBS), after=members.PAUSE)
    orphans = Orphans(manager.client, jobs, pods)
    freeing = manager.controller("job-orphans", orphans.reconcile)
    freeing.watch(pods, when=lambda _, new: new is not None and is_tracked(new))
    freeing.watch(jobs, orphans.of_job, when=lambda _, new: new is None)
