"""One call interface for our API server and for a kube-apiserver."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import Call, User
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.apiserver.handlers.server import Server
from tapestry.local.kubernetes import ControlPlane

ADMIN = User("admin", ("system:masters",))
JSON = "application/json"


@dataclass(frozen=True)
class Ours:
    """An API server in this process."""

    server: Server

    async def __call__(self, method: str, path: str, body: Any, kind: str, query: dict[str, str]) -> tuple[int, Any]:
        headers = {"content-type": kind, "user-agent": "tests/1"}
        answer = await self.server.handle(Call(method, path, query, headers, msgspec.json.encode(body), ADMIN))
        assert isinstance(answer, ApiResponse)
        return answer.status, msgspec.json.decode(answer.body)


@dataclass(frozen=True)
class Theirs:
    """A kube-apiserver."""

    plane: ControlPlane
    session: aiohttp.ClientSession

    async def __call__(self, method: str, path: str, body: Any, kind: str, query: dict[str, str]) -> tuple[int, Any]:
        headers = {"content-type": kind, "user-agent": "tests/1", "authorization": f"Bearer {self.plane.token}"}
        async with self.session.request(
            method, self.plane.url + path, data=msgspec.json.encode(body), headers=headers, params=query
        ) as answer:
            return answer.status, await answer.json(content_type=None) if answer.content_type == JSON else None


@asynccontextmanager
async def our_side(folder: Path) -> AsyncIterator[Ours]:
    config = ApiServerConfig(backend="memory", secure_address="", file_rootpath=str(folder), pod_accounts=False)
    async with run_apiserver(config) as served:
        yield Ours(served.server)


@asynccontextmanager
async def their_side(plane: ControlPlane) -> AsyncIterator[Theirs]:
    tls = ssl.create_default_context(cafile=str(plane.ca))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session:
        yield Theirs(plane, session)
