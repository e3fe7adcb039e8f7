"""Prometheus metrics of the controller framework."""

from collections import Counter as Sums
from collections.abc import Callable, Iterator, Sized
from functools import lru_cache
from typing import NamedTuple, Protocol

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tapestry.controller.queue import Queue
from tapestry.process.metrics import LATENCY_BUCKETS

RECONCILES = Histogram(
    "tapestry_reconcile_seconds",
    "Duration of reconciles by controller and outcome (ok, requeued, terminal, error).",
    ["controller", "outcome"],
    buckets=LATENCY_BUCKETS,
)
SYNC = Histogram(
    "tapestry_sync_seconds",
    "Seconds from a change, or a requested requeue time, to the end of the reconcile that handled it.",
    ["controller"],
    buckets=LATENCY_BUCKETS,
)
ERRORS = Counter(
    "tapestry_reconcile_errors_total", "Reconciles that failed, by controller and reason.", ["controller", "reason"]
)
RETRIES = Counter(
    "tapestry_reconcile_retries_total",
    "Reconciles retried after an error, by controller and reason.",
    ["controller", "reason"],
)
IS_LEADER = Gauge("tapestry_is_leader", "1 while this process is the leader, otherwise 0.", ["election"])
ELECTIONS = Counter("tapestry_elections_total", "Elections by outcome (won, lost, failed).", ["election", "outcome"])
EVENTS_DROPPED = Counter("tapestry_events_dropped_total", "Events not recorded, by cause.", ["why"])


@lru_cache(maxsize=1024)
def reconcile_series(controller: str, outcome: str) -> Histogram:
    """Return the series of `RECONCILES`, cached because a lookup by labels is slow."""
    return RECONCILES.labels(controller, outcome)


@lru_cache(maxsize=1024)
def sync_series(controller: str) -> Histogram:
    return SYNC.labels(controller)


class Cache(Protocol):
    """The attributes of an informer that the collector reads."""

    @property
    def store(self) -> Sized: ...


class CachedObjects(Collector):
    """Collect the store sizes of running informers.  Informers with the same name are summed."""

    def __init__(self) -> None:
        self.labels: dict[Cache, tuple[str, str]] = {}
        """Resource and name of each running informer, as labels."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        sums: Sums[tuple[str, str]] = Sums()
        for each, labels in list(self.labels.items()):
            sums[labels] += len(each.store)
        family = GaugeMetricFamily(
            "tapestry_cached_objects", "Objects held in an informer's store.", labels=["resource", "informer"]
        )
        for labels, count in sums.items():
            family.add_metric(labels, count)
        yield family

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return iter(())


class MeasuredQueue(NamedTuple):
    """The queue of a running controller, and the time of its event loop."""

    controller: str
    queue: Queue
    now: Callable[[], float]


class WaitingKeys(Collector):
    """Collect the keys in the queues of running controllers.  Controllers with the same name are counted together."""

    def __init__(self) -> None:
        self.queues: list[MeasuredQueue] = []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        depth = GaugeMetricFamily("tapestry_queue_depth", "Keys waiting for a worker.", labels=["controller"])
        age = GaugeMetricFamily(
            "tapestry_queue_age_seconds", "Seconds that the first key in the queue has waited.", labels=["controller"]
        )
        depths: Sums[str] = Sums()
        ages: dict[str, float] = {}
        for controller, queue, now in list(self.queues):
            depths[controller] += len(queue)
            ages[controller] = max(ages.get(controller, 0.0), queue.age(now()))
        for controller, seconds in ages.items():
            depth.add_metric([controller], depths[controller])
            age.add_metric([controller], seconds)
        return iter((depth, age))

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return iter(())


CACHED_OBJECTS, WAITING_KEYS = CachedObjects(), WaitingKeys()
REGISTRY.register(CACHED_OBJECTS)
REGISTRY.register(WAITING_KEYS)
