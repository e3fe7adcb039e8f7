"""An open plane: an API server with its controllers, without listeners."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from tapestry.apis import keys
from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.assembly import OpenServer, ServerIsolation, ServerThreads, open_server, service_range
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.private_files import KEYS_FOLDER
from tapestry.apiserver.core.requests import MASTERS_GROUP, CallOrigin, User
from tapestry.apiserver.kubernetes_service import publish_service
from tapestry.apiserver.storage.copies import store_snapshot
from tapestry.controller import Manager
from tapestry.controlplane.app import control_plane_manager
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.errors import KubeError
from tapestry.planes.plane_data import PlaneHold, restore_keys, update_keys
from tapestry.planes.plane_restores import keep_memory
from tapestry.process.addresses import parse_address
from tapestry.process.logs import logger

log = logger(__name__)


SYNCER_USER = User("system:syncer", (MASTERS_GROUP,))
"""User of the syncer in managed fields and in the audit log. Its rights beyond that come from its transport."""


@dataclass(eq=False)
class InProcessClients:
    """Clients of a plane in this process, besides its controllers. They keep it awake like connections."""

    count: int = 0


@dataclass(frozen=True)
class SyncerRule:
    """Rule for a plane whose nodes belong to a syncer."""

    schedules_pods: bool = False
    """True if the syncer chooses the nodes of pods, so that the scheduler of the plane does nothing."""


@dataclass(frozen=True)
class OpenPlane:
    """A plane that handles requests and runs its controllers."""

    id: str
    opened: OpenServer
    manager: Manager
    """Controllers of the plane."""
    clients: InProcessClients = field(default_factory=InProcessClients)

    @asynccontextmanager
    async def transport(self, user: User) -> AsyncIterator[InProcessTransport]:
        """Open a transport for a client in this process. It keeps the plane awake until it is closed at the end."""
        transport = InProcessTransport(self.opened.request_handler, user)
        self.clients.count += 1
        try:
            yield transport
        finally:
            self.clients.count -= 1
            await transport.close()

    def syncer_transport(self) -> InProcessTransport:
        """Return a transport for the syncer of the plane, which closes it. It does not keep the plane awake.

        Whoever has it writes what nobody else may write, and no admission of the plane applies.
        """
        return InProcessTransport(self.opened.request_handler, SYNCER_USER, CallOrigin.SYNCER)

    def restrict_to_syncer(self, rule: SyncerRule | None) -> None:
        """Let only the syncer write Nodes and what else the host cluster decides; None ends that."""
        restrict_to_syncer(self.opened, rule)


def restrict_to_syncer(opened: OpenServer, rule: SyncerRule | None) -> None:
    restriction = opened.server.syncer_restriction
    if rule is not None:
        restriction.enable((keys.MAPPED_CONDITION,), schedules_pods=rule.schedules_pods)
    else:
        restriction.disable()


@asynccontextmanager
async def open_plane(
    plane_id: str,
    config: ApiServerConfig,
    threads: ServerThreads,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    hold: PlaneHold | None = None,
    isolation: ServerIsolation | None = None,
    *,
    syncer_rule: SyncerRule | None = None,
    keeps_memory: Callable[[], bool] = lambda: False,
) -> AsyncIterator[OpenPlane]:
    """Open a plane for the duration of the context. Raises ValueError, OSError or StorageError if it cannot open.

    An error of the plane ends the context, so the caller gives each plane its own task. A closed plane leaves no
    reference cycles. A plane in etcd needs a hold, and ends with EpochLost when another process takes it.

    `syncer_rule` is for a plane whose nodes belong to a syncer. `keeps_memory` returns at the end whether a plane in
    memory is to have its objects when it is opened again.
    """
    if hold is not None:
        await restore_keys(plane_id, config, hold)
    elif config.backend == "etcd":
        raise ValueError(f"plane {plane_id} is in etcd, so a process must hold it before it opens")
    authority = CertificateAuthority(Path(config.file_rootpath) / KEYS_FOLDER)
    fence = hold.fence if hold is not None else None
    change_keys = partial(update_keys, plane_id, config, hold)
    async with (
        open_server(config, threads, now, fence=fence, isolation=isolation, change_keys=change_keys) as opened,
        asyncio.TaskGroup() as group,
    ):
        restrict_to_syncer(opened, syncer_rule)
        await publish_address(plane_id, opened)
        manager = control_plane_manager(opened.request_handler, opened.ca_bundle, config.controllers, authority)
        controllers = group.create_task(manager.run(), name=f"controllers-{plane_id}")
        try:
            yield OpenPlane(plane_id, opened, manager)
        finally:
            manager.stop()
            await asyncio.wait([controllers])
            await opened.finish()
            if config.backend == "memory" and keeps_memory():
                snapshot = store_snapshot(opened.store)
                await asyncio.to_thread(keep_memory, Path(config.file_rootpath), snapshot)


async def publish_address(plane_id: str, opened: OpenServer) -> None:
    """Create the Service `kubernetes` with the address of the listener. A tenant whose webhooks reject it has none."""
    address = parse_address(opened.config.secure_address)
    if address is None or not address.port:
        return
    try:
        await publish_service(opened.server, service_range(opened.config), address.host, address.port)
    except KubeError as error:
        log.warning("plane address not published", plane=plane_id, error=str(error))
