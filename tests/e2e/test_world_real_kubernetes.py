"""Worlds of real Kubernetes clusters, and a real cluster that joins a world."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from smells import command_blocks
from tapestry.local.kubernetes import ControlPlane

from ..conftest import kubectl_of
from .worlds import ROOT, TAPESTRY, TIMEOUT_SECONDS, WorldProcess, running_world

VIRTUAL_FOLDER = "/world/virtual/"


@pytest.mark.timeout(400)
def test_real_kubernetes_world_survives_kills_and_restart(kube_assets: Path, tmp_path: Path) -> None:
    folder = tmp_path / "world"
    kubectl = kubectl_of(kube_assets, folder / "virtual" / "kubeconfig")
    with running_world(folder, "--real-kubernetes", "--clusters", "1", "--nodes", "2") as world:
        assert json.loads(kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"] == "v1.34.3"
        kubectl("create", "deployment", "web", "--image=nginx", "--replicas=4")
        kubectl("rollout", "status", "deployment/web", "--timeout=60s")
        assert kubectl("get", "pods", "-o", "wide").count("vnode-cluster-1-") == 4
        log = kubectl("logs", "--namespace=tapestry-system", "deployment/tapestry-manager")
        assert "probe and metrics listeners started" in log
        assert "is simulated" in kubectl("logs", "deployment/web")
        pods = kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.uid}")
        for program in ("kube-scheduler", "kube-controller-manager", "etcd", "kube-apiserver"):
            kill(world, program)
        kubectl("scale", "deployment", "web", "--replicas=5")
        kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    with running_world(folder, "--real-kubernetes"):
        kubectl("rollout", "status", "deployment/web", "--timeout=60s")
        assert set(pods.split()) < set(kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.uid}").split())


def kill(world: WorldProcess, program: str) -> None:
    """Kill a program of the virtual cluster and wait until the log reports that it runs again."""
    (victim,) = [
        pid for pid, command in world.processes().items() if f"/{program} --" in command and VIRTUAL_FOLDER in command
    ]
    with (world.folder / "virtual" / "log").open() as log:
        log.seek(0, os.SEEK_END)
        os.kill(victim, signal.SIGKILL)
        for _ in range(10 * TIMEOUT_SECONDS):
            if f'restarted","component":"{program}"' in log.read():
                return
            threading.Event().wait(0.1)  # files cannot be watched
    pytest.fail(f"{program} does not restart")


@contextmanager
def kubelet(plane: ControlPlane) -> Iterator[None]:
    """Run a simulated kubelet that reports every pod as running."""
    command = [sys.executable, "-m", "tests.integration.kubelet", str(plane.kubeconfig)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield
    finally:
        process.kill()
        process.wait()


NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n1"},
    "status": {
        "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
        "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "it is"}],
    },
}


def readme_join_command() -> str:
    """Return the command of the README that joins an existing cluster."""
    blocks = command_blocks((ROOT / "README.md").read_text())
    (block,) = [each for each in blocks if each.runner == "tests/e2e/test_world_real_kubernetes.py"]
    return block.script


@pytest.mark.timeout(300)
def test_real_cluster_joins_with_readme_command_and_leaves(kube_assets: Path, tmp_path: Path) -> None:
    clone, home = tmp_path / "clone", tmp_path / "home"
    (home / ".kube").mkdir(parents=True)
    path = f"{TAPESTRY.parent}:{os.environ['PATH']}"
    with (
        ControlPlane(tmp_path / "real", kube_assets, scheduler=True, fsync=False) as plane,
        kubelet(plane),
        running_world(clone / ".tapestry", "--clusters", "1", "--nodes", "1") as world,
    ):
        physical_kubectl, virtual_kubectl = (
            kubectl_of(kube_assets, plane.kubeconfig),
            kubectl_of(kube_assets, world.kubeconfig),
        )
        (home / ".kube" / "east").write_text(plane.kubeconfig.read_text())

        def run_in_shell(line: str) -> None:
            environment = {**os.environ, "HOME": str(home), "PATH": path, "KUBECONFIG": ""}
            subprocess.run(["bash", "-euc", line], cwd=clone, env=environment, check=True)

        physical_kubectl("create", "-f", "-", stdin=json.dumps(NODE))
        physical_kubectl("taint", "node", "n1", "node.kubernetes.io/not-ready-")  # as a kube-controller-manager would
        run_in_shell(readme_join_command())
        virtual_kubectl("wait", "node/vnode-east-n1", "--for=create", "--timeout=60s")
        virtual_kubectl("wait", "node/vnode-east-n1", "--for=condition=Ready", "--timeout=60s")
        chosen = {"spec": {"nodeSelector": {"kubernetes.io/hostname": "vnode-east-n1"}}}
        virtual_kubectl("run", "work", "--image=nginx", f"--overrides={json.dumps(chosen)}")
        virtual_kubectl("wait", "pod/work", "--for=condition=Ready", "--timeout=60s")
        twin = physical_kubectl(
            "get", "pods", "--namespace=tapestry-leased", "-o", "jsonpath={.items[*].spec.nodeName}"
        )
        assert twin == "n1"
        virtual_kubectl("delete", "pod", "work", "--timeout=60s")
        run_in_shell("tapestry unjoin east --cluster-kubeconfig ~/.kube/east")
        assert "vnode-east-n1" not in virtual_kubectl("get", "nodes", "-o", "name")
