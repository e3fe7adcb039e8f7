"""What every tier of the tests shares: real Kubernetes, where a test asks for it.

A test that needs a control plane asks for a fixture below and is marked `kubernetes` by that.  It has a namespace of
its own, so tests do not see each other.  One that kills, pauses or reconfigures something starts a `ControlPlane` of
its own.
"""

import os
import secrets
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.local.control_planes import kubelet_flags
from tapestry.local.kubernetes import AssetsMissing, ControlPlane, find_assets

# A deadline for one example would be an assertion on a latency under a second, on a machine that others use too.
settings.register_profile("unhurried", settings(), deadline=None)
settings.load_profile("unhurried")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "kube_assets" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kubernetes)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the tests measured, and one line for each reason to skip, however many tests it took out."""
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name == "figure":
                terminalreporter.write_line(str(value))
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for reason, count in reasons.items():
        terminalreporter.write_line(f"skipped {count}: {reason}", yellow=True)


@pytest.fixture(scope="session")
def kube_assets() -> Path:
    """The folder with the programs of a real Kubernetes.  Without one a test is skipped, but fails in CI."""
    try:
        return find_assets(os.environ)
    except AssetsMissing as error:
        missing = str(error)
    if os.environ.get("CI") == "true":
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


@pytest.fixture(scope="session")
def control_plane(kube_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real kube-apiserver over a real etcd; each worker of a run has one such pair."""
    folder = tmp_path_factory.mktemp("control-plane")
    with ControlPlane(folder, kube_assets, fsync=False, flags=kubelet_flags(folder)) as plane:
        yield plane


@pytest.fixture
def kubeconfig(control_plane: ControlPlane) -> Path:
    """The file that opens the control plane to an administrator."""
    return control_plane.kubeconfig


@pytest.fixture
async def client(kubeconfig: Path) -> AsyncIterator[Client]:
    """A client of the control plane."""
    opened = Client(HttpTransport(load_access([kubeconfig], environ=os.environ)))
    yield opened
    await opened.close()


Kubectl = Callable[..., str]


@pytest.fixture(scope="session")
def kubectl(kube_assets: Path, control_plane: ControlPlane) -> Kubectl:
    """kubectl at the control plane, unless it is told otherwise."""
    return kubectl_of(kube_assets, control_plane.kubeconfig)


def kubectl_of(kube_assets: Path, default: Path) -> Kubectl:
    """Runs kubectl and gives what it printed: a second opinion that shares no code with us.

    Another cluster is reached by `kubeconfig=`, and `stdin=` is what `-f -` reads.
    """

    def run(*arguments: str, kubeconfig: Path = default, stdin: str = "") -> str:
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
