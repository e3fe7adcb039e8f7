"""Ports of single planes, beside the port that all planes share: of their APIs, or of another service for them.

The port of a plane is in the status of its record, so that it stays the same after a restart. It is free again when the
record is deleted.
"""

import errno
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Protocol

from tapestry.apis.planes import PLANES, plane_id
from tapestry.client.client import Client
from tapestry.controller import Controller, Informer, Manager, Result
from tapestry.kube.objects import Object, value_at

RETRY_SECONDS = 10.0
"""Seconds after which a plane without a port tries again to get one."""


class PortServer(Protocol):
    """Server on the port of a plane."""

    async def stop(self) -> Any:
        """Close the port."""


@dataclass(frozen=True)
class PortUse:
    """Use of a range of ports, of which each plane has one."""

    option: str = "--port-range"
    """Option with the range of these ports."""
    field: str = "port"
    """Field of the status of a plane."""

    @property
    def message_field(self) -> str:
        return f"{self.field}Message"


API_PORTS = PortUse()


@dataclass(eq=False)
class PlanePorts:
    """The servers for single planes in this process."""

    listen: Callable[[str, int, str], Awaitable[PortServer]]
    """Listen at a host and a port for the plane with an id. Raises OSError."""
    host: str
    ports: range
    """Ports that planes can get; empty if they get none."""
    use: PortUse = API_PORTS
    _taken: dict[int, str] = field(default_factory=dict)
    """Ids of planes by their ports."""
    _servers: dict[str, tuple[int, PortServer]] = field(default_factory=dict)
    """Ports and servers by the ids of their planes."""

    def port_of(self, plane_id: str) -> int | None:
        port, _ = self._servers.get(plane_id, (None, None))
        return port

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
        raise OSError(f"no port from {first} to {last} is free; extend {self.use.option}, or delete planes")

    async def _listen(self, plane_id: str, port: int) -> None:
        self._taken[port] = plane_id
        try:
            self._servers[plane_id] = port, await self.listen(self.host, port, plane_id)
        except OSError:
            del self._taken[port]
            raise

    async def close(self, plane_id: str) -> None:
        """Stop the server of a plane, if it has one."""
        _, server = self._servers.pop(plane_id, (None, None))
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
    is_needed: Callable[[str], bool]
    """Return whether a plane gets a port, by its id."""
    is_known: Callable[[str], bool]
    """Return whether connections for a plane can be accepted. A port that it had before is kept until then."""
    _ids: dict[str, str] = field(default_factory=dict)
    """Ids of planes with a port, by the name of their record."""

    async def reconcile(self, name: str) -> Result | None:
        plane = self.planes.store.get(name)
        id, use = plane_id(plane) if plane is not None else "", self.ports.use
        is_held = plane is not None and value_at(plane, "status", "holder") == self.process
        is_needed = is_held and bool(self.ports.ports) and self.is_needed(id)
        if name in self._ids and (not is_needed or self._ids[name] != id):
            await self.ports.close(self._ids.pop(name))
        if plane is None or not is_held:
            return None
        former = value_at(plane, "status", use.field)
        if not is_needed:
            await self._write(plane, None, "")
            return None
        if not self.is_known(id):
            return None
        self._ids[name] = id
        try:
            port = await self.ports.open(id, former, self._ports_of_others(plane))
        except OSError as error:
            await self._write(plane, former, error.strerror or str(error))
            return Result(requeue_after=RETRY_SECONDS)
        await self._write(plane, port, "")
        return None

    def _ports_of_others(self, plane: Object) -> set[int]:
        use, others = self.ports.use, (each for each in self.planes.store.list() if plane_id(each) != plane_id(plane))
        return {port for each in others if (port := value_at(each, "status", use.field)) is not None}

    async def _write(self, plane: Object, port: int | None, message: str) -> None:
        use = self.ports.use
        status = {use.field: port, use.message_field: message or None}
        await self.client.converge(PLANES, plane, {"status": status})


def install(
    manager: Manager,
    name: str,
    process: str,
    ports: PlanePorts,
    *,
    is_needed: Callable[[str], bool] = lambda _: True,
    is_known: Callable[[str], bool] = lambda _: True,
) -> Controller:
    """Add the controller of some ports to a manager of the management API, and return it."""
    planes = manager.informer(PLANES)
    reconciler = PortReconciler(process, ports, planes, manager.client, is_needed, is_known)
    controller = manager.controller(name, reconciler.reconcile)
    controller.watch(planes)
    return controller
