"""Fixtures for API server tests: a server in this process, and a client that calls it directly."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tapestry.apiserver.access.service_account_tokens import ServiceAccountTokens
from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import Call, User
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.apiserver.handlers.server import Server
from tapestry.apiserver.handlers.watches import WatchResponse
from tapestry.kube.objects import Object

ADMIN = User("admin", ("system:masters",))


@dataclass(frozen=True)
class ServerClient:
    """Call the server as a user."""

    server: Server
    accounts: ServiceAccountTokens
    user: User = ADMIN

    async def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: str = "application/json",
        accept: str = "",
        **query: str,
    ) -> tuple[int, Any]:
        """Return the status and the decoded body of a response."""
        response = await self.answer(method, path, body, kind=kind, accept=accept, **query)
        assert isinstance(response, ApiResponse)
        return response.status, msgspec.json.decode(response.body) if response.body[:1] in (
            b"{",
            b"[",
        ) else response.body

    async def answer(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: str = "application/json",
        accept: str = "",
        **query: str,
    ) -> ApiResponse | WatchResponse:
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body) if body is not None else b""
        headers = {"content-type": kind, "accept": accept}
        return await self.server.handle(Call(method, path, query, headers, raw, self.user))

    async def made(self, path: str, body: Object) -> Object:
        """Create an object and return it."""
        status, result = await self("POST", path, body)
        assert status == 201, result
        created: Object = result
        return created

    def being(self, user: User) -> "ServerClient":
        return ServerClient(self.server, self.accounts, user)


@pytest.fixture
async def call(tmp_path: Path) -> AsyncIterator[ServerClient]:
    options = {"file_rootpath": str(tmp_path), "service_account_issuer": "https://here"}
    config = ApiServerConfig(backend="memory", secure_address="", pod_accounts=False, **options)
    async with run_apiserver(config) as running:
        yield ServerClient(running.server, running.account_tokens)
