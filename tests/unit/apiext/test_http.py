"""Plain REST API over HTTP: credentials of callers, and allowed web pages."""

import asyncio
import io
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tapestry.apiext.config import ApiExtConfig
from tapestry.apiext.http import ApiExtHandler, ApiExtServer, access_for_callers, serve_http
from tapestry.apiext.resource_mapper import ResourceMapper
from tapestry.apiext.rest_api import RestApi
from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.codec import MAX_BODY_BYTES
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.client.access import Access
from tapestry.client.credentials import Credentials, StaticAuthorization, bearer_header
from tapestry.client.http_transport import HttpTransport
from tapestry.client.tls import Pem, ServerVerification, TlsContextSource
from tapestry.controller.app import App
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controller.manager import Manager
from tapestry.kube.resources import CONFIGMAPS
from tapestry.local.kubernetes import free_ports
from tapestry.process.addresses import Address
from tapestry.process.config import load_config

PAGE = "https://page.example"


@pytest.fixture
async def access(tmp_path: Path) -> AsyncIterator[Access]:
    """Administrator's access to an API server with two more users."""
    tokens = tmp_path / "tokens.csv"
    tokens.touch(0o600)
    tokens.write_text('of-ann,ann,1,"system:masters"\nof-bob,bob,2\nof-admin,admin,3,"system:masters"\n')
    config = ApiServerConfig(
        backend="memory", file_rootpath=str(tmp_path), secure_address="127.0.0.1:0", token_auth_file=str(tokens)
    )
    async with run_apiserver(config) as served:
        trust = ServerVerification(Pem("ca", tmp_path / "pki" / "ca.crt"))
        credentials = Credentials(StaticAuthorization(bearer_header("of-admin")), TlsContextSource(trust))
        yield Access(f"https://{served.addresses['secure']}", credentials, verification=trust)


