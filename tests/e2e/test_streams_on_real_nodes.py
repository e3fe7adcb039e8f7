"""exec, attach, cp, port-forward and proxy with a real kubelet, through our API server and through kube-apiserver."""

import fcntl
import hashlib
import os
import pty
import re
import select
import signal
import ssl
import struct
import subprocess
import termios
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tapestry.streams.upgrade import dial, request_upgrade

from .cat_sessions import SPDY, cat_session, check_echo, check_silence
from .nodes import Kit
from .stream_servers import PAGE, WEBSOCKETS, Access, Servers, stream_servers

pytestmark = pytest.mark.timeout(450)  # includes waiting until another worker has finished with its nodes

V5, V4, TUNNEL = "v5.channel.k8s.io", "v4.channel.k8s.io", "SPDY/3.1+portforward.k8s.io"
IDLE_SESSIONS, IDLE_SECONDS = 200, 600.0
PROTOCOLS = {
    ("websocket", "exec"): (f"websocket {V5}", f"{SPDY} {V4}"),
    ("websocket", "attach"): (f"websocket {V5}", f"{SPDY} {V4}"),
    ("websocket", "portforward"): (f"websocket {TUNNEL}", f"{SPDY} portforward.k8s.io"),
    **{("spdy", verb): (SPDY, SPDY) for verb in ("exec", "attach", "portforward")},
}
"""Protocols of the client and of the kubelet."""


