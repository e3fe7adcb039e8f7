"""Exec, attach and port-forward on a virtual node: what reaches the physical API server, and errors."""

import asyncio

import pytest

from tapestry.kube.errors import (
    ApiError,
    BadRequest,
    Forbidden,
    NotFound,
    ServerError,
    Unauthorized,
    error_from_body,
)
from tapestry.streams.connection import SocketConnection

from .world import EXEC, MOUNT, NODE, RIGHT, SECONDS, SPDY, TWIN, World

ATTACH = "/attach/default/web/d?input=1&output=1&tty=1"
FORWARD = "/portForward/default/web"
WEBSOCKET = (
    ("Host", "node"),
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Protocol", "v5.channel.k8s.io, v4.channel.k8s.io"),
)


async def read_exactly(connection: SocketConnection, count: int) -> bytes:
    data = b""
    async with asyncio.timeout(SECONDS):
        while len(data) < count and (chunk := await connection.read()):
            data += chunk
    return data


async def wait_for_records(world: World, count: int = 1) -> None:
    async with asyncio.timeout(SECONDS):
        await world.audit.wait_for(count)


@pytest.mark.parametrize(
    ("path", "subresource", "query"),
    [
        (EXEC, "exec", [("container", "c"), ("stdin", "true"), ("stdout", "true"), ("command", "sh")]),
        (ATTACH, "attach", [("container", "d"), ("stdin", "true"), ("stdout", "true"), ("tty", "true")]),
        (FORWARD, "portforward", []),
    ],
)
async def test_session_is_tunnelled_to_the_twin(
    world: World, path: str, subresource: str, query: list[tuple[str, str]]
) -> None:
    connection = await world.connect(path)
    await connection.write(b"x" * 100_000)
    assert await read_exactly(connection, 100_000) == b"x" * 100_000
    ((method, target, passed, _),) = world.streams.requests
    assert (method, target) == ("POST", f"/api/v1/namespaces/{MOUNT}/pods/{TWIN}/{subresource}")
    assert passed == query
    await connection.close()
    await wait_for_records(world)
    (record,) = world.records
    assert (record.user, record.name, record.namespace, record.subresource) == (
        "operator",
        "web",
        "default",
        subresource,
    )
    assert (record.received, record.sent, record.error) == (100_000, 100_000, "")
    assert (record.protocol, record.who) == ("SPDY/3.1 v4.channel.k8s.io", "syncer/east")
    assert record.command == (("sh",) if subresource == "exec" else ())
    assert record.container == dict(query).get("container", "")


async def test_websocket_request_is_passed_on_with_its_protocols(world: World) -> None:
    world.streams.headers = {
        "Sec-WebSocket-Accept": "a",
        "Sec-WebSocket-Protocol": "v5.channel.k8s.io",
        "Audit-Id": "x",
    }
    response = await world.upgrade(method="GET", headers=WEBSOCKET)
    ((method, _, _, headers),) = world.streams.requests
    assert method == "GET"
    assert dict(headers)["sec-websocket-protocol"] == "v5.channel.k8s.io, v4.channel.k8s.io"
    assert "authorization" not in dict(headers)
    assert response.headers["sec-websocket-accept"] == "a"
    assert response.headers["sec-websocket-protocol"] == "v5.channel.k8s.io"
    assert "audit-id" not in response.headers
    assert response.connection is not None
    response.connection.abort()
    await wait_for_records(world)
    assert world.records[0].protocol == "websocket v5.channel.k8s.io"


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", [EXEC, ATTACH, FORWARD])
async def test_every_method_requires_create(world: World, path: str, method: str) -> None:
    connection = await world.connect(path, method=method)
    connection.abort()
    assert world.reviews[-1]["resourceAttributes"] == {**RIGHT, "verb": "create"}
    assert (await world.upgrade(path, who="guest's", method=method)).status == 403


async def test_client_certificate_opens_a_session(world: World) -> None:
    connection = await world.connect(who="", certificate=world.authority.client_certificate("operator", []))
    connection.abort()
    await wait_for_records(world)
    assert world.records[0].user == "operator"


@pytest.mark.parametrize("container", ["first", "debugger"])
async def test_init_and_ephemeral_containers_have_sessions(world: World, container: str) -> None:
    connection = await world.connect(f"/attach/default/web/{container}?output=1")
    connection.abort()
    ((_, _, query, _),) = world.streams.requests
    assert ("container", container) in query


async def test_end_of_the_container_ends_the_client(world: World) -> None:
    async def goodbye(connection: SocketConnection) -> None:
        await connection.write(b"exit 3")
        await connection.close()

    world.streams.serve = goodbye
    connection = await world.connect()
    assert await read_exactly(connection, 100) == b"exit 3"


async def test_end_of_the_client_ends_the_physical_session(world: World) -> None:
    connection = await world.connect()
    assert not world.streams.ended.is_set()
    connection.abort()
    async with asyncio.timeout(SECONDS):
        await world.streams.ended.wait()


# -- errors


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (BadRequest(400, "BadRequest", f"container c is not valid for pod {TWIN}"), 400, "not valid for pod web"),
        (NotFound(404, "NotFound", f'pods "{TWIN}" not found'), 400, "so exec is not possible; `tapestry explain pod"),
        (
            Forbidden(403, "Forbidden", f'User "syncer" cannot exec {TWIN}'),
            500,
            "can allow it with `tapestry join --exec`",
        ),
        (Unauthorized(401, "Unauthorized", "no"), 500, "tapestry doctor"),
        (
            ServerError(500, "InternalError", "dial tcp: timeout"),
            500,
            "the physical cluster reports: dial tcp: timeout",
        ),
        (ApiError(302, "Found", "elsewhere"), 400, "elsewhere"),
    ],
)
async def test_physical_errors_are_translated_for_users(world: World, error: ApiError, code: int, message: str) -> None:
    world.streams.refusal = error
    response = await world.upgrade()
    status = error_from_body(response.status, response.body)
    assert (response.status, status.code, message in status.message) == (code, code, True), status
    assert TWIN not in response.body.decode()
    assert 'syncer"' not in status.message
    assert world.records == []


async def test_unreachable_cluster_is_reported_without_its_address(world: World) -> None:
    world.streams.is_mute = True
    response = await world.upgrade()
    text = response.body.decode()
    assert response.status == 500
    assert f"the physical cluster of node {NODE} is unreachable; exec is not possible until" in text
    assert "127.0.0.1" not in text


async def test_unrequested_protocol_is_not_accepted(world: World) -> None:
    world.streams.headers = {"Upgrade": "h2c"}
    response = await world.upgrade()
    assert response.status == 500
    assert b"a protocol that was not requested" in response.body
    async with asyncio.timeout(SECONDS):
        await world.streams.ended.wait()


async def test_pod_without_own_twin_has_no_session(world: World) -> None:
    world.twin = None
    response = await world.upgrade()
    assert (response.status, b"`tapestry explain pod default/web`" in response.body) == (400, True)
    assert world.streams.requests == []


async def test_request_without_upgrade_is_rejected(world: World) -> None:
    code, text = await world.ask(EXEC, method="POST")
    assert (code, "must be an upgrade" in text) == (400, True)
    assert (await world.upgrade(method="PUT", headers=SPDY)).status == 405
    assert world.streams.requests == []
