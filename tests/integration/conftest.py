"""Fixtures that start clusters on Kubernetes and on our API server."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tapestry.client.client import Client
from tapestry.kube.objects import object_named
from tapestry.kube.resources import NAMESPACES
from tapestry.local.kubernetes import ControlPlane

from ..conftest import Kubectl, kubectl_of
from .bound_clusters import BoundClusters, bound_clusters, install_kinds
from .planes import KUBERNETES, OWN, Plane, Start, starts_kubernetes, starts_own
from .servers import ClusterProcess, PlanesProcess
from .sides import Ours, Theirs, our_side, their_side
from .tenant_processes import Setting


@pytest.fixture(scope="session", params=[KUBERNETES, OWN])
def flavour(request: pytest.FixtureRequest) -> str:
    """The API server that this run of a scenario uses."""
    return str(request.param)


@pytest.fixture(scope="session")
def start(flavour: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Function that starts clusters in addition to the shared one."""
    if flavour == "own":
        return starts_own(tmp_path_factory)
    return starts_kubernetes(request.getfixturevalue("kube_assets"), tmp_path_factory)


@pytest.fixture(scope="session")
def own_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """Shared instance of our API server, the counterpart of `control_plane`."""
    with starts_own(tmp_path_factory)("own") as plane:
        yield plane


@pytest.fixture(scope="session")
def shared_plane(flavour: str, request: pytest.FixtureRequest) -> Plane:
    """The cluster that all tests of this flavour share.  Tests must not damage it."""
    return request.getfixturevalue("control_plane" if flavour == "kubernetes" else "own_plane")


@pytest.fixture
def kubeconfig(shared_plane: Plane) -> Path:
    """Administrator kubeconfig of the shared cluster."""
    return shared_plane.kubeconfig


@pytest.fixture(scope="session")
def kubectl(kube_assets: Path, shared_plane: Plane) -> Kubectl:
    """kubectl with the shared cluster as its default."""
    return kubectl_of(kube_assets, shared_plane.kubeconfig)


@pytest.fixture
async def namespace(client: Client) -> str:
    """The name of a new namespace.  It is never deleted: no controller here empties namespaces."""
    name = f"test-{secrets.token_hex(5)}"
    await client.create(NAMESPACES, object_named(name))
    return name


@pytest.fixture(scope="module")
def virtual_plane(shared_plane: Plane) -> Plane:
    """The virtual cluster, shared by all tests."""
    asyncio.run(install_kinds(shared_plane))
    return shared_plane


@pytest.fixture(scope="session")
def physical_plane(start: Start) -> Iterator[Plane]:
    """The physical cluster."""
    with start("physical") as plane:
        asyncio.run(install_kinds(plane))
        yield plane


@pytest.fixture(scope="session")
def attended_plane(start: Start) -> Iterator[Plane]:
    """A physical cluster with controllers."""
    with start("attended", controllers=True) as plane:
        asyncio.run(install_kinds(plane))
        yield plane


@pytest.fixture(scope="session")
def third_plane(start: Start) -> Iterator[Plane]:
    """An additional cluster, physical or virtual."""
    with start("third") as plane:
        asyncio.run(install_kinds(plane))
        yield plane


@pytest.fixture
async def clusters(virtual_plane: Plane, physical_plane: Plane, tmp_path: Path) -> AsyncIterator[BoundClusters]:
    """A new binding between the two clusters.  Its syncer is not started."""
    async with bound_clusters(virtual_plane, physical_plane, tmp_path) as made:
        yield made


@pytest.fixture(scope="session")
def helm(kube_assets: Path) -> Path:
    program = kube_assets / "helm"
    if not program.exists():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(
            "helm is not there: make client-assets builds it"
        )
    return program


@pytest.fixture
async def ours(tmp_path: Path) -> AsyncIterator[Ours]:
    """Our API server, in this process."""
    async with our_side(tmp_path) as side:
        yield side


@pytest.fixture
async def theirs(control_plane: ControlPlane) -> AsyncIterator[Theirs]:
    """The shared kube-apiserver, called like `ours`."""
    async with their_side(control_plane) as side:
        yield side


@pytest.fixture
def setting(kube_assets: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Setting]:
    """Processes of a tenant: planes, and a host cluster with two nodes, which may get more options by a parameter."""
    options = getattr(request, "param", ())
    with (
        PlanesProcess(tmp_path / "planes") as planes,
        ClusterProcess(tmp_path / "host", "--nodes", "2", *options) as host,
    ):
        yield Setting(planes, host, kubectl_of(kube_assets, host.kubeconfig), tmp_path / "plane.kubeconfig")
