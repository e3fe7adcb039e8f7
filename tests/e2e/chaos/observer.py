"""Observer of both sides: the history of pods and twins, and the current disagreements.

It reads from the API servers directly, not through proxies. Watches resume where they ended, so no twin is missed. If a
watch had to list again, `restarted_watches` reports it and the observations are not valid.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, Binding, binding_of
from tapestry.client.client import Client
from tapestry.client.metrics import WATCH_RESTARTS
from tapestry.controller import Informer
from tapestry.kube.objects import Object, annotations_of, is_deleting, key_of, labels_of, uid_of, value_at
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES, PODS, SECRETS

from ...integration.bound_clusters import BoundClusters
from .churn import COLOUR, FINISHING, KIND, LATE, PASSWORD, SETTINGS, TOKEN

TERMINAL_PHASES = ("Succeeded", "Failed")
STATUS_FIELDS = ("phase", "startTime", "hostIP", "podIP", "podIPs", "containerStatuses")
PAUSE = 0.5
"""Seconds between two comparisons of both sides."""
CONDITIONS = ("Initialized", "ContainersReady", "Ready")


@dataclass
class PhysicalState:
    """Our objects in the mount namespace of one clusters."""

    pods: Informer
    configmaps: Informer
    secrets: Informer

    @property
    def informers(self) -> tuple[Informer, Informer, Informer]:
        return self.pods, self.configmaps, self.secrets


@dataclass
class Observer:
    above: Informer
    sources: Mapping[str, Informer]
    """Virtual ConfigMaps and Secrets, by kind."""
    below: Mapping[str, PhysicalState]
    """Physical objects, by the name of the binding."""
    twins: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """UIDs of all twins that a pod ever had, by the pod's UID."""
    ended: dict[str, str] = field(default_factory=dict)
    """Terminal phase of each pod that terminated, by UID."""
    resurrected: list[str] = field(default_factory=list)
    """Pods whose phase changed after they terminated."""
    failed: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Node and message of each failed pod, by UID."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    to_finish: asyncio.Queue[tuple[str, Object]] = field(default_factory=asyncio.Queue)
    """Running twins that should finish, each with the name of its binding."""
    relisted_before: int = field(default_factory=lambda: relisted_watches())
    """Watches that listed again in earlier tests of this process."""

    def restarted_watches(self) -> int:
        """Return the number of watches that had to list again, and may have missed changes."""
        return relisted_watches() - self.relisted_before

    def record_pod(self, _: Object | None, pod: Object | None) -> None:
        if pod is not None:
            uid, phase = uid_of(pod), pod["status"]["phase"]
            if self.ended.get(uid, phase) != phase:
                self.resurrected.append(f"{key_of(pod)}: {self.ended[uid]}, then {phase}")
            if phase in TERMINAL_PHASES:
                self.ended[uid] = phase
            if phase == "Failed":
                node, message = pod["spec"]["nodeName"], (pod["status"].get("reason"), pod["status"].get("message"))
                self.failed[uid] = node, f"{key_of(pod)} on {node} failed: {message}"
        self.changed.set()

    def record_twin(self, binding_name: str, old: Object | None, twin: Object | None) -> None:
        if twin is not None:
            self.twins[annotations_of(twin).get(keys.VIRTUAL_POD_UID, "")].add(uid_of(twin))
            started = phase_of(twin) == "Running" and (old is None or phase_of(old) != "Running")
            if started and labels_of(twin).get(KIND) == FINISHING:
                self.to_finish.put_nowait((binding_name, twin))
        self.changed.set()

    def duplicate_twins(self) -> list[str]:
        return [f"pod {pod} had the twins {sorted(twins)}" for pod, twins in self.twins.items() if len(twins) > 1]

    async def wait_until(self, condition: Callable[[], bool], timeout: float, *, pause: float = 0.0) -> bool:
        """Return True if the condition holds in time. It is checked on changes, at most once per `pause` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while not condition():
                    self.changed.clear()
                    await asyncio.sleep(pause)
                    await self.changed.wait()
        except TimeoutError:
            return False
        return True

    async def wait_for_agreement(self, timeout: float) -> bool:
        return await self.wait_until(lambda: not self.disagreements(), timeout, pause=PAUSE)

    # -- agreement

    def disagreements(self) -> list[str]:
        """Return all differences between both sides, and all work that is not finished."""
        found = [
            disagreement
            for binding_name, below in self.below.items()
            for part in (self.twin_disagreements, self.copy_disagreements)
            for disagreement in part(binding_name, below)
        ]
        unassigned = [
            f"{key_of(pod)} is on no node of ours" for pod in self.above.store.list() if not self.binding_name_of(pod)
        ]
        return found + unassigned

    def binding_name_of(self, pod: Object) -> str:
        node = pod["spec"]["nodeName"]
        return next((binding_name for binding_name in self.below if node.startswith(f"vnode-{binding_name}-")), "")

    def pods_of(self, binding_name: str) -> list[Object]:
        return [pod for pod in self.above.store.list() if self.binding_name_of(pod) == binding_name]

    def twin_disagreements(self, binding_name: str, below: PhysicalState) -> Iterator[str]:
        twins_by_pod: dict[str, list[Object]] = defaultdict(list)
        for twin in below.pods.store.list():
            twins_by_pod[annotations_of(twin).get(keys.VIRTUAL_POD_UID, "")].append(twin)
        for pod in self.pods_of(binding_name):
            twins = twins_by_pod.pop(uid_of(pod), [])
            if len(twins) == 1:
                yield from (f"{key_of(pod)}: {each}" for each in differences(pod, twins[0]))
            elif phase_of(pod) not in TERMINAL_PHASES or twins:
                yield f"{key_of(pod)} ({phase_of(pod)}) has {len(twins)} twins"
        yield from (f"{binding_name}: {key_of(twin)} has no pod" for twins in twins_by_pod.values() for twin in twins)

    def copy_disagreements(self, binding_name: str, below: PhysicalState) -> Iterator[str]:
        needed = {
            key
            for pod in self.pods_of(binding_name)
            if phase_of(pod) not in TERMINAL_PHASES
            for key in copies_needed_by(pod)
        }
        found: dict[tuple[str, str], Object] = {}
        for kind, informer in (("ConfigMap", below.configmaps), ("Secret", below.secrets)):
            for copy in informer.store.list():
                annotations = annotations_of(copy)
                name = annotations.get(keys.VIRTUAL_NAME)
                found[(kind, name) if name else (TOKEN, annotations[keys.VIRTUAL_POD_UID])] = copy
        yield from (f"{binding_name}: there is no copy of {key}" for key in needed - found.keys())
        yield from (f"{binding_name}: no pod needs the copy of {key}" for key in found.keys() - needed)
        for kind, name in needed & found.keys():
            if kind in self.sources:
                source = self.sources[kind].store.get(f"default/{name}")
                if source is None or source.get("data") != found[kind, name].get("data"):
                    yield f"{binding_name}: the copy of {kind} {name} has other data"


def phase_of(pod: Object) -> str:
    return str(value_at(pod, "status", "phase"))


def copies_needed_by(pod: Object) -> Iterator[tuple[str, str]]:
    """Yield the copies that a pod needs in the physical cluster."""
    match labels_of(pod)[KIND]:
        case kind if kind in (SETTINGS, LATE):
            yield "ConfigMap", pod["spec"]["volumes"][0]["configMap"]["name"]
        case kind if kind == PASSWORD:
            yield "Secret", pod["spec"]["containers"][0]["env"][0]["valueFrom"]["secretKeyRef"]["name"]
        case kind if kind == TOKEN:
            yield TOKEN, uid_of(pod)


def differences(pod: Object, twin: Object) -> Iterator[str]:
    """Yield the differences between a pod and its twin."""
    if is_deleting(pod) or is_deleting(twin):
        yield "it, or its twin, is being deleted"
    if phase_of(pod) not in ("Running", "Succeeded"):
        yield f"it is {phase_of(pod)}"
    if labels_of(pod)[KIND] == FINISHING and phase_of(pod) == "Running":
        yield "it has not finished yet"
    if phase_of(pod) == "Running" and labels_of(pod)[COLOUR] != labels_of(twin).get(COLOUR):
        yield f"it is {labels_of(pod)[COLOUR]}, its twin {labels_of(twin).get(COLOUR)}"
    mapped = condition_of(pod, keys.MAPPED_CONDITION)
    if (mapped.get("status"), mapped.get("message")) != ("True", uid_of(twin)):
        yield f"its twin is {uid_of(twin)}, and it says {mapped}"
    for field_ in STATUS_FIELDS:
        if value_at(pod, "status", field_) != value_at(twin, "status", field_):
            yield f"{field_} is {value_at(pod, 'status', field_)}, below {value_at(twin, 'status', field_)}"
    for type in CONDITIONS:
        if condition_of(pod, type).get("status") != condition_of(twin, type).get("status"):
            yield f"{type} is {condition_of(pod, type)}, below {condition_of(twin, type)}"


def condition_of(pod: Object, type: str) -> Object:
    return next((each for each in value_at(pod, "status", "conditions", default=[]) if each["type"] == type), {})


def relisted_watches() -> int:
    """Return the number of watches of this process that ever had to list again."""
    return sum(int(count) for labels, count in WATCH_RESTARTS.values().items() if "Gone" in labels)


async def binding_of_clusters(clusters: BoundClusters) -> Binding:
    system = await clusters.virtual.get(NAMESPACES, "kube-system")
    return binding_of(await clusters.virtual.get(CLUSTER_BINDINGS, clusters.name), uid_of(system))


async def informers_of(clusters: BoundClusters) -> PhysicalState:
    ours = (await binding_of_clusters(clusters)).owner_labels()
    labels = ",".join(f"{key}={value}" for key, value in ours.items())
    kinds = (PODS, CONFIGMAPS, SECRETS)
    return PhysicalState(
        *(Informer(clusters.physical, kind, namespace=clusters.mount, labels=labels) for kind in kinds)
    )


@asynccontextmanager
async def observing(virtual: Client, cluster_pairs: Iterable[BoundClusters]) -> AsyncIterator[Observer]:
    """Run an Observer. It has seen all existing objects when this yields."""
    below = {clusters.name: await informers_of(clusters) for clusters in cluster_pairs}
    sources = {kind.kind: Informer(virtual, kind, namespace="default") for kind in (CONFIGMAPS, SECRETS)}
    observer = Observer(Informer(virtual, PODS, namespace="default", labels=KIND), sources, below)
    observer.above.on_change(observer.record_pod)
    for name, each in below.items():
        each.pods.on_change(partial(observer.record_twin, name))
    copies = [informer for each in below.values() for informer in (each.configmaps, each.secrets)]
    for informer in (*sources.values(), *copies):
        informer.on_change(lambda _old, _new: observer.changed.set())
    informers = [
        observer.above,
        *sources.values(),
        *(informer for each in below.values() for informer in each.informers),
    ]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(informer.run()) for informer in informers]
        for informer in informers:
            await informer.synced.wait()
        try:
            yield observer
        finally:
            for task in tasks:
                task.cancel()
