"""Outgoing HTTP calls to webhooks and other servers: resolution of Services, TLS trust, limits and error texts.

A webhook has a URL or a Service. A Service is called as `name.namespace.svc`, and its certificate must be valid for
that name. The server resolves the name from its store, not with DNS. Connections are reused, certificates are always
verified, and redirects are not followed. Responses have a maximum size and are not decompressed. Some addresses are
never called (`egress`). If the server has a host cluster, its syncer connects Services (`pod_sessions`).
"""

import asyncio
import base64
import binascii
import json
import posixpath
import socket
import ssl
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

from tapestry.apiserver.core import egress
from tapestry.apiserver.core.codec import JSON
from tapestry.apiserver.core.host_access import HostAccess, PodUnreachable
from tapestry.apiserver.core.pod_sessions import NamedSockets, service_host, socket_session
from tapestry.apiserver.core.store import Store
from tapestry.kube.errors import Unavailable
from tapestry.kube.objects import Object, value_at

MAX_RESPONSE_BYTES = 16 * 1024 * 1024
MAX_RESPONSE_GROWTH = 4
"""The maximum size of a response grows by this factor times the size of its request."""
MAX_ERROR_BYTES = 4096
"""Maximum size of an error response that is shown to the client."""
MAX_TLS_CONTEXTS = 256
ENDPOINT_SLICES = "endpointslices.discovery.k8s.io"
SERVICE_LABEL = "kubernetes.io/service-name"
UNTRUSTED_CODES, EXPIRED_CODES = frozenset({2, 7, 18, 19, 20, 21}), frozenset({9, 10})
NAME_MISMATCH_CODES, ADDRESS_MISMATCH_CODES = frozenset({62, 63}), frozenset({64})
"""OpenSSL error codes: untrusted signer, expired, name mismatch, address mismatch."""
STATUS_MESSAGES = {
    400: "the server rejected our request for an unknown reason",
    401: "the server has asked for the client to provide credentials",
    404: "the server could not find the requested resource",
    405: "the server does not allow this method on the requested resource",
    409: "the server reported a conflict",
    422: "the server rejected our request due to an error in our request",
    429: "the server has received too many requests and has asked us to try again later",
    503: "the server is currently unable to handle the request",
    504: "the server was unable to return a response in the time allotted, but may still be processing the request",
}


class WebhookCallError(Exception):
    """Error if a call gives no usable response. The message has the wording of Kubernetes."""


class ServiceUnresolved(OSError):
    """Error if a Service has no address."""


class WebhookClient:
    """Call webhooks. Close it in the event loop in which it was used."""

    def __init__(self, store: Store, random: Random, policy: egress.EgressPolicy, host: HostAccess) -> None:
        self._services, self._sockets = ServiceResolver(store, random), NamedSockets(store, host)
        self._policy, self._host = policy, host
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._sessions: dict[tuple[bool, bool], aiohttp.ClientSession] = {}
        """Sessions by whether they are for Services, and whether the server has a host cluster."""

    async def post(self, client_config: Object, body: bytes, seconds: int) -> bytes:
        """Send `body` to the webhook of a `clientConfig` and return its response. Raises WebhookCallError."""
        url = f"{webhook_url(client_config)}?timeout={seconds}s"
        try:
            has_host = self._host.current() is not None
        except Unavailable as error:
            raise WebhookCallError(f'Post "{url}": {error.message}') from error
        session, context = (
            self._session(by_service="service" in client_config, has_host=has_host),
            self._context(client_config.get("caBundle") or ""),
        )
        try:
            async with (
                asyncio.timeout(seconds),
                session.post(url, data=body, ssl=context, allow_redirects=False) as response,
            ):
                content = await read_bounded(response.content, MAX_RESPONSE_BYTES + MAX_RESPONSE_GROWTH * len(body))
        except TimeoutError as error:
            raise WebhookCallError(f'Post "{url}": context deadline exceeded') from error
        except aiohttp.ClientError as error:
            raise WebhookCallError(f'Post "{url}": {connection_error_text(error)}') from error
        if not 200 <= response.status <= 206:
            raise WebhookCallError(response_error_text(response.status, content))
        return content

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    def _session(self, *, by_service: bool, has_host: bool) -> aiohttp.ClientSession:
        session = self._sessions.get((by_service, has_host))
        if session is None:
            headers = {"Content-Type": JSON, "Accept": JSON}
            if by_service and has_host:
                session = socket_session(self._sockets.open, headers)
            else:
                check = self._policy.check_public if has_host else self._policy.check_webhook
                resolver = self._services if by_service else None
                session = egress.checked_session(check, resolver, headers)
            self._sessions[by_service, has_host] = session
        return session

    def _context(self, bundle: str) -> ssl.SSLContext:
        context = self._contexts.get(bundle)
        if context is None:
            if len(self._contexts) >= MAX_TLS_CONTEXTS:
                self._contexts.clear()
            context = self._contexts[bundle] = tls_context(bundle)
        return context


def tls_context(bundle: str) -> ssl.SSLContext:
    """A TLS context that trusts a bundle (PEM in base64), or the system's certificates if it is empty."""
    try:
        text = base64.b64decode(bundle).decode("ascii").strip()
        context = ssl.create_default_context(cadata=text or None)
    except (binascii.Error, ValueError, ssl.SSLError) as error:
        raise WebhookCallError("unable to load root certificates: unable to parse bytes as PEM block") from error
    # Like Kubernetes, trust every certificate in the bundle, even one that is not a complete CA certificate.
    context.verify_flags = ssl.VERIFY_X509_TRUSTED_FIRST | ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def webhook_url(client_config: Object) -> str:
    """The URL of a webhook. The path is normalized as in client-go, because envtest writes two slashes."""
    service = client_config.get("service")
    if service is None:
        host, _, path = client_config["url"].removeprefix("https://").partition("/")
    else:
        host = f"{service_host(service['namespace'], service['name'])}:{service.get('port') or 443}"
        path = service.get("path") or ""
    return f"https://{host}{posixpath.normpath('/' + path.lstrip('/'))}"


