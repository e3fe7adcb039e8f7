"""Resource usage of the pods on virtual nodes, from the metrics API of the physical cluster.

One list of all pods of the binding is cached and answers the requests for every node.  The metrics API has rates, but
kubelets report cumulative CPU time.  So the rates are summed up over the time between their measurements, from the
first measurement that this process has read.  That is also the reported start time of a container: a client that
changes to another replica then sees a restarted counter.
"""

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

import msgspec

from tapestry.client.client import Client
from tapestry.kube.errors import Forbidden, KubeError, NotFound, ServerError
from tapestry.kube.objects import Object, name_of, uid_of
from tapestry.kube.pods import containers_of
from tapestry.kube.quantity import NANOS, parse_quantity
from tapestry.kube.resources import POD_METRICS
from tapestry.kube.times import parse_duration, parse_time
from tapestry.kube.usage import ContainerUsage, PodUsage, metrics_page, stats_summary
from tapestry.process.logs import logger

log = logger(__name__)

CACHE_SECONDS = 10.0
"""Seconds for which a list of metrics is used, or the error of a failed list."""
LIST_TIMEOUT = 10.0
"""Seconds for one list.  metrics-server waits for a node for as long."""
MAX_WINDOW = timedelta(minutes=10)
"""Maximum period of one measurement.  Longer ones are not plausible."""
MAX_CORES = 1e6
FORWARDED_NODE = re.compile(r"/api/v1/nodes/(?:https?:)?([^/:]+)(?::[0-9]*)?/proxy(?:/|$)")

USAGE_PATH = re.compile(r"(?:/nodes/([^/]+))?/(?:(metrics)/resource|(stats)/summary)")


class UsageUnavailable(Exception):
    """The usage cannot be read now.  The message says why and what to do."""


class UsageRequest(NamedTuple):
    """Virtual node whose usage is requested, and the subresource of nodes that the caller must be allowed to get."""

    node: str
    subresource: Literal["metrics", "stats"]


def usage_request(path: str, forwarded_uri: str) -> UsageRequest | None:
    """Return what a path requests, or None if it is another path.

    All virtual nodes have one address.  The node is in the path (`node_metrics_path`), or in the URI that an API server
    forwards (`X-Forwarded-Uri`).  It is empty if neither names one.
    """
    match = USAGE_PATH.fullmatch(path)
    if match is None:
        return None
    forwarded = FORWARDED_NODE.match(forwarded_uri)
    node = match[1] or (forwarded[1] if forwarded else "")
    return UsageRequest(node, "metrics" if match[2] else "stats")


def unknown_node_message(request: UsageRequest) -> str:
    if request.node:
        return f'"{request.node}" is not a virtual node of this syncer'
    return "all virtual nodes share this address; request /nodes/NAME/metrics/resource or /nodes/NAME/stats/summary"


class Sample(NamedTuple):
    """One measurement of a twin: average cores and working set of each container over a period."""

    time: datetime
    window: timedelta
    containers: Mapping[str, tuple[float, int]]


def sample_of(metrics: Object) -> Sample | None:
    """Return the measurement in a PodMetrics object, or None if it is not valid.  It is untrusted."""
    try:
        measured_at, window = parse_time(metrics["timestamp"]), parse_duration(metrics["window"])
        containers = {each["name"]: container_amounts(each["usage"]) for each in metrics["containers"]}
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return Sample(measured_at, min(max(window, timedelta(seconds=1)), MAX_WINDOW), containers)


def container_amounts(usage: Mapping[str, str]) -> tuple[float, int]:
    cores, memory = parse_quantity(usage["cpu"]).nano / NANOS, parse_quantity(usage["memory"]).value()
    if not 0 <= cores <= MAX_CORES or memory < 0:
        raise ValueError(f"implausible usage: {usage}")
    return cores, memory


class Counter(NamedTuple):
    """CPU time of a container up to the last measurement."""

    since: datetime
    time: datetime
    core_seconds: float


def advanced(counter: Counter | None, sample: Sample, cores: float) -> Counter:
    """Return the counter after a measurement.  A measurement that is not newer changes nothing."""
    if counter is None:
        return Counter(sample.time - sample.window, sample.time, cores * sample.window.total_seconds())
    seconds = (sample.time - counter.time).total_seconds()
    return Counter(counter.since, sample.time, counter.core_seconds + cores * seconds) if seconds > 0 else counter


