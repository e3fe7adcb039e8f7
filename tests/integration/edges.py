"""Measure how late time windows open and close, and how late pods are reclaimed.

Ten nodes have one policy each.  Every minute half of the windows open and the other half close.  Nodes whose window
closes have pods to reclaim.  All times are those at which a watch on the virtual cluster reported a change.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tapestry.apis import keys
from tapestry.controller import Informer
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, is_deleting, name_of, value_at
from tapestry.kube.pods import taint_named
from tapestry.kube.resources import NODES, PODS

from .bound_clusters import BoundClusters

POLICIES = 10
GRACE = 5
PODS_EACH = 2
MINUTE = timedelta(minutes=1)
PREPARATION = timedelta(seconds=10)
"""Time that a running syncer needs before the first edge on a busy machine."""


@dataclass
class Observations:
    """Changes reported by the watches, with their times."""

    closed: dict[str, bool] = field(default_factory=dict)
    """Last seen window state of each virtual node."""
    changed: list[tuple[str, datetime]] = field(default_factory=list)
    deleted_at: dict[str, datetime] = field(default_factory=dict)
    """Time at which each pod was first seen deleting or deleted."""
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def observe_node(self, _: Object | None, node: Object | None) -> None:
        if node is not None:
            closed = taint_named(node, keys.OUT_OF_TIME_WINDOWS_TAINT) is not None
            if self.closed.get(name_of(node), closed) != closed:
                self.changed.append((name_of(node), datetime.now(UTC)))
            self.closed[name_of(node)] = closed
            self.news.set()

    def observe_pod(self, old: Object | None, new: Object | None) -> None:
        if old is not None and (new is None or is_deleting(new)):
            self.deleted_at.setdefault(name_of(old), datetime.now(UTC))
            self.news.set()


@dataclass
class Measured:
    """Seconds from a window edge to the change of the taint, and from a deadline to the deletion of each pod."""

    lateness: list[float] = field(default_factory=list)
    deadline_error: list[float] = field(default_factory=list)

    @property
    def deleted_early(self) -> int:
        return sum(error < 0 for error in self.deadline_error)


async def measured(clusters: BoundClusters, minutes: int) -> Measured:
    """Measure the given number of whole minutes, beginning with the next one."""
    nodes = [f"{clusters.name}-{number}" for number in range(POLICIES)]
    for node in nodes:
        await clusters.add_node(node, labels={"policy": node})
    seen, result = Observations(), Measured()
    with clusters.syncer():
        await clusters.wait_for_binding(is_at_work, timeout=60)
        first = next_minute(datetime.now(UTC) + PREPARATION)
        for number, node in enumerate(nodes):
            await add_policy(clusters, node, windows(first, minutes, closes_first=number % 2 == 0))
        async with asyncio.TaskGroup() as group:
            following = [group.create_task(informer.run()) for informer in informers(clusters, seen)]
            wanted = {clusters.above(node): number % 2 == 1 for number, node in enumerate(nodes)}
            await wait_until(seen, lambda: seen.closed == wanted)
            for minute in range(minutes):
                edge = first + minute * MINUTE
                pods = await bind_pods(clusters, minute, (node for node in nodes if not wanted[clusters.above(node)]))
                wanted = {name: not closed for name, closed in wanted.items()}
                await wait_until(seen, lambda: seen.closed == wanted and pods <= seen.deleted_at.keys())  # noqa: B023
                result.lateness += [(when - edge).total_seconds() for _, when in seen.changed]
                deadline = edge + timedelta(seconds=GRACE)
                result.deadline_error += [(seen.deleted_at[pod] - deadline).total_seconds() for pod in pods]
                seen.changed.clear()
            for task in following:
                task.cancel()
    return result


def is_at_work(binding: Object) -> bool:
    """Report whether a syncer has set the Leasing condition."""
    return find_condition(value_at(binding, "status", "conditions"), "Leasing") is not None


def next_minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0) + MINUTE


def windows(first: datetime, minutes: int, *, closes_first: bool) -> list[Object]:
    """Windows for every other minute from `first` on.  With `closes_first`, one window is open before `first`."""
    begun = [(first - 2 * MINUTE, first)] if closes_first else []
    starts = [first + minute * MINUTE for minute in range(int(closes_first), minutes + 1, 2)]
    spans = [*begun, *((start, start + MINUTE) for start in starts)]
    return [{"start": f"{start:%H:%M}", "end": f"{end:%H:%M}"} for start, end in spans]


async def add_policy(clusters: BoundClusters, node: str, open_in: list[Object]) -> None:
    only = {"matchExpressions": [{"key": "policy", "operator": "In", "values": [node]}]}
    await clusters.add_policy(
        node,
        nodeSelector={"nodeSelectorTerms": [only]},
        timeWindows=open_in,
        forceReclaim=True,
        gracefulReclaimPeriodSeconds=GRACE,
    )


async def bind_pods(clusters: BoundClusters, minute: int, nodes: Iterable[str]) -> set[str]:
    """Create pods on each node that tolerate everything and have no grace period."""
    spec = {"tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 0}
    return {
        name_of(await clusters.bind_pod(f"{minute}-{node}-{number}", node, **spec))
        for node in nodes
        for number in range(PODS_EACH)
    }


def informers(clusters: BoundClusters, seen: Observations) -> tuple[Informer, Informer]:
    nodes = Informer(clusters.virtual, NODES, labels=f"{keys.CLUSTER_BINDING}={clusters.name}")
    nodes.on_change(seen.observe_node)
    pods = Informer(
        clusters.virtual, PODS, namespace="default", keep=lambda pod: name_of(pod).startswith(clusters.name)
    )
    pods.on_change(seen.observe_pod)
    return nodes, pods


async def wait_until(seen: Observations, claim: Callable[[], bool]) -> None:
    async with asyncio.timeout(100):
        while not claim():
            await seen.news.wait()
            seen.news.clear()
