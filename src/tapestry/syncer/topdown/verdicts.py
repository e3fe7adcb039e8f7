"""What the syncer itself says of pods: that one waits, and for what; that it is not accepted; that it has failed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.client.options import PatchType
from tapestry.kube.conditions import find
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, controller_of, uid_of
from tapestry.kube.resources import PODS
from tapestry.kube.times import parse_time
from tapestry.syncer import metrics
from tapestry.syncer.site import Site
from tapestry.syncer.translate import pod_status
from tapestry.syncer.translate.pods import untranslatable
from tapestry.syncer.translate.security import refusals

MOST_COMPLAINTS = 5


@dataclass(frozen=True)
class Verdicts:
    """Says things of virtual pods, once each; every pod is given as its cache has it."""

    site: Site
    ending: set[str] = field(default_factory=set)
    """UIDs of pods that were made to fail, as far as the cache has yet to show it: such a pod is read live before it
    gets a twin."""

    def saw(self, pod: Object) -> None:
        """The cache shows that the pod has ended, or it is gone."""
        self.ending.discard(uid_of(pod))

    async def wait(self, pod: Object, reason: str, message: str) -> None:
        """The pod has no twin yet."""
        await self.deny(pod, keys.MAPPED, reason, message)

    async def refuse(self, pod: Object, complaints: Sequence[str]) -> None:
        """The pod is not run.  A Job's has failed, which its limit of failures bounds; others may be mended."""
        owner = controller_of(pod)
        if owner is not None and owner["kind"] == "Job":
            await self.end(pod, "PodSecurity", "; ".join(complaints[:MOST_COMPLAINTS]))
        else:
            await self.object_to(pod, complaints)

    async def object_to(self, pod: Object, complaints: Sequence[str]) -> None:
        """The pod, or a change of it, does not go down."""
        message = "; ".join(complaints[:MOST_COMPLAINTS])
        first = told_since(pod, keys.ACCEPTED, "PodSecurity") is None
        if await self.deny(pod, keys.ACCEPTED, "PodSecurity", message):
            self.site.manager.events.warning(pod, "PodSecurity", message)
            if first and pod_status.mapped_uid(pod) is None:
                self.count(metrics.REFUSED, "PodSecurity")

    async def accept(self, pod: Object) -> None:
        """Take back what was said against the pod, if anything was."""
        if find(pod["status"]["conditions"], keys.ACCEPTED) is not None:
            gone = {"type": keys.ACCEPTED, "$patch": "delete"}
            await self.patch(pod, {"status": {"conditions": [gone]}})

    async def put_off(self, pod: Object, reason: str, message: str) -> None:
        """The pod may run, but not now: it says why it waits."""
        if await self.deny(pod, keys.ACCEPTED, reason, message):
            self.site.manager.events.warning(pod, reason, message)

    async def end(self, pod: Object, reason: str, message: str, *, is_disrupted: bool = False) -> None:
        """The pod has failed, for good."""
        self.ending.add(uid_of(pod))
        await self.patch(pod, pod_status.ended(reason, message, self.site.now() if is_disrupted else None))
        self.site.manager.events.warning(pod, reason, message)
        self.count(metrics.FAILED, reason)

    def count(self, outcome: str, reason: str) -> None:
        metrics.OUTCOMES.labels(self.site.binding_name, outcome, reason).inc()

    async def deny(self, pod: Object, type: str, reason: str, message: str) -> bool:
        """Set a condition to False, since when the same was said first; whether that was news."""
        patch = pod_status.told(type, reason, message, told_since(pod, type, reason) or self.site.now())
        [said] = patch["status"]["conditions"]
        if find(pod["status"]["conditions"], type) == said:
            return False
        await self.patch(pod, patch)
        return True

    async def patch(self, pod: Object, patch: Object) -> None:
        """Change the pod's status, if the pod is still there; Conflict where it is not as it was."""
        try:
            await self.site.virtual.patch(PODS, pod, patch, type=PatchType.STRATEGIC, subresource="status")
        except NotFound:
            return


def complaints_about(pod: Object, binding: Binding) -> list[str]:
    """Why the pod may not run below."""
    return [*map(str, refusals(pod, binding.spec.pod_security)), *untranslatable(pod, binding)]


def told_since(pod: Object, type: str, reason: str) -> datetime | None:
    """Since when a condition of the pod gives that reason."""
    said = find(pod["status"]["conditions"], type)
    return parse_time(said["lastTransitionTime"]) if said is not None and said.get("reason") == reason else None
