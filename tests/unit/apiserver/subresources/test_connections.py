"""exec, attach and portforward: negotiation with the kubelet, errors before the upgrade, limits and audit."""

import base64
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client import Gauge

from tapestry.apiserver.core.requests import Call, Target, User
from tapestry.apiserver.serving import metrics
from tapestry.apiserver.subresources.connect_options import ConnectOptions, connect_options
from tapestry.apiserver.subresources.pod_streams import REFUSAL_SECONDS, RefusedProtocols
from tapestry.kube.errors import BadRequest
from tapestry.streams.connection import SocketConnection

from ..kubelets import KEY, PODS, SPDY, TUNNEL, V4, V5, Streams, api_server_with_kubelet, pod_body

EXEC = f"{PODS}/web/exec?command=sh&command=-c&command=a%20b&stdin=true&stdout=true&tty=true"
ACCEPT = base64.b64encode(hashlib.sha1(f"{KEY}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()).decode()
KUBELET_EXEC = "/exec/default/web/main?input=1&output=1&tty=1&command=sh&command=-c&command=a+b"


@pytest.fixture
async def streams(tmp_path: Path) -> AsyncIterator[Streams]:
    async with api_server_with_kubelet(tmp_path, max_sessions_per_user=3) as streams:
        yield streams


def frame(data: bytes, opcode: int = 2) -> bytes:
    """A WebSocket frame of a client, masked with zeros."""
    return bytes([0x80 | opcode, 0x80 | len(data)]) + bytes(4) + data


async def echoed(connection: SocketConnection | None, data: bytes, expected: bytes = b"") -> bytes:
    assert connection is not None
    await connection.write(data)
    received = b""
    while len(received) < len(expected or data):
        part = await connection.read()
        assert part, "the connection ended early"
        received += part
    return received


def message_of(body: bytes) -> str:
    return str(msgspec.json.decode(body)["message"])


# -- pass-through


async def test_spdy_is_passed_through(streams: Streams) -> None:
    response = await streams.spdy(EXEC)
    assert (response.status, response.headers["upgrade"]) == (101, SPDY)
    data = bytes(range(256)) * 4096
    assert await echoed(response.connection, data) == data
    assert response.connection is not None
    await response.connection.close()
    assert streams.kubelet.targets == [("POST", KUBELET_EXEC)]
    [request] = streams.kubelet.requests
    assert request.headers["x-stream-protocol-version"] == V4
    assert "authorization" not in request.headers
    [event] = await streams.audit_events(1)
    annotations = {key.removeprefix("streams.tapestry.io/"): value for key, value in event["annotations"].items()}
    assert annotations["protocol"] == annotations["backend-protocol"] == SPDY
    assert (annotations["bytes-received"], annotations["bytes-sent"]) == (str(len(data)), str(len(data)))
    assert (annotations["container"], annotations["command"]) == ("main", '["sh","-c","a b"]')
    assert (event["user"]["username"], event["verb"], event["objectRef"]["subresource"]) == ("admin", "create", "exec")


async def test_accepted_websocket_subprotocol_is_passed_through(streams: Streams) -> None:
    response = await streams.websocket(EXEC, V4)
    assert (response.status, response.headers["sec-websocket-protocol"]) == (101, V4)
    assert response.headers["sec-websocket-accept"] == "accepted"
    assert await echoed(response.connection, b"frame") == b"frame"
    assert [each.method for each in streams.kubelet.requests] == ["GET"]


async def test_attach_and_portforward_have_their_own_targets(streams: Streams) -> None:
    await streams.call.made(PODS, pod_body("two", "a", "b"))
    assert (await streams.spdy(f"{PODS}/two/attach?container=b&stderr=1&command=no")).status == 101
    assert (await streams.spdy(f"{PODS}/two/portforward?ports=80,443&ports=8080")).status == 101
    targets = [target for _, target in streams.kubelet.targets]
    assert targets == ["/attach/default/two/b?error=1", "/portForward/default/two?port=80%2C443%2C8080"]


async def test_closed_client_closes_kubelet(streams: Streams) -> None:
    response = await streams.spdy(EXEC)
    assert response.connection is not None
    response.connection.abort()
    await streams.kubelet.ended.wait()


async def test_protocol_that_was_not_requested_is_an_error(streams: Streams) -> None:
    streams.kubelet.answer = "other"
    response = await streams.websocket(EXEC, V4)
    assert (response.status, "a protocol that was not requested" in message_of(response.body)) == (500, True)


async def test_untranslatable_subprotocol_is_refused_by_kubelet(streams: Streams) -> None:
    response = await streams.websocket(EXEC, "base64.channel.k8s.io")
    assert (response.status, response.body) == (403, b"protocol not supported")
    assert len(streams.kubelet.requests) == 1


# -- translation


async def test_refused_tunnel_is_translated_and_remembered(streams: Streams) -> None:
    path = f"{PODS}/web/portforward?ports=80"
    for _ in range(2):
        response = await streams.websocket(path, TUNNEL)
        assert (response.status, response.headers["sec-websocket-protocol"]) == (101, TUNNEL)
        assert response.headers["sec-websocket-accept"] == ACCEPT
        assert await echoed(response.connection, frame(b"bytes"), b"\x82\x05bytes") == b"\x82\x05bytes"
        assert response.connection is not None
        await response.connection.write(frame(b"\x03\xe8", opcode=8))
        await streams.kubelet.ended.wait()
    assert [each.method for each in streams.kubelet.requests] == ["GET", "POST", "POST"]
    assert streams.kubelet.requests[1].headers["x-stream-protocol-version"] == "portforward.k8s.io"
    for event in await streams.audit_events(2):
        annotations = event["annotations"]
        assert annotations["streams.tapestry.io/protocol"] == f"websocket {TUNNEL}"
        assert annotations["streams.tapestry.io/backend-protocol"] == "SPDY/3.1 portforward.k8s.io"
        assert annotations["streams.tapestry.io/bytes-received"] == "5"


async def test_close_signal_is_preferred_and_translated(streams: Streams) -> None:
    response = await streams.websocket(EXEC, V4, V5)
    assert (response.status, response.headers["sec-websocket-protocol"]) == (101, V5)
    native, translated = streams.kubelet.requests
    assert (native.headers["sec-websocket-protocol"], native.target) == (V5, translated.target)
    assert (translated.method, translated.headers["x-stream-protocol-version"]) == ("POST", V4)


async def test_kubelet_that_refuses_everything_is_called_again(streams: Streams) -> None:
    streams.kubelet.protocols = set()
    assert (await streams.websocket(EXEC, V5)).body == b"protocol not supported"
    streams.kubelet.protocols = {V5}
    assert (await streams.websocket(EXEC, V5)).status == 101
    assert [each.method for each in streams.kubelet.requests] == ["GET", "POST", "GET"]


@pytest.mark.parametrize(
    "data",
    [
        b"\x82\x05bytes",  # not masked
        b"\x83\x80\0\0\0\0",  # unknown opcode
        b"\x80\x80\0\0\0\0",  # continuation without a start
        b"\x09\x80\0\0\0\0",  # fragmented ping
        b"\xf2\x80\0\0\0\0",  # reserved bits
        b"\x82\xff\x7f" + bytes(7) + bytes(4),  # 2^63 bytes
        b"\x88\x81\0\0\0\0x",  # close frame with half a code
    ],
)
async def test_invalid_frame_ends_both_sides(streams: Streams, data: bytes) -> None:
    response = await streams.websocket(f"{PODS}/web/portforward", TUNNEL)
    assert response.connection is not None
    await response.connection.write(data)
    while await response.connection.read():
        pass
    await streams.kubelet.ended.wait()


# -- errors


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        (f"{PODS}/none/exec", 404, 'pods "none" not found'),
        (f"{PODS}/two/exec", 400, "a container name must be specified for pod two, choose one of: [a b]"),
        (f"{PODS}/web/exec?container=x", 400, "container x is not valid for pod web"),
        (f"{PODS}/pending/exec", 400, "pod pending does not have a host assigned"),
        (f"{PODS}/pending/portforward", 400, "pod pending does not have a host assigned"),
        (f"{PODS}/lost/exec", 404, 'nodes "lost" not found'),
        (f"{PODS}/down/exec", 500, "error dialing backend: dial tcp 127.0.0.1:1: connect: connection refused"),
        (f"{PODS}/metadata/exec", 500, "error dialing backend: address not allowed: 169.254.169.254"),
        (f"{PODS}/web/portforward?ports=99999", 400, 'ports: Invalid value: "99999": it is not a port'),
    ],
)
async def test_error_before_upgrade_is_a_status(streams: Streams, path: str, status: int, message: str) -> None:
    for node, address, port in (("down", "127.0.0.1", 1), ("metadata", "169.254.169.254", 80)):
        addresses = [{"type": "InternalIP", "address": address}]
        endpoints = {"kubeletEndpoint": {"Port": port}}
        await streams.call.made(
            "/api/v1/nodes",
            {"metadata": {"name": node}, "status": {"addresses": addresses, "daemonEndpoints": endpoints}},
        )
        await streams.call.made(PODS, pod_body(node, node=node))
    await streams.call.made(PODS, pod_body("two", "a", "b"))
    await streams.call.made(PODS, pod_body("lost", node="lost"))
    await streams.call.made(PODS, pod_body("pending", node=""))
    response = await streams.spdy(path)
    assert (response.status, message_of(response.body)) == (status, message)


