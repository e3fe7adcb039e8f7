"""Metrics: what the layers share; each defines its own beside the code that they measure.

    RECONCILES = Histogram("reconcile_seconds", "Time of one reconcile.", ["controller"], namespace=NAMESPACE,
                           buckets=LATENCY_BUCKETS)

They live in the registry of prometheus_client, so whatever a controller author defines in the usual way is served too.
What commands count that start and end, `tapestry.process.counters` keeps without that library; it is served here, too.
"""

import asyncio
from collections.abc import Iterator

from prometheus_client import REGISTRY, CollectorRegistry, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from tapestry.process.counters import COUNTERS

NAMESPACE = "tapestry"

# Seconds, from a cached read to a request that ran into every timeout.
LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

# One more series for every counter and histogram, and nobody reads the time that each of them began.
disable_created_metrics()  # type: ignore[no-untyped-call]

BUILD_INFO = Gauge("build_info", "1, with what runs here as labels.", ["component", "version"], namespace=NAMESPACE)
LOOP_LAG = Histogram(
    "event_loop_lag_seconds",
    "How late the event loop runs what is due: the time that everything else in the process waits.",
    namespace=NAMESPACE,
    buckets=LATENCY_BUCKETS,
)


class CounterCollector(Collector):
    """Serves the counters of `tapestry.process.counters`; one without labels has a series from the start."""

    def collect(self) -> Iterator[CounterMetricFamily]:
        for counter in COUNTERS:
            family = CounterMetricFamily(counter.name, counter.help, labels=counter.labels)
            values = counter.values() or ({} if counter.labels else {(): 0.0})
            for labels, value in values.items():
                family.add_metric(labels, value)
            yield family

    def describe(self) -> Iterator[CounterMetricFamily]:
        return iter(())


REGISTRY.register(CounterCollector())


def set_build_info(component: str, version: str) -> None:
    """Says what this process is, as `tapestry_build_info`; the last call counts."""
    BUILD_INFO.clear()
    BUILD_INFO.labels(component, version).set(1)


def render(registry: CollectorRegistry = REGISTRY) -> tuple[bytes, str]:
    """The page that Prometheus scrapes and its content type; it takes a while when there are many series."""
    return generate_latest(registry), CONTENT_TYPE_LATEST


async def watch_loop_lag(interval: float = 0.5) -> None:
    """Measures the lag of the running loop every `interval` seconds until it is cancelled."""
    now = asyncio.get_running_loop().time
    while True:
        due = now() + interval
        await asyncio.sleep(interval)
        LOOP_LAG.observe(max(0.0, now() - due))
