"""A plane that is alone in its process: an API server with listeners of its own, and its controllers."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.app import RunningServer, run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.private_files import KEYS_FOLDER
from tapestry.apiserver.serving.request_handler import MountedHandler
from tapestry.controller import Manager
from tapestry.controlplane.app import control_plane_manager
from tapestry.kube.objects import EMPTY_MAPPING


@dataclass(frozen=True)
class StandaloneServer:
    server: RunningServer
    manager: Manager
    """Controllers of the server. The caller may add others, and must run it."""


@asynccontextmanager
async def run_standalone(
    config: ApiServerConfig, mounted_handlers: Mapping[str, MountedHandler] = EMPTY_MAPPING
) -> AsyncIterator[StandaloneServer]:
    """Run an API server for the duration of the context. Raises ValueError or OSError if it cannot start."""
    async with run_apiserver(config, mounted_handlers=mounted_handlers) as server:
        authority = CertificateAuthority(server.folder / KEYS_FOLDER)
        manager = control_plane_manager(server.request_handler, server.ca_bundle, config.controllers, authority)
        yield StandaloneServer(server, manager)
