"""The orchestrator of virtual clusters in a process of planes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.hostclusters import HOST_CLUSTER
from tapestry.apis.operations import OPERATION, SNAPSHOT
from tapestry.apis.planes import PLANES
from tapestry.apis.projects import ACCESS_KEY, PROJECT, QUOTA
from tapestry.apis.vclusters import VCLUSTER
from tapestry.apiserver.core.requests import APISERVER_USER, CallOrigin
from tapestry.apiserver.core.resource_registry import published_api
from tapestry.client.client import Client
from tapestry.controller import Manager
from tapestry.controller.config import LeaderElection, ManagerConfig, Metrics, Probes
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.planes.app import PlaneProcess, client_of
from tapestry.planes.config import PlanesConfig
from tapestry.planes.management import apply_definition, process_identity
from tapestry.vclusters import operation_sweeper, orchestrator, quota_reporter, snapshot_sweeper
from tapestry.vclusters.config import ServiceConfig
from tapestry.vclusters.engines.native import NativeEngine, vcluster_keys
from tapestry.vclusters.engines.native_snapshots import SnapshotSteps
from tapestry.vclusters.snapshots import SnapshotFiles
from tapestry.vclusters.validation import Provided

DEFAULTS = ServiceConfig()
KINDS = (VCLUSTER, OPERATION, SNAPSHOT, PROJECT, QUOTA, ACCESS_KEY, HOST_CLUSTER)


@asynccontextmanager
async def run_vclusters(process: PlaneProcess, config: ServiceConfig = DEFAULTS) -> AsyncIterator[None]:
    """Run the orchestrator of virtual clusters. Tenants run in the same process, and begin before it."""
    await prepare_management_api(client_of(process.management))
    manager = vclusters_manager(process)
    root, elector = config.shared_path(process.config.folder), manager.elector
    may_write = (lambda: elector.is_leading) if elector is not None else (lambda: True)
    files = SnapshotFiles(process.config, process.plane_set, root, may_write)
    await asyncio.to_thread(files.remove_leftovers)
    manager.register("vclusters", partial(install, process=process, files=files, is_compatible=config.compat_plaintext))
    manager.register("snapshot-sweeper", partial(snapshot_sweeper.install, files=files))
    manager.register("operation-sweeper", operation_sweeper.install)
    manager.register("quota-reporter", quota_reporter.install)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(manager.run(), name="vclusters")
        try:
            yield
        finally:
            manager.stop()
            await asyncio.wait([running])


async def prepare_management_api(client: Client) -> None:
    for kind in KINDS:
        await apply_definition(client, kind)


def vclusters_manager(process: PlaneProcess) -> Manager:
    """Return a manager of the management API. With several processes, the elected one orchestrates."""
    election = LeaderElection(enabled=process.config.backend == "etcd", namespace="kube-system", name="vclusters")
    config = ManagerConfig(
        name="vclusters", leader_election=election, metrics=Metrics(address=""), probes=Probes(address="")
    )
    handler = process.management.request_handler
    return Manager(
        config,
        lambda: InProcessTransport(handler, APISERVER_USER, CallOrigin.CONTROLLER),
        identity=process_identity(process.config),
        now=process.now,
    )


def provided(config: PlanesConfig, *, is_compatible: bool) -> Provided:
    """Return what this installation provides. A compatible one maps what the published contract has and it has not."""
    has_own_processes = config.backend == "etcd"
    return Provided(published_api().version.removeprefix("v"), is_compatible, has_own_processes)


def install(manager: Manager, process: PlaneProcess, files: SnapshotFiles, *, is_compatible: bool) -> None:
    backend = "etcd" if process.config.backend == "etcd" else "file"
    features = provided(process.config, is_compatible=is_compatible)
    snapshots = SnapshotSteps(manager.client, files, features)
    engine = NativeEngine(manager.client, features, snapshots, backend)
    controller = orchestrator.install(manager, {"native": engine})
    for resource in (PLANES, CLUSTER_BINDINGS):
        controller.watch(manager.informer(resource), vcluster_keys)
