"""A kubelet without containers: it runs the commands of pods as processes of this machine, for nodes with a label.

It runs our own program in namespaces that it was told to trust, and nothing else unless it is told to (`Trust`).  What
runs is the calling user's, with few of its variables (`commands`), in a folder of its own (`pod_folders`) and on an
address of its own, of loopback.  All of it goes when this process goes, and is started anew by the next one.

    process_node   a node to be created
    install        have the process nodes of a cluster live
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import aiohttp

from tapestry.apis.keys import NO_SCHEDULE, PROCESS_NODE
from tapestry.client.client import Client
from tapestry.controller import Controller, Manager, Result
from tapestry.controller.events import Recorder
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, is_deleting, key_of, name_of, namespace_of, uid_of, value_at
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.resources import CONFIGMAPS, PODS, SECRETS
from tapestry.local import nodes
from tapestry.local.addresses import PROCESS_POD_NETWORK
from tapestry.local.bound_pods import BoundPods, bound_pods
from tapestry.local.container_commands import ProcessPolicy, rejection_reason
from tapestry.local.container_logs import read_log
from tapestry.local.container_setup import PodLauncher, TokenCache
from tapestry.local.kubelet_api import KubeletServer, LogNotFound, LogQuery
from tapestry.local.nodes import NodeType, new_node
from tapestry.local.pod_folders import pod_folder, remove_orphaned
from tapestry.local.pod_worker import PodWorker
from tapestry.local.proc import PAGE_BYTES, process_stat, uptime
from tapestry.local.statuses import (
    ContainerStatuses,
    PodAddresses,
    container_status,
    pod_status,
    status_differs,
    waiting_state,
)
from tapestry.local.usage import ContainerUsage, PodUsage
from tapestry.local.volume_sources import MissingSource, SourceReferences, Sources, source_references
from tapestry.process.logs import logger

log = logger(__name__)

PROCESS_NODES = NodeType(PROCESS_NODE, "process", "containers are processes of this machine")
TAINT = {"key": PROCESS_NODE, "effect": NO_SCHEDULE}
WORKERS = 8
REFRESH_INTERVAL = timedelta(seconds=60)
"""After which ConfigMaps and Secrets are looked at again."""
RETRY_INTERVAL = timedelta(seconds=2)


def process_node(name: str, capacity: Mapping[str, str], labels: Mapping[str, str] | None = None) -> Object:
    """A node to be created, which only pods come to that tolerate its taint."""
    return new_node(PROCESS_NODES, name, capacity, labels, [TAINT])


def machine_capacity() -> dict[str, str]:
    """What this machine has."""
    memory = PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": str(os.cpu_count() or 1), "memory": f"{memory >> 10}Ki", "pods": "110"}


@dataclass
class ProcessKubelet:
    """Runs the pods of process nodes; keyed as they are."""

    client: Client
    now: Callable[[], datetime]
    events: Recorder
    pods: BoundPods
    tokens: TokenCache
    settings: "ProcessSettings"
    requeue: Callable[[str], None]
    """Has a pod looked at again."""
    workers: dict[str, PodWorker] = field(default_factory=dict)
    launchers: dict[str, PodLauncher] = field(default_factory=dict)
    group: asyncio.TaskGroup = field(init=False)
    session: aiohttp.ClientSession = field(init=False)
    started: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Own all that runs, until cancelled; then it has ended."""
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
        """Have the pod run, and say how it does."""
        place = self.pods.addresses_of(pod, node)
        if why := rejection_reason(pod, self.settings.policy):
            if (
                await self.update_status(pod, waiting_statuses(pod, "Refused", why), PodAddresses(place.host_ip))
                is not pod
            ):
                self.events.warning(pod, "Refused", why)
            return None
        found = self.workers.get(key)
        try:
            again = await self.prepare(pod, place)
        except MissingSource as error:
            self.events.warning(pod, "FailedMount", str(error))
            again = self.now() + RETRY_INTERVAL
            if found is None:
                await self.update_status(
                    pod, waiting_statuses(pod, "ContainerCreating", str(error)), PodAddresses(place.host_ip)
                )
                return Result(requeue_at=again)
        if found is None:
            found = self.start_worker(key, pod, place)
        await self.update_status(pod, found.container_statuses(), place)
        return Result(requeue_at=again)

    def start_worker(self, key: str, pod: Object, addresses: PodAddresses) -> PodWorker:
        def said(type: str, reason: str, message: str) -> None:
            (self.events.normal if type == "Normal" else self.events.warning)(pod, reason, message)

        def changed() -> None:
            self.requeue(key)

        launches = self.launcher_for(pod, addresses)
        found = PodWorker(pod, addresses.pod_ip, launches, self.session, self.now, changed, said)
        self.workers[key] = found
        self.group.create_task(self.run_worker(key, found), name=f"pod-{key}")
        return found

    async def run_worker(self, key: str, worker: PodWorker) -> None:
        try:
            await worker.run()
        except Exception:  # one pod's trouble must not be that of all
            log.exception("a pod is started anew", pod=key)
            await asyncio.sleep(RETRY_INTERVAL.total_seconds())
            del self.workers[key]
            self.requeue(key)

    async def terminate_pod(self, key: str, pod: Object, node: Object) -> Result | None:
        """Have a deleted pod end, and let go of it when it has."""
        if not is_pod_terminal(pod):
            place = self.pods.addresses_of(pod, node)
            found = self.workers.get(key) or self.start_worker(
                key, pod, place
            )  # that nothing of it runs, it says as well
            found.stop(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
            pod = await self.update_status(pod, found.container_statuses(), place)
            if not found.is_done:
                return None  # its end brings us back
        if key not in self.workers:
            pod_folder(self.settings.folder, pod).remove()
        await self.pods.confirm_deletion(pod)
        return None

    def remove_replaced(self, key: str, worker: PodWorker) -> Result | None:
        """Forget a pod that is no more, once nothing of it runs."""
        worker.stop(0)
        if worker.is_done:
            self.forget(key, worker.pod)
            self.requeue(key)  # another of its name may be waiting
        return None

    def forget(self, key: str, pod: Object) -> None:
        del self.workers[key]
        self.launchers.pop(uid_of(pod), None)
        self.tokens.forget(pod)
        self.pods.addresses.release(key)
        pod_folder(self.settings.folder, pod).remove()

    async def prepare(self, pod: Object, place: PodAddresses) -> datetime:
        """Bring what the pod's containers find on the disk up to date; returns when to look again.  Raises Missing."""
        sources = await self.fetch_sources(pod, source_references(pod))
        addresses = {"podIP": place.pod_ip, "podIPs": [{"ip": place.pod_ip}], "hostIP": place.host_ip}
        shown = {**(pod.get("status") or {}), **addresses, "hostIPs": [{"ip": place.host_ip}]}
        await asyncio.to_thread(self.launcher_for(pod, place).prepare, {**pod, "status": shown}, sources)
        return min(filter(None, (self.now() + REFRESH_INTERVAL, self.tokens.next_renewal(pod))))

    def launcher_for(self, pod: Object, addresses: PodAddresses) -> PodLauncher:
        found = self.launchers.get(uid_of(pod))
        if found is None:
            folder, given = pod_folder(self.settings.folder, pod), self.settings
            found = PodLauncher(folder, addresses.pod_ip, given.server, given.policy, given.environ)
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
        """Report how the pod does, if that is news; returns the pod as it is then."""
        status = pod_status(pod, statuses, addresses, self.now())
        if not status_differs(pod.get("status") or {}, status):
            return pod
        return await self.client.patch(PODS, pod, {"status": status}, subresource="status")

    # -- what others ask

    def log(self, pod: Object, container: str, query: LogQuery, /) -> AsyncIterator[bytes]:
        found = self.workers.get(key_of(pod))
        known = found.containers.get(container) if found is not None else None
        said = known.status() if known is not None else status_of_container(pod, container)
        is_waiting = "waiting" in value_at(said, "state", default={})  # the run before is the last there was
        run = said.get("restartCount", 0) - (query.previous and not is_waiting)
        path = pod_folder(self.settings.folder, pod).log(container, run)
        if query.previous and not path.exists():
            raise LogNotFound(f'previous terminated container "{container}" in pod "{name_of(pod)}" not found')
        live = known.log if known is not None and not query.previous else None
        if live is None and not path.exists():
            raise LogNotFound(f'container "{container}" in pod "{name_of(pod)}" is waiting to start')
        return read_log(path, query, live)

    def usage(self, node: Object) -> Sequence[PodUsage]:
        found = []
        for pod in self.pods.on_node(node):
            supervision = self.workers.get(key_of(pod))
            containers = supervision.containers.values() if supervision is not None else ()
            uses = [use for each in containers if each.pid and (use := process_usage(each.name, each.pid, self.now()))]
            if uses:
                found.append(PodUsage(pod, uses))
        return found


def waiting_statuses(pod: Object, reason: str, message: str) -> ContainerStatuses:
    """What is said of containers that do not start."""
    state, spec = waiting_state(reason, message), pod["spec"]
    return ContainerStatuses(
        [container_status(each, state, "") for each in spec["containers"]],
        [container_status(each, state, "") for each in spec.get("initContainers") or ()],
    )


def status_of_container(pod: Object, container: str) -> Object:
    status = pod.get("status") or {}
    said = (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ()))
    return next((each for each in said if each["name"] == container), {})


