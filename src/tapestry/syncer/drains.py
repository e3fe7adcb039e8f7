"""Rules of draining: which pods are suspended, how their twins end, and the condition that reports the progress."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from tapestry.apis.clusterbindings import Binding
from tapestry.apis.excluded_pods import is_excluded
from tapestry.kube.conditions import find_condition, new_condition
from tapestry.kube.objects import Object, is_deleting, value_at
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.times import parse_time
from tapestry.syncer.caches import Caches
from tapestry.syncer.translate.pod_status import is_suspended
from tapestry.syncer.views import PhysicalPod, Twin, VirtualPod

DRAINED = "Drained"
"""Value of `spec.workloads`, and type of the condition of the binding."""
DEFAULT_GRACE_SECONDS = 30
FORCE_MARGIN = timedelta(seconds=5)
"""Time for a kubelet to report the end of a pod whose grace is over."""


def is_drained(binding: Binding) -> bool:
    """Return whether nothing of the binding may run."""
    return binding.spec.workloads == DRAINED


def must_suspend(pod: VirtualPod, binding: Binding, caches: Caches) -> bool:
    """Return whether a pod would run if its binding was not drained."""
    obj = pod.object
    return caches.is_our_pod(obj) and not (is_deleting(obj) or is_pod_terminal(obj) or is_excluded(obj, binding))


def drain_grace_seconds(twin: Object, timeout: int) -> int:
    """Return the grace of a twin that is drained, in seconds."""
    own = value_at(twin, "spec", "terminationGracePeriodSeconds", default=DEFAULT_GRACE_SECONDS)
    return max(0, min(int(own), timeout))


def force_time(twin: Object, timeout: int) -> datetime:
    """Return when a twin that is being deleted may be deleted without grace."""
    metadata = twin["metadata"]
    grace = timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)
    return parse_time(metadata["deletionTimestamp"]) - grace + timedelta(seconds=timeout) + FORCE_MARGIN


# -- condition of the binding


@dataclass(frozen=True)
class DrainProgress:
    """State of a drain."""

    unmarked_pods: int
    running_twins: int

    @property
    def is_complete(self) -> bool:
        return not (self.unmarked_pods or self.running_twins)


def drain_progress(binding: Binding, caches: Caches) -> DrainProgress:
    """Return how much is left of a drain. Twins that have ended stay: they run nothing."""
    pods = caches.virtual_pods.store.list()
    return DrainProgress(
        sum(must_suspend(each, binding, caches) and not is_suspended(each.object) for each in pods),
        number_of_running_twins(caches.physical_pods.store.list()),
    )


def number_of_running_twins(pods: Iterable[PhysicalPod]) -> int:
    return sum(isinstance(each, Twin) and each.requests is not None for each in pods)


def drained_condition(obj: Object, binding: Binding, caches: Caches, *, is_reachable: bool) -> Object | None:
    """Return the condition Drained of the binding `obj`; None if it was never drained."""
    generation = obj["metadata"].get("generation", 0)
    if not is_drained(binding):
        if find_condition(value_at(obj, "status", "conditions"), DRAINED) is None:
            return None
        return new_condition(DRAINED, False, "Running", observed_generation=generation)
    if not caches.is_physical_synced:
        return new_condition(DRAINED, False, "Draining", "the state is not known yet", observed_generation=generation)
    progress = drain_progress(binding, caches)
    if progress.is_complete:
        return new_condition(DRAINED, True, DRAINED, observed_generation=generation)
    reason = "Draining" if is_reachable else "PhysicalClusterUnreachable"
    message = f"{progress.running_twins} pods are left in the host cluster, {progress.unmarked_pods} to be suspended"
    return new_condition(DRAINED, False, reason, message, observed_generation=generation)
