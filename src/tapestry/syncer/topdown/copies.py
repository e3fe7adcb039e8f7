"""Reconciler of the copies of ConfigMaps and Secrets that pods refer to.

    needed       A pod has a twin or needs one: every existing object that it refers to is copied, and the copy
                 follows its source. Edits of the copy are reverted, unless the tenant and the binding let them
                 change the source (`sync_back`).
    not needed   The last such pod is deleted or has ended, as a live list confirms: delete the copy.
    no source    The source is deleted, as a live read confirms: delete the copy.

Nothing else is written to the virtual cluster, so several syncers may copy from one source. A copy that is being
deleted counts as missing for new pods.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple
from weakref import WeakValueDictionary

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.excluded_pods import is_excluded
from tapestry.apis.names import physical_name
from tapestry.controller import ObjectCache, Result
from tapestry.kube.conditions import find_condition, is_condition_false
from tapestry.kube.errors import AlreadyExists, BadRequest, Conflict, Forbidden, Invalid, KubeError
from tapestry.kube.names import dns_subdomain_error
from tapestry.kube.objects import Object, is_deleting, key_of, name_of, namespace_of, uid_of
from tapestry.kube.pod_references import references
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.resources import CONFIGMAPS, PODS, SECRETS
from tapestry.process.logs import logger
from tapestry.syncer.cache_transforms import reference_keys
from tapestry.syncer.caches import Caches
from tapestry.syncer.clients import Clients
from tapestry.syncer.current_binding import CurrentBinding
from tapestry.syncer.identity import Identity
from tapestry.syncer.topdown.dependencies import DependencyNotReady, NotGranted
from tapestry.syncer.topdown.source_cache import COPIED_RESOURCES, SourceCache, scope_of
from tapestry.syncer.translate.copies import (
    copied_content,
    copy_metadata,
    copy_needs_recreate,
    copy_patch,
    copy_rejection,
    desired_copy,
    digest_view,
    is_current,
    is_edited,
    redacted_errors,
)
from tapestry.syncer.translate.metadata import source_key
from tapestry.syncer.translate.pod_status import mapped_uid
from tapestry.syncer.translate.security import security_violations
from tapestry.syncer.translate.sync_back import SyncBackRejected, is_allowed, is_changed_below_only, sync_back_patch
from tapestry.syncer.views import VirtualPod

log = logger(__name__)

NAME_TAKEN_RETRY_SECONDS = 60.0
"""Seconds before a name that a foreign object has is tried again."""
GRANT_RETRY_SECONDS = 1.0
"""Seconds before a source is read again after the virtual API server has forbidden it."""
INITIAL_BACKOFF, MAX_BACKOFF = timedelta(seconds=1), timedelta(minutes=5)
"""Delay before a repeated foreign change of a copy is reverted, so that two writers do not fight at full speed."""
BACKOFF_RESET = timedelta(minutes=15)
"""Time without foreign changes after which the delay starts over."""
CACHE_LAG = timedelta(seconds=5)
"""Time during which a copy that we created counts although the cache does not show it."""


class SourceMissing(DependencyNotReady):
    """The source does not exist; pods for which it is optional run without it."""


class CreatedCopy(NamedTuple):
    copy: Object
    """Digest view."""
    until: datetime
    """Time after which only the cache counts."""


@dataclass(frozen=True, slots=True)
class OverwriteBackoff:
    started_at: datetime
    delay: timedelta


@dataclass(frozen=True)
class CopyReconciler:
    """Keep the copies; keyed by their sources, as in `secrets/team-a/password`."""

    identity: Identity
    current_binding: CurrentBinding
    caches: Caches
    clients: Clients
    now: Callable[[], datetime]
    source_cache: SourceCache
    copy_informers: Mapping[str, ObjectCache]
    """Informers of our copies by kind, as digest views, with an index "namespace"."""
    schedule_sweep: Callable[[str], None]
    """Schedule a check for unused copies from a namespace."""
    other_users: list[Callable[[str], bool]] = field(default_factory=list)
    """Predicates of other users of a copy than pods."""
    created_copies: dict[str, CreatedCopy] = field(default_factory=dict)
    """Copies that the cache does not show yet."""
    deleting: dict[str, str] = field(default_factory=dict)
    """UIDs of copies that are being deleted, which the cache still shows."""
    locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    overwrite_backoffs: dict[str, OverwriteBackoff] = field(default_factory=dict)
    """Last changes or deletions of copies by others."""

    # -- dependencies of pods

    async def ensure(self, pod: VirtualPod, binding: Binding) -> None:
        for key, is_optional in copy_dependencies(pod.object).items():
            try:
                await self.ensure_copy(key, binding)
            except SourceMissing:
                if not is_optional:
                    raise

    def has_current_copy(self, key: str, binding: Binding) -> bool:
        """Return whether the copy exists and matches its source, according to the caches."""
        copy, source = self.current_copy(key), self.source_cache.get(key)
        return copy is not None and source is not None and is_current(copy, source, binding)

    # -- changes of sources and copies

    async def reconcile(self, key: str) -> Result | None:
        binding = self.current_binding.get()
        if binding is None or not self.is_synced(key) or not self.is_needed(key, binding):
            return None
        copy, source = self.current_copy(key), self.source_cache.get(key)
        if self.has_current_copy(key, binding) or (
            copy is None and (source is None or not self.is_awaited(key, binding))
        ):
            return None
        if source is not None and (until := self.backoff_until(key, copy, source, binding)) is not None:
            return Result(requeue_at=until)
        try:
            await self.ensure_copy(key, binding)
        except SourceMissing:
            return None
        except NotGranted:
            return Result(requeue_after=GRANT_RETRY_SECONDS)
        except DependencyNotReady as wait:
            log.warning("copy failed", key=key, reason=wait.reason, error=str(wait))
            return Result(requeue_after=NAME_TAKEN_RETRY_SECONDS)
        return None

    async def sweep(self, namespace: str) -> None:
        """Delete unused copies from a virtual namespace; one live list of its pods confirms all of them."""
        binding = self.current_binding.get()
        if binding is None:
            return
        unused = [key for key in self.copied_from(namespace) if not self.is_needed(key, binding)]
        if not unused:
            return
        live_references = await self.live_references(namespace, binding)
        rejected: list[KubeError] = []
        for key in unused:
            try:
                async with self.lock_for(key):
                    copy = self.current_copy(key)
                    if copy is not None and key not in live_references and not self.is_needed(key, binding):
                        await self.delete(key, copy)
            except KubeError as error:
                rejected.append(error)
        if rejected:
            raise rejected[0]

    def on_copy_change(self, old: Object | None, new: Object | None) -> None:
        """Handle a change of a copy: the cache shows it now. A deletion was ours or a foreign one."""
        copy = new or old
        assert copy is not None
        for key in source_keys_of(copy):
            if key in self.created_copies and uid_of(self.created_copies[key].copy) == uid_of(copy):
                del self.created_copies[key]
            if new is None and self.deleting.get(key) == uid_of(copy):
                del self.deleting[key]
                self.overwrite_backoffs.pop(key, None)
            elif new is None:
                self.record_overwrite(key)

    # -- users of copies

    def is_relevant(self, key: str) -> bool:
        """Return whether a source is referred to or copied."""
        if any(self.caches.virtual_pods.store.iter_by("refers", key)) or self.cached_copy(key) is not None:
            return True
        return any(needs(key) for needs in self.other_users)

    def is_needed(self, key: str, binding: Binding) -> bool:
        return any(self.users(key, binding)) or any(needs(key) for needs in self.other_users)

    def is_awaited(self, key: str, binding: Binding) -> bool:
        """Return whether a pod that was accepted needs it: it has a twin or waits for its dependencies.

        A later change of the pod, which may have added the reference, may still be rejected.
        """
        if any(needs(key) for needs in self.other_users):
            return True
        accepted = (
            pod
            for pod in self.users(key, binding)
            if find_condition(pod["status"]["conditions"], keys.MAPPED_CONDITION)
        )
        return any(not security_violations(pod, binding.spec.pod_security) for pod in accepted)

    def is_scope_used(self, scope: str) -> bool:
        """Return whether a pod, or a volume, may need a source in the scope: a Secret or a namespace of ConfigMaps."""
        binding = self.current_binding.get()
        if binding is None:
            return False
        kind, _, target = scope.partition("/")
        if kind == SECRETS.plural:
            return self.is_needed(scope, binding)
        pods = self.caches.virtual_pods.store.iter_by("namespace", target)
        return any(self.may_run(pod.object, binding) for pod in pods)

    def sources_in(self, scope: str) -> set[str]:
        """Return the keys of the sources in a scope that are referred to or copied."""
        kind, _, target = scope.partition("/")
        if kind == SECRETS.plural:
            return {scope}
        pods = self.caches.virtual_pods.store.iter_by("namespace", target)
        referred = (key for pod in pods for key in copy_dependencies(pod.object))
        return {key for key in (*self.copied_from(target), *referred) if kind_of(key) == kind}

    def users(self, key: str, binding: Binding) -> Iterator[Object]:
        pods = (pod.object for pod in self.caches.virtual_pods.store.iter_by("refers", key))
        return (pod for pod in pods if self.may_run(pod, binding))

    def may_run(self, pod: Object, binding: Binding) -> bool:
        """Return whether a pod is on our nodes and has or may get a twin."""
        if not self.caches.is_our_pod(pod):
            return False
        is_rejected = is_condition_false(pod, keys.ACCEPTED_CONDITION)
        return mapped_uid(pod) is not None or not (is_rejected or is_excluded(pod, binding))

    async def live_references(self, namespace: str, binding: Binding) -> set[str]:
        """Return what pods of a namespace refer to, according to a live list."""
        fields = self.identity.active_pods
        pages = self.clients.virtual.pages(PODS, namespace, fields=fields, without_managed_fields=True)
        return {
            key
            async for page in pages
            for pod in page.items
            if self.may_run(pod, binding)
            for key in reference_keys(pod)
        }

    # -- copying

    async def ensure_copy(self, key: str, binding: Binding) -> None:
        """Ensure that the copy matches its source. Raises SourceMissing if there is none, or DependencyNotReady."""
        async with self.lock_for(key):
            if not self.has_current_copy(key, binding):
                await self.copy_from_live_source(key, binding)

    def lock_for(self, key: str) -> asyncio.Lock:
        """Return the lock of a copy: of many pods that share it only one creates it."""
        return self.locks.setdefault(key, asyncio.Lock())

    async def copy_from_live_source(self, key: str, binding: Binding) -> None:
        """Copy the live source: the cache keeps no data."""
        source = await self.live_source(key)
        copy = self.current_copy(key)
        rejection = copy_rejection(source) if source is not None else None
        if source is None or rejection is not None:
            if copy is not None:
                await self.delete(key, copy)
            raise SourceMissing("SecretRefused", rejection) if rejection is not None else source_missing(key)
        if copy is not None and is_current(copy, digest_view(source), binding):
            return
        desired = desired_copy(source, binding)
        if copy is None:
            try:
                await self.create(key, desired)
                return
            except AlreadyExists:
                log.debug("copy name already exists", key=key)
        await self.repair_copy(key, source, desired, binding)

    async def repair_copy(self, key: str, source: Object, wanted: Object, binding: Binding) -> None:
        """Update the existing copy, which is read live because its data is not cached."""
        live = await self.clients.physical.find(COPIED_RESOURCES[kind_of(key)], name_of(wanted), namespace_of(wanted))
        description = f"{kind_of(key)} {key_of(wanted)} in the physical cluster"
        if live is not None and not binding.owns(live):
            raise DependencyNotReady("NameTaken", f"{description} is not ours; delete it there and the pod can run")
        if live is not None and is_deleting(live):
            raise DependencyNotReady("NameTaken", f"{description} is being deleted, but its deletion does not finish")
        if live is None or self.deleting.get(key) == uid_of(live):
            raise Conflict(409, "Conflict", f"the copy of {key} has just been deleted")
        edited = is_edited(digest_view(live), copy_metadata(source, "", binding))
        updated = await self.updated_source(source, live, binding)
        wanted = wanted if updated is source else desired_copy(updated, binding)
        if copy_needs_recreate(live, wanted):
            await self.replace(key, live, wanted)
        elif patch := copy_patch(live, wanted):
            with redacted_errors(wanted):
                await self.clients.physical.patch(COPIED_RESOURCES[kind_of(key)], live, patch)
        if edited:
            self.record_overwrite(key)
        if edited and (updated is source or copied_content(live) != copied_content(wanted)):
            message = f"{description} was changed there and has been reset: it is a copy of this object"
            self.clients.events.warning(source, "LocalChangeOverwritten", message)

    async def updated_source(self, source: Object, copy: Object, binding: Binding) -> Object:
        """Return the source with the values that were changed in the copy, or unchanged if none may be written back.

        Both objects are live. Raises Conflict if the source changed meanwhile: the tenant's change wins then.
        """
        if not (is_allowed(source, binding) and is_changed_below_only(source, copy)):
            return source
        events = self.clients.events
        try:
            patch = sync_back_patch(source, copy)
        except SyncBackRejected as error:
            events.warning(source, "SyncBackRefused", f"a change in the physical cluster was not taken over: {error}")
            return source
        if not patch:
            return source
        try:
            resource = SECRETS if source["kind"] == SECRETS.kind else CONFIGMAPS
            changed = await self.clients.virtual.patch(resource, source, patch)
        except Forbidden:
            message = (
                "a change in the physical cluster was not taken over: the syncer may not patch this object; "
                "the manager grants that, see its log"
            )
            events.warning(source, "SyncBackForbidden", message)
            return source
        except (BadRequest, Invalid):  # the message may quote the data
            message = "a change in the physical cluster was not taken over: the virtual API server rejected the data"
            events.warning(source, "SyncBackRefused", message)
            return source
        names = ", ".join(sorted(key for values in patch.values() for key in values))
        events.normal(source, "SyncedBack", f"taken over from the physical cluster: {names}"[:1024])
        return changed

    async def replace(self, key: str, live: Object, wanted: Object) -> None:
        await self.delete(key, live)
        try:
            await self.create(key, wanted)
        except AlreadyExists:
            raise Conflict(409, "Conflict", f"the copy of {key} is still being deleted") from None

    async def create(self, key: str, wanted: Object) -> None:
        with redacted_errors(wanted):
            created = await self.clients.physical.create(COPIED_RESOURCES[kind_of(key)], wanted)
        cached = self.cached_copy(key)
        if cached is None or uid_of(cached) != uid_of(created):
            self.created_copies[key] = CreatedCopy(digest_view(created), self.now() + CACHE_LAG)

    async def delete(self, key: str, copy: Object) -> None:
        """Delete a copy that is provably ours."""
        self.deleting[key] = uid_of(copy)
        try:
            await self.clients.physical.delete_if_exists(COPIED_RESOURCES[kind_of(key)], copy)
        except BaseException:
            self.deleting.pop(key, None)
            raise

    # -- foreign changes of copies

    def backoff_until(self, key: str, copy: Object | None, source: Object, binding: Binding) -> datetime | None:
        """Return until when a foreign change of a copy is not reverted; None if there is none or the delay is over."""
        last = self.overwrite_backoffs.get(key)
        if last is None or self.now() >= last.started_at + last.delay:
            return None
        if copy is not None and not is_edited(copy, copy_metadata(source, "", binding)):
            return None
        return last.started_at + last.delay

    def record_overwrite(self, key: str) -> None:
        last, now = self.overwrite_backoffs.get(key), self.now()
        is_repeated = last is not None and now < last.started_at + BACKOFF_RESET
        self.overwrite_backoffs[key] = OverwriteBackoff(
            now, min(2 * last.delay, MAX_BACKOFF) if last and is_repeated else INITIAL_BACKOFF
        )

    # -- reading

    def informer(self, key: str) -> ObjectCache:
        return self.copy_informers[kind_of(key)]

    def is_synced(self, key: str) -> bool:
        return self.informer(key).synced.is_set() and self.source_cache.is_synced(key)

    def cached_copy(self, key: str) -> Object | None:
        """Return the copy as a digest view. The informer selects only our objects."""
        _, namespace, name = key.split("/", 2)
        copy_name = physical_name(self.identity.virtual_cluster, self.identity.binding_uid, namespace, name)
        return self.informer(key).store.get(f"{self.identity.mount_namespace}/{copy_name}")

    def current_copy(self, key: str) -> Object | None:
        """Return the copy as a digest view unless it is being deleted."""
        created = self.created_copies.get(key)
        copy = created.copy if created is not None and self.now() < created.until else self.cached_copy(key)
        if copy is None or is_deleting(copy) or self.deleting.get(key) == uid_of(copy):
            return None
        return copy

    def copied_from(self, namespace: str) -> Iterator[str]:
        """Yield the keys of the sources in a virtual namespace that have copies."""
        for informer in self.copy_informers.values():
            for copy in informer.store.by("namespace", namespace):
                yield from source_keys_of(copy)

    async def live_source(self, key: str) -> Object | None:
        kind, namespace, name = key.split("/", 2)
        if dns_subdomain_error(name):  # a pod may refer to an impossible name
            return None
        try:
            return await self.clients.virtual.find(COPIED_RESOURCES[kind], name, namespace)
        except Forbidden as error:
            raise NotGranted(error.message) from error


def copy_dependencies(pod: Object) -> dict[str, bool]:
    """Return what a pod refers to, and whether it is optional in every place."""
    dependencies: dict[str, bool] = {}
    for each in references(pod):
        if each.kind in COPIED_RESOURCES:
            key = f"{each.kind}/{namespace_of(pod)}/{each.name}"
            dependencies[key] = each.optional and dependencies.get(key, True)
    return dependencies


def source_scopes(pod: Object) -> set[str]:
    """Return the scopes of the sources that a pod may need."""
    return {f"{CONFIGMAPS.plural}/{namespace_of(pod)}", *map(scope_of, copy_dependencies(pod))}


def kind_of(key: str) -> str:
    return key.split("/")[0]


def source_keys_of(copy: Object) -> list[str]:
    """Return the key of the source of a copy; none for other objects of ours."""
    plural = next(plural for plural, resource in COPIED_RESOURCES.items() if resource.kind == copy["kind"])
    return [f"{plural}/{key}" for key in source_key(copy)]


def source_missing(key: str) -> SourceMissing:
    kind, _, name = key.partition("/")
    return SourceMissing(f"{COPIED_RESOURCES[kind].kind}Missing", f"{kind} {name} does not exist")


def dependencies_changed(before: VirtualPod | None, after: VirtualPod | None) -> bool:
    """Return whether a pod's dependencies may have changed; only ephemeral containers add references."""
    if before is None or after is None:
        return True
    old, new = before.object, after.object
    if is_pod_terminal(old) != is_pod_terminal(new):
        return True
    if old["spec"].get("ephemeralContainers") != new["spec"].get("ephemeralContainers"):
        return True
    return bool(old["status"]["conditions"] != new["status"]["conditions"])
