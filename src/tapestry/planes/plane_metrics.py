"""Metrics of planes: a few series for each.

A plane serves its own series at `/metrics`, and nothing of other planes or of the process. The process serves the same
series for the operator, with the id of the plane as a label, while the plane is open. Detailed metrics of requests are
those of all planes together. They do not name custom kinds, because those names belong to a plane, and there may be any
number of them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tapestry.apiserver.core.requests import Attributes, Call
from tapestry.apiserver.core.resource_registry import published_api
from tapestry.apiserver.core.responses import ApiResponse, PathHandler
from tapestry.apiserver.serving.metrics import CUSTOM, RequestMetrics, ServerCollector, metrics_for_call
from tapestry.process import metrics
from tapestry.process.work_meter import WorkMeter

PREFIX = "tapestry_plane"
VERB_CLASSES = {"get": "read", "list": "read", "head": "read", "watch": "watch"}
TOO_MANY_REQUESTS = 429


@dataclass(slots=True)
class PlaneCallMetrics:
    """Metrics of one request of a plane."""

    plane: "PlaneMetrics"
    verb_class: str
    process: RequestMetrics

    def observe(self, code: int, seconds: float) -> None:
        self.plane.requests[self.verb_class, f"{code // 100}xx"] += 1
        self.plane.rejected += code == TOO_MANY_REQUESTS
        self.process.observe(code, seconds)

    def observe_size(self, size: int) -> None:
        self.process.observe_size(size)

    def count_long_running(self, change: int) -> None:
        self.process.count_long_running(change)


@dataclass(eq=False)
class PlaneMetrics:
    """Metrics of one plane."""

    work: WorkMeter
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of requests by class of verb and class of status code."""
    rejected: int = 0
    """Number of requests over a limit."""
    collector: ServerCollector | None = None
    """State of the server, as soon as it is open."""

    def for_call(self, call: Call, attributes: Attributes) -> PlaneCallMetrics:
        process = metrics_for_call(call, attributes, names_custom_kinds=False)
        return PlaneCallMetrics(self, VERB_CLASSES.get(attributes.verb, "write"), process)

    def path_handler(self, collector: ServerCollector) -> PathHandler:
        self.collector = collector

        async def handle(_: Call) -> ApiResponse:
            registry = CollectorRegistry()
            registry.register(PlaneCollector({"": self}))
            body, content_type = metrics.render(registry)
            return ApiResponse(200, body, content_type)

        return handle


class PlaneCollector(Collector):
    """Collect the series of planes by id. The series of a plane with an empty id have no label for it."""

    def __init__(self, planes: Mapping[str, PlaneMetrics]) -> None:
        self._planes = planes

    def collect(self) -> Iterator[Metric]:
        planes = dict(self._planes)
        labels = [] if "" in planes else ["plane"]
        requests = CounterMetricFamily(
            f"{PREFIX}_requests",
            "Number of requests by class of verb and of status code.",
            labels=[*labels, "verb", "code"],
        )
        rejected = CounterMetricFamily(f"{PREFIX}_rejected", "Number of requests over a limit.", labels=labels)
        seconds = CounterMetricFamily(
            f"{PREFIX}_cpu_seconds", "Seconds that the tasks of the plane have used.", labels=labels
        )
        gauges = {
            name: GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels)
            for name, text in (
                ("requests_in_flight", "Number of requests in flight, without watches."),
                ("watches", "Number of open watches, followed logs and sessions."),
                ("objects", "Number of stored objects."),
                ("object_bytes", "Size of the stored objects in bytes."),
                ("history_bytes", "Size of the objects in the history for watches in bytes."),
                ("revision", "Revision of the newest change."),
            )
        }
        for plane_id, plane in planes.items():
            own = [plane_id] if plane_id else []
            for classes, count in plane.requests.copy().items():
                requests.add_metric([*own, *classes], count)
            seconds.add_metric(own, plane.work.seconds)
            if (state := plane.collector) is not None:
                rejected.add_metric(own, plane.rejected + state.rejected_writes())
                values = {
                    "requests_in_flight": sum(state.inflight().values()),
                    "watches": state.watches(),
                    "objects": state.store.object_count,
                    "object_bytes": state.store.object_bytes,
                    "history_bytes": state.store.history_bytes,
                    "revision": state.store.revision,
                }
                for name, value in values.items():
                    gauges[name].add_metric(own, value)
        yield from (requests, rejected, seconds, *gauges.values())

    def describe(self) -> Iterator[Metric]:
        return iter(())


OPEN_PLANES: dict[str, PlaneMetrics] = {}
"""Metrics of the open planes of this process, by id."""
REGISTRY.register(PlaneCollector(OPEN_PLANES))


@cache
def built_in_resources() -> frozenset[str]:
    return frozenset(info.resource.name for info in published_api().resources)


def built_in_label(resource: str) -> str:
    """Return the name of a resource, with or without a subresource, or a common label if its kind is custom."""
    return resource if resource.partition("/")[0] in built_in_resources() else CUSTOM