@dataclass(slots=True)
class NodeCounters:
    """CPU time of a virtual node since the first request, and of its present containers."""

    core_seconds: float = 0.0
    containers: dict[tuple[str, str], Counter] = field(default_factory=dict)
    """Counters by pod UID and container name."""

    def update(self, pods: Iterable[Object], sample_for: Callable[[Object], Sample | None]) -> list[PodUsage]:
        """Add the measurements of the node's pods, forget containers of other pods, and return the usage."""
        counters, usages = {}, []
        for pod in pods:
            sample = sample_for(pod)
            if sample is None:
                continue
            containers = []
            for name in (each["name"] for each in containers_of(pod)):
                if name in sample.containers:
                    key, (cores, memory) = (uid_of(pod), name), sample.containers[name]
                    before = self.containers.get(key)
                    after = counters[key] = advanced(before, sample, cores)
                    self.core_seconds += after.core_seconds - (before.core_seconds if before else 0.0)
                    containers.append(ContainerUsage(name, after.since, cores, after.core_seconds, memory))
            if containers:
                usages.append(PodUsage(pod, containers, sample.time))
        self.containers = counters
        return usages


@dataclass(frozen=True)
class UsageSource:
    """Access to the virtual nodes and pods, and to the metrics of their twins."""

    node: Callable[[str], Object | None]
    """Return one of our virtual nodes."""
    pods: Callable[[str], Iterable[Object]]
    """Return the pods that are bound to a virtual node."""
    twin: Callable[[Object], Object | None]
    """Return the twin of a pod, if it is provably ours."""
    physical: Client
    namespace: str
    selector: str
    """Labels of the twins."""


@dataclass
class UsageReader:
    """Read usage, with at most one list of the physical cluster in `CACHE_SECONDS`."""

    source: UsageSource
    now: Callable[[], datetime]
    monotonic: Callable[[], float] = time.monotonic
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _listed_at: float = field(default=float("-inf"), init=False)
    _metrics: Mapping[str, Object] = field(default_factory=dict, init=False)  # by name of the twin
    _problem: str = field(default="", init=False)
    _counters: dict[str, NodeCounters] = field(default_factory=dict, init=False)  # by virtual node

    async def resource_metrics(self, node: Object) -> bytes:
        """Return the page `/metrics/resource` of a virtual node.  Raise UsageUnavailable."""
        usages = await self.usage(node)
        times = [each.time for each in usages if each.time]
        counters = self._counters[name_of(node)]
        return metrics_page(usages, max(times, default=self.now()), counters.core_seconds).encode()

    async def stats_summary(self, node: Object) -> bytes:
        """Return the document `/stats/summary` of a virtual node.  Raise UsageUnavailable."""
        return msgspec.json.encode(stats_summary(node, await self.usage(node), self.now()))

    async def usage(self, node: Object) -> list[PodUsage]:
        await self._update()
        counters = self._counters.setdefault(name_of(node), NodeCounters())
        return counters.update(self.source.pods(name_of(node)), self._sample_for)

    async def measurements(self, pods: Iterable[Object]) -> list[PodUsage]:
        """Return the last measurement of each pod that has one. Raise UsageUnavailable."""
        await self._update()
        found = []
        for pod in pods:
            if (sample := self._sample_for(pod)) is not None:
                since = sample.time - sample.window
                own = {each["name"] for each in containers_of(pod)}
                amounts = [(name, *each) for name, each in sample.containers.items() if name in own]
                containers = [ContainerUsage(name, since, cores, 0.0, memory) for name, cores, memory in amounts]
                found.append(PodUsage(pod, containers, sample.time))
        return found

    def _sample_for(self, pod: Object) -> Sample | None:
        twin = self.source.twin(pod)
        metrics = self._metrics.get(name_of(twin)) if twin is not None else None
        return sample_of(metrics) if metrics is not None else None

    async def _update(self) -> None:
        async with self._lock:
            if self.monotonic() - self._listed_at >= CACHE_SECONDS:
                await self._refresh()
        if self._problem:
            raise UsageUnavailable(self._problem)

    async def _refresh(self) -> None:
        source, previous = self.source, self._problem
        try:
            async with asyncio.timeout(LIST_TIMEOUT):
                found = await source.physical.list(POD_METRICS, source.namespace, labels=source.selector)
            self._metrics, self._problem = {name_of(each): each for each in found}, ""
        except (KubeError, TimeoutError) as error:
            self._problem = usage_problem(error, source.namespace)
        self._listed_at = self.monotonic()
        self._counters = {name: each for name, each in self._counters.items() if source.node(name) is not None}
        if self._problem and self._problem != previous:
            log.warning("usage of virtual nodes unavailable", error=self._problem)


def usage_problem(error: Exception, namespace: str) -> str:
    """Return why the metrics of the physical cluster cannot be read, and what to do."""
    match error:
        case NotFound():
            return "the physical cluster has no metrics API; install metrics-server there"
        case Forbidden():
            problem = f"the syncer may not list {POD_METRICS.name} in namespace {namespace} of the physical cluster"
            return f"{problem}; join the cluster again, or grant it there"
        case ServerError():
            return "the metrics API of the physical cluster is not available; check metrics-server there"
        case _:
            return "the physical cluster does not return metrics now; try again later"
