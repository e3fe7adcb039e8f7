"""Series in the tests of the alerting rules, compared with those of real processes that have faults."""

import asyncio
import os
import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import object_named
from tapestry.kube.resources import LEASES, NAMESPACES, PODS
from tapestry.local.kubernetes import free_ports
from tapestry.process.metrics import NAMESPACE

from ..alert_series import FAULTS, HEALTHY
from .bound_clusters import BoundClusters, bound_clusters, install_kinds, new_object, untainted, wait_until_gone
from .forked import ForkedTapestry
from .planes import starts_own
from .servers import OwnServer

pytestmark = pytest.mark.timeout(300)
SYSTEM = keys.SYSTEM_NAMESPACE
SECONDS = 60.0
POLL = 0.2
STOPPED_SECONDS = 15.0
NOT_PROVOKED = {
    "tapestry_events_dropped_total{why=buffer full}",
    "tapestry_twin_events_untold_total{binding=east}",
    "tapestry_client_requests_total{code=429, resource=pods, verb=create}",
}
"""Series of faults that need floods of requests."""
OF_PLANES = {"tapestry_tenant_sync_lag_seconds{host=east, plane=p}"}
"""Series of processes that hold planes; `tests/unit/tenants/test_tenant_metrics.py` has their faults."""


def series_of(text: str) -> str:
    """Return a series with sorted labels, without the label of a scrape and the version."""
    name, _, labels = text.rstrip("}").partition("{")
    pairs = sorted(re.findall(r'(\w+)="([^"]*)"', labels))
    return f"{name}{{{', '.join(f'{key}={value}' for key, value in pairs if key not in ('pod', 'version'))}}}"


@contextmanager
def running(folder: Path, name: str, *command: str, **settings: str) -> Iterator[str]:
    """Run a component, and yield the address of its metrics."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    flags = ["--allow-loopback", "--leader-elect=true", "--health-probe-bind-address="]
    environ = {**os.environ, "TAPESTRY_LEADER_ELECTION_NAMESPACE": SYSTEM, **settings}
    process = ForkedTapestry([*command, *flags, f"--metrics-bind-address={address}"], environ, folder / f"{name}.log")
    try:
        yield address
    finally:
        process.kill()
        process.wait()


def page(address: str) -> dict[str, float]:
    """Return the value of each series of a process."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if line.startswith(f"{NAMESPACE}_"))
    return {series_of(series): float(value) for series, _, value in pairs}


async def pages(addresses: list[str]) -> dict[str, float]:
    """Return the series of all processes; the largest value of those that several have."""
    found: dict[str, float] = {}
    for each in addresses:
        for series, value in (await asyncio.to_thread(page, each)).items():
            found[series] = max(value, found.get(series, value))
    return found


def trend(values: str, healthy: str = "0x1") -> str:
    """Return how the values of a faulty series, as promtool writes them, differ from the healthy ones."""
    start, step = re.fullmatch(r"(\d+)(?:\+(\d+))?x\d+", values.split()[-1]).groups("0")  # type: ignore[union-attr]
    usual, usual_step = re.fullmatch(r"(\d+)(?:\+(\d+))?x\d+", healthy).groups("0")  # type: ignore[union-attr]
    if step != "0":
        return "rises"
    if usual_step != "0":
        return "stops"
    return "rises" if int(start) > int(usual) else "falls"


def is_observed(trend: str, before: float, after: float) -> bool:
    """Return whether a series has a trend from before the faults until now. Only times can stop."""
    return {"rises": after > before, "falls": after < before, "stops": 0 < after < time.time() - STOPPED_SECONDS}[trend]


