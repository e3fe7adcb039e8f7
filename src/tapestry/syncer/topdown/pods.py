"""Virtual pods get twins, and follow them to their end.

    only virtual     Not mapped yet: a twin is made, unless the pod may not or need not run below, or its node's lease
                     does not admit it.
                     Mapped: its twin is lost, as a live read confirms, and the pod has ended with it.
                     Deleting: there is nothing below to wait for, as the API server reported or a live read confirms.
    both             The twin follows what may change of the pod, and its deletion.
    only physical    The pod is gone, as a live read confirms: so goes its twin.

A pod that has ended never runs again, whatever becomes of its twin.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

import msgspec

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.client.options import PatchType
from tapestry.controller import Result
from tapestry.kube.errors import AlreadyExists, ApiError, BadRequest, Forbidden, Invalid, NotFound, ServerError
from tapestry.kube.objects import Object, is_deleting, key_of, name_of, namespace_of, uid_of, value_at
from tapestry.kube.pods import ENDED, is_over
from tapestry.kube.resources import PODS
from tapestry.kube.taints import CORDON
from tapestry.kube.times import parse_time
from tapestry.process.logs import logger
from tapestry.syncer.admission import Reject, Wait
from tapestry.syncer.changes import twin_went
from tapestry.syncer.projections import physical_node_of
from tapestry.syncer.site import LAG, Site
from tapestry.syncer.topdown.admitter import Admitter, with_resources_of
from tapestry.syncer.topdown.companions import Companion, NotYet
from tapestry.syncer.topdown.losses import Losses
from tapestry.syncer.topdown.orphans import Orphans
from tapestry.syncer.topdown.patience import QUOTA_EXCEEDED, Patience
from tapestry.syncer.topdown.priority import PriorityClassGuard, is_missing
from tapestry.syncer.topdown.verdicts import Verdicts, complaints_about, told_since
from tapestry.syncer.topdown.volumes import REFUSED_BY_OWNER
from tapestry.syncer.translate import pod_status, pods
from tapestry.syncer.translate.allowed_metadata import uncopied_keys, uncopied_message
from tapestry.syncer.translate.meta import is_as_applied, virtual_uid
from tapestry.syncer.translate.pod_status import mapped_uid
from tapestry.syncer.translate.pods import HostAlias, is_left_alone
from tapestry.syncer.translate.tolerations import barring

log = logger(__name__)

FRESH = timedelta(seconds=10)
"""A pod younger than this is what the cache says it is; an older one is read again before it is run."""
TAKEN = 60.0
"""Seconds after which a name that somebody else has below is tried again: nobody tells us when it is free."""
UNTOLD = frozenset({"NameTaken", REFUSED_BY_OWNER})
"""Reasons to wait whose end nobody tells us of."""


@dataclass(frozen=True)
class VirtualPods:
    """Keeps one twin for each pod that is bound to a virtual node; keyed by the virtual pod."""

    site: Site
    admitter: Admitter
    companions: Sequence[Companion] = ()
    aliases: Callable[[str], Sequence[HostAlias]] = lambda _: ()
    """The names that pods of a namespace know, beside those of DNS."""
    orphans: Orphans = field(default_factory=Orphans)

    @cached_property
    def verdicts(self) -> Verdicts:
        return Verdicts(self.site)

    @cached_property
    def losses(self) -> Losses:
        return Losses(self.site, self.verdicts)

    @cached_property
    def patience(self) -> Patience:
        return Patience(self.site, self.verdicts, self.admitter.wake)

    @cached_property
    def priority(self) -> PriorityClassGuard:
        return PriorityClassGuard(self.site, self.verdicts, self.admitter.wake)

    def saw(self, old: Object | None, new: Object | None) -> None:
        """A handler of the virtual pods' changes: to see a pod go is a first sighting of its twin as an orphan."""
        pod = new or old
        assert pod is not None
        if new is None or is_over(pod):
            self.losses.forget(pod)
            self.verdicts.saw(pod)
            self.admitter.saw(pod)
            self.patience.forget(pod)
            self.priority.waiting.discard(key_of(pod))
        if new is None and (twin := self.site.own_twin_of(pod)) is not None:
            self.orphans.bereaved(uid_of(twin))

    def saw_below(self, old: Object | None, new: Object | None) -> None:
        """A handler of the physical pods' changes: what is gone is no orphan any more, but may be missed."""
        if twin_went(old, new):
            self.patience.wake_next()
        if old is not None and new is None and "twin" in old:
            self.orphans.forget(uid_of(old))
            self.losses.saw_going(old)

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
        if mapped_uid(pod) or uid_of(pod) in self.losses.missed:
            return await self.losses.settle(pod, binding)
        if is_left_alone(pod, binding) or self.site.is_unbinding:
            return None
        if complaints := complaints_about(pod, binding):
            await self.verdicts.refuse(pod, complaints)
            return None
        if not await self.is_still_waiting(pod):
            return Result(requeue_after=LAG)
        if (wait := await self.priority.hold_back(pod, binding)) is not None:
            return wait
        if (refusal := self.admitter.admit(pod, self.twin_key(pod), node)) is not None:
            return await self.turn_away(pod, refusal)
        return await self.create(pod, binding, node)

    def twin_key(self, pod: Object) -> str:
        return self.site.twin_key(key_of(pod))

    async def turn_away(self, pod: Object, refusal: Wait | Reject) -> Result | None:
        """The lease of its node does not admit the pod."""
        self.patience.passed(pod)
        if isinstance(refusal, Reject):
            await self.verdicts.end(pod, refusal.reason, refusal.message, is_disrupted=refusal.is_disrupted)
            return None
        await self.verdicts.put_off(pod, refusal.reason, refusal.message)
        return Result(requeue_at=refusal.until) if refusal.until is not None else None

    def physical_node(self, pod: Object) -> str | None:
        node = self.site.virtual_nodes.store.get(pod["spec"]["nodeName"])
        return next(iter(physical_node_of(node)), None) if node is not None else None

    async def is_still_waiting(self, pod: Object) -> bool:
        """Whether the pod has neither run nor gone: a cache that lags must not run it twice."""
        age = self.site.now() - parse_time(pod["metadata"]["creationTimestamp"])
        if abs(age) < FRESH and uid_of(pod) not in self.verdicts.ending:
            return True
        live = await self.site.live_pod(key_of(pod))
        if live is None or uid_of(live) != uid_of(pod):
            return False
        return not (is_deleting(live) or is_over(live) or mapped_uid(live))

    async def create(self, pod: Object, binding: Binding, node: str) -> Result | None:
        """Make the twin that was admitted; what was reserved for it is kept as long as there may be one."""
        key, ledger, taints = self.twin_key(pod), self.site.ledger, self.taints_of(node)
        wanted = pods.new_twin(pod, binding, node, self.aliases(namespace_of(pod) or ""), taints)
        try:
            if told_since(pod, keys.ACCEPTED, QUOTA_EXCEEDED) is None:  # else the twin tells
                await self.verdicts.accept(pod)
            if binding.spec.direct_scheduling:
                check_taints(node, taints, wanted["spec"]["tolerations"])
            for companion in self.companions:
                await companion.precede(pod, binding)
            if self.admitter.closure(node) is not None:  # meanwhile
                ledger.release(key)
                return Result(requeue_after=0)
        except NotYet as wait:
            ledger.release(key)
            self.patience.passed(pod)
            await self.verdicts.wait(pod, wait.reason, str(wait))
            seconds = TAKEN if wait.reason in UNTOLD else wait.seconds
            return Result(requeue_after=seconds) if seconds is not None else None
        except ApiError as error:
            ledger.release(key)
            return await self.patience.refused(pod, node, error)
        except BaseException:
            ledger.release(key)
            raise
        return await self.submit(pod, binding, node, wanted)

    async def submit(self, pod: Object, binding: Binding, node: str, wanted: Object) -> Result | None:
        """Create the twin; its reservation ends at once only where it is certain that there is none."""
        key, ledger = self.twin_key(pod), self.site.ledger
        try:
            await self.site.physical.create(PODS, wanted)
        except BaseException as error:
            if isinstance(error, ApiError) and not isinstance(error, AlreadyExists | ServerError):
                ledger.release(key)
            else:
                ledger.written(key, self.site.now())
            if isinstance(error, AlreadyExists):
                return await self.adopt(pod, binding)
            if not isinstance(error, ApiError):
                raise
            if is_missing(error):
                return await self.priority.refused(pod, binding)
            return await self.patience.refused(pod, node, error)
        ledger.written(key, self.site.now())
        self.patience.passed(pod)
        self.priority.found()
        if uncopied := uncopied_keys(pod, binding):
            self.site.manager.events.normal(pod, "MetadataNotCopied", uncopied_message(uncopied))
        return None  # it comes by the watch

    def taints_of(self, node: str) -> list[Object]:
        """The taints of a physical node."""
        found: list[Object] = value_at(self.site.physical_nodes.store.get(node), "spec", "taints", default=[])
        return found

    async def adopt(self, pod: Object, binding: Binding) -> Result | None:
        """The name is taken: by this pod's twin that the cache has yet to see, by a namesake's, or by a stranger."""
        held = await self.site.live_twin(key_of(pod))
        if held is None or (binding.owns(held) and virtual_uid(held) == uid_of(pod)):
            return Result(requeue_after=LAG)
        if binding.owns(held):
            await self.remove_stale(pod, held)
            return Result(requeue_after=LAG)
        self.site.ledger.release(key_of(held))
        message = f"{namespace_of(held)}/{name_of(held)} below is not ours; delete it there and the pod can run"
        await self.verdicts.wait(pod, "NameTaken", message)
        return Result(requeue_after=TAKEN)

    async def finish(self, pod: Object, binding: Binding) -> Result | None:
        """The pod is to go; once nothing of it is left below, it goes."""
        held = None if self.losses.is_deleted(pod) else await self.site.live_twin(key_of(pod))
        if held is not None and binding.owns(held) and virtual_uid(held) == uid_of(pod):
            await self.delete_with(pod, held)
            return Result(requeue_after=LAG)
        if pod["metadata"].get("finalizers") and not is_over(pod):  # whoever holds it waits to hear that it has ended
            if not await self.losses.show_end(pod):
                ended = pod_status.ended("Deleted", "it was deleted, and nothing of it runs below")
                await self.verdicts.patch(pod, ended)
        else:
            await self.site.virtual.remove(PODS, pod, grace_seconds=0)
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
            return await self.losses.settle(pod, binding)
        elif not is_deleting(twin) and (node := self.physical_node(pod)) is not None:
            self.patience.passed(pod)
            again = await self.follow(pod, twin, binding, node)
            wait = await self.patience.wait_for_place(pod, twin, node)
            return wait or (Result(requeue_at=again) if again is not None else None)
        return None

    async def follow(self, pod: Object, twin: Object, binding: Binding, node: str) -> datetime | None:
        """Have the twin show what changed of the pod; when to look again at a resize that waits."""
        pending = None
        wanted = pods.twin(pod, binding, node)  # host aliases do not change
        added = pods.ephemeral_patch(twin, pod, binding)
        if not is_as_applied(twin, wanted) and pods.resize_patch(twin, wanted) is not None:
            if (pending := self.admitter.resize(pod, twin, node)) is not None:
                wanted = pods.twin(with_resources_of(twin, pod), binding, node)
        else:
            self.admitter.resized(pod)
        again = pending.until if pending is not None else None
        if is_as_applied(twin, wanted) and added is None:
            await self.verdicts.accept(pod)
            return again
        try:
            if complaints := complaints_about(pod, binding):
                await self.verdicts.object_to(pod, complaints)
                return again
            await self.verdicts.accept(pod)
            await self.change_all(twin, wanted, added)
        except NotFound:  # its going wakes us
            return None
        except (Forbidden, Invalid, BadRequest) as error:
            self.site.manager.events.warning(pod, "RefusedBelow", error.message)
            raise
        finally:
            self.site.ledger.written(key_of(twin), self.site.now())
        return again

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

    async def delete_with(self, pod: Object, twin: Object) -> None:
        """The pod's grace is its twin's; a second deletion that is more urgent is passed on, too.

        Not so one by force: whatever becomes of the record above, below it is for a kubelet to say that a pod is gone.
        """
        grace = pod["metadata"].get("deletionGracePeriodSeconds") or None
        if is_deleting(twin) and (grace is None or grace >= twin["metadata"].get("deletionGracePeriodSeconds", 0)):
            return
        await self.site.physical.remove(PODS, twin, grace_seconds=grace)

    async def end_twin(self, twin: Object) -> None:
        """The pod has ended; a twin that has not must not go on."""
        status: Object = msgspec.json.decode(twin["twin"])
        if not is_deleting(twin) and status["phase"] not in ENDED:
            await self.site.physical.remove(PODS, twin)

    async def remove_stale(self, pod: Object, twin: Object) -> None:
        """A twin of an earlier pod of that name goes before this pod gets its own; its end wakes us."""
        if is_deleting(twin):
            return
        live = await self.site.live_pod(key_of(pod))
        if live is None or uid_of(live) != virtual_uid(twin):  # else it is our cache that is behind
            await self.site.physical.remove(PODS, twin)

    # -- only physical

    async def only_physical(self, key: str, twin: Object) -> Result | None:
        if is_deleting(twin):
            return None
        live = await self.site.live_pod(key)
        if live is not None and uid_of(live) == virtual_uid(twin):
            return Result(requeue_after=LAG)
        if (wait := self.orphans.sighted(uid_of(twin), self.site.now())) is not None:
            return Result(requeue_at=wait)
        log.info("the pod of a twin is gone", pod=key, twin=name_of(twin))
        await self.site.physical.remove(PODS, twin)
        return None


def check_taints(node: str, taints: Sequence[Object], tolerations: Sequence[Object]) -> None:
    """Where no scheduler looks, the owner's taints are for us to respect: a kubelet evicts, or lets the pod in."""
    if found := barring((each for each in taints if each["key"] != CORDON["key"]), tolerations):
        taint = f"{found[0]['key']}:{found[0]['effect']}"
        raise NotYet("Tainted", f"the node {node} has the taint {taint}, which the pod does not tolerate")
