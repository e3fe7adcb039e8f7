"""Kubelet that runs the commands of pods as processes of this machine, for labelled nodes.

It runs only our own program in trusted namespaces, unless configured otherwise (`ProcessPolicy`).  Processes run as the
calling user with few environment variables (`container_commands`), in their own folder (`pod_folders`) and on their own
loopback address.  Where the kernel allows it, other pods have Linux namespaces of their own (`pod_sandbox`).  Processes
end with this process, and the next one starts them again.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

import aiohttp

from tapestry.apis.keys import NO_SCHEDULE, PROCESS_NODE, RUN_PODS_NODE
from tapestry.client.client import Client
from tapestry.controller import Controller, Manager, Result
from tapestry.controller.events import Recorder
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, is_deleting, key_of, name_of, namespace_of, uid_of, value_at
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.resources import CONFIGMAPS, PODS, RUNTIME_CLASSES, SECRETS
from tapestry.kube.usage import ContainerUsage, PodUsage
from tapestry.local import nodes
from tapestry.local.bound_pods import BoundPods, bound_pods
from tapestry.local.container_commands import ProcessPolicy, container_rejection_reason, rejection_reason
from tapestry.local.container_logs import read_log
from tapestry.local.container_processes import RunningContainer, start_command
from tapestry.local.container_setup import PodLauncher, TokenCache, runnable_containers
from tapestry.local.kubelet_api import KubeletServer
from tapestry.local.nodes import PROCESS_POD_NETWORK, NodeType, new_node
from tapestry.local.pod_folders import pod_folder, remove_orphaned
from tapestry.local.pod_sandbox import LOOPBACK, Connection, Endpoint
from tapestry.local.pod_worker import Container, PodWorker, declared_ports
from tapestry.local.runtime import ContainerProcess, LogNotFound, LogQuery, StreamRejected
from tapestry.local.statuses import (
    ContainerStatuses,
    PodAddresses,
    container_status,
    pod_status,
    status_differs,
    waiting_state,
)
from tapestry.local.usage import CpuRates, CpuSample
from tapestry.local.volume_sources import MissingSource, SourceReferences, Sources, source_references
from tapestry.process.child_processes import PAGE_BYTES, process_tree_stat, uptime
from tapestry.process.logs import logger

log = logger(__name__)

PROCESS_NODES = NodeType(PROCESS_NODE, "process", "containers are processes of this machine")
TAINT = {"key": PROCESS_NODE, "effect": NO_SCHEDULE}
RUN_PODS_TAINT = {"key": RUN_PODS_NODE, "effect": NO_SCHEDULE}
RUNTIME_CLASS = "process"
"""Name of the RuntimeClass that selects process nodes for pods of all users."""
ISOLATED = "ContainersIsolated"
"""Condition of a node: whether its containers run in their own Linux namespaces."""
WORKERS = 8
MAX_COMMANDS, MAX_CLIENTS = 256, 64
"""Limits of commands that `exec` runs in one container at a time, and of attached clients."""
REFRESH_INTERVAL = timedelta(seconds=60)
"""Interval at which ConfigMaps and Secrets are read again."""
RETRY_INTERVAL = timedelta(seconds=2)


def process_node(name: str, capacity: Mapping[str, str], *, run_pods: bool = False) -> Object:
    """Return a node to create; only pods that tolerate its taint run there, with `run_pods` those of all users."""
    if run_pods:
        return new_node(PROCESS_NODES, name, capacity, {RUN_PODS_NODE: ""}, [RUN_PODS_TAINT])
    return new_node(PROCESS_NODES, name, capacity, taints=[TAINT])


def process_runtime_class() -> Object:
    """Return the RuntimeClass of pods that run on nodes with the taint of all users."""
    toleration = {"key": RUN_PODS_NODE, "operator": "Exists", "effect": NO_SCHEDULE}
    return {
        "apiVersion": RUNTIME_CLASSES.api_version,
        "kind": RUNTIME_CLASSES.kind,
        "metadata": {"name": RUNTIME_CLASS},
        "handler": RUNTIME_CLASS,
        "scheduling": {"nodeSelector": {RUN_PODS_NODE: ""}, "tolerations": [toleration]},
    }


def machine_capacity() -> dict[str, str]:
    memory = PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": str(os.cpu_count() or 1), "memory": f"{memory >> 10}Ki", "pods": "110"}


@dataclass
class ProcessKubelet:
    """Run the pods of process nodes; keyed by pod."""

    client: Client
    now: Callable[[], datetime]
    events: Recorder
    pods: BoundPods
    tokens: TokenCache
    settings: "ProcessSettings"
    requeue: Callable[[str], None]
    """Reconcile a pod again."""
    workers: dict[str, PodWorker] = field(default_factory=dict)
    launchers: dict[str, PodLauncher] = field(default_factory=dict)
    cpu_rates: CpuRates = field(default_factory=CpuRates)
    group: asyncio.TaskGroup = field(init=False)
    session: aiohttp.ClientSession = field(init=False)
    started: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Own all pod workers until cancelled."""
        remove_orphaned(self.settings.folder, self.pods.informer.store.list())
        async with aiohttp.ClientSession() as self.session, asyncio.TaskGroup() as self.group:
            self.started.set()
            await asyncio.Event().wait()

    async def reconcile(self, key: str) -> Result | None:
        await self.started.wait()
        pod, found = self.pods.informer.store.get(key), self.workers.get(key)
        if found is not None and (pod is None or uid_of(pod) != uid_of(found.pod)):
            return self.remove_replaced(key, found)
        if pod is None:
            self.pods.addresses.release(key)
            return None
        node = self.pods.node_of(pod)
        if node is None:
            return None
        with suppress(NotFound):
            if is_deleting(pod):
                return await self.terminate_pod(key, pod, node)
            if is_pod_terminal(pod):
                return None
            return await self.sync_pod(key, pod, node)
        return None

    async def sync_pod(self, key: str, pod: Object, node: Object) -> Result | None:
        """Run the pod and update its status."""
        addresses = self.pods.addresses_of(pod, node)
        if reason := rejection_reason(pod, self.settings.policy):
            if (
                await self.update_status(pod, waiting_statuses(pod, "Refused", reason), PodAddresses(addresses.host_ip))
                is not pod
            ):
                self.events.warning(pod, "Refused", reason)
            return None
        worker = self.workers.get(key)
        try:
            next_sync = await self.prepare(pod, addresses)
        except MissingSource as error:
            self.events.warning(pod, "FailedMount", str(error))
            next_sync = self.now() + RETRY_INTERVAL
            if worker is None:
                await self.update_status(
                    pod, waiting_statuses(pod, "ContainerCreating", str(error)), PodAddresses(addresses.host_ip)
                )
                return Result(requeue_at=next_sync)
        if worker is None:
            worker = self.start_worker(key, pod, addresses)
        self.start_ephemeral_containers(pod, worker)
        await self.update_status(pod, worker.container_statuses(), addresses)
        return Result(requeue_at=next_sync)

    def start_worker(self, key: str, pod: Object, addresses: PodAddresses) -> PodWorker:
        def record_event(type: str, reason: str, message: str) -> None:
            (self.events.normal if type == "Normal" else self.events.warning)(pod, reason, message)

        def on_change() -> None:
            self.requeue(key)

        launcher = self.launcher_for(pod, addresses)
        isolated = self.settings.policy.isolation is not None
        worker = PodWorker(pod, addresses.pod_ip, launcher, self.session, self.now, on_change, record_event, isolated)
        self.workers[key] = worker
        self.group.create_task(self.run_worker(key, worker), name=f"pod-{key}")
        return worker

    def start_ephemeral_containers(self, pod: Object, worker: PodWorker) -> None:
        if not self.settings.policy.run_pods or not pod["spec"].get("ephemeralContainers"):
            return
        worker.pod = pod
        prepared = self.launchers[uid_of(pod)].launches
        for each in runnable_containers(pod, self.settings.policy, ("ephemeralContainers",)):
            if each["name"] in prepared:
                worker.start_ephemeral(each, container_rejection_reason(pod, each, self.settings.policy))

    async def run_worker(self, key: str, worker: PodWorker) -> None:
        try:
            await worker.run()
        except Exception:  # a failure of one pod must not stop the others
            log.exception("pod worker failed; restarting the pod", pod=key)
            await asyncio.sleep(RETRY_INTERVAL.total_seconds())
            del self.workers[key]
            self.requeue(key)

    async def terminate_pod(self, key: str, pod: Object, node: Object) -> Result | None:
        """Stop a deleted pod and confirm its deletion when it has ended."""
        if not is_pod_terminal(pod):
            addresses = self.pods.addresses_of(pod, node)
            worker = self.workers.get(key) or self.start_worker(
                key, pod, addresses
            )  # it also reports that nothing runs
            worker.stop(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
            pod = await self.update_status(pod, worker.container_statuses(), addresses)
            if not worker.is_done:
                return None  # its end triggers another reconcile
        if key not in self.workers:
            pod_folder(self.settings.folder, pod).remove()
        await self.pods.confirm_deletion(pod)
        return None

    def remove_replaced(self, key: str, worker: PodWorker) -> Result | None:
        """Forget a deleted pod when nothing of it runs any more."""
        worker.stop(0)
        if worker.is_done:
            self.forget(key, worker.pod)
            self.requeue(key)  # a new pod of the same name may be waiting
        return None

    def forget(self, key: str, pod: Object) -> None:
        del self.workers[key]
        self.launchers.pop(uid_of(pod), None)
        self.tokens.forget(pod)
        self.pods.addresses.release(key)
        pod_folder(self.settings.folder, pod).remove()

    async def prepare(self, pod: Object, pod_addresses: PodAddresses) -> datetime:
        """Update the volumes and launches of the pod; return when to do it again.  Raise MissingSource."""
        sources = await self.fetch_sources(pod, source_references(pod))
        addresses = {
            "podIP": pod_addresses.pod_ip,
            "podIPs": [{"ip": pod_addresses.pod_ip}],
            "hostIP": pod_addresses.host_ip,
        }
        status = {**(pod.get("status") or {}), **addresses, "hostIPs": [{"ip": pod_addresses.host_ip}]}
        await asyncio.to_thread(self.launcher_for(pod, pod_addresses).prepare, {**pod, "status": status}, sources)
        return min(filter(None, (self.now() + REFRESH_INTERVAL, self.tokens.next_renewal(pod))))

    def launcher_for(self, pod: Object, addresses: PodAddresses) -> PodLauncher:
        found = self.launchers.get(uid_of(pod))
        if found is None:
            folder, settings = pod_folder(self.settings.folder, pod), self.settings
            found = PodLauncher(
                folder, addresses.pod_ip, settings.server, settings.policy, settings.environ, settings.api_servers
            )
            self.launchers[uid_of(pod)] = found
        return found

    async def fetch_sources(self, pod: Object, references: SourceReferences) -> Sources:
        namespace = namespace_of(pod)
        return Sources(
            {name: await self.client.find(CONFIGMAPS, name, namespace) for name in references.configmaps},
            {name: await self.client.find(SECRETS, name, namespace) for name in references.secrets},
            {token: await self.tokens.token_for(pod, token) for token in references.tokens},
        )

    async def update_status(self, pod: Object, statuses: ContainerStatuses, addresses: PodAddresses) -> Object:
        """Patch the pod's status if it changed; return the pod."""
        status = pod_status(pod, statuses, addresses, self.now())
        if not status_differs(pod.get("status") or {}, status):
            return pod
        return await self.client.patch(PODS, pod, {"status": status}, subresource="status")

    # -- kubelet API

    def log(self, pod: Object, container: str, query: LogQuery, /) -> AsyncIterator[bytes]:
        worker = self.workers.get(key_of(pod))
        state = worker.containers.get(container) if worker is not None else None
        status = state.status() if state is not None else status_of_container(pod, container)
        is_waiting = "waiting" in value_at(status, "state", default={})  # the previous run is the last one
        run = status.get("restartCount", 0) - (query.previous and not is_waiting)
        path = pod_folder(self.settings.folder, pod).log(container, run)
        if query.previous and not path.exists():
            raise LogNotFound(f'previous terminated container "{container}" in pod "{name_of(pod)}" not found')
        live = state.log if state is not None and not query.previous else None
        if live is None and not path.exists():
            raise LogNotFound(f'container "{container}" in pod "{name_of(pod)}" is waiting to start')
        return read_log(path, query, live)

    def usage(self, node: Object) -> Sequence[PodUsage]:
        found = []
        for pod in self.pods.on_node(node):
            worker = self.workers.get(key_of(pod))
            running = running_containers(worker) if worker is not None else {}
            used = [container_usage(name, each, self.now(), self.cpu_rates) for name, each in running.items()]
            if known := [each for each in used if each is not None]:
                found.append(PodUsage(pod, known))
        self.cpu_rates.forget_others(
            {each.process.pid for worker in self.workers.values() for each in running_containers(worker).values()}
        )
        return found

    async def exec(
        self, pod: Object, container: str, command: Sequence[str], *, stdin: bool, terminal: bool
    ) -> ContainerProcess:
        if not self.settings.policy.run_pods:
            raise StreamRejected("exec is not allowed: this node runs only Tapestry's own program")
        state, running = self.running_container(pod, container)
        if not command:
            raise StreamRejected("a command is required")
        if len(running.commands) >= MAX_COMMANDS:
            raise StreamRejected(f'container "{container}" already runs {MAX_COMMANDS} commands')
        launch = self.launchers[uid_of(pod)].exec(state.spec, command)
        try:
            return await start_command(running, launch, stdin=stdin, terminal=terminal)
        except OSError as error:
            raise StreamRejected(f'failed to exec in container "{container}": {error}') from error

    async def attach(self, pod: Object, container: str, *, stdin: bool, terminal: bool) -> ContainerProcess:
        _, running = self.running_container(pod, container)
        if terminal and not running.launch.terminal:
            raise StreamRejected(f'container "{container}" has no terminal; attach without -t')
        if len(running.clients) >= MAX_CLIENTS:
            raise StreamRejected(f'{MAX_CLIENTS} clients are already attached to container "{container}"')
        return running.attach(stdin=stdin)

    async def dial(self, pod: Object, port: int) -> Connection:
        worker = self.workers.get(key_of(pod))
        if worker is None or uid_of(worker.pod) != uid_of(pod) or worker.is_done:
            raise StreamRejected(f'pod "{name_of(pod)}" is not running')
        try:
            if worker.environment is not None:
                return await worker.environment.sandbox.connect(LOOPBACK, port)
            if port not in declared_ports(pod):  # other ports of the address can belong to the machine
                raise StreamRejected(f'pod "{name_of(pod)}" does not declare the port {port}; add it to `ports`')
            return await asyncio.open_connection(worker.address, port)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error) or "timed out"
            raise StreamRejected(f'failed to connect to port {port} of pod "{name_of(pod)}": {reason}') from error

    def running_container(self, pod: Object, container: str) -> tuple[Container, RunningContainer]:
        worker = self.workers.get(key_of(pod))
        state = worker.containers.get(container) if worker is not None and uid_of(worker.pod) == uid_of(pod) else None
        if state is None or state.running is None:
            raise StreamRejected(f'container "{container}" of pod "{name_of(pod)}" is not running')
        return state, state.running


