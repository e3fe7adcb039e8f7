"""A process of planes whose management API has the kinds of virtual clusters and their admission, for tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tapestry.apis.projects import PROJECTS, QUOTAS
from tapestry.apis.vclusters import VCLUSTERS, Phase
from tapestry.apiserver.core.requests import APISERVER_USER, MASTERS_GROUP, CallOrigin, User
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.objects import Object, object_named
from tapestry.kube.resources import CLUSTER_ROLE_BINDINGS, NAMESPACES
from tapestry.planes.app import PlaneProcess, run_planes
from tapestry.planes.config import PlanesConfig
from tapestry.vclusters.app import prepare_management_api
from tapestry.vclusters.policy import service_admission
from tapestry.vclusters.validation import Provided


@dataclass(frozen=True)
class ManagementWorld:
    process: PlaneProcess
    http: Client
    """Client of the listener, as an administrator."""

    def client(self, user: str = "alice", origin: CallOrigin = CallOrigin.CLIENT) -> Client:
        handler = self.process.management.request_handler
        return Client(InProcessTransport(handler, User(user, (MASTERS_GROUP,)), origin))

    @property
    def orchestrator(self) -> Client:
        handler = self.process.management.request_handler
        return Client(InProcessTransport(handler, APISERVER_USER, CallOrigin.CONTROLLER))

    def user(self, name: str) -> Client:
        """Return a client of a user without any group."""
        return Client(InProcessTransport(self.process.management.request_handler, User(name, ())))

    async def grant_everything(self, *users: str) -> None:
        """Let the management API itself allow everything to users."""
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
        subjects = [{"apiGroup": role["apiGroup"], "kind": "User", "name": each} for each in users]
        binding = {**object_named("users"), "roleRef": role, "subjects": subjects}
        await self.http.create(CLUSTER_ROLE_BINDINGS, binding)

    async def create(self, name: str = "blue", **spec: Any) -> Object:
        return await self.http.create(VCLUSTERS, {**object_named(name, "shop"), "spec": spec})

    async def set_status(self, vcluster: Object, phase: Phase, **status: Any) -> Object:
        content = {"phase": phase.value, **status}
        return await self.orchestrator.patch(VCLUSTERS, vcluster, {"status": content}, subresource="status")

    async def run(self, vcluster: Object) -> Object:
        """Let the requested operation end, and the virtual cluster run."""
        return await self.set_status(vcluster, Phase.RUNNING, lastOperation=vcluster["spec"]["operation"]["id"])


@asynccontextmanager
async def management_world(folder: Path) -> AsyncIterator[ManagementWorld]:
    """Run a management API with the projects `shop` and `other`, and the namespace `shop`. Nothing orchestrates."""
    config = PlanesConfig(data=str(folder), name="here", address="127.0.0.1:0")
    async with (
        run_planes(config, lambda _: {}, admission=service_admission(Provided("1.34.3"))) as process,
        Client(HttpTransport(load_access([config.kubeconfig_file], environ={}))) as http,
    ):
        world = ManagementWorld(process, http)
        await prepare_management_api(world.orchestrator)
        await http.create(NAMESPACES, object_named("shop"))
        for name in ("shop", "other", "default"):
            await http.create(PROJECTS, {**object_named(name), "spec": {}})
        yield world


async def limit(world: ManagementWorld, **limits: Any) -> None:
    await world.http.create(QUOTAS, {**object_named("shop"), "spec": {"project": "shop", "limits": limits}})
