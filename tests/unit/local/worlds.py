"""Cluster in this process whose pods run as processes."""

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig, KubeletClientConfig
from tapestry.apiserver.core.requests import APISERVER_USER
from tapestry.client.client import Client
from tapestry.client.watch import Watch, wait_for
from tapestry.controlplane.app import control_plane_manager
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.objects import Object
from tapestry.kube.resources import EVENTS, NODES, PODS
from tapestry.local import process_kubelet, simulated_kubelet
from tapestry.local.container_commands import ProcessPolicy
from tapestry.local.isolation import machine_isolation
from tapestry.local.kubelet_api import kubelet_tls, loopback_socket, serve_kubelet
from tapestry.local.nodes import internal_ip
from tapestry.local.pod_sandbox import Endpoint
from tapestry.local.process_kubelet import ProcessSettings, machine_capacity, process_node
from tapestry.local.runtime import Runtime

TAPESTRY = Path(sys.executable).with_name("tapestry")
MASTERS = ["system:masters"]
NO_NAMESPACES = "unshare: Operation not permitted"
"""Reason of nodes without isolation."""


@dataclass(frozen=True)
class World:
    """A cluster with access to its kubelets."""

    client: Client
    server: str
    folder: Path
    authority: CertificateAuthority
    runtime: Runtime

    async def wait_for_pod(self, name: str, until: Callable[[Object], bool], namespace: str = "default") -> Object:
        found = await wait_for(
            self.client, PODS, name, namespace, until=lambda pod: pod is not None and until(pod), timeout=20
        )
        assert found is not None
        return found

    async def wait_for_events(self, reasons: set[str], namespace: str = "default") -> list[Object]:
        """Wait until events with all these reasons exist, and return all events of the namespace."""
        watch = Watch(self.client, EVENTS, namespace)
        async with asyncio.timeout(20), aclosing(watch.events()) as changes:
            async for _ in changes:
                events = await self.client.list(EVENTS, namespace)
                if reasons <= {each["reason"] for each in events}:
                    return events
        raise AssertionError("a watch does not end by itself")

    async def wait_until_gone(self, name: str, namespace: str = "default") -> None:
        await wait_for(self.client, PODS, name, namespace, until=lambda pod: pod is None, timeout=20)

    async def log(self, name: str, namespace: str = "default", **query: Any) -> str:
        """Return the log of a pod from the API server."""
        async with self.open_log(name, namespace, **query) as response:
            return await response.text()

    async def first_line(self, name: str, namespace: str = "default") -> str:
        """Return the first line of the log as soon as it is written."""
        async with asyncio.timeout(20), self.open_log(name, namespace, follow="true") as response:
            return (await response.content.readline()).decode()

    @asynccontextmanager
    async def open_log(
        self, name: str, namespace: str = "default", **query: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        url = f"{self.server}/api/v1/namespaces/{namespace}/pods/{name}/log"
        async with (
            self.session(self.authority.client_certificate("admin", MASTERS)) as session,
            session.get(url, params=query) as response,
        ):
            assert response.status == 200, await response.text()
            yield response

    async def call_kubelet(
        self, path: str, node: str = "n", token: str = "", certificate: bool = False
    ) -> tuple[int, str]:
        """Call the kubelet of a node with a certificate, a token or no credentials; return status and text."""
        found = await self.client.get(NODES, node)
        port = found["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        key_pair = self.authority.client_certificate("admin", MASTERS) if certificate else None
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with (
            self.session(key_pair) as session,
            session.get(f"https://{internal_ip(found)}:{port}{path}", headers=headers) as response,
        ):
            return response.status, await response.text()

    def session(self, certificate: tuple[Path, Path] | None) -> aiohttp.ClientSession:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context))


@asynccontextmanager
async def new_cluster(
    folder: Path, *controllers: str, run_pods: bool = False, simulated: bool = False, isolated: bool = False
) -> AsyncIterator[World]:
    """Run a cluster with one node, `n`; a second one over the same folder continues the first."""
    authority = CertificateAuthority(folder / "data" / "pki")
    certificate, key = authority.client_certificate("apiserver-kubelet-client", MASTERS)
    config = ApiServerConfig(
        file_rootpath=str(folder / "data"),
        secure_address="127.0.0.1:0",
        kubelet=KubeletClientConfig(str(certificate), str(key)),
    )
    async with run_apiserver(config) as served:
        server = f"https://{served.addresses['secure']}"
        manager = control_plane_manager(served.request_handler, served.ca_bundle, ["accounts", *controllers])
        client, sock = Client(InProcessTransport(served.server, APISERVER_USER)), loopback_socket()

        def port() -> int:
            return int(sock.getsockname()[1])

        if simulated:
            node, kubelet = (
                simulated_kubelet.simulated_node("n", {"cpu": "8"}),
                simulated_kubelet.install(manager, port),
            )
        else:
            isolation = machine_isolation(folder, os.environ) if isolated else None
            trust = ProcessPolicy(TAPESTRY, run_pods=run_pods or isolated, user=os.getuid(), isolation=isolation)
            address = Endpoint(*served.addresses["secure"].rsplit(":", 1))
            servers = [address._replace(port=int(address.port))]
            failure = "" if isolated else NO_NAMESPACES
            settings = ProcessSettings(folder / "pods", server, trust, os.environ, lambda: servers, failure)
            node, kubelet = process_node("n", machine_capacity()), process_kubelet.install(manager, port, settings)
        if not any(True for _ in await client.list(NODES)):
            await client.create(NODES, node)
        tls = kubelet_tls(folder / "kubelets", [authority.certificate_file])
        async with serve_kubelet(kubelet, sock, tls), asyncio.TaskGroup() as group:
            working = group.create_task(manager.run())
            await wait_for(client, NODES, "n", until=lambda obj: obj is not None and bool(internal_ip(obj)))
            yield World(client, server, folder, authority, kubelet.runtime)
            manager.stop()
            await asyncio.wait([working])