def running_containers(worker: PodWorker) -> dict[str, RunningContainer]:
    return {each.name: each.running for each in worker.containers.values() if each.running is not None}


def waiting_statuses(pod: Object, reason: str, message: str) -> ContainerStatuses:
    state, spec = waiting_state(reason, message), pod["spec"]
    return ContainerStatuses(
        [container_status(each, state, "") for each in spec["containers"]],
        [container_status(each, state, "") for each in spec.get("initContainers") or ()],
    )


def status_of_container(pod: Object, container: str) -> Object:
    status = pod.get("status") or {}
    fields = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
    statuses = (each for field in fields for each in status.get(field) or ())
    return next((each for each in statuses if each["name"] == container), {})


def container_usage(name: str, running: RunningContainer, now: datetime, rates: CpuRates) -> ContainerUsage | None:
    """Return the usage of a container's processes; None if they are gone."""
    pid = running.process.pid
    try:
        found = process_tree_stat(pid, running.init_levels)
    except OSError:
        return None
    age = max(uptime() - found.start_seconds, 0.01)
    cores = rates.cores(pid, CpuSample(now, found.cpu_seconds), found.cpu_seconds / age)
    return ContainerUsage(name, now - timedelta(seconds=age), cores, found.cpu_seconds, found.memory)


