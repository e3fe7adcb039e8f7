"""Hostile requests to exec, attach, portforward and proxy: none reaches a kubelet, and the server keeps serving."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tapestry.apiserver.access.ephemeral_tokens import create_token

from .kubelets import KEY, PODS, RBAC, SPDY, V4, V5, Streams, api_server_with_kubelet, pod_body

EXEC = f"{PODS}/web/exec?command=id&stdout=1"
CLOSE = "Connection: close\r\n"
SPDY_HEADERS = f"Connection: Upgrade\r\nUpgrade: {SPDY}\r\n"
WEBSOCKET = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
V5_HEADER = f"Sec-WebSocket-Protocol: {V5}\r\n"
KEY_HEADER = f"Sec-WebSocket-Key: {KEY}\r\n"
HIDDEN = "POST /api/v1/namespaces/default/pods HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
async def streams(tmp_path: Path) -> AsyncIterator[Streams]:
    async with api_server_with_kubelet(tmp_path) as streams:
        await streams.call.made("/api/v1/namespaces", {"metadata": {"name": "other"}})
        await streams.call.made("/api/v1/namespaces/other/pods", pod_body("web"))
        yield streams


def request_text(
    method: str = "POST", path: str = EXEC, headers: str = SPDY_HEADERS, *, token: str = "token-of-developer"
) -> str:
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{authorization}{headers}\r\n"


CASES = {
    # credentials
    "no credentials": (request_text(token=""), 403),
    "unknown token": (request_text(token="guess"), 401),
    "two words as token": (request_text(token="token-of-developer x"), 401),
    "viewer with POST": (request_text(token="token-of-viewer"), 403),
    "viewer with GET": (request_text("GET", token="token-of-viewer"), 403),
    "viewer with HEAD": (request_text("HEAD", token="token-of-viewer"), 403),
    "user in a header": (request_text(headers=f"{SPDY_HEADERS}X-Remote-User: admin\r\n", token=""), 403),
    "impersonation without rights": (request_text(headers=f"{SPDY_HEADERS}Impersonate-User: admin\r\n"), 403),
    "pod of another namespace": (request_text(path="/api/v1/namespaces/other/pods/web/exec?command=id"), 403),
    "proxy to a node": (request_text(path="/api/v1/nodes/n1/proxy/exec/other/web/main?command=id"), 403),
    "proxy with a method without verb": (
        request_text("OPTIONS", f"{PODS}/web/proxy/", CLOSE, token="token-of-viewer"),
        403,
    ),
    # upgrades
    "no upgrade": (request_text(headers=CLOSE), 400),
    "upgrade without Connection": (request_text(headers=f"Connection: close\r\nUpgrade: {SPDY}\r\n"), 400),
    "Connection without upgrade": (request_text(headers="Connection: Upgrade, close\r\n"), 400),
    "other protocol": (request_text(headers="Connection: Upgrade\r\nUpgrade: h2c\r\n"), 400),
    "two protocols in one header": (
        request_text(headers=f"Connection: Upgrade\r\nUpgrade: websocket, {SPDY}\r\n"),
        400,
    ),
    "two Upgrade headers": (request_text(headers=f"{SPDY_HEADERS}Upgrade: websocket\r\n"), 400),
    "same Upgrade header twice": (request_text(headers=f"{SPDY_HEADERS}Upgrade: {SPDY}\r\n"), 400),
    "body with a length": (request_text(headers=f"{SPDY_HEADERS}Content-Length: {len(HIDDEN)}\r\n") + HIDDEN, 400),
    "chunked body": (request_text(headers=f"{SPDY_HEADERS}Transfer-Encoding: chunked\r\n") + "0\r\n\r\n", 400),
    "two lengths": (request_text(headers=f"{SPDY_HEADERS}Content-Length: 0\r\nContent-Length: 9\r\n") + HIDDEN, 400),
    "length and chunks": (
        request_text(headers=f"{SPDY_HEADERS}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\n",
        400,
    ),
    "request behind the head": (request_text() + HIDDEN, 400),
    "bytes behind the head": (request_text(headers=WEBSOCKET + KEY_HEADER + V5_HEADER) + "\x82\x80aaaa", 400),
    "two Host headers": (request_text(headers=f"{SPDY_HEADERS}Host: other\r\n"), 400),
    "WebSocket without key": (request_text("GET", headers=WEBSOCKET + V5_HEADER), 400),
    "WebSocket with POST": (request_text(headers=WEBSOCKET + KEY_HEADER + V5_HEADER), 400),
    "old WebSocket version": (
        request_text("GET", headers=WEBSOCKET.replace("13", "8") + KEY_HEADER + V5_HEADER),
        400,
    ),
    "method without verb": (request_text("PUT"), 405),
    "CONNECT": (request_text("CONNECT", "127.0.0.1:10250", CLOSE), 403),
    # paths
    "parent folder": (request_text(path=f"{PODS}/../pods/web/exec"), 403),
    "encoded parent folder": (request_text(path=f"{PODS}/%2e%2e/web/exec"), 403),
    "twice encoded parent folder": (request_text(path=f"{PODS}/%252e%252e/exec"), 403),
    "encoded slash in a name": (request_text(path=f"{PODS}/web%2Fexec%2Fx/exec"), 404),
    "twice encoded slash in a name": (
        request_text(path=f"{PODS}/web%252F..%252Fother/exec", token="token-of-admin"),
        404,
    ),
    "port in the name of a stream": (request_text(path=f"{PODS}/web:22/exec", token="token-of-admin"), 404),
    "stream of a node": (request_text(path="/api/v1/nodes/n1/exec", token="token-of-admin"), 404),
    "container that is a path": (request_text(path=f"{PODS}/web/exec?container=..%2Fother"), 400),
    "parameters in a container": (request_text(path=f"{PODS}/web/exec?container=main%26input%3D1"), 400),
    "port that is a path": (request_text(path=f"{PODS}/web/portforward?ports=80%2F..%2Fx"), 400),
    "parent folder behind a proxy": (request_text("GET", f"{PODS}/web:80/proxy/../../exec", CLOSE), 404),
    "encoded parent folder behind a proxy": (request_text("GET", f"{PODS}/web:80/proxy/%2e%2e/x", CLOSE), 404),
    "other scheme": (request_text("GET", f"{PODS}/file:web:80/proxy/", CLOSE), 400),
    "port that is a host": (request_text("GET", f"{PODS}/web:80@169.254.169.254/proxy/", CLOSE), 400),
    "four parts of a name": (request_text("GET", f"{PODS}/http:web:80:x/proxy/", CLOSE), 400),
    # sizes
    "long head": (request_text(headers=f"{SPDY_HEADERS}X: {'x' * (1 << 20)}\r\n"), 431),
    "many headers": (request_text(headers=SPDY_HEADERS + "X: y\r\n" * 300), 400),
    "many parameters": (request_text(path=f"{PODS}/web/exec?" + "&".join(["command=x"] * 300)), 400),
}


async def test_hostile_requests_reach_no_kubelet(streams: Streams) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(streams.raw(text)) for text, _ in CASES.values()]
    answers = [task.result() for task in tasks]
    statuses = {name: status for name, (status, _) in zip(CASES, answers, strict=True)}
    assert statuses == {name: status for name, (_, status) in CASES.items()}
    assert {received.count(b"HTTP/1.1 ") for _, received in answers} == {1}, "a request had more than one response"
    assert not [received for _, received in answers if b"token-of" in received]
    assert streams.kubelet.requests == []
    assert (await streams.spdy(EXEC, user="developer")).status == 101, "the server still serves"


async def test_expired_token_is_rejected(streams: Streams) -> None:
    created = datetime.now(UTC) - timedelta(minutes=2)
    _, token = create_token(streams.running.folder, "developer", ("developers",), timedelta(minutes=1), created)
    code, _ = await streams.raw(request_text(token=token))
    assert (code, streams.kubelet.requests) == (401, [])


async def test_stream_of_a_kubelet_requires_create_on_nodes_proxy(streams: Streams) -> None:
    path = "/api/v1/nodes/n1/proxy/exec/default/web/main?command=id&output=1"
    rule = {"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["get"]}
    await streams.call.made(f"{RBAC}/clusterroles", {"metadata": {"name": "metrics"}, "rules": [rule]})
    subject = {"kind": "Group", "name": "viewers", "apiGroup": "rbac.authorization.k8s.io"}
    role = {"kind": "ClusterRole", "name": "metrics", "apiGroup": "rbac.authorization.k8s.io"}
    binding = {"metadata": {"name": "metrics"}, "subjects": [subject], "roleRef": role}
    await streams.call.made(f"{RBAC}/clusterrolebindings", binding)
    assert (await streams.websocket(path, V4, user="viewer")).status == 403
    assert streams.kubelet.requests == []
    status, _ = await streams.raw(request_text("GET", path, CLOSE, token="token-of-viewer"))
    assert (status, streams.kubelet.requests[0].is_upgrade) == (200, False)
    assert (await streams.websocket(path, V4)).status == 101


async def test_line_breaks_stay_in_the_command(streams: Streams) -> None:
    response = await streams.spdy(f"{PODS}/web/exec?command=a%0d%0aX-Evil:%201%0d%0a&command=%26input%3D1&command=%00")
    assert response.status == 101
    [request] = streams.kubelet.requests
    assert request.target == b"/exec/default/web/main?command=a%0D%0AX-Evil%3A+1%0D%0A&command=%26input%3D1&command=%00"
    assert "x-evil" not in request.headers


async def test_absolute_target_is_not_followed(streams: Streams) -> None:
    code, received = await streams.raw(request_text(path="https://169.254.169.254/latest"))
    assert (code, streams.kubelet.requests) == (403, []), received
