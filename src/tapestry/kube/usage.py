"""Resource usage of nodes and pods in the formats of kubelets and of the metrics API.

`metrics_page` is `/metrics/resource` for Prometheus and metrics-server.  `stats_summary` is `/stats/summary`.
`node_metrics` and `pod_metrics` are objects of `metrics.k8s.io`.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from tapestry.kube.objects import Object, name_of, namespace_of, uid_of, value_at
from tapestry.kube.quantity import NANOS, parse_quantity
from tapestry.kube.resources import NODE_METRICS, POD_METRICS
from tapestry.kube.times import parse_time, timestamp


class ContainerUsage(NamedTuple):
    container: str
    since: datetime
    cores: float
    core_seconds: float
    memory: int


class PodUsage(NamedTuple):
    pod: Object
    containers: Sequence[ContainerUsage]
    time: datetime | None = None
    """Time of the measurement; None means now."""

    def total(self) -> ContainerUsage:
        return total_usage(self.containers, value_at(self.pod, "status", "startTime"))


def total_usage(usages: Sequence[ContainerUsage], since: str | None = None) -> ContainerUsage:
    started = parse_time(since) if since else min(each.since for each in usages)
    cores, seconds = sum(each.cores for each in usages), sum(each.core_seconds for each in usages)
    return ContainerUsage("", started, cores, seconds, sum(each.memory for each in usages))


# -- for Prometheus


class MetricSeries(NamedTuple):
    name: str
    type: str
    help: str


NODE_CPU = MetricSeries(
    "node_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the node in core-seconds"
)
NODE_MEMORY = MetricSeries("node_memory_working_set_bytes", "gauge", "Current working set of the node in bytes")
POD_CPU = MetricSeries(
    "pod_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the pod in core-seconds"
)
POD_MEMORY = MetricSeries("pod_memory_working_set_bytes", "gauge", "Current working set of the pod in bytes")
CONTAINER_CPU = MetricSeries(
    "container_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the container in core-seconds"
)
CONTAINER_MEMORY = MetricSeries(
    "container_memory_working_set_bytes", "gauge", "Current working set of the container in bytes"
)
CONTAINER_START_TIME = MetricSeries(
    "container_start_time_seconds", "gauge", "Start time of the container since unix epoch in seconds"
)
SCRAPE_ERROR = MetricSeries(
    "resource_scrape_error", "gauge", "1 if there was an error while getting container metrics, 0 otherwise"
)


MIN_CORE_SECONDS, MIN_BYTES = 1e-9, 1
"""Least reported values: metrics-server ignores nodes and pods with a value of zero."""


def metrics_page(usages: Sequence[PodUsage], now: datetime, node_core_seconds: float | None = None) -> str:
    """Return all series of a node and its pods.

    `node_core_seconds` includes pods that have ended.  The default is the sum of the pods in `usages`.
    """
    pods = [(metric_labels(each.pod), each.total(), moment(each.time or now)) for each in usages]
    containers = [
        (f'container="{use.container}",{metric_labels(each.pod)}', use, moment(each.time or now))
        for each in usages
        for use in each.containers
    ]
    seconds, memory = sum(use.core_seconds for _, use, _ in pods), sum(use.memory for _, use, _ in pods)
    seconds = seconds if node_core_seconds is None else node_core_seconds
    lines = [
        *cpu_lines(CONTAINER_CPU, containers),
        *memory_lines(CONTAINER_MEMORY, containers),
        *metric_lines(CONTAINER_START_TIME, ((labels, use.since.timestamp(), "") for labels, use, _ in containers)),
        *metric_lines(NODE_CPU, [("", max(seconds, MIN_CORE_SECONDS), moment(now))]),
        *metric_lines(NODE_MEMORY, [("", max(memory, MIN_BYTES), moment(now))]),
        *cpu_lines(POD_CPU, pods),
        *memory_lines(POD_MEMORY, pods),
        *metric_lines(SCRAPE_ERROR, [("", 0, "")]),
    ]
    return "\n".join(lines) + "\n"


def metric_labels(pod: Object) -> str:
    return f'namespace="{namespace_of(pod)}",pod="{name_of(pod)}"'


def moment(time: datetime) -> str:
    """Return the time suffix of a line, in milliseconds."""
    return f" {int(time.timestamp() * 1000)}"


def cpu_lines(metric: MetricSeries, usages: Iterable[tuple[str, ContainerUsage, str]]) -> Iterator[str]:
    return metric_lines(metric, ((labels, max(use.core_seconds, MIN_CORE_SECONDS), at) for labels, use, at in usages))


def memory_lines(metric: MetricSeries, usages: Iterable[tuple[str, ContainerUsage, str]]) -> Iterator[str]:
    return metric_lines(metric, ((labels, max(use.memory, MIN_BYTES), at) for labels, use, at in usages))


def metric_lines(metric: MetricSeries, values: Iterable[tuple[str, float, str]]) -> Iterator[str]:
    yield f"# HELP {metric.name} [STABLE] {metric.help}"
    yield f"# TYPE {metric.name} {metric.type}"
    for labels, value, at in values:
        yield f"{metric.name}{'{' + labels + '}' if labels else ''} {value:.12g}{at}"


# -- as a document


def stats_summary(node: Object, usages: Sequence[PodUsage], now: datetime) -> Object:
    capacity = value_at(node, "status", "capacity", "memory", default="0")
    since = node["metadata"]["creationTimestamp"]
    total = (
        total_usage([each.total() for each in usages], since)
        if usages
        else ContainerUsage("", parse_time(since), 0.0, 0.0, 0)
    )
    memory = memory_stats(total, now) | {"availableBytes": max(parse_quantity(capacity).value() - total.memory, 0)}
    node_stats = {"nodeName": name_of(node), "startTime": since, "cpu": cpu_stats(total, now), "memory": memory}
    return {"node": node_stats, "pods": [pod_summary(each, each.time or now) for each in usages]}


def pod_summary(usage: PodUsage, now: datetime) -> Object:
    total = usage.total()
    return {
        "podRef": {"name": name_of(usage.pod), "namespace": namespace_of(usage.pod), "uid": uid_of(usage.pod)},
        "startTime": timestamp(total.since),
        "cpu": cpu_stats(total, now),
        "memory": memory_stats(total, now),
        "containers": [
            {
                "name": each.container,
                "startTime": timestamp(each.since),
                "cpu": cpu_stats(each, now),
                "memory": memory_stats(each, now),
            }
            for each in usage.containers
        ],
    }


def cpu_stats(usage: ContainerUsage, now: datetime) -> Object:
    return {
        "time": timestamp(now),
        "usageNanoCores": round(usage.cores * NANOS),
        "usageCoreNanoSeconds": round(usage.core_seconds * NANOS),
    }


def memory_stats(usage: ContainerUsage, now: datetime) -> Object:
    return {"time": timestamp(now), **dict.fromkeys(("usageBytes", "workingSetBytes", "rssBytes"), usage.memory)}


# -- as objects of the metrics API

METRICS_WINDOW = "10s"
METRICS_VERBS = ["get", "list"]


def metrics_resources() -> Object:
    """Return the discovery document of the metrics API."""
    kinds = (("nodes", NODE_METRICS), ("pods", POD_METRICS))
    resources = [
        {"name": name, "singularName": "", "namespaced": each.namespaced, "kind": each.kind, "verbs": METRICS_VERBS}
        for name, each in kinds
    ]
    kind = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": NODE_METRICS.api_version}
    return {**kind, "resources": resources}


def metrics_list(kind: str, items: Sequence[Object]) -> Object:
    return {"kind": f"{kind}List", "apiVersion": NODE_METRICS.api_version, "metadata": {}, "items": items}


def metrics_reader_role() -> Object:
    """Return the ClusterRole that adds the metrics API to the roles of users, as that of metrics-server."""
    labels = {f"rbac.authorization.k8s.io/aggregate-to-{role}": "true" for role in ("view", "edit", "admin")}
    rules = [{"apiGroups": [NODE_METRICS.group], "resources": ["nodes", "pods"], "verbs": METRICS_VERBS}]
    return {"metadata": {"name": "system:aggregated-metrics-reader", "labels": labels}, "rules": rules}


def node_metrics(node: Object, usages: Sequence[PodUsage], now: datetime) -> Object:
    """The usage of a node is that of its pods."""
    used = [each for usage in usages for each in usage.containers]
    return {**metrics_object(NODE_METRICS.kind, node, now), "usage": usage_amounts(used)}


def pod_metrics(usage: PodUsage, now: datetime) -> Object:
    containers = [{"name": each.container, "usage": usage_amounts([each])} for each in usage.containers]
    return {**metrics_object(POD_METRICS.kind, usage.pod, usage.time or now), "containers": containers}


def metrics_object(kind: str, obj: Object, now: datetime) -> Object:
    metadata = {key: obj["metadata"][key] for key in ("name", "namespace", "labels") if obj["metadata"].get(key)}
    return {
        "kind": kind,
        "apiVersion": NODE_METRICS.api_version,
        "metadata": {**metadata, "creationTimestamp": timestamp(now)},
        "timestamp": timestamp(now),
        "window": METRICS_WINDOW,
    }


def usage_amounts(usages: Sequence[ContainerUsage]) -> Object:
    cores, memory = sum(each.cores for each in usages), sum(each.memory for each in usages)
    return {"cpu": f"{round(cores * NANOS)}n", "memory": f"{memory >> 10}Ki"}
