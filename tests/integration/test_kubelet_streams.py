"""kubectl exec, attach, cp and port-forward through kube-apiserver to pods of the process kubelet.

kube-apiserver translates WebSocket to SPDY, except for `v4.channel.k8s.io`, which it passes on.  So the log of kubectl
says what it used, and the metrics of the kubelet say what arrived there.
"""

import asyncio
import fcntl
import os
import pty
import secrets
import struct
import subprocess
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.transport import Request
from tapestry.client.watch import wait_for
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object, object_named
from tapestry.kube.resources import NAMESPACES, NODES, PODS
from tapestry.local.cluster import ClusterPlan, process_kubelet_installer, serve_kubelets
from tapestry.local.control_planes import kubelet_manager
from tapestry.local.kubelet_streams import SESSIONS
from tapestry.local.kubernetes import ControlPlane
from tapestry.local.nodes import internal_ip
from tapestry.local.process_kubelet import machine_capacity, process_node
from tapestry.streams.remote_command import V4, Channel, exit_status

from ..unit.streams.peers import WebSocketClient

SECONDS = 100
SPDY_COMMAND = "SPDY/3.1 v4.channel.k8s.io"
SPDY_FORWARD = "SPDY/3.1 portforward.k8s.io"
USES_WEBSOCKET = b"The subprotocol is v5.channel.k8s.io"
USES_TUNNEL = b"negotiated protocol: portforward.k8s.io"
SERVER = """
import socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
Server(("127.0.0.1", 8080), Echo).serve_forever()
"""


