"""ConfigMaps and Secrets that pods refer to are there below, as copies.

    needed       A pod is on its way down, or has a twin: whatever it refers to and exists is copied, and follows its
                 source from there on.  What was edited below is set right again, unless the tenant and the
                 binding let it change the source (`sync_back`).
    not needed   The last such pod is gone or has ended, as a live look at the pods confirms: so goes the copy.
    no source    It is gone above, as a live read confirms: so goes the copy.

Nothing else is written above, so that any number of syncers may copy from one source.  Pods come while a copy goes:
one that is on its way out is there for none of them.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple
from weakref import WeakValueDictionary

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.names import physical_name
from tapestry.controller import Informer, Result
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import AlreadyExists, Conflict, Forbidden, KubeError
from tapestry.kube.names import dns_subdomain_error
from tapestry.kube.objects import Object, is_deleting, key_of, name_of, namespace_of, uid_of
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.resources import PODS
from tapestry.process.logs import logger
from tapestry.syncer.cache_transforms import reference_keys
from tapestry.syncer.context import SyncContext
from tapestry.syncer.topdown.dependencies import DependencyNotReady
from tapestry.syncer.topdown.source_cache import COPIED_RESOURCES, SourceCache
from tapestry.syncer.topdown.sync_back import SyncBack
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
from tapestry.syncer.translate.pods import is_excluded
from tapestry.syncer.translate.references import references
from tapestry.syncer.translate.security import security_violations

log = logger(__name__)

NAME_TAKEN_RETRY_SECONDS = 60.0
"""After how long a name that belongs to somebody else below is tried again."""
INITIAL_BACKOFF, MAX_BACKOFF = timedelta(seconds=1), timedelta(minutes=5)
"""How long what somebody did to a copy is let be if it is not the first time: two who disagree must not do so at full
speed."""
BACKOFF_RESET = timedelta(minutes=15)
"""After how long it is the first time again."""
CACHE_LAG = timedelta(seconds=5)
"""How long we know better than the cache what we made."""
ACTIVE_PODS_SELECTOR = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


class SourceMissing(DependencyNotReady):
    """There is nothing above that could be copied; a pod that calls it optional does without."""


class CreatedCopy(NamedTuple):
    copy: Object
    """As `seen`."""
    until: datetime
    """When the cache knows better, whatever it says."""


@dataclass(frozen=True, slots=True)
class OverwriteBackoff:
    started_at: datetime
    delay: timedelta


@dataclass(frozen=True)
class CopyReconciler:
    """Keeps the copies; keys are those of the sources, as in `secrets/team-a/password`."""

    context: SyncContext
    source_cache: SourceCache
    copy_informers: Mapping[str, Informer]
    """What is ours below, by kind, as `seen`; with an index "namespace"."""
    schedule_sweep: Callable[[str], None]
    """Has the copies from a namespace looked at that may be of no more use."""
    other_users: list[Callable[[str], bool]] = field(default_factory=list)
    """Who else, beside pods, may need a copy."""
    created_copies: dict[str, CreatedCopy] = field(default_factory=dict)
    """Copies that the cache has yet to see."""
    deleting: dict[str, str] = field(default_factory=dict)
    """The UIDs of copies that are being deleted; the cache has yet to see them go."""
    locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    overwrite_backoffs: dict[str, OverwriteBackoff] = field(default_factory=dict)
    """When copies were last changed or deleted by somebody else."""

    @property
    def sync_back(self) -> SyncBack:
        return SyncBack(self.context)

    # -- for pods on their way down

    async def ensure(self, pod: Object, binding: Binding) -> None:
        for key, is_optional in copy_dependencies(pod).items():
            try:
                await self.ensure_copy(key, binding)
            except SourceMissing:
                if not is_optional:
                    raise

    def has_current_copy(self, key: str, binding: Binding) -> bool:
        """Whether the copy is there and as its source, as far as is known."""
        copy, source = self.current_copy(key), self.source_cache.get(key)
        return copy is not None and source is not None and is_current(copy, source, binding)

    # -- for sources and copies that change

    async def reconcile(self, key: str) -> Result | None:
        binding = self.context.binding()
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
        except DependencyNotReady as wait:
            log.warning("cannot be copied", reason=wait.reason, error=str(wait))
            return Result(requeue_after=NAME_TAKEN_RETRY_SECONDS)
        return None

    async def sweep(self, namespace: str) -> None:
        """Delete the copies of a virtual namespace that nobody needs; one live look at its pods confirms it for all."""
        binding = self.context.binding()
        if binding is None:
            return
        unused = [key for key in self.copied_from(namespace) if not self.is_needed(key, binding)]
        if not unused:
            return
        referred_now = await self.live_references(namespace, binding)
        refused: list[KubeError] = []
        for key in unused:
            try:
                async with self.lock_for(key):
                    copy = self.current_copy(key)
                    if copy is not None and key not in referred_now and not self.is_needed(key, binding):
                        await self.delete(key, copy)
            except KubeError as error:
                refused.append(error)
        if refused:
            raise refused[0]

    def on_copy_change(self, old: Object | None, new: Object | None) -> None:
        """A handler of the copies' changes: the cache knows.  What is gone went by our will, or somebody else's."""
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

    # -- who needs it

    def is_relevant(self, key: str) -> bool:
        """Whether a source is of any interest here."""
        if any(self.context.virtual_pods.store.iter_by("refers", key)) or self.cached_copy(key) is not None:
            return True
        return any(needs(key) for needs in self.other_users)

    def is_needed(self, key: str, binding: Binding) -> bool:
        return any(self.users(key, binding)) or any(needs(key) for needs in self.other_users)

    def is_awaited(self, key: str, binding: Binding) -> bool:
        """Whether a pod needs it that was let through: has a twin, or waits for what it lacks to get one.

        A change since then, which may have brought the need for it, may not go through.
        """
        if any(needs(key) for needs in self.other_users):
            return True
        passed = (
            pod
            for pod in self.users(key, binding)
            if find_condition(pod["status"]["conditions"], keys.MAPPED_CONDITION)
        )
        return any(not security_violations(pod, binding.spec.pod_security) for pod in passed)

    def users(self, key: str, binding: Binding) -> Iterator[Object]:
        return (pod for pod in self.context.virtual_pods.store.iter_by("refers", key) if self.may_run(pod, binding))

    def may_run(self, pod: Object, binding: Binding) -> bool:
        """Whether a pod is one of ours that has or may get a twin."""
        if pod["spec"]["nodeName"] not in self.context.virtual_nodes.store:
            return False
        return mapped_uid(pod) is not None or not (is_rejected(pod) or is_excluded(pod, binding))

    async def live_references(self, namespace: str, binding: Binding) -> set[str]:
        """What pods of a namespace refer to, as the virtual cluster says itself."""
        pages = self.context.virtual_client.pages(
            PODS, namespace, fields=ACTIVE_PODS_SELECTOR, without_managed_fields=True
        )
        return {
            key
            async for page in pages
            for pod in page.items
            if self.may_run(pod, binding)
            for key in reference_keys(pod)
        }

    # -- copying

    async def ensure_copy(self, key: str, binding: Binding) -> None:
        """Have the copy as its source is.  Raises Absent if there is none, or NotYet."""
        async with self.lock_for(key):
            if not self.has_current_copy(key, binding):
                await self.copy_from_live_source(key, binding)

    def lock_for(self, key: str) -> asyncio.Lock:
        """Pods that share a copy come in crowds: the first of them makes it, the others find it made."""
        return self.locks.setdefault(key, asyncio.Lock())

    async def copy_from_live_source(self, key: str, binding: Binding) -> None:
        """Copy what the virtual API server has now: the cache keeps no data."""
        source = await self.live_source(key)
        copy = self.current_copy(key)
        complaint = copy_rejection(source) if source is not None else None
        if source is None or complaint is not None:
            if copy is not None:
                await self.delete(key, copy)
            raise SourceMissing("SecretRefused", complaint) if complaint is not None else source_missing(key)
        if copy is not None and is_current(copy, digest_view(source), binding):
            return
        wanted = desired_copy(source, binding)
        if copy is None:
            try:
                await self.create(key, wanted)
                return
            except AlreadyExists:
                log.debug("something has the name already", key=key)
        await self.repair_copy(key, source, wanted, binding)

    async def repair_copy(self, key: str, source: Object, wanted: Object, binding: Binding) -> None:
        """Change what is there; its data is not cached, so it is read for that."""
        live = await self.context.physical_client.find(
            COPIED_RESOURCES[kind_of(key)], name_of(wanted), namespace_of(wanted)
        )
        where = f"{kind_of(key)} {key_of(wanted)} below"
        if live is not None and not binding.owns(live):
            raise DependencyNotReady("NameTaken", f"{where} is not ours; delete it there and the pod can run")
        if live is not None and is_deleting(live):
            raise DependencyNotReady("NameTaken", f"{where} is being deleted, and something keeps it from going")
        if live is None or self.deleting.get(key) == uid_of(live):
            raise Conflict(409, "Conflict", f"the copy of {key} has just been deleted")
        edited = is_edited(digest_view(live), copy_metadata(source, "", binding))
        updated = await self.sync_back.updated_source(source, live, binding)
        wanted = wanted if updated is source else desired_copy(updated, binding)
        if copy_needs_recreate(live, wanted):
            await self.replace(key, live, wanted)
        elif patch := copy_patch(live, wanted):
            with redacted_errors(wanted):
                await self.context.physical_client.patch(COPIED_RESOURCES[kind_of(key)], live, patch)
        if edited:
            self.record_overwrite(key)
        if edited and (updated is source or copied_content(live) != copied_content(wanted)):
            message = f"{where} was changed there, and has been set right: it follows this object"
            self.context.manager.events.warning(source, "LocalChangeOverwritten", message)

    async def replace(self, key: str, live: Object, wanted: Object) -> None:
        await self.delete(key, live)
        try:
            await self.create(key, wanted)
        except AlreadyExists:
            raise Conflict(409, "Conflict", f"the copy of {key} has yet to go") from None

    async def create(self, key: str, wanted: Object) -> None:
        with redacted_errors(wanted):
            made = await self.context.physical_client.create(COPIED_RESOURCES[kind_of(key)], wanted)
        cached = self.cached_copy(key)
        if cached is None or uid_of(cached) != uid_of(made):
            self.created_copies[key] = CreatedCopy(digest_view(made), self.context.now() + CACHE_LAG)

    async def delete(self, key: str, copy: Object) -> None:
        """Delete a copy that is provably ours, and no other."""
        self.deleting[key] = uid_of(copy)
        try:
            await self.context.physical_client.delete_if_exists(COPIED_RESOURCES[kind_of(key)], copy)
        except BaseException:
            self.deleting.pop(key, None)
            raise

    # -- what others do to copies

    def backoff_until(self, key: str, copy: Object | None, source: Object, binding: Binding) -> datetime | None:
        """Until when what somebody did to a copy is let be; None where nobody did, or for long enough."""
        last = self.overwrite_backoffs.get(key)
        if last is None or self.context.now() >= last.started_at + last.delay:
            return None
        if copy is not None and not is_edited(copy, copy_metadata(source, "", binding)):
            return None
        return last.started_at + last.delay

    def record_overwrite(self, key: str) -> None:
        last, now = self.overwrite_backoffs.get(key), self.context.now()
        is_another = last is not None and now < last.started_at + BACKOFF_RESET
        self.overwrite_backoffs[key] = OverwriteBackoff(
            now, min(2 * last.delay, MAX_BACKOFF) if last and is_another else INITIAL_BACKOFF
        )

    # -- reading

    def informer(self, key: str) -> Informer:
        return self.copy_informers[kind_of(key)]

    def is_synced(self, key: str) -> bool:
        """Whether both caches can tell."""
        return self.informer(key).synced.is_set() and self.source_cache.is_synced(key)

    def cached_copy(self, key: str) -> Object | None:
        """The copy, as `seen`; the selector of its informer shows only what is ours."""
        _, namespace, name = key.split("/", 2)
        context = self.context
        below = physical_name(context.virtual_cluster, context.binding_uid, namespace, name)
        return self.informer(key).store.get(f"{context.mount_namespace}/{below}")

    def current_copy(self, key: str) -> Object | None:
        """The copy, as `seen`, if it is there to stay."""
        made = self.created_copies.get(key)
        copy = made.copy if made is not None and self.context.now() < made.until else self.cached_copy(key)
        if copy is None or is_deleting(copy) or self.deleting.get(key) == uid_of(copy):
            return None
        return copy

    def copied_from(self, namespace: str) -> Iterator[str]:
        """The keys of what is copied from a virtual namespace."""
        for informer in self.copy_informers.values():
            for copy in informer.store.by("namespace", namespace):
                yield from source_keys_of(copy)

    async def live_source(self, key: str) -> Object | None:
        kind, namespace, name = key.split("/", 2)
        if dns_subdomain_error(name):  # a pod may refer to what could never exist
            return None
        try:
            return await self.context.virtual_client.find(COPIED_RESOURCES[kind], name, namespace)
        except Forbidden as error:
            raise DependencyNotReady("NotPermitted", error.message) from error


def copy_dependencies(pod: Object) -> dict[str, bool]:
    """What a pod refers to, and whether it calls that optional in each place."""
    found: dict[str, bool] = {}
    for each in references(pod["spec"]):
        if each.kind in COPIED_RESOURCES:
            key = f"{each.kind}/{namespace_of(pod)}/{each.name}"
            found[key] = each.optional and found.get(key, True)
    return found


def is_rejected(pod: Object) -> bool:
    """Whether a pod, or a change of it, was found not to be for the nodes below."""
    accepted = find_condition(pod["status"].get("conditions"), keys.ACCEPTED_CONDITION)
    return accepted is not None and bool(accepted["status"] == "False")


def kind_of(key: str) -> str:
    return key.split("/")[0]


def source_keys_of(copy: Object) -> list[str]:
    """The key of the source of a copy; none for other objects of ours."""
    plural = next(plural for plural, resource in COPIED_RESOURCES.items() if resource.kind == copy["kind"])
    return [f"{plural}/{key}" for key in source_key(copy)]


def source_missing(key: str) -> SourceMissing:
    kind, _, name = key.partition("/")
    return SourceMissing(f"{COPIED_RESOURCES[kind].kind}Missing", f"{kind} {name} does not exist")


def dependencies_changed(old: Object | None, new: Object | None) -> bool:
    """Whether what a pod needs below may have changed; of its references only ephemeral containers bring new ones."""
    if old is None or new is None or is_pod_terminal(old) != is_pod_terminal(new):
        return True
    if old["spec"].get("ephemeralContainers") != new["spec"].get("ephemeralContainers"):
        return True
    return bool(old["status"]["conditions"] != new["status"]["conditions"])
