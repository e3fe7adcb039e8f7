"""A generated controller: its tests pass unchanged, and it works with the permissions that it ships."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from smells import command_blocks
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.kube.objects import value_at
from tapestry.kube.resources import CONFIGMAPS, LEASES, Resource

from ..conftest import Kubectl

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "shipping-controllers.md"
TAPESTRY = Path(sys.executable).with_name("tapestry")
RESOURCE = Resource("storage.example.com", "v1alpha1", "DataBackup", "databackups")
NAMESPACE = "data-backup-system"
MAX_SECONDS = 30.0
"""From the command to passed tests."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("project")
    run(TAPESTRY, "new", "controller", "data-backup", "--group", RESOURCE.group, cwd=parent)
    return parent / "data-backup"


@pytest.fixture(scope="module")
def environment(project: Path) -> dict[str, str]:
    """Return an environment in which the project is installed, apart from the environment of these tests."""
    packages = project.parent / "packages"
    pip = (sys.executable, "-m", "pip", "--quiet", "install", "--no-deps", "--no-build-isolation")
    run(*pip, "--target", packages, project)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")])}


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_generated_tests_pass_unchanged_within_thirty_seconds(tmp_path: Path) -> None:
    (block,) = command_blocks(GUIDE.read_text())
    path = os.pathsep.join([str(TAPESTRY.parent), os.environ["PATH"]])
    begun = time.monotonic()
    output = run("bash", "-e", "-c", block.script, cwd=tmp_path, env={**os.environ, "PATH": path})
    assert "2 passed" in output
    assert time.monotonic() - begun < MAX_SECONDS


@pytest.fixture
async def token(project: Path, environment: dict[str, str], client: Client, kubectl: Kubectl) -> str:
    """Install the kind and the manifests.  Return a token of the service account."""
    kubectl("apply", "-f", "-", stdin=run(TAPESTRY, "crd", env=environment))
    kubectl("apply", "-f", str(project / "deploy"))
    kubectl("wait", "--for=condition=Established", f"crd/{RESOURCE.name}")
    return (await client.request_token("data-backup", NAMESPACE))["token"]


@pytest.fixture
def process(
    project: Path, environment: dict[str, str], token: str, kubeconfig: Path, tmp_path: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command of the Deployment as its service account."""
    access = yaml.safe_load(kubeconfig.read_text())
    access["users"] = [{"name": user["name"], "user": {"token": token}} for user in access["users"]]
    own = tmp_path / "kubeconfig"
    own.write_text(yaml.safe_dump(access))
    deployment = yaml.safe_load((project / "deploy" / "2-deployment.yaml").read_text())
    (container,) = value_at(deployment, "spec", "template", "spec", "containers")
    variables = {each["name"]: each.get("value", NAMESPACE) for each in container["env"]}
    listeners = ("--metrics-bind-address=127.0.0.1:0", "--health-probe-bind-address=127.0.0.1:0")
    command = [TAPESTRY, *container["args"], *listeners, "--kubeconfig", own]
    process = subprocess.Popen(command, env=environment | variables)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def test_shipped_permissions_suffice(
    process: subprocess.Popen[bytes], project: Path, client: Client, kubectl: Kubectl, namespace: str
) -> None:
    sample = (project / "sample.yaml").read_text().replace("namespace: default", f"namespace: {namespace}")
    kubectl("apply", "-f", "-", stdin=sample)
    await wait_for(
        client, RESOURCE, "hello", namespace, until=lambda obj: value_at(obj, "status", "configMap") == "hello"
    )
    kubectl("patch", "databackup", "hello", "-n", namespace, "--type=merge", "-p", '{"spec":{"message":"again"}}')
    changed = lambda obj: value_at(obj, "data", "message") == "again"  # noqa: E731
    await wait_for(client, CONFIGMAPS, "hello", namespace, until=changed)
    lease = await client.get(LEASES, "data-backup", NAMESPACE)
    assert lease["spec"]["holderIdentity"]
    process.terminate()
    assert process.wait(30) == 0
