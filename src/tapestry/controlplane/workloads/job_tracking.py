"""Completions: what a Job's pods have come to, and what it takes to finish.  Pure.

A pod that has ended counts once, even if nobody was there to see it: it carries a finalizer until the Job's status has
it.  First its UID is written down in `uncountedTerminatedPods`, then the finalizer goes, then the UID becomes a number.
Whoever is interrupted in between finds out where by looking.  The success of an index needs no UID: it is in the list.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tapestry.controlplane.workloads.job_failures import failure_action, policy_match
from tapestry.kube.conditions import find_condition, is_condition_true
from tapestry.kube.objects import Object, annotations_of, is_deleting, uid_of, value_at
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.times import parse_time

TRACKING_FINALIZER = "batch.kubernetes.io/job-tracking"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
INDEX_FAILURE_COUNT = "batch.kubernetes.io/job-index-failure-count"
DEFAULT_BACKOFF_LIMIT = 6


@dataclass(frozen=True, slots=True)
class JobCounts:
    """What has been counted, and what waits to be."""

    succeeded: int = 0
    failed: int = 0
    uncounted: dict[str, list[str]] = field(default_factory=lambda: {"succeeded": [], "failed": []})
    """UIDs of pods that have ended, by how."""
    completed_indexes: frozenset[int] = frozenset()
    """Indexes."""
    failed_indexes: frozenset[int] = frozenset()
    """Indexes that have failed for good."""
    untracked_uids: frozenset[str] = frozenset()
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
    return TRACKING_FINALIZER in (pod["metadata"].get("finalizers") or ())


def index_of(pod: Object) -> int | None:
    text = annotations_of(pod).get(COMPLETION_INDEX, "")
    return int(text) if text.isdecimal() else None


def job_counts(job: Object, pods: Sequence[Object]) -> JobCounts:
    """What the status should say of pods that have ended."""
    status = job.get("status") or {}
    waiting = status.get("uncountedTerminatedPods") or {}
    tracked = [pod for pod in pods if is_tracked(pod)]
    held = {uid_of(pod) for pod in tracked}
    known = {how: list(waiting.get(how) or ()) for how in ("succeeded", "failed")}
    uncounted = {how: [uid for uid in uids if uid in held] for how, uids in known.items()}
    numbers = {how: status.get(how, 0) + len(known[how]) - len(uncounted[how]) for how in known}
    completed = completed_indexes(job, pods) if is_indexed(job) else frozenset()
    lost = failed_indexes(job, pods)
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
        elif has_failed(job, pod) and not holds_failure_count(job, pod, pods, lost):
            if failure_action(job, pod) == "Ignore":
                settled.add(uid)
            else:
                uncounted["failed"].append(uid)
    succeeded = len(completed) if is_indexed(job) else numbers["succeeded"]
    return JobCounts(succeeded, numbers["failed"], uncounted, completed, lost, frozenset(settled))


def has_failed(job: Object, pod: Object) -> bool:
    """Whether the pod counts as failed; one that is going does, unless the Job wants to see the end of it."""
    phase = value_at(pod, "status", "phase")
    if phase == "Failed":
        return True
    decision = decided_outcome(job)
    if replaces_only_failed(job) and (decision is None or decision.succeeded):
        return False
    return is_deleting(pod) and phase != "Succeeded"


def replaces_only_failed(job: Object) -> bool:
    """Whether a pod that is going is not replaced before it has gone."""
    return job["spec"].get("podReplacementPolicy") == "Failed" or job["spec"].get("podFailurePolicy") is not None


# -- indexes


def completed_indexes(job: Object, pods: Iterable[Object]) -> frozenset[int]:
    said = parse_indexes(value_at(job, "status", "completedIndexes", default=""))
    seen = [index_of(pod) for pod in pods if value_at(pod, "status", "phase") == "Succeeded"]
    return frozenset(index for index in (*said, *seen) if index is not None and index < (job["spec"]["completions"]))


def failed_indexes(job: Object, pods: Sequence[Object]) -> frozenset[int]:
    """Indexes that have failed more often than one may, or in a way that the Job's rules call the end of them."""
    limit = job["spec"].get("backoffLimitPerIndex")
    if limit is None:
        return frozenset()
    lost = set(parse_indexes(value_at(job, "status", "failedIndexes", default="")))
    for pod in pods:
        index = index_of(pod)
        if index is None or not has_failed(job, pod):
            continue
        if index_failures_with(job, pod) > limit or failure_action(job, pod) == "FailIndex":
            lost.add(index)
    return frozenset(lost)


def index_failures_with(job: Object, pod: Object) -> int:
    """How often the pod's index has failed, with this pod."""
    before = annotations_of(pod).get(INDEX_FAILURE_COUNT, "")
    return (int(before) if before.isdecimal() else 0) + (has_failed(job, pod) and failure_action(job, pod) != "Ignore")


def index_failures(job: Object, pods: Iterable[Object], index: int) -> int:
    return max((index_failures_with(job, pod) for pod in pods if index_of(pod) == index), default=0)


def holds_failure_count(job: Object, pod: Object, pods: Iterable[Object], lost: Collection[int]) -> bool:
    """Whether a failed pod is the only one that knows how often its index has failed: it is kept until another does."""
    index = index_of(pod)
    if (
        job["spec"].get("backoffLimitPerIndex") is None
        or index is None
        or index in lost
        or decided_outcome(job) is not None
    ):
        return False
    mine = index_failures_with(job, pod)
    return not any(
        index_of(each) == index and each is not pod and index_failures_with(job, each) >= mine for each in pods
    )


