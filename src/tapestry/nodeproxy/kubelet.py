"""The kubelet of all virtual nodes of a syncer: one listener, for those whom the virtual cluster lets in.

Every node shows the same address and port, and the pod that is asked for says whose kubelet is meant.  Who calls is
known as by any kubelet; see `tapestry.client.delegated_auth`.
"""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from aiohttp import web

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.client.client import Client
from tapestry.client.delegated_auth import DelegatedAuth
from tapestry.kube.errors import Forbidden, NotFound
from tapestry.kube.objects import Object
from tapestry.kube.resources import CONFIGMAPS
from tapestry.nodeproxy.logs import LogRelay
from tapestry.process.addresses import Address
from tapestry.process.logs import logger
from tapestry.process.probes import bound_socket, serve_app, server_tls

log = logger(__name__)

AUTHENTICATION_CONFIGMAP = "extension-apiserver-authentication"
"""The ConfigMap in which API servers publish how they know their clients."""
SHM_DIR = Path("/dev/shm")
"""Files that are never on a disk; also where a container may write to nothing else."""


@dataclass(frozen=True)
class KubeletServer:
    """Answers for the kubelets of virtual nodes."""

    callers: DelegatedAuth
    logs: LogRelay

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self.log)
        app.router.add_route(
            "*", "/{verb:exec|attach|run|portForward}/{namespace}/{pod}{rest:.*}", self.not_implemented
        )
        return app

    async def log(self, request: web.Request) -> web.StreamResponse:
        pod = await self.requested_pod(request)
        return await self.logs.relay(request, pod, request.match_info["container"])

    async def not_implemented(self, request: web.Request) -> web.Response:
        pod = await self.requested_pod(request)
        verb, node = request.match_info["verb"], pod["spec"]["nodeName"]
        todo = f"{verb} works in the physical cluster behind it, not through it"
        raise web.HTTPNotImplemented(text=f"virtual node {node} serves logs and nothing else so far; {todo}")

    async def requested_pod(self, request: web.Request) -> Object:
        """The pod that is asked for; whoever may not call its node is not told whether there is one."""
        names = request.match_info
        pod = self.logs.twins.pod(f"{names['namespace']}/{names['pod']}")
        await self.callers.authorize_request(request, "proxy", pod["spec"]["nodeName"] if pod is not None else "")
        if pod is None:
            raise web.HTTPNotFound(text=f'pod "{names["pod"]}" does not exist')
        return pod


@asynccontextmanager
async def serve_kubelet(kubelet: KubeletServer, address: Address, tls: ssl.SSLContext) -> AsyncIterator[Address]:
    """Answer at the address that this yields, for as long as the context lasts."""
    async with serve_app(kubelet.app(), bound_socket(address), tls) as port:
        yield Address(address.host, port)


def kubelet_tls(host: str, certificate: str, key: str, client_ca: str, published_cas: str) -> ssl.SSLContext:
    """TLS with the certificate in these files, or one of our own, which nobody can check.

    Clients are known by the CAs in the file `client_ca`, or by the `published` ones where there is none.
    """
    if certificate:
        context = server_tls(certificate, key, client_ca or None)
    else:
        with TemporaryDirectory(dir=SHM_DIR if SHM_DIR.is_dir() else None) as folder:
            own = CertificateAuthority(Path(folder)).server_certificate([host])
            context = server_tls(str(own[0]), str(own[1]), client_ca or None)
    if published_cas and not client_ca:
        context.load_verify_locations(cadata=published_cas)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


async def published_client_cas(client: Client) -> str:
    """The CAs by whose certificates an API server knows its clients, itself among them; empty where it tells nobody."""
    try:
        found = await client.get(CONFIGMAPS, AUTHENTICATION_CONFIGMAP, "kube-system")
    except (NotFound, Forbidden):
        found = {}
    authorities: str = (found.get("data") or {}).get("client-ca-file", "")
    if not authorities:
        log.warning(
            "callers are known by their tokens alone; kubelet.clientCa names a CA", missing=AUTHENTICATION_CONFIGMAP
        )
    return authorities