async def read_bounded(content: aiohttp.StreamReader, max_bytes: int) -> bytes:
    parts, size = [], 0
    async for part in content.iter_any():
        size += len(part)
        if size > max_bytes:
            raise WebhookCallError(f"the response is longer than {max_bytes} bytes")
        parts.append(part)
    return b"".join(parts)


# -- resolution of Services


class Endpoint(NamedTuple):
    """Ready endpoint of a service."""

    address: str
    port: int
    pod: str
    """Name of its pod, if it has one."""


class ServiceResolver(AbstractResolver):
    """Resolve `name.namespace.svc` to a ready endpoint, else to the cluster IP."""

    def __init__(self, store: Store, random: Random) -> None:
        self._store = store
        self._random = random
        self._names = egress.NameResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        name, namespace, _ = host.split(".", 2)
        version = self._store.get("services", namespace, name)
        if version is None:
            raise ServiceUnresolved(f'service "{name}" not found')
        spec: Object = msgspec.json.decode(version.raw).get("spec") or {}
        address, number = self.address(namespace, name, spec, port)
        addresses = await self._names.resolve(address, number, family)
        return [ResolveResult(**{**each, "hostname": host}) for each in addresses]

    def address(self, namespace: str, name: str, spec: Object, port: int) -> tuple[str, int]:
        if spec.get("type") == "ExternalName":
            return spec.get("externalName", ""), port
        service_port = next((each for each in spec.get("ports") or () if each.get("port") == port), None)
        if service_port is None:
            raise ServiceUnresolved(f'no service port {port} found for service "{name}"')
        ready = list(self.ready_endpoints(namespace, name, service_port.get("name") or ""))
        if ready:
            endpoint = self._random.choice(ready)
            return endpoint.address, endpoint.port
        if spec.get("clusterIP") in (None, "", "None"):
            raise ServiceUnresolved(f'no endpoints available for service "{name}"')
        return spec["clusterIP"], port

    def ready_endpoints(self, namespace: str, name: str, port_name: str) -> Iterator[Endpoint]:
        for version in self._store.list_objects(ENDPOINT_SLICES, namespace):
            if version.labels.get(SERVICE_LABEL) != name:
                continue
            endpoint_slice: Object = msgspec.json.decode(version.raw)
            for port in endpoint_slice.get("ports") or ():
                if (port.get("name") or "") == port_name and port.get("port"):
                    for endpoint in endpoint_slice.get("endpoints") or ():
                        if value_at(endpoint, "conditions", "ready", default=True):
                            reference = endpoint.get("targetRef") or {}
                            pod = reference.get("name", "") if reference.get("kind") == "Pod" else ""
                            yield Endpoint(endpoint["addresses"][0], port["port"], pod)

    async def close(self) -> None:
        """Do nothing: the store belongs to the server."""


# -- error texts


def connection_error_text(error: aiohttp.ClientError) -> str:
    """The cause of a failed call, in the wording of Go."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return certificate_error_text(error.certificate_error, error.host)
    if isinstance(error, aiohttp.ClientConnectorError):
        return os_error_text(error.os_error, error.host, error.port) or str(error)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "EOF"
    return str(error) or type(error).__name__


def os_error_text(error: OSError, host: str, port: int | None) -> str:
    """The cause of a failed connection, in the wording of Go; empty if there is none."""
    if isinstance(error, ServiceUnresolved | PodUnreachable | egress.AddressNotAllowed):
        return str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return certificate_error_text(error, host)
    if isinstance(error, socket.gaierror):
        return f"dial tcp: lookup {host}: no such host"
    if isinstance(error, ConnectionRefusedError):
        return f"dial tcp {host}:{port}: connect: connection refused"
    if isinstance(error, TimeoutError):
        return f"dial tcp {host}:{port}: i/o timeout"
    if isinstance(error, ConnectionResetError | ConnectionAbortedError):
        return "EOF"  # during the TLS handshake
    return ""


def certificate_error_text(error: Exception, host: str) -> str:
    code = getattr(error, "verify_code", 0)
    if code in UNTRUSTED_CODES:
        reason = "certificate signed by unknown authority"
    elif code in NAME_MISMATCH_CODES:
        reason = f"certificate is not valid for any names, but wanted to match {host}"
    elif code in ADDRESS_MISMATCH_CODES:
        reason = f"cannot validate certificate for {host} because it doesn't contain any IP SANs"
    elif code in EXPIRED_CODES:
        reason = "certificate has expired or is not yet valid"
    else:
        reason = str(error)
    return f"tls: failed to verify certificate: x509: {reason}"


def response_error_text(code: int, body: bytes) -> str:
    """The error text of a failed response, in the wording of client-go."""
    try:
        status = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        status = None
    if isinstance(status, dict) and status.get("kind") == "Status" and status.get("message"):
        return str(status["message"])[:MAX_ERROR_BYTES]
    text = body[:MAX_ERROR_BYTES].decode("utf-8", "replace").strip() or "unknown"
    if code in STATUS_MESSAGES:
        return STATUS_MESSAGES[code]
    if code in (403, 406, 415):
        return text
    if code >= 500:
        return f"an error on the server ({json.dumps(text)}) has prevented the request from succeeding"
    return f"the server responded with the status code {code} but did not return more information"
