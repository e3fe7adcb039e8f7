"""A tenant whose host cluster leases its nodes: its pods are containers of a third cluster.

the plane        a Deployment and a Job
compute          kube-apiserver, controllers and scheduler; its only node is leased. Tapestry runs from its manifests.
physical         a kubelet and containers
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tapestry.apis import keys
from tapestry.client.watch import Changes, Watch
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, annotations_of, is_deleting, name_of
from tapestry.kube.resources import PODS

from .chart_releases import PAGES, install_operator, new_page, uninstall
from .clusters import Cluster, PhysicalCluster
from .installation import client_of, running_installation, tapestry
from .metrics_servers import aggregated_metrics
from .tenants import Planes, Tenant, restricted_pod, running_planes

MOUNT = "tapestry-leased"
"""Namespace of the leased cluster's pods in the physical cluster."""
LEASED_NODE = "vnode-east-n1"
RECLAIM = f"{keys.RECLAIM}={keys.RECLAIM_NOW}"
REPLICAS = 3
MARK_SECONDS, GONE_SECONDS = 2.0, 30.0
"""Seconds from the kill switch until all pods are being deleted, and until none of them is left."""


@dataclass
class Deletions:
    """Times at which the deletion of each pod of a cluster began, and at which it was gone."""

    started: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def watch(self, cluster: Cluster) -> None:
        """Record the pods of Tapestry until cancelled."""
        async with (
            client_of(cluster.plane) as client,
            aclosing(Watch(client, PODS, labels=keys.CLUSTER_BINDING_UID).events()) as events,
        ):
            async for event in events:
                for kind, pod in event.changes if isinstance(event, Changes) else ():
                    self.record(kind, pod)

    def record(self, kind: str, pod: Object) -> None:
        if is_deleting(pod):
            self.started.setdefault(name_of(pod), time.monotonic())
        if kind == "DELETED":
            self.ended[name_of(pod)] = time.monotonic()
        self.changed.set()

    async def wait_for(self, pods: set[str], times: Mapping[str, float], limit: float) -> None:
        async with asyncio.timeout(limit):
            while not pods <= set(times):
                self.changed.clear()
                await self.changed.wait()


@dataclass(frozen=True)
class Chain:
    """A tenant and the clusters under it."""

    planes: Planes
    tenant: Tenant
    compute: Cluster
    physical: PhysicalCluster

    def physical_pods(self) -> dict[str, Object]:
        """Return the pods in the physical cluster by the names of the twins in compute."""
        found = json.loads(self.physical.kubectl("get", "pods", f"--namespace={MOUNT}", "--output=json"))
        return {annotations_of(each)[keys.VIRTUAL_POD_NAME]: each for each in found["items"]}

    def diagnostics(self) -> str:
        return "\n".join(
            [self.tenant.diagnostics(), self.physical.diagnostics(), json.dumps(self.planes.bindings("blue"))]
        )


@asynccontextmanager
async def running_chain(compute: Cluster, physical: PhysicalCluster, folder: Path) -> AsyncIterator[Chain]:
    async with running_installation(compute.plane, compute.assets, folder):
        await asyncio.to_thread(lease, compute, physical)
        with running_planes(folder, compute=compute) as planes:
            await asyncio.to_thread(planes.add_host, "compute")
            tenant = await asyncio.to_thread(planes.create_tenant, "blue", "compute")
            yield Chain(planes, tenant, compute, physical)


def lease(compute: Cluster, physical: PhysicalCluster) -> None:
    access = ("--kubeconfig", compute.plane.kubeconfig, "--cluster-kubeconfig", physical.plane.kubeconfig)
    tapestry("join", "east", *access, "--lease=50%")
    for state in ("create", "condition=Ready"):
        compute.kubectl("wait", f"node/{LEASED_NODE}", f"--for={state}", "--timeout=60s")


@pytest.mark.long
@pytest.mark.timeout(450)
async def test_tenant_runs_on_leased_nodes_until_reclaimed(
    virtual_cluster: Cluster,
    host_cluster: PhysicalCluster,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    async with running_chain(virtual_cluster, host_cluster, tmp_path) as chain:
        try:
            await asyncio.to_thread(check_job, chain.tenant)
            await asyncio.to_thread(check_deployment, chain)
            await asyncio.to_thread(check_top, chain, tmp_path)
            await asyncio.to_thread(check_webhooks, chain, tmp_path)
            record_property("figure", await check_reclaim(chain))
            await asyncio.to_thread(check_return, chain)
            await asyncio.to_thread(check_removal, chain)
        except Exception as error:
            error.add_note(await asyncio.to_thread(chain.diagnostics))
            raise


def check_job(tenant: Tenant) -> None:
    spec = {**restricted_pod("sh", "-c", "echo sum $((20 + 22))"), "restartPolicy": "Never"}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "sum"}, "spec": {"template": {"spec": spec}}}
    tenant.apply(job)
    tenant.kubectl("wait", "job/sum", "--for=condition=Complete", "--timeout=60s")
    assert tenant.kubectl("logs", "job/sum") == "sum 42\n"
    tenant.kubectl("delete", "job", "sum", "--timeout=60s")


