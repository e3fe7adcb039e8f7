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
from tapestry.kube.pods import is_over
from tapestry.kube.resources import CONFIGMAPS, PODS, SECRETS
from tapestry.local import nodes
from tapestry.local.addresses import PROCESSES
from tapestry.local.bound_pods import BoundPods, bound_pods
from tapestry.local.commands import Trust, refusal
from tapestry.local.container_logs import reading
from tapestry.local.kubelet_api import Kubelet, LogQuery, NoLog
from tapestry.local.nodes import Sort, new_node
from tapestry.local.pod_folders import folder_of, sweep
from tapestry.local.preparation import Launches, Tokens
from tapestry.local.proc import PAGE, stat_of, uptime
from tapestry.local.sources import Asked, Missing, Sources, asked_by
from tapestry.local.statuses import Containers, Place, container_status, differs, pod_status, waiting
from tapestry.local.supervision import Supervision
from tapestry.local.usage import PodUse, Use
from tapestry.process.logs import logger

log = logger(__name__)

PROCESS = Sort(PROCESS_NODE, "process", "containers are processes of this machine")
TAINT = {"key": PROCESS_NODE, "effect": NO_SCHEDULE}
WORKERS = 8
REFRESH = timedelta(seconds=60)
"""After which ConfigMaps and Secrets are looked at again."""
RETRY = timedelta(seconds=2)


def process_node(name: str, room: Mapping[str, str], labels: Mapping[str, str] | None = None) -> Object:
    """A node to be created, which only pods come to that tolerate its taint."""
    return new_node(PROCESS, name, room, labels, [TAINT])


def machine_room() -> dict[str, str]:
    """What this machine has."""
    memory = PAGE * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": str(os.cpu_count() or 1), "memory": f"{memory >> 10}Ki", "pods": "110"}


@dataclass
class Processes:
    """Runs the pods of process nodes; keyed as they are."""

    client: Client
    now: Callable[[], datetime]
    events: Recorder
    pods: BoundPods
    tokens: Tokens
    settings: "Settings"
    again: Callable[[str], None]
    """Has a pod looked at again."""
    supervised: dict[str, Supervision] = field(default_factory=dict)
    preparations: dict[str, Launches] = field(default_factory=dict)
    group: asyncio.TaskGroup = field(init=False)
    session: aiohttp.ClientSession = field(init=False)
    at_work: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Own all that runs, until cancelled; then it has ended."""
        sweep(self.settings.folder, self.pods.informer.store.list())
        async with aiohttp.ClientSession() as self.session, asyncio.TaskGroup() as self.group:
            self.at_work.set()
            await asyncio.Event().wait()

    async def reconcile(self, key: str) -> Result | None:
        await self.at_work.wait()
        pod, found = self.pods.informer.store.get(key), self.supervised.get(key)
        if found is not None and (pod is None or uid_of(pod) != uid_of(found.pod)):
            return self.end(key, found)
        if pod is None:
            self.pods.addresses.release(key)
            return None
        node = self.pods.node_of(pod)
        if node is None:
            return None
        with suppress(NotFound):
            if is_deleting(pod):
                return await self.stop(key, pod, node)
            if is_over(pod):
                return None
            return await self.keep(key, pod, node)
        return None

    async def keep(self, key: str, pod: Object, node: Object) -> Result | None:
        """Have the pod run, and say how it does."""
        place = self.pods.place(pod, node)
        if why := refusal(pod, self.settings.trust):
            if await self.say(pod, held_up(pod, "Refused", why), Place(place.node)) is not pod:
                self.events.warning(pod, "Refused", why)
            return None
        found = self.supervised.get(key)
        try:
            again = await self.prepare(pod, place)
        except Missing as error:
            self.events.warning(pod, "FailedMount", str(error))
            again = self.now() + RETRY
            if found is None:
                await self.say(pod, held_up(pod, "ContainerCreating", str(error)), Place(place.node))
                return Result(requeue_at=again)
        if found is None:
            found = self.start(key, pod, place)
        await self.say(pod, found.report(), place)
        return Result(requeue_at=again)

    def start(self, key: str, pod: Object, place: Place) -> Supervision:
        def said(type: str, reason: str, message: str) -> None:
            (self.events.normal if type == "Normal" else self.events.warning)(pod, reason, message)

        def changed() -> None:
            self.again(key)

        launches = self.launches_of(pod, place)
        found = Supervision(pod, place.pod, launches, self.session, self.now, changed, said)
        self.supervised[key] = found
        self.group.create_task(self.watched(key, found), name=f"pod-{key}")
        return found

    async def watched(self, key: str, found: Supervision) -> None:
        try:
            await found.run()
        except Exception:  # one pod's trouble must not be that of all
            log.exception("a pod is started anew", pod=key)
            await asyncio.sleep(RETRY.total_seconds())
            del self.supervised[key]
            self.again(key)

    async def stop(self, key: str, pod: Object, node: Object) -> Result | None:
        """Have a deleted pod end, and let go of it when it has."""
        if not is_over(pod):
            place = self.pods.place(pod, node)
            found = self.supervised.get(key) or self.start(key, pod, place)  # that nothing of it runs, it says as well
            found.stop(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
            pod = await self.say(pod, found.report(), place)
            if not found.over:
                return None  # its end brings us back
        if key not in self.supervised:
            folder_of(self.settings.folder, pod).remove()
        await self.pods.let_go(pod)
        return None

    def end(self, key: str, found: Supervision) -> Result | None:
        """Forget a pod that is no more, once nothing of it runs."""
        found.stop(0)
        if found.over:
            self.forget(key, found.pod)
            self.again(key)  # another of its name may be waiting
        return None

    def forget(self, key: str, pod: Object) -> None:
        del self.supervised[key]
        self.preparations.pop(uid_of(pod), None)
        self.tokens.forget(pod)
        self.pods.addresses.release(key)
        folder_of(self.settings.folder, pod).remove()

    async def prepare(self, pod: Object, place: Place) -> datetime:
        """Bring what the pod's containers find on the disk up to date; returns when to look again.  Raises Missing."""
        sources = await self.fetched(pod, asked_by(pod))
        addresses = {"podIP": place.pod, "podIPs": [{"ip": place.pod}], "hostIP": place.node}
        shown = {**(pod.get("status") or {}), **addresses, "hostIPs": [{"ip": place.node}]}
        await asyncio.to_thread(self.launches_of(pod, place).prepare, {**pod, "status": shown}, sources)
        return min(filter(None, (self.now() + REFRESH, self.tokens.next_renewal(pod))))

    def launches_of(self, pod: Object, place: Place) -> Launches:
        found = self.preparations.get(uid_of(pod))
        if found is None:
            folder, given = folder_of(self.settings.folder, pod), self.settings
            found = Launches(folder, place.pod, given.server, given.trust, given.environ)
            self.preparations[uid_of(pod)] = found
        return found

    async def fetched(self, pod: Object, asked: Asked) -> Sources:
        namespace = namespace_of(pod)
        return Sources(
            {name: await self.client.find(CONFIGMAPS, name, namespace) for name in asked.configmaps},
            {name: await self.client.find(SECRETS, name, namespace) for name in asked.secrets},
            {token: await self.tokens.of(pod, token) for token in asked.tokens},
        )

    async def say(self, pod: Object, said: Containers, place: Place) -> Object:
        """Report how the pod does, if that is news; returns the pod as it is then."""
        status = pod_status(pod, said, place, self.now())
        if not differs(pod.get("status") or {}, status):
            return pod
        return await self.client.patch(PODS, pod, {"status": status}, subresource="status")

    # -- what others ask

    def log(self, pod: Object, container: str, query: LogQuery, /) -> AsyncIterator[bytes]:
        found = self.supervised.get(key_of(pod))
        known = found.containers.get(container) if found is not None else None
        said = known.status() if known is not None else status_of(pod, container)
        is_waiting = "waiting" in value_at(said, "state", default={})  # the run before is the last there was
        run = said.get("restartCount", 0) - (query.previous and not is_waiting)
        path = folder_of(self.settings.folder, pod).log(container, run)
        if query.previous and not path.exists():
            raise NoLog(f'previous terminated container "{container}" in pod "{name_of(pod)}" not found')
        live = known.log if known is not None and not query.previous else None
        if live is None and not path.exists():
            raise NoLog(f'container "{container}" in pod "{name_of(pod)}" is waiting to start')
        return reading(path, query, live)

    def usage(self, node: Object) -> Sequence[PodUse]:
        found = []
        for pod in self.pods.on(node):
            supervision = self.supervised.get(key_of(pod))
            containers = supervision.containers.values() if supervision is not None else ()
            uses = [use for each in containers if each.pid and (use := measured(each.name, each.pid, self.now()))]
            if uses:
                found.append(PodUse(pod, uses))
        return found


