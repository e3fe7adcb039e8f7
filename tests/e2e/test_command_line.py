"""`tapestry top`, `tapestry debug collect` and `kubectl tapestry` in the folder of a running world."""

import json
import os
import re
import stat
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .worlds import ROOT, TIMEOUT_SECONDS, running_world

BUSY_DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: busy}
spec:
  replicas: 2
  selector: {matchLabels: {app: busy}}
  template:
    metadata: {labels: {app: busy}}
    spec:
      containers:
      - name: c
        image: nginx
        env: [{name: PASSWORD, value: correct-horse-battery-staple}]
        resources: {requests: {cpu: 500m, memory: 256Mi}}
"""
Shell = Callable[[str], str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder of a running world. Its `bin` has the console scripts as an installer writes them."""
    root = tmp_path_factory.mktemp("world")
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name, target in scripts.items():
        module, _, function = target.partition(":")
        file = root / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!{sys.executable}\nfrom {module} import {function}\n{function}()\n")
        file.chmod(0o755)
    with running_world(root / ".tapestry", "--clusters", "1", "--nodes", "2"):
        yield root


@pytest.fixture(scope="module")
def shell(folder: Path, kube_assets: Path) -> Shell:
    """Function that runs a line in a shell in that folder and returns its output."""
    environment = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
    path = f"{folder / 'bin'}:{kube_assets}:{os.environ['PATH']}"

    def run(line: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=folder,
            env={**environment, "PATH": path},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def busy(folder: Path, shell: Shell) -> None:
    (folder / "busy.yaml").write_text(BUSY_DEPLOYMENT)
    shell("tapestry k apply -f busy.yaml && tapestry k wait deploy/busy --for condition=Available --timeout 60s")


def test_commands_find_world_in_current_folder(shell: Shell) -> None:
    assert "cluster-1" in shell("tapestry status")
    assert "vnode-cluster-1-cluster-1-2" in shell("tapestry tree")
    assert "cluster-1" in shell("tapestry top")


@pytest.mark.usefixtures("busy")
def test_top_shows_leased_requested_and_used(shell: Shell) -> None:
    (cluster,) = json.loads(shell("tapestry top -o json"))
    assert (cluster["name"], cluster["pods"], cluster["leased"]["cpu"]) == ("cluster-1", 2, "8")
    assert cluster["requested"]["cpu"] == "1"
    assert cluster["used"] == {"cpu": "1", "memory": "512Mi"}
    assert shell("tapestry top nodes").count("vnode-cluster-1-") == 2
    assert re.search(r"busy-\S+ +vnode-\S+ +500m/500m +256Mi/256Mi", shell("tapestry top pods"))


@pytest.mark.usefixtures("busy")
def test_safety_rule_7_bundle_contains_no_secrets(shell: Shell, folder: Path) -> None:
    assert "could not be read" not in shell("tapestry debug collect -o trouble.tar.gz")
    file = folder / "trouble.tar.gz"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with tarfile.open(file) as archive:
        files = {each.name.partition("/")[2]: archive.extractfile(each).read().decode() for each in archive}  # type: ignore[union-attr]
    assert json.loads(files["manifest.json"])["missing"] == []
    assert "busy" in files["virtual/pods.yaml"]
    assert "busy" in files["physical/cluster-1/pods.yaml"]
    assert any(name.startswith("logs/tapestry-syncer-cluster-1") for name in files)
    assert "leader is" in files["doctor.txt"]
    everything = "\n".join(files.values())
    tokens = [json.loads(each.read_text())["token"] for each in folder.glob(".tapestry/*/cluster.json")]
    assert len(tokens) == 2
    for secret in ("correct-horse-battery-staple", "eyJhbGciOi", "BEGIN CERTIFICATE", "LS0tLS1CRUdJTi", *tokens):
        assert secret not in everything


def test_kubectl_finds_and_completes_the_plugin(shell: Shell) -> None:
    kubeconfig = "KUBECONFIG=$PWD/.tapestry/virtual/kubeconfig"
    assert "kubectl-tapestry" in shell("kubectl plugin list 2>/dev/null")
    assert "cluster-1" in shell(f"{kubeconfig} kubectl tapestry status")
    assert shell("kubectl tapestry status --help").startswith("Usage: kubectl tapestry status [OPTIONS]\n")
    assert shell("kubectl __complete tapestry sta 2>/dev/null").startswith("status\t")
    assert shell(f"{kubeconfig} kubectl __complete tapestry unjoin c 2>/dev/null") == "cluster-1\n:4\n"
