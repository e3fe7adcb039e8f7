"""Controller that opens, suspends and deletes planes as their records say, like a kubelet its pods."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tapestry.apis.keys import PLANE_FINALIZER
from tapestry.apis.planes import PLANE, PLANES, PlaneSpec, own_process_name, plane_id, wanted_process
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.epochs import EpochFence, EpochLost
from tapestry.apiserver.core.store import StorageError
from tapestry.client.client import Client
from tapestry.controller import Informer, Manager, Result, generation_changed
from tapestry.kube.conditions import new_condition, with_condition
from tapestry.kube.crds import InvalidSpec, decode_spec
from tapestry.kube.objects import Object, is_deleting, name_of, uid_of, value_at
from tapestry.kube.times import parse_time, timestamp
from tapestry.planes.config import PlanesConfig, plane_server_config, plane_storage_config
from tapestry.planes.plane_actions import Ownership, PlaneAction, next_action, ownership
from tapestry.planes.plane_certificates import certificates_expiring
from tapestry.planes.plane_data import (
    CopySource,
    PlaneHold,
    create_copied_plane,
    delete_plane_data,
    has_plane_data,
    restore_keys,
)
from tapestry.planes.plane_set import PlaneEntry, PlaneSet, PlaneState
from tapestry.planes.plane_tls import authority_of
from tapestry.planes.processes import Processes, is_holder_changed, process_leases
from tapestry.planes.sealing import GroupKey
from tapestry.process.tasks import first_error

STATUS_INTERVAL = 60.0
"""Seconds between two updates of the sizes in the status of an open plane."""
CERTIFICATES_INTERVAL = 86_400.0
"""Seconds between two updates of the condition CertificatesExpiring of a plane that is not open."""
OBSTACLE_SECONDS = 2.0
"""Seconds between two checks whether a deleted plane still has to stay."""
DELETING, RELEASED = "Deleting", "Released"
READY_STATES = frozenset({PlaneState.OPEN, PlaneState.ASLEEP})
"""States in which a plane answers requests. One that is asleep opens for them."""


class PlaneFailed(Exception):
    """Error if a plane cannot open. The controller tries again later."""


BASIC_FIELDS = frozenset({"backend", "state", "suspendReason", "process", "ownProcess"})
"""Fields of the spec that are enough to suspend, release and delete a plane."""
FAILURES = (PlaneFailed, StorageError, ValueError, OSError, ExceptionGroup)
"""Errors of the data and of the configuration of a plane."""


@dataclass(frozen=True)
class PlaneData:
    """Operations on the data of planes that are not open. Each may be called again after it failed or was killed."""

    exists: Callable[[ApiServerConfig], Awaitable[bool]] = has_plane_data
    restore_keys: Callable[[str, ApiServerConfig, PlaneHold], Awaitable[None]] = restore_keys
    copy: Callable[[CopySource, ApiServerConfig, EpochFence], Awaitable[None]] = create_copied_plane
    delete: Callable[[ApiServerConfig, PlaneHold], Awaitable[None]] = delete_plane_data


PLANE_DATA = PlaneData()


@dataclass(frozen=True)
class PlaneReconciler:
    """Keep the planes of this process in the state that their records ask for."""

    config: PlanesConfig
    planes: Informer
    plane_set: PlaneSet
    client: Client
    now: Callable[[], datetime]
    address_of: Callable[[str], str]
    """Return the URL of a plane by its id."""
    data: PlaneData
    processes: Processes
    group_key: GroupKey | None
    _epochs: dict[str, int] = field(default_factory=dict)
    """Epochs in which this process holds planes, by id."""
    _later_epochs: dict[str, int] = field(default_factory=dict)
    """Epochs of other processes that were found in etcd, by id."""
    _ids: dict[str, str] = field(default_factory=dict)
    """Ids of the planes in the PlaneSet, by the name of their record."""
    _acting_on: set[str] = field(default_factory=set)
    """Ids of the planes whose state this reconciler is changing."""

    async def reconcile(self, name: str) -> Result | None:
        if self.plane_set.is_stopped:
            return None
        plane = self.planes.store.get(name)
        if plane is None:
            await self._close(name)
            return None
        spec, spec_error = readable_spec(plane)
        id = plane_id(plane)
        if self._ids.get(name, id) != id:  # the record was deleted and created again
            await self._close(name)
        wanted, is_candidate = self._wanted_process(plane, spec, id), self._is_candidate(plane, spec, id)
        is_named_only = self.processes.is_named_only
        match ownership(plane, wanted, self.config.name, is_candidate=is_candidate, is_named_only=is_named_only):
            case Ownership.OTHER:
                await self._close(name)
                return self._next_takeover(plane, wanted, id)
            case Ownership.TO_RELEASE:
                await self._release(plane, spec, id)
                return None
            case Ownership.CLAIMABLE if is_deleting(plane) and not has_finalizer(plane):
                return None
        if not has_finalizer(plane):
            plane = await self._add_finalizer(plane)
        entry = self.plane_set.get(id)
        if entry is not None and entry.later_epoch is not None:
            self._forget_epoch(id, entry.later_epoch)
            entry.later_epoch = None
        if id not in self._epochs:
            plane = await self._claim(plane, id)
        hold = PlaneHold(EpochFence(self._epochs[id], self.processes.holds_lease), self.group_key)
        obstacle = await self._obstacle(plane, id) if is_deleting(plane) else ""
        if is_deleting(plane) and not obstacle:
            await self._delete(plane, plane_storage_config(self.config, id, spec.backend), hold)
            return None
        return await self._reconcile_held(plane, spec, spec_error, hold, obstacle)

    async def _reconcile_held(
        self, plane: Object, spec: PlaneSpec, spec_error: ValueError | None, hold: PlaneHold, obstacle: str
    ) -> Result | None:
        """Bring a plane that this process holds to its desired state, and write its status.

        `obstacle` is the reason why a deleted plane stays, which becomes its message.
        """
        id = plane_id(plane)
        entry = self.plane_set.get(id)
        try:
            config = self._server_config(id, spec, spec_error)
            state, is_changed = (entry.state, entry.config != config) if entry is not None else (None, False)
            action = next_action(plane, spec, state, is_config_changed=is_changed)
            if entry is None:
                entry = await self._add(plane, spec, config, hold, action)
            elif action is PlaneAction.OPEN and entry.state is PlaneState.SUSPENDED:
                await self._check_data(plane, config)
        except FAILURES as error:
            await self._report_failure(plane, entry, first_error(error))
            raise PlaneFailed(f"plane {name_of(plane)} cannot open: {first_error(error)}") from error
        entry.config, entry.hold = config, hold
        entry.idle_timeout = timedelta(seconds=spec.idle_seconds) if spec.idle_seconds else None
        self._acting_on.add(id)
        try:
            await self._act(action, entry, spec)
        finally:
            self._acting_on.discard(id)
        if self.plane_set.is_stopped:
            return None
        status = self._status(plane, entry)
        await self.client.converge(PLANES, plane, {"status": status | ({"message": obstacle} if obstacle else {})})
        if obstacle:
            return Result(requeue_after=OBSTACLE_SECONDS)
        if entry.state is PlaneState.FAILED:
            raise PlaneFailed(f"plane {name_of(plane)} cannot open: {entry.message}")
        return Result(requeue_after=STATUS_INTERVAL if entry.state is PlaneState.OPEN else CERTIFICATES_INTERVAL)

    def _server_config(self, id: str, spec: PlaneSpec, spec_error: ValueError | None) -> ApiServerConfig:
        """Return the configuration of a plane. One that is suspended needs only the storage."""
        if spec.state == "Suspended":
            return plane_storage_config(self.config, id, spec.backend)
        if spec_error is not None:
            raise spec_error
        return plane_server_config(self.config, id, spec)

    async def _act(self, action: PlaneAction, entry: PlaneEntry, spec: PlaneSpec) -> None:
        match action:
            case PlaneAction.OPEN | PlaneAction.REOPEN:
                if entry.task is not None:
                    await self.plane_set.close(entry, PlaneState.ASLEEP)
                await self.plane_set.open(entry)
            case PlaneAction.SUSPEND:
                await self.plane_set.close(entry, PlaneState.SUSPENDED, spec.suspend_reason)

    # -- data

    async def _add(
        self, plane: Object, spec: PlaneSpec, config: ApiServerConfig, hold: PlaneHold, action: PlaneAction
    ) -> PlaneEntry:
        """Prepare the data of a plane, and add the plane to the PlaneSet. Raises PlaneFailed and errors of the data."""
        id = plane_id(plane)
        if spec.backend == "memory":
            if spec.copy_of:
                raise PlaneFailed("spec.copyOf: a plane with the backend memory cannot be a copy; use file or etcd")
        elif not await self.data.exists(config):
            if was_open(plane) and not (config.backend == "etcd" and action is PlaneAction.SUSPEND):
                raise PlaneFailed(f"its data is gone: {missing_data(config)}")
            if spec.copy_of and not was_open(plane):
                source = await self._copy_source(spec.copy_of)
                await self.data.copy(source, config, hold.fence)
        if action is not PlaneAction.OPEN:
            await self.data.restore_keys(id, config, hold)  # they tell which requests may wake the plane
        wake_time = value_at(plane, "status", "wakeTime")
        entry = self.plane_set.add(id, config, hold, wake_at=parse_time(wake_time) if wake_time else None)
        self._ids[name_of(plane)] = id
        return entry

    async def _check_data(self, plane: Object, config: ApiServerConfig) -> None:
        """Raise PlaneFailed if a plane that was suspended would open empty: a restore was interrupted, for example."""
        if config.backend == "etcd" and was_open(plane) and not await self.data.exists(config):
            raise PlaneFailed(f"its data is gone: {missing_data(config)}")

    async def _copy_source(self, name: str) -> CopySource:
        """Return the plane to copy. Raises PlaneFailed if this process cannot copy it."""
        source = self.planes.store.get(name)
        if source is None or is_deleting(source):
            raise PlaneFailed(f"spec.copyOf: there is no plane {name!r}; create the plane again")
        backend, holder = value_at(source, "spec", "backend", default="file"), holder_of(source)
        id, uid = plane_id(source), uid_of(source)
        config = plane_storage_config(self.config, id, backend)
        entry = self.plane_set.get(id)
        store = entry.plane.opened.store if entry is not None and entry.plane is not None else None

        async def check() -> None:
            found = await self.client.find(PLANES, name)
            if found is None or uid_of(found) != uid or is_deleting(found):
                raise PlaneFailed(f"spec.copyOf: the plane {name!r} was deleted; create the plane again")

        if store is None:
            if backend == "memory":
                raise PlaneFailed(
                    f"spec.copyOf: plane {name!r} is in memory, so only its process can copy it while it is open"
                )
            if backend == "file" and holder not in ("", self.config.name):
                raise PlaneFailed(
                    f"spec.copyOf: plane {name!r} is in a folder of process {holder!r}; set spec.process to {holder!r}"
                )
            if not await self.data.exists(config):
                raise PlaneFailed(f"spec.copyOf: plane {name!r} has no data yet")
        return CopySource(config, store, check)

    def changed_record(self, entry: PlaneEntry) -> str:
        """Return the name of the record of a plane that changed its state by itself; empty for others."""
        if entry.id in self._acting_on:
            return ""
        return next((name for name, id in self._ids.items() if id == entry.id), "")

    # -- ownership

    async def _add_finalizer(self, plane: Object) -> Object:
        finalizers = [*finalizers_of(plane), PLANE_FINALIZER]
        return await self.client.patch(PLANES, plane, {"metadata": {"finalizers": finalizers}})

    def _is_candidate(self, plane: Object, spec: PlaneSpec, id: str) -> bool:
        """Return whether this process is to take a plane that no process holds.

        A copy of a plane in a folder or in memory is first taken by the process that holds that plane, or will take it.
        """
        source = self.planes.store.get(spec.copy_of) if not value_at(plane, "status", "epoch") else None
        if source is not None and value_at(source, "spec", "backend", default="file") != "etcd":
            holder = holder_of(source) or value_at(source, "spec", "process", default="")
            if not holder:
                return self.processes.is_candidate(plane_id(source))
            if holder in self.processes.live():
                return bool(holder == self.config.name)
        return self.processes.is_candidate(id)

    async def _claim(self, plane: Object, id: str) -> Object:
        """Write this process as the holder, in the next epoch. The patch fails if another process was faster."""
        epoch = max(value_at(plane, "status", "epoch", default=0), self._later_epochs.get(id, 0)) + 1
        status = {"id": id, "holder": self.config.name, "epoch": epoch}
        claimed = await self.client.patch(PLANES, plane, {"status": status}, subresource="status")
        self._epochs[id] = epoch
        self._later_epochs.pop(id, None)
        return claimed

    def _forget_epoch(self, id: str, later: int) -> None:
        """Claim the plane again at the next attempt, in a later epoch than one that was found in etcd.

        Not for other errors: each claim changes the record, so that the next attempt would not wait.
        """
        self._epochs.pop(id, None)
        self._later_epochs[id] = later

    def _wanted_process(self, plane: Object, spec: PlaneSpec, id: str) -> str:
        """Return the process that is to hold a plane; empty if any may.

        A plane stays where it is until its own process has started. A process without a group starts none.
        """
        wanted = wanted_process(plane, spec)
        if wanted != own_process_name(id):
            return wanted
        if self.processes.elector is None:
            return ""
        is_waiting = holder_of(plane) == self.config.name != wanted and not self.processes.is_live(wanted)
        return self.config.name if is_waiting else wanted

    def _next_takeover(self, plane: Object, wanted: str, id: str) -> Result | None:
        """Return when the process that is to take an unheld plane is considered dead, unless its record names one."""
        if (wanted and not is_deleting(plane)) or holder_of(plane):
            return None
        return Result(requeue_after=self.processes.seconds_until_expiry(id))

    async def _release(self, plane: Object, spec: PlaneSpec, id: str) -> None:
        """Close the plane, then let another process take it.

        A revision in the status tells that process that the plane has data, which it must not replace with nothing.
        """
        await self._close(name_of(plane))
        status: Object = {"holder": None, "phase": RELEASED, "address": None}
        if spec.backend == "file" and value_at(plane, "status", "revision") is None:
            has_data = await self.data.exists(plane_storage_config(self.config, id, spec.backend))
            status |= {"revision": 0} if has_data else {}
        await self.client.converge(PLANES, plane, {"status": status})

    async def _close(self, name: str) -> None:
        """Close and forget a plane, if it is in the PlaneSet."""
        id = self._ids.pop(name, "")
        self._epochs.pop(id, None)
        if (entry := self.plane_set.get(id)) is not None:
            await self.plane_set.remove(entry)

    # -- deletion and status

    async def _obstacle(self, plane: Object, id: str) -> str:
        """Return why a deleted plane stays for now. A deletion that has begun continues."""
        if value_at(plane, "status", "phase") == DELETING:
            return ""
        return await self.plane_set.obstacle_to_deletion(id)

    async def _delete(self, plane: Object, config: ApiServerConfig, hold: PlaneHold) -> None:
        """Close the plane, delete its data, and let its record go."""
        plane = await self.client.converge(PLANES, plane, {"status": {"phase": DELETING}})
        if (entry := self.plane_set.get(plane_id(plane))) is not None:
            await self.plane_set.remove(entry)
        try:
            await self.data.delete(config, hold)
        except FAILURES as error:
            cause = first_error(error)
            if isinstance(cause, EpochLost):
                self._forget_epoch(plane_id(plane), cause.current)
            await self.client.converge(PLANES, plane, {"status": {"message": str(cause)}})
            raise PlaneFailed(f"plane {name_of(plane)} cannot be deleted: {cause}") from error
        finalizers = [each for each in finalizers_of(plane) if each != PLANE_FINALIZER]
        await self.client.patch(PLANES, plane, {"metadata": {"finalizers": finalizers}})
        await self._close(name_of(plane))

    async def _report_failure(self, plane: Object, entry: PlaneEntry | None, error: Exception) -> None:
        """Write why a plane cannot get its desired state. One that is in the PlaneSet keeps its state."""
        if isinstance(error, EpochLost):
            self._forget_epoch(plane_id(plane), error.current)
        if not self.plane_set.is_stopped:
            state = entry.state if entry is not None else PlaneState.FAILED
            await self.client.converge(PLANES, plane, {"status": self._state_status(plane, state, str(error))})

    def _status(self, plane: Object, entry: PlaneEntry) -> Object:
        state = self._state_status(plane, entry.state, entry.message)
        expiring = certificates_expiring(authority_of(entry.config), self.now())
        if expiring is not None:
            state["conditions"] = with_condition(state["conditions"], expiring, self.now())
        return {
            **state,
            "wakeTime": timestamp(entry.wake_at) if entry.wake_at is not None else None,
            "address": self.address_of(entry.id),
            **sizes(entry),
        }

    def _state_status(self, plane: Object, state: PlaneState, message: str) -> Object:
        generation = plane["metadata"].get("generation")
        ready = new_condition("Ready", state in READY_STATES, str(state), message, observed_generation=generation)
        return {
            "phase": str(state),
            "message": message or None,
            "observedGeneration": generation,
            "conditions": with_condition(value_at(plane, "status", "conditions"), ready, self.now()),
        }


def finalizers_of(plane: Object) -> list[str]:
    return plane["metadata"].get("finalizers") or []


def has_finalizer(plane: Object) -> bool:
    return PLANE_FINALIZER in finalizers_of(plane)


def readable_spec(plane: Object) -> tuple[PlaneSpec, InvalidSpec | None]:
    """Return the spec of a plane.

    If it is invalid, return why, and the fields by which the plane can be suspended, released and deleted. Raises
    InvalidSpec if one of these is invalid.
    """
    try:
        return decode_spec(PLANE, plane), None
    except InvalidSpec as error:
        spec = {name: value for name, value in plane["spec"].items() if name in BASIC_FIELDS}
        return decode_spec(PLANE, {"spec": spec}), error


def holder_of(plane: Object | None) -> str:
    holder: str = value_at(plane, "status", "holder", default="")
    return holder


def was_open(plane: Object) -> bool:
    return value_at(plane, "status", "revision") is not None


def missing_data(config: ApiServerConfig) -> str:
    """Return which data of a plane does not exist, and what to do."""
    if config.backend == "etcd":
        return f"there is no plane below {config.etcd.prefix} in etcd; restore a backup of etcd"
    return (
        f"there is no plane in {config.file_rootpath}; copy this folder from the process that held the plane last, or "
        "restore a backup"
    )


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
    processes: Processes,
    group_key: GroupKey | None = None,
    data: PlaneData = PLANE_DATA,
) -> None:
    planes, leases = manager.informer(PLANES), process_leases(manager)
    reconciler = PlaneReconciler(
        *(config, planes, plane_set, manager.client, manager.now, address_of, data, processes, group_key)
    )
    controller = manager.controller("planes", reconciler.reconcile)
    controller.watch(planes, when=is_desired_state_changed)
    leases.on_change(processes.observe)
    controller.watch(leases, lambda _: waiting_planes(planes), when=is_holder_changed)

    def enqueue(entry: PlaneEntry) -> None:
        if name := reconciler.changed_record(entry):
            controller.queue.add(name)

    plane_set.on_change(enqueue)


def is_desired_state_changed(old: Object | None, new: Object | None) -> bool:
    """Return whether more changed than what the holder writes itself. Without this, failures would not back off."""
    if old is None or new is None:
        return True
    return generation_changed(old, new) or uid_of(old) != uid_of(new) or holder_of(old) != holder_of(new)


def waiting_planes(planes: Informer) -> Iterator[str]:
    """Yield the planes that a process may take or release when another one has joined or left."""
    for plane in planes.store.list():
        if not holder_of(plane) or value_at(plane, "spec", "ownProcess"):
            yield name_of(plane)
