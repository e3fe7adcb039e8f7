"""Authentication, authorization and audit of our API server, tested with kubectl."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .servers import TAPESTRY, OwnServer

Kubectl = Callable[..., str]
SECRET = "hunter2-of-the-trials"
SAMPLE = Path(__file__).parents[2] / "examples" / "at" / "sample.yaml"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    folder = tmp_path_factory.mktemp("users")
    flags = ("--kubectl-ephemeral-token", "--audit-log-path", str(folder / "audit.log"))
    with OwnServer(folder / "data", *flags) as server:
        yield server


def tapestry(server: OwnServer, *arguments: str) -> str:
    command = [TAPESTRY, "token", arguments[0], "--file-rootpath", server.folder, *arguments[1:]]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def by(kube_assets: Path, server: OwnServer, token: str) -> Kubectl:
    def run(*arguments: str, fails: bool = False) -> str:
        command = [kube_assets / "kubectl", "--kubeconfig", "/dev/null", "--cache-dir", server.folder / "cache"]
        command += ["-s", server.url, "--certificate-authority", server.ca, "--token", token, "--request-timeout=30s"]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    return run


def test_expiring_token_works_until_it_is_revoked(kube_assets: Path, server: OwnServer) -> None:
    token = tapestry(server, "create", "--user", "jane", "--group", "devs", "--ttl", "10m")
    jane = by(kube_assets, server, token)
    output = jane("auth", "whoami", "-o", "json")
    assert json.loads(output)["status"]["userInfo"]["groups"] == ["devs", "system:authenticated"]
    assert token not in tapestry(server, "list")
    tapestry(server, "revoke", token.split(".")[1])
    assert "Unauthorized" in jane("get", "--raw", "/version", fails=True)


def test_kubectl_requires_an_expiring_token(kube_assets: Path, server: OwnServer) -> None:
    assert "tapestry token create" in by(kube_assets, server, server.token)("get", "--raw", "/version", fails=True)


def test_kubectl_without_cached_discovery_prints_what_to_do(
    kube_assets: Path, server: OwnServer, tmp_path: Path
) -> None:
    kubectl, cold = by(kube_assets, server, server.token), ("--cache-dir", str(tmp_path / "cold"))
    for arguments in (("get", "pods"), ("apply", "--server-side", "-f", str(SAMPLE)), ("api-resources",)):
        output = kubectl(*cold, *arguments, fails=True)
        assert "run `tapestry token create --user NAME` on the machine of the server" in output
        assert "unknown" not in output


def test_roles_apply_to_users_and_escalation_is_refused(kube_assets: Path, server: OwnServer) -> None:
    root = by(kube_assets, server, tapestry(server, "create", "--user", "root", "--group", "system:masters"))
    joe = by(kube_assets, server, tapestry(server, "create", "--user", "joe"))
    assert joe("auth", "can-i", "create", "deployments", fails=True) == ""
    root("create", "rolebinding", "joe", "--clusterrole=admin", "--user=joe")
    assert joe("auth", "can-i", "create", "deployments") == "yes\n"
    assert joe("create", "rolebinding", "friend", "--clusterrole=view", "--user=ann").endswith("created\n")
    refused = joe("create", "clusterrolebinding", "own", "--clusterrole=cluster-admin", "--user=joe", fails=True)
    assert 'User "joe" cannot create resource "clusterrolebindings"' in refused
    refused = joe("create", "role", "nodes", "--verb=get", "--resource=nodes", fails=True)
    assert "is attempting to grant RBAC permissions not currently held" in refused
    assert root("--as=ann", "auth", "can-i", "list", "pods") == "yes\n"
    assert 'cannot impersonate resource "users"' in joe("--as=ann", "get", "pods", fails=True)


def test_audit_log_contains_requests_but_no_secrets(kube_assets: Path, server: OwnServer) -> None:
    token = tapestry(server, "create", "--user", "auditor", "--group", "system:masters")
    by(kube_assets, server, token)("create", "secret", "generic", "s", f"--from-literal=password={SECRET}")
    server.stop()
    text = (server.folder.parent / "audit.log").read_text()
    server.start()
    events = [json.loads(line) for line in text.splitlines()]
    made = [each for each in events if each["verb"] == "create" and each["user"]["username"] == "auditor"]
    assert [each["objectRef"]["name"] for each in made if each["stage"] == "ResponseComplete"] == ["s"]
    assert any(each["user"]["username"] == "system:apiserver" for each in events)
    assert SECRET not in text
    assert token.rpartition(".")[2] not in text