@asynccontextmanager
async def front(access: Access, **options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    transport = HttpTransport(access)
    handler = ApiExtHandler(RestApi(ResourceMapper()), transport, **options)
    try:
        async with (
            serve_http(handler, Address("127.0.0.1", 0)) as at,
            aiohttp.ClientSession(f"http://{at}") as session,
        ):
            yield session
    finally:
        handler.close()
        await transport.close()


def by(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


class LogWaiter(logging.Handler):
    """Set an event when a message is logged."""

    def __init__(self, message: str) -> None:
        super().__init__()
        self.message = message
        self.logged = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == self.message:
            self.logged.set()


async def test_app_runs_the_server_beside_a_manager(access: Access, caplog: pytest.LogCaptureFixture) -> None:
    """The two implementations of `Runnable`: both run, and one signal stops both."""
    caplog.set_level(logging.INFO)
    reconciled, waiter = asyncio.Event(), LogWaiter("apiext server listening")

    async def reconcile(key: str) -> None:
        reconciled.set()

    def setup(manager: Manager) -> None:
        manager.controller("maps", reconcile).watch(manager.informer(CONFIGMAPS))

    config = ManagerConfig(metrics=Metrics(address=""), probes=Probes(address=""))
    manager = Manager(config, lambda: HttpTransport(access), identity="test").register("maps", setup)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    logging.getLogger().addHandler(waiter)
    try:
        async with asyncio.TaskGroup() as group:
            app = group.create_task(App(manager, ApiExtServer(ApiExtConfig(listen=address), access)).run())
            await waiter.logged.wait()
            async with aiohttp.ClientSession(f"http://{address}") as session:
                created = await session.post("/apiext/v1/configmaps", json={"name": "a"}, headers=by("of-ann"))
                assert created.status == 201, await created.text()
            await reconciled.wait()
            os.kill(os.getpid(), signal.SIGTERM)
            await app
    finally:
        logging.getLogger().removeHandler(waiter)


async def test_used_address_stops_the_app(access: Access) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = ApiExtConfig(listen=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(ExceptionGroup) as caught:
            await App(ApiExtServer(config, access)).run()
    assert caught.group_contains(OSError, match="Address already in use")


async def test_each_caller_has_rights_of_own_token(access: Access) -> None:
    async with front(access_for_callers(access)) as session:
        created = await session.post(
            "/apiext/v1/configmaps", json={"name": "c", "data": {"a": "b"}}, headers=by("of-ann")
        )
        assert created.status == 201
        read = await session.get(created.headers["Location"], headers=by("of-ann"))
        assert (await read.json())["data"] == {"a": "b"}
        rejected = await session.get("/apiext/v1/configmaps", headers=by("of-bob"))
        assert rejected.status == 403
        assert 'User "bob" cannot list' in (await rejected.json())["message"]
        assert (await session.get("/apiext/v1/configmaps", headers=by("guess"))).status == 401


async def test_request_without_token_is_unauthorized(access: Access) -> None:
    async with front(access_for_callers(access)) as session:
        for path in ("/apiext/v1", "/apiext/v1/configmaps", "/apiext/v1/nothing"):
            rejected = await session.get(path)
            assert rejected.status == 401
            assert rejected.headers["WWW-Authenticate"] == "Bearer"
            assert "Authorization: Bearer TOKEN" in (await rejected.json())["message"]
        assert (await session.get("/apiext/openapi.json")).status == 200
        assert await (await session.get("/healthz")).text() == "ok"


async def test_own_identity_serves_local_clients_but_no_web_pages(access: Access) -> None:
    async with front(access, own_identity=True) as session:
        assert (await session.get("/apiext/v1/namespaces")).status == 200
        assert (await session.get("/apiext/v1/namespaces", headers={"Origin": PAGE})).status == 401
        assert (await session.get("/apiext/v1/namespaces", headers={"Host": "rebound.example"})).status == 401
    async with front(access, own_identity=True, origins=[PAGE]) as session:
        assert (await session.get("/apiext/v1/namespaces", headers={"Origin": PAGE})).status == 200


async def test_only_allowed_origins_may_call_from_browser(access: Access) -> None:
    async with front(access_for_callers(access), origins=[PAGE]) as session:
        preflight = {"Origin": PAGE, "Access-Control-Request-Method": "DELETE"}
        allowed = await session.options("/apiext/v1/namespaces", headers=preflight)
        assert allowed.status == 204
        assert allowed.headers["Access-Control-Allow-Origin"] == PAGE
        assert "DELETE" in allowed.headers["Access-Control-Allow-Methods"]
        found = await session.get("/apiext/v1/namespaces", headers={"Origin": PAGE, **by("of-ann")})
        assert found.headers["Access-Control-Allow-Origin"] == PAGE
        other = await session.get("/apiext/v1/namespaces", headers={"Origin": "https://other.example", **by("of-ann")})
        assert "Access-Control-Allow-Origin" not in other.headers
        rejected = await session.options("/apiext/v1/namespaces", headers={"Origin": "https://other.example"})
        assert "Access-Control-Allow-Origin" not in rejected.headers
        assert rejected.status == 401


async def test_too_large_body_is_rejected(access: Access) -> None:
    async with front(access_for_callers(access)) as session:
        body = io.BytesIO(b'{"name": "' + b"a" * MAX_BODY_BYTES + b'"}')
        headers = {"Content-Type": "application/json", **by("of-ann")}
        rejected = await session.post("/apiext/v1/configmaps", data=body, headers=headers)
        assert rejected.status == 413
        assert (await rejected.json())["reason"] == "TooLarge"


async def test_unreachable_api_server_is_bad_gateway_without_details(access: Access) -> None:
    nowhere = Access("http://127.0.0.1:1")
    async with front(access_for_callers(nowhere)) as session:
        rejected = await session.post("/apiext/v1/configmaps", json={"name": "a"}, headers=by("of-ann"))
        assert rejected.status == 502
        assert (await rejected.json())["message"] == "the API server did not respond; try again"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"listen": "0.0.0.0:6090"}, "tokens need TLS"),
        ({"listen": ":6090", "ownIdentity": True}, "would admit everyone"),
        ({"listen": ""}, "an empty address cannot be served"),
        ({"allowOrigins": ["*"]}, "'*' is not an origin"),
        ({"allowOrigins": ["https://page.example/"]}, "is not an origin"),
        ({"kinds": []}, "an empty list serves nothing"),
        ({"tls.certificate": "x"}, "certificate and key belong together"),
    ],
)
def test_unsafe_or_useless_configuration_is_rejected(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("*", r"\*")):
        load_config(ApiExtConfig, file=None, environ={}, flags=flags)


async def test_events_are_streamed_with_rights_of_caller(access: Access) -> None:
    async with front(access_for_callers(access), origins=[PAGE]) as session, asyncio.timeout(20):
        watch = "/apiext/v1/configmaps?watch=true&namespace=default"
        assert (await session.get(watch, headers=by("of-bob"))).status == 403
        async with session.get(watch, headers={"Origin": PAGE, **by("of-ann")}) as response:
            assert response.headers["Content-Type"] == "text/event-stream"
            assert response.headers["Access-Control-Allow-Origin"] == PAGE
            lines = [await response.content.readline() for _ in range(5)]
            assert lines[:2] == [b"retry: 2000\n", b"\n"]
            assert lines[3] == b"event: synced\n"
            version = lines[2].removeprefix(b"id: ").strip().decode()
            body = {"name": "c", "data": {"a": "b"}}
            assert (await session.post("/apiext/v1/configmaps", json=body, headers=by("of-ann"))).status == 201
            assert b"event: added\n" in [await response.content.readline() for _ in range(3)]
        async with session.get(watch, headers={"Last-Event-ID": version, **by("of-ann")}) as response:
            lines = [await response.content.readline() for _ in range(5)]
            assert b'"name":"c"' in lines[4]
