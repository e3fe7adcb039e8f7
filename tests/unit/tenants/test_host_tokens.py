"""Tokens of the accounts of tenants: renewed in time, shared by concurrent requests, and never used when expired."""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from tapestry.client.access import Access
from tapestry.client.errors import CredentialsError
from tapestry.client.tls import ServerVerification
from tapestry.controller.testing import in_virtual_time, running_clock
from tapestry.kube.errors import Forbidden, TransportError
from tapestry.kube.objects import Object
from tapestry.kube.times import timestamp
from tapestry.tenants.host_objects import ACCOUNT
from tapestry.tenants.host_tokens import RENEWED_AT, RETRY_SECONDS, TOKEN_SECONDS, TenantToken, tenant_access

NAMESPACE = "tapestry-tenant-blue"
FORBIDDEN = Forbidden(403, "Forbidden", "no")


@dataclass
class TokenServer:
    """The part of a client that requests tokens."""

    lifetime: float = TOKEN_SECONDS
    error: Exception | None = None
    token: str = ""
    requests: list[tuple[str, str, int]] = field(default_factory=list)

    async def request_token(self, account: str, namespace: str, *, seconds: int) -> Object:
        self.requests.append((account, namespace, seconds))
        await asyncio.sleep(0.1)
        if self.error is not None:
            raise self.error
        expires = running_clock().now() + timedelta(seconds=self.lifetime)
        return {"token": self.token or f"token-{len(self.requests)}", "expirationTimestamp": timestamp(expires)}


def token_of(server: Any) -> TenantToken:
    return TenantToken(server, NAMESPACE, running_clock().now, running_clock().monotonic)


@in_virtual_time
async def test_token_is_requested_once_for_concurrent_callers() -> None:
    server = TokenServer()
    token = token_of(server)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(token.authorization()) for _ in range(20)]
    assert {task.result() for task in tasks} == {"Bearer token-1"}
    assert server.requests == [(ACCOUNT, NAMESPACE, TOKEN_SECONDS)]


@in_virtual_time
async def test_token_is_renewed_before_it_expires() -> None:
    server = TokenServer()
    token = token_of(server)
    await token.authorization()
    await asyncio.sleep(RENEWED_AT * TOKEN_SECONDS - 10)
    assert await token.authorization() == "Bearer token-1"
    await asyncio.sleep(20)
    assert await token.authorization() == "Bearer token-2"


@pytest.mark.parametrize("error", [FORBIDDEN, TransportError("down", maybe_sent=False)])
@in_virtual_time
async def test_last_token_is_used_until_it_expires(error: Exception) -> None:
    server = TokenServer()
    token = token_of(server)
    await token.authorization()
    server.error = error
    await asyncio.sleep(RENEWED_AT * TOKEN_SECONDS + 10)
    assert await token.authorization() == "Bearer token-1"
    await asyncio.sleep(TOKEN_SECONDS)
    with pytest.raises(CredentialsError, match=NAMESPACE):
        await token.authorization()
    server.error = None
    await asyncio.sleep(RETRY_SECONDS)
    assert (await token.authorization() or "").startswith("Bearer token-")


@in_virtual_time
async def test_failed_request_is_repeated_after_a_pause() -> None:
    server = TokenServer(error=FORBIDDEN)
    token = token_of(server)
    for _ in range(10):
        with pytest.raises(CredentialsError, match="no"):
            await token.authorization()
    assert len(server.requests) == 1
    await asyncio.sleep(RETRY_SECONDS)
    with pytest.raises(CredentialsError):
        await token.authorization()
    assert len(server.requests) == 2


@in_virtual_time
async def test_rejected_token_is_replaced_once() -> None:
    server = TokenServer()
    token = token_of(server)
    await token.authorization()
    await asyncio.sleep(RETRY_SECONDS)
    for _ in range(5):
        assert token.handle_unauthorized()
    assert await token.authorization() == "Bearer token-2"
    assert token.handle_unauthorized()
    assert await token.authorization() == "Bearer token-2", "another one so soon would be rejected, too"


@pytest.mark.parametrize("text", ["a\nb", "a\x00b"])
@in_virtual_time
async def test_token_of_a_hostile_server_is_not_sent(text: str) -> None:
    with pytest.raises(CredentialsError, match="no usable token"):
        await token_of(TokenServer(token=text)).authorization()


@in_virtual_time
async def test_slow_clock_of_the_host_ends_no_token() -> None:
    token = token_of(TokenServer(lifetime=-3600))
    assert await token.authorization() == "Bearer token-1"
    await asyncio.sleep(30)
    assert await token.authorization() == "Bearer token-1"


@in_virtual_time
async def test_tenant_access_has_the_token_only() -> None:
    impersonation = (("Impersonate-User", "a"),)
    host = Access("https://host:6443", verification=ServerVerification(), impersonation=impersonation)
    access = tenant_access(host, token_of(TokenServer()))
    assert access.server == host.server
    assert access.impersonation == ()
    assert await access.credentials.headers() == [("Authorization", "Bearer token-1")]
    assert "token-1" not in repr(access)
