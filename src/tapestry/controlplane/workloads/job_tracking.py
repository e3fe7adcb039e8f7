"""Pure functions that count the terminated pods of a Job and decide its outcome.

A terminated pod is counted exactly once, even if the controller was not running: a finalizer keeps the pod until the
status includes it. First its UID is written to `uncountedTerminatedPods`, then the finalizer is removed, then the UID
is replaced by an increment of the count. After an interruption, the state shows how far this got. A succeeded index
needs no UID, because it is in the list of completed indexes.
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
    """Counted pods and pods that are still to be counted."""

    succeeded: int = 0
    failed: int = 0
    uncounted: dict[str, list[str]] = field(default_factory=lambda: {"succeeded": [], "failed": []})
    """UIDs of terminated pods, by result."""
    completed_indexes: frozenset[int] = frozenset()
    """Indexes that have succeeded."""
    failed_indexes: frozenset[int] = frozenset()
    """Indexes that have failed permanently."""
    untracked_uids: frozenset[str] = frozenset()
    """UIDs of terminated pods that need no counting, because other status fields cover them."""

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
    """Return the counts of terminated pods that the status should contain."""
    status = job.get("status") or {}
    pending = status.get("uncountedTerminatedPods") or {}
    tracked = [pod for pod in pods if is_tracked(pod)]
    tracked_uids = {uid_of(pod) for pod in tracked}
    known = {result: list(pending.get(result) or ()) for result in ("succeeded", "failed")}
    uncounted = {result: [uid for uid in uids if uid in tracked_uids] for result, uids in known.items()}
    numbers = {result: status.get(result, 0) + len(known[result]) - len(uncounted[result]) for result in known}
    completed = completed_indexes(job, pods) if is_indexed(job) else frozenset()
    failed = failed_indexes(job, pods)
    untracked = set()
    for pod in tracked:
        uid = uid_of(pod)
        if uid in known["succeeded"] or uid in known["failed"]:
            continue
        if value_at(pod, "status", "phase") == "Succeeded":
            if is_indexed(job):
                untracked.add(uid)
            else:
                uncounted["succeeded"].append(uid)
        elif has_failed(job, pod) and not holds_failure_count(job, pod, pods, failed):
            if failure_action(job, pod) == "Ignore":
                untracked.add(uid)
            else:
                uncounted["failed"].append(uid)
    succeeded = len(completed) if is_indexed(job) else numbers["succeeded"]
    return JobCounts(succeeded, numbers["failed"], uncounted, completed, failed, frozenset(untracked))


def has_failed(job: Object, pod: Object) -> bool:
    """Return whether the pod counts as failed. A terminating pod does, unless it is replaced only once failed."""
    phase = value_at(pod, "status", "phase")
    if phase == "Failed":
        return True
    decision = decided_outcome(job)
    if replaces_only_failed(job) and (decision is None or decision.succeeded):
        return False
    return is_deleting(pod) and phase != "Succeeded"


def replaces_only_failed(job: Object) -> bool:
    """Return whether a terminating pod is replaced only after it has terminated."""
    return job["spec"].get("podReplacementPolicy") == "Failed" or job["spec"].get("podFailurePolicy") is not None


# -- indexes


def completed_indexes(job: Object, pods: Iterable[Object]) -> frozenset[int]:
    known = parse_indexes(value_at(job, "status", "completedIndexes", default=""))
    new = [index_of(pod) for pod in pods if value_at(pod, "status", "phase") == "Succeeded"]
    return frozenset(index for index in (*known, *new) if index is not None and index < (job["spec"]["completions"]))


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
    """Return the number of failures of the pod's index, including this pod."""
    before = annotations_of(pod).get(INDEX_FAILURE_COUNT, "")
    return (int(before) if before.isdecimal() else 0) + (has_failed(job, pod) and failure_action(job, pod) != "Ignore")


def index_failures(job: Object, pods: Iterable[Object], index: int) -> int:
    return max((index_failures_with(job, pod) for pod in pods if index_of(pod) == index), default=0)


def holds_failure_count(job: Object, pod: Object, pods: Iterable[Object], lost: Collection[int]) -> bool:
    """Return whether only this failed pod has the failure count of its index. It is kept until another has it."""
    index = index_of(pod)
    if (
        job["spec"].get("backoffLimitPerIndex") is None
        or index is None
        or index in lost
        or decided_outcome(job) is not None
    ):
        return False
    failures = index_failures_with(job, pod)
    return not any(
        index_of(each) == index and each is not pod and index_failures_with(job, each) >= failures for each in pods
    )


