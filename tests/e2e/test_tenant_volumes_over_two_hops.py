"""Volumes of a tenant in a compute cluster, whose nodes are leased from another cluster."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import kubectl_of

from ..integration.servers import PlanesProcess
from ..integration.test_tenant_volumes import DATABASE
from .nodes import run
from .worlds import TAPESTRY, WorldProcess, running_world

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]
LEASED = "cluster-1"
BINDING = {
    "disableNodeDefaultTaint": True,
    "allowedVolumes": {"drivers": ["simulated.csi.tapestry.io"]},
}
BOUND = "--for=jsonpath={.status.phase}=Bound"
MOUNTED = ("--namespace=tapestry-leased", "get", "persistentvolumeclaims", "--output=name")


@pytest.fixture
def compute(tmp_path: Path) -> Iterator[WorldProcess]:
    """A compute cluster with the nodes and the storage driver of a physical cluster."""
    with running_world(tmp_path / "world", "--clusters", "1", "--nodes", "2") as world:
        yield world


def test_stateful_set_runs_over_two_hops(compute: WorldProcess, kube_assets: Path, tmp_path: Path) -> None:
    physical = compute.folder / LEASED / "kubeconfig"
    plane = tmp_path / "plane.kubeconfig"
    in_compute, in_physical, in_plane = (
        kubectl_of(kube_assets, each) for each in (compute.kubeconfig, physical, plane)
    )
    in_compute("patch", "clusterbinding", LEASED, "--type=merge", "--patch", json.dumps({"spec": BINDING}))
    run(TAPESTRY, "join", LEASED, "--kubeconfig", compute.kubeconfig, "--cluster-kubeconfig", physical)
    in_compute("wait", "--for=condition=Permitted", f"clusterbinding/{LEASED}", "--timeout=90s")

    with PlanesProcess(tmp_path / "planes") as planes:
        tapestry: Callable[..., str] = lambda *words: run(TAPESTRY, *words, "--data", planes.folder)  # noqa: E731
        access = ("--cluster-kubeconfig", compute.kubeconfig, "--allow-loopback")
        tapestry("host", "add", "east", *access, "--storage-class", "standard")
        tapestry("planes", "create", "blue")
        plane.write_text(tapestry("planes", "kubeconfig", "blue"))
        tapestry("tenant", "create", "blue", "--host", "east")
        in_plane("wait", "--for=create", "storageclass/standard", "serviceaccount/default", "--timeout=30s")
        in_plane("apply", "-f", "-", stdin=DATABASE)
        in_plane("rollout", "status", "statefulset/db", "--timeout=90s")
        in_plane("wait", BOUND, "persistentvolumeclaim/data-db-0", "persistentvolumeclaim/data-db-1", "--timeout=30s")
        assert len(in_physical(*MOUNTED).split()) == 2
        tapestry("tenant", "delete", "blue")
        assert in_compute("get", "persistentvolumes", "--output=name") == ""
