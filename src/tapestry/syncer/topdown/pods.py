"""Reconciler of virtual pods: creates their twins, updates them, and ends both together.

    only virtual     Not mapped yet: create a twin, unless the pod may not or need not run, or its node's lease
                     does not admit it.
                     Mapped: its twin is lost, as a live read confirms; the pod ends with it.
                     Deleting: there is no twin to wait for, as the API server reported or a live read confirms.
    both             Apply changes of the pod, and its deletion, to the twin.
    only physical    The pod is deleted, as a live read confirms: delete its twin.

A pod that has ended never runs again, whatever happens to its twin.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.excluded_pods import is_excluded
from tapestry.client.options import PatchType
from tapestry.controller import Result
from tapestry.kube.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Forbidden,
    Invalid,
    NotFound,
    ServerError,
    is_priority_class_missing,
)
from tapestry.kube.objects import Object, is_deleting, key_of, name_of, namespace_of, uid_of, value_at
from tapestry.kube.pods import CORDON_TAINT, TERMINAL_PHASES, is_pod_terminal
from tapestry.kube.resources import PODS
from tapestry.kube.times import parse_time
from tapestry.process.logs import logger
from tapestry.syncer.admission import Reject, Wait
from tapestry.syncer.cache_transforms import physical_node_of
from tapestry.syncer.caches import CACHE_LAG_SECONDS, Caches
from tapestry.syncer.clients import Clients
from tapestry.syncer.current_binding import CurrentBinding
from tapestry.syncer.grants import GrantWaits
from tapestry.syncer.identity import Identity
from tapestry.syncer.ledger import Ledger
from tapestry.syncer.policies import forced_terms, stored_terms
from tapestry.syncer.predicates import twin_ended
from tapestry.syncer.topdown.admission_timeout import QUOTA_EXCEEDED, AdmissionTimeout
from tapestry.syncer.topdown.admitter import Admitter, with_resources_of
from tapestry.syncer.topdown.dependencies import Dependency, DependencyNotReady, NotGranted
from tapestry.syncer.topdown.host_scheduling import HostScheduling
from tapestry.syncer.topdown.lost_twins import LostTwins
from tapestry.syncer.topdown.orphans import OrphanTracker
from tapestry.syncer.topdown.pod_status_writer import PodStatusWriter, condition_since, rejection_errors
from tapestry.syncer.topdown.priority_class import PriorityClassGuard
from tapestry.syncer.topdown.volumes import REFUSED_BY_OWNER
from tapestry.syncer.translate import pod_status, pods
from tapestry.syncer.translate.allowed_metadata import uncopied_keys, uncopied_message
from tapestry.syncer.translate.host_placement import HostPlacement
from tapestry.syncer.translate.metadata import is_applied, virtual_uid
from tapestry.syncer.translate.pod_status import mapped_uid
from tapestry.syncer.translate.pods import DEFAULT_SETTINGS, HostAlias, Placement, TwinSettings
from tapestry.syncer.translate.tolerations import untolerated_taints
from tapestry.syncer.views import PhysicalPod, Twin, VirtualPod

log = logger(__name__)

FRESH_POD_AGE = timedelta(seconds=10)
"""A pod older than this is read live before its twin is created; a younger one is taken from the cache."""
NAME_TAKEN_RETRY_SECONDS = 60.0
"""Seconds before a name that a foreign object has is tried again: no event signals when it is free."""
POLLED_REASONS = frozenset({"NameTaken", REFUSED_BY_OWNER})
"""Reasons to wait whose end is not signalled by an event."""


@dataclass(frozen=True)
class PodReconciler:
    """Keep one twin for each pod that is bound to a virtual node; keyed by the virtual pod."""

    identity: Identity
    current_binding: CurrentBinding
    caches: Caches
    clients: Clients
    ledger: Ledger
    now: Callable[[], datetime]
    status_writer: PodStatusWriter
    lost_twins: LostTwins
    admission_timeout: AdmissionTimeout
    priority_class_guard: PriorityClassGuard
    admitter: Admitter
    dependencies: Sequence[Dependency]
    host_aliases: Callable[[str], Sequence[HostAlias]]
    """Return the host aliases for pods of a namespace."""
    with_claims: Callable[[Object, VirtualPod, Binding], Object]
    """Return the twin of a pod with the names of its claims; may raise DependencyNotReady."""
    grant_waits: GrantWaits
    """UIDs of the pods that wait for a right."""
    host_scheduling: HostScheduling | None = None
    """Placement of pods without a node; None if the virtual cluster has a scheduler."""
    twin_settings: Callable[[Object], TwinSettings] = lambda _: DEFAULT_SETTINGS
    orphans: OrphanTracker = field(default_factory=OrphanTracker)

    def on_virtual_pod_change(self, old: VirtualPod | None, new: VirtualPod | None) -> None:
        """Handle a change of a virtual pod: its deletion is the first sighting of its twin as an orphan."""
        pod = new or old
        assert pod is not None
        if new is None or is_pod_terminal(pod.object):
            self.lost_twins.forget(pod)
            self.status_writer.forget(pod)
            self.admitter.on_pod_ended(pod)
            self.admission_timeout.forget(pod)
            self.priority_class_guard.waiting.discard(pod.key)
            self.grant_waits.clear(pod.uid)
            if self.host_scheduling is not None:
                self.host_scheduling.forget(pod)
        if new is None and (twin := self.caches.twin_of_pod(pod.object)) is not None:
            self.orphans.mark_pod_deleted(uid_of(twin))

    def on_physical_pod_change(self, old: PhysicalPod | None, new: PhysicalPod | None) -> None:
        """Handle a change of a physical pod: a deleted twin is no orphan, but may be lost."""
        if twin_ended(old, new):
            self.admission_timeout.requeue_next()
        if isinstance(old, Twin) and new is None:
            self.orphans.forget(old.uid)
            self.lost_twins.on_twin_gone(old)

    async def reconcile(self, key: str) -> Result | None:
        binding = self.current_binding.get()
        if binding is None or not self.caches.is_physical_synced:
            return None
        pod, twin = self.caches.virtual_pods.store.get(key), self.caches.twin_of(key)
        if pod is None:
            return await self.only_physical(key, twin.object) if twin else None
        if twin is None:
            return await self.only_virtual(pod, binding)
        return await self.both(pod, twin, binding)

    # -- only virtual

    async def only_virtual(self, pod: VirtualPod, binding: Binding) -> Result | None:
        node = self.physical_node(pod)
        if node is None and not self.is_placed_by_host(pod):
            return None  # the node is deleted or another binding's; other controllers handle the pod
        if is_deleting(pod.object):
            return await self.finish_deletion(pod, binding)
        if is_pod_terminal(pod.object):
            return None
        if mapped_uid(pod.object) or pod.uid in self.lost_twins.missing_twins:
            return await self.lost_twins.resolve_loss(pod, binding)
        if is_excluded(pod.object, binding) or self.current_binding.is_unbinding:
            return None
        if errors := rejection_errors(pod, binding):
            await self.status_writer.reject(pod, errors)
            return None
        if not await self.is_still_unmapped(pod):
            return Result(requeue_after=CACHE_LAG_SECONDS)
        if (wait := await self.priority_class_guard.wait_if_missing(pod, binding)) is not None:
            return wait
        if node is None:
            assert self.host_scheduling is not None  # see above
            placement = self.host_scheduling.placement(pod, binding)
            if isinstance(placement, Wait):
                return await self.handle_rejection(pod, placement)
            return await self.create_twin(pod, binding, placement)
        if (decision := self.admitter.admit(pod, self.identity.twin_key(pod.key), node)) is not None:
            return await self.handle_rejection(pod, decision)
        return await self.create_twin(pod, binding, node)

    def is_placed_by_host(self, pod: VirtualPod) -> bool:
        """Return whether the scheduler of the host cluster chooses the node of the pod."""
        return self.host_scheduling is not None and not pod.node

    async def handle_rejection(self, pod: VirtualPod, decision: Wait | Reject) -> Result | None:
        """Handle the decision that the lease of its node does not admit the pod."""
        self.admission_timeout.clear_quota_wait(pod)
        if isinstance(decision, Reject):
            await self.status_writer.fail_pod(
                pod, decision.reason, decision.message, is_disrupted=decision.is_disrupted
            )
            return None
        await self.status_writer.set_deferred(pod, decision.reason, decision.message)
        return Result(requeue_at=decision.until) if decision.until is not None else None

    def physical_node(self, pod: VirtualPod) -> str | None:
        node = self.caches.virtual_nodes.store.get(pod.node)
        return next(iter(physical_node_of(node)), None) if node is not None else None

    async def is_still_unmapped(self, pod: VirtualPod) -> bool:
        """Return whether the pod has neither run nor been deleted: an outdated cache must not run it twice."""
        age = self.now() - parse_time(pod.object["metadata"]["creationTimestamp"])
        if abs(age) < FRESH_POD_AGE and pod.uid not in self.status_writer.failing:
            return True
        live = await self.clients.live_pod(pod.key)
        if live is None or uid_of(live) != pod.uid:
            return False
        return not (is_deleting(live) or is_pod_terminal(live) or mapped_uid(live))

    async def create_twin(self, pod: VirtualPod, binding: Binding, node: Placement) -> Result | None:
        """Ensure the dependencies of an admitted pod and create its twin. Releases the reservation on failure."""
        if (rejection := self.admission_timeout.quota_rejection(pod)) is not None:
            self.ledger.release(self.identity.twin_key(pod.key))
            return await self.admission_timeout.wait_for_quota(pod, rejection)
        key, ledger, taints = self.identity.twin_key(pod.key), self.ledger, self.taints_of(node)
        aliases = self.host_aliases(namespace_of(pod.object) or "")
        settings, terms = self.twin_settings(pod.object), self.recorded_terms(pod, node, binding)
        desired = pods.new_twin(pod.object, binding, node, aliases, taints, settings, terms)
        try:
            if condition_since(pod, keys.ACCEPTED_CONDITION, QUOTA_EXCEEDED) is None:  # else the twin clears it
                await self.status_writer.clear_rejection(pod)
            if binding.spec.direct_scheduling and isinstance(node, str):
                check_taints(node, taints, desired["spec"]["tolerations"])
            for dependency in self.dependencies:
                await dependency.ensure(pod, binding)
            desired = self.with_claims(desired, pod, binding)
            if not self.is_still_open(pod, binding, node):
                ledger.release(key)
                return Result(requeue_after=0)
        except DependencyNotReady as wait:
            ledger.release(key)
            self.admission_timeout.clear_quota_wait(pod)
            if isinstance(wait, NotGranted):
                wait.retry_seconds = self.grant_waits.pause(pod.uid)
                if not self.grant_waits.is_overdue(pod.uid):
                    return Result(requeue_after=wait.retry_seconds)
            await self.status_writer.set_unmapped(pod, wait.reason, str(wait))
            seconds = NAME_TAKEN_RETRY_SECONDS if wait.reason in POLLED_REASONS else wait.retry_seconds
            return Result(requeue_after=seconds) if seconds is not None else None
        except ApiError as error:
            ledger.release(key)
            return await self.admission_timeout.handle_rejection(pod, node, error)
        except BaseException:
            ledger.release(key)
            raise
        self.grant_waits.clear(pod.uid)
        return await self.submit(pod, binding, node, desired)

    def is_still_open(self, pod: VirtualPod, binding: Binding, node: Placement) -> bool:
        """Return whether the node of an admitted pod has not closed meanwhile, or none of several nodes."""
        if isinstance(node, str):
            return self.admitter.closure(node) is None
        return self.host_scheduling is not None and self.host_scheduling.is_current(pod, node, binding)

    async def submit(self, pod: VirtualPod, binding: Binding, node: Placement, wanted: Object) -> Result | None:
        """Create the twin. The reservation is released at once only if the twin certainly does not exist."""
        key, ledger = self.identity.twin_key(pod.key), self.ledger
        try:
            await self.clients.physical.create(PODS, wanted)
        except BaseException as error:
            if isinstance(error, ApiError) and not isinstance(error, AlreadyExists | ServerError):
                ledger.release(key)
            else:
                ledger.mark_written(key, self.now())
            if isinstance(error, AlreadyExists):
                return await self.resolve_name_conflict(pod, binding)
            if not isinstance(error, ApiError):
                raise
            if is_priority_class_missing(error):
                return await self.priority_class_guard.on_class_missing(pod, binding)
            return await self.admission_timeout.handle_twin_rejection(pod, node, error)
        ledger.mark_written(key, self.now())
        self.admission_timeout.clear_quota_wait(pod)
        self.priority_class_guard.on_twin_created()
        if uncopied := uncopied_keys(pod.object, binding):
            self.clients.events.normal(pod.object, "MetadataNotCopied", uncopied_message(uncopied))
        return None  # the watch will requeue the pod

    def taints_of(self, node: Placement) -> Sequence[Object]:
        if isinstance(node, HostPlacement):
            return node.taints
        taints: list[Object] = value_at(self.caches.physical_nodes.store.get(node), "spec", "taints", default=[])
        return taints

    def recorded_terms(self, pod: VirtualPod, node: Placement, binding: Binding) -> str:
        """Return the reclaim terms to record on a twin, for the time when no syncer of its tenant runs."""
        if not self.identity.is_tenant:
            return ""
        if isinstance(node, str):
            return forced_terms(stored_terms(self.caches.virtual_nodes.store.get(pod.node)))
        assert self.host_scheduling is not None  # which found the placement
        return self.host_scheduling.open_nodes.open_nodes(binding).forced_terms

    async def resolve_name_conflict(self, pod: VirtualPod, binding: Binding) -> Result | None:
        """Handle a taken name: the cache lags, an earlier pod's twin has it, or a foreign pod."""
        existing = await self.clients.live_twin(pod.key)
        if existing is None or (binding.owns(existing) and virtual_uid(existing) == pod.uid):
            return Result(requeue_after=CACHE_LAG_SECONDS)
        if binding.owns(existing):
            await self.remove_stale_twin(pod, existing)
            return Result(requeue_after=CACHE_LAG_SECONDS)
        self.ledger.release(key_of(existing))
        message = f"{key_of(existing)} in the physical cluster is not ours; delete it there and the pod can run"
        await self.status_writer.set_unmapped(pod, "NameTaken", message)
        return Result(requeue_after=NAME_TAKEN_RETRY_SECONDS)

    async def finish_deletion(self, pod: VirtualPod, binding: Binding) -> Result | None:
        """Delete the pod once it has no twin."""
        live = None if self.lost_twins.is_twin_deleted(pod) else await self.clients.live_twin(pod.key)
        if live is not None and binding.owns(live) and virtual_uid(live) == pod.uid:
            await self.propagate_deletion(pod, live)
            return Result(requeue_after=CACHE_LAG_SECONDS)
        # The owner of a finalizer waits for the end.
        if pod.object["metadata"].get("finalizers") and not is_pod_terminal(pod.object):
            if not await self.lost_twins.show_final_status(pod):
                patch = pod_status.failed_status_patch("Deleted", "it was deleted, and its twin does not exist")
                await self.status_writer.patch(pod, patch)
        else:
            await self.clients.virtual.delete_if_exists(PODS, pod.object, grace_seconds=0)
        return None

    # -- both

    async def both(self, pod: VirtualPod, twin: Twin, binding: Binding) -> Result | None:
        if virtual_uid(twin.object) != pod.uid:
            await self.remove_stale_twin(pod, twin.object)
        elif is_deleting(pod.object):
            await self.propagate_deletion(pod, twin.object)
        elif is_pod_terminal(pod.object):
            await self.stop_twin(twin)
        elif mapped_uid(pod.object) not in (None, twin.uid):
            return await self.lost_twins.resolve_loss(pod, binding)
        elif self.host_scheduling is not None and not pod.node:
            return await self.host_scheduling.follow(pod, twin, binding) if not is_deleting(twin.object) else None
        elif not is_deleting(twin.object) and (node := self.physical_node(pod)) is not None:
            self.admission_timeout.clear_quota_wait(pod)
            requeue_at = await self.update_twin(pod, twin, binding, node)
            wait = await self.admission_timeout.wait_for_scheduling(pod, twin, node)
            return wait or (Result(requeue_at=requeue_at) if requeue_at is not None else None)
        return None

    async def update_twin(self, pod: VirtualPod, twin: Twin, binding: Binding, node: str) -> datetime | None:
        """Apply changes of the pod to the twin; return when to check a pending resize again."""
        pending, existing = None, twin.object
        settings = self.twin_settings(pod.object)
        desired = pods.desired_twin(pod.object, binding, node, settings=settings)  # host aliases never change
        added = pods.ephemeral_patch(existing, pod.object, binding)
        if not is_applied(existing, desired) and pods.resize_patch(existing, desired) is not None:
            if (pending := self.admitter.admit_resize(pod, twin, node)) is not None:
                resized = with_resources_of(existing, pod.object)
                desired = pods.desired_twin(resized, binding, node, settings=settings)
        else:
            self.admitter.clear_pending_resize(pod)
        requeue_at = pending.until if pending is not None else None
        if is_applied(existing, desired) and added is None:
            await self.status_writer.clear_rejection(pod)
            return requeue_at
        try:
            if errors := rejection_errors(pod, binding):
                await self.status_writer.set_rejected(pod, errors)
                return requeue_at
            await self.status_writer.clear_rejection(pod)
            await self.apply_patches(existing, desired, added)
        except NotFound:  # the deletion of the twin requeues the pod
            return None
        except (Forbidden, Invalid, BadRequest) as error:
            self.clients.events.warning(pod.object, "RefusedBelow", error.message)
            raise
        finally:
            self.ledger.mark_written(twin.key, self.now())
        return requeue_at

    async def apply_patches(self, twin: Object, wanted: Object, added: Object | None) -> None:
        """Patch the twin. The record of what we set is written last, so that a failed write repeats all of them."""
        current = twin
        if added is not None:
            current = await self.patch_twin(current, added, "ephemeralcontainers")
        if patch := pods.twin_patch(twin, wanted):
            if resized := pods.resize_patch(twin, wanted):
                current = await self.patch_twin(current, resized, "resize")
            await self.patch_twin(current, patch)

    async def patch_twin(self, twin: Object, patch: Object, subresource: str | None = None) -> Object:
        return await self.clients.physical.patch(PODS, twin, patch, type=PatchType.STRATEGIC, subresource=subresource)

    async def propagate_deletion(self, pod: VirtualPod, twin: Object) -> None:
        """Delete the twin with the pod's grace; a later deletion with less grace is propagated too.

        A forced deletion is not: only the kubelet decides when the twin has ended.
        """
        grace = pod.object["metadata"].get("deletionGracePeriodSeconds") or None
        if is_deleting(twin) and (grace is None or grace >= twin["metadata"].get("deletionGracePeriodSeconds", 0)):
            return
        await self.clients.physical.delete_if_exists(PODS, twin, grace_seconds=grace)

    async def stop_twin(self, twin: Twin) -> None:
        """Delete the twin of a pod that has ended, unless the twin has ended too."""
        if not is_deleting(twin.object) and twin.status()["phase"] not in TERMINAL_PHASES:
            await self.clients.physical.delete_if_exists(PODS, twin.object)

    async def remove_stale_twin(self, pod: VirtualPod, twin: Object) -> None:
        """Delete the twin of an earlier pod with the same name; its end requeues the pod."""
        if is_deleting(twin):
            return
        live = await self.clients.live_pod(pod.key)
        if live is None or uid_of(live) != virtual_uid(twin):  # otherwise the cache is outdated
            await self.clients.physical.delete_if_exists(PODS, twin)

    # -- only physical

    async def only_physical(self, key: str, twin: Object) -> Result | None:
        if is_deleting(twin):
            return None
        live = await self.clients.live_pod(key)
        if live is not None and uid_of(live) == virtual_uid(twin):
            return Result(requeue_after=CACHE_LAG_SECONDS)
        if (wait := self.orphans.record_sighting(uid_of(twin), self.now())) is not None:
            return Result(requeue_at=wait)
        log.info("orphan twin found, deleting it", pod=key, twin=name_of(twin))
        await self.clients.physical.delete_if_exists(PODS, twin)
        return None


def check_taints(node: str, taints: Sequence[Object], tolerations: Sequence[Object]) -> None:
    """Raise DependencyNotReady for untolerated taints, which no scheduler checks with direct scheduling."""
    if untolerated := untolerated_taints((each for each in taints if each["key"] != CORDON_TAINT["key"]), tolerations):
        taint = f"{untolerated[0]['key']}:{untolerated[0]['effect']}"
        raise DependencyNotReady("Tainted", f"the node {node} has the taint {taint}, which the pod does not tolerate")
