"""Process that holds planes: the management API, the planes of its records, and one listener for all of them."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

import yaml

from tapestry.apiext.interfaces import Routes
from tapestry.apis.keys import SYSTEM_NAMESPACE
from tapestry.apis.planes import MANAGEMENT, PLANE, PLANES, plane_id
from tapestry.apiserver.access.certificates import write_private_file
from tapestry.apiserver.access.ephemeral_tokens import create_token, revoke_token
from tapestry.apiserver.assembly import OpenServer, ServerExtensions, ServerIsolation, ServerThreads, open_server
from tapestry.apiserver.core.private_files import KEYS_FOLDER, change_local_keys
from tapestry.apiserver.core.requests import APISERVER_USER, BuildAdmission
from tapestry.apiserver.core.store import StorageError
from tapestry.apiserver.serving.request_handler import MountedHandler
from tapestry.apiserver.storage.archive import remove_stale_folders
from tapestry.apiserver.storage.backends import etcd_imports
from tapestry.apiserver.storage.sqlite_log import write_lock
from tapestry.client.client import Client
from tapestry.controller import Manager
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.errors import KubeError
from tapestry.kube.objects import name_of
from tapestry.planes import own_process_controller, plane_controller, plane_ports
from tapestry.planes.config import PlanesConfig, management_server_config, planes_prefix
from tapestry.planes.credential_routes import credential_routes
from tapestry.planes.endpoints import Endpoints, server_names
from tapestry.planes.host_addresses import with_denied_host_addresses
from tapestry.planes.idle_planes import IdlePlanes
from tapestry.planes.kubeconfigs import MASTERS, kubeconfig_route, plane_kubeconfig
from tapestry.planes.management import (
    apply_definition,
    create_namespace,
    management_controllers,
    management_keys,
    planes_manager,
    process_identity,
)
from tapestry.planes.open_plane import OpenPlane
from tapestry.planes.own_processes import OwnProcesses, ParentListener, receive_connections, remove_own_leftovers
from tapestry.planes.plane_folders import remove_leftovers
from tapestry.planes.plane_holders import PlaneHolders
from tapestry.planes.plane_keys import PlaneKeys
from tapestry.planes.plane_listener import PlaneListener
from tapestry.planes.plane_names import PlaneNames
from tapestry.planes.plane_ports import PlanePorts
from tapestry.planes.plane_set import PlaneEntry, PlaneSet
from tapestry.planes.plane_tls import PlaneTls
from tapestry.planes.processes import Processes
from tapestry.planes.sealing import GroupKey, load_group_key
from tapestry.process.addresses import parse_address
from tapestry.process.logs import logger

log = logger(__name__)

ADMIN_LIFETIME = timedelta(days=365)
"""Lifetime of the token in the kubeconfig of the management API; each start issues a new one."""

LOOPBACK = "127.0.0.1"

MountRoutes = Callable[[Routes], Mapping[str, MountedHandler]]
"""Return the handlers of the plain REST API, with the HTTP interfaces of these routes."""


@dataclass(frozen=True)
class PlaneProcess:
    """A running process of planes."""

    config: PlanesConfig
    plane_set: PlaneSet
    management: OpenServer
    endpoints: Endpoints
    tls: PlaneTls
    manager: Manager
    """Manager of the controller of planes, whose elector holds the Lease of this process."""
    processes: Processes
    holders: PlaneHolders
    now: Callable[[], datetime]

    @property
    def address(self) -> str:
        """URL of the listener."""
        return self.endpoints.base_url


Extension = Callable[[PlaneProcess], AbstractAsyncContextManager[None]]
"""More work of a process. It begins before the first plane opens, and ends after the last one has closed."""


def no_extension(_: PlaneProcess) -> AbstractAsyncContextManager[None]:
    return nullcontext()


@asynccontextmanager
async def run_planes(
    config: PlanesConfig,
    mount_routes: MountRoutes,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    extension: Extension = no_extension,
    admission: BuildAdmission | None = None,
    parent: ParentListener | None = None,
    own_process_command: Sequence[str] = (),
) -> AsyncIterator[PlaneProcess]:
    """Hold planes for the duration of the context. Raises StorageError, ValueError or OSError if it cannot start.

    `admission` is for the management API, and not for planes. A process with a parent serves its plane at the address
    of the parent. `own_process_command` runs such processes, if there is one; the file of their settings is added.
    """
    config = await with_denied_host_addresses(config, os.environ)
    names = PlaneNames(config.domain, tuple(server_names(config)))
    group_key = load_group_key(config.group_key_file) if config.uses_etcd else None
    with write_lock(config.folder), closing(ServerThreads.for_many_servers()) as threads:
        async with asyncio.TaskGroup() as group:
            plane_set = PlaneSet(group, threads, now)
            plane_tls = PlaneTls(config.folder, names, plane_set.config_of)
            listener = PlaneListener(plane_set, plane_tls, group, now)
            address = parse_address(config.address)
            assert address is not None  # checked by the configuration
            own_processes = OwnProcesses(config, own_process_command, names.plane_of, plane_set.has, group)
            listens_at = (address.host, address.port) if parent is None else (LOOPBACK, 0)
            http_server = await listener.listen(*listens_at, hand_over=own_processes.hand_over)
            own_port = http_server.addresses[0][1]
            ports = PlanePorts(listener.listen, address.host, config.own_ports)
            port, pki = (parent.port, parent.pki) if parent else (own_port, config.folder / KEYS_FOLDER)
            endpoints = Endpoints(config, names, port, plane_set, ports, pki)
            own_processes.port = own_port
            keys = PlaneKeys(plane_set, plane_tls.plane_context, now)
            holders = PlaneHolders(endpoints, own_processes)
            listener.forward = holders.forward_by_path
            routes = [*map(holders.at_holder, (kubeconfig_route(endpoints.endpoint, keys), *credential_routes(keys)))]
            idle = group.create_task(IdlePlanes(plane_set, now).run(), name="idle-planes")
            try:
                extensions = ServerExtensions(mount_routes({PLANES.name: routes}), admission)
                async with run_management_api(
                    config, group_key, threads, extensions, now, plane_set.shares.management()
                ) as opened:
                    plane_set.add_open(opened)
                    write_kubeconfig(config, replace(endpoints, port=own_port))
                    management = client_of(opened.opened)
                    await remove_plane_leftovers(config, management)
                    cleanup = group.create_task(try_to_remove_etcd_leftovers(config, management), name="leftovers")
                    process = plane_process(config, plane_set, opened.opened, endpoints, plane_tls, holders, now)
                    receive_connections(parent, partial(http_server.adopt, tls=plane_tls.listener_context()))
                    async with extension(process), run_controller(process, group_key):
                        log.info("planes process started", name=config.name, address=endpoints.base_url)
                        try:
                            yield process
                        finally:
                            idle.cancel()
                            cleanup.cancel()
                            await own_processes.stop_all()
                            await plane_set.close_all()  # before the Lease of the process is released
            finally:
                idle.cancel()
                await ports.close_all()
                await http_server.stop()
                await holders.forwarder.close()


@asynccontextmanager
async def run_management_api(
    config: PlanesConfig,
    group_key: GroupKey | None,
    threads: ServerThreads,
    extensions: ServerExtensions,
    now: Callable[[], datetime],
    isolation: ServerIsolation,
) -> AsyncIterator[OpenPlane]:
    """Run the management API with its controllers and kinds."""
    async with (
        management_keys(config, group_key) as keys,
        open_server(
            *(management_server_config(config), threads, now, extensions),
            isolation=isolation,
            change_keys=keys.update if keys is not None else change_local_keys,
        ) as opened,
        asyncio.TaskGroup() as group,
    ):
        renew = partial(renew_admin_token, config, now())
        text = await (keys.update if keys is not None else change_local_keys)(renew)
        write_private_file(config.admin_token_file, text.encode())
        follower = group.create_task(keys.follow(), name="management-keys") if keys is not None else None
        client = client_of(opened)
        await apply_definition(client, PLANE)
        await create_namespace(client, SYSTEM_NAMESPACE)
        manager = management_controllers(opened, config)
        controllers = group.create_task(manager.run(), name="management-controllers")
        try:
            yield OpenPlane(MANAGEMENT, opened, manager)
        finally:
            manager.stop()
            await asyncio.wait([controllers])
            if follower is not None:
                follower.cancel()


def plane_process(
    config: PlanesConfig,
    plane_set: PlaneSet,
    management: OpenServer,
    endpoints: Endpoints,
    tls: PlaneTls,
    holders: PlaneHolders,
    now: Callable[[], datetime],
) -> PlaneProcess:
    manager = planes_manager(management, config, process_identity(config))
    processes = Processes(config.name, manager.elector, is_named_only=config.named_only)
    return PlaneProcess(config, plane_set, management, endpoints, tls, manager, processes, holders, now)


@asynccontextmanager
async def run_controller(process: PlaneProcess, group_key: GroupKey | None) -> AsyncIterator[None]:
    """Run the controller of planes, which holds the Lease of this process."""
    config, manager, endpoints = process.config, process.manager, process.endpoints
    manager.register(
        "planes",
        lambda each: plane_controller.install(
            each, config, process.plane_set, endpoints.url, process.processes, group_key
        ),
    )

    def install_ports(each: Manager) -> None:
        def is_known(id: str) -> bool:
            """Return whether the listener has the certificate of a plane, which follows its record at the start."""
            return process.plane_set.get(id) is not None

        planes = each.informer(PLANES)
        controller = plane_ports.install(each, "plane-ports", config.name, endpoints.ports, is_known=is_known)

        def recheck(entry: PlaneEntry) -> None:
            for plane in planes.store.list():
                if plane_id(plane) == entry.id:
                    controller.queue.add(name_of(plane))

        process.plane_set.on_change(recheck)

    manager.register("plane-ports", install_ports)
    if process.holders.own_processes.command and manager.elector is not None and not config.named_only:
        manager.register(
            "own-processes",
            lambda each: own_process_controller.install(each, process.processes, process.holders.own_processes),
        )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(manager.run(), name="planes")
        try:
            yield
        finally:
            manager.stop()
            await asyncio.wait([running])


async def remove_plane_leftovers(config: PlanesConfig, management: Client) -> None:
    """Remove what a crash has left in the data folder. Folders without a record are reported."""
    known = {plane_id(each) for each in await management.list(PLANES)}
    leftovers = await asyncio.to_thread(remove_leftovers, config.planes_folder, known)
    await asyncio.to_thread(remove_own_leftovers, config.folder, known)
    await asyncio.to_thread(remove_stale_folders, config.folder)
    if leftovers.unknown:
        log.warning("plane folders without a record", folder=config.planes_folder, names=leftovers.unknown)


async def try_to_remove_etcd_leftovers(config: PlanesConfig, management: Client) -> None:
    if not config.uses_etcd:
        return
    try:
        await remove_etcd_leftovers(config, management)
    except (StorageError, KubeError, ValueError) as error:  # the next start tries again
        log.warning("leftovers in etcd not removed", error=str(error))


async def remove_etcd_leftovers(config: PlanesConfig, management: Client) -> None:
    """Remove prefixes in etcd that have no record and no complete plane, and report complete planes without a record.

    Only a management API in the same etcd has the records of all its planes. Without it, nothing is removed.
    """
    with etcd_imports():
        from tapestry.planes.etcd_prefixes import find_leftovers, find_prefixes, remove_incomplete  # noqa: PLC0415
    root = planes_prefix(config)
    ids = await find_prefixes(root)  # before the records: each record is older than its prefix
    known = {plane_id(each) for each in await management.list(PLANES)}
    leftovers = await find_leftovers(root, [each for each in ids if each not in known])
    unknown = leftovers.unknown if config.backend == "etcd" else leftovers.unknown + leftovers.incomplete
    if config.backend == "etcd":
        for each in leftovers.incomplete:
            await remove_incomplete(root, each)
            log.info("incomplete plane without a record removed from etcd", prefix=root.prefix, id=each)
    if unknown:
        log.warning("planes in etcd without a record", prefix=root.prefix, ids=unknown)


def renew_admin_token(config: PlanesConfig, now: datetime) -> str:
    """Create a token of the management API for administrators of this machine, and revoke that of the last start."""
    with suppress(OSError, KeyError, IndexError):
        revoke_token(config.management_folder, config.admin_token_file.read_text().split(".")[1], now)
    _, text = create_token(config.management_folder, "admin", (MASTERS,), ADMIN_LIFETIME, now)
    return text


def write_kubeconfig(config: PlanesConfig, endpoints: Endpoints) -> None:
    """Write a kubeconfig of the management API for administrators of this machine."""
    user = {"tokenFile": str(config.admin_token_file.absolute())}
    document = plane_kubeconfig(MANAGEMENT, endpoints.endpoint(MANAGEMENT), user)
    write_private_file(config.kubeconfig_file, yaml.safe_dump(document, sort_keys=False).encode())


def client_of(opened: OpenServer) -> Client:
    return Client(InProcessTransport(opened.request_handler, APISERVER_USER))
