"""Ten thousand pods on a thousand virtual nodes, and a restart of the syncer."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from tapestry.kube.objects import key_of, version_of
from tapestry.kube.resources import PODS
from tapestry.local.kubernetes import ControlPlane

from ..integration.bound_clusters import BoundClusters, bound_clusters, install_kinds
from ..integration.pod_batches import POD_BATCH, lend, pod_batch, wait_until_lent
from ..integration.processes import rss_megabytes, running

PHYSICAL_NODES = 1_000
POD_COUNT = 10_000
MAX_MEGABYTES = 300
MAX_SECONDS = 10
"""Limit from the start of a syncer to the twin of a pod that was bound before the start."""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_restart_changes_none_of_ten_thousand_pods(
    kube_assets: Path, tmp_path: Path, record_property: Callable[[str, str], None]
) -> None:
    with (
        ControlPlane(tmp_path / "virtual", kube_assets, fsync=False) as virtual,
        ControlPlane(tmp_path / "physical", kube_assets, fsync=False) as physical,
    ):
        megabytes, seconds = uvloop.run(measure(virtual, physical, tmp_path))
    size = f"{POD_COUNT:,} pods on {PHYSICAL_NODES:,} nodes"
    record_property("figure", f"{size}: {megabytes:.0f} MB, the first pod after a restart in {seconds:.1f} s")
    assert megabytes <= MAX_MEGABYTES
    assert seconds <= MAX_SECONDS


async def measure(virtual: ControlPlane, physical: ControlPlane, folder: Path) -> tuple[float, float]:
    """Return the memory of a syncer with all pods, and the seconds to the first pod after a restart."""
    kubelet = [sys.executable, "-m", "tests.integration.kubelet", physical.kubeconfig]
    for plane in (virtual, physical):
        await install_kinds(plane)
    async with bound_clusters(
        virtual, physical, folder, directScheduling=True, disableNodeDefaultTaint=True
    ) as clusters:
        nodes = await lend(clusters, PHYSICAL_NODES)
        with running(kubelet, folder / "kubelet.log"):
            with clusters.syncer(forked=False) as syncer:
                await wait_until_lent(clusters, PHYSICAL_NODES)
                megabytes = await memory_with_all_pods(clusters, nodes, syncer.pid)
            return megabytes, await seconds_after_restart(clusters, nodes)


async def memory_with_all_pods(clusters: BoundClusters, nodes: list[str], pid: int) -> float:
    """Run all pods and return the memory of the syncer in MB."""
    async with pod_batch(clusters, "many") as many:
        await many.bind(POD_COUNT, nodes)
        await many.wait_until_running(POD_COUNT, timeout=600)
    return rss_megabytes(pid)


async def seconds_after_restart(clusters: BoundClusters, nodes: list[str]) -> float:
    """Return the seconds until a new syncer has mapped a waiting pod. Check that no other pod has changed.

    A second pod is at the end of the queue: when it runs, the syncer has processed all pods.
    """
    before = await versions(clusters)
    async with pod_batch(clusters, "first") as first, pod_batch(clusters, "last") as last:
        await first.bind(1, nodes)
        began = time.monotonic()
        with clusters.syncer(forked=False):
            await first.wait_until_running(1)
            await last.bind(1, nodes)
            await last.wait_until_running(1)
        [mapped] = first.mapped.values()
    assert await versions(clusters) == before
    return mapped - began


async def versions(clusters: BoundClusters) -> dict[str, str]:
    """Return the resourceVersion of each of the many pods and of each twin."""
    above = await clusters.virtual.list(PODS, "default", labels=f"{POD_BATCH}=many")
    below = await clusters.physical.list(PODS, clusters.mount, labels=f"{POD_BATCH}=many")
    found = {f"above {key_of(pod)}": version_of(pod) for pod in above}
    found |= {f"below {key_of(pod)}": version_of(pod) for pod in below}
    assert len(found) == 2 * POD_COUNT
    return found