def process_usage(container: str, pid: int, now: datetime) -> ContainerUsage | None:
    """What a process has used; None where it is gone."""
    try:
        found = process_stat(pid)
    except OSError:
        return None
    age = max(uptime() - found.start_seconds, 0.01)
    return ContainerUsage(
        container, now - timedelta(seconds=age), found.cpu_seconds / age, found.cpu_seconds, found.memory
    )


@dataclass(frozen=True)
class ProcessSettings:
    """How pods are run."""

    folder: Path
    """For their volumes and logs."""
    server: str
    """The URL of the API server, for those of them that call it."""
    policy: ProcessPolicy
    environ: Mapping[str, str]
    """Variables of this process, of which they get a few."""


def install(manager: Manager, port: Callable[[], int], settings: ProcessSettings) -> KubeletServer:
    """Have the process nodes of a cluster live; `port` is where what is returned is served."""
    ours = nodes.install(manager, PROCESS_NODES, port)
    pods = bound_pods(manager, ours, PROCESS_POD_NETWORK)
    tokens = TokenCache(manager.client, manager.now)

    def again(key: str) -> None:
        controller.queue.add(key)

    running = ProcessKubelet(manager.client, manager.now, manager.events, pods, tokens, settings, again)
    controller: Controller = manager.controller("processes", running.reconcile, workers=WORKERS)
    pods.watch_with(controller)
    manager.run_while_leading("processes", running.run)
    return KubeletServer(manager.client, ours, pods.informer, running, manager.now)
