"""Virtual pods get twins, and follow them to their end.

    only virtual     Not mapped yet: a twin is made, unless the pod may not or need not run below.
                     Mapped: its twin is lost, as a live read confirms, and the pod has ended with it.
                     Deleting: there is nothing below to wait for, as a live read confirms.
    both             The twin follows what may change of the pod, and its deletion.
    only physical    The pod is gone, as a live read confirms: so goes its twin.

A pod that has ended never runs again, whatever becomes of its twin.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Protocol

import msgspec

from tapestry.apis import keys
from tapestry.apis.belongings import grace_of
from tapestry.apis.clusterbindings import Binding
from tapestry.client.client import PatchType
from tapestry.controller import Result
from tapestry.kube.conditions import find
from tapestry.kube.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
)
from tapestry.kube.objects import (
    Object,
    is_deleting,
    key_of,
    name_of,
    namespace_of,
    uid_of,
    value_at,
    version_of,
)
from tapestry.kube.resources import PODS
from tapestry.kube.times import parse_time
from tapestry.process.logs import logger
from tapestry.syncer.projections import physical_node_of
from tapestry.syncer.site import LAG, Site
from tapestry.syncer.topdown.orphans import Orphans
from tapestry.syncer.topdown.verdicts import Verdicts, complaints_about, told_since
from tapestry.syncer.translate import pod_status, pods
from tapestry.syncer.translate.meta import is_as_applied, virtual_key, virtual_uid
from tapestry.syncer.translate.pod_status import is_over, mapped_uid
from tapestry.syncer.translate.pods import HostAlias, is_left_alone

log = logger(__name__)

FRESH = timedelta(seconds=10)
"""A pod younger than this is what the cache says it is; an older one is read again before it is run."""
TAKEN = 60.0
"""Seconds after which a name that somebody else has below is tried again: nobody tells us when it is free."""
LATER = (Unauthorized, Conflict, TooManyRequests, ServerError)
"""Answers of an API server that say nothing about the pod."""


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
    orphans: Orphans = field(default_factory=Orphans)
    last_seen: dict[str, Object] = field(default_factory=dict)
    """Twins that went before their pods had ended, by the pods' UIDs: how it came to that may be told by them alone."""

    @cached_property
    def verdicts(self) -> Verdicts:
        return Verdicts(self.site)

    def saw(self, old: Object | None, new: Object | None) -> None:
        """A handler of the virtual pods' changes: to see a pod go is a first sighting of its twin as an orphan."""
        pod = new or old
        assert pod is not None
        if new is None or is_over(pod):
            self.last_seen.pop(uid_of(pod), None)
        if new is None and (twin := self.site.twin_of(key_of(pod))) and virtual_uid(twin) == uid_of(pod):
            self.orphans.bereaved(uid_of(twin))

    def saw_below(self, old: Object | None, new: Object | None) -> None:
        """A handler of the physical pods' changes: what is gone is no orphan any more, but may be missed."""
        if old is None or new is not None or "twin" not in old:
            return
        self.orphans.forget(uid_of(old))
        for pod in map(self.site.virtual_pods.store.get, virtual_key(old)):
            if pod is not None and uid_of(pod) == virtual_uid(old) and not is_over(pod):
                self.last_seen[uid_of(pod)] = old

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
        if is_over(pod):
            return None
        if mapped_uid(pod) or uid_of(pod) in self.last_seen:
            return await self.lost(pod, binding)
        if is_left_alone(pod, binding) or self.site.is_unbinding:
            return None
        if complaints := complaints_about(pod, binding):
            await self.verdicts.refuse(pod, complaints)
            return None
        await self.verdicts.accept(pod)
        if not await self.is_still_waiting(pod):
            return Result(requeue_after=LAG)
        return await self.create(pod, binding, node)

    def physical_node(self, pod: Object) -> str | None:
        node = self.site.virtual_nodes.store.get(pod["spec"]["nodeName"])
        return next(iter(physical_node_of(node)), None) if node is not None else None

    async def is_still_waiting(self, pod: Object) -> bool:
        """Whether the pod has neither run nor gone: a cache that lags must not run it twice."""
        age = self.site.now() - parse_time(pod["metadata"]["creationTimestamp"])
        if abs(age) < FRESH:
            return True
        live = await self.live_pod(key_of(pod))
        if live is None or uid_of(live) != uid_of(pod):
            return False
        return not (is_deleting(live) or is_over(live) or mapped_uid(live))

    async def create(self, pod: Object, binding: Binding, node: str) -> Result | None:
        wanted = pods.twin(pod, binding, node, self.aliases(namespace_of(pod) or ""))
        try:
            self.check_cordon(node)
            for companion in self.companions:
                await companion.precede(pod, binding)
            await self.site.physical.create(PODS, wanted)
        except NotYet as wait:
            await self.verdicts.wait(pod, wait.reason, str(wait))
            return Result(requeue_after=TAKEN) if wait.reason == "NameTaken" else None
        except AlreadyExists:
            return await self.adopt(pod, wanted, binding)
        except ApiError as error:
            return await self.refused_below(pod, error, node)
        self.site.trouble.priority_class = None
        return None  # it comes by the watch

    def check_cordon(self, name: str) -> None:
        """Nothing new goes to a node that its owner cordoned, whatever a pod tolerates and whoever would place it."""
        node = self.site.physical_nodes.store.get(name)
        if value_at(node, "spec", "unschedulable"):
            raise NotYet("Cordoned", f"the owner has cordoned the node {name}; the pod runs there once that is undone")

    async def adopt(self, pod: Object, wanted: Object, binding: Binding) -> Result | None:
        """The name is taken: by this pod's twin that the cache has yet to see, by a namesake's, or by a stranger."""
        held = await self.live_twin(wanted)
        if held is None or (binding.owns(held) and virtual_uid(held) == uid_of(pod)):
            return Result(requeue_after=LAG)
        if binding.owns(held):
            await self.remove_stale(pod, held)
            return Result(requeue_after=LAG)
        message = f"{namespace_of(held)}/{name_of(held)} below is not ours; delete it there and the pod can run"
        await self.verdicts.wait(pod, "NameTaken", message)
        return Result(requeue_after=TAKEN)

    async def refused_below(self, pod: Object, error: ApiError, node: str) -> Result | None:
        """The physical API server does not want it: perhaps later, as long as our patience lasts."""
        if is_about_us(error):
            self.site.note_trouble(error)
            await self.verdicts.wait(pod, "NotPermitted", error.message)
            raise error
        if isinstance(error, LATER):
            raise error
        now, patience = self.site.now(), timedelta(seconds=self.site.config.refusal_seconds)
        since = told_since(pod, keys.MAPPED, "RefusedBelow") or now
        if now - since >= patience:
            await self.end_for_want_of_room(pod, node, "RefusedBelow", error.message)
            return None
        await self.verdicts.wait(pod, "RefusedBelow", error.message)
        waited = now - since
        return Result(requeue_after=min(max(waited, timedelta(seconds=1)), patience - waited).total_seconds())

    async def lost(self, pod: Object, binding: Binding) -> Result | None:
        """The pod had a twin; where a live read does not find it either, the pod has ended with it."""
        uid = mapped_uid(pod) or uid_of(self.last_seen[uid_of(pod)])
        held = await self.live_twin(self.site.below(key_of(pod)))
        if held is not None and uid_of(held) == uid and binding.owns(held):
            return Result(requeue_after=LAG)
        if mark := self.site.reclaimed.get(uid):
            await self.reclaim(pod, uid, mark)
            return None
        if await self.show_end(pod):
            return None
        conditions = [*self.last_status(pod)["conditions"], *pod["status"]["conditions"]]
        reason = pod_status.reason_of_loss({"status": {"conditions": conditions}})
        what = "is gone" if held is None else "is another one now" if uid_of(held) != uid else "is no longer ours"
        await self.verdicts.end(pod, reason, f"the pod {key_of(self.site.below(key_of(pod)))} below {what}")
        return None

    async def reclaim(self, pod: Object, uid: str, mark: Object) -> None:
        """Let the pod go as it would have gone, had the virtual cluster been there when its twin was taken back."""
        try:
            marked = await self.site.virtual.patch(PODS, pod, mark, type=PatchType.STRATEGIC, subresource="status")
            await self.site.virtual.delete(PODS, marked, grace_seconds=grace_of(pod))
        except NotFound:
            return
        del self.site.reclaimed[uid]

    async def show_end(self, pod: Object) -> bool:
        """Show how the twin ended, where that was seen before it went; whether it was."""
        status = self.last_status(pod)
        if status["phase"] not in pod_status.TERMINAL:
            return False
        patch = pod_status.to_virtual(pod, self.last_seen[uid_of(pod)], status, self.site.now())
        if patch is not None:
            await self.verdicts.patch(pod, patch)
        return True

    def last_status(self, pod: Object) -> Object:
        """What a twin that is gone said last, as far as anybody saw it."""
        last = self.last_seen.get(uid_of(pod))
        if last is None or mapped_uid(pod) not in (None, uid_of(last)):
            return {"phase": "Pending", "conditions": []}
        status: Object = msgspec.json.decode(last["twin"])
        return status

    async def finish(self, pod: Object, binding: Binding) -> Result | None:
        """The pod is to go; once nothing of it is left below, it goes."""
        held = await self.live_twin(self.site.below(key_of(pod)))
        if held is not None and binding.owns(held) and virtual_uid(held) == uid_of(pod):
            await self.delete_with(pod, held)
            return Result(requeue_after=LAG)
        if pod["metadata"].get("finalizers") and not is_over(pod):  # whoever holds it waits to hear that it has ended
            if not await self.show_end(pod):
                ended = pod_status.ended("Deleted", "it was deleted, and nothing of it runs below")
                await self.verdicts.patch(pod, ended)
            return None
        try:
            await self.site.virtual.delete(PODS, pod, grace_seconds=0)
        except NotFound:
            return None
        return None

    # -- both

    async def both(self, pod: Object, twin: Object, binding: Binding) -> Result | None:
        if virtual_uid(twin) != uid_of(pod):
            await self.remove_stale(pod, twin)
        elif is_deleting(pod):
            await self.delete_with(pod, twin)
        elif is_over(pod):
            await self.end_twin(twin)
        elif mapped_uid(pod) not in (None, uid_of(twin)):
            return await self.lost(pod, binding)
        elif not is_deleting(twin) and (node := self.physical_node(pod)) is not None:
            await self.follow(pod, twin, binding, node)
            return await self.wait_for_place(pod, twin, node)
        return None

    async def follow(self, pod: Object, twin: Object, binding: Binding, node: str) -> None:
        """Have the twin show what changed of the pod."""
        wanted = pods.twin(pod, binding, node, self.aliases(namespace_of(pod) or ""))
        added = pods.ephemeral_patch(twin, pod, binding)
        if is_as_applied(twin, wanted) and added is None:
            await self.verdicts.accept(pod)
            return
        if complaints := complaints_about(pod, binding):
            await self.verdicts.object_to(pod, complaints)
            return
        await self.verdicts.accept(pod)
        try:
            await self.change_all(twin, wanted, added)
        except NotFound:  # its going wakes us
            return
        except (Forbidden, Invalid, BadRequest) as error:
            self.site.manager.events.warning(pod, "RefusedBelow", error.message)
            raise

    async def change_all(self, twin: Object, wanted: Object, added: Object | None) -> None:
        """The note of what we set is written last: where one of the writes fails, all of them come again."""
        current = twin
        if added is not None:
            current = await self.change(current, added, "ephemeralcontainers")
        if patch := pods.twin_patch(twin, wanted):
            if resized := pods.resize_patch(twin, wanted):
                current = await self.change(current, resized, "resize")
            await self.change(current, patch)

    async def change(self, twin: Object, patch: Object, subresource: str | None = None) -> Object:
        return await self.site.physical.patch(PODS, twin, patch, type=PatchType.STRATEGIC, subresource=subresource)

    async def wait_for_place(self, pod: Object, twin: Object, node: str) -> Result | None:
        """A twin that does not fit where it has to run is given some time; then the pod has failed there."""
        said = unplaced(twin)
        if said is None:
            return None
        # A clock below that goes wrong must not use up the time: none passed before we knew of the twin.
        known = told_since(pod, keys.MAPPED, "Mapped") or self.site.now()
        since = max(known, parse_time(said.get("lastTransitionTime") or twin["metadata"]["creationTimestamp"]))
        due = since + timedelta(seconds=self.site.config.unschedulable_seconds)
        if self.site.now() < due:
            return Result(requeue_at=due)
        live = await self.live_twin(twin)
        if live is None or version_of(live) != version_of(twin):
            return Result(requeue_after=LAG)
        message = said.get("message") or "it was not scheduled below"
        await self.end_for_want_of_room(pod, node, "UnschedulableBelow", message)
        return None

    async def end_for_want_of_room(self, pod: Object, node: str, reason: str, message: str) -> None:
        """The pod has failed; where there was no room for it, less is lent for a while.

        A cause in the pod itself says nothing about the node.
        """
        if any(sign in message for sign in ("Insufficient", "exceeded quota", "Too many pods")):
            self.site.note_shortage(node, pod)
        await self.verdicts.end(pod, reason, message)

    async def delete_with(self, pod: Object, twin: Object) -> None:
        """The pod's grace is its twin's; a second deletion that is more urgent is passed on, too.

        Not so one by force: whatever becomes of the record above, below it is for a kubelet to say that a pod is gone.
        """
        grace = pod["metadata"].get("deletionGracePeriodSeconds") or None
        if is_deleting(twin) and (grace is None or grace >= twin["metadata"].get("deletionGracePeriodSeconds", 0)):
            return
        await self.delete_twin(twin, grace)

    async def end_twin(self, twin: Object) -> None:
        """The pod has ended; a twin that has not must not go on."""
        status: Object = msgspec.json.decode(twin["twin"])
        if not is_deleting(twin) and status["phase"] not in pod_status.TERMINAL:
            await self.delete_twin(twin)

    async def remove_stale(self, pod: Object, twin: Object) -> None:
        """A twin of an earlier pod of that name goes before this pod gets its own; its end wakes us."""
        if is_deleting(twin):
            return
        live = await self.live_pod(key_of(pod))
        if live is None or uid_of(live) != virtual_uid(twin):  # else it is our cache that is behind
            await self.delete_twin(twin)

    # -- only physical

    async def only_physical(self, key: str, twin: Object) -> Result | None:
        if is_deleting(twin):
            return None
        live = await self.live_pod(key)
        if live is not None and uid_of(live) == virtual_uid(twin):
            return Result(requeue_after=LAG)
        if (wait := self.orphans.sighted(uid_of(twin), self.site.now())) is not None:
            return Result(requeue_at=wait)
        log.info("the pod of a twin is gone", pod=key, twin=name_of(twin))
        await self.delete_twin(twin)
        return None

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


def unplaced(twin: Object) -> Object | None:
    """What the physical scheduler says of a twin that it finds no place for; None where it has one, or says nothing."""
    if value_at(twin, "spec", "nodeName"):
        return None
    status: Object = msgspec.json.decode(twin["twin"])
    said = find(status["conditions"], "PodScheduled")
    return said if said is not None and said.get("status") == "False" else None


def is_about_us(error: ApiError) -> bool:
    """Whether it is our rights, our priority class, our namespace or a webhook that fails, and not the pod."""
    signs = (
        *("cannot create resource", "no PriorityClass with name", "because it is being terminated"),
        "failed calling webhook",
    )
    return isinstance(error, NotFound) or any(sign in error.message for sign in signs)
