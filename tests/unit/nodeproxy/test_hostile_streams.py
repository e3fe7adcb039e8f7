"""Hostile requests for sessions on a virtual node: all are rejected, and none reaches the physical cluster."""

import ssl

import pytest

from tapestry.kube.objects import Object, key_of

from .world import EXEC, MOUNT, SPDY, TWIN, World, new_pod

QUERY = "?command=sh&output=1"
TOKEN = "Authorization: Bearer operator's\r\n"
HEAD = f"POST {EXEC} HTTP/1.1\r\nHost: node\r\n{TOKEN}"
UPGRADE = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (f"/exec/default/other/c{QUERY}", 404),
        (f"/exec/kube-system/web/c{QUERY}", 404),
        (f"/exec/{MOUNT}/{TWIN}/c{QUERY}", 404),
        (f"/exec/default/{TWIN}/c{QUERY}", 404),
        (f"/exec/default/web/istio-proxy{QUERY}", 404),
        (f"/exec/default/web/u2/c{QUERY}", 404),
        (f"/portForward/default/web/u2{QUERY}", 404),
        (f"/exec/default/web/c/../../other/c{QUERY}", 404),
        (f"/exec/default/web%2f..%2fother/c{QUERY}", 404),
        (f"/exec/default/web/c%00{QUERY}", 404),
        (f"/exec/default/web/c;x=1{QUERY}", 404),
        (f"/exec/default/web/c/{QUERY}", 404),
        (f"//exec/default/web/c{QUERY}", 404),
        (f"https://other/exec/default/web/c{QUERY}", 404),
        ("/exec/default/web/c?container=d&command=&output=1&output=1", 400),
        ("/exec/default/web/c?command=sh&input=1&tty=1&tty=1", 400),
        ("/exec/default/web/c?container=c", 400),
        ("/portForward/default/web?port=80%0d%0aHost:+x", 400),
        ("/exec/default/web/c?" + "&".join(["command=x"] * 2000), 400),
    ],
)
async def test_forged_target_is_rejected(world: World, path: str, code: int) -> None:
    response = await world.upgrade(path)
    assert response.status == code
    assert TWIN not in response.body.decode() or TWIN in path
    assert MOUNT not in response.body.decode() or MOUNT in path
    assert world.streams.requests == []


@pytest.mark.parametrize("who", ["", "expired", "base64", "operator's\tx"])
async def test_invalid_token_is_rejected(world: World, who: str) -> None:
    for path in (EXEC, "/exec/default/none/c?command=sh&output=1", "/nowhere"):
        assert (await world.upgrade(path, who=who)).status == 401
    assert world.reviews == world.streams.requests == []


async def test_user_without_permission_learns_nothing(world: World) -> None:
    bodies = {
        (await world.upgrade(path, who="guest's")).body
        for path in (EXEC, f"/exec/default/none/c{QUERY}", "/exec/default/web/none", f"/exec/a/b/c{QUERY}&tty=1&tty=1")
    }
    assert len(bodies) == 1
    assert b"Forbidden" in bodies.pop()


async def test_certificate_of_another_ca_is_rejected(world: World) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await world.upgrade(who="", certificate=world.other_authority.client_certificate("operator", []))
    assert world.reviews == world.streams.requests == []


async def test_serving_certificate_does_not_identify_a_user(world: World) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await world.upgrade(who="", certificate=world.authority.server_certificate(["operator"]))
    assert world.reviews == world.streams.requests == []


@pytest.mark.parametrize(
    "headers",
    [
        (("Upgrade", "h2c"),),
        (("Upgrade", "SPDY/3.1"), ("Upgrade", "websocket")),
        (("Upgrade", "SPDY/3.1, websocket"),),
        (("Upgrade", "TLS/1.0"),),
    ],
)
async def test_other_protocols_are_rejected(world: World, headers: tuple[tuple[str, str], ...]) -> None:
    others = tuple(pair for pair in SPDY if pair[0] != "Upgrade")
    assert (await world.upgrade(headers=(*others, *headers))).status == 400
    assert world.streams.requests == []


@pytest.mark.parametrize(
    "request_text",
    [
        f"{HEAD}{UPGRADE}Content-Length: 5\r\n\r\nGET /",
        f"{HEAD}{UPGRADE}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        f"{HEAD}{UPGRADE}\r\nGET /containerLogs/default/web/c HTTP/1.1\r\nHost: x\r\n\r\n",
        f"{HEAD}{UPGRADE}Content-Length: 0\r\nContent-Length: 5\r\n\r\n",
        f"{HEAD}Connection: close\r\nUpgrade: SPDY/3.1\r\n\r\n",
        f"{HEAD}\r\n",
        f"CONNECT node:443 HTTP/1.1\r\nHost: node\r\n{TOKEN}\r\n",
        f"{HEAD}{UPGRADE}X: {'a' * (1 << 18)}\r\n\r\n",
    ],
)
async def test_smuggled_upgrade_is_rejected(world: World, request_text: str) -> None:
    status = (await world.raw(request_text.encode())).split()
    assert not status or status[1] in (b"400", b"404", b"431")
    assert world.streams.requests == []


async def test_plain_http_is_not_served(world: World) -> None:
    assert await world.raw(f"{HEAD}{UPGRADE}\r\n".encode(), tls=False) == b""
    assert world.reviews == world.streams.requests == []


async def test_caller_cannot_choose_the_account_of_the_syncer(world: World) -> None:
    extra = (("Impersonate-User", "admin"), ("X-Remote-User", "admin"), ("Forwarded", "for=x"))
    connection = await world.connect(headers=(*SPDY, *extra))
    ((_, _, _, headers),) = world.streams.requests
    names = {name for name, _ in headers}
    assert names <= {"host", "user-agent", "accept-encoding", "connection", "upgrade", "x-stream-protocol-version"}
    assert "node" not in dict(headers)["host"]
    connection.abort()


async def test_pod_of_another_binding_has_no_session(world: World) -> None:
    """The lookup knows only the pods on nodes of this binding; another binding may have the same physical cluster."""
    other: Object = {**new_pod("u9"), "metadata": {"name": "theirs", "namespace": "default", "uid": "u9"}}
    assert key_of(other) not in world.pods
    assert (await world.upgrade(f"/exec/default/theirs/c{QUERY}")).status == 404
    assert world.streams.requests == []
