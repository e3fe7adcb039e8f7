"""The kubelet API server for all virtual nodes of a syncer, on one listener.

All virtual nodes have the same address and port.  The requested pod determines the virtual node.  Requests are
authorized as by any kubelet; see `tapestry.client.delegated_auth`.
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
from tapestry.client.delegated_auth import Caller, DelegatedAuth
from tapestry.kube.errors import ApiError, Forbidden, NotFound
from tapestry.kube.objects import Object
from tapestry.kube.resources import CONFIGMAPS
from tapestry.nodeproxy.logs import LogRelay
from tapestry.process.addresses import Address
from tapestry.process.logs import logger
from tapestry.process.probes import bound_socket, serve_app, server_tls

log = logger(__name__)

AUTHENTICATION_CONFIGMAP = "extension-apiserver-authentication"
"""ConfigMap in which API servers publish the CAs of their clients."""
SHM_DIR = Path("/dev/shm")
"""Folder for temporary files in memory.  In a container, it may be the only writable one."""


@dataclass(frozen=True)
class KubeletServer:
    """HTTP handlers of the kubelet API."""

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
        hint = f"use {verb} in the physical cluster"
        raise web.HTTPNotImplemented(text=f"virtual node {node} serves only logs; {hint}")

    async def requested_pod(self, request: web.Request) -> Object:
        """Return the requested pod.  Authorize first, so that other users cannot learn whether it exists."""
        names = request.match_info
        pod = self.logs.twins.pod(f"{names['namespace']}/{names['pod']}")
        await authorize(self.callers, request, "proxy", pod["spec"]["nodeName"] if pod is not None else "")
        if pod is None:
            raise web.HTTPNotFound(text=f'pod "{names["pod"]}" does not exist')
        return pod


async def authorize(callers: DelegatedAuth, request: web.Request, subresource: str, node: str) -> None:
    """Raise the HTTP error to respond with if the sender of a request may not use that subresource of the node."""
    certificate = request.transport.get_extra_info("peercert") if request.transport else None
    subject: dict[str, list[str]] = {}
    for part in (certificate or {}).get("subject", ()):
        for name, value in part:
            subject.setdefault(name, []).append(value)
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    caller = Caller(subject, token if scheme.lower() == "bearer" else "")
    try:
        await callers.authorize(caller, "get" if request.method in ("GET", "HEAD") else "create", subresource, node)
    except ApiError as error:
        response = web.HTTPException(text=error.message)
        response.set_status(error.code)
        raise response from error


@asynccontextmanager
async def serve_kubelet(kubelet: KubeletServer, address: Address, tls: ssl.SSLContext) -> AsyncIterator[Address]:
    """Serve the kubelet API at the address that this yields, until the context exits."""
    async with serve_app(kubelet.app(), bound_socket(address), tls) as port:
        yield Address(address.host, port)


def kubelet_tls(host: str, certificate: str, key: str, client_ca: str, published_cas: str) -> ssl.SSLContext:
    """Return a TLS context with the certificate in these files, or with a self-signed one.

    Client certificates are verified by the CAs in the file `client_ca`, or else by `published_cas`.
    """
    if certificate:
        context = server_tls(certificate, key, client_ca or None)
    else:
        with TemporaryDirectory(dir=SHM_DIR if SHM_DIR.is_dir() else None) as folder:
            files = CertificateAuthority(Path(folder)).server_certificate([host])
            context = server_tls(str(files[0]), str(files[1]), client_ca or None)
    if published_cas and not client_ca:
        context.load_verify_locations(cadata=published_cas)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


async def published_client_cas(client: Client) -> str:
    """Return the client CAs that the API server publishes, or "" if it publishes none."""
    try:
        configmap = await client.get(CONFIGMAPS, AUTHENTICATION_CONFIGMAP, "kube-system")
    except (NotFound, Forbidden):
        configmap = {}
    authorities: str = (configmap.get("data") or {}).get("client-ca-file", "")
    if not authorities:
        log.warning(
            "client certificates disabled: no client CA published; set kubelet.clientCa",
            missing=AUTHENTICATION_CONFIGMAP,
        )
    return authorities