@pytest.fixture(scope="module")
def servers(node_network: None, node_kit: Kit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with stream_servers(tmp_path_factory.mktemp("streams"), node_kit) as servers:
        yield servers


@contextmanager
def background(access: Access, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(access.command(*arguments), env=access.environ, bufsize=0, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def line_with(process: subprocess.Popen[bytes], text: bytes) -> bytes:
    """Return the first line of the output that contains the text."""
    assert process.stdout is not None
    seen = []
    while line := process.stdout.readline():
        seen.append(line)
        if text in line:
            return line
    raise AssertionError(f"{text!r} is not in {seen}")


# -- verbs


def check_exec(access: Access) -> None:
    assert access.kubectl("exec", "web", "--", "sh", "-c", "echo out; echo err >&2; exit 7") == (
        *(7, b"out\n"),
        "err\ncommand terminated with exit code 7\n",
    )
    data = os.urandom(1 << 20)
    code, output, errors = access.kubectl(
        "exec", "-i", "web", "--", "sha256sum", data=data
    )  # ends when stdin is closed
    assert (code, output.split()[0].decode()) == (0, hashlib.sha256(data).hexdigest()), errors


def check_attach(access: Access) -> None:
    with background(access, "attach", "-i", "web") as process:
        assert process.stdin is not None
        process.stdin.write(f"{access.protocol}\n".encode())
        line_with(process, f"got {access.protocol}".encode())


def check_cp(access: Access, folder: Path) -> None:
    source, target = folder / f"{access.protocol}.source", folder / f"{access.protocol}.target"
    source.write_bytes(os.urandom(1 << 18))
    for arguments in ((source, "web:/tmp/copy"), ("web:/tmp/copy", target)):
        code, _, errors = access.kubectl("cp", *arguments)
        assert code == 0, errors
    assert target.read_bytes() == source.read_bytes()


def check_port_forward(access: Access, connections: int) -> None:
    with background(access, "port-forward", "web", ":8080") as process:
        port = line_with(process, b"Forwarding from 127.0.0.1").split(b":")[1].split()[0].decode()

        def page(_: int) -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/page", timeout=60) as response:
                return str(response.read().decode().strip())

        with ThreadPoolExecutor(connections) as pool:
            assert list(pool.map(page, range(connections))) == [PAGE] * connections


def check_terminal(access: Access) -> None:
    """Check that the terminal has the size of the client's, also after a change."""
    wait = 'while ! stty size | grep -q "$size"; do sleep 0.1; done; echo ok $size'
    wait = f"for size in '33 101' '50 120'; do {wait}; done"
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    process = subprocess.Popen(
        access.command("exec", "-it", "web", "--", "sh", "-c", wait),
        env=access.environ,
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    try:
        read_until(master, b"ok 33 101")
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
        process.send_signal(signal.SIGWINCH)
        read_until(master, b"ok 50 120")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)


def read_until(file: int, text: bytes) -> None:
    received = b""
    while text not in received:
        assert select.select([file], [], [], 60)[0], received
        data = os.read(file, 4096)
        assert data, received
        received += data


def check_proxy(access: Access) -> None:
    pages = {"/api/v1/namespaces/default/pods/web:8080/proxy/page": PAGE, "/api/v1/nodes/n1/proxy/healthz": "ok"}
    for path, page in pages.items():
        code, output, errors = access.kubectl("get", "--raw", path)
        assert (code, output.decode().strip()) == (0, page), errors


@pytest.mark.parametrize("protocol", WEBSOCKETS)
def test_every_verb_works_over_every_protocol(servers: Servers, tmp_path: Path, protocol: str) -> None:
    access = servers.access(protocol)
    check_exec(access)
    check_attach(access)
    check_cp(access, tmp_path)
    check_port_forward(access, 5)
    check_terminal(access)
    check_proxy(access)
    for verb in ("exec", "attach", "portforward"):
        wait_for_session(servers, verb, PROTOCOLS[protocol, verb])


async def test_version_4_over_websocket_is_passed_through(servers: Servers) -> None:
    """This version is that of the official Python client."""
    server, address = servers.own, urlsplit(servers.own.url)
    connection = await dial(address.hostname or "", address.port or 0, ssl.create_default_context(cafile=server.ca))
    handshake = {"Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
    headers = {
        "Host": address.netloc,
        "Authorization": f"Bearer {server.token}",
        "Connection": "Upgrade",
        **handshake,
        "Sec-WebSocket-Protocol": V4,
    }
    path = "/api/v1/namespaces/default/pods/web/exec?command=echo&command=hello&stdout=true"
    response = await request_upgrade(connection, "GET", path, list(headers.items()))
    assert (response.status, response.headers["sec-websocket-protocol"]) == (101, V4)
    assert response.connection is not None
    received = b""
    while b'"status":"Success"' not in received:
        data = await response.connection.read()
        assert data, received
        received += data
    response.connection.abort()
    assert b"\x01hello\n" in received, "a message on channel 1"
    wait_for_session(servers, "exec", (f"websocket {V4}", f"websocket {V4}"))


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_idle_sessions_survive_translation(servers: Servers) -> None:
    server, query = servers.own, "command=cat&stdin=true&stdout=true"
    tls = ssl.create_default_context(cafile=server.ca)
    url = f"{server.url}/api/v1/namespaces/default/pods/web/exec?{query}"
    async with AsyncExitStack() as stack:
        protocols = (V5, SPDY) * (IDLE_SESSIONS // 2)
        opening = (stack.enter_async_context(cat_session(url, tls, each, server.token)) for each in protocols)
        sessions = [await each for each in opening]
        await check_silence(sessions, IDLE_SECONDS)
        for each in sessions:
            await check_echo(each)
    for protocol in WEBSOCKETS:
        wait_for_session(servers, "exec", PROTOCOLS[protocol, "exec"])


def wait_for_session(servers: Servers, verb: str, protocols: tuple[str, str]) -> None:
    """Wait until the audit log has a session of a verb with these protocols."""
    deadline, pause = time.monotonic() + 30, threading.Event()
    while protocols not in (found := servers.sessions(verb)):
        assert time.monotonic() < deadline, (verb, protocols, found)
        pause.wait(0.1)


ERRORS = {
    "missing container": ("exec", "web", "-c", "none", "--", "id"),
    "missing pod": ("exec", "none", "--", "id"),
    "pending pod": ("exec", "pending", "--", "id"),
    "pending port-forward": ("port-forward", "pending", ":80"),
    "missing program": ("exec", "web", "--", "no-such-program"),
    "missing file": ("cp", "web:/no-such-file", "/tmp/tapestry-no-such-file"),
    "other scheme": ("get", "--raw", "/api/v1/namespaces/default/pods/ftp:web:80/proxy/"),
    "closed port": ("get", "--raw", "/api/v1/namespaces/default/pods/web:1/proxy/"),
    "missing node": ("get", "--raw", "/api/v1/nodes/none/proxy/healthz"),
}


@pytest.mark.parametrize("protocol", WEBSOCKETS)
def test_errors_are_those_of_kubernetes(servers: Servers, protocol: str) -> None:
    own, real = servers.access(protocol), servers.access(protocol, real=True)
    with ThreadPoolExecutor(2) as pool:
        for name, command in ERRORS.items():
            ours, theirs = pool.map(lambda access, command=command: outcome(access, *command), (own, real))
            assert ours == theirs, name


def outcome(access: Access, *command: str) -> tuple[int, str]:
    """Return the exit code and the errors of a command, without the ID of the process."""
    code, _, errors = access.kubectl(*command)
    # kube-apiserver repeats the prefix of errors that it translates
    return code, re.sub("[0-9a-f]{64}", "ID", errors).replace(f"{INTERNAL}{INTERNAL}", INTERNAL)


INTERNAL = "Internal error occurred: "


@pytest.mark.long
@pytest.mark.parametrize("protocol", WEBSOCKETS)
def test_large_streams_are_complete(servers: Servers, tmp_path: Path, protocol: str) -> None:
    access = servers.access(protocol)
    data = os.urandom(100 << 20)
    code, output, errors = access.kubectl("exec", "-i", "web", "--", "cat", data=data)
    assert (code, len(output), output == data) == (0, len(data), True), errors
    check_port_forward(access, 50)
