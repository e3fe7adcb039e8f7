"""Virtual pods get twins, and follow them to their end.

    only virtual     Not mapped yet: a twin is made, unless the pod may not or need not run below.
                     Mapped: its twin is lost, as a live read confirms, and the pod has failed with it.
                     Deleting: there is nothing below to wait for, as a live read confirms.
    both             The twin follows what may change of the pod, and its deletion.
    only physical    The pod is gone, as a live read confirms: so goes its twin.

A pod that has ended never runs again, whatever becomes of its twin.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.client.client import PatchType
from tapestry.controller import Result
from tapestry.kube.conditions import find
from tapestry.kube.errors import AlreadyExists, ApiError, BadRequest, Forbidden, Invalid, NotFound
from tapestry.kube.objects import (
    Object,
    controller_of,
    is_deleting,
    key_of,
    name_of,
    namespace_of,
    uid_of,
    value_at,
)
from tapestry.kube.resources import PODS
from tapestry.kube.times import parse_time
from tapestry.process.logs import logger
from tapestry.syncer.projections import physical_node_of
from tapestry.syncer.requests import effective_requests
from tapestry.syncer.site import Site
from tapestry.syncer.translate import pod_status, pods
from tapestry.syncer.translate.meta import is_as_applied, virtual_uid
from tapestry.syncer.translate.pod_status import is_over, mapped_uid
from tapestry.syncer.translate.pods import HostAlias, is_left_alone, untranslatable
from tapestry.syncer.translate.security import refusals

log = logger(__name__)

FRESH = timedelta(seconds=10)
"""A pod younger than this is what the cache says it is; an older one is read again before it is run."""
LAG = 1.0
"""Seconds that a cache gets to see what a live read has seen."""
SECOND_SIGHTING = timedelta(seconds=10)
"""After how long an orphan that nobody saw becoming one counts as one."""


class NotYet(Exception):
    """Something that the pod needs below is not there; a change of it brings the pod back."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Companion(Protocol):
    """Something that goes down ahead of a pod: what it mounts, its tokens, its claims."""

    async def precede(self, pod: Object, binding: Binding) -> None:
        """See that it is there below, or raise NotYet."""