def held_up(pod: Object, reason: str, message: str) -> Containers:
    """What is said of containers that do not start."""
    state, spec = waiting(reason, message), pod["spec"]
    return Containers(
        [container_status(each, state, "") for each in spec["containers"]],
        [container_status(each, state, "") for each in spec.get("initContainers") or ()],
    )


def status_of(pod: Object, container: str) -> Object:
    status = pod.get("status") or {}
    said = (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ()))
    return next((each for each in said if each["name"] == container), {})


def measured(container: str, pid: int, now: datetime) -> Use | None:
    """What a process has used; None where it is gone."""
    try:
        found = stat_of(pid)
    except OSError:
        return None
    age = max(uptime() - found.began, 0.01)
    return Use(container, now - timedelta(seconds=age), found.worked / age, found.worked, found.memory)


@dataclass(frozen=True)
class Settings:
    """How pods are run."""

    folder: Path
    """For their volumes and logs."""
    server: str
    """The URL of the API server, for those of them that call it."""
    trust: Trust
    environ: Mapping[str, str]
    """Variables of this process, of which they get a few."""


def install(manager: Manager, port: Callable[[], int], settings: Settings) -> Kubelet:
    """Have the process nodes of a cluster live; `port` is where what is returned is served."""
    ours = nodes.install(manager, PROCESS, port)
    pods = bound_pods(manager, ours, PROCESSES)
    tokens = Tokens(manager.client, manager.now)

    def again(key: str) -> None:
        controller.queue.add(key)

    running = Processes(manager.client, manager.now, manager.events, pods, tokens, settings, again)
    controller: Controller = manager.controller("processes", running.reconcile, workers=WORKERS)
    pods.wake(controller)
    manager.while_working("processes", running.run)
    return Kubelet(manager.client, ours, pods.informer, running, manager.now)
