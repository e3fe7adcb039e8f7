"""Writer of statuses that the syncer itself decides: a pod waits, is rejected, or has failed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.client.options import PatchType
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, controller_of
from tapestry.kube.resources import PODS
from tapestry.kube.times import parse_time
from tapestry.syncer import metrics
from tapestry.syncer.clients import Clients
from tapestry.syncer.identity import Identity
from tapestry.syncer.translate import pod_status
from tapestry.syncer.translate.pods import untranslatable_fields
from tapestry.syncer.translate.security import security_violations
from tapestry.syncer.views import VirtualPod

MAX_ERRORS = 5


@dataclass(frozen=True)
class PodStatusWriter:
    """Write conditions and phases of virtual pods, each once; pods are passed as cached."""

    identity: Identity
    clients: Clients
    now: Callable[[], datetime]
    failing: set[str] = field(default_factory=set)
    """UIDs of failed pods whose failure the cache does not show yet; they are read live before they get a twin."""

    def forget(self, pod: VirtualPod) -> None:
        self.failing.discard(pod.uid)

    async def set_unmapped(self, pod: VirtualPod, reason: str, message: str) -> None:
        await self.set_condition_false(pod, keys.MAPPED_CONDITION, reason, message)

    async def reject(self, pod: VirtualPod, errors: Sequence[str]) -> None:
        """Reject the pod. A pod of a Job fails, limited by the Job's backoff; others may be corrected."""
        owner = controller_of(pod.object)
        if owner is not None and owner["kind"] == "Job":
            await self.fail_pod(pod, "PodSecurity", "; ".join(errors[:MAX_ERRORS]))
        else:
            await self.set_rejected(pod, errors)

    async def set_rejected(self, pod: VirtualPod, errors: Sequence[str]) -> None:
        """Set Accepted=False: the pod, or a change of it, is not applied."""
        message = "; ".join(errors[:MAX_ERRORS])
        first = condition_since(pod, keys.ACCEPTED_CONDITION, "PodSecurity") is None
        if await self.set_condition_false(pod, keys.ACCEPTED_CONDITION, "PodSecurity", message):
            self.clients.events.warning(pod.object, "PodSecurity", message)
            if first and pod_status.mapped_uid(pod.object) is None:
                self.count(metrics.REFUSED, "PodSecurity")

    async def clear_rejection(self, pod: VirtualPod) -> None:
        await self.remove_condition(pod, keys.ACCEPTED_CONDITION)

    async def remove_condition(self, pod: VirtualPod, type: str) -> None:
        """Remove a condition if there is one."""
        if find_condition(pod.object["status"]["conditions"], type) is not None:
            await self.patch(pod, {"status": {"conditions": [{"type": type, "$patch": "delete"}]}})

    async def set_deferred(self, pod: VirtualPod, reason: str, message: str) -> None:
        """Set Accepted=False: the pod may run later."""
        if await self.set_condition_false(pod, keys.ACCEPTED_CONDITION, reason, message):
            self.clients.events.warning(pod.object, reason, message)

    async def fail_pod(self, pod: VirtualPod, reason: str, message: str, *, is_disrupted: bool = False) -> None:
        self.failing.add(pod.uid)
        await self.patch(pod, pod_status.failed_status_patch(reason, message, self.now() if is_disrupted else None))
        self.clients.events.warning(pod.object, reason, message)
        self.count(metrics.FAILED, reason)

    def count(self, outcome: str, reason: str) -> None:
        metrics.POD_OUTCOMES.labels(self.identity.binding_name, outcome, reason).inc()

    async def set_condition_false(self, pod: VirtualPod, type: str, reason: str, message: str) -> bool:
        """Set a condition to False, keeping the time of an unchanged reason; return whether it changed."""
        patch = pod_status.false_condition_patch(
            type, reason, message, condition_since(pod, type, reason) or self.now()
        )
        [condition] = patch["status"]["conditions"]
        if find_condition(pod.object["status"]["conditions"], type) == condition:
            return False
        await self.patch(pod, patch)
        return True

    async def patch(self, pod: VirtualPod, patch: Object) -> None:
        """Patch the pod's status if the pod exists. Raises Conflict if it has changed."""
        try:
            await self.clients.virtual.patch(PODS, pod.object, patch, type=PatchType.STRATEGIC, subresource="status")
        except NotFound:
            return


def rejection_errors(pod: VirtualPod, binding: Binding) -> list[str]:
    """Return why the pod may not run in the physical cluster."""
    obj = pod.object
    return [*map(str, security_violations(obj, binding.spec.pod_security)), *untranslatable_fields(obj, binding)]


def condition_since(pod: VirtualPod, type: str, reason: str) -> datetime | None:
    """Return since when a condition of the pod has that reason."""
    condition = find_condition(pod.object["status"]["conditions"], type)
    return (
        parse_time(condition["lastTransitionTime"])
        if condition is not None and condition.get("reason") == reason
        else None
    )
