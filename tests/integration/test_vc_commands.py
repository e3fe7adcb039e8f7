"""`tapestry vc` against the service of virtual clusters as a process."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tapestry.local.kubernetes import free_ports

from .servers import PlanesProcess

TAPESTRY = str(Path(sys.executable).with_name("tapestry"))
HOME_CONTEXT = """
apiVersion: v1
kind: Config
current-context: home
clusters: [{name: home, cluster: {server: "https://192.0.2.1"}}]
users: [{name: me, user: {token: mine}}]
contexts: [{name: home, context: {cluster: home, user: me}}]
"""
MANIFEST = """
apiVersion: tapestry.io/v1alpha1
kind: VCluster
metadata: {name: blue, namespace: shop, labels: {team: web}}
spec: {resources: {cpuLimit: "1"}}
"""


@dataclass(frozen=True)
class CommandLine:
    folder: Path
    environ: dict[str, str]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [TAPESTRY, *words],
            env=self.environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    def output(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    @property
    def kubeconfig(self) -> Path:
        return self.folder / ".kube" / "config"


@pytest.fixture
def command_line(tmp_path: Path) -> Iterator[CommandLine]:
    """Commands of an administrator, with the address of a service in a configuration file."""
    (port,) = free_ports(1)
    home = tmp_path / "home"
    (home / ".kube").mkdir(parents=True)
    (home / ".kube" / "config").write_text(HOME_CONTEXT)
    (home / "vcluster.yaml").write_text(MANIFEST)
    with PlanesProcess(tmp_path / "planes", "--rest-address", f"127.0.0.1:{port}") as process:
        process.wait_for_output("served by rest")
        found = re.search(r"tap_\w+", process.output.read_text())
        assert found is not None
        file = home / ".config" / "tapestry" / "service.yaml"
        file.parent.mkdir(parents=True)
        file.touch(mode=0o600)
        authority = str(process.folder / "pki" / "ca.crt")
        settings = {"server": f"https://127.0.0.1:{port}", "key": found[0], "certificateAuthority": authority}
        file.write_text(yaml.safe_dump({**settings, "namespace": "shop"}))
        known = {name: text for name, text in os.environ.items() if not name.startswith(("KUBE", "TAPESTRY"))}
        yield CommandLine(home, {**known, "HOME": str(home)})


@pytest.mark.timeout(180)
def test_commands_for_the_life_of_a_cluster(command_line: CommandLine) -> None:
    run, output = command_line.run, command_line.output
    assert "+  resources:" in output("vc", "create", "-f", "vcluster.yaml", "--dry-run")
    created = run("vc", "create", "-f", "vcluster.yaml", "--connect")
    assert "virtual cluster shop/blue is Running at https://" in created.stdout, created.stderr
    assert "WaitReady: Done" in created.stderr
    assert "kube-system" in output("k", "get", "namespaces")
    assert "context home is current" in output("vc", "disconnect")
    before = command_line.kubeconfig.read_bytes()
    assert "kube-system" in output("vc", "connect", "blue", "--", TAPESTRY, "k", "get", "namespaces")
    assert command_line.kubeconfig.read_bytes() == before

    output("vc", "update", "blue", "--set", "resources.cpuLimit=2", "--label", "tier=front")
    found = yaml.safe_load(output("vc", "get", "blue", "-o", "yaml"))
    assert (found["spec"]["resources"], found["labels"]) == ({"cpuLimit": "2"}, {"team": "web", "tier": "front"})
    rejected = run("vc", "update", "blue", "--set", "enableHa=true", "--dry-run")
    assert (rejected.returncode, "spec.enableHa: must be false" in rejected.stderr) == (1, True)
    assert "is Running" in output("vc", "scale", "blue", "--cpu-limit", "4")
    assert "is Suspended" in output("vc", "suspend", "blue")
    assert "is Running" in output("vc", "resume", "blue")
    assert "is Running" in output("vc", "wait", "blue", "--timeout", "30s")
    assert "nothing is wrong" in output("vc", "diagnose", "blue")

    assert "shop/blue deleted" in output("vc", "delete", "blue")
    assert "there are no virtual clusters" in output("vc", "list", "-A")
    assert yaml.safe_load(command_line.kubeconfig.read_bytes()) == yaml.safe_load(HOME_CONTEXT)
    verbs = [line.split()[1] for line in output("op", "list").splitlines()[1:]]
    assert verbs == ["Delete", "Resume", "Suspend", "Scale", "Update", "Create"]
    assert "records are complete" in output("audit", "verify")


@pytest.mark.timeout(120)
def test_kubectl_renews_credentials_by_itself(command_line: CommandLine, kube_assets: Path) -> None:
    def namespaces() -> str:
        command = [kube_assets / "kubectl", "get", "namespaces"]
        done = subprocess.run(
            command, env=command_line.environ, cwd="/", capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout + done.stderr

    command_line.output("vc", "create", "blue", "--connect")
    before = command_line.kubeconfig.read_text()
    assert before.count("token:") == 1  # that of the context home
    assert "kube-system" in namespaces()
    (file,) = (command_line.folder / ".cache" / "tapestry" / "credentials").iterdir()
    issued = json.loads(file.read_text())
    file.write_text(json.dumps({"token": "expired", "expires": "2020-01-01T00:00:00Z"}))
    assert "kube-system" in namespaces()
    assert json.loads(file.read_text())["token"] not in (issued["token"], "expired")
    assert "kube-system" in command_line.output("k", "get", "namespaces")
    command_line.output("vc", "delete", "blue")
    command_line.output("vc", "create", "blue")
    command_line.kubeconfig.write_text(before)
    file.unlink()
    assert "shop/blue has moved or is another cluster" in namespaces()


@pytest.mark.timeout(120)
def test_scoped_key_and_quota_limit_a_user(command_line: CommandLine) -> None:
    command_line.output("project", "create", "web", "--member", "ada=editor")
    command_line.output("quota", "set", "web", "--limit", "vclusters=1")
    key = command_line.output("key", "create", "--principal", "ada", "--scope", "web=editor").strip()
    ada = CommandLine(command_line.folder, {**command_line.environ, "TAPESTRY_KEY": key, "TAPESTRY_NAMESPACE": "web"})
    ada.output("vc", "create", "blue", "--project", "web")
    exceeded = ada.run("vc", "create", "green", "--project", "web")
    assert (exceeded.returncode, "QUOTA_EXCEEDED" in exceeded.stderr) == (1, True)
    assert "PERMISSION_DENIED" in ada.run("vc", "delete", "blue").stderr  # only an admin of the project deletes
    assert "web" in ada.output("project", "list")
    assert "vclusters 1/1" in command_line.output("quota", "get", "web")
    command_line.output("vc", "delete", "blue", "-n", "web")
