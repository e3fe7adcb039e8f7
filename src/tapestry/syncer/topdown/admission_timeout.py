"""Timeouts for pods whose twins the physical API server or scheduler does not accept.

Errors that are unrelated to the pod do not count. If a pod fails for lack of capacity, less is leased for a while. A
quota fails no pod: the pod waits, is retried ever less often, and again when a twin ends. Of many equal pods, only one
a second is sent to the physical API server while the quota rejects them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from tapestry.apis import keys
from tapestry.controller import Result
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import (
    ApiError,
    Conflict,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    is_create_unauthorized,
    is_namespace_terminating,
    is_over_quota,
    reports_insufficient_resources,
)
from tapestry.kube.objects import Object, version_of
from tapestry.kube.times import parse_time
from tapestry.syncer.caches import CACHE_LAG_SECONDS
from tapestry.syncer.clients import Clients
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.lease_cache import Shortages
from tapestry.syncer.topdown.pod_status_writer import PodStatusWriter, condition_since
from tapestry.syncer.translate.pod_status import GATED, GATED_BELOW, GATED_MESSAGE
from tapestry.syncer.translate.pods import Placement
from tapestry.syncer.views import Twin, VirtualPod

RETRYABLE_ERRORS = (Unauthorized, Conflict, TooManyRequests, ServerError)
"""API errors that are unrelated to the pod."""
QUOTA_EXCEEDED = "QuotaExceeded"
MAX_QUOTA_BACKOFF = timedelta(minutes=5)
"""Maximum time between two attempts to create a pod over quota."""
QUOTA_RETRY = timedelta(seconds=1)
"""Time between two attempts to create equal pods over quota, unless a twin ends meanwhile."""
INTERNAL_ERROR = "InternalError"
"""Reason of a response of an API server that failed, or could not call a webhook."""


QuotaDemand = bytes
"""Amounts of a pod that quotas count. Equal demands get the same decision."""


@dataclass(frozen=True)
class AdmissionTimeout:
    """Make a pod wait, or fail once it has waited long enough."""

    clients: Clients
    shortages: Shortages
    now: Callable[[], datetime]
    config: SyncerConfig
    status_writer: PodStatusWriter
    requeue_pod: Callable[[str], None]
    """Requeue a virtual pod."""
    over_quota: dict[str, None] = field(default_factory=dict)
    """Keys of the pods over quota, longest wait first."""
    rejected: dict[QuotaDemand, tuple[datetime, ApiError]] = field(default_factory=dict)
    """Last rejection by a quota of twins with the same demand."""

    async def handle_rejection(self, pod: VirtualPod, node: Placement, error: ApiError) -> Result | None:
        """Handle the rejection of the twin by the physical API server."""
        if is_over_quota(error):
            return await self.wait_for_quota(pod, error)
        if is_syncer_fault(error):
            reason = "PhysicalServerError" if error.reason == INTERNAL_ERROR else "NotPermitted"
            await self.status_writer.set_unmapped(pod, reason, error.message)
            raise error
        if isinstance(error, RETRYABLE_ERRORS):
            raise error
        now, timeout = self.now(), timedelta(seconds=self.config.refusal_seconds)
        since = condition_since(pod, keys.MAPPED_CONDITION, "RefusedBelow") or now
        if now - since >= timeout:
            await self.fail_pod(pod, node, "RefusedBelow", error.message)
            return None
        await self.status_writer.set_unmapped(pod, "RefusedBelow", error.message)
        waited = now - since
        return Result(requeue_after=min(max(waited, timedelta(seconds=1)), timeout - waited).total_seconds())

    async def handle_twin_rejection(self, pod: VirtualPod, node: Placement, error: ApiError) -> Result | None:
        """Handle a rejection that concerns the twin itself and none of its dependencies."""
        if is_over_quota(error):
            now = self.now()
            for demand in [each for each, (time, _) in self.rejected.items() if now - time >= QUOTA_RETRY]:
                del self.rejected[demand]
            self.rejected[quota_demand(pod.object["spec"])] = now, error
        return await self.handle_rejection(pod, node, error)

    def quota_rejection(self, pod: VirtualPod) -> ApiError | None:
        """Return the rejection of an equal pod a moment ago: another request would have the same result."""
        if not self.rejected:
            return None
        time, error = self.rejected.get(quota_demand(pod.object["spec"]), (None, None))
        return error if time is not None and self.now() - time < QUOTA_RETRY else None

    async def wait_for_quota(self, pod: VirtualPod, error: ApiError) -> Result:
        """Make the pod wait for a quota in the physical cluster."""
        now = self.now()
        since = condition_since(pod, keys.ACCEPTED_CONDITION, QUOTA_EXCEEDED)
        if (
            await self.status_writer.set_condition_false(pod, keys.ACCEPTED_CONDITION, QUOTA_EXCEEDED, error.message)
            and since is None
        ):
            self.clients.events.warning(pod.object, QUOTA_EXCEEDED, error.message)
        self.over_quota.setdefault(pod.key)
        delay = min(max(now - (since or now), timedelta(seconds=1)), MAX_QUOTA_BACKOFF)
        return Result(requeue_after=delay.total_seconds())

    def clear_quota_wait(self, pod: VirtualPod) -> None:
        """End the pod's wait for a quota, if it waits for one, and retry the next pod."""
        if pod.key in self.over_quota:
            self.forget(pod)
            self.requeue_next()

    def forget(self, pod: VirtualPod) -> None:
        self.over_quota.pop(pod.key, None)

    def requeue_next(self) -> None:
        """Requeue the pod that has waited longest for a quota, which may have been released."""
        self.rejected.clear()
        for key in self.over_quota:
            self.requeue_pod(key)
            return

    async def wait_for_scheduling(self, pod: VirtualPod, twin: Twin, node: str) -> Result | None:
        """Wait for the physical scheduler to bind the twin; fail the pod after the timeout."""
        condition = unscheduled_condition(twin)
        if condition is None:
            return None
        # The physical clock may be wrong: time counts only since we know of the twin.
        mapped = condition_since(pod, keys.MAPPED_CONDITION, "Mapped") or self.now()
        since = max(
            mapped, parse_time(condition.get("lastTransitionTime") or twin.object["metadata"]["creationTimestamp"])
        )
        due = since + timedelta(seconds=self.config.unschedulable_seconds)
        if self.now() < due:
            return Result(requeue_at=due)
        live = await self.clients.live_twin(pod.key)
        if live is None or version_of(live) != twin.version:
            return Result(requeue_after=CACHE_LAG_SECONDS)
        if condition.get("reason") == GATED:
            await self.fail_pod(pod, node, GATED_BELOW, GATED_MESSAGE)
        else:
            await self.fail_pod(pod, node, "UnschedulableBelow", condition.get("message") or "it was not scheduled")
        return None

    async def fail_pod(self, pod: VirtualPod, node: Placement, reason: str, message: str) -> None:
        """Fail the pod, and record a shortage of the node if the message reports one."""
        if isinstance(node, str) and reports_insufficient_resources(message):
            self.shortages.record(node, pod)
        await self.status_writer.fail_pod(pod, reason, message)


def quota_demand(spec: Object) -> QuotaDemand:
    containers = [each.get("resources") for kind in ("initContainers", "containers") for each in spec.get(kind) or ()]
    scopes = spec.get("priorityClassName"), "activeDeadlineSeconds" in spec, spec.get("affinity")
    return msgspec.json.encode([containers, spec.get("resources"), spec.get("overhead"), scopes])


def unscheduled_condition(twin: Twin) -> Object | None:
    """Return the PodScheduled=False condition of a twin; None if it has a node or no such condition."""
    if twin.object["spec"].get("nodeName"):
        return None
    condition = find_condition(twin.status()["conditions"], "PodScheduled")
    return condition if condition is not None and condition.get("status") == "False" else None


def is_syncer_fault(error: ApiError) -> bool:
    """Return whether an error points to our permissions, our namespace or a webhook instead of the pod."""
    if isinstance(error, NotFound) or error.reason == INTERNAL_ERROR:  # a missing namespace, a failed webhook
        return True
    return is_namespace_terminating(error) or is_create_unauthorized(error)
