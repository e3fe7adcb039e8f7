"""`tapestry up` from a user's view: start it, run the printed commands, stop it, and start it again."""

import os
import subprocess
from pathlib import Path

import pytest

from .worlds import READY_MESSAGE, ROOT, TAPESTRY, TIMEOUT_SECONDS, running_world, starting_world

pytestmark = pytest.mark.timeout(300)  # worlds start and end within it, on a shared machine
SMALL = ("--clusters", "1", "--nodes", "1")


def shell(lines: str, kube_assets: Path, **variables: str) -> str:
    """Run lines in a shell and return their output."""
    path = f"{kube_assets}:{TAPESTRY.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", lines],
        cwd=ROOT,
        env={**os.environ, "PATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_printed_commands_work_and_restart_keeps_objects(kube_assets: Path, tmp_path: Path) -> None:
    folder = tmp_path / "world"
    wait_for_web = "kubectl rollout status deployment web --timeout 60s\n"
    with running_world(folder, "--nodes", "2") as world:
        lines = "\n".join(
            line.strip() for line in world.output.splitlines() if line.startswith("  ") and "s  " not in line
        )
        output = shell(lines.replace("kubectl get pods", wait_for_web + "kubectl get pods"), kube_assets)
        assert output.count("vnode-cluster-") >= 4
        assert output.count("Running") >= 20
        assert "cluster-2" in output
        kubeconfig = {"KUBECONFIG": str(folder / "virtual" / "kubeconfig")}
        assert "is simulated" in shell("kubectl logs deployment/web", kube_assets, **kubeconfig)
    with running_world(folder):
        shell(wait_for_web, kube_assets, **kubeconfig)
        assert shell("kubectl get nodes -o name", kube_assets, **kubeconfig).count("vnode-cluster-") == 4
        assert len(shell("kubectl get pods -o name", kube_assets, **kubeconfig).splitlines()) == 20


def test_down_purge_stops_and_deletes_world(tmp_path: Path) -> None:
    folder = tmp_path / "world"
    with starting_world(folder, *SMALL) as world:
        world.read_until(READY_MESSAGE)
        done = subprocess.run(
            [TAPESTRY, "down", "--data", folder, "--purge"], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        world.process.communicate(timeout=TIMEOUT_SECONDS)
        assert world.process.returncode == 0
    assert not folder.exists()


def test_virtual_clusters_run_pods_and_survive_restart(kube_assets: Path, tmp_path: Path) -> None:
    folder = tmp_path / "world"
    config = folder / "lifecycle_service" / "service.yaml"
    connect = f"tapestry vc connect blue --config {config} --"
    wait = f"{connect} kubectl wait pod/web --for=condition=Ready --timeout=60s"
    with running_world(folder, *SMALL) as world:
        lines = [line.strip() for line in world.output.splitlines() if line.startswith("  tapestry vc ")]
        create, run = lines
        assert "is Running" in shell(create, kube_assets)
        assert "pod/web created" in shell(run, kube_assets)
        shell(wait, kube_assets)
        assert "vnode-cluster-1" in shell(f"{connect} kubectl get pods -o wide", kube_assets)
        assert "nothing is wrong" in shell(f"tapestry vc diagnose blue --config {config}", kube_assets)
        assert config.stat().st_mode & 0o777 == 0o600
        assert "tap_" not in config.with_name("log").read_text()  # it is part of debug bundles
    with running_world(folder):
        shell(wait, kube_assets)
        assert "Running" in shell(f"tapestry vc list --config {config}", kube_assets)


def test_unjoined_cluster_stays_out_after_restart(tmp_path: Path) -> None:
    folder = tmp_path / "world"
    below = f"--cluster-kubeconfig {folder / 'cluster-1' / 'kubeconfig'}"
    with running_world(folder, *SMALL) as world:
        shell(f"tapestry unjoin cluster-1 {below}", tmp_path, KUBECONFIG=str(world.kubeconfig))
    with running_world(folder) as world:
        assert "no cluster has joined" in shell("tapestry status", tmp_path, KUBECONFIG=str(world.kubeconfig))
