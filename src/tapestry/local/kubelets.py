"""Simulated kubelets: nodes by the thousand in one process, whose pods say that they run.

Which nodes are simulated, a label says.  `nodes` keeps them alive; what their pods say is decided in `simulation`, what
they use in `usage`.  Anybody who asks for a pod's log gets one line.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tapestry.apis import keys
from tapestry.client.client import Client
from tapestry.controller import Manager, Result
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, is_deleting, key_of
from tapestry.kube.resources import PODS
from tapestry.local import nodes
from tapestry.local.addresses import NOWHERE
from tapestry.local.bound_pods import BoundPods, bound_pods
from tapestry.local.kubelet_api import Kubelet, LogQuery
from tapestry.local.nodes import Sort, new_node
from tapestry.local.simulation import gone_at, last_words, told
from tapestry.local.statuses import Place
from tapestry.local.usage import PodUse, requested

SIMULATED = Sort(keys.SIMULATED_NODE, "simulated", "this node is simulated")
WORKERS = 32


def simulated_node(name: str, room: Mapping[str, str], labels: Mapping[str, str] | None = None) -> Object:
    """A node to be created; kubelets see to the rest."""
    return new_node(SIMULATED, name, room, labels)


@dataclass(frozen=True)
class SimulatedPods:
    """Says how the pods of simulated nodes fare."""

    client: Client
    now: Callable[[], datetime]
    pods: BoundPods

    async def reconcile(self, key: str) -> Result | None:
        pod = self.pods.informer.store.get(key)
        if pod is None:
            self.pods.addresses.release(key)
            return None
        node = self.pods.node_of(pod)
        if node is None:
            return None
        now, place = self.now(), self.pods.place(pod, node)
        try:
            if is_deleting(pod):
                return await self.stop(pod, now, place)
            status, again = told(pod, now, place)
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
        await self.pods.let_go(pod)
        return None


@dataclass(frozen=True)
class SimulatedKubelet:
    """What the kubelets of simulated nodes answer."""

    pods: BoundPods
    now: Callable[[], datetime]

    def log(self, pod: Object, container: str, _: LogQuery) -> AsyncIterator[bytes]:
        return one_line(f"{key_of(pod)} is simulated: nothing runs in {container}, and nothing is written\n")

    def usage(self, node: Object) -> Sequence[PodUse]:
        return requested(self.pods.on(node), self.now())


async def one_line(text: str) -> AsyncIterator[bytes]:
    yield text.encode()


def install(manager: Manager, port: Callable[[], int]) -> Kubelet:
    """Have the simulated nodes of a cluster live; `port` is where what is returned is served."""
    simulated = nodes.install(manager, SIMULATED, port)
    pods = bound_pods(manager, simulated, NOWHERE)
    running = SimulatedPods(manager.client, manager.now, pods)
    pods.wake(manager.controller("simulated-pods", running.reconcile, workers=WORKERS))
    return Kubelet(manager.client, simulated, pods.informer, SimulatedKubelet(pods, manager.now), manager.now)
