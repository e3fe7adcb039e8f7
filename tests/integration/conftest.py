"""Integration tests talk to a real kube-apiserver over a real etcd; each worker of a run has one such pair.

A test has a namespace of its own, so tests do not see each other.  One that kills, pauses or reconfigures something
starts a `ControlPlane` of its own.
"""

import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tapestry.local.kubernetes import ControlPlane

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.kubernetes)


@pytest.fixture(scope="session")
def control_plane(kube_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("control-plane"), kube_assets, fsync=False) as plane:
        yield plane


@pytest.fixture
def kubeconfig(control_plane: ControlPlane) -> Path:
    """The file that opens the control plane to an administrator."""
    return control_plane.kubeconfig


Kubectl = Callable[..., str]


@pytest.fixture(scope="session")
def kubectl(kube_assets: Path, control_plane: ControlPlane) -> Kubectl:
    """Runs kubectl and gives what it printed: a second opinion that shares no code with us.

    Another cluster is reached by `kubeconfig=`, and `stdin=` is what `-f -` reads.
    """

    def run(*arguments: str, kubeconfig: Path = control_plane.kubeconfig, stdin: str = "") -> str:
        done = subprocess.run(
            [kube_assets / "kubectl", *arguments],
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    return run


@pytest.fixture
def namespace(kubectl: Kubectl) -> str:
    """The name of a new namespace.  It goes with the control plane: nothing here empties namespaces."""
    name = f"test-{secrets.token_hex(5)}"
    kubectl("create", "namespace", name)
    return name