def parse_indexes(text: str) -> list[int]:
    indexes: list[int] = []
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        indexes += range(int(first), int(last or first) + 1)
    return indexes


def format_indexes(indexes: Iterable[int]) -> str:
    """Format indexes as `0-2,5,6`. Only three or more consecutive indexes form a range."""
    parts: list[list[int]] = []
    for index in sorted(indexes):
        if parts and parts[-1][1] == index - 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(
        f"{first}-{last}" if last > first + 1 else ",".join(map(str, range(first, last + 1))) for first, last in parts
    )


# -- outcome


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """Final result of a Job."""

    succeeded: bool
    reason: str
    message: str


def job_outcome(job: Object, pods: Sequence[Object], pod_counts: JobCounts, now: datetime) -> JobOutcome | None:
    if decided := decided_outcome(job):
        return decided
    if failure := failure_policy_outcome(job, pods):
        return failure
    if exceeds_backoff_limit(job, pods, pod_counts):
        return JobOutcome(False, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    if (due := active_deadline(job)) is not None and due <= now:
        return JobOutcome(False, "DeadlineExceeded", "Job was active longer than specified deadline")
    if is_indexed(job) and (outcome := indexed_outcome(job, pod_counts)):
        return outcome
    completions = job["spec"].get("completions")
    if completions is None:
        active = [pod for pod in pods if not is_pod_terminal(pod) and not is_deleting(pod)]
        is_complete = pod_counts.successes > 0 and not active
    else:
        is_complete = pod_counts.successes >= completions
    return JobOutcome(True, "CompletionsReached", "Reached expected number of succeeded pods") if is_complete else None


def indexed_outcome(job: Object, pod_counts: JobCounts) -> JobOutcome | None:
    """Return the outcome of an indexed Job with enough succeeded or too many failed indexes."""
    spec = job["spec"]
    limit = spec.get("maxFailedIndexes")
    if limit is not None and len(pod_counts.failed_indexes) > limit:
        message = "Job has exceeded the specified maximal number of failed indexes"
        return JobOutcome(False, "MaxFailedIndexesExceeded", message)
    if (
        pod_counts.failed_indexes
        and len(pod_counts.failed_indexes | pod_counts.completed_indexes) >= spec["completions"]
    ):
        return JobOutcome(False, "FailedIndexes", "Job has failed indexes")
    for number, rule in enumerate(value_at(spec, "successPolicy", "rules", default=())):
        required = frozenset(parse_indexes(rule["succeededIndexes"])) if "succeededIndexes" in rule else None
        succeeded = pod_counts.completed_indexes & required if required is not None else pod_counts.completed_indexes
        if len(succeeded) >= rule.get("succeededCount", len(required) if required is not None else 0):
            return JobOutcome(True, "SuccessPolicy", f"Matched rules at index {number}")
    return None


def decided_outcome(job: Object) -> JobOutcome | None:
    """Return the outcome that the conditions already contain."""
    conditions = value_at(job, "status", "conditions", default=())
    for type, succeeded in (("SuccessCriteriaMet", True), ("FailureTarget", False)):
        condition = find_condition(conditions, type)
        if condition is not None and condition["status"] == "True":
            return JobOutcome(succeeded, condition.get("reason", ""), condition.get("message", ""))
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
    """Return the outcome if the failure policy fails the Job because of a pod."""
    for pod in pods:
        match = policy_match(job, pod) if value_at(pod, "status", "phase") == "Failed" else None
        if match is not None and match.action == "FailJob":
            message = f"{match.message} matching FailJob rule at index {match.rule_index}"
            return JobOutcome(False, "PodFailurePolicy", message)
    return None


def active_deadline(job: Object) -> datetime | None:
    seconds, started = job["spec"].get("activeDeadlineSeconds"), value_at(job, "status", "startTime")
    if seconds is None or started is None or job["spec"].get("suspend") or is_condition_true(job, "Suspended"):
        return None  # the time starts again when the Job is resumed
    return parse_time(started) + timedelta(seconds=seconds)


# -- desired pods


def desired_pods(job: Object, pod_counts: JobCounts) -> int:
    """Return the number of pods that should be active."""
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
    """Yield indexes that are neither finished nor taken by a pod, in ascending order."""
    excluded = {*pod_counts.completed_indexes, *pod_counts.failed_indexes, *taken}
    return (each for each in range(job["spec"].get("completions") or 0) if each not in excluded)
