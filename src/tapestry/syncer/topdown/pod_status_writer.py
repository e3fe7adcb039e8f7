"""What the syncer itself says of pods: that one waits, and for what; that it is not accepted; that it has failed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.client.options import PatchType
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, controller_of, uid_of
from tapestry.kube.resources import PODS
from tapestry.kube.times import parse_time
from tapestry.syncer import metrics
from tapestry.syncer.context import SyncContext
from tapestry.syncer.translate import pod_status
from tapestry.syncer.translate.pods import untranslatable_fields
from tapestry.syncer.translate.security import security_violations

MAX_ERRORS = 5


@dataclass(frozen=True)
class PodStatusWriter:
    """Says things of virtual pods, once each; every pod is given as its cache has it."""

    context: SyncContext
    failing: set[str] = field(default_factory=set)
    """UIDs of pods that were made to fail, as far as the cache has yet to show it: such a pod is read live before it
    gets a twin."""

    def forget(self, pod: Object) -> None:
        """The cache shows that the pod has ended, or it is gone."""
        self.failing.discard(uid_of(pod))

    async def set_unmapped(self, pod: Object, reason: str, message: str) -> None:
        """The pod has no twin yet."""
        await self.set_condition_false(pod, keys.MAPPED_CONDITION, reason, message)

    async def reject(self, pod: Object, errors: Sequence[str]) -> None:
        """The pod is not run.  A Job's has failed, which its limit of failures bounds; others may be mended."""
        owner = controller_of(pod)
        if owner is not None and owner["kind"] == "Job":
            await self.fail_pod(pod, "PodSecurity", "; ".join(errors[:MAX_ERRORS]))
        else:
            await self.set_rejected(pod, errors)

    async def set_rejected(self, pod: Object, errors: Sequence[str]) -> None:
        """The pod, or a change of it, does not go down."""
        message = "; ".join(errors[:MAX_ERRORS])
        first = condition_since(pod, keys.ACCEPTED_CONDITION, "PodSecurity") is None
        if await self.set_condition_false(pod, keys.ACCEPTED_CONDITION, "PodSecurity", message):
            self.context.manager.events.warning(pod, "PodSecurity", message)
            if first and pod_status.mapped_uid(pod) is None:
                self.count(metrics.REFUSED, "PodSecurity")

    async def clear_rejection(self, pod: Object) -> None:
        """Take back what was said against the pod, if anything was."""
        if find_condition(pod["status"]["conditions"], keys.ACCEPTED_CONDITION) is not None:
            gone = {"type": keys.ACCEPTED_CONDITION, "$patch": "delete"}
            await self.patch(pod, {"status": {"conditions": [gone]}})

    async def set_deferred(self, pod: Object, reason: str, message: str) -> None:
        """The pod may run, but not now: it says why it waits."""
        if await self.set_condition_false(pod, keys.ACCEPTED_CONDITION, reason, message):
            self.context.manager.events.warning(pod, reason, message)

    async def fail_pod(self, pod: Object, reason: str, message: str, *, is_disrupted: bool = False) -> None:
        """The pod has failed, for good."""
        self.failing.add(uid_of(pod))
        await self.patch(
            pod, pod_status.failed_status_patch(reason, message, self.context.now() if is_disrupted else None)
        )
        self.context.manager.events.warning(pod, reason, message)
        self.count(metrics.FAILED, reason)

    def count(self, outcome: str, reason: str) -> None:
        metrics.POD_OUTCOMES.labels(self.context.binding_name, outcome, reason).inc()

    async def set_condition_false(self, pod: Object, type: str, reason: str, message: str) -> bool:
        """Set a condition to False, since when the same was said first; whether that was news."""
        patch = pod_status.false_condition_patch(
            type, reason, message, condition_since(pod, type, reason) or self.context.now()
        )
        [said] = patch["status"]["conditions"]
        if find_condition(pod["status"]["conditions"], type) == said:
            return False
        await self.patch(pod, patch)
        return True

    async def patch(self, pod: Object, patch: Object) -> None:
        """Change the pod's status, if the pod is still there; Conflict where it is not as it was."""
        try:
            await self.context.virtual_client.patch(PODS, pod, patch, type=PatchType.STRATEGIC, subresource="status")
        except NotFound:
            return


def rejection_errors(pod: Object, binding: Binding) -> list[str]:
    """Why the pod may not run below."""
    return [*map(str, security_violations(pod, binding.spec.pod_security)), *untranslatable_fields(pod, binding)]


def condition_since(pod: Object, type: str, reason: str) -> datetime | None:
    """Since when a condition of the pod gives that reason."""
    said = find_condition(pod["status"]["conditions"], type)
    return parse_time(said["lastTransitionTime"]) if said is not None and said.get("reason") == reason else None
