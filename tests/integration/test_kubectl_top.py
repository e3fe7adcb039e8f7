"""`kubectl top` on local clusters: the metrics API behind our aggregator and behind that of Kubernetes."""

import asyncio
import subprocess
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tapestry.client.watch import wait_for
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object
from tapestry.kube.resources import API_SERVICES, PODS, SERVICE_ACCOUNTS
from tapestry.local.cluster import ClusterPlan, run_kubelets
from tapestry.local.control_planes import RunningCluster, kubernetes_control_plane, tapestry_control_plane
from tapestry.local.metrics_api import API_SERVICE

POD = {
    "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web"}},
    "spec": {
        "nodeName": "east-1",
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}}}],
    },
}


def has_condition(name: str) -> Callable[[Object | None], bool]:
    return lambda obj: obj is not None and is_condition_true(obj, name)


@pytest.mark.parametrize(
    "control_plane", [tapestry_control_plane, pytest.param(kubernetes_control_plane, marks=pytest.mark.long)]
)
async def test_kubectl_top_shows_usage(
    kube_assets: Path, tmp_path: Path, control_plane: Callable[[Path], AbstractAsyncContextManager[RunningCluster]]
) -> None:
    folder = tmp_path / "east"

    async def kubectl(*arguments: str, fails: bool = False) -> str:
        command = [kube_assets / "kubectl", f"--kubeconfig={folder / 'kubeconfig'}", *arguments]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    async with control_plane(folder) as cluster, run_kubelets(ClusterPlan(folder, nodes=2), cluster):
        client = cluster.client
        assert await wait_for(
            client, SERVICE_ACCOUNTS, "default", "default", until=lambda obj: obj is not None, timeout=60
        )
        await client.create(PODS, POD)
        assert await wait_for(client, PODS, "web", "default", until=has_condition("Ready"), timeout=60)
        assert await wait_for(client, API_SERVICES, API_SERVICE, until=has_condition("Available"), timeout=60)
        rows = [line.split() for line in (await kubectl("top", "nodes", "--no-headers")).splitlines()]
        assert [row[:2] for row in rows] == [["east-1", "250m"], ["east-2", "0m"]]
        rows = [line.split() for line in (await kubectl("top", "pods", "-l", "app=web", "--no-headers")).splitlines()]
        assert rows == [["web", "250m", "64Mi"]]
        assert "NodeMetrics" in await kubectl("api-resources", "--api-group=metrics.k8s.io", "--cached=false")
        assert "forbidden" in await kubectl("top", "nodes", "--as=bob", fails=True)
        assert "not found" in await kubectl("top", "pod", "none", fails=True)
