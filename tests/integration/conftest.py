"""Clusters for scenarios, over Kubernetes and over our API server; and the two side by side."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tapestry.client.client import Client
from tapestry.kube.objects import object_named
from tapestry.kube.resources import NAMESPACES
from tapestry.local.kubernetes import ControlPlane

from ..conftest import Kubectl, kubectl_of
from .lending import Lending, install_kinds, lending
from .planes import KUBERNETES, OWN, Plane, Start, starts_kubernetes, starts_own
from .sides import Ours, Theirs, our_side, their_side


@pytest.fixture(scope="session", params=[KUBERNETES, OWN])
def flavour(request: pytest.FixtureRequest) -> str:
    """Whose API server this run of a scenario is over."""
    return str(request.param)


@pytest.fixture(scope="session")
def start(flavour: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Starts clusters beside the one that is shared."""
    if flavour == "own":
        return starts_own(tmp_path_factory)
    return starts_kubernetes(request.getfixturevalue("kube_assets"), tmp_path_factory)


@pytest.fixture(scope="session")
def own_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """What `control_plane` is for Kubernetes: an API server of ours that tests share."""
    with starts_own(tmp_path_factory)("own") as plane:
        yield plane


@pytest.fixture(scope="session")
def shared_plane(flavour: str, request: pytest.FixtureRequest) -> Plane:
    """The cluster that every test of this flavour shares, and none hurts."""
    return request.getfixturevalue("control_plane" if flavour == "kubernetes" else "own_plane")


@pytest.fixture
def kubeconfig(shared_plane: Plane) -> Path:
    """The file that opens the shared cluster to an administrator."""
    return shared_plane.kubeconfig


@pytest.fixture(scope="session")
def kubectl(kube_assets: Path, shared_plane: Plane) -> Kubectl:
    """kubectl at the shared cluster, unless it is told otherwise."""
    return kubectl_of(kube_assets, shared_plane.kubeconfig)


@pytest.fixture
async def namespace(client: Client) -> str:
    """The name of a new namespace.  It goes with its cluster: nothing here empties namespaces."""
    name = f"test-{secrets.token_hex(5)}"
    await client.create(NAMESPACES, object_named(name))
    return name


@pytest.fixture(scope="module")
def virtual_plane(shared_plane: Plane) -> Plane:
    """The virtual cluster: the one that every test shares."""
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
    """One cluster more: another physical or another virtual one."""
    with start("third") as plane:
        asyncio.run(install_kinds(plane))
        yield plane


@pytest.fixture
async def site(virtual_plane: Plane, physical_plane: Plane, tmp_path: Path) -> AsyncIterator[Lending]:
    """A binding of its own between the two; whose syncer does not run yet."""
    async with lending(virtual_plane, physical_plane, tmp_path) as made:
        yield made


@pytest.fixture
async def ours(tmp_path: Path) -> AsyncIterator[Ours]:
    """An API server of ours, in this process."""
    async with our_side(tmp_path) as side:
        yield side


@pytest.fixture
async def theirs(control_plane: ControlPlane) -> AsyncIterator[Theirs]:
    """The kube-apiserver that every test shares, to be asked in the same way."""
    async with their_side(control_plane) as side:
        yield side
