"""Requests for exec, attach and port-forward, as they arrive and as they are passed on."""

from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.errors import BadRequest
from tapestry.nodeproxy.stream_requests import (
    StreamTarget,
    negotiated_protocol,
    physical_query,
    requested_protocol,
    response_headers,
    stream_target,
    upgrade_headers,
)

EXEC = StreamTarget("exec", "default", "web", "c")
ATTACH = StreamTarget("attach", "default", "web", "c")
FORWARD = StreamTarget("portforward", "default", "web")


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/exec/default/web/c", EXEC),
        ("/exec/default/web/u1/c", StreamTarget("exec", "default", "web", "c", "u1")),
        ("/attach/default/web.1/c", StreamTarget("attach", "default", "web.1", "c")),
        ("/portForward/default/web", FORWARD),
        ("/portForward/default/web/u1", StreamTarget("portforward", "default", "web", uid="u1")),
    ],
)
def test_target_of_a_path(path: str, target: StreamTarget) -> None:
    assert stream_target(path) == target


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/exec",
        "/exec/default/web",
        "/exec/default/web/",
        "/exec//web/c",
        "/exec/default//c",
        "/exec/../web/c",
        "/exec/default/../c",
        "/exec/default/web%2Fc/c",
        "/exec/default/web/%63",
        "/exec/default/WEB/c",
        "/exec/default/web/c/u/extra",
        "//exec/default/web/c",
        "/portforward/default/web",
        "/portForward/default",
        "https://node/exec/default/web/c",
        "/exec/default/web\r\n/c",
        f"/exec/default/{'a' * 254}/c",
        f"/exec/{'a' * 64}/web/c",
    ],
)
def test_other_paths_have_no_target(path: str) -> None:
    assert stream_target(path) is None


def test_options_are_those_of_the_subresource() -> None:
    query = "command=sh&command=-c&command=echo+%22%26%22&input=1&output=1&error=1"
    flags = [("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
    command = [("command", "sh"), ("command", "-c"), ("command", 'echo "&"')]
    assert physical_query(EXEC, query) == [("container", "c"), *flags, *command]
    assert physical_query(ATTACH, query) == [("container", "c"), *flags]
    assert physical_query(FORWARD, "") == []
    assert physical_query(FORWARD, "port=80,443&port=8080") == [("ports", "80"), ("ports", "443"), ("ports", "8080")]


def test_terminal_has_no_stderr() -> None:
    query = physical_query(ATTACH, "output=1&error=1&tty=1")
    assert query == [("container", "c"), ("stdout", "true"), ("tty", "true")]


@pytest.mark.parametrize("extra", ["container=other", "stdin=true", "tty=true", "namespace=kube-system", "pretty=1"])
def test_other_parameters_are_dropped(extra: str) -> None:
    assert physical_query(ATTACH, f"output=1&{extra}") == [("container", "c"), ("stdout", "true")]


@pytest.mark.parametrize(
    ("target", "query", "message"),
    [
        (EXEC, "output=1", "a command is required"),
        (EXEC, "command=sh", "at least one of stdin, stdout and stderr"),
        (EXEC, "command=sh&tty=1", "at least one of stdin, stdout and stderr"),
        (EXEC, "command=sh&output=1&tty=1&tty=0", "the parameter tty is given 2 times"),
        (ATTACH, "input=1&input=1", "the parameter input is given 2 times"),
        (ATTACH, "&".join(["a=1"] * 1001), "over 1000 parameters"),
        (FORWARD, "port=0", "'0' is not a port"),
        (FORWARD, "port=65536", "'65536' is not a port"),
        (FORWARD, "port=-1", "'-1' is not a port"),
        (FORWARD, "port=80%26container=x", "is not a port"),
        (FORWARD, "port=%D9%A3", "is not a port"),
        (FORWARD, "port=", "'' is not a port"),
        (FORWARD, "port=" + ",".join(["1"] * 101), "over 100 ports"),
    ],
)
def test_invalid_options_are_rejected(target: StreamTarget, query: str, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        physical_query(target, query)


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5))
def test_command_keeps_its_bytes(command: list[bytes]) -> None:
    query = urlencode([("output", "1"), *(("command", part) for part in command)])
    passed = [value for name, value in physical_query(EXEC, query) if name == "command"]
    assert [part.encode("utf-8", "surrogateescape") for part in passed] == command


def test_protocol_is_exactly_one() -> None:
    assert requested_protocol([("host", "x"), ("upgrade", "SPDY/3.1")]) == "spdy/3.1"
    assert requested_protocol([("upgrade", "WebSocket")]) == "websocket"
    for values in ([], ["h2c"], ["websocket, h2c"], ["websocket", "SPDY/3.1"], ["SPDY/3.1", "SPDY/3.1"]):
        with pytest.raises(BadRequest, match="must be an upgrade to"):
            requested_protocol([("upgrade", value) for value in values])


def test_credentials_of_the_caller_are_not_passed_on() -> None:
    token = "base64url.bearer.authorization.k8s.io.c2VjcmV0"
    headers = [
        ("authorization", "Bearer secret"),
        ("cookie", "secret"),
        ("impersonate-user", "admin"),
        ("x-remote-user", "admin"),
        ("x-forwarded-for", "10.0.0.1"),
        ("host", "node"),
        ("origin", "https://a"),
        ("connection", "Upgrade, X-Other"),
        ("upgrade", "websocket"),
        ("sec-websocket-key", "k"),
        ("sec-websocket-protocol", f"v5.channel.k8s.io, {token.upper()},v4.channel.k8s.io"),
        ("sec-websocket-protocol", token),
        ("x-stream-protocol-version", "v4.channel.k8s.io"),
        ("x-stream-protocol-version", "v3.channel.k8s.io"),
    ]
    assert upgrade_headers(headers) == [
        ("Connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-key", "k"),
        ("sec-websocket-protocol", "v5.channel.k8s.io, v4.channel.k8s.io"),
        ("x-stream-protocol-version", "v4.channel.k8s.io"),
        ("x-stream-protocol-version", "v3.channel.k8s.io"),
    ]


def test_only_headers_of_the_protocol_come_back() -> None:
    headers = {
        "upgrade": "websocket",
        "sec-websocket-protocol": "v5.channel.k8s.io",
        "audit-id": "a",
        "set-cookie": "b",
    }
    assert response_headers(headers) == {"Upgrade": "websocket", "Sec-WebSocket-Protocol": "v5.channel.k8s.io"}
    assert negotiated_protocol(headers) == "websocket v5.channel.k8s.io"
    assert (
        negotiated_protocol({"upgrade": "SPDY/3.1", "x-stream-protocol-version": "v4.channel.k8s.io"})
        == "SPDY/3.1 v4.channel.k8s.io"
    )
