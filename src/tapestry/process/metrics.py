"""Shared parts of the Prometheus metrics.  Each layer defines its own metrics next to its code.

    RECONCILES = Histogram("reconcile_seconds", "Time of one reconcile.", ["controller"], namespace=NAMESPACE,
                           buckets=LATENCY_BUCKETS)

Metrics are in the registry of prometheus_client, so those of third-party controllers are served, too.  The counters of
`tapestry.process.counters`, which do not need that library, are also served here.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import REGISTRY, CollectorRegistry, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from tapestry.process.counters import COUNTERS

NAMESPACE = "tapestry"

# Seconds, from a cached read to a request with several timeouts.
LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

# Created timestamps would add an unused series for every counter and histogram.
disable_created_metrics()  # type: ignore[no-untyped-call]

BUILD_INFO = Gauge(
    "build_info", "Constant 1, with component and version as labels.", ["component", "version"], namespace=NAMESPACE
)
LOOP_LAG = Histogram(
    "event_loop_lag_seconds",
    "Delay between the due time of a timer and its callback on the event loop, in seconds.",
    namespace=NAMESPACE,
    buckets=LATENCY_BUCKETS,
)


class CounterCollector(Collector):
    """Serve the counters of `tapestry.process.counters`.  A counter without labels starts with a series of value 0."""

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
    """Set `tapestry_build_info`.  The last call wins."""
    BUILD_INFO.clear()
    BUILD_INFO.labels(component, version).set(1)


@contextmanager
def served_metrics(collector: Collector) -> Iterator[None]:
    """Serve the metrics of a collector with those of the process."""
    REGISTRY.register(collector)
    try:
        yield
    finally:
        REGISTRY.unregister(collector)


def render(registry: CollectorRegistry = REGISTRY) -> tuple[bytes, str]:
    """Return the metrics page and its content type.  Slow if there are many series."""
    return generate_latest(registry), CONTENT_TYPE_LATEST


async def watch_loop_lag(interval: float = 0.5) -> None:
    """Measure the lag of the running loop every `interval` seconds until cancelled."""
    now = asyncio.get_running_loop().time
    while True:
        due = now() + interval
        await asyncio.sleep(interval)
        LOOP_LAG.observe(max(0.0, now() - due))
