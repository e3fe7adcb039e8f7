"""Planes whose servers are not started, for processes on virtual time."""

import asyncio

from tapestry.apis.planes import PLANES
from tapestry.apiserver.assembly import ServerThreads
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.kube.objects import Object, value_at
from tapestry.planes import plane_controller
from tapestry.planes.config import PlanesConfig
from tapestry.planes.open_plane import OpenPlane
from tapestry.planes.plane_data import PlaneHold
from tapestry.planes.plane_set import PlaneEntry, PlaneSet, PlaneState
from tapestry.planes.processes import Processes

AN_HOUR = 3600.0


class RecordedPlanes(PlaneSet):
    """Planes of which only the states are real."""

    def __init__(self, *, failures: int = 0) -> None:
        super().__init__(asyncio.TaskGroup(), ServerThreads())
        self._failures = failures

    async def open(self, entry: PlaneEntry) -> OpenPlane | None:
        self._failures -= 1
        if self._failures >= 0:
            entry.state, entry.message = PlaneState.FAILED, "the disk is full"
        else:
            entry.state, entry.message = PlaneState.OPEN, ""
        return None


def install(manager: Manager, processes: Processes, planes: PlaneSet) -> None:
    """Install the controller of planes in a process whose planes have no data."""

    async def delete_data(_: ApiServerConfig, __: PlaneHold) -> None: ...

    config = PlanesConfig(name=processes.own_name)
    plane_controller.install(manager, config, planes, lambda id: f"https://{id}.planes", delete_data, processes)


async def wait_for_phase(client: Client, phase: str, name: str = "p") -> Object:
    def is_reached(plane: Object | None) -> bool:
        return plane is not None and value_at(plane, "status", "phase") == phase

    found = await wait_for(client, PLANES, name, until=is_reached, timeout=AN_HOUR)
    assert found is not None
    return found
