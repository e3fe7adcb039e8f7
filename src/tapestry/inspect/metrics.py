"""Resource usage of pods, read from metrics APIs or kubelets.

For the pods of each binding, the first available source is used: the metrics API of the virtual cluster, the kubelets
of the physical cluster if they are reachable, or its metrics API with the kubeconfig of the binding.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from tapestry.apis.clusterbindings import Binding
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.transport import Request
from tapestry.inspect.anykind.resource_mapper import send_request
from tapestry.inspect.pods import PlacedPod
from tapestry.inspect.snapshots import ClusterUnreadable, VirtualSnapshot, physical_client
from tapestry.inspect.status import physical_node_name
from tapestry.kube.errors import Forbidden, KubeError, NotFound
from tapestry.kube.objects import Object, key_of, name_of, value_at
from tapestry.kube.quantity import ResourceList, parse_quantity
from tapestry.kube.resources import NODES, POD_METRICS
from tapestry.manager.connectivity import Connect

MAX_CONCURRENT_KUBELETS = 16
"""Kubelets queried at the same time."""
METRICS_TIMEOUT = 20.0
"""Seconds for all kubelets of one physical cluster."""

UsageByPod = Mapping[str, ResourceList]
"""Usage by pod namespace and name."""
KubeletAccess = Callable[[str], Access]


@dataclass(frozen=True)
class BindingUsage:
    """Usage of the pods of one binding by their keys in the virtual cluster, or why it is unknown."""

    by_pod: UsageByPod
    error: str = ""

    def total(self, pods: Iterable[Object]) -> ResourceList | None:
        if self.error:
            return None
        return sum((self.by_pod.get(key_of(pod), ResourceList()) for pod in pods), ZERO_USAGE)


ZERO_USAGE = ResourceList.parse({"cpu": "0", "memory": "0"})


@dataclass(frozen=True)
class UsageReader:
    """Read usage; `kubelets` has access to reachable kubelets by cluster UID."""

    virtual: Client
    connect: Connect
    kubelets: Mapping[str, KubeletAccess]

    async def usage_by_binding(self, snapshot: VirtualSnapshot, bindings: Iterable[Object]) -> dict[str, BindingUsage]:
        known, found = await self.virtual_usage(), [(obj, snapshot.binding(obj)) for obj in bindings]
        async with asyncio.TaskGroup() as group:
            tasks = {each.uid: group.create_task(self.binding_usage(snapshot, obj, each, known)) for obj, each in found}
        return {uid: task.result() for uid, task in tasks.items()}

    async def virtual_usage(self) -> UsageByPod:
        """Return usage from the virtual cluster's metrics API; empty without one, which is common."""
        try:
            return {key_of(each): pod_metrics_amounts(each) for each in await self.virtual.list(POD_METRICS)}
        except KubeError:
            return {}

    async def binding_usage(
        self, snapshot: VirtualSnapshot, obj: Object, binding: Binding, virtual: UsageByPod
    ) -> BindingUsage:
        nodes = snapshot.nodes_of(binding.uid)
        twins = {
            placed.twin: key_of(placed.pod)
            for node in nodes
            for placed in (PlacedPod(pod, node, binding) for pod in snapshot.pods[name_of(node)])
            if placed.twin
        }
        known = {key: virtual[key] for key in twins.values() if key in virtual}
        if known or not twins:
            return BindingUsage(known)
        try:
            async with physical_client(self.virtual, obj, self.connect, METRICS_TIMEOUT) as client:
                if access_for := self.kubelets.get(value_at(obj, "status", "identity", default="")):
                    busy = {physical_node_name(node) for node in nodes if snapshot.pods[name_of(node)]}
                    found = await self.kubelet_usage(client, access_for, busy)
                else:
                    found = await metrics_api_usage(client, binding.spec.mount_namespace)
        except ClusterUnreadable as error:
            return BindingUsage({}, str(error))
        return BindingUsage({twins[key]: usage for key, usage in found.items() if key in twins})

    async def kubelet_usage(self, client: Client, access_for: KubeletAccess, names: set[str]) -> UsageByPod:
        slots = asyncio.Semaphore(MAX_CONCURRENT_KUBELETS)
        urls = [kubelet_url(node) for node in await client.list(NODES) if name_of(node) in names]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.fetch_summary(access_for(url), slots)) for url in urls]
        except ExceptionGroup as errors:
            first = errors.exceptions[0]
            if not isinstance(first, KubeError):
                raise
            raise ClusterUnreadable(f"a kubelet did not answer: {first}") from None
        return {key: usage for task in tasks for key, usage in summary_amounts(task.result())}

    async def fetch_summary(self, access: Access, slots: asyncio.Semaphore) -> Object:
        async with slots, Client(self.connect(access)) as client:
            found: Object = msgspec.json.decode((await send_request(client, Request("GET", "/stats/summary"))).body)
            return found


async def metrics_api_usage(client: Client, namespace: str | None) -> UsageByPod:
    try:
        return {key_of(each): pod_metrics_amounts(each) for each in await client.list(POD_METRICS, namespace)}
    except NotFound:
        raise ClusterUnreadable("it has no metrics API; metrics-server provides one") from None
    except Forbidden:
        where = f" in {namespace}" if namespace else ""
        raise ClusterUnreadable(f"the binding's account may not list {POD_METRICS.name}{where} there") from None


def pod_metrics_amounts(metrics: Object) -> ResourceList:
    return sum(
        (usage_amounts(each["usage"]["cpu"], each["usage"]["memory"]) for each in metrics["containers"]), ZERO_USAGE
    )


def summary_amounts(summary: Object) -> Iterable[tuple[str, ResourceList]]:
    """Yield the key and usage of each pod in a kubelet's summary."""
    for each in summary.get("pods") or ():
        cpu, memory = value_at(each, "cpu", "usageNanoCores"), value_at(each, "memory", "workingSetBytes")
        if cpu is not None and memory is not None:
            yield key_of({"metadata": each["podRef"]}), usage_amounts(f"{cpu}n", memory)


def usage_amounts(cpu: str, memory: str | int) -> ResourceList:
    """Return usage with CPU in millicores, rounded up."""
    return ResourceList.parse({"cpu": f"{parse_quantity(cpu).milli_value()}m", "memory": memory})


def kubelet_url(node: Object) -> str:
    addresses = {each["type"]: each["address"] for each in value_at(node, "status", "addresses", default=[])}
    port = value_at(node, "status", "daemonEndpoints", "kubeletEndpoint", "Port", default=10250)
    return f"https://{addresses.get('InternalIP', name_of(node))}:{port}"
