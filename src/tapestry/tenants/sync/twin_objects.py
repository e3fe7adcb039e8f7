"""Reconciler of twins: objects in the namespace of a tenant, each made from an object of the same kind in its plane.

only virtual     create the twin, or report why the host cluster has none.
both             update the twin, and write what the host cluster reports to the virtual object.
only physical    the virtual object is deleted, as a live read confirms: delete the twin.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tapestry.apis.clusterbindings import Binding
from tapestry.controller import Controller, ObjectCache, Result, Terminal
from tapestry.kube.errors import AlreadyExists, BadRequest, Forbidden, Invalid
from tapestry.kube.objects import Object, key_of, name_of, namespace_of, split_key
from tapestry.kube.resources import Resource
from tapestry.syncer.clients import Clients
from tapestry.syncer.components import Syncer
from tapestry.syncer.current_binding import CurrentBinding
from tapestry.syncer.predicates import spec_changed
from tapestry.syncer.translate.metadata import source_key


class NotSynced(Exception):
    """A virtual object without a twin, with the reason in CamelCase and a message for the tenant."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


Translate = Callable[[Object, Binding], Object]
"""Return the desired twin of a virtual object, for `converge`. Raises NotSynced. It is pure."""
ReportedStatus = Callable[[Object, Object], Object | None]
"""Return a patch of the status of a virtual object from its twin, which is untrusted; None if there is none."""


def no_status(_: Object, __: Object) -> None:
    return None


@dataclass(frozen=True)
class TwinReconciler:
    """Keep one twin for each virtual object of a kind; keyed by the virtual object."""

    resource: Resource
    current_binding: CurrentBinding
    clients: Clients
    virtual: ObjectCache
    twins: ObjectCache
    """The tenant's objects of the kind in the host cluster, with an index by source."""
    desired_twin: Translate
    reported_status: ReportedStatus = no_status
    reported: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Reason and message of the last event about an object without a twin, by its key."""

    async def reconcile(self, key: str) -> Result | None:
        binding = self.current_binding.get()
        if binding is None or self.current_binding.is_unbinding:
            return None
        if not (self.virtual.synced.is_set() and self.twins.synced.is_set()):
            return None  # all keys are queued when the caches are filled
        virtual = self.virtual.store.get(key)
        existing = self.twins.store.by("source", key)
        desired = self._desired(virtual, binding)
        if virtual is None or desired is None:
            self.reported.pop(key, None) if virtual is None else None
            await self._delete(key, existing, binding)
            return None
        for each in existing:
            if name_of(each) != name_of(desired):
                await self.clients.physical.delete_if_exists(self.resource, each)
        twin = await self._converge(virtual, existing, desired, binding)
        if twin is not None and (patch := self.reported_status(virtual, twin)) is not None:
            await self.clients.virtual.patch(self.resource, virtual, patch, subresource="status")
        return None

    def _desired(self, virtual: Object | None, binding: Binding) -> Object | None:
        """Return the desired twin; None if there is to be none, which an event explains."""
        if virtual is None:
            return None
        try:
            desired = self.desired_twin(virtual, binding)
        except NotSynced as error:
            self._report(virtual, error.reason, str(error))
            return None
        self.reported.pop(key_of(virtual), None)
        return desired

    def _report(self, virtual: Object, reason: str, message: str) -> None:
        if self.reported.get(key_of(virtual)) != (reason, message):
            self.reported[key_of(virtual)] = reason, message
            self.clients.events.warning(virtual, reason, message)

    async def _delete(self, key: str, existing: Sequence[Object], binding: Binding) -> None:
        """Delete twins after a live read of their source confirms that there is to be none."""
        if not existing:
            return
        namespace, name = split_key(key)
        live = await self.clients.virtual.find(self.resource, name, namespace)
        if live is not None and self._desired(live, binding) is not None:
            return  # the cache will see it
        for each in existing:
            await self.clients.physical.delete_if_exists(self.resource, each)

    async def _converge(
        self, virtual: Object, existing: Sequence[Object], desired: Object, binding: Binding
    ) -> Object | None:
        """Create or update the twin and return it; None if the host cluster rejects it."""
        cached = next((each for each in existing if name_of(each) == name_of(desired)), None)
        try:
            return await self.clients.physical.converge(self.resource, cached, desired)
        except AlreadyExists:
            found = await self.clients.physical.get(self.resource, name_of(desired), namespace_of(desired))
            if not binding.owns(found):
                message = f"{self.resource.kind} {key_of(found)} in the host cluster belongs to somebody else"
                raise Terminal("NameTaken", message) from None
            return await self.clients.physical.converge(self.resource, found, desired)
        except (Forbidden, Invalid, BadRequest) as error:
            self._report(virtual, "HostRejected", error.message)
            raise


def wire_twins(
    syncer: Syncer, name: str, resource: Resource, desired_twin: Translate, reported_status: ReportedStatus = no_status
) -> Controller:
    """Add the controller of the twins of a kind to a syncer; return it for more watches."""
    manager, caches = syncer.manager, syncer.caches
    virtual, twins = manager.informer(resource), syncer.owned_cache(resource)
    reconciler = TwinReconciler(
        resource, syncer.current_binding, syncer.clients, virtual, twins, desired_twin, reported_status
    )
    controller = manager.controller(name, reconciler.reconcile)
    controller.watch(virtual)
    controller.watch(twins, source_key)

    def requeue_all(old: Object | None = None, new: Object | None = None) -> None:
        for key in {*virtual.store, *twins.store.index_values("source")}:
            controller.queue.add(key)

    for each in (virtual, twins):
        each.after_sync(requeue_all)
    caches.bindings.on_change(lambda old, new: requeue_all() if spec_changed(old, new) else None)
    return controller
