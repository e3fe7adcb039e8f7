"""kubectl on a plane: by server name with a client certificate, and by path with a token."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.unit.planes.listening_planes import ListeningPlanes, listening_planes

from tapestry.planes.plane_set import PlaneState

MANIFEST = """
apiVersion: v1
kind: ConfigMap
metadata: {name: applied}
data: {key: value}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: web}]}
"""


class Kubectl:
    """kubectl with one kubeconfig. The server runs in the same event loop."""

    def __init__(self, program: Path, kubeconfig: Path) -> None:
        self._command = [str(program), f"--kubeconfig={kubeconfig}"]

    async def __call__(self, *arguments: str, stdin: str = "", fails: bool = False) -> str:
        async with self.start(*arguments) as process, asyncio.timeout(60):
            output, errors = await process.communicate(stdin.encode())
        assert (process.returncode != 0) is fails, errors.decode()
        return (errors if fails else output).decode()

    @asynccontextmanager
    async def start(self, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*self._command, *arguments, stdin=pipe, stdout=pipe, stderr=pipe)
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[ListeningPlanes]:
    async with listening_planes(tmp_path) as running:
        for each in ("a", "b"):
            await running.opened(each, controllers=["*"])
        yield running


@pytest.mark.parametrize("by_path", [False, True], ids=["by name", "by path"])
async def test_kubectl_works_on_plane(running: ListeningPlanes, kube_assets: Path, by_path: bool) -> None:
    kubectl = Kubectl(kube_assets / "kubectl", running.kubeconfig("a", by_path=by_path))
    assert "configmap/applied created" in await kubectl("apply", "-f", "-", stdin=MANIFEST)
    assert "configmap/applied unchanged" in await kubectl("apply", "-f", "-", stdin=MANIFEST)
    refused = await kubectl("apply", "-f", "-", stdin=MANIFEST.replace("selector", "selektor"), fails=True)
    assert "selektor" in refused  # validated with the OpenAPI document
    assert "FIELDS:" in await kubectl("explain", "deployments.spec")
    assert "deployments" in await kubectl("api-resources")
    user = json.loads(await kubectl("auth", "whoami", "-o", "json"))["status"]["userInfo"]["username"]
    assert user == ("root" if by_path else "admin")
    async with kubectl.start("get", "configmaps", "-w", "-o", "name") as watch, asyncio.timeout(60):
        assert watch.stdout is not None
        seen = {(await watch.stdout.readline()).decode().strip() for _ in range(2)}
        assert seen == {"configmap/applied", "configmap/kube-root-ca.crt"}
        await kubectl("create", "configmap", "later")
        assert (await watch.stdout.readline()).strip() == b"configmap/later"
    other = Kubectl(kube_assets / "kubectl", running.kubeconfig("b", by_path=by_path))
    assert "applied" not in await other("get", "configmaps", "-o", "name")


@pytest.mark.parametrize("by_path", [False, True], ids=["by name", "by path"])
async def test_kubectl_wakes_plane_and_reads_reason(running: ListeningPlanes, kube_assets: Path, by_path: bool) -> None:
    kubectl = Kubectl(kube_assets / "kubectl", running.kubeconfig("a", by_path=by_path))
    entry = running.planes.get("a")
    assert entry is not None
    await running.planes.close(entry, PlaneState.ASLEEP)
    assert "namespace/default" in await kubectl("get", "namespaces", "-o", "name")
    await running.planes.close(entry, PlaneState.SUSPENDED, "unpaid since May")
    assert "the plane is suspended: unpaid since May" in await kubectl("get", "namespaces", fails=True)
