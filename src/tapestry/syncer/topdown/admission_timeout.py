"""How long a pod waits to be taken below, by the API server there and by the scheduler, before it has failed.

What says nothing about the pod costs it no patience.  Where it fails for want of room, less is lent for a while.  A
quota below fails no pod: the pod waits, is tried ever less often, and again when a twin has ended.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec

from tapestry.apis import keys
from tapestry.controller import Result
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import ApiError, Conflict, Forbidden, NotFound, ServerError, TooManyRequests, Unauthorized
from tapestry.kube.objects import Object, key_of, value_at, version_of
from tapestry.kube.times import parse_time
from tapestry.syncer.context import CACHE_LAG_SECONDS, SyncContext
from tapestry.syncer.topdown.pod_status_writer import PodStatusWriter, condition_since
from tapestry.syncer.translate.pod_status import GATED, GATED_BELOW, GATED_MESSAGE

RETRYABLE_ERRORS = (Unauthorized, Conflict, TooManyRequests, ServerError)
"""Answers of an API server that say nothing about the pod."""
SYNCER_FAULT_MESSAGES = (
    "cannot create resource",
    "because it is being terminated",
    "failed calling webhook",
)
"""Signs that it is our rights, our namespace or a webhook that fails, and not the pod."""
INSUFFICIENT_MESSAGES = ("Insufficient", "Too many pods")
QUOTA_EXCEEDED = "QuotaExceeded"
MAX_QUOTA_BACKOFF = timedelta(minutes=5)
"""Between two tries of a pod that a quota refuses."""


@dataclass(frozen=True)
class AdmissionTimeout:
    """Has a pod wait, or fail once it has waited for long enough."""

    context: SyncContext
    status_writer: PodStatusWriter
    requeue_pod: Callable[[str], None]
    """Has a virtual pod looked at."""
    over_quota: dict[str, None] = field(default_factory=dict)
    """The keys of the pods that a quota refused; who waits longest comes first."""

    async def handle_rejection(self, pod: Object, node: str, error: ApiError) -> Result | None:
        """The physical API server does not want the twin."""
        if is_over_quota(error):
            return await self.wait_for_quota(pod, error)
        if is_syncer_fault(error):
            await self.status_writer.set_unmapped(pod, "NotPermitted", error.message)
            raise error
        if isinstance(error, RETRYABLE_ERRORS):
            raise error
        now, patience = self.context.now(), timedelta(seconds=self.context.config.refusal_seconds)
        since = condition_since(pod, keys.MAPPED_CONDITION, "RefusedBelow") or now
        if now - since >= patience:
            await self.fail_pod(pod, node, "RefusedBelow", error.message)
            return None
        await self.status_writer.set_unmapped(pod, "RefusedBelow", error.message)
        waited = now - since
        return Result(requeue_after=min(max(waited, timedelta(seconds=1)), patience - waited).total_seconds())

    async def wait_for_quota(self, pod: Object, error: ApiError) -> Result:
        """A quota below leaves no room for the pod now."""
        now = self.context.now()
        since = condition_since(pod, keys.ACCEPTED_CONDITION, QUOTA_EXCEEDED)
        if (
            await self.status_writer.set_condition_false(pod, keys.ACCEPTED_CONDITION, QUOTA_EXCEEDED, error.message)
            and since is None
        ):
            self.context.manager.events.warning(pod, QUOTA_EXCEEDED, error.message)
        self.over_quota.setdefault(key_of(pod))
        pause = min(max(now - (since or now), timedelta(seconds=1)), MAX_QUOTA_BACKOFF)
        return Result(requeue_after=pause.total_seconds())

    def clear_quota_wait(self, pod: Object) -> None:
        """The pod has a twin, or waits for something else.  Where it waited for a quota, the next one is tried."""
        if key_of(pod) in self.over_quota:
            self.forget(pod)
            self.requeue_next()

    def forget(self, pod: Object) -> None:
        """The pod has ended, is gone, or waits for no quota."""
        self.over_quota.pop(key_of(pod), None)

    def requeue_next(self) -> None:
        """Have the pod tried that has waited longest for a quota."""
        for key in self.over_quota:
            self.requeue_pod(key)
            return

    async def wait_for_scheduling(self, pod: Object, twin: Object, node: str) -> Result | None:
        """The physical scheduler may find no place for the twin where it has to run."""
        said = unscheduled_condition(twin)
        if said is None:
            return None
        # A clock below that goes wrong must not use up the time: none passed before we knew of the twin.
        known = condition_since(pod, keys.MAPPED_CONDITION, "Mapped") or self.context.now()
        since = max(known, parse_time(said.get("lastTransitionTime") or twin["metadata"]["creationTimestamp"]))
        due = since + timedelta(seconds=self.context.config.unschedulable_seconds)
        if self.context.now() < due:
            return Result(requeue_at=due)
        live = await self.context.live_twin(key_of(pod))
        if live is None or version_of(live) != version_of(twin):
            return Result(requeue_after=CACHE_LAG_SECONDS)
        if said.get("reason") == GATED:
            await self.fail_pod(pod, node, GATED_BELOW, GATED_MESSAGE)
        else:
            await self.fail_pod(pod, node, "UnschedulableBelow", said.get("message") or "it was not scheduled below")
        return None

    async def fail_pod(self, pod: Object, node: str, reason: str, message: str) -> None:
        """The pod has failed.  A cause in the pod itself says nothing about the node."""
        if any(sign in message for sign in INSUFFICIENT_MESSAGES):
            self.context.record_shortage(node, pod)
        await self.status_writer.fail_pod(pod, reason, message)


def unscheduled_condition(twin: Object) -> Object | None:
    """What the physical scheduler says of a twin that it finds no place for; None where it has one, or says nothing."""
    if value_at(twin, "spec", "nodeName"):
        return None
    status: Object = msgspec.json.decode(twin["twin"])
    said = find_condition(status["conditions"], "PodScheduled")
    return said if said is not None and said.get("status") == "False" else None


def is_syncer_fault(error: ApiError) -> bool:
    return isinstance(error, NotFound) or any(sign in error.message for sign in SYNCER_FAULT_MESSAGES)


def is_over_quota(error: ApiError) -> bool:
    return isinstance(error, Forbidden) and "exceeded quota" in error.message
