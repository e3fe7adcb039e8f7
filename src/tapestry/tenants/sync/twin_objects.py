"""Reconciler of twins: objects in the namespace of a tenant, each made from an object of the same kind in its plane.

only virtual     create the twin, or report why the host cluster has none.
both             update the twin, and write what the host cluster decides to the virtual object.
only physical    the virtual object is deleted, as a live read confirms: delete the twin.

A twin that differs in an immutable field is deleted, and created again when its deletion is observed. A rejection by
the host cluster, for example by its quota, is reported to the tenant and retried.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.controller import Controller, ObjectCache, Terminal
from tapestry.kube.conditions import find_condition, new_condition, with_condition
from tapestry.kube.errors import AlreadyExists, BadRequest, Forbidden, Invalid, NotFound
from tapestry.kube.objects import Object, is_deleting, key_of, name_of, namespace_of, split_key, value_at
from tapestry.kube.resources import Resource
from tapestry.syncer.clients import Clients
from tapestry.syncer.components import Syncer
from tapestry.syncer.current_binding import CurrentBinding
from tapestry.syncer.predicates import spec_changed
from tapestry.syncer.translate.metadata import source_key
from tapestry.syncer.translate.sanitize import truncate_text
from tapestry.tenants.tenant_caches import empty_cache

SYNCED = "Synced"
HOST_REJECTED = "HostRejected"
NAME_TAKEN = "NameTaken"
RETRIES_PER_DELETION = 10
"""Rejected objects that are retried at once after the deletion of a twin. All others wait for their backoff."""


class NoTwin(Exception):
    """A virtual object that needs no twin."""


class NotSynced(NoTwin):
    """A virtual object without a twin, with the reason in CamelCase and a message for the tenant."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


Translate = Callable[[Object, Binding], Object]
"""Return the desired twin of a virtual object, for `converge`. Raises NoTwin. It does no I/O."""
Reported = Callable[[Object, Object | None], Object | None]
"""Return the fields of a virtual object that its host cluster decides, as `{"status": {...}}`, for `converge`.

Its arguments are the virtual object and its twin, which is untrusted, or None if there is no twin.
"""
NeedsRecreate = Callable[[Object, Object], bool]
"""Return whether an existing twin differs from the desired one in an immutable field."""
WithAllocated = Callable[[Object, Object], Object]
"""Return the desired twin with the values in it that the host cluster allocated to the existing one."""
Limitation = Callable[[Object, Binding], NotSynced | None]
"""Return why the twin of an object lacks a part of it; None if it lacks none."""


def nothing_reported(_: Object, __: Object | None) -> None:
    return None


def never_recreated(_: Object, __: Object) -> bool:
    return False


def nothing_allocated(desired: Object, _: Object) -> Object:
    return desired


def unlimited(_: Object, __: Binding) -> None:
    return None


@dataclass(frozen=True)
class TwinKind:
    """Rules for the twins of one kind."""

    resource: Resource
    desired_twin: Translate
    reported: Reported = nothing_reported
    """Called also for objects that need no twin."""
    needs_recreate: NeedsRecreate = never_recreated
    with_allocated: WithAllocated = nothing_allocated
    """Called with the desired and the existing twin."""
    limitation: Limitation = unlimited
    has_conditions: bool = False
    """True if virtual objects that are not synced get the condition `tapestry.io/Synced`, besides the event."""
    labels: str = ""
    """Selector of the virtual objects; empty for all."""


