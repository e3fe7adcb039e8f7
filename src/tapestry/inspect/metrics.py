"""What pods use, where somebody measures it.

For the pods of each binding the first is asked that there is: the metrics API of the virtual cluster, the kubelets of
the physical one if they can be called from here, or its metrics API, with the kubeconfig of the binding.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from tapestry.apis.clusterbindings import Binding, binding_of
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.transport import Request
from tapestry.inspect.anykind.kinds import asked
from tapestry.inspect.facts import Above, Unseen, physical
from tapestry.inspect.pods import Placed
from tapestry.inspect.status import physical_node
from tapestry.kube.errors import Forbidden, KubeError, NotFound
from tapestry.kube.objects import Object, key_of, name_of, value_at
from tapestry.kube.quantity import Amounts, parse
from tapestry.kube.resources import NODES, Resource
from tapestry.manager.connectivity import Connect

POD_METRICS = Resource("metrics.k8s.io", "v1beta1", "PodMetrics", "pods")
AT_ONCE = 16
"""Kubelets that are asked at the same time."""
SECONDS = 20.0
"""For all of one physical cluster: there may be many."""

Uses = Mapping[str, Amounts]
"""What pods use, by namespace and name."""
KubeletAccess = Callable[[str], Access]
"""How to call the kubelet at a URL."""


@dataclass(frozen=True)
class Measures:
    """What the pods of one binding use, by their keys above; or why that is not known."""

    uses: Uses
    missing: str = ""

    def of(self, pods: Iterable[Object]) -> Amounts | None:
        """What all of `pods` use; None where nobody measures it."""
        if self.missing:
            return None
        return sum((self.uses.get(key_of(pod), Amounts()) for pod in pods), NOTHING)


NOTHING = Amounts.parse({"cpu": "0", "memory": "0"})


@dataclass(frozen=True)
class Gauges:
    """Asks whoever measures; `kubelets` are those that can be called, by the identity of their cluster."""

    virtual: Client
    connect: Connect
    kubelets: Mapping[str, KubeletAccess]

    async def measures(self, facts: Above, bindings: Iterable[Object]) -> dict[str, Measures]:
        """By the UID of each of `bindings`."""
        above, found = await self.above(), [(obj, binding_of(obj, facts.identity)) for obj in bindings]
        async with asyncio.TaskGroup() as group:
            tasks = {each.uid: group.create_task(self.of_binding(facts, obj, each, above)) for obj, each in found}
        return {uid: task.result() for uid, task in tasks.items()}

    async def above(self) -> Uses:
        """What the virtual cluster's own metrics API knows; most have none."""
        try:
            return {key_of(each): amounts_of(each) for each in await self.virtual.list(POD_METRICS)}
        except KubeError:
            return {}

    async def of_binding(self, facts: Above, obj: Object, binding: Binding, above: Uses) -> Measures:
        nodes = facts.nodes_of(binding.uid)
        twins = {
            placed.twin: key_of(placed.pod)
            for node in nodes
            for placed in (Placed(pod, node, binding) for pod in facts.pods[name_of(node)])
            if placed.twin
        }
        known = {key: above[key] for key in twins.values() if key in above}
        if known or not twins:
            return Measures(known)
        try:
            async with physical(self.virtual, obj, self.connect, SECONDS) as client:
                if door := self.kubelets.get(value_at(obj, "status", "identity", default="")):
                    busy = {physical_node(node) for node in nodes if facts.pods[name_of(node)]}
                    found = await self.by_kubelets(client, door, busy)
                else:
                    found = await by_metrics_api(client, binding.spec.mount_namespace)
        except Unseen as error:
            return Measures({}, str(error))
        return Measures({twins[key]: use for key, use in found.items() if key in twins})

    async def by_kubelets(self, client: Client, door: KubeletAccess, names: set[str]) -> Uses:
        slots = asyncio.Semaphore(AT_ONCE)
        urls = [kubelet_url(node) for node in await client.list(NODES) if name_of(node) in names]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.summary(door(url), slots)) for url in urls]
        except ExceptionGroup as errors:
            first = errors.exceptions[0]
            if not isinstance(first, KubeError):
                raise
            raise Unseen(f"a kubelet did not answer: {first}") from None
        return {key: use for task in tasks for key, use in in_summary(task.result())}

    async def summary(self, access: Access, slots: asyncio.Semaphore) -> Object:
        async with slots, Client(self.connect(access)) as client:
            found: Object = msgspec.json.decode((await asked(client, Request("GET", "/stats/summary"))).body)
            return found


async def by_metrics_api(client: Client, namespace: str | None) -> Uses:
    try:
        return {key_of(each): amounts_of(each) for each in await client.list(POD_METRICS, namespace)}
    except NotFound:
        raise Unseen("it has no metrics API, such as metrics-server gives it") from None
    except Forbidden:
        where = f" in {namespace}" if namespace else ""
        raise Unseen(f"the binding's account may not list {POD_METRICS.name}{where} there") from None


def amounts_of(metrics: Object) -> Amounts:
    """What the containers of a PodMetrics use."""
    return sum((amounts(each["usage"]["cpu"], each["usage"]["memory"]) for each in metrics["containers"]), NOTHING)


def in_summary(summary: Object) -> Iterable[tuple[str, Amounts]]:
    """The pods that a kubelet tells of, and what they use."""
    for each in summary.get("pods") or ():
        cpu, memory = value_at(each, "cpu", "usageNanoCores"), value_at(each, "memory", "workingSetBytes")
        if cpu is not None and memory is not None:
            yield key_of({"metadata": each["podRef"]}), amounts(f"{cpu}n", memory)


def amounts(cpu: str, memory: str | int) -> Amounts:
    """In thousandths of a core, rounded up, as everybody shows it."""
    return Amounts.parse({"cpu": f"{parse(cpu).milli_value()}m", "memory": memory})


def kubelet_url(node: Object) -> str:
    addresses = {each["type"]: each["address"] for each in value_at(node, "status", "addresses", default=[])}
    port = value_at(node, "status", "daemonEndpoints", "kubeletEndpoint", "Port", default=10250)
    return f"https://{addresses.get('InternalIP', name_of(node))}:{port}"
