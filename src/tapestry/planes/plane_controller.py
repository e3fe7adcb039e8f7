"""Controller that opens, suspends and deletes planes as their records say, like a kubelet its pods."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from tapestry.apis.keys import PLANE_FINALIZER
from tapestry.apis.planes import PLANE, PLANES, PlaneSpec, plane_id
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.epochs import EpochFence
from tapestry.client.client import Client
from tapestry.controller import Informer, Manager, Result
from tapestry.kube.conditions import new_condition, with_condition
from tapestry.kube.crds import decode_spec
from tapestry.kube.objects import Object, is_deleting, name_of, value_at
from tapestry.kube.times import parse_time, timestamp
from tapestry.planes.config import PlanesConfig, plane_server_config
from tapestry.planes.plane_actions import Ownership, PlaneAction, next_action, ownership
from tapestry.planes.plane_copies import create_copied_plane
from tapestry.planes.plane_data import PlaneHold, restore_keys
from tapestry.planes.plane_set import PlaneEntry, PlaneSet, PlaneState
from tapestry.planes.processes import Processes, is_holder_changed, process_leases
from tapestry.planes.sealing import GroupKey

STATUS_INTERVAL = 60.0
"""Seconds between two updates of the sizes in the status of an open plane."""
DELETING, RELEASED = "Deleting", "Released"
READY_STATES = frozenset({PlaneState.OPEN, PlaneState.ASLEEP})
"""States in which a plane answers requests. One that is asleep opens for them."""


class PlaneFailed(Exception):
    """Raised if a plane cannot open. The controller tries again later."""


@dataclass(frozen=True)
class PlaneReconciler:
    """Keeps the planes of this process in the state that their records ask for."""

    config: PlanesConfig
    planes: Informer
    plane_set: PlaneSet
    client: Client
    now: Callable[[], datetime]
    address_of: Callable[[str], str]
    """Returns the URL of a plane by its id."""
    delete_data: Callable[[ApiServerConfig, PlaneHold], Awaitable[None]]
    """Deletes the data of a closed plane. A second call does nothing."""
    processes: Processes
    group_key: GroupKey | None
    _epochs: dict[str, int] = field(default_factory=dict)
    """Epochs in which this process holds planes, by id."""
    _ids: dict[str, str] = field(default_factory=dict)
    """Ids of the planes in the PlaneSet, by the name of their record."""
    _acting_on: set[str] = field(default_factory=set)
    """Ids of the planes whose state this reconciler is changing."""

    async def reconcile(self, name: str) -> Result | None:
        plane = self.planes.store.get(name)
        if plane is None:
            await self._close(name)
            return None
        spec, id = decode_spec(PLANE, plane), plane_id(plane)
        match ownership(plane, spec, self.config.name, is_candidate=self.processes.is_candidate(id)):
            case Ownership.OTHER:
                await self._close(name)
                return self._next_takeover(plane, spec, id)
            case Ownership.TO_RELEASE:
                await self._release(plane)
                return None
            case Ownership.CLAIMABLE if is_deleting(plane) and not has_finalizer(plane):
                return None
        if not has_finalizer(plane):
            plane = await self._add_finalizer(plane)
        if id not in self._epochs:
            plane = await self._claim(plane, id)
        return await self._reconcile_held(plane, spec, id)

    async def _reconcile_held(self, plane: Object, spec: PlaneSpec, id: str) -> Result | None:
        """Bring a plane that this process holds to its desired state, and write its status."""
        entry, config = self.plane_set.get(id), plane_server_config(self.config, id, spec)
        hold = PlaneHold(EpochFence(self._epochs[id], self.processes.holds_lease), self.group_key)
        state = entry.state if entry is not None else None
        action = next_action(plane, spec, state, is_config_changed=entry is not None and entry.config != config)
        if action is PlaneAction.DELETE:
            await self._delete(plane, config, hold)
            return None
        if entry is None:
            if action is PlaneAction.ADD:
                await restore_keys(id, config, hold)  # they tell which requests may wake the plane
            if spec.copy_of:
                await self._create_copy(spec, config)
            wake_time = value_at(plane, "status", "wakeTime")
            entry = self.plane_set.add(id, config, hold, wake_at=parse_time(wake_time) if wake_time else None)
            self._ids[name_of(plane)] = id
        entry.idle_timeout = timedelta(seconds=spec.idle_seconds) if spec.idle_seconds else None
        self._acting_on.add(id)
        try:
            await self._act(action, entry, config, spec)
        finally:
            self._acting_on.discard(id)
        await self.client.converge(PLANES, plane, {"status": self._status(plane, entry)})
        if entry.state is PlaneState.FAILED:
            raise PlaneFailed(f"plane {name_of(plane)} cannot open: {entry.message}")
        return Result(requeue_after=STATUS_INTERVAL) if entry.state is PlaneState.OPEN else None

    async def _act(self, action: PlaneAction, entry: PlaneEntry, config: ApiServerConfig, spec: PlaneSpec) -> None:
        match action:
            case PlaneAction.OPEN | PlaneAction.REOPEN:
                if entry.task is not None:
                    await self.plane_set.close(entry, PlaneState.ASLEEP)
                entry.config = config
                await self.plane_set.open(entry)
            case PlaneAction.SUSPEND:
                await self.plane_set.close(entry, PlaneState.SUSPENDED, spec.suspend_reason)

    async def _create_copy(self, spec: PlaneSpec, config: ApiServerConfig) -> None:
        """Create the data of a plane from another one, unless it exists. Raises PlaneFailed if that is impossible."""
        source = self.planes.store.get(spec.copy_of)
        if source is None:
            raise PlaneFailed(f"spec.copyOf: there is no plane {spec.copy_of!r}; create the plane again")
        if {spec.backend, value_at(source, "spec", "backend")} != {"file"}:
            raise PlaneFailed("spec.copyOf: only planes with the backend file can be copied")
        entry = self.plane_set.get(plane_id(source))
        store = entry.plane.opened.store if entry is not None and entry.plane is not None else None
        folder = self.config.planes_folder / plane_id(source)
        await create_copied_plane(folder, store, Path(config.file_rootpath))

    def changed_record(self, entry: PlaneEntry) -> str:
        """Return the name of the record of a plane that changed its state by itself; empty for others."""
        if entry.id in self._acting_on:
            return ""
        return next((name for name, id in self._ids.items() if id == entry.id), "")

    # -- ownership

    async def _add_finalizer(self, plane: Object) -> Object:
        finalizers = [*finalizers_of(plane), PLANE_FINALIZER]
        return await self.client.patch(PLANES, plane, {"metadata": {"finalizers": finalizers}})

    async def _claim(self, plane: Object, id: str) -> Object:
        """Write this process as the holder, in the next epoch. The patch fails if another process was faster."""
        epoch = value_at(plane, "status", "epoch", default=0) + 1
        status = {"id": id, "holder": self.config.name, "epoch": epoch}
        claimed = await self.client.patch(PLANES, plane, {"status": status}, subresource="status")
        self._epochs[id] = epoch
        return claimed

    def _next_takeover(self, plane: Object, spec: PlaneSpec, id: str) -> Result | None:
        """Return when the process that is to take an unheld plane is considered dead, unless its record names one."""
        if spec.process or value_at(plane, "status", "holder"):
            return None
        return Result(requeue_after=self.processes.seconds_until_expiry(id))

    async def _release(self, plane: Object) -> None:
        """Close the plane, then let another process take it."""
        await self._close(name_of(plane))
        status = {"holder": None, "phase": RELEASED, "address": None}
        await self.client.converge(PLANES, plane, {"status": status})

    async def _close(self, name: str) -> None:
        """Close and forget a plane, if it is in the PlaneSet."""
        id = self._ids.pop(name, "")
        self._epochs.pop(id, None)
        if (entry := self.plane_set.get(id)) is not None:
            await self.plane_set.remove(entry)

    # -- deletion and status

    async def _delete(self, plane: Object, config: ApiServerConfig, hold: PlaneHold) -> None:
        """Close the plane, delete its data, and let its record go."""
        plane = await self.client.converge(PLANES, plane, {"status": {"phase": DELETING}})
        await self._close(name_of(plane))
        await self.delete_data(config, hold)
        finalizers = [each for each in finalizers_of(plane) if each != PLANE_FINALIZER]
        await self.client.patch(PLANES, plane, {"metadata": {"finalizers": finalizers}})

    def _status(self, plane: Object, entry: PlaneEntry) -> Object:
        generation = plane["metadata"].get("generation")
        ready = new_condition(
            "Ready", entry.state in READY_STATES, str(entry.state), entry.message, observed_generation=generation
        )
        return {
            "phase": str(entry.state),
            "message": entry.message or None,
            "wakeTime": timestamp(entry.wake_at) if entry.wake_at is not None else None,
            "address": self.address_of(entry.id),
            "observedGeneration": generation,
            "conditions": with_condition(value_at(plane, "status", "conditions"), ready, self.now()),
            **sizes(entry),
        }


def finalizers_of(plane: Object) -> list[str]:
    return plane["metadata"].get("finalizers") or []


def has_finalizer(plane: Object) -> bool:
    return PLANE_FINALIZER in finalizers_of(plane)


def sizes(entry: PlaneEntry) -> Object:
    """Return revision, number and size of the objects of an open plane; nothing for others."""
    if entry.plane is None:
        return {}
    store = entry.plane.opened.store
    return {"revision": store.revision, "objects": store.object_count, "bytes": store.object_bytes}


def install(
    manager: Manager,
    config: PlanesConfig,
    plane_set: PlaneSet,
    address_of: Callable[[str], str],
    delete_data: Callable[[ApiServerConfig, PlaneHold], Awaitable[None]],
    processes: Processes,
    group_key: GroupKey | None = None,
) -> None:
    planes, leases = manager.informer(PLANES), process_leases(manager)
    reconciler = PlaneReconciler(
        *(config, planes, plane_set, manager.client, manager.now, address_of, delete_data, processes, group_key)
    )
    controller = manager.controller("planes", reconciler.reconcile)
    controller.watch(planes)
    leases.on_change(processes.observe)
    controller.watch(leases, lambda _: unheld_planes(planes), when=is_holder_changed)

    def enqueue(entry: PlaneEntry) -> None:
        if name := reconciler.changed_record(entry):
            controller.queue.add(name)

    plane_set.on_change(enqueue)


def unheld_planes(planes: Informer) -> Iterator[str]:
    return (name_of(plane) for plane in planes.store.list() if not value_at(plane, "status", "holder"))
