"""Planes whose servers are not started, for processes on virtual time."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from tapestry.apis.planes import PLANES
from tapestry.apiserver.assembly import ServerThreads
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.epochs import EpochFence
from tapestry.apiserver.core.store import StorageError
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.kube.objects import Object, value_at
from tapestry.planes import plane_controller
from tapestry.planes.config import PlanesConfig
from tapestry.planes.open_plane import OpenPlane
from tapestry.planes.plane_controller import PlaneData
from tapestry.planes.plane_data import CopySource, PlaneHold
from tapestry.planes.plane_set import PlaneEntry, PlaneSet, PlaneState
from tapestry.planes.processes import Processes

AN_HOUR = 3600.0


@dataclass
class Disk:
    """The data of planes, which stays when a process dies."""

    origins: dict[str, str] = field(default_factory=dict)
    """Id of the plane that each complete plane was created from; its own id if it started empty."""
    partial: set[str] = field(default_factory=set)
    """Ids of planes of which a copy has written a part."""
    failures: int = 0
    """Number of operations that fail."""

    def fail(self) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise StorageError(f"the disk is full ({self.failures} more failures)")

    async def exists(self, config: ApiServerConfig) -> bool:
        return id_of(config) in self.origins

    async def restore_keys(self, _id: str, _config: ApiServerConfig, _hold: PlaneHold) -> None: ...

    async def copy(self, source: CopySource, target: ApiServerConfig, _fence: EpochFence) -> None:
        id = id_of(target)
        assert id not in self.origins, "a complete plane is not overwritten"
        self.partial.add(id)
        origin = self.origins[id_of(source.config)]
        await source.check()
        self.fail()
        self.partial.discard(id)
        self.origins[id] = origin

    async def delete(self, config: ApiServerConfig, _hold: PlaneHold) -> None:
        self.fail()
        self.partial.discard(id_of(config))
        self.origins.pop(id_of(config), None)

    def operations(self) -> PlaneData:
        return PlaneData(self.exists, self.restore_keys, self.copy, self.delete)


def id_of(config: ApiServerConfig) -> str:
    return Path(config.file_rootpath).name


class RecordedPlanes(PlaneSet):
    """Planes of which only the states are real."""

    def __init__(self, disk: Disk | None = None, *, failures: int = 0) -> None:
        super().__init__(asyncio.TaskGroup(), ServerThreads())
        self._failures = failures
        self.disk = disk or Disk()
        self.may_open = asyncio.Event()
        """Planes that are opened wait for it."""
        self.may_open.set()

    async def open(self, entry: PlaneEntry) -> OpenPlane | None:
        await self.may_open.wait()
        self._failures -= 1
        if self._failures >= 0:
            entry.state, entry.message = PlaneState.FAILED, "the disk is full"
        else:
            assert entry.id not in self.disk.partial, "an incomplete plane is not opened"
            self.disk.origins.setdefault(entry.id, entry.id)
            entry.state, entry.message = PlaneState.OPEN, ""
        return None

    def report(self, entry: PlaneEntry) -> None:
        """Report a change that a test has made."""
        self._notify(entry)


def install(manager: Manager, processes: Processes, planes: RecordedPlanes) -> None:
    """Install the controller of planes in a process whose planes have no servers."""
    config, data = PlanesConfig(name=processes.own_name), planes.disk.operations()
    plane_controller.install(manager, config, planes, lambda id: f"https://{id}.planes", processes, data=data)


async def wait_for_phase(client: Client, phase: str, name: str = "p") -> Object:
    def is_reached(plane: Object | None) -> bool:
        return plane is not None and value_at(plane, "status", "phase") == phase

    found = await wait_for(client, PLANES, name, until=is_reached, timeout=AN_HOUR)
    assert found is not None
    return found
