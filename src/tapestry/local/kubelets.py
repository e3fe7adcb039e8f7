"""Simulated kubelets: nodes by the thousand in one process, whose pods say that they run.

Which nodes are simulated, a label says.  `nodes` keeps them alive; what their pods say is decided in `simulation`, what
they use in `usage`.  Anybody who asks for a pod's log gets one line.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tapestry.client.client import Client
from tapestry.controller import Informer, Manager, Result
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, is_deleting, key_of, name_of, value_at
from tapestry.kube.resources import PODS
from tapestry.local import addresses, nodes
from tapestry.local.addresses import Addresses
from tapestry.local.kubelet_api import Kubelet, LogQuery
from tapestry.local.nodes import Sort, address_of, new_node
from tapestry.local.simulation import gone_at, last_words, told
from tapestry.local.statuses import Place
from tapestry.local.usage import PodUse, requested

SIMULATED = Sort("simulated.tapestry.io/node", "simulated", "this node is simulated")
WORKERS = 32
BY_NODE, BY_IP = "node", "ip"


def simulated_node(name: str, room: Mapping[str, str], labels: Mapping[str, str] | None = None) -> Object:
    """A node to be created; kubelets see to the rest."""
    return new_node(SIMULATED, name, room, labels)


@dataclass(frozen=True)
class SimulatedPods:
    """Says how the pods of simulated nodes fare."""

    client: Client
    now: Callable[[], datetime]
    nodes: Informer
    pods: Informer
    addresses: Addresses

    async def reconcile(self, key: str) -> Result | None:
        pod = self.pods.store.get(key)
        if pod is None:
            self.addresses.release(key)
            return None
        node = self.nodes.store.get(pod["spec"]["nodeName"])
        if node is None or not address_of(node):
            return None
        now = self.now()
        try:
            if is_deleting(pod):
                return await self.stop(pod, now, self.place(node, pod))
            status, again = told(pod, now, self.place(node, pod))
            if status is not None:
                await self.client.patch(PODS, pod, {"status": status}, subresource="status")
        except NotFound:
            return None
        return Result(requeue_at=again) if again is not None else None

    async def stop(self, pod: Object, now: datetime, place: Place) -> Result | None:
        due = gone_at(pod)
        if due > now:
            return Result(requeue_at=due)
        if status := last_words(pod, now, place):
            pod = await self.client.patch(PODS, pod, {"status": status}, subresource="status")
        await finish(self.client, pod)
        return None

    def place(self, node: Object, pod: Object) -> Place:
        address = address_of(node)
        return Place(address, address if pod["spec"].get("hostNetwork") else self.addresses.of(pod))


async def finish(client: Client, pod: Object) -> None:
    """Let go of a deleted pod: nothing of it runs any more.  What has been let go of stays for its finalizers only."""
    if pod["metadata"].get("deletionGracePeriodSeconds"):
        await client.delete(PODS, pod, grace_seconds=0)


@dataclass(frozen=True)
class SimulatedKubelet:
    """What the kubelets of simulated nodes answer."""

    pods: Informer
    now: Callable[[], datetime]

    def log(self, pod: Object, container: str, _: LogQuery) -> AsyncIterator[bytes]:
        return one_line(f"{key_of(pod)} is simulated: nothing runs in {container}, and nothing is written\n")

    def usage(self, node: Object) -> Sequence[PodUse]:
        return requested(self.pods.store.by(BY_NODE, name_of(node)), self.now())


async def one_line(text: str) -> AsyncIterator[bytes]:
    yield text.encode()


def install(manager: Manager, port: Callable[[], int]) -> Kubelet:
    """Have the simulated nodes of a cluster live; `port` is where what is returned is served."""
    simulated = nodes.install(manager, SIMULATED, port)
    pods = bound_pods(manager)
    given = Addresses(addresses.NOWHERE, pod_ip, lambda address: pods.store.by(BY_IP, address))
    running = SimulatedPods(manager.client, manager.now, simulated, pods, given)
    controller = manager.controller("simulated-pods", running.reconcile, workers=WORKERS)
    controller.watch(pods)
    controller.watch(
        simulated,
        lambda node: [key_of(pod) for pod in pods.store.by(BY_NODE, name_of(node))],
        when=lambda old, new: old is None or new is None or address_of(old) != address_of(new),
    )
    return Kubelet(manager.client, simulated, pods, SimulatedKubelet(pods, manager.now), manager.now)


def bound_pods(manager: Manager) -> Informer:
    """The pods that some kubelet is to run."""
    return manager.informer(PODS, fields="spec.nodeName!=", indexers={BY_NODE: node_of, BY_IP: shown_ip})


def node_of(pod: Object) -> Iterable[str]:
    return [pod["spec"]["nodeName"]]


def pod_ip(pod: Object) -> str:
    address: str = value_at(pod, "status", "podIP", default="")
    return address


def shown_ip(pod: Object) -> Iterable[str]:
    address = pod_ip(pod)
    return [address] if address else []
