"""What serves a cluster of a world: our own API server with its controllers, or a real Kubernetes.

Both keep their address, their users and their objects in one folder.  Kubelets are added to `Served.manager`, and are
called by a client certificate of `Served.callers`.
"""

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from tapestry.apiserver.access.certificates import Authority
from tapestry.apiserver.app import running
from tapestry.apiserver.bootstrap import SYSTEM
from tapestry.apiserver.config import ApiServerConfig, Kubelets
from tapestry.client.client import Client
from tapestry.client.connection import HttpTransport
from tapestry.client.kubeconfig import load
from tapestry.controller import Manager
from tapestry.controller.app import new_identity
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controlplane.app import WORKLOADS, manager_beside
from tapestry.controlplane.direct import Direct
from tapestry.local.children import end_of
from tapestry.local.kubernetes import COMPONENTS, Component, ControlPlane, find_assets, free_ports, write_private
from tapestry.process.logs import logger

log = logger(__name__)

MASTERS = "system:masters"
SERVER_TO_KUBELET = "apiserver-kubelet-client"
CHOSEN = "cluster.json"
"""The file with what is chosen by chance."""


@dataclass(frozen=True)
class Served:
    """A cluster that answers."""

    server: str
    """Its URL."""
    client: Client
    manager: Manager
    """What runs beside it in this process; whoever got it here runs it."""
    callers: Path
    """The CA of those who may call its kubelets."""


# -- ours


@asynccontextmanager
async def ours(folder: Path) -> AsyncIterator[Served]:
    """Our own API server in this process, its controllers and its scheduler, for as long as the context lasts."""
    settings = settings_of(folder)
    async with running(settings) as served:
        authority = Authority(folder / "pki")
        write_kubeconfig(folder, settings)
        client = Client(Direct(served.reception, SYSTEM))
        manager = manager_beside(served.reception, authority.certificate(), settings.controllers, authority)
        yield Served(f"https://{settings.secure_address}", client, manager, authority.certificate_file)


def settings_of(folder: Path) -> ApiServerConfig:
    """The server's configuration; what is chosen by chance is chosen once.  Raises ValueError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    kept = folder / CHOSEN
    if not kept.exists():
        write_private(kept, json.dumps({"port": free_ports(1)[0], "token": secrets.token_urlsafe(32)}))
    port, token = chosen(kept)
    tokens = folder / "tokens.csv"
    write_private(tokens, f'{token},admin,admin,"{MASTERS}"\n')
    certificate, key = Authority(folder / "pki").client(SERVER_TO_KUBELET, [MASTERS])
    return ApiServerConfig(
        file_rootpath=str(folder),
        secure_address=f"127.0.0.1:{port}",
        token_auth_file=str(tokens),
        controllers=["*", *WORKLOADS],
        kubelet=Kubelets(client_certificate=str(certificate), client_key=str(key)),
    )


def chosen(file: Path) -> tuple[int, str]:
    """The port and the token of a cluster."""
    try:
        known = json.loads(file.read_text())
        return int(known["port"]), str(known["token"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} cannot be read ({error}); delete it to have another port and token") from error


def write_kubeconfig(folder: Path, settings: ApiServerConfig) -> None:
    name, (_, token) = folder.name, chosen(folder / CHOSEN)
    authority = folder / "pki" / "ca.crt"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [
            {
                "name": name,
                "cluster": {"server": f"https://{settings.secure_address}", "certificate-authority": str(authority)},
            }
        ],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "admin"}}],
    }
    write_private(folder / "kubeconfig", yaml.safe_dump(content, sort_keys=False))


# -- a real Kubernetes


@asynccontextmanager
async def kubernetes(folder: Path) -> AsyncIterator[Served]:
    """etcd, kube-apiserver, kube-controller-manager and kube-scheduler; one that ends is started again."""
    plane = ControlPlane(
        folder,
        find_assets(os.environ, COMPONENTS),
        controller_manager=True,
        scheduler=True,
        flags=kubelet_flags(folder),
    )
    try:
        await asyncio.to_thread(plane.start)
        async with asyncio.TaskGroup() as group, beside(plane) as served:
            keeping = [group.create_task(keep(plane, each), name=each) for each in plane.pids()]
            yield served
            for each in keeping:
                each.cancel()
    finally:
        await asyncio.to_thread(plane.stop)


def kubelet_flags(folder: Path) -> dict[str, str]:
    """By which kube-apiserver can call the kubelets of this process."""
    authority = Authority(folder / "pki")
    certificate, key = authority.client(SERVER_TO_KUBELET, [MASTERS])
    return {
        "client-ca-file": str(authority.certificate_file),  # which it publishes, for those of virtual nodes to know it
        "kubelet-client-certificate": str(certificate),
        "kubelet-client-key": str(key),
    }


@asynccontextmanager
async def beside(plane: ControlPlane) -> AsyncIterator[Served]:
    """A manager in this process for a control plane that runs."""
    access = load([plane.kubeconfig], environ={})
    config = ManagerConfig(name="kubelets", metrics=Metrics(address=""), probes=Probes(address=""))
    client, authority = Client(HttpTransport(access)), Authority(plane.folder / "pki")
    authority.certificate()
    manager = Manager(config, lambda: HttpTransport(access), identity=new_identity())
    manager.with_("kubelets", lambda _: None)  # by whoever gets it
    try:
        yield Served(plane.url, client, manager, authority.certificate_file)
    finally:
        await client.close()


async def keep(plane: ControlPlane, component: Component) -> None:
    """Start a component again whenever it ends."""
    while True:
        with end_of(plane.pids()[component]) as ended:
            await ended
        log.warning("a component has ended", component=component)
        await asyncio.to_thread(plane.restart, component)
        log.info("it runs again", component=component)
