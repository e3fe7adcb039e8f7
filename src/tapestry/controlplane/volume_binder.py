"""Volume binder: binds claims to volumes, and releases the volumes of deleted claims.

A binding is written to the volume first, then to the claim. Each write has the version of the cached object as its
precondition, so that a volume is never bound to two claims, and each step can be repeated.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from tapestry.apiserver.admission.default_class import STORAGE_CLASS_MARKS, newest_default
from tapestry.client.client import Client
from tapestry.controller import Informer, Manager
from tapestry.controller.events import Recorder
from tapestry.controller.queue import Queue
from tapestry.controlplane.volume_binding import (
    EventText,
    Volumes,
    VolumeStep,
    claim_patch,
    claim_status_patch,
    claim_step,
    volume_patch,
    volume_step,
)
from tapestry.controlplane.volume_index import FreeVolumes, UnboundClaims
from tapestry.controlplane.volume_matching import (
    BIND_COMPLETED,
    is_volume_free,
    storage_class_of,
    waits_for_consumer,
)
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, annotations_of, is_deleting, key_of, name_of, uid_of, value_at
from tapestry.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES
from tapestry.kube.times import timestamp

CLAIM, VOLUME, STORAGE_CLASS = "claim", "volume", "class"
"""Kinds of keys, and names of indexes: volumes by the claim that they name, claims by the volume that they name."""
UNBOUND = "unbound"
"""Name of the index of claims without a volume, by storage class."""
RETRY_INTERVAL = 1.0
"""Seconds between a changed storage class or a failed binding and a retry of the unbound claims."""
RETRIES_PER_SECOND = 200
"""Number of unbound claims that can be retried every second."""


@dataclass
class VolumeBinder:
    """Reconcile claims, volumes and storage classes. A key is the kind and the key of an object."""

    client: Client
    events: Recorder
    now: Callable[[], datetime]
    claims: Informer
    volumes: Informer
    storage_classes: Informer
    queue: Queue = field(default_factory=Queue)
    free_volumes: FreeVolumes = field(default_factory=FreeVolumes)
    unbound_claims: UnboundClaims = field(default_factory=UnboundClaims)
    """Claims that were reconciled without a result, and are not queued because of a free volume."""
    offers: dict[str, str] = field(default_factory=dict)
    """Names of free volumes by the key of the claim that is queued for each."""
    pending_bindings: dict[str, str] = field(default_factory=dict)
    """UIDs of claims by the name of a volume whose binding is not in the cache yet."""
    retried_claims: dict[str, int] = field(default_factory=dict)
    """Number of unbound claims at the last retry, by storage class."""
    reported: dict[str, EventText] = field(default_factory=dict)
    """Last event about each unbound claim or failed volume, by key. It is repeated only if it differs."""

    # -- event handlers

    def claim_changed(self, old: Object | None, new: Object | None) -> None:
        claim = new or old
        assert claim is not None
        self.queue.add(f"{CLAIM} {key_of(claim)}")
        if old is None or new is None or binding_of(old) != binding_of(new):
            for volume in self.volumes.store.by(CLAIM, key_of(claim)):
                self.queue.add(f"{VOLUME} {name_of(volume)}")

    def volume_changed(self, old: Object | None, new: Object | None) -> None:
        volume = new or old
        assert volume is not None
        name = name_of(volume)
        if new is None or value_at(new, "spec", "claimRef") is not None:
            self.pending_bindings.pop(name, None)
        self.queue.add(f"{VOLUME} {name}")
        reserved_for = {key for each in (old, new) if each is not None for key in reserving_claim(each)}
        for key in reserved_for | {key_of(claim) for claim in self.claims.store.by(VOLUME, name)}:
            self.queue.add(f"{CLAIM} {key}")
        if new is not None and is_volume_free(new):
            self.free_volumes.put(new)
            self.offer(new)
        else:
            self.free_volumes.remove(name)

    def storage_class_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None and old is not None:
            self.retried_claims.pop(name_of(old), None)
        elif new is not None:
            self.retry_claims(name_of(new))
            self.retry_claims("")  # it may be the default

    def offer(self, volume: Object) -> None:
        """Reconcile the largest unbound claim that a free volume matches."""
        if name_of(volume) in self.pending_bindings:
            return
        if waits_for_consumer(self.storage_classes.store.get(storage_class_of(volume))):
            return  # the scheduler selects the volumes of these claims
        key = self.unbound_claims.largest_match(volume)
        if key is not None:
            self.unbound_claims.remove(key)
            self.offers[key] = name_of(volume)
            self.queue.add(f"{CLAIM} {key}")

    def retry_claims(self, storage_class: str) -> None:
        """Reconcile the unbound claims of a storage class soon, once for all changes until then."""
        if next(self.claims.store.iter_by(UNBOUND, storage_class), None) is not None:
            delay = max(RETRY_INTERVAL, self.retried_claims.get(storage_class, 0) / RETRIES_PER_SECOND)
            self.queue.add_after(f"{STORAGE_CLASS} {storage_class}", delay)

    # -- reconciling

    async def reconcile(self, key: str) -> None:
        kind, _, object_key = key.partition(" ")
        try:
            if kind == CLAIM:
                await self.reconcile_claim(object_key)
            elif kind == VOLUME:
                await self.reconcile_volume(object_key)
            else:
                unbound = self.claims.store.by(UNBOUND, object_key)
                self.retried_claims[object_key] = len(unbound)
                for claim in unbound:
                    self.queue.add(f"{CLAIM} {key_of(claim)}", resync=True)
        except NotFound:
            return  # deleted in the meantime

    async def reconcile_claim(self, key: str) -> None:
        claim = self.claims.store.get(key)
        step = claim_step(claim, self.lookup()) if claim is not None else None
        self.update_unbound_claims(key, claim, step.volume if step is not None else None)
        if claim is None or step is None:
            self.reported.pop(f"{CLAIM} {key}", None)
            return
        if step.volume is not None:
            self.reported.pop(f"{CLAIM} {key}", None)
            await self.bind(step.volume, claim)
            return
        if step.patch is not None:
            await self.client.patch(PERSISTENT_VOLUME_CLAIMS, claim, step.patch)
        elif value_at(claim, "status", "phase") != step.phase:
            if step.phase == "Lost" and await self.is_volume_uncached(claim):
                return  # its arrival in the cache triggers the next call
            patch = {"status": {"phase": step.phase, "accessModes": None, "capacity": None}}
            await self.client.patch(PERSISTENT_VOLUME_CLAIMS, claim, patch, subresource="status")
        self.report(f"{CLAIM} {key}", claim, step.event)

    def update_unbound_claims(self, key: str, claim: Object | None, volume: Object | None) -> None:
        """Record whether a claim has got a volume; offer the volume that it was queued for to another if it has not."""
        self.unbound_claims.remove(key)
        offered = self.volumes.store.get(self.offers.pop(key, ""))
        if offered is not None and is_volume_free(offered) and (volume is None or name_of(volume) != name_of(offered)):
            self.offer(offered)
        if claim is not None and volume is None and is_unbound(claim):
            self.unbound_claims.put(claim)

    async def is_volume_uncached(self, claim: Object) -> bool:
        name = value_at(claim, "spec", "volumeName")
        if not name or name in self.volumes.store:
            return False
        return await self.client.find(PERSISTENT_VOLUMES, name) is not None

    async def bind(self, volume: Object, claim: Object) -> None:
        if (patch := volume_patch(volume, claim)) is not None:
            self.pending_bindings[name_of(volume)] = uid_of(claim)
            try:
                volume = await self.client.patch(PERSISTENT_VOLUMES, volume, patch)
            except BaseException:
                self.pending_bindings.pop(name_of(volume), None)
                self.retry_claims(storage_class_of(volume))
                raise
        volume = await self.set_phase(volume, VolumeStep("Bound"))
        if (patch := claim_patch(claim, volume)) is not None:
            claim = await self.client.patch(PERSISTENT_VOLUME_CLAIMS, claim, patch)
        if (patch := claim_status_patch(claim, volume)) is not None:
            await self.client.patch(PERSISTENT_VOLUME_CLAIMS, claim, patch, subresource="status")

    async def reconcile_volume(self, name: str) -> None:
        volume = self.volumes.store.get(name)
        step = volume_step(volume, await self.claim_of(volume)) if volume is not None else None
        if volume is None or step is None:
            self.reported.pop(f"{VOLUME} {name}", None)
            return
        if step.patch is not None:
            volume = await self.client.patch(PERSISTENT_VOLUMES, volume, step.patch)
        await self.set_phase(volume, step)
        self.report(f"{VOLUME} {name}", volume, step.event)

    async def claim_of(self, volume: Object) -> Object | None:
        """Return the claim that the volume names. It is read live before a volume is released."""
        reference = value_at(volume, "spec", "claimRef", default={})
        uid = reference.get("uid")
        if not uid:
            return None
        claim = self.claims.store.get(f"{reference.get('namespace')}/{reference.get('name')}")
        if claim is not None and uid_of(claim) == uid:
            return claim
        if value_at(volume, "status", "phase") in ("Released", "Failed"):
            return None
        claim = await self.client.find(PERSISTENT_VOLUME_CLAIMS, reference["name"], reference["namespace"])
        return claim if claim is not None and uid_of(claim) == uid else None

    async def set_phase(self, volume: Object, step: VolumeStep) -> Object:
        current = value_at(volume, "status", "phase")
        if current == step.phase or (current == "Failed" and step.phase == "Released"):
            return volume
        status = {
            "phase": step.phase,
            "message": step.event.message if step.event is not None else None,
            "lastPhaseTransitionTime": timestamp(self.now()),
        }
        return await self.client.patch(PERSISTENT_VOLUMES, volume, {"status": status}, subresource="status")

    def report(self, key: str, obj: Object, event: EventText | None) -> None:
        if event is None:
            self.reported.pop(key, None)
        elif self.reported.get(key) != event:
            self.reported[key] = event
            (self.events.normal if event.type == "Normal" else self.events.warning)(obj, event.reason, event.message)

    # -- lookup

    def lookup(self) -> Volumes:
        return Volumes(
            self.volumes.store.get,
            lambda claim: self.volumes.store.iter_by(CLAIM, key_of(claim)),
            self.matching_volumes,
            self.storage_classes.store.get,
            lambda: newest_default(self.storage_classes.store.list(), STORAGE_CLASS_MARKS),
        )

    def matching_volumes(self, claim: Object) -> Iterable[Object]:
        for volume in self.free_volumes.matches(claim):
            if self.pending_bindings.get(name_of(volume)) in (None, uid_of(claim)):
                yield volume


def binding_of(claim: Object) -> tuple[str, str | None]:
    """Return the fields of a claim on which the phase of a volume depends."""
    return uid_of(claim), value_at(claim, "spec", "volumeName")


def reserving_claim(volume: Object) -> Iterable[str]:
    reference = value_at(volume, "spec", "claimRef")
    return (f"{reference.get('namespace')}/{reference.get('name')}",) if reference else ()


def named_volume(claim: Object) -> Iterable[str]:
    name = value_at(claim, "spec", "volumeName")
    return (name,) if name else ()


def unbound_class(claim: Object) -> Iterable[str]:
    return (storage_class_of(claim),) if is_unbound(claim) else ()


def is_unbound(claim: Object) -> bool:
    has_volume = BIND_COMPLETED in annotations_of(claim) or value_at(claim, "spec", "volumeName")
    return not has_volume and not is_deleting(claim)


def install(manager: Manager) -> None:
    """Add the volume binder to `manager`."""
    claims, volumes = manager.informer(PERSISTENT_VOLUME_CLAIMS), manager.informer(PERSISTENT_VOLUMES)
    storage_classes = manager.informer(STORAGE_CLASSES)
    claims.store.add_index(VOLUME, named_volume)
    claims.store.add_index(UNBOUND, unbound_class)
    volumes.store.add_index(CLAIM, reserving_claim)
    events = Recorder(manager.client, "persistentvolume-controller", manager.identity, manager.now)
    manager.run_while_leading("volume binder events", events.run)
    binder = VolumeBinder(manager.client, events, manager.now, claims, volumes, storage_classes)
    controller = manager.controller("volumes", binder.reconcile)
    binder.queue = controller.queue
    claims.on_change(binder.claim_changed)
    volumes.on_change(binder.volume_changed)
    storage_classes.on_change(binder.storage_class_changed)
