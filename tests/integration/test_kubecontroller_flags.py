"""`tapestry apiserver` with the flags of kubecontroller, as its document writes them, and kubectl."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from at.controller import AT
from tapestry.kube.crds import crd

from .etcds import Etcd
from .servers import TAPESTRY, OwnServer

# OwnServer adds --token-auth-file and --file-rootpath.
DOCUMENTED = (
    *("--backend=etcd", "--request-timeout=60m", "--unrestricted-update=true", "-v=10"),
    *("--kubectl-disabled=false", "--kubectl-ephemeral-token=false", "--authn-allow-localhost=true"),
)
SAMPLE = Path(__file__).parents[2] / "examples" / "at" / "sample.yaml"


def run(*command: object, stdin: str | None = None, fails: bool = False) -> str:
    done = subprocess.run(list(map(str, command)), input=stdin, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


def test_documented_flags_have_their_documented_effects(kube_assets: Path, tmp_path: Path) -> None:
    with (
        Etcd(kube_assets, tmp_path) as etcd,
        OwnServer(
            tmp_path / "data", *DOCUMENTED, f"--etcd-servers={etcd.url}", "--local-address=127.0.0.1:0"
        ) as server,
    ):
        lines = [json.loads(line) for line in server.log.read_text().splitlines()]
        started = next(line for line in lines if line["message"] == "API server started")
        kubectl = (kube_assets / "kubectl", "--kubeconfig", "/dev/null", "--cache-dir", tmp_path / "cache")
        by_token = (*kubectl, "-s", server.url, "--certificate-authority", server.ca, "--token", server.token)
        local = (*kubectl, "-s", f"http://{started['local']}")

        assert "system:masters" in run(*by_token, "auth", "whoami")  # --token-auth-file
        assert "system:masters" in run(*local, "auth", "whoami")  # --authn-allow-localhost
        run(*local, "apply", "-f", "-", stdin=json.dumps(crd(AT)))
        at = {**yaml.safe_load(SAMPLE.read_text()), "status": {"phase": "Waiting"}}
        phase = (*local, "get", "at", "hello", "-o", "jsonpath={.status.phase}")
        run(*local, "create", "-f", "-", stdin=json.dumps(at))
        assert run(*phase) == "Waiting"  # --unrestricted-update
        run(*local, "patch", "at", "hello", "--type=merge", "-p", '{"status":{"phase":"Failed"}}')
        assert run(*phase) == "Failed"
    assert '"level":"debug"' in server.log.read_text()  # -v=10


@pytest.fixture(scope="module")
def disabled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    with OwnServer(tmp_path_factory.mktemp("disabled") / "data", "--kubectl-disabled=true") as server:
        yield server


@pytest.mark.parametrize("arguments", [("get", "pods"), ("get", "--raw", "/version")])
def test_disabled_kubectl_says_so(kube_assets: Path, disabled: OwnServer, arguments: tuple[str, ...]) -> None:
    kubectl = (kube_assets / "kubectl", "--kubeconfig", disabled.kubeconfig, "--cache-dir", disabled.folder / "cache")
    output = run(*kubectl, *arguments, fails=True)
    assert "this server does not serve kubectl (--kubectl-disabled); use `tapestry k` or another client" in output


def test_other_clients_work_with_disabled_kubectl(disabled: OwnServer) -> None:
    assert "kube-system" in run(TAPESTRY, "k", "get", "namespaces", "--kubeconfig", disabled.kubeconfig)