@dataclass(frozen=True)
class VirtualPods:
    """Keeps one twin for each pod that is bound to a virtual node; keyed by the virtual pod."""

    site: Site
    companions: Sequence[Companion] = ()
    aliases: Callable[[str], Sequence[HostAlias]] = lambda _: ()
    """The names that pods of a namespace know, beside those of DNS."""
    orphans: dict[str, datetime] = field(default_factory=dict)
    """When a twin without a pod was first seen, by its UID."""

    def saw(self, old: Object | None, new: Object | None) -> None:
        """A handler of the virtual pods' changes: to see a pod go is a first sighting of its twin as an orphan."""
        twin = self.site.twin_of(key_of(old)) if old is not None and new is None else None
        if twin is not None:
            self.orphans[uid_of(twin)] = self.site.now() - SECOND_SIGHTING

    def forget(self, old: Object | None, new: Object | None) -> None:
        """A handler of the physical pods' changes: what is gone is no orphan any more."""
        if old is not None and new is None:
            self.orphans.pop(uid_of(old), None)

    async def reconcile(self, key: str) -> Result | None:
        site = self.site
        binding = site.binding()
        if binding is None or not site.is_known:
            return None
        pod, twin = site.virtual_pods.store.get(key), site.twin_of(key)
        if pod is None:
            return await self.only_physical(key, twin) if twin else None
        if twin is None:
            return await self.only_virtual(pod, binding)
        return await self.both(pod, twin, binding)

    # -- only virtual

    async def only_virtual(self, pod: Object, binding: Binding) -> Result | None:
        node = self.physical_node(pod)
        if node is None:  # another binding's, or a node that is gone: its cluster's own controllers see to the pod
            return None
        if is_deleting(pod):
            return await self.finish(pod, binding)
        if is_over(pod) or is_left_alone(pod, binding):
            return None
        if uid := mapped_uid(pod):
            return await self.lost(pod, uid, binding)
        if self.site.is_unbinding:
            return None
        if complaints := self.complaints(pod, binding):
            await self.refuse(pod, complaints)
            return None
        if not await self.is_still_waiting(pod):
            return Result(requeue_after=LAG)
        return await self.create(pod, binding, node)

    def physical_node(self, pod: Object) -> str | None:
        node = self.site.virtual_nodes.store.get(pod["spec"]["nodeName"])
        return next(iter(physical_node_of(node)), None) if node is not None else None

    async def is_still_waiting(self, pod: Object) -> bool:
        """Whether the pod has neither run nor gone: a cache that lags must not run it twice."""
        if self.site.now() - parse_time(pod["metadata"]["creationTimestamp"]) < FRESH:
            return True
        live = await self.live_pod(key_of(pod))
        if live is None or uid_of(live) != uid_of(pod):
            return False
        return not (is_deleting(live) or is_over(live) or mapped_uid(live))

    async def create(self, pod: Object, binding: Binding, node: str) -> Result | None:
        wanted = pods.twin(pod, binding, node, self.aliases(namespace_of(pod) or ""))
        try:
            for companion in self.companions:
                await companion.precede(pod, binding)
            await self.site.physical.create(PODS, wanted)
        except NotYet as wait:
            await self.tell(pod, keys.MAPPED, wait.reason, str(wait))
            return None
        except AlreadyExists:
            return await self.adopt(pod, wanted, binding)
        except (Forbidden, Invalid, BadRequest) as error:
            return await self.refused_below(pod, error, node)
        self.site.trouble.priority_class = None
        return None  # it comes by the watch

    async def adopt(self, pod: Object, wanted: Object, binding: Binding) -> Result | None:
        """The name is taken: by this pod's twin that the cache has yet to see, by a namesake's, or by a stranger."""
        held = await self.live_twin(wanted)
        if held is None or (binding.owns(held) and virtual_uid(held) == uid_of(pod)):
            return Result(requeue_after=LAG)
        if binding.owns(held):
            return await self.remove_stale(pod, held)
        message = f"{namespace_of(held)}/{name_of(held)} below is not ours; delete it there and the pod can run"
        await self.tell(pod, keys.MAPPED, "NameTaken", message)
        return Result(requeue_after=60)

    async def refused_below(self, pod: Object, error: ApiError, node: str) -> Result | None:
        """The physical API server does not want it: perhaps later, as long as our patience lasts."""
        if is_about_us(error):
            self.site.note_trouble(error)
            await self.tell(pod, keys.MAPPED, "NotPermitted", error.message)
            raise error
        now, patience = self.site.now(), timedelta(seconds=self.site.config.refusal_seconds)
        since = self.told_since(pod, "RefusedBelow") or now
        if now - since >= patience:
            self.note_shortage(pod, node, error.message)
            await self.end(pod, "RefusedBelow", error.message)
            return None
        await self.tell(pod, keys.MAPPED, "RefusedBelow", error.message)
        waited = now - since
        return Result(requeue_after=min(max(waited, timedelta(seconds=1)), patience - waited).total_seconds())

    async def lost(self, pod: Object, uid: str, binding: Binding) -> Result | None:
        """The pod had a twin; where a live read does not find it either, the pod has failed."""
        held = await self.live_twin(self.site.below(key_of(pod)))
        if held is not None and uid_of(held) == uid and binding.owns(held):
            return Result(requeue_after=LAG)
        reason = "Reclaimed" if uid in self.site.reclaimed else pod_status.reason_of_loss(pod)
        what = "is gone" if held is None else "is another one now" if uid_of(held) != uid else "is no longer ours"
        await self.end(pod, reason, f"the pod {key_of(self.site.below(key_of(pod)))} below {what}")
        return None

    async def finish(self, pod: Object, binding: Binding) -> Result | None:
        """The pod is to go; once nothing of it is left below, it goes."""
        held = await self.live_twin(self.site.below(key_of(pod)))
        if held is not None and binding.owns(held) and virtual_uid(held) == uid_of(pod):
            await self.delete_twin(held, pod["metadata"].get("deletionGracePeriodSeconds"))
            return Result(requeue_after=LAG)
        try:
            await self.site.virtual.delete(PODS, pod, grace_seconds=0)
        except NotFound:
            return None
        return None

    # -- both

    async def both(self, pod: Object, twin: Object, binding: Binding) -> Result | None:
        if virtual_uid(twin) != uid_of(pod):
            return await self.remove_stale(pod, twin)
        if is_deleting(pod):
            await self.delete_with(pod, twin)
            return None
        if is_over(pod):
            await self.end_twin(twin)
            return None
        if (uid := mapped_uid(pod)) not in (None, uid_of(twin)):
            return await self.lost(pod, uid or "", binding)
        if is_deleting(twin):
            return None
        status: Object = msgspec.json.decode(twin["twin"])
        if (unplaced := unplaced_since(twin, status)) is not None:
            return await self.wait_for_place(pod, unplaced, status)
        await self.follow(pod, twin, binding)
        return None

    async def follow(self, pod: Object, twin: Object, binding: Binding) -> None:
        """Have the twin show what changed of the pod; the note of it is written last, so that nothing is left out."""
        node = self.physical_node(pod)
        if node is None:
            return
        wanted = pods.twin(pod, binding, node, self.aliases(namespace_of(pod) or ""))
        added = pods.ephemeral_patch(twin, pod, binding)
        if is_as_applied(twin, wanted) and added is None:
            return
        if complaints := self.complaints(pod, binding):
            await self.refuse(pod, complaints)
            return
        current = twin
        if added is not None:
            current = await self.change(current, added, "ephemeralcontainers")
        if patch := pods.twin_patch(twin, wanted):
            if resized := pods.resize_patch(twin, wanted):
                current = await self.change(current, resized, "resize")
            await self.change(current, patch)

    async def change(self, twin: Object, patch: Object, subresource: str | None = None) -> Object:
        return await self.site.physical.patch(PODS, twin, patch, type=PatchType.STRATEGIC, subresource=subresource)

    async def wait_for_place(self, pod: Object, since: datetime, status: Object) -> Result | None:
        """The twin does not fit where it has to run; after some time the pod has failed there."""
        due = since + timedelta(seconds=self.site.config.unschedulable_seconds)
        if self.site.now() < due:
            return Result(requeue_at=due)
        message = (find(status["conditions"], "PodScheduled") or {}).get("message", "it was not scheduled below")
        if (node := self.physical_node(pod)) is not None:
            self.note_shortage(pod, node, message)
        await self.end(pod, "UnschedulableBelow", message)
        return None

    def note_shortage(self, pod: Object, node: str, message: str) -> None:
        """Lend less for a while where there was no room; a cause in the pod itself says nothing about the node."""
        if "Insufficient" in message or "exceeded quota" in message or "Too many pods" in message:
            self.site.note_shortage(node, effective_requests(pod))

    async def delete_with(self, pod: Object, twin: Object) -> None:
        """The pod's grace is its twin's; a second deletion that is more urgent is passed on, too."""
        grace = pod["metadata"].get("deletionGracePeriodSeconds")
        if is_deleting(twin) and (grace is None or grace >= twin["metadata"].get("deletionGracePeriodSeconds", 0)):
            return
        await self.delete_twin(twin, grace)

    async def end_twin(self, twin: Object) -> None:
        """The pod has ended; a twin that has not must not go on."""
        status: Object = msgspec.json.decode(twin["twin"])
        if not is_deleting(twin) and status["phase"] not in pod_status.TERMINAL:
            await self.delete_twin(twin)

    async def remove_stale(self, pod: Object, twin: Object) -> Result | None:
        """A twin of an earlier pod of that name goes before this pod gets its own."""
        live = await self.live_pod(key_of(pod))
        if live is not None and uid_of(live) == virtual_uid(twin):
            return Result(requeue_after=LAG)  # it is our cache that is behind
        if not is_deleting(twin):
            await self.delete_twin(twin)
        return Result(requeue_after=LAG)

    # -- only physical

    async def only_physical(self, key: str, twin: Object) -> Result | None:
        if is_deleting(twin):
            return None
        live = await self.live_pod(key)
        if live is not None and uid_of(live) == virtual_uid(twin):
            return Result(requeue_after=LAG)
        first = self.orphans.setdefault(uid_of(twin), self.site.now())
        if self.site.now() < first + SECOND_SIGHTING:
            return Result(requeue_at=first + SECOND_SIGHTING)
        log.info("the pod of a twin is gone", pod=key, twin=name_of(twin))
        await self.delete_twin(twin)
        return None

    # -- saying

    def complaints(self, pod: Object, binding: Binding) -> list[str]:
        """Why the pod may not run below."""
        return [*map(str, refusals(pod, binding.spec.pod_security)), *untranslatable(pod)]

    async def refuse(self, pod: Object, complaints: Sequence[str]) -> None:
        """Say why the pod is not run.  A Job's is failed, which its limit of failures bounds; others may be mended."""
        message = "; ".join(complaints[:5])
        owner = controller_of(pod)
        if owner is not None and owner["kind"] == "Job":
            await self.end(pod, "PodSecurity", message)
        elif await self.tell(pod, keys.ACCEPTED, "PodSecurity", message):
            self.site.manager.events.warning(pod, "PodSecurity", message)

    async def tell(self, pod: Object, type: str, reason: str, message: str) -> bool:
        """Say it by a condition that is False; whether that was news."""
        patch = pod_status.told(type, reason, message, self.told_since(pod, reason, type) or self.site.now())
        [said] = patch["status"]["conditions"]
        if find(pod["status"]["conditions"], type) == said:
            return False
        await self.patch_status(pod, patch)
        return True

    def told_since(self, pod: Object, reason: str, type: str = keys.MAPPED) -> datetime | None:
        said = find(pod["status"]["conditions"], type)
        return parse_time(said["lastTransitionTime"]) if said is not None and said["reason"] == reason else None

    async def end(self, pod: Object, reason: str, message: str) -> None:
        """The pod has failed, for good."""
        await self.patch_status(pod, pod_status.ended(reason, message))
        self.site.manager.events.warning(pod, reason, message)

    async def patch_status(self, pod: Object, patch: Object) -> None:
        try:
            await self.site.virtual.patch(PODS, pod, patch, type=PatchType.STRATEGIC, subresource="status")
        except NotFound:
            return

    # -- reading and deleting

    async def live_pod(self, key: str) -> Object | None:
        namespace, name = key.split("/")
        try:
            return await self.site.virtual.get(PODS, name, namespace)
        except NotFound:
            return None

    async def live_twin(self, below: Object) -> Object | None:
        try:
            return await self.site.physical.get(PODS, name_of(below), namespace_of(below))
        except NotFound:
            return None

    async def delete_twin(self, twin: Object, grace_seconds: int | None = None) -> None:
        """Delete a twin that is provably ours, and no other."""
        try:
            await self.site.physical.delete(PODS, twin, grace_seconds=grace_seconds)
        except NotFound:
            return


def unplaced_since(twin: Object, status: Object) -> datetime | None:
    """Since when the physical scheduler finds no place for a twin; None where it has one, or was not looked at."""
    said = find(status["conditions"], "PodScheduled")
    if value_at(twin, "spec", "nodeName") or said is None or said.get("status") != "False":
        return None
    return parse_time(said.get("lastTransitionTime") or twin["metadata"]["creationTimestamp"])


def is_about_us(error: ApiError) -> bool:
    """Whether it is our rights, our priority class or our namespace that is refused, and not the pod."""
    signs = ("cannot create resource", "no PriorityClass with name", "because it is being terminated")
    return any(sign in error.message for sign in signs)
