"""State of a world for the live view, and a watch with rate-limited refreshes."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, binding_of
from tapestry.client.client import Client
from tapestry.controller import Informer
from tapestry.inspect.pods import PlacedPod, PodStatus, pod_status
from tapestry.inspect.status import BindingStatus, NodeStatus, binding_status, node_status
from tapestry.kube.objects import Object, is_deleting, labels_of, name_of, uid_of, value_at
from tapestry.kube.resources import NODES, PODS
from tapestry.syncer.cache_transforms import is_placeholder

PENDING_PHASE = "Pending"
TERMINATING_PHASE = "Terminating"


@dataclass(frozen=True)
class WorldState:
    bindings: Sequence[BindingStatus]
    nodes: Sequence[NodeStatus]
    phases: Mapping[str, int]
    """Number of pods by phase, on virtual nodes or without a node."""
    waiting: Sequence[PodStatus]
    """Pods of these that are pending, the oldest first."""
    now: datetime
    """Current time, in the time zone to display."""


def world_state_of(
    bindings: Iterable[Object], nodes: Iterable[Object], pods: Iterable[Object], now: datetime
) -> WorldState:
    owners, nodes_by_name = {uid_of(each): each for each in bindings}, {name_of(each): each for each in nodes}
    placed: dict[str, list[Object]] = {name: [] for name in nodes_by_name}
    phases: Counter[str] = Counter()
    waiting = []
    for pod in pods:
        node = value_at(pod, "spec", "nodeName", default="")
        if is_placeholder(pod) or (node and node not in nodes_by_name):
            continue
        placed.setdefault(node, []).append(pod)
        phases[phase := phase_of(pod)] += 1
        if phase == PENDING_PHASE:
            waiting.append(waiting_pod_status(pod, nodes_by_name.get(node), owners))
    return WorldState(
        sorted(map(binding_status, owners.values()), key=lambda each: each.name),
        sorted((node_status(each, placed[name]) for name, each in nodes_by_name.items()), key=lambda each: each.name),
        phases,
        sorted(waiting, key=lambda each: (each.created, each.namespace, each.name)),
        now,
    )


def phase_of(pod: Object) -> str:
    return TERMINATING_PHASE if is_deleting(pod) else value_at(pod, "status", "phase", default=PENDING_PHASE)


def waiting_pod_status(pod: Object, node: Object | None, owners: Mapping[str, Object]) -> PodStatus:
    binding = owners.get(labels_of(node).get(keys.CLUSTER_BINDING_UID, "")) if node is not None else None
    return pod_status(PlacedPod(pod, node, binding_of(binding, "") if binding is not None else None))


MIN_REFRESH_INTERVAL = 0.5
"""Shortest time between two refreshes, in seconds."""
REFRESH_COST_FACTOR = 20
"""Ratio of the pause to the CPU time of the last refresh, for worlds with thousands of pods."""
IDLE_INTERVAL, COUNTDOWN_INTERVAL = 15.0, 1.0
"""Longest time between two refreshes, in seconds, because displayed times change."""
COUNTDOWN_WINDOW = timedelta(minutes=2)


@dataclass(frozen=True)
class WorldWatcher:
    """Watch the virtual cluster of a world and call `show` on changes."""

    client: Client
    show: Callable[[WorldState], None]
    now: Callable[[], datetime]
    refresh: asyncio.Event

    async def run(self) -> None:
        """Watch and refresh until cancelled."""
        bindings, pods = Informer(self.client, CLUSTER_BINDINGS), Informer(self.client, PODS)
        nodes = Informer(self.client, NODES, labels=f"{keys.NODE_TYPE}={keys.NODE_TYPE_VIRTUAL}")
        async with asyncio.TaskGroup() as group:
            for each in (bindings, nodes, pods):
                each.on_change(lambda _old, _new: self.refresh.set())
                group.create_task(each.run())
            for each in (bindings, nodes, pods):
                await each.synced.wait()
            while True:
                self.refresh.clear()
                began = time.process_time()
                state = world_state_of(bindings.store.list(), nodes.store.list(), pods.store.list(), self.now())
                self.show(state)
                await asyncio.sleep(max(MIN_REFRESH_INTERVAL, (time.process_time() - began) * REFRESH_COST_FACTOR))
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.refresh.wait(), refresh_interval(state))


def refresh_interval(state: WorldState) -> float:
    """Return the longest time until the next refresh; short while a countdown is displayed."""
    changes = (*(each.next_change for each in state.bindings), *(each.lease_ends for each in state.nodes))
    is_soon = any(moment is not None and moment - state.now < COUNTDOWN_WINDOW for moment in changes)
    return COUNTDOWN_INTERVAL if is_soon else IDLE_INTERVAL