@dataclass(frozen=True)
class Cluster:
    """A Kubernetes cluster with one process node, and kubectl for it."""

    client: Client
    kubectl: Path
    kubeconfig: Path

    def environment(self, *, websockets: bool) -> dict[str, str]:
        value = "true" if websockets else "false"
        names = ("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "KUBECTL_PORT_FORWARD_WEBSOCKETS")
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), **dict.fromkeys(names, value)}

    async def run(self, *arguments: str, websockets: bool, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
        """Run kubectl; return its exit code, output and errors."""
        done = await asyncio.to_thread(
            subprocess.run,
            [self.kubectl, *arguments],
            env=self.environment(websockets=websockets),
            input=stdin,
            capture_output=True,
            check=False,
            timeout=SECONDS,
        )
        return done.returncode, done.stdout, done.stderr


@asynccontextmanager
async def process_cluster(plane: ControlPlane, folder: Path, kubectl: Path, node: str) -> AsyncIterator[Cluster]:
    plan = ClusterPlan(folder, process_node=True, run_pods=True)
    async with kubelet_manager(plane) as cluster:
        install = await process_kubelet_installer(plan, cluster.server)
        await cluster.client.create(NODES, process_node(node, machine_capacity(), run_pods=True))
        async with serve_kubelets(install, cluster, plan), asyncio.TaskGroup() as group:
            group.create_task(cluster.manager.run())
            try:
                await wait_for(cluster.client, NODES, node, until=has_address, timeout=SECONDS)
                yield Cluster(cluster.client, kubectl, plane.kubeconfig)
            finally:
                cluster.manager.stop()
                await cluster.client.delete(NODES, object_named(node))


@pytest.fixture
async def namespace(cluster: Cluster) -> str:
    name = f"test-{secrets.token_hex(5)}"
    await cluster.client.create(NAMESPACES, object_named(name))
    return name


def has_address(node: Object | None) -> bool:
    return node is not None and bool(internal_ip(node))


@pytest.fixture
async def cluster(control_plane: ControlPlane, kube_assets: Path, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with process_cluster(control_plane, tmp_path, kube_assets / "kubectl", "streams") as found:
        yield found


async def start_pod(cluster: Cluster, namespace: str, name: str, **container: object) -> None:
    spec = {
        "nodeName": "streams",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": "none", **container}],
    }
    await cluster.client.create(PODS, {"metadata": {"name": name, "namespace": namespace}, "spec": spec})
    assert await wait_for(cluster.client, PODS, name, namespace, until=is_ready, timeout=SECONDS)


def is_ready(pod: Object | None) -> bool:
    return pod is not None and is_condition_true(pod, "Ready")


def sessions(verb: str, protocol: str) -> float:
    return SESSIONS.values().get((verb, protocol), 0)


async def test_streams_of_kubectl_reach_real_processes(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    await start_pod(cluster, namespace, "web", command=["python3", "-c", SERVER])
    in_pod = ("-n", namespace, "web")
    data = os.urandom(1 << 20)
    for websockets in (True, False):
        before = sessions("exec", SPDY_COMMAND)
        script = "cat; echo problem >&2; exit 42"
        code, output, errors = await cluster.run(
            "exec", "-v4", "-i", *in_pod, "--", "sh", "-c", script, websockets=websockets, stdin=data
        )
        assert (code, output == data) == (42, True), errors
        assert b"problem" in errors
        assert sessions("exec", SPDY_COMMAND) == before + 1
        assert (USES_WEBSOCKET in errors) is websockets
        assert await terminal_size(cluster, namespace, websockets=websockets) == "33 101"
        await forward(cluster, namespace, websockets=websockets)
        await copy_back_and_forth(cluster, namespace, tmp_path, data, websockets=websockets)


async def terminal_size(cluster: Cluster, namespace: str, *, websockets: bool) -> str:
    """Return the size of the terminal in the container, after that of kubectl has changed."""
    controller, terminal = pty.openpty()
    script = "until [ \"$(stty size)\" = '33 101' ]; do sleep 0.1; done; stty size"
    process = await asyncio.create_subprocess_exec(
        *(cluster.kubectl, "exec", "-it", "-n", namespace, "web", "--", "sh", "-c", f"echo started; {script}"),
        env=cluster.environment(websockets=websockets),
        stdin=terminal,
        stdout=terminal,
        stderr=subprocess.PIPE,
        preexec_fn=partial(make_controlling, terminal),
    )
    os.close(terminal)
    try:
        async with asyncio.timeout(SECONDS):
            output = await asyncio.to_thread(os.read, controller, 100)
            fcntl.ioctl(controller, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
            _, errors = await process.communicate()
            assert process.returncode == 0, (output, errors)
            with suppress(OSError):  # the end of the output of a terminal is an error
                while data := os.read(controller, 100):
                    output += data
            return output.decode().split("started")[1].strip()
    finally:
        if process.returncode is None:
            process.kill()
        os.close(controller)


def make_controlling(terminal: int) -> None:
    """Make a terminal the controlling one of this process, so that it is notified of new sizes."""
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


async def forward(cluster: Cluster, namespace: str, *, websockets: bool) -> None:
    before = sessions("portForward", SPDY_FORWARD)
    arguments = (cluster.kubectl, "port-forward", "-v4", "-n", namespace, "pod/web", ":8080")
    errors = await errors_of_forwarding(*arguments, environment=cluster.environment(websockets=websockets))
    assert sessions("portForward", SPDY_FORWARD) == before + 1
    assert (USES_TUNNEL in errors) is websockets


async def errors_of_forwarding(*command: object, environment: dict[str, str]) -> bytes:
    """Run port-forward, use ten connections at the same time, and return what it wrote to standard error."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(SECONDS):
            line = (await process.stdout.readline()).decode()
            port = int(line.split("127.0.0.1:")[1].split()[0])
            async with asyncio.TaskGroup() as group:
                for number in range(10):
                    group.create_task(use_connection(port, str(number).encode() * 50_000))
    finally:
        process.terminate()
        _, errors = await process.communicate()
    return errors


async def use_connection(port: int, data: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    assert await reader.read(-1) == data
    writer.close()


async def copy_back_and_forth(cluster: Cluster, namespace: str, folder: Path, data: bytes, *, websockets: bool) -> None:
    (folder / "there").write_bytes(data)
    inside = f"{namespace}/web:/tmp/{namespace}"
    code, _, errors = await cluster.run("cp", str(folder / "there"), inside, websockets=websockets)
    assert code == 0, errors
    code, _, errors = await cluster.run("cp", inside, str(folder / "back"), websockets=websockets)
    assert code == 0, errors
    assert (folder / "back").read_bytes() == data
    await cluster.run("exec", "-n", namespace, "web", "--", "rm", f"/tmp/{namespace}", websockets=websockets)


@pytest.mark.parametrize("websockets", [True, False])
async def test_kubectl_attaches_to_a_container(cluster: Cluster, namespace: str, websockets: bool) -> None:
    before = sessions("attach", SPDY_COMMAND)
    await start_pod(cluster, namespace, "reader", command=["cat"], stdin=True, stdinOnce=True)
    code, output, errors = await cluster.run(
        "attach", "-v4", "-i", "-n", namespace, "reader", websockets=websockets, stdin=b"hello\n"
    )
    assert (code, output, USES_WEBSOCKET in errors) == (0, b"hello\n", websockets), errors
    assert sessions("attach", SPDY_COMMAND) == before + 1


async def test_old_websocket_clients_reach_the_kubelet_unchanged(cluster: Cluster, namespace: str) -> None:
    before = sessions("exec", f"websocket {V4}")
    await start_pod(cluster, namespace, "web", command=["sleep", "1000"])
    path = f"/api/v1/namespaces/{namespace}/pods/web/exec"
    query = [("stdin", "true"), ("stdout", "true"), *(("command", each) for each in ("sh", "-c", "head -c5; exit 3"))]
    headers = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Protocol", V4),
    ]
    transport = HttpTransport(load_access([cluster.kubeconfig], environ={}))
    try:
        response = await transport.upgrade(Request("GET", path), query, headers)
        assert response.connection is not None, response.body
        client = WebSocketClient(response.connection)
        await client.send(b"\x00hello")
        assert await client.channels() == {Channel.STDOUT: b"hello", Channel.ERROR: exit_status(3)}
    finally:
        await transport.close()
    assert sessions("exec", f"websocket {V4}") == before + 1


async def test_kubectl_debug_is_attached_to_its_container(cluster: Cluster, namespace: str) -> None:
    await start_pod(cluster, namespace, "web", command=["sleep", "1000"])
    command = ("sh", "-c", "read line; echo $line; tr '\\0' ' ' < /proc/2/cmdline; exit 3")
    arguments = ("--image=none", "--container=debug", "--target=c", "--profile=general", "--", *command)
    code, output, errors = await cluster.run(
        "debug", "-i", "-n", namespace, "web", *arguments, websockets=True, stdin=b"hello\n"
    )
    assert (code, output.endswith(b"\nhello\nsleep 1000 ")) == (0, True), errors
    pod = await wait_for(cluster.client, PODS, "web", namespace, until=has_debugged, timeout=SECONDS)
    assert pod is not None
    assert pod["status"]["ephemeralContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


def has_debugged(pod: Object | None) -> bool:
    statuses = (pod or {}).get("status", {}).get("ephemeralContainerStatuses") or [{"state": {}}]
    return "terminated" in statuses[0]["state"]


@pytest.mark.long
@pytest.mark.parametrize("websockets", [True, False])
async def test_100_mebibytes_are_transferred_unchanged(cluster: Cluster, namespace: str, websockets: bool) -> None:
    await start_pod(cluster, namespace, "web", command=["sleep", "1000"])
    data = os.urandom(100 << 20)
    code, output, errors = await cluster.run(
        "exec", "-i", "-n", namespace, "web", "--", "cat", websockets=websockets, stdin=data
    )
    assert (code, output == data) == (0, True), errors
