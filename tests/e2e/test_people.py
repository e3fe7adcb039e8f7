"""`tapestry k` and `tapestry doctor`, typed in a folder where `tapestry up` runs a small world."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from .worlds import LONGEST, TAPESTRY, up

Typed = Callable[..., str]
SETTINGS = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "1"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a world is up."""
    here = tmp_path_factory.mktemp("world")
    with up(here / ".tapestry", "--clusters", "1", "--nodes", "1"):
        yield here


@pytest.fixture
def typed(folder: Path) -> Typed:
    """What a command prints, and how it ends."""
    environment = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}

    def run(*words: str, code: int = 0, incoming: str = "") -> str:
        command = [TAPESTRY, *words]
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            input=incoming,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def test_a_deployment_is_made_waited_for_shown_and_deleted(typed: Typed) -> None:
    assert typed("k", "create", "deployment", "web", "--image", "nginx", "--replicas", "2") == (
        "deployment.apps/web created\n"
    )
    assert "condition met" in typed("k", "wait", "deploy/web", "--for", "condition=Available", "--timeout", "60s")
    assert typed("k", "get", "pods", "-l", "app=web").count("Running") == 2
    assert "vnode-cluster-1" in typed("k", "get", "pods", "-A", "-o", "wide")
    assert "ScalingReplicaSet" in typed("k", "describe", "deploy", "web")
    assert typed("k", "delete", "deploy", "web") == "deployment.apps/web deleted\n"
    assert typed("k", "get", "deploy") == "none found in namespace default\n"


def test_files_are_applied_and_deleted(typed: Typed) -> None:
    text = yaml.safe_dump(SETTINGS)
    assert typed("k", "apply", "-f", "-", incoming=text) == "configmap/settings created\n"
    assert typed("k", "apply", "-f", "-", incoming=text) == "configmap/settings unchanged\n"
    assert yaml.safe_load(typed("k", "get", "cm/settings", "-o", "yaml"))["data"] == {"a": "1"}
    assert typed("k", "delete", "-f", "-", incoming=text) == "configmap/settings deleted\n"


def test_the_manager_can_be_heard(typed: Typed) -> None:
    assert typed("k", "logs", "-n", "tapestry-system", "deployment/tapestry-manager", "--tail", "1").count("\n") == 1


def test_the_log_of_a_pod_on_a_virtual_node_comes_from_below(typed: Typed) -> None:
    typed("k", "create", "deployment", "talk", "--image", "nginx")
    typed("k", "wait", "deploy/talk", "--for", "condition=Available", "--timeout", "60s")
    for flags in ((), ("-f",), ("--tail", "5")):
        (line,) = typed("k", "logs", "deployment/talk", *flags).splitlines()
        assert re.fullmatch(r"tapestry-leased/talk-\S+ is simulated: nothing runs in talk, .*", line)
    typed("k", "delete", "deploy", "talk")


def test_what_goes_wrong_is_one_line_and_a_code(typed: Typed) -> None:
    for words in (("get", "gizmos"), ("get", "pod", "nobody"), ("delete", "pod/nobody"), ("apply", "-f", "nowhere")):
        (line,) = typed("k", *words, code=1).splitlines()
        assert line.startswith("Error: ")
    typed("k", "wait", "cb/cluster-1", "--for", "jsonpath={.spec.clusterID}=another", "--timeout", "100ms", code=1)
    typed("k", "wait", "cb/cluster-1", code=2)
    assert "specify the objects" in typed("k", "delete", code=2)


def test_the_doctor_finds_nothing_wrong_where_nothing_is_and_says_what_to_do_elsewhere(
    typed: Typed, folder: Path
) -> None:
    assert '"wrong"' not in typed("doctor", "-o", "json")
    told = typed("doctor", "--kubeconfig", str(folder / ".tapestry" / "cluster-1" / "kubeconfig"), code=1)
    assert "tapestry manifests | tapestry k apply -f -" in told