async def test_error_of_kubelet_is_passed_on(streams: Streams) -> None:
    streams.kubelet.error = 404, b'container not found ("main")'
    response = await streams.spdy(EXEC)
    assert (response.status, response.body) == (404, b'container not found ("main")')


async def test_plain_request_is_rejected(streams: Streams) -> None:
    for method in ("GET", "POST"):
        status, body = await streams.call(method, f"{PODS}/web/exec", command="ls")
        assert (status, body["message"]) == (400, "Upgrade request required")
    assert (await streams.call("DELETE", f"{PODS}/web/exec"))[0] == 405
    assert streams.kubelet.requests == []


async def test_admission_policy_denies_connection(streams: Streams) -> None:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CONNECT"], "resources": ["pods/exec"]}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "!object.command.exists(each, each == 'sh')", "message": "no shells"}],
    }
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    await streams.call.made(policies, {"metadata": {"name": "p"}, "spec": spec})
    binding = {"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}}
    await streams.call.made(f"{policies.removesuffix('ies')}ybindings", binding)
    response = await streams.spdy(EXEC)
    assert (response.status, "no shells" in message_of(response.body)) == (422, True)
    assert (await streams.spdy(f"{PODS}/web/exec?command=ls")).status == 101


# -- rights and limits


@pytest.mark.parametrize("subresource", ["exec", "attach", "portforward"])
async def test_every_method_requires_create(streams: Streams, subresource: str) -> None:
    path = f"{PODS}/web/{subresource}"
    for response in (await streams.websocket(path, V4, user="viewer"), await streams.spdy(path, user="viewer")):
        assert response.status == 403
        assert f'cannot create resource "pods/{subresource}"' in message_of(response.body)
    assert streams.kubelet.requests == []
    assert (await streams.websocket(path, V4, user="developer")).status == 101


async def test_sessions_over_the_limit_are_rejected(streams: Streams) -> None:
    sessions = [await streams.spdy(EXEC, user="developer") for _ in range(3)]
    refused = await streams.spdy(EXEC, user="developer")
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    assert "user developer has 3 sessions" in message_of(refused.body)
    assert (await streams.spdy(EXEC)).status == 101, "other users have their own limit"
    assert sessions[0].connection is not None
    sessions[0].connection.abort()
    while (await streams.spdy(EXEC, user="developer")).status == 429:
        pass  # until the server has noticed that the client is gone


async def test_failed_requests_release_their_session(streams: Streams) -> None:
    streams.kubelet.error = 500, b"no"
    for _ in range(5):
        assert (await streams.spdy(EXEC, user="developer")).status == 500


async def test_session_is_counted_until_it_ends(streams: Streams) -> None:
    gauge = metrics.LONG_RUNNING.labels("CONNECT", "", "v1", "pods", "exec", "resource", "apiserver")
    before = current_value(gauge)
    response = await streams.spdy(EXEC)
    assert current_value(gauge) == before + 1
    assert response.connection is not None
    await response.connection.close()
    await streams.audit_events(1)
    assert current_value(gauge) == before


def current_value(gauge: Gauge) -> float:
    [metric] = gauge.collect()
    [sample] = metric.samples
    return float(sample.value)


# -- decisions


def test_options_are_parsed_like_kubernetes() -> None:
    def options(subresource: str, query: str) -> ConnectOptions:
        call = Call("GET", "/x", {}, {}, b"", User("a"), uri=f"/x?{query}")
        return connect_options(call, Target(None, "default", "web", subresource))  # type: ignore[arg-type]

    assert options("exec", "stdin&stdout=0&stderr=False&tty=1&stdin=false&command=") == ConnectOptions(
        stdin=True, tty=True, command=("",)
    )
    assert options("attach", "command=x&container=a&container=b") == ConnectOptions(container="a")
    assert options("portforward", "ports=1,2&ports=3").ports == (1, 2, 3)
    for port in ("", "0x1", "-1", "65536", "1,"):
        with pytest.raises(BadRequest):
            options("portforward", f"ports={port}")


def test_refusal_expires() -> None:
    now = 0.0
    refused = RefusedProtocols(lambda: now)
    refused.add("n1:10250", f"websocket {V5}")
    assert ("n1:10250", f"websocket {V5}") in refused
    assert ("n1:10250", f"websocket {TUNNEL}") not in refused
    now = REFUSAL_SECONDS
    assert ("n1:10250", f"websocket {V5}") not in refused
