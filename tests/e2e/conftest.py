"""Fixtures: physical clusters with real nodes, for tests that run containers."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tapestry.local.control_planes import front_proxy_flags, kubelet_flags

from .clusters import Cluster, PhysicalCluster, control_plane_of
from .images import Contents, write_images
from .nodes import Kit, RealNode, missing_requirements, network


@pytest.fixture(scope="session")
def node_kit(kube_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Kit:
    """Files for real nodes. If a requirement is missing, tests are skipped, but fail in CI."""
    if problem := missing_requirements(kube_assets):
        if os.environ.get("CI") == "true":
            pytest.fail(problem, pytrace=False)
        pytest.skip(problem)
    image = tmp_path_factory.mktemp("image") / "image.tar"
    write_images(image, Contents(Path(shutil.which("busybox") or ""), (kube_assets / "kubectl",)))
    return Kit(kube_assets, image)


@pytest.fixture(scope="module")
def node_network(node_kit: Kit) -> Iterator[None]:
    """Network of real nodes. Only one test module on this machine has it at a time."""
    with network():
        yield


@contextmanager
def physical_cluster(folder: Path, name: str, number: int, kit: Kit) -> Iterator[PhysicalCluster]:
    """A cluster with a node n1. It needs a `network`."""
    flags = front_proxy_flags(folder / name)
    with (
        control_plane_of(folder / name, kit, flags) as plane,
        RealNode("n1", number, plane, folder / f"{name}-node", kit) as node,
    ):
        yield PhysicalCluster(plane, kit.assets, node)


@pytest.fixture(scope="module")
def host_cluster(
    node_network: None, node_kit: Kit, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PhysicalCluster]:
    """A cluster with a node, for the pods of planes."""
    with physical_cluster(tmp_path_factory.mktemp("host"), "east", 1, node_kit) as cluster:
        cluster.node.wait_until_ready()
        yield cluster


@pytest.fixture(scope="module")
def physical_clusters(
    node_network: None, node_kit: Kit, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, PhysicalCluster]]:
    """Two clusters, east and west, each with a node n1."""
    folder = tmp_path_factory.mktemp("physical")
    with ExitStack() as stack:
        clusters = {
            name: stack.enter_context(physical_cluster(folder, name, number, node_kit))
            for number, name in enumerate(("east", "west"), start=1)
        }
        for cluster in clusters.values():
            cluster.node.wait_until_ready()
        yield clusters


@pytest.fixture(scope="module")
def virtual_cluster(node_network: None, node_kit: Kit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster without nodes, whose API server authenticates with a certificate to the kubelets of virtual nodes."""
    folder = tmp_path_factory.mktemp("virtual")
    flags = {**kubelet_flags(folder), **front_proxy_flags(folder)}
    with control_plane_of(folder, node_kit, flags) as plane:
        yield Cluster(plane, node_kit.assets)
