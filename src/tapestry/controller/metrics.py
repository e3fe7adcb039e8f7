"""What the framework counts."""

from collections import Counter as Sums
from collections.abc import Iterator, Sized
from functools import lru_cache
from typing import Protocol

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tapestry.kube.resources import Resource
from tapestry.process.metrics import LATENCY_BUCKETS

RECONCILES = Histogram(
    "tapestry_reconcile_seconds",
    "Reconcile passes by controller and outcome (ok, requeued, terminal, error).",
    ["controller", "outcome"],
    buckets=LATENCY_BUCKETS,
)
SYNC = Histogram(
    "tapestry_sync_seconds",
    "From a change, or the time that a pass was asked for, to the end of the pass that saw to it.",
    ["controller"],
    buckets=LATENCY_BUCKETS,
)
ERRORS = Counter(
    "tapestry_reconcile_errors_total", "Passes that raised, by controller and reason.", ["controller", "reason"]
)
RETRIES = Counter(
    "tapestry_reconcile_retries_total",
    "Passes put off after an error, by controller and reason.",
    ["controller", "reason"],
)
QUEUE_DEPTH = Gauge("tapestry_queue_depth", "Keys that wait for a worker.", ["controller"])
QUEUE_AGE = Gauge("tapestry_queue_age_seconds", "Seconds that the key in front has waited.", ["controller"])
IS_LEADER = Gauge("tapestry_is_leader", "1 while this process leads the election.", ["election"])
ELECTIONS = Counter("tapestry_elections_total", "Elections won, lost and failed, by outcome.", ["election", "outcome"])
EVENTS_DROPPED = Counter("tapestry_events_dropped_total", "Events not recorded, by why.", ["why"])


@lru_cache(maxsize=1024)
def reconcile_series(controller: str, outcome: str) -> Histogram:
    """The series of `RECONCILES` for a controller and an outcome; looking one up by labels is slow."""
    return RECONCILES.labels(controller, outcome)


@lru_cache(maxsize=1024)
def sync_series(controller: str) -> Histogram:
    """The series of `SYNC` for a controller."""
    return SYNC.labels(controller)


class Cache(Protocol):
    """What an informer shows of itself here."""

    name: str
    resource: Resource

    @property
    def store(self) -> Sized: ...


class CachedObjects(Collector):
    """Counts, when it is asked, what the informers hold that run now; those of one name are counted together."""

    def __init__(self) -> None:
        self.informers: list[Cache] = []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        sums: Sums[tuple[str, str]] = Sums()
        for each in list(self.informers):
            sums[each.resource.name, each.name] += len(each.store)
        family = GaugeMetricFamily(
            "tapestry_cached_objects", "Objects held in an informer's store.", labels=["resource", "informer"]
        )
        for labels, count in sums.items():
            family.add_metric(labels, count)
        yield family

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return iter(())


CACHED_OBJECTS = CachedObjects()
REGISTRY.register(CACHED_OBJECTS)