def parse_indexes(text: str) -> list[int]:
    """`0-2,5` as numbers."""
    found: list[int] = []
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def format_indexes(indexes: Iterable[int]) -> str:
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
class JobOutcome:
    """How a Job ends."""

    succeeded: bool
    reason: str
    message: str


def job_outcome(job: Object, pods: Sequence[Object], pod_counts: JobCounts, now: datetime) -> JobOutcome | None:
    """How the Job ends, if it does."""
    if told := decided_outcome(job):
        return told
    if failure := failure_policy_outcome(job, pods):
        return failure
    if exceeds_backoff_limit(job, pods, pod_counts):
        return JobOutcome(False, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    if (due := active_deadline(job)) is not None and due <= now:
        return JobOutcome(False, "DeadlineExceeded", "Job was active longer than specified deadline")
    if is_indexed(job) and (end := indexed_outcome(job, pod_counts)):
        return end
    completions = job["spec"].get("completions")
    if completions is None:
        working = [pod for pod in pods if not is_pod_terminal(pod) and not is_deleting(pod)]
        reached = pod_counts.successes > 0 and not working
    else:
        reached = pod_counts.successes >= completions
    return JobOutcome(True, "CompletionsReached", "Reached expected number of succeeded pods") if reached else None


def indexed_outcome(job: Object, pod_counts: JobCounts) -> JobOutcome | None:
    """How a Job ends of which enough indexes have succeeded, or too many have failed."""
    spec = job["spec"]
    most = spec.get("maxFailedIndexes")
    if most is not None and len(pod_counts.failed_indexes) > most:
        message = "Job has exceeded the specified maximal number of failed indexes"
        return JobOutcome(False, "MaxFailedIndexesExceeded", message)
    if (
        pod_counts.failed_indexes
        and len(pod_counts.failed_indexes | pod_counts.completed_indexes) >= spec["completions"]
    ):
        return JobOutcome(False, "FailedIndexes", "Job has failed indexes")
    for number, rule in enumerate(value_at(spec, "successPolicy", "rules", default=())):
        meant = frozenset(parse_indexes(rule["succeededIndexes"])) if "succeededIndexes" in rule else None
        found = pod_counts.completed_indexes & meant if meant is not None else pod_counts.completed_indexes
        if len(found) >= rule.get("succeededCount", len(meant) if meant is not None else 0):
            return JobOutcome(True, "SuccessPolicy", f"Matched rules at index {number}")
    return None


def decided_outcome(job: Object) -> JobOutcome | None:
    """What was decided before, and is being seen to."""
    conditions = value_at(job, "status", "conditions", default=())
    for type, succeeded in (("SuccessCriteriaMet", True), ("FailureTarget", False)):
        found = find_condition(conditions, type)
        if found is not None and found["status"] == "True":
            return JobOutcome(succeeded, found.get("reason", ""), found.get("message", ""))
    return None


def exceeds_backoff_limit(job: Object, pods: Iterable[Object], pod_counts: JobCounts) -> bool:
    spec = job["spec"]
    limit = spec.get("backoffLimit", DEFAULT_BACKOFF_LIMIT)
    if pod_counts.failures > limit:
        return True
    if value_at(spec, "template", "spec", "restartPolicy") != "OnFailure":
        return False
    restarts = sum(
        each.get("restartCount", 0)
        for pod in pods
        if not is_pod_terminal(pod)
        for kind in ("initContainerStatuses", "containerStatuses")
        for each in value_at(pod, "status", kind, default=())
    )
    return bool(restarts >= max(limit, 1))


def failure_policy_outcome(job: Object, pods: Iterable[Object]) -> JobOutcome | None:
    """Whether a pod failed in a way that the Job's rules call the end of it."""
    for pod in pods:
        match = policy_match(job, pod) if value_at(pod, "status", "phase") == "Failed" else None
        if match is not None and match.action == "FailJob":
            message = f"{match.message} matching FailJob rule at index {match.rule_index}"
            return JobOutcome(False, "PodFailurePolicy", message)
    return None


def active_deadline(job: Object) -> datetime | None:
    seconds, started = job["spec"].get("activeDeadlineSeconds"), value_at(job, "status", "startTime")
    if seconds is None or started is None or job["spec"].get("suspend") or is_condition_true(job, "Suspended"):
        return None  # one that is resumed starts anew
    return parse_time(started) + timedelta(seconds=seconds)


# -- what is missing


def desired_pods(job: Object, pod_counts: JobCounts) -> int:
    """How many pods should be at work."""
    spec = job["spec"]
    parallelism: int = spec.get("parallelism", 1)
    completions = spec.get("completions")
    if completions is None:
        return 0 if pod_counts.successes else parallelism
    missing: int = completions - (
        len(pod_counts.completed_indexes | pod_counts.failed_indexes) if is_indexed(job) else pod_counts.successes
    )
    return max(min(parallelism, missing), 0)


def missing_indexes(job: Object, pod_counts: JobCounts, taken: Iterable[int | None]) -> Iterator[int]:
    """Indexes that nobody has completed or works on, the least first."""
    held = {*pod_counts.completed_indexes, *pod_counts.failed_indexes, *taken}
    return (each for each in range(job["spec"].get("completions") or 0) if each not in held)