@dataclass(frozen=True)
class ProcessSettings:
    """Configuration of the process kubelet."""

    folder: Path
    """Folder for volumes and logs."""
    server: str
    """URL of the API server, for pods that call it."""
    policy: ProcessPolicy
    environ: Mapping[str, str]
    """Environment of this process; pods inherit a few of its variables."""
    api_servers: Callable[[], Sequence[Endpoint]] = tuple
    """Return the API servers that pods with their own network may connect to."""
    isolation_failure: str = ""
    """Reason why other pods run without namespaces of their own."""


def node_type(settings: ProcessSettings) -> NodeType:
    """Return the type of the nodes; a condition reports whether their pods are isolated."""
    if not settings.policy.run_pods:
        return PROCESS_NODES
    if settings.policy.isolation is not None:
        message = "containers are processes of this machine in their own Linux namespaces"
        return replace(PROCESS_NODES, message=message, conditions={ISOLATED: ("True", "Namespaces", message)})
    message = f"containers are plain processes of this machine, without isolation: {settings.isolation_failure}"
    log.warning("containers run without isolation", reason=settings.isolation_failure)
    return replace(PROCESS_NODES, message=message, conditions={ISOLATED: ("False", "NoNamespaces", message)})


def install(manager: Manager, port: Callable[[], int], settings: ProcessSettings) -> KubeletServer:
    """Run the process nodes of a cluster; serve the returned API on `port`."""
    process_nodes = nodes.install(manager, node_type(settings), port)
    pods = bound_pods(manager, process_nodes, PROCESS_POD_NETWORK)
    tokens = TokenCache(manager.client, manager.now)

    def requeue(key: str) -> None:
        controller.queue.add(key)

    kubelet = ProcessKubelet(manager.client, manager.now, manager.events, pods, tokens, settings, requeue)
    controller: Controller = manager.controller("process-pods", kubelet.reconcile, workers=WORKERS)
    pods.watch_with(controller)
    manager.run_while_leading("processes", kubelet.run)
    return KubeletServer(manager.client, process_nodes, pods.informer, kubelet, manager.now)
