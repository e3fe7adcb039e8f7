"""Control planes of local clusters: our API server with its controllers, or a real Kubernetes.

Both keep their address, users and objects in one folder.  Kubelets are added to `RunningCluster.manager`, and accept
client certificates of `RunningCluster.kubelet_client_ca`.
"""

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from tapestry.apiserver.access.certificates import CertificateAuthority, front_proxy_ca
from tapestry.apiserver.bootstrap import FRONT_PROXY_CLIENT
from tapestry.apiserver.core.config import ApiServerConfig, KubeletClientConfig
from tapestry.apiserver.core.requests import APISERVER_USER
from tapestry.apiserver.serving.request_handler import MountedHandler
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.kubeconfig_entries import kubeconfig_document
from tapestry.controller import Manager
from tapestry.controller.app import new_identity
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controlplane.app import OPTIONAL_CONTROLLERS
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.objects import EMPTY_MAPPING
from tapestry.local.kubernetes import COMPONENTS, Component, ControlPlane, find_assets, free_ports, write_private
from tapestry.local.nodes import PROCESS_POD_NETWORK
from tapestry.planes.standalone import run_standalone
from tapestry.process.child_processes import exit_future
from tapestry.process.logs import logger

log = logger(__name__)

MASTERS = "system:masters"
KUBELET_CLIENT = "apiserver-kubelet-client"
GENERATED_FILE = "cluster.json"
"""File with the generated port and token."""


@dataclass(frozen=True)
class RunningCluster:
    server: str
    """URL of the API server."""
    client: Client
    manager: Manager
    """Controllers of this process; the caller must run them."""
    kubelet_client_ca: Path
    """CA of clients that may call the kubelets."""
    front_proxy_ca: Path | None
    """CA of the certificate with which the API server calls aggregated API servers; None if it has no certificate."""


# -- ours


@asynccontextmanager
async def tapestry_control_plane(
    folder: Path, mounted_handlers: Mapping[str, MountedHandler] = EMPTY_MAPPING
) -> AsyncIterator[RunningCluster]:
    """Run our API server, controllers and scheduler in this process while the context is open."""
    settings = api_server_config(folder)
    async with run_standalone(settings, mounted_handlers) as running:
        write_kubeconfig(folder, settings)
        client = Client(InProcessTransport(running.server.request_handler, APISERVER_USER))
        kubelet_client_ca = CertificateAuthority(folder / "pki").certificate_file
        proxy_ca = front_proxy_ca(folder)
        proxy_ca.certificate_pem()
        server = f"https://{settings.secure_address}"
        yield RunningCluster(server, client, running.manager, kubelet_client_ca, proxy_ca.certificate_file)


def api_server_config(folder: Path) -> ApiServerConfig:
    """Return the server's configuration; port and token are generated once.  Raise ValueError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    generated = folder / GENERATED_FILE
    if not generated.exists():
        write_private(generated, json.dumps({"port": free_ports(1)[0], "token": secrets.token_urlsafe(32)}))
    port, token = read_port_and_token(generated)
    tokens = folder / "tokens.csv"
    write_private(tokens, f'{token},admin,admin,"{MASTERS}"\n')
    certificate, key = CertificateAuthority(folder / "pki").client_certificate(KUBELET_CLIENT, [MASTERS])
    return ApiServerConfig(
        file_rootpath=str(folder),
        secure_address=f"127.0.0.1:{port}",
        token_auth_file=str(tokens),
        controllers=["*", *OPTIONAL_CONTROLLERS],
        aggregation_allow_host=True,  # the metrics API of this process
        proxy_allowed_cidrs=[str(PROCESS_POD_NETWORK)],  # other pods are simulated: their addresses are not theirs
        kubelet=KubeletClientConfig(client_certificate=str(certificate), client_key=str(key)),
    )


def read_port_and_token(file: Path) -> tuple[int, str]:
    try:
        known = json.loads(file.read_text())
        return int(known["port"]), str(known["token"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} cannot be read ({error}); delete it to generate a new port and token") from error


def write_kubeconfig(folder: Path, settings: ApiServerConfig) -> None:
    name, (_, token) = folder.name, read_port_and_token(folder / GENERATED_FILE)
    authority = str(folder / "pki" / "ca.crt")
    cluster = {"server": f"https://{settings.secure_address}", "certificate-authority": authority}
    document = kubeconfig_document(name, cluster, {"token": token})
    write_private(folder / "kubeconfig", yaml.safe_dump(document, sort_keys=False))


# -- a real Kubernetes


@asynccontextmanager
async def kubernetes_control_plane(folder: Path) -> AsyncIterator[RunningCluster]:
    """Run etcd, kube-apiserver, kube-controller-manager and kube-scheduler; restart a component that exits."""
    plane = ControlPlane(
        folder,
        find_assets(os.environ, COMPONENTS),
        controller_manager=True,
        scheduler=True,
        flags={**kubelet_flags(folder), **front_proxy_flags(folder)},
    )
    try:
        await asyncio.to_thread(plane.start)
        async with asyncio.TaskGroup() as group, kubelet_manager(plane) as served:
            supervisors = [group.create_task(supervise_component(plane, each), name=each) for each in plane.pids()]
            yield served
            for each in supervisors:
                each.cancel()
    finally:
        await asyncio.to_thread(plane.stop)


def kubelet_flags(folder: Path) -> dict[str, str]:
    """Return the flags that let kube-apiserver call the kubelets of this process."""
    authority = CertificateAuthority(folder / "pki")
    certificate, key = authority.client_certificate(KUBELET_CLIENT, [MASTERS])
    return {
        "client-ca-file": str(authority.certificate_file),  # published, so that virtual nodes' kubelets can verify it
        "kubelet-client-certificate": str(certificate),
        "kubelet-client-key": str(key),
    }


def front_proxy_flags(folder: Path) -> dict[str, str]:
    """Return the flags that let kube-apiserver call the metrics API of this process."""
    authority = front_proxy_ca(folder)
    certificate, key = authority.client_certificate(FRONT_PROXY_CLIENT, ())
    return {
        "requestheader-client-ca-file": str(authority.certificate_file),
        "requestheader-allowed-names": FRONT_PROXY_CLIENT,
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-username-headers": "X-Remote-User",
        "proxy-client-cert-file": str(certificate),
        "proxy-client-key-file": str(key),
    }


@asynccontextmanager
async def kubelet_manager(plane: ControlPlane) -> AsyncIterator[RunningCluster]:
    """Yield a manager in this process for a running control plane."""
    access = load_access([plane.kubeconfig], environ={})
    config = ManagerConfig(name="kubelets", metrics=Metrics(address=""), probes=Probes(address=""))
    client, authority = Client(HttpTransport(access)), CertificateAuthority(plane.folder / "pki")
    authority.certificate_pem()
    manager = Manager(config, lambda: HttpTransport(access), identity=new_identity())
    manager.register("kubelets", lambda _: None)  # filled by the caller
    try:
        proxy_ca = front_proxy_ca(plane.folder).certificate_file
        has_proxy = proxy_ca.exists()
        yield RunningCluster(plane.url, client, manager, authority.certificate_file, proxy_ca if has_proxy else None)
    finally:
        await client.close()


async def supervise_component(plane: ControlPlane, component: Component) -> None:
    """Restart a component whenever it exits."""
    while True:
        with exit_future(plane.pids()[component]) as ended:
            await ended
        log.warning("control plane component exited", component=component)
        await asyncio.to_thread(plane.restart, component)
        log.info("control plane component restarted", component=component)
