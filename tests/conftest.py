"""Fixtures for all tests: a real Kubernetes control plane, its clients and kubectl.

A test that uses one of these fixtures is marked `kubernetes`.  Each test gets a new namespace, so tests do not see each
other.  A test that kills, pauses or reconfigures a process starts a separate `ControlPlane`.
"""

import gc
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

# A deadline for each example would fail on a busy machine.
settings.register_profile("unhurried", settings(), deadline=None)
settings.load_profile("unhurried")

END_TO_END = Path(__file__).parent / "e2e"
CHARTS = Path(__file__).parent / "golden" / "charts"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need Kubernetes, and let the longest end-to-end tests start first.

    Workers steal from the end of each other's lists, so no worker is left alone with a long test.
    """
    longest: dict[Path, float] = {}
    for item in items:
        if "kube_assets" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kubernetes)
        timeout = item.get_closest_marker("timeout")
        if item.path.is_relative_to(END_TO_END) and not item.get_closest_marker("long"):
            longest[item.path] = max(longest.get(item.path, 0), timeout.args[0] if timeout else 0)
    items.sort(key=lambda item: -longest.get(item.path, -1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the recorded figures and one line for each reason to skip."""
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name == "figure":
                terminalreporter.write_line(str(value))
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for reason, count in reasons.items():
        terminalreporter.write_line(f"skipped {count}: {reason}", yellow=True)


@pytest.fixture(autouse=True)
def _enabled_garbage_collector() -> Iterator[None]:
    """Enable the garbage collector after each test: an API server that handled large requests enables it later."""
    yield
    gc.enable()


def released_chart(name: str) -> str:
    """Return the path of the stored copy of the last released chart."""
    (path,) = CHARTS.glob(f"{name}-[0-9]*.tgz")
    return str(path)


@pytest.fixture(scope="session")
def kube_assets() -> Path:
    """Folder with the Kubernetes programs.  Without it tests are skipped, or fail in CI."""
    try:
        return find_assets(os.environ)
    except AssetsMissing as error:
        missing = str(error)
    if os.environ.get("CI") == "true":
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


def program(assets: Path, name: str, target: str) -> Path:
    """Return a program that only some tiers build.  Tests skip without it, or fail with ALL_PROGRAMS=1 (`make e2e`)."""
    path = assets / name
    if not path.exists():
        (pytest.fail if os.environ.get("ALL_PROGRAMS") else pytest.skip)(f"no {name} in {assets}: run make {target}")
    return path


@pytest.fixture(scope="session")
def control_plane(kube_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real kube-apiserver with etcd, one per pytest worker."""
    folder = tmp_path_factory.mktemp("control-plane")
    with ControlPlane(folder, kube_assets, fsync=False, flags=kubelet_flags(folder)) as plane:
        yield plane


@pytest.fixture
def kubeconfig(control_plane: ControlPlane) -> Path:
    """Administrator kubeconfig of the control plane."""
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
    """kubectl with the control plane as its default."""
    return kubectl_of(kube_assets, control_plane.kubeconfig)


def kubectl_of(kube_assets: Path, default: Path) -> Kubectl:
    """Return a function that runs kubectl and returns its output.

    `kubeconfig=` selects another cluster, and `stdin=` is the input of `-f -`.
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
    """The name of a new namespace.  It is never deleted: no controller here empties namespaces."""
    name = f"test-{secrets.token_hex(5)}"
    kubectl("create", "namespace", name)
    return name
