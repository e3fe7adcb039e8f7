"""Completions: what a Job's pods have come to, and what it takes to finish.  Pure.

A pod that has ended counts once, even if nobody was there to see it: it carries a finalizer until the Job's status has
it.  First its UID is written down in `uncountedTerminatedPods`, then the finalizer goes, then the UID becomes a number.
Whoever is interrupted in between finds out where by looking.  The success of an index needs no UID: it is in the list.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tapestry.controlplane.workloads.failures import action_for, match_of
from tapestry.kube.conditions import find, is_true
from tapestry.kube.objects import Object, annotations_of, is_deleting, uid_of, value_at
from tapestry.kube.pods import is_over
from tapestry.kube.times import parse_time

FINALIZER = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"
BACKOFF_LIMIT = 6


@dataclass(frozen=True, slots=True)
class Tally:
    """What has been counted, and what waits to be."""

    succeeded: int = 0
    failed: int = 0
    uncounted: dict[str, list[str]] = field(default_factory=lambda: {"succeeded": [], "failed": []})
    """UIDs of pods that have ended, by how."""
    completed: frozenset[int] = frozenset()
    """Indexes."""
    lost: frozenset[int] = frozenset()
    """Indexes that have failed for good."""
    settled: frozenset[str] = frozenset()
    """UIDs of pods that have ended and need not be written down: what they mean is in the status by other words."""

    @property
    def successes(self) -> int:
        return self.succeeded + len(self.uncounted["succeeded"])

    @property
    def failures(self) -> int:
        return self.failed + len(self.uncounted["failed"])


def is_indexed(job: Object) -> bool:
    return bool(job["spec"].get("completionMode") == "Indexed")


def is_tracked(pod: Object) -> bool:
    return FINALIZER in (pod["metadata"].get("finalizers") or ())


def index_of(pod: Object) -> int | None:
    text = annotations_of(pod).get(INDEX, "")
    return int(text) if text.isdecimal() else None


def counted(job: Object, pods: Sequence[Object]) -> Tally:
    """What the status should say of pods that have ended."""
    status = job.get("status") or {}
    waiting = status.get("uncountedTerminatedPods") or {}
    tracked = [pod for pod in pods if is_tracked(pod)]
    held = {uid_of(pod) for pod in tracked}
    known = {how: list(waiting.get(how) or ()) for how in ("succeeded", "failed")}
    uncounted = {how: [uid for uid in uids if uid in held] for how, uids in known.items()}
    numbers = {how: status.get(how, 0) + len(known[how]) - len(uncounted[how]) for how in known}
    completed = completed_indexes(job, pods) if is_indexed(job) else frozenset()
    lost = lost_indexes(job, pods)
    settled = set()
    for pod in tracked:
        uid = uid_of(pod)
        if uid in known["succeeded"] or uid in known["failed"]:
            continue
        if value_at(pod, "status", "phase") == "Succeeded":
            if is_indexed(job):
                settled.add(uid)
            else:
                uncounted["succeeded"].append(uid)
        elif has_failed(job, pod) and not is_succeeded_by_none(job, pod, pods, lost):
            if action_for(job, pod) == "Ignore":
                settled.add(uid)
            else:
                uncounted["failed"].append(uid)
    succeeded = len(completed) if is_indexed(job) else numbers["succeeded"]
    return Tally(succeeded, numbers["failed"], uncounted, completed, lost, frozenset(settled))


def has_failed(job: Object, pod: Object) -> bool:
    """Whether the pod counts as failed; one that is going does, unless the Job wants to see the end of it."""
    phase = value_at(pod, "status", "phase")
    if phase == "Failed":
        return True
    decision = decided(job)
    if replaces_only_failed(job) and (decision is None or decision.succeeded):
        return False
    return is_deleting(pod) and phase != "Succeeded"


def replaces_only_failed(job: Object) -> bool:
    """Whether a pod that is going is not replaced before it has gone."""
    return job["spec"].get("podReplacementPolicy") == "Failed" or job["spec"].get("podFailurePolicy") is not None


# -- indexes


def completed_indexes(job: Object, pods: Iterable[Object]) -> frozenset[int]:
    said = read_indexes(value_at(job, "status", "completedIndexes", default=""))
    seen = [index_of(pod) for pod in pods if value_at(pod, "status", "phase") == "Succeeded"]
    return frozenset(index for index in (*said, *seen) if index is not None and index < (job["spec"]["completions"]))


def lost_indexes(job: Object, pods: Sequence[Object]) -> frozenset[int]:
    """Indexes that have failed more often than one may, or in a way that the Job's rules call the end of them."""
    limit = job["spec"].get("backoffLimitPerIndex")
    if limit is None:
        return frozenset()
    lost = set(read_indexes(value_at(job, "status", "failedIndexes", default="")))
    for pod in pods:
        index = index_of(pod)
        if index is None or not has_failed(job, pod):
            continue
        if failures_with(job, pod) > limit or action_for(job, pod) == "FailIndex":
            lost.add(index)
    return frozenset(lost)


def failures_with(job: Object, pod: Object) -> int:
    """How often the pod's index has failed, with this pod."""
    before = annotations_of(pod).get(INDEX_FAILURES, "")
    return (int(before) if before.isdecimal() else 0) + (has_failed(job, pod) and action_for(job, pod) != "Ignore")


def failures_of(job: Object, pods: Iterable[Object], index: int) -> int:
    return max((failures_with(job, pod) for pod in pods if index_of(pod) == index), default=0)


