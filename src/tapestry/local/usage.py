"""Resource usage of nodes and pods in the two formats of kubelets (pure).

`requested_usage` is the usage of simulated pods: their requests, all the time.  `metrics_page` is `/metrics/resource`
for Prometheus and metrics-server.  `stats_summary` is `/stats/summary`.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from tapestry.kube.objects import Object, name_of, namespace_of, uid_of, value_at
from tapestry.kube.pod_requests import container_requests
from tapestry.kube.pods import containers_of
from tapestry.kube.quantity import NANOS, parse_quantity
from tapestry.kube.times import parse_time, timestamp

ZERO = parse_quantity(0)


class ContainerUsage(NamedTuple):
    container: str
    since: datetime
    cores: float
    core_seconds: float
    memory: int


class PodUsage(NamedTuple):
    pod: Object
    containers: Sequence[ContainerUsage]

    def total(self) -> ContainerUsage:
        return total_usage(self.containers, value_at(self.pod, "status", "startTime"))


def total_usage(usages: Sequence[ContainerUsage], since: str | None = None) -> ContainerUsage:
    started = parse_time(since) if since else min(each.since for each in usages)
    cores, seconds = sum(each.cores for each in usages), sum(each.core_seconds for each in usages)
    return ContainerUsage("", started, cores, seconds, sum(each.memory for each in usages))


def requested_usage(pods: Iterable[Object], now: datetime) -> list[PodUsage]:
    """Return the usage of simulated pods: their requests."""
    found = [PodUsage(pod, [*container_usages(pod, now)]) for pod in pods]
    return [each for each in found if each.containers]


def container_usages(pod: Object, now: datetime) -> Iterator[ContainerUsage]:
    specs = {each["name"]: each for each in containers_of(pod)}
    status = pod.get("status") or {}
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        started = value_at(container, "state", "running", "startedAt")
        if started is None:
            continue
        requests, since = container_requests(specs[container["name"]]), parse_time(started)
        cores = requests.get("cpu", ZERO).nano / NANOS
        seconds = cores * max((now - since).total_seconds(), 0)
        yield ContainerUsage(container["name"], since, cores, seconds, requests.get("memory", ZERO).value())


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


def metrics_page(usages: Sequence[PodUsage], now: datetime) -> str:
    """Return all series of a node and its pods."""
    moment = int(now.timestamp() * 1000)
    totals = [(metric_labels(each.pod), each.total()) for each in usages]
    of_containers = [
        (f'container="{use.container}",{metric_labels(each.pod)}', use) for each in usages for use in each.containers
    ]
    seconds = sum(usage.core_seconds for _, usage in totals)
    lines = [
        *metric_lines(CONTAINER_CPU, ((labels, use.core_seconds) for labels, use in of_containers), moment),
        *metric_lines(CONTAINER_MEMORY, ((labels, use.memory) for labels, use in of_containers), moment),
        *metric_lines(CONTAINER_START_TIME, ((labels, use.since.timestamp()) for labels, use in of_containers), None),
        *metric_lines(NODE_CPU, [("", seconds)], moment),
        *metric_lines(NODE_MEMORY, [("", sum(usage.memory for _, usage in totals))], moment),
        *metric_lines(POD_CPU, ((labels, usage.core_seconds) for labels, usage in totals), moment),
        *metric_lines(POD_MEMORY, ((labels, usage.memory) for labels, usage in totals), moment),
        *metric_lines(SCRAPE_ERROR, [("", 0)], None),
    ]
    return "\n".join(lines) + "\n"


def metric_labels(pod: Object) -> str:
    return f'namespace="{namespace_of(pod)}",pod="{name_of(pod)}"'


def metric_lines(metric: MetricSeries, values: Iterable[tuple[str, float]], moment: int | None) -> Iterator[str]:
    yield f"# HELP {metric.name} [STABLE] {metric.help}"
    yield f"# TYPE {metric.name} {metric.type}"
    for labels, value in values:
        at = "" if moment is None else f" {moment}"
        yield f"{metric.name}{'{' + labels + '}' if labels else ''} {value:.9g}{at}"


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
    return {"node": node_stats, "pods": [pod_summary(each, now) for each in usages]}


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
