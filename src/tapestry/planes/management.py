"""Assembly of the management API, which every process of a group serves, and of its controllers.

Controllers that must run once are elected. The controller of planes runs in each process while it holds its Lease.
"""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tapestry.apis.planes import MANAGEMENT
from tapestry.apiserver.access.certificates import CertificateAuthority, write_private_file
from tapestry.apiserver.assembly import OpenServer
from tapestry.apiserver.core.requests import APISERVER_USER
from tapestry.apiserver.storage.backends import etcd_imports
from tapestry.client.client import Client
from tapestry.controller import Manager
from tapestry.controller.config import LeaderElection, ManagerConfig, Metrics, Probes
from tapestry.controlplane.app import control_plane_manager
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.crds import Kind, crd
from tapestry.kube.errors import AlreadyExists, Conflict
from tapestry.kube.objects import name_of, object_named
from tapestry.kube.resources import CRDS, NAMESPACES
from tapestry.planes.config import PlanesConfig, management_server_config
from tapestry.planes.processes import NAMED_ONLY, process_lease
from tapestry.planes.sealing import GroupKey

if TYPE_CHECKING:
    from tapestry.planes.sealed_files import SealedFiles

IDENTITY_FILE = "process-id"


def process_identity(config: PlanesConfig) -> str:
    """Return the holder of the Lease of this process.

    It is stored in the data folder, so that the process gets its Lease at once when it restarts, while another process
    with the same name waits until the Lease expires.
    """
    path = config.folder / IDENTITY_FILE
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private_file(path, secrets.token_hex(8).encode())
    return f"{config.name}_{path.read_text().strip()}{NAMED_ONLY if config.named_only else ''}"


@asynccontextmanager
async def management_keys(config: PlanesConfig, key: GroupKey | None) -> "AsyncIterator[SealedFiles | None]":
    """Prepare the keys of the management API before its server opens. Raises StorageError, ValueError and OSError.

    In etcd, all processes use the same keys. The caller runs `follow`, and changes tokens by `update`.
    """
    if config.backend != "etcd" or key is None:
        yield None
        return
    with etcd_imports():
        from tapestry.planes.sealed_files import open_sealed_files  # noqa: PLC0415
    server_config = management_server_config(config)
    async with open_sealed_files(server_config.etcd, Path(server_config.file_rootpath), key, MANAGEMENT) as files:
        yield files


def management_controllers(opened: OpenServer, config: PlanesConfig) -> Manager:
    """Return the control plane controllers of the management API, which work in one process of the group."""
    authority = CertificateAuthority(opened.folder / "pki")
    election = LeaderElection(enabled=config.backend == "etcd", namespace="kube-system")
    patterns = opened.config.controllers
    return control_plane_manager(opened.request_handler, opened.ca_bundle, patterns, authority, election)


def planes_manager(opened: OpenServer, config: PlanesConfig, identity: str) -> Manager:
    """Return a manager for controllers that work in each process of the group, while it holds its Lease.

    Its elector tells whether the process may write to planes in etcd. A process with a management API of its own needs
    no Lease.
    """
    manager_config = ManagerConfig(
        name="planes",
        leader_election=process_lease(config.name) if config.backend == "etcd" else LeaderElection(),
        metrics=Metrics(address=""),
        probes=Probes(address=""),
    )
    return Manager(
        manager_config, lambda: InProcessTransport(opened.request_handler, APISERVER_USER), identity=identity
    )


async def apply_definition(client: Client, kind: Kind[Any]) -> None:
    """Create or update the CustomResourceDefinition of a kind, unless another process does so at the same time."""
    definition = crd(kind)
    with suppress(Conflict):
        await client.converge(CRDS, await client.find(CRDS, name_of(definition)), definition)


async def create_namespace(client: Client, name: str) -> None:
    """Create a namespace of the management API, unless it exists."""
    with suppress(AlreadyExists):
        await client.create(NAMESPACES, object_named(name))
