"""kubectl exec, attach, logs and port-forward through the service, in a virtual cluster whose pods run in a host."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tapestry.kube.objects import Object
from tapestry.local.runtime import ContainerProcess
from tapestry.local.simulated_kubelet import SimulatedRuntime

from ..unit.tenants.running_tenants import host_world, run_pod
from ..unit.vclusters.proxied_vclusters import PLUGIN, ProxyWorld, proxied_vcluster
from .test_kubelet_streams import Cluster, errors_of_forwarding

EXIT_CODE = 42
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class EchoProcess:
    """A process that writes what it reads, and then fails."""

    chunks: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def read_stdout(self) -> bytes:
        chunk = await self.chunks.get()
        if not chunk:
            self.ended.set()
        return chunk

    async def read_stderr(self) -> bytes:
        return b""

    async def write_stdin(self, data: bytes) -> None:
        self.chunks.put_nowait(data)

    def close_stdin(self) -> None:
        self.chunks.put_nowait(b"")

    def resize(self, width: int, height: int) -> None:
        """Do nothing: there is no terminal."""

    async def wait(self) -> int:
        await self.ended.wait()
        return EXIT_CODE

    async def close(self) -> None:
        """Do nothing: no process runs."""


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ProxyWorld]:
    """A virtual cluster with a pod `work`, whose commands and ports echo what they get."""
    server = await asyncio.start_server(echo, "127.0.0.1", 0)

    async def run_echo(*_: object, **options: object) -> ContainerProcess:
        return EchoProcess()

    async def dial(_: SimulatedRuntime, pod: Object, port: int) -> Connection:
        return await asyncio.open_connection(*server.sockets[0].getsockname())

    monkeypatch.setattr(SimulatedRuntime, "exec", run_echo)
    monkeypatch.setattr(SimulatedRuntime, "attach", run_echo)
    monkeypatch.setattr(SimulatedRuntime, "dial", dial)
    async with (
        server,
        host_world(tmp_path, nodes=1, admission=PLUGIN) as hosts,
        proxied_vcluster(hosts.process, hostCluster="east") as found,
    ):
        await run_pod(hosts.tenant_client((await found.plane()).id))
        yield found


def kubectl_as(world: ProxyWorld, user: str, folder: Path, assets: Path) -> Cluster:
    """Return kubectl with the access key of a user, and no credential of the virtual cluster."""
    file = folder / f"{user}.json"
    cluster = {"server": world.base, "certificate-authority": str(world.authority)}
    names = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": world.keys[user]}}],
    }
    context = {"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **names, **context}))
    file.chmod(0o600)
    return Cluster(None, assets / "kubectl", file)  # type: ignore[arg-type]


@pytest.mark.timeout(120)
async def test_kubectl_reaches_pods_through_the_service(world: ProxyWorld, tmp_path: Path, kube_assets: Path) -> None:
    editor, data = kubectl_as(world, "eve", tmp_path, kube_assets), os.urandom(1 << 20)
    code, output, errors = await editor.run("logs", "-f", "work", websockets=True)
    assert (code, b"is simulated" in output) == (0, True), errors
    for websockets in (True, False):
        code, output, errors = await editor.run("exec", "-i", "work", "--", "cat", websockets=websockets, stdin=data)
        assert (code, output == data) == (EXIT_CODE, True), errors
        code, output, errors = await editor.run("attach", "-qi", "work", websockets=websockets, stdin=b"hello")
        assert (code, output) == (EXIT_CODE, b"hello"), errors
        command = (editor.kubectl, "port-forward", "pod/work", ":8080")
        assert await errors_of_forwarding(*command, environment=editor.environment(websockets=websockets)) == b""
    operator = kubectl_as(world, "olga", tmp_path, kube_assets)
    for words in (("exec", "work", "--", "true"), ("port-forward", "pod/work", ":80")):
        code, _, errors = await operator.run(*words, websockets=True)
        assert (code, b"forbidden" in errors) == (1, True), errors
