"""`tapestry up` as a person meets it: start it, type the lines that it prints, press Ctrl-C, and start it again."""

import os
import subprocess
from pathlib import Path

import pytest

from .worlds import AT_WORK, LONGEST, ROOT, TAPESTRY, started, up

pytestmark = pytest.mark.timeout(300)  # worlds start and end in here, on a machine that others use, too
SMALL = ("--clusters", "1", "--nodes", "1")


def shell(lines: str, kube_assets: Path, **variables: str) -> str:
    """What a person's shell shows who types these lines."""
    path = f"{kube_assets}:{TAPESTRY.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", lines],
        cwd=ROOT,
        env={**os.environ, "PATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_lines_that_up_prints_work_and_everything_is_there_again_the_next_time(
    kube_assets: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "world"
    waiting = "kubectl rollout status deployment web --timeout 60s\n"
    with up(folder, "--nodes", "2") as world:
        lines = "\n".join(
            line.strip() for line in world.said.splitlines() if line.startswith("  ") and "s  " not in line
        )
        shown = shell(lines.replace("kubectl get pods", waiting + "kubectl get pods"), kube_assets)
        assert shown.count("vnode-cluster-") >= 4
        assert shown.count("Running") >= 20
        assert "cluster-2" in shown
        kubeconfig = {"KUBECONFIG": str(folder / "virtual" / "kubeconfig")}
        assert "is simulated" in shell("kubectl logs deployment/web", kube_assets, **kubeconfig)
    with up(folder):
        shell(waiting, kube_assets, **kubeconfig)
        assert shell("kubectl get nodes -o name", kube_assets, **kubeconfig).count("vnode-cluster-") == 4
        assert len(shell("kubectl get pods -o name", kube_assets, **kubeconfig).splitlines()) == 20


def test_down_stops_a_world_and_forgets_it(tmp_path: Path) -> None:
    folder = tmp_path / "world"
    with started(folder, *SMALL) as world:
        world.read_until(AT_WORK)
        done = subprocess.run(
            [TAPESTRY, "down", "--data", folder, "--purge"], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        world.process.communicate(timeout=LONGEST)
        assert world.process.returncode == 0
    assert not folder.exists()


def test_a_cluster_that_was_taken_out_stays_out(tmp_path: Path) -> None:
    folder = tmp_path / "world"
    below = f"--cluster-kubeconfig {folder / 'cluster-1' / 'kubeconfig'}"
    with up(folder, *SMALL) as world:
        shell(f"tapestry unjoin cluster-1 {below}", tmp_path, KUBECONFIG=str(world.kubeconfig))
    with up(folder) as world:
        assert "no cluster has joined" in shell("tapestry status", tmp_path, KUBECONFIG=str(world.kubeconfig))
