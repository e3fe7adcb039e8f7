"""API server of a process: a server with its listeners."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from tapestry.apiserver import kubernetes_service
from tapestry.apiserver.access.authentication import (
    authenticate_localhost,
)
from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.access.tls_contexts import following_context, reloading_tls_context
from tapestry.apiserver.assembly import OpenServer, ServerExtensions, ServerThreads, open_server, service_range
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.private_files import KEYS_FOLDER
from tapestry.apiserver.core.requests import BuildAdmission
from tapestry.apiserver.core.spec_cache import SpecCache
from tapestry.apiserver.serving.http_handler import HttpHandler, start_http_server
from tapestry.apiserver.serving.http_server import HttpServer
from tapestry.apiserver.serving.request_handler import MountedHandler
from tapestry.kube.objects import EMPTY_MAPPING
from tapestry.process.addresses import parse_address
from tapestry.process.logs import logger

log = logger(__name__)

DEFAULT_SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "127.0.0.1", "::1")
"""Names that are always in the serving certificate."""


@dataclass(frozen=True)
class RunningServer(OpenServer):
    """A server that listens."""

    addresses: dict[str, str]
    """Listening addresses, under `secure` and `local`."""


@asynccontextmanager
async def run_apiserver(
    config: ApiServerConfig,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    mounted_handlers: Mapping[str, MountedHandler] = EMPTY_MAPPING,
    spec_cache: SpecCache | None = None,
    admission: BuildAdmission | None = None,
) -> AsyncIterator[RunningServer]:
    """Run the server for the duration of the context. Raises ValueError or OSError if it cannot start."""
    extensions = ServerExtensions(mounted_handlers, admission)
    with closing(ServerThreads()) as threads:
        async with (
            open_server(config, threads, now, extensions, spec_cache) as opened,
            asyncio.TaskGroup() as group,
        ):
            http_servers = await start_listeners(config, opened.http_handler, opened.folder, group)
            try:
                addresses = {name: bound_address(http_server) for name, http_server in http_servers.items()}
                if "secure" in http_servers:
                    host, port = http_servers["secure"].addresses[0][:2]
                    await kubernetes_service.publish_service(opened.server, service_range(config), host, port)
                log.info(
                    "API server started", objects=sum(map(opened.store.count, opened.store.resources())), **addresses
                )
                yield RunningServer(**vars(opened), addresses=addresses)
            finally:
                await opened.finish()
                for http_server in http_servers.values():
                    await http_server.stop()


async def start_listeners(
    config: ApiServerConfig, http_handler: HttpHandler, folder: Path, group: asyncio.TaskGroup
) -> dict[str, HttpServer]:
    servers = {}
    if (secure := parse_address(config.secure_address)) is not None:
        names = [*DEFAULT_SERVER_NAMES, *([secure.host] if secure.host else [])]
        tls = server_tls_context(config, folder, names)
        servers["secure"] = await start_http_server(http_handler, secure.host, secure.port, tls, group=group)
    local = parse_address(config.local_address) if config.authn_allow_localhost else None
    if local is not None:
        if not local.is_loopback:
            raise ValueError(f"localAddress: {local} is not a loopback address; plain HTTP is only served on loopback")
        authenticator = replace(
            http_handler.authenticate,
            authenticators=[*http_handler.authenticate.authenticators, authenticate_localhost],
        )
        servers["local"] = await start_http_server(
            replace(http_handler, authenticate=authenticator), local.host, local.port, group=group
        )
    return servers


def server_tls_context(config: ApiServerConfig, folder: Path, names: Sequence[str]) -> ssl.SSLContext:
    """Return the TLS context of a listener, which follows changes of the certificates and of the client CAs."""
    authority = CertificateAuthority(folder / KEYS_FOLDER)
    return following_context(reloading_tls_context(authority, list(dict.fromkeys(names)), config.tls))


def bound_address(http_server: HttpServer) -> str:
    host, port, *_ = http_server.addresses[0]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
