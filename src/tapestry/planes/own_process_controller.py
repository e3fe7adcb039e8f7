"""Controller that runs the processes of planes whose records ask for one of their own."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tapestry.apis.planes import PLANE, PLANES, own_process_name, plane_id, wanted_process
from tapestry.controller import Informer, Manager, Result
from tapestry.kube.crds import InvalidSpec, decode_spec
from tapestry.kube.objects import Object, is_deleting, name_of, value_at
from tapestry.planes.own_processes import OwnProcesses
from tapestry.planes.processes import Processes, is_holder_changed, process_leases


def needs_own_process(plane: Object) -> bool:
    """Return whether a plane is to be in its own process, or still is."""
    own = own_process_name(plane_id(plane))
    if value_at(plane, "status", "holder", default="") == own:
        return True
    try:
        return not is_deleting(plane) and wanted_process(plane, decode_spec(PLANE, plane)) == own
    except InvalidSpec:
        return False


def is_to_run(live_identity: str, own_identity: str, *, is_running: bool, is_candidate: bool) -> bool:
    """Return whether this process is to run the process of a plane that needs one.

    `live_identity` is that of the process that has the Lease, wherever it runs; empty if there is none. It stays where
    it is. One that is dead is started by the candidate for the plane. A process that restarts runs its own again.
    """
    if live_identity:
        return live_identity == own_identity
    return is_running or is_candidate


@dataclass(frozen=True)
class OwnProcessReconciler:
    """Run the processes of planes; keyed by the name of the record."""

    planes: Informer
    processes: Processes
    own: OwnProcesses
    _ids: dict[str, str] = field(default_factory=dict)
    """Ids of planes, by the name of their record."""

    async def reconcile(self, name: str) -> Result | None:
        plane = self.planes.store.get(name)
        id = plane_id(plane) if plane is not None else ""
        if (former := self._ids.pop(name, id)) != id:
            await self.own.remove(former)
        if plane is None:
            return None
        self._ids[name] = id
        if not needs_own_process(plane):
            await self.own.stop(id)
            return None
        live, is_candidate = self.processes.identity_of(own_process_name(id)), self.processes.is_candidate(id)
        own = self.own.identity(id)
        if is_to_run(live, own, is_running=self.own.is_running(id), is_candidate=is_candidate):
            self.own.start(id)
            return None
        await self.own.stop(id)
        if live:
            return Result(requeue_after=self.processes.seconds_until_dead(own_process_name(id)))
        return Result(requeue_after=self.processes.seconds_until_expiry(id))


def planes_with_processes(planes: Informer) -> Iterator[str]:
    return (name_of(each) for each in planes.store.list() if needs_own_process(each))


def install(manager: Manager, processes: Processes, own: OwnProcesses) -> None:
    """Add the controller to the manager of a process that may start others. `processes` observes the Leases."""
    planes = manager.informer(PLANES)
    controller = manager.controller("own-processes", OwnProcessReconciler(planes, processes, own).reconcile)
    controller.watch(planes)
    controller.watch(process_leases(manager), lambda _: planes_with_processes(planes), when=is_holder_changed)