@dataclass(frozen=True)
class TwinReconciler:
    """Keep one twin for each virtual object of a kind; keyed by the virtual object."""

    kind: TwinKind
    current_binding: CurrentBinding
    clients: Clients
    now: Callable[[], datetime]
    virtual: ObjectCache
    twins: ObjectCache
    """The tenant's objects of the kind in the host cluster, with an index by source."""
    failures: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Reason and message of the last event about each virtual object that is not synced, by key."""

    async def reconcile(self, key: str) -> None:
        binding = self.current_binding.get()
        if binding is None or self.current_binding.is_unbinding:
            return
        if not (self.virtual.synced.is_set() and self.twins.synced.is_set()):
            return  # all keys are queued when the caches are filled
        virtual = self.virtual.store.get(key)
        existing = [each for each in self.twins.store.by("source", key) if binding.owns(each)]
        if virtual is None:
            self.failures.pop(key, None)
            await self._delete_unwanted(key, existing, binding)
            return
        try:
            desired = self.kind.desired_twin(virtual, binding)
        except NoTwin as error:
            if await self._delete_unwanted(key, existing, binding):
                self._report_limitation(virtual, error if isinstance(error, NotSynced) else None)
                await self._write_back(virtual, None)
            return
        try:
            twin = await self._twin(existing, desired, binding)
        except (Forbidden, Invalid, BadRequest) as error:
            self._report(virtual, HOST_REJECTED, truncate_text(error.message))
            await self._write_back(virtual, next((each for each in existing if not is_deleting(each)), None))
            raise
        except Terminal as error:
            self._report(virtual, error.reason, error.message)
            await self._write_back(virtual, None)
            raise
        self._report_limitation(virtual, self.kind.limitation(virtual, binding))
        await self._write_back(virtual, twin)

    async def _delete_unwanted(self, key: str, existing: Sequence[Object], binding: Binding) -> bool:
        """Delete twins after a live read of their source confirms that there is to be none.

        Return False if there is to be one: the caches lag behind, and a change follows.
        """
        if not existing:
            return True
        namespace, name = split_key(key)
        live = await self.clients.virtual.find(self.kind.resource, name, namespace)
        if live is not None:
            try:
                self.kind.desired_twin(live, binding)
            except NoTwin:
                pass
            else:
                return False
        for each in existing:
            await self._delete(each)
        return True

    async def _delete(self, twin: Object) -> None:
        if not is_deleting(twin):
            await self.clients.physical.delete_if_exists(self.kind.resource, twin)

    async def _twin(self, existing: Sequence[Object], desired: Object, binding: Binding) -> Object | None:
        """Create or update the twin and return it; None until the deletion of a previous one is observed."""
        cached = None
        for each in existing:
            if name_of(each) != name_of(desired):
                await self._delete(each)
            else:
                cached = each
        try:
            return await self._converge(cached, desired)
        except AlreadyExists:
            pass
        found = await self.clients.physical.get(self.kind.resource, name_of(desired), namespace_of(desired))
        if not binding.owns(found):
            message = f"{self.kind.resource.kind} {key_of(found)} in the host cluster belongs to somebody else"
            raise Terminal(NAME_TAKEN, f"{message}; ask the operator of the host cluster to delete it")
        return await self._converge(found, desired)

    async def _converge(self, current: Object | None, desired: Object) -> Object | None:
        """Create or update the twin. Its deletion, if it needs one, requeues its key."""
        if current is not None and self.kind.needs_recreate(current, desired):
            await self._delete(current)
            return None
        if current is not None and is_deleting(current):
            return None
        if current is not None:
            desired = self.kind.with_allocated(desired, current)
        return await self.clients.physical.converge(self.kind.resource, current, desired)

    # -- the virtual object

    def _report(self, virtual: Object, reason: str, message: str) -> None:
        """Record an event, unless the last one about the object was the same."""
        if self.failures.get(key_of(virtual)) != (reason, message):
            self.failures[key_of(virtual)] = reason, message
            self.clients.events.warning(virtual, reason, message)

    def _report_limitation(self, virtual: Object, error: NotSynced | None) -> None:
        if error is None:
            self.failures.pop(key_of(virtual), None)
        else:
            self._report(virtual, error.reason, str(error))

    async def _write_back(self, virtual: Object, twin: Object | None) -> None:
        fields = self.kind.reported(virtual, twin) or {}
        if self.kind.has_conditions and (conditions := self._conditions(virtual)) is not None:
            fields = {**fields, "status": {**(fields.get("status") or {}), "conditions": conditions}}
        if not fields:
            return
        try:
            await self.clients.virtual.converge(self.kind.resource, virtual, fields)
        except NotFound:
            return  # deleted meanwhile

    def _conditions(self, virtual: Object) -> list[Object] | None:
        """Return the conditions of a virtual object; None if it was always synced."""
        conditions = value_at(virtual, "status", "conditions")
        if (failure := self.failures.get(key_of(virtual))) is not None:
            return with_condition(conditions, new_condition(keys.SYNCED_CONDITION, False, *failure), self.now())
        if find_condition(conditions, keys.SYNCED_CONDITION) is not None:
            return with_condition(conditions, new_condition(keys.SYNCED_CONDITION, True, SYNCED), self.now())
        return None


def wire_twins(
    syncer: Syncer, name: str, resource: Resource, desired_twin: Translate, reported: Reported = nothing_reported
) -> Controller:
    """Add the controller of the twins of a kind to a syncer, see `wire_twin_kind`."""
    return wire_twin_kind(syncer, name, TwinKind(resource, desired_twin, reported))


def wire_twin_kind(syncer: Syncer, name: str, kind: TwinKind, *, is_synced: bool = True) -> Controller:
    """Add the controller of the twins of a kind to a syncer; return it for more watches.

    The keys of all objects are queued when the spec of the binding changes. A kind that is not synced is not watched in
    the plane; its twins are deleted.
    """
    manager, caches = syncer.manager, syncer.caches
    twins = syncer.owned_cache(kind.resource)
    virtual: ObjectCache = (
        manager.informer(kind.resource, labels=kind.labels) if is_synced else empty_cache(kind.resource, name)
    )
    reconciler = TwinReconciler(kind, syncer.current_binding, syncer.clients, manager.now, virtual, twins)
    controller = manager.controller(name, reconciler.reconcile)
    controller.watch(virtual)
    controller.watch(twins, source_key)

    def requeue_all() -> None:
        for key in {*virtual.store, *twins.store.index_values("source")}:
            controller.queue.add(key)

    def requeue_rejected(_: Object | None, new: Object | None) -> None:
        """Retry at once when a deletion may have freed an amount of the quota."""
        if new is None:
            rejected = (key for key, (reason, _) in reconciler.failures.items() if reason == HOST_REJECTED)
            for key in islice(rejected, RETRIES_PER_DELETION):
                controller.queue.add(key)

    twins.on_change(requeue_rejected)
    for each in (virtual, twins):
        each.after_sync(requeue_all)
    caches.bindings.on_change(lambda old, new: requeue_all() if spec_changed(old, new) else None)
    return controller