def check_deployment(chain: Chain) -> None:
    """Run pods that ignore signals, and use them through the port of the plane."""
    tenant, labels = chain.tenant, {"app": "web"}
    script = "trap '' TERM; echo $HOSTNAME > /tmp/index.html; httpd -p 8080 -h /tmp; while true; do sleep 1; done"
    pod = {**restricted_pod("sh", "-c", script), "terminationGracePeriodSeconds": 600}
    spec = {
        "replicas": REPLICAS,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    tenant.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec})
    tenant.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    (first, *_), streams = sorted(tenant.twins()), tenant.streams()
    assert tenant.get("pod", first)["spec"]["nodeName"] == LEASED_NODE
    streams.check_exec(first)
    streams.check_terminal(first)
    streams.check_port_forward(first, 8080)
    (binding,) = chain.planes.bindings("blue")
    services = find_condition(binding["status"]["conditions"], "ServicesSynced")
    assert services is not None
    assert (services["status"], services["reason"]) == ("False", "HostHasLeasedNodes")


def check_top(chain: Chain, folder: Path) -> None:
    """Check usage that is measured in the physical cluster, and read from the metrics API of each cluster above."""
    first = min(chain.tenant.twins())
    with (
        aggregated_metrics(chain.physical, folder / "physical-metrics"),
        aggregated_metrics(chain.compute, folder / "compute-metrics"),
    ):
        chain.tenant.streams().check_top(first, LEASED_NODE)


def check_webhooks(chain: Chain, folder: Path) -> None:
    """Check that the API server of the plane calls pods in a network to which it needs no route."""
    tenant = chain.tenant
    install_operator(tenant, chain.physical.node, folder, has_services=False)
    tenant.apply(new_page("v1alpha1", text="one\ntwo"))
    assert tenant.get(PAGES, "v1alpha1")["spec"] == {"lines": ["one", "two"]}
    with pytest.raises(RuntimeError, match="a page needs lines"):
        tenant.apply(new_page("v1"))
    uninstall(tenant, "operator")
    tenant.kubectl("wait", "pod", "--selector=app.kubernetes.io/instance=operator", "--for=delete", "--timeout=60s")


async def check_reclaim(chain: Chain) -> str:
    """Check that all pods end soon after the physical owner has set the kill switch, and what users see then.

    Return the measured times.
    """
    compute, physical = Deletions(), Deletions()
    pods = await asyncio.to_thread(chain.tenant.twins)
    twins = {name_of(each) for each in pods.values()}
    ends = {name_of(each) for each in (await asyncio.to_thread(chain.physical_pods)).values()}
    assert len(twins) == len(ends) == REPLICAS
    async with asyncio.TaskGroup() as group:
        watches = [group.create_task(compute.watch(chain.compute)), group.create_task(physical.watch(chain.physical))]
        await asyncio.to_thread(chain.physical.kubectl, "annotate", "namespace", MOUNT, RECLAIM)
        set_at = time.monotonic()
        for level, names in ((compute, twins), (physical, ends)):
            await level.wait_for(names, level.started, MARK_SECONDS)
        for level, names in ((compute, twins), (physical, ends)):
            await level.wait_for(names, level.ended, GONE_SECONDS)
        for each in watches:
            each.cancel()
    started, ended = (
        [max(times.values()) - set_at for times in both]
        for both in ((compute.started, physical.started), (compute.ended, physical.ended))
    )
    assert max(ended) <= GONE_SECONDS
    await asyncio.to_thread(check_reclaimed_status, chain, sorted(pods))
    return (
        f"two hops: {len(pods)} pods that ignore SIGTERM are being deleted {started[0]:.1f} s (compute) and "
        f"{started[1]:.1f} s (physical) after the kill switch, and are gone after {ended[0]:.1f} s and {ended[1]:.1f} s"
    )


def check_reclaimed_status(chain: Chain, reclaimed: list[str]) -> None:
    """Check that the pods have failed with the reason, and why the new ones wait."""
    tenant, compute = chain.tenant, chain.compute
    names = [f"pod/{each}" for each in reclaimed]
    tenant.kubectl("wait", *names, "--for=jsonpath={.status.phase}=Failed", "--timeout=10s")
    for each in tenant.get(*names)["items"]:
        disruption = find_condition(each["status"]["conditions"], "DisruptionTarget")
        assert disruption is not None
        assert disruption["reason"] == "Reclaimed"
    unschedulable = 'jsonpath={.status.conditions[?(@.type=="PodScheduled")].reason}=Unschedulable'
    tenant.kubectl("wait", "pod", "--field-selector=status.phase=Pending", f"--for={unschedulable}", "--timeout=10s")
    node = json.loads(compute.kubectl("get", "node", LEASED_NODE, "--output=json"))
    assert [each["key"] for each in node["spec"]["taints"]] == [keys.OUT_OF_TIME_WINDOWS_TAINT]
    binding = json.loads(compute.kubectl("get", "clusterbinding", "east", "--output=json"))
    leasing = find_condition(binding["status"]["conditions"], "Leasing")
    assert leasing is not None
    assert (leasing["status"], leasing["reason"]) == ("False", "Reclaimed")
    assert chain.physical_pods() == {}


def check_return(chain: Chain) -> None:
    """Check that the pods of the Deployment run again when the owner takes the kill switch back."""
    patch = {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}}
    chain.tenant.kubectl("patch", "deployment", "web", "--patch", json.dumps(patch))
    chain.physical.kubectl("annotate", "namespace", MOUNT, f"{keys.RECLAIM}-")
    chain.tenant.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    assert len(chain.tenant.twins()) == len(chain.physical_pods()) == REPLICAS


def check_removal(chain: Chain) -> None:
    chain.tenant.kubectl("delete", "deployment", "web", "--timeout=60s")
    chain.planes.tapestry("tenant", "delete", "blue")
    assert chain.tenant.inventory() == ""
    assert chain.physical_pods() == {}
