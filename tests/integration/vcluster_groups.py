"""Several processes of the service of virtual clusters on one etcd."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tapestry.client.client import Client
from tapestry.local.kubernetes import free_ports

from .etcds import Etcd
from .plane_clients import client_of
from .servers import PlanesProcess
from .vcluster_clients import Clients


@dataclass
class Member:
    """A process, and clients of its service and of its management API."""

    name: str
    process: PlanesProcess
    service: Clients
    management: Client
    etcd_url: str

    async def restart(self) -> None:
        """Start the process again, after it was killed."""
        await asyncio.to_thread(self.process.start)
        await asyncio.to_thread(self.process.wait_for_output, "served by rest", 2)

    async def ended(self, operation: str) -> Any:
        """Wait for the end of an operation, for less than a minute."""
        async with asyncio.timeout(60):
            while True:
                waited = await self.service.rest(
                    "POST", f"/v1/operations/{operation}:wait", json={"timeoutSeconds": 30}
                )
                if waited.get("done"):
                    return waited


@asynccontextmanager
async def group(
    kube_assets: Path, folder: Path, names: str, process_class: type[PlanesProcess] = PlanesProcess
) -> AsyncIterator[dict[str, Member]]:
    members: dict[str, Member] = {}
    async with AsyncExitStack() as stack:
        etcd = stack.enter_context(Etcd(kube_assets, folder))
        shared = ("--backend", "etcd", "--etcd-servers", etcd.url, "--group-key", str(folder / "group.key"))
        header = ""
        for name in names:
            (rest,) = free_ports(1)
            flags = ("--rest-address", f"127.0.0.1:{rest}", "--shared-folder", str(folder / "shared"))
            process = process_class(folder / name, "--name", name, *shared, *flags)
            await asyncio.to_thread(stack.enter_context, process)
            await asyncio.to_thread(process.wait_for_output, "served by rest")
            if found := re.search(r"tap_\w+", process.output.read_text()):
                header = f"Bearer {found[0]}"
            context = ssl.create_default_context(cafile=str(process.folder / "pki" / "ca.crt"))
            http = await stack.enter_async_context(
                aiohttp.ClientSession(headers={"Authorization": header}, connector=aiohttp.TCPConnector(ssl=context))
            )
            service = Clients(http, None, f"https://127.0.0.1:{rest}", [], process)  # type: ignore[arg-type]
            management = await stack.enter_async_context(client_of(process.kubeconfig))
            members[name] = Member(name, process, service, management, etcd.url)
        yield members
