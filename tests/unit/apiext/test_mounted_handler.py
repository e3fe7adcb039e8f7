"""Plain REST API mounted in `tapestry apiserver`, with its authentication."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.cli.mounted_apiext import apiext_handler

TOKENS = 'of-ann,ann,1,"system:masters"\nof-bob,bob,2\n'
BOB = {"Authorization": "Bearer of-bob"}


@asynccontextmanager
async def session_as_ann(tmp_path: Path, **options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    tokens = tmp_path / "tokens.csv"
    tokens.touch(0o600)
    tokens.write_text(TOKENS)
    config = ApiServerConfig(
        backend="memory",
        file_rootpath=str(tmp_path),
        secure_address="",
        authn_allow_localhost=True,
        local_address="127.0.0.1:0",
        token_auth_file=str(tokens),
        audit_log_path=str(tmp_path / "audit.log"),
        **options,
    )
    async with run_apiserver(config, mounted_handlers={"apiext": apiext_handler()}) as served:
        headers = {"Authorization": "Bearer of-ann"}
        async with aiohttp.ClientSession(f"http://{served.addresses['local']}", headers=headers) as opened:
            yield opened


@pytest.fixture
async def session(tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    async with session_as_ann(tmp_path) as opened:
        yield opened


async def test_api_is_served_only_at_its_path(session: aiohttp.ClientSession) -> None:
    created = await session.post("/apiext/v1/configmaps", json={"name": "c", "data": {"a": "b"}})
    assert created.status == 201
    assert (await session.get(created.headers["Location"])).status == 200
    assert (await session.get("/apiext")).status == 404
    assert (await (await session.get("/apiext/v2")).json())["message"].endswith("/apiext/v1 and /apiext/openapi.json")
    assert (await (await session.get("/apiextra/v1")).json())["kind"] == "Status"


async def test_caller_has_own_and_impersonated_rights(session: aiohttp.ClientSession) -> None:
    await session.get("/apiext/v1/configmaps")
    rejected = await session.get("/apiext/v1/configmaps", headers=BOB)
    assert rejected.status == 403
    assert 'User "bob" cannot list' in (await rejected.json())["message"]
    as_bob = await session.get("/apiext/v1/configmaps", headers={"Impersonate-User": "bob"})
    assert as_bob.status == 403
    assert (await session.get("/apiext/v1/configmaps", headers={"Impersonate-User": "ann", **BOB})).status == 403


async def test_writes_are_audited_like_any_other(tmp_path: Path) -> None:
    async with session_as_ann(tmp_path) as session:
        await session.post("/apiext/v1/configmaps", json={"name": "c"})
    entries = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    created = [each for each in entries if (each["verb"], each["stage"]) == ("create", "ResponseComplete")]
    reviewed, written = sorted(created, key=lambda each: each["requestReceivedTimestamp"])
    assert reviewed["objectRef"]["resource"] == "selfsubjectaccessreviews"
    assert written["objectRef"]["resource"] == "configmaps"
    assert written["user"]["username"] == "ann"


async def test_web_page_on_this_machine_is_anonymous(session: aiohttp.ClientSession) -> None:
    async with aiohttp.ClientSession(session._base_url) as client:
        assert (await client.get("/apiext/v1/configmaps")).status == 200  # this machine is trusted
        rejected = await client.get("/apiext/v1/configmaps", headers={"Origin": "https://page.example"})
        assert rejected.status == 403
        assert "Access-Control-Allow-Origin" not in rejected.headers


async def test_watches_are_streamed_beyond_the_request_limit(tmp_path: Path) -> None:
    watch = "/apiext/v1/configmaps?watch=1&namespace=default"
    async with (
        session_as_ann(tmp_path, max_requests_inflight=1) as session,
        asyncio.timeout(20),
        AsyncExitStack() as stack,
    ):
        assert (await session.get(watch, headers=BOB)).status == 403
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}
        binding = {"name": "bob", "roleRef": role, "subjects": [subject]}
        assert (await session.post("/apiext/v1/clusterrolebindings", json=binding)).status == 201
        for _ in range(3):
            response = await stack.enter_async_context(session.get(watch, headers=BOB))
            assert response.headers["Content-Type"] == "text/event-stream"
        assert (await session.get("/apiext/v1/configmaps", headers=BOB)).status == 200
        assert (await session.post("/apiext/v1/configmaps", json={"name": "c"})).status == 201
        async for line in response.content:
            if line == b"event: added\n":
                break
        assert b'"name":"c"' in await response.content.readline()
