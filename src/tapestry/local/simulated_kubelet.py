"""Simulated kubelets: thousands of nodes in one process, whose pods only report to run.

A label selects the simulated nodes.  `nodes` keeps them alive, `simulated_pods` decides the status of their pods, and
`usage` their resource usage.  The log of each pod is one line.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tapestry.apis import keys
from tapestry.client.client import Client
from tapestry.controller import Manager, Result
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, is_deleting, key_of
from tapestry.kube.resources import PODS
from tapestry.kube.usage import PodUsage
from tapestry.local import nodes
from tapestry.local.bound_pods import BoundPods, bound_pods
from tapestry.local.kubelet_api import KubeletServer
from tapestry.local.nodes import SIMULATED_POD_NETWORK, NodeType, new_node
from tapestry.local.runtime import ContainerProcess, LogQuery, StreamRejected
from tapestry.local.simulated_pods import deletion_time, final_status, status_update
from tapestry.local.statuses import PodAddresses
from tapestry.local.usage import requested_usage

SIMULATED_NODES = NodeType(keys.SIMULATED_NODE, "simulated", "this node is simulated")
WORKERS = 32
CANNOT_EXECUTE = 126
"""Exit code of a shell for a command that it cannot execute."""
RUN_PODS_HINT = "`tapestry up --run-pods` adds a node that runs pods as processes."


def simulated_node(name: str, capacity: Mapping[str, str], labels: Mapping[str, str] | None = None) -> Object:
    """Return a node to create; the simulated kubelet adds the rest."""
    return new_node(SIMULATED_NODES, name, capacity, labels)


@dataclass(frozen=True)
class SimulatedPods:
    """Reconciler that reports the status of pods on simulated nodes."""

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
        now, addresses = self.now(), self.pods.addresses_of(pod, node)
        try:
            if is_deleting(pod):
                return await self.stop(pod, now, addresses)
            status, next_update = status_update(pod, now, addresses)
            if status is not None:
                await self.client.patch(PODS, pod, {"status": status}, subresource="status")
        except NotFound:
            return None
        return Result(requeue_at=next_update) if next_update is not None else None

    async def stop(self, pod: Object, now: datetime, addresses: PodAddresses) -> Result | None:
        deletion = deletion_time(pod)
        if deletion > now:
            return Result(requeue_at=deletion)
        if status := final_status(pod, now, addresses):
            pod = await self.client.patch(PODS, pod, {"status": status}, subresource="status")
        await self.pods.confirm_deletion(pod)
        return None


@dataclass(frozen=True)
class SimulatedRuntime:
    """Logs and usage of simulated pods."""

    pods: BoundPods
    now: Callable[[], datetime]

    def log(self, pod: Object, container: str, _: LogQuery) -> AsyncIterator[bytes]:
        return single_chunk(f"{key_of(pod)} is simulated: nothing runs in {container}, and nothing is written\n")

    async def exec(
        self,
        pod: Object,
        container: str,
        command: Sequence[str],  # noqa: ARG002  nothing runs
        *,
        stdin: bool,  # noqa: ARG002
        terminal: bool,
    ) -> ContainerProcess:
        line = f"{key_of(pod)} is simulated: {container} cannot run commands. {RUN_PODS_HINT}\n"
        return UnavailableProcess(line, terminal=terminal)

    async def attach(self, pod: Object, container: str, *, stdin: bool, terminal: bool) -> ContainerProcess:  # noqa: ARG002
        line = f"{key_of(pod)} is simulated: nothing runs in {container}. {RUN_PODS_HINT}\n"
        return UnavailableProcess(line, terminal=terminal)

    async def dial(self, pod: Object, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raise StreamRejected(f"{key_of(pod)} is simulated: nothing listens on port {port}. {RUN_PODS_HINT}")

    def usage(self, node: Object) -> Sequence[PodUsage]:
        return requested_usage(self.pods.on_node(node), self.now())


class UnavailableProcess:
    """Process that writes one line and ends with exit code 126; the line is on standard error without a terminal."""

    def __init__(self, line: str, *, terminal: bool) -> None:
        self._stdout, self._stderr = (line, "") if terminal else ("", line)

    async def read_stdout(self) -> bytes:
        line, self._stdout = self._stdout, ""
        return line.encode()

    async def read_stderr(self) -> bytes:
        line, self._stderr = self._stderr, ""
        return line.encode()

    async def write_stdin(self, data: bytes) -> None:
        """Discard the input."""

    def close_stdin(self) -> None:
        """Do nothing: there is no input."""

    def resize(self, width: int, height: int) -> None:
        """Do nothing: there is no terminal."""

    async def wait(self) -> int:
        return CANNOT_EXECUTE

    async def close(self) -> None:
        """Do nothing: no process runs."""


async def single_chunk(text: str) -> AsyncIterator[bytes]:
    yield text.encode()


def install(manager: Manager, port: Callable[[], int]) -> KubeletServer:
    """Run the simulated nodes of a cluster; serve the returned API on `port`."""
    simulated = nodes.install(manager, SIMULATED_NODES, port)
    pods = bound_pods(manager, simulated, SIMULATED_POD_NETWORK)
    reconciler = SimulatedPods(manager.client, manager.now, pods)
    pods.watch_with(manager.controller("simulated-pods", reconciler.reconcile, workers=WORKERS))
    return KubeletServer(manager.client, simulated, pods.informer, SimulatedRuntime(pods, manager.now), manager.now)