async def cause_faults(clusters: BoundClusters, physical: OwnServer) -> None:
    reference = {"name": "none", "namespace": SYSTEM}
    spec = {"clusterID": "broken", "secretRef": reference, "mountNamespace": "m"}
    broken = new_object(CLUSTER_BINDINGS.kind, {"name": "broken"}, CLUSTER_BINDINGS.api_version, spec=spec)
    await clusters.virtual.create(CLUSTER_BINDINGS, broken)
    await clusters.add_node("n1")
    await clusters.add_policy("all", forceReclaim=True)
    await clusters.wait_for_virtual_node("n1")
    await clusters.bind_pod("work", "n1", automountServiceAccountToken=False, requests={"cpu": "1"})
    twin = await clusters.wait_for_twin("work")
    await clusters.bind_pod("root", "n1", automountServiceAccountToken=False, hostNetwork=True)
    labelled = {field: twin["metadata"][field] for field in ("labels", "annotations")}
    double = {"containers": [{"name": "c", "image": "none"}], "terminationGracePeriodSeconds": 0}
    place = {**labelled, "name": "double", "namespace": clusters.mount}
    await clusters.physical.create(PODS, new_object("Pod", place, spec=double))
    await wait_until_gone(clusters.physical, PODS, "double", clusters.mount)
    for mark in ("now", None):
        marked = {"metadata": {"annotations": {keys.RECLAIM: mark}}}
        await clusters.physical.patch(NAMESPACES, object_named(clusters.mount), marked)
        if mark:
            await clusters.wait_until_pod_is_gone("work")
    await clusters.wait_for_virtual_node("n1", untainted(keys.OUT_OF_TIME_WINDOWS_TAINT))
    await clusters.virtual.patch(
        LEASES, object_named("tapestry-manager", SYSTEM), {"spec": {"holderIdentity": "thief"}}
    )
    physical.kill()
    await clusters.bind_pod("late", "n1", automountServiceAccountToken=False)


PROVOKED = (
    *("TapestryNoLeader", "TapestryElectionsUnstable", "TapestryClusterUnreachable", "TapestryClusterSilent"),
    *("TapestryBindingsFailed", "TapestryRepairsFrequent", "TapestryReconcileErrors", "TapestryWatchesRestart"),
    "TapestryPodsRejected",
)
"""Alerts whose faults occur here. The other faults take hours, or the wrong program."""


async def test_series_of_the_alert_tests_are_real(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    start = starts_own(tmp_path_factory)
    wanted = {series_of(each) for each in (*HEALTHY, *(each for _, series in FAULTS for each in series))}
    missing = wanted - NOT_PROVOKED - OF_PLANES
    trends = {
        series_of(series): trend(values or "", HEALTHY.get(series, "0x1"))
        for alert, faults in FAULTS
        for series, values in faults.items()
        if alert in PROVOKED
    }
    with start("virtual") as virtual, ExitStack() as processes:
        physical = OwnServer(tmp_path / "physical")
        physical.start()
        processes.callback(physical.kill)
        for plane in (virtual, physical):
            await install_kinds(plane)
        async with bound_clusters(virtual, physical, tmp_path, name="east") as clusters:
            access = f"--kubeconfig={virtual.kubeconfig}"
            addresses = [
                processes.enter_context(running(tmp_path, "manager", "manager", access)),
                processes.enter_context(running(tmp_path, "standby", "manager", access)),
                processes.enter_context(
                    running(tmp_path, "syncer", "syncer", "--binding=east", access, TAPESTRY_CHECK_SECONDS="1")
                ),
            ]
            before = await healthy_pages(clusters, addresses)
            await cause_faults(clusters, physical)
            unobserved = dict(trends)
            with suppress(TimeoutError):
                async with asyncio.timeout(SECONDS):
                    while missing or unobserved:
                        after = await pages(addresses)
                        missing -= after.keys()
                        unobserved = {
                            series: trend
                            for series, trend in unobserved.items()
                            if not is_observed(trend, before.get(series, 0), after.get(series, 0))
                        }
                        await asyncio.sleep(POLL)
            assert (missing, unobserved) == (set(), {})


async def healthy_pages(clusters: BoundClusters, addresses: list[str]) -> dict[str, float]:
    """Return the series of all processes once the manager leads and the syncer is connected."""
    await clusters.wait_for_binding(lambda binding: is_condition_true(binding, "Ready"))
    async with asyncio.timeout(SECONDS):
        while True:
            found = await pages(addresses)
            if any(name.startswith("tapestry_physical_cluster_last_seen") for name in found):
                return found
            await asyncio.sleep(POLL)
