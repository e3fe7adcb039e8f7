"""`tapestry k` and `tapestry doctor` in the folder of a running world."""

import asyncio
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from .worlds import TAPESTRY, TIMEOUT_SECONDS, running_world

Command = Callable[..., str]
POLL_SECONDS = 1.0
SETTINGS = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "1"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder of a running world."""
    root = tmp_path_factory.mktemp("world")
    with running_world(root / ".tapestry", "--clusters", "1", "--nodes", "1"):
        yield root


@pytest.fixture
def tapestry(folder: Path) -> Command:
    """Function that runs a command, checks its exit code and returns its output."""
    environment = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}

    def run(*words: str, code: int = 0, stdin: str = "") -> str:
        command = [TAPESTRY, *words]
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def test_deployment_can_be_created_listed_and_deleted(tapestry: Command) -> None:
    assert tapestry("k", "create", "deployment", "web", "--image", "nginx", "--replicas", "2") == (
        "deployment.apps/web created\n"
    )
    assert "condition met" in tapestry("k", "wait", "deploy/web", "--for", "condition=Available", "--timeout", "60s")
    assert tapestry("k", "get", "pods", "-l", "app=web").count("Running") == 2
    assert "vnode-cluster-1" in tapestry("k", "get", "pods", "-A", "-o", "wide")
    assert "ScalingReplicaSet" in tapestry("k", "describe", "deploy", "web")
    assert tapestry("k", "delete", "deploy", "web") == "deployment.apps/web deleted\n"
    assert tapestry("k", "get", "deploy") == "none found in namespace default\n"


def test_files_are_applied_and_deleted(tapestry: Command) -> None:
    text = yaml.safe_dump(SETTINGS)
    assert tapestry("k", "apply", "-f", "-", stdin=text) == "configmap/settings created\n"
    assert tapestry("k", "apply", "-f", "-", stdin=text) == "configmap/settings unchanged\n"
    assert yaml.safe_load(tapestry("k", "get", "cm/settings", "-o", "yaml"))["data"] == {"a": "1"}
    assert tapestry("k", "delete", "-f", "-", stdin=text) == "configmap/settings deleted\n"


def test_logs_of_the_manager_are_readable(tapestry: Command) -> None:
    assert tapestry("k", "logs", "-n", "tapestry-system", "deployment/tapestry-manager", "--tail", "1").count("\n") == 1


def test_pod_log_comes_from_physical_cluster(tapestry: Command) -> None:
    tapestry("k", "create", "deployment", "talk", "--image", "nginx")
    tapestry("k", "wait", "deploy/talk", "--for", "condition=Available", "--timeout", "60s")
    for flags in ((), ("-f",), ("--tail", "5")):
        (line,) = tapestry("k", "logs", "deployment/talk", *flags).splitlines()
        assert re.fullmatch(r"tapestry-leased/talk-\S+ is simulated: nothing runs in talk, .*", line)
    tapestry("k", "delete", "deploy", "talk")


async def wait_for_output(run: Callable[[], str], pattern: str) -> None:
    """Repeat a command until its output matches: usage is measured and cached in intervals of ten seconds."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            if re.search(pattern, await asyncio.to_thread(run), re.MULTILINE):
                return
            await asyncio.sleep(POLL_SECONDS)


async def test_top_shows_virtual_nodes_and_leased_pods(tapestry: Command) -> None:
    tapestry("k", "create", "deployment", "used", "--image", "nginx", "--requests", "cpu=250m,memory=64Mi")
    tapestry("k", "wait", "deploy/used", "--for", "condition=Available", "--timeout", "60s")
    await wait_for_output(lambda: tapestry("k", "top", "pods"), r"^used-\S+ +250m +64Mi$")
    nodes = tapestry("k", "top", "nodes")
    assert re.search(r"^vnode-cluster-1-\S+ +\d+m +\d+% +\d+Mi +\d+%$", nodes, re.MULTILINE), nodes
    assert re.search(r"^default +used-\S+ +250m +64Mi$", tapestry("k", "top", "pods", "-A"), re.MULTILINE)
    tapestry("k", "delete", "deploy", "used")


AUTOSCALER = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "load"},
    "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "load"},
        "maxReplicas": 2,
        "metrics": [
            {
                "type": "Resource",
                "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}},
            }
        ],
    },
}
"""Simulated pods use what they request, so their utilization is 100%."""


def test_autoscaler_follows_the_usage_of_leased_pods(tapestry: Command) -> None:
    tapestry("k", "create", "deployment", "load", "--image", "nginx", "--requests", "cpu=50m")
    tapestry("k", "apply", "-f", "-", stdin=yaml.safe_dump(AUTOSCALER))
    tapestry("k", "wait", "deploy/load", "--for", "jsonpath={.status.readyReplicas}=2", "--timeout", "100s")
    assert "cpu resource utilization (percentage of request) above target" in tapestry("k", "describe", "hpa", "load")
    for kind in ("hpa", "deploy"):
        tapestry("k", "delete", kind, "load")


def test_errors_are_one_line_with_exit_code(tapestry: Command) -> None:
    for words in (("get", "gizmos"), ("get", "pod", "nobody"), ("delete", "pod/nobody"), ("apply", "-f", "nowhere")):
        (line,) = tapestry("k", *words, code=1).splitlines()
        assert line.startswith("Error: ")
    tapestry("k", "wait", "cb/cluster-1", "--for", "jsonpath={.spec.clusterID}=another", "--timeout", "100ms", code=1)
    tapestry("k", "wait", "cb/cluster-1", code=2)
    assert "specify the objects" in tapestry("k", "delete", code=2)


def test_apply_names_a_misspelt_field(tapestry: Command) -> None:
    misspelt = yaml.safe_dump({**AUTOSCALER, "spec": {**AUTOSCALER["spec"], "maxReplica": 3}})
    (line,) = tapestry("k", "apply", "-f", "-", stdin=misspelt, code=1).splitlines()
    assert line.startswith("Error: ")
    assert ".spec.maxReplica: field not declared in schema" in line
    assert "Unknown" not in line


def test_doctor_passes_healthy_world_and_suggests_installation(tapestry: Command, folder: Path) -> None:
    assert '"wrong"' not in tapestry("doctor", "-o", "json")
    output = tapestry("doctor", "--kubeconfig", str(folder / ".tapestry" / "cluster-1" / "kubeconfig"), code=1)
    assert "tapestry manifests --image IMAGE | tapestry k apply -f -" in output
