"""Ports of single planes, beside the port that all planes share.

The port of a plane is in the status of its record, so that it stays the same after a restart. It is free again when the
record is deleted.
"""

import errno
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from tapestry.apis.planes import PLANES, plane_id
from tapestry.apiserver.serving.http_server import HttpServer
from tapestry.client.client import Client
from tapestry.controller import Informer, Manager, Result
from tapestry.kube.objects import Object, value_at
from tapestry.planes.plane_listener import PlaneListener

RETRY_SECONDS = 10.0
"""Seconds after which a plane without a port tries again to get one."""


@dataclass(eq=False)
class PlanePorts:
    """The listeners of single planes in this process."""

    listener: PlaneListener
    host: str
    ports: range
    """Ports that planes can get; empty if they get none."""
    _taken: dict[int, str] = field(default_factory=dict)
    """Ids of planes by their ports."""
    _servers: dict[str, HttpServer] = field(default_factory=dict)
    """Listeners by the ids of their planes."""

    def port_of(self, plane_id: str) -> int | None:
        server = self._servers.get(plane_id)
        return server.addresses[0][1] if server is not None else None

    async def open(self, plane_id: str, former: int | None, reserved: Collection[int]) -> int:
        """Listen for a plane and return its port: the `former` one, or else one that is free and not reserved.

        Raises OSError if there is none, or if another program uses the former one.
        """
        if (port := self.port_of(plane_id)) is not None:
            return port
        if former is not None and former in self.ports and former not in self._taken:
            await self._listen(plane_id, former)
            return former
        for port in self.ports:
            if port in self._taken or port in reserved:
                continue
            try:
                await self._listen(plane_id, port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port
        first, last = self.ports[0], self.ports[-1]
        raise OSError(f"no port from {first} to {last} is free; extend --port-range, or delete planes")

    async def _listen(self, plane_id: str, port: int) -> None:
        self._taken[port] = plane_id
        try:
            self._servers[plane_id] = await self.listener.listen(self.host, port, plane_id)
        except OSError:
            del self._taken[port]
            raise

    async def close(self, plane_id: str) -> None:
        """Stop the listener of a plane, if it has one."""
        server = self._servers.pop(plane_id, None)
        if server is not None:
            await server.stop()
            self._taken = {port: id for port, id in self._taken.items() if id != plane_id}

    async def close_all(self) -> None:
        for each in list(self._servers):
            await self.close(each)


@dataclass(frozen=True)
class PortReconciler:
    """Give each plane that this process holds a port, and write it to the status of its record."""

    process: str
    ports: PlanePorts
    planes: Informer
    client: Client
    _ids: dict[str, str] = field(default_factory=dict)
    """Ids of planes with a port, by the name of their record."""

    async def reconcile(self, name: str) -> Result | None:
        plane = self.planes.store.get(name)
        id = plane_id(plane) if plane is not None else ""
        is_held = plane is not None and value_at(plane, "status", "holder") == self.process
        if name in self._ids and (not is_held or self._ids[name] != id):
            await self.ports.close(self._ids.pop(name))
        if plane is None or not is_held:
            return None
        former = value_at(plane, "status", "port")
        if not self.ports.ports:
            await self._write(plane, None, "")
            return None
        self._ids[name] = id
        try:
            port = await self.ports.open(id, former, set(ports_of(self.planes.store.list())) - {former})
        except OSError as error:
            await self._write(plane, former, error.strerror or str(error))
            return Result(requeue_after=RETRY_SECONDS)
        await self._write(plane, port, "")
        return None

    async def _write(self, plane: Object, port: int | None, message: str) -> None:
        await self.client.converge(PLANES, plane, {"status": {"port": port, "portMessage": message or None}})


def ports_of(planes: Iterable[Object]) -> list[int]:
    return [port for each in planes if (port := value_at(each, "status", "port")) is not None]


def install(manager: Manager, process: str, ports: PlanePorts) -> None:
    planes = manager.informer(PLANES)
    reconciler = PortReconciler(process, ports, planes, manager.client)
    controller = manager.controller("plane-ports", reconciler.reconcile)
    controller.watch(planes)
