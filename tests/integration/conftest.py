"""Clusters for the tests of the syncer, with our kinds installed in each; and two API servers side by side."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tapestry.local.kubernetes import ControlPlane

from .lending import Lending, install_kinds, lending
from .sides import Ours, Theirs, our_side, their_side


@pytest.fixture(scope="module")
def virtual_plane(control_plane: ControlPlane) -> ControlPlane:
    """The virtual cluster: the control plane that every test shares."""
    asyncio.run(install_kinds(control_plane))
    return control_plane


@pytest.fixture(scope="module")
def physical_plane(kube_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The physical cluster."""
    with ControlPlane(tmp_path_factory.mktemp("physical"), kube_assets, fsync=False) as plane:
        asyncio.run(install_kinds(plane))
        yield plane


@pytest.fixture(scope="module")
def third_plane(kube_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One cluster more: another physical or another virtual one."""
    with ControlPlane(tmp_path_factory.mktemp("third"), kube_assets, fsync=False) as plane:
        asyncio.run(install_kinds(plane))
        yield plane


@pytest.fixture
async def site(virtual_plane: ControlPlane, physical_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Lending]:
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
