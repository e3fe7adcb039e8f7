"""`tapestry top`, `tapestry debug collect` and `kubectl tapestry`, typed in a folder where a small world is up."""

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

from .worlds import LONGEST, ROOT, up

ASKS_FOR_HALF_A_CORE = """
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
Typed = Callable[[str], str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a world is up, and our programs are in `bin`, made as installers make them."""
    here = tmp_path_factory.mktemp("world")
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name, target in scripts.items():
        module, _, function = target.partition(":")
        file = here / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!{sys.executable}\nfrom {module} import {function}\n{function}()\n")
        file.chmod(0o755)
    with up(here / ".tapestry", "--clusters", "1", "--nodes", "2"):
        yield here


@pytest.fixture(scope="module")
def typed(folder: Path, kube_assets: Path) -> Typed:
    """What a shell in that folder shows."""
    known = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
    path = f"{folder / 'bin'}:{kube_assets}:{os.environ['PATH']}"

    def run(line: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=folder,
            env={**known, "PATH": path},
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def busy(folder: Path, typed: Typed) -> None:
    (folder / "busy.yaml").write_text(ASKS_FOR_HALF_A_CORE)
    typed("tapestry k apply -f busy.yaml && tapestry k wait deploy/busy --for condition=Available --timeout 60s")


def test_in_the_folder_of_a_world_nothing_has_to_be_said(typed: Typed) -> None:
    assert "cluster-1" in typed("tapestry status")
    assert "vnode-cluster-1-cluster-1-2" in typed("tapestry tree")
    assert "cluster-1" in typed("tapestry top")


@pytest.mark.usefixtures("busy")
def test_top_shows_what_is_leased_requested_and_used_of_it(typed: Typed) -> None:
    (cluster,) = json.loads(typed("tapestry top -o json"))
    assert (cluster["name"], cluster["pods"], cluster["leased"]["cpu"]) == ("cluster-1", 2, "8")
    assert cluster["requested"]["cpu"] == "1"
    assert cluster["used"] == {"cpu": "1", "memory": str(512 << 20)}
    assert typed("tapestry top nodes").count("vnode-cluster-1-") == 2
    assert re.search(r"busy-\S+ +vnode-\S+ +500m/500m +256Mi/256Mi", typed("tapestry top pods"))


@pytest.mark.usefixtures("busy")
def test_rule_7_a_bundle_has_everything_but_secrets(typed: Typed, folder: Path) -> None:
    assert "could not be read" not in typed("tapestry debug collect -o trouble.tar.gz")
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


def test_kubectl_finds_its_plugin_and_completes_it(typed: Typed) -> None:
    kubeconfig = "KUBECONFIG=$PWD/.tapestry/virtual/kubeconfig"
    assert "kubectl-tapestry" in typed("kubectl plugin list 2>/dev/null")
    assert "cluster-1" in typed(f"{kubeconfig} kubectl tapestry status")
    assert typed("kubectl tapestry status --help").startswith("Usage: kubectl tapestry status [OPTIONS]\n")
    assert typed("kubectl __complete tapestry sta 2>/dev/null").startswith("status\t")
    assert typed(f"{kubeconfig} kubectl __complete tapestry unjoin c 2>/dev/null") == "cluster-1\n:4\n"
