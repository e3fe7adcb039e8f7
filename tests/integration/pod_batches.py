"""Batches of pods on virtual nodes, and the times at which watches report their progress.

The observer is independent of the syncer.  All times are those at which a watch of this process reported a change, on
the clock of this process.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tapestry.apis import keys
from tapestry.client.client import Client
from tapestry.controller import Informer
from tapestry.kube.objects import Object, labels_of, name_of, value_at
from tapestry.kube.resources import NODES, PODS
from tapestry.manager.joining import PRIORITY_CLASSES, priority_class

from .bound_clusters import BoundClusters, give, new_object, wait_for_all

AT_ONCE = 32
POD_BATCH, MEMBER = "pod-batch", "member"
"""Labels of the pods and of their twins."""


@dataclass
class PodBatch:
    """A batch of pods in one namespace.  A pod name is the name of the batch and a number."""

    client: Client
    name: str
    bound: dict[str, float] = field(default_factory=dict)
    """Time at which each pod was first seen.  Pods are created with a node name, so this is the time of binding."""
    mapped: dict[str, float] = field(default_factory=dict)
    """Time at which the twin of each pod was first seen."""
    running: dict[str, float] = field(default_factory=dict)
    """Time at which each virtual pod was first seen Running."""
    above: set[str] = field(default_factory=set)
    below: set[str] = field(default_factory=set)
    """Names of the pods and of the twins that exist now."""
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def bind(self, count: int, nodes: Sequence[str], *, per_second: float = math.inf, **spec: Any) -> None:
        """Create `count` pods, distributed over the virtual nodes in turn."""
        began = time.monotonic()

        async def create_every_nth(first: int) -> None:
            for number in range(first, count, AT_ONCE):
                await asyncio.sleep(max(0, began + number / per_second - time.monotonic()))
                await self.client.create(PODS, member(self.name, number, nodes[number % len(nodes)], **spec))

        async with asyncio.TaskGroup() as group:
            for first in range(AT_ONCE):
                group.create_task(create_every_nth(first))

    async def delete(self) -> None:
        """Delete every pod of the batch with its own grace period."""
        await self.client.delete_collection(PODS, "default", labels=f"{POD_BATCH}={self.name}")

    async def wait_until_running(self, count: int, *, timeout: float = 180) -> None:
        if not await self.wait_until_true(lambda: len(self.running) == count, timeout):
            seen = f"{len(self.bound)} were bound, {len(self.mapped)} mapped, {len(self.running)} run"
            raise TimeoutError(f"pod_batch {self.name} of {count}: after {timeout:g} s {seen}")

    async def is_gone(self, *, timeout: float = 60) -> bool:
        """Wait until no pod and no twin is left.  Return False on timeout."""
        return await self.wait_until_true(lambda: not (self.above or self.below), timeout)

    async def wait_until_true(self, claim: Callable[[], bool], timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                while not claim():
                    self.news.clear()
                    await self.news.wait()
        except TimeoutError:
            return False
        return True

    def see_pod(self, old: Object | None, new: Object | None) -> None:
        now, name = time.monotonic(), name_of(new or old or {})
        if new is None:
            self.above.discard(name)
        else:
            self.above.add(name)
            self.bound.setdefault(name, now)
            if new["phase"] == "Running":
                self.running.setdefault(name, now)
        self.news.set()

    def see_twin(self, old: Object | None, new: Object | None) -> None:
        now, name = time.monotonic(), labels_of(new or old or {})[MEMBER]
        if new is None:
            self.below.discard(name)
        else:
            self.below.add(name)
            self.mapped.setdefault(name, now)
        self.news.set()


@asynccontextmanager
async def pod_batch(clusters: BoundClusters, name: str) -> AsyncIterator[PodBatch]:
    """Observe an empty batch, to which pods can be added."""
    made = PodBatch(clusters.virtual, name)
    above = Informer(clusters.virtual, PODS, namespace="default", labels=f"{POD_BATCH}={name}", transform=pod_summary)
    above.on_change(made.see_pod)
    below = Informer(
        clusters.physical, PODS, namespace=clusters.mount, labels=f"{POD_BATCH}={name}", transform=pod_summary
    )
    below.on_change(made.see_twin)
    async with asyncio.TaskGroup() as group:
        following = [group.create_task(informer.run()) for informer in (above, below)]
        await above.synced.wait()
        await below.synced.wait()
        yield made
        for task in following:
            task.cancel()


def pod_summary(pod: Object) -> Object:
    """Transform for informers that keeps only the fields read here."""
    metadata = pod["metadata"]
    summary = {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion", "labels")}
    return {"metadata": summary, "phase": value_at(pod, "status", "phase")}


def member(pod_batch: str, number: int, node: str, **spec: Any) -> Object:
    """A pod that takes about one kilobyte on the server."""
    name = f"{pod_batch}-{number}"
    requests = {"cpu": "10m", "memory": "10Mi"}
    container = {"name": "c", "image": "images.example/busybox:1", "resources": {"requests": requests}}
    return new_object(
        "Pod",
        {"name": name, "namespace": "default", "labels": {POD_BATCH: pod_batch, MEMBER: name}},
        spec={
            "nodeName": node,
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
            **spec,
        },
    )


async def lend(clusters: BoundClusters, count: int) -> list[str]:
    """Create large physical nodes and a policy that lends them.  Return the names of their virtual nodes."""
    names = [f"node-{number:04d}" for number in range(count)]
    waiting = iter(names)

    async def add_nodes() -> None:
        for name in waiting:
            await clusters.add_node(name, cpu="32", memory="256Gi")

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(add_nodes())
    await give(clusters.physical, PRIORITY_CLASSES, priority_class())
    await clusters.add_policy("all")
    return [clusters.above(name) for name in names]


async def wait_until_lent(clusters: BoundClusters, count: int) -> None:
    """Wait until the syncer has created all virtual nodes."""
    await wait_for_all(
        clusters.virtual,
        NODES,
        None,
        lambda found: sum(bool(value_at(node, "status", "allocatable")) for node in found) == count,
        labels=f"{keys.CLUSTER_BINDING}={clusters.name}",
        timeout=120,
    )
