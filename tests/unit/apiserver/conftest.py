"""An API server in this process, and a hand to call it with."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tapestry.apiserver.access.service_account_tokens import ServiceAccountTokens
from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.config import ApiServerConfig
from tapestry.apiserver.requests import Call, User
from tapestry.apiserver.server import ApiResponse, Server
from tapestry.apiserver.watches import WatchResponse
from tapestry.kube.objects import Object

ADMIN = User("admin", ("system:masters",))


@dataclass(frozen=True)
class Hand:
    """Calls the server as somebody."""

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
        """The status and the body of the answer."""
        answer = await self.answer(method, path, body, kind=kind, accept=accept, **query)
        assert isinstance(answer, ApiResponse)
        return answer.status, msgspec.json.decode(answer.body) if answer.body[:1] in (b"{", b"[") else answer.body

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
        """What was created."""
        status, found = await self("POST", path, body)
        assert status == 201, found
        made: Object = found
        return made

    def being(self, user: User) -> "Hand":
        return Hand(self.server, self.accounts, user)


@pytest.fixture
async def call(tmp_path: Path) -> AsyncIterator[Hand]:
    here = {"file_rootpath": str(tmp_path), "service_account_issuer": "https://here"}
    config = ApiServerConfig(backend="memory", secure_address="", pod_accounts=False, **here)
    async with run_apiserver(config) as served:
        yield Hand(served.server, served.account_tokens)
