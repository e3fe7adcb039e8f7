"""Metrics of the API server, named as in kube-apiserver."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from tapestry.apiserver.core.requests import Attributes, Call, Target, is_connect
from tapestry.apiserver.core.responses import ApiResponse, PathHandler
from tapestry.apiserver.core.store import Store
from tapestry.process import metrics

REQUEST_LABELS = ("verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component")
DURATION_BUCKETS = (
    *(0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60),
)
SIZE_BUCKETS = tuple(10.0**power for power in range(3, 10))
COMPONENT = "apiserver"
CUSTOM = "custom"
"""Group and resource of custom kinds whose names are not to be known."""

REQUESTS = Counter(
    "apiserver_request_total", "Number of requests by resource, verb and status code.", [*REQUEST_LABELS, "code"]
)
DURATIONS = Histogram(
    "apiserver_request_duration_seconds", "Duration of requests in seconds.", REQUEST_LABELS, buckets=DURATION_BUCKETS
)
SIZES = Histogram(
    "apiserver_response_sizes",
    "Size of responses to reads in bytes.",
    [REQUEST_LABELS[0], *REQUEST_LABELS[2:]],
    buckets=SIZE_BUCKETS,
)
LONG_RUNNING = Gauge(
    "apiserver_longrunning_requests",
    "Number of watches and of sessions: exec, attach, portforward and proxied upgrades.",
    [REQUEST_LABELS[0], *REQUEST_LABELS[2:]],
)
REQUEST_TERMINATIONS = Counter(
    "apiserver_request_terminations_total",
    "Number of requests that were aborted or rejected to protect the server.",
    ["verb", "code", "component"],
)
CONNECTIONS_REFUSED = Counter(
    "apiserver_connections_refused_total",
    "Number of connections closed or rejected because of a limit: unauthenticated, per user, or total.",
    ["reason"],
)


class CallMetrics(Protocol):
    """Metrics of one kind of request."""

    def observe(self, code: int, seconds: float) -> None:
        """Count a response."""

    def observe_size(self, size: int) -> None:
        """Count the bytes of a response to a read."""

    def count_long_running(self, change: int) -> None:
        """Count a watch or a session that starts or ends."""


class RequestMetrics:
    """Metrics of one kind of request in this process; each series is created on first use."""

    def __init__(self, *labels: str) -> None:
        self._labels = labels
        self._codes: dict[int, Counter] = {}

    def observe(self, code: int, seconds: float) -> None:
        if code not in self._codes:
            self._codes[code] = REQUESTS.labels(*self._labels, str(code))
        self._codes[code].inc()
        self._seconds.observe(seconds)

    @cached_property
    def _seconds(self) -> Histogram:
        return DURATIONS.labels(*self._labels)

    def observe_size(self, size: int) -> None:
        self._sizes.observe(size)

    def count_long_running(self, change: int) -> None:
        self._long_running.inc(change)

    @cached_property
    def _sizes(self) -> Histogram:
        return SIZES.labels(self._labels[0], *self._labels[2:])

    @cached_property
    def _long_running(self) -> Gauge:
        return LONG_RUNNING.labels(self._labels[0], *self._labels[2:])


request_metrics = lru_cache(maxsize=4096)(RequestMetrics)


def metrics_for_call(call: Call, attributes: Attributes, *, names_custom_kinds: bool = True) -> RequestMetrics:
    """Return the metrics of this process for a request. Without their names, custom kinds have a label in common."""
    dry_run = "All" if "dryRun" in call.query else ""
    target = attributes.target
    if target is None:
        return request_metrics(METRIC_VERBS.get(attributes.verb, "other"), dry_run, "", "", "", "", "", COMPONENT)
    resource = target.info.resource
    verb = METRIC_VERBS.get(attributes.verb, "other") if not is_connect(target) else "CONNECT"
    if verb == "PATCH" and call.headers.get("content-type", "").startswith("application/apply-patch"):
        verb = "APPLY"
    if not names_custom_kinds and (target.info.is_custom or target.info.is_remote):
        return request_metrics(verb, dry_run, CUSTOM, "", CUSTOM, "", scope_of(attributes.verb, target), COMPONENT)
    if target.info.is_remote:  # clients may send any name
        return request_metrics(verb, dry_run, resource.group, resource.version, "", "", "", COMPONENT)
    labels = (resource.group, resource.version, resource.plural, target.subresource, scope_of(attributes.verb, target))
    return request_metrics(verb, dry_run, *labels, COMPONENT)


METRIC_VERBS = {
    **{verb: verb.upper() for verb in ("get", "list", "watch", "patch", "delete", "deletecollection", "post", "put")},
    "create": "POST",
    "update": "PUT",
    "head": "GET",
}


def scope_of(verb: str, target: Target) -> str:
    if target.name or verb == "create":
        return "resource"
    return "namespace" if target.namespace else "cluster"


@dataclass(frozen=True)
class ServerCollector:
    """Prometheus collector for the current state of the server."""

    store: Store
    inflight: Callable[[], Mapping[str, int]]
    """Requests in flight, by kind: `readOnly`, `mutating`."""
    connections: Callable[[], Mapping[str, int]]
    """Open connections, by state: `authenticated`, `unauthenticated`."""
    watches: Callable[[], int] = lambda: 0
    """Open watches, followed logs and sessions."""
    rejected_writes: Callable[[], int] = lambda: 0
    """Writes that a limit on the objects has rejected."""

    def collect(self) -> Iterator[Metric]:
        objects = GaugeMetricFamily("apiserver_storage_objects", "Number of stored objects.", labels=["resource"])
        for resource in sorted(self.store.resources()):
            objects.add_metric([resource], self.store.count(resource))
        yield objects
        requests = GaugeMetricFamily(
            "apiserver_current_inflight_requests", "Number of requests in flight.", labels=["request_kind"]
        )
        for kind, number in self.inflight().items():
            requests.add_metric([kind], number)
        yield requests
        connections = GaugeMetricFamily(
            "apiserver_connections",
            "Number of open connections, by whether a request on them was authenticated.",
            labels=["state"],
        )
        for state, number in self.connections().items():
            connections.add_metric([state], number)
        yield connections


class ServerMetrics(Protocol):
    """Metrics of a server: what it counts, and what it shows at `/metrics`."""

    def for_call(self, call: Call, attributes: Attributes) -> CallMetrics: ...

    def path_handler(self, collector: ServerCollector) -> PathHandler:
        """Return the handler of `/metrics`."""


class ProcessMetrics:
    """Metrics of a server that is alone in its process, and shows the metrics of the process."""

    def for_call(self, call: Call, attributes: Attributes) -> RequestMetrics:
        return metrics_for_call(call, attributes)

    def path_handler(self, collector: ServerCollector) -> PathHandler:
        return MetricsHandler(collector)


@dataclass(frozen=True)
class MetricsHandler:
    """Handler of `/metrics`: metrics of the process and of this server."""

    collector: ServerCollector

    async def __call__(self, _: Call) -> ApiResponse:
        registry = CollectorRegistry()
        registry.register(self.collector)
        server_metrics, _kind = metrics.render(registry)  # on the event loop, which owns the store
        body, content_type = await asyncio.to_thread(metrics.render)
        return ApiResponse(200, body + server_metrics, content_type)