def is_succeeded_by_none(job: Object, pod: Object, pods: Iterable[Object], lost: Collection[int]) -> bool:
    """Whether a failed pod is the only one that knows how often its index has failed: it is kept until another does."""
    index = index_of(pod)
    if job["spec"].get("backoffLimitPerIndex") is None or index is None or index in lost or decided(job) is not None:
        return False
    mine = failures_with(job, pod)
    return not any(index_of(each) == index and each is not pod and failures_with(job, each) >= mine for each in pods)


def read_indexes(text: str) -> list[int]:
    """`0-2,5` as numbers."""
    found: list[int] = []
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def written_indexes(indexes: Iterable[int]) -> str:
    """Numbers as `0-2,5,6`: two of them are no range yet."""
    parts: list[list[int]] = []
    for index in sorted(indexes):
        if parts and parts[-1][1] == index - 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(
        f"{first}-{last}" if last > first + 1 else ",".join(map(str, range(first, last + 1))) for first, last in parts
    )


# -- whether it is over


@dataclass(frozen=True, slots=True)
class End:
    """How a Job ends."""

    succeeded: bool
    reason: str
    message: str


def end_of(job: Object, pods: Sequence[Object], tally: Tally, now: datetime) -> End | None:
    """How the Job ends, if it does."""
    if told := decided(job):
        return told
    if failure := failed_by_rule(job, pods):
        return failure
    if too_many_failures(job, pods, tally):
        return End(False, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    if (due := deadline_of(job)) is not None and due <= now:
        return End(False, "DeadlineExceeded", "Job was active longer than specified deadline")
    if is_indexed(job) and (end := end_of_indexes(job, tally)):
        return end
    completions = job["spec"].get("completions")
    if completions is None:
        working = [pod for pod in pods if not is_over(pod) and not is_deleting(pod)]
        reached = tally.successes > 0 and not working
    else:
        reached = tally.successes >= completions
    return End(True, "CompletionsReached", "Reached expected number of succeeded pods") if reached else None


def end_of_indexes(job: Object, tally: Tally) -> End | None:
    """How a Job ends of which enough indexes have succeeded, or too many have failed."""
    spec = job["spec"]
    most = spec.get("maxFailedIndexes")
    if most is not None and len(tally.lost) > most:
        message = "Job has exceeded the specified maximal number of failed indexes"
        return End(False, "MaxFailedIndexesExceeded", message)
    if tally.lost and len(tally.lost | tally.completed) >= spec["completions"]:
        return End(False, "FailedIndexes", "Job has failed indexes")
    for number, rule in enumerate(value_at(spec, "successPolicy", "rules", default=())):
        meant = frozenset(read_indexes(rule["succeededIndexes"])) if "succeededIndexes" in rule else None
        found = tally.completed & meant if meant is not None else tally.completed
        if len(found) >= rule.get("succeededCount", len(meant) if meant is not None else 0):
            return End(True, "SuccessPolicy", f"Matched rules at index {number}")
    return None


def decided(job: Object) -> End | None:
    """What was decided before, and is being seen to."""
    conditions = value_at(job, "status", "conditions", default=())
    for type, succeeded in (("SuccessCriteriaMet", True), ("FailureTarget", False)):
        found = find(conditions, type)
        if found is not None and found["status"] == "True":
            return End(succeeded, found.get("reason", ""), found.get("message", ""))
    return None


def too_many_failures(job: Object, pods: Iterable[Object], tally: Tally) -> bool:
    spec = job["spec"]
    limit = spec.get("backoffLimit", BACKOFF_LIMIT)
    if tally.failures > limit:
        return True
    if value_at(spec, "template", "spec", "restartPolicy") != "OnFailure":
        return False
    restarts = sum(
        each.get("restartCount", 0)
        for pod in pods
        if not is_over(pod)
        for kind in ("initContainerStatuses", "containerStatuses")
        for each in value_at(pod, "status", kind, default=())
    )
    return bool(restarts >= max(limit, 1))


def failed_by_rule(job: Object, pods: Iterable[Object]) -> End | None:
    """Whether a pod failed in a way that the Job's rules call the end of it."""
    for pod in pods:
        match = match_of(job, pod) if value_at(pod, "status", "phase") == "Failed" else None
        if match is not None and match.action == "FailJob":
            message = f"{match.why} matching FailJob rule at index {match.number}"
            return End(False, "PodFailurePolicy", message)
    return None


def deadline_of(job: Object) -> datetime | None:
    seconds, started = job["spec"].get("activeDeadlineSeconds"), value_at(job, "status", "startTime")
    if seconds is None or started is None or job["spec"].get("suspend") or is_true(job, "Suspended"):
        return None  # one that is resumed starts anew
    return parse_time(started) + timedelta(seconds=seconds)


# -- what is missing


def wanted_pods(job: Object, tally: Tally) -> int:
    """How many pods should be at work."""
    spec = job["spec"]
    parallelism: int = spec.get("parallelism", 1)
    completions = spec.get("completions")
    if completions is None:
        return 0 if tally.successes else parallelism
    missing: int = completions - (len(tally.completed | tally.lost) if is_indexed(job) else tally.successes)
    return max(min(parallelism, missing), 0)


def missing_indexes(job: Object, tally: Tally, taken: Iterable[int | None]) -> Iterator[int]:
    """Indexes that nobody has completed or works on, the least first."""
    held = {*tally.completed, *tally.lost, *taken}
    return (each for each in range(job["spec"].get("completions") or 0) if each not in held)
