"""Resource usage of nodes and pods in the formats of kubelets and of the metrics API (pure).

`requested_usage` is the usage of simulated pods: their requests, all the time.  `metrics_page` is `/metrics/resource`
for Prometheus and metrics-server.  `stats_summary` is `/stats/summary`.  `node_metrics` and `pod_metrics` are objects
of `metrics.k8s.io`.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
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


class CpuSample(NamedTuple):
    """CPU time of a process up to some time."""

    time: datetime
    core_seconds: float


class CpuRates:
    """CPU usage of processes since an earlier reading, because the average since the start hides changes.

    That reading is at least `MIN_RATE_SECONDS` old.  Until there is one, the average since the start is used.
    """

    def __init__(self) -> None:
        self._samples: dict[int, tuple[CpuSample, CpuSample]] = {}  # pid -> the sample to compare with, the next one

    def cores(self, pid: int, now: CpuSample, since_start: float) -> float:
        base, following = self._samples.get(pid, (now, now))
        if now.core_seconds < following.core_seconds:  # another process with the same PID
            base = following = now
        if (now.time - following.time).total_seconds() >= MIN_RATE_SECONDS:
            base, following = following, now
        self._samples[pid] = base, following
        seconds = (now.time - base.time).total_seconds()
        return (now.core_seconds - base.core_seconds) / seconds if seconds >= MIN_RATE_SECONDS else since_start

    def forget_others(self, pids: Collection[int]) -> None:
        """Drop the samples of all other processes."""
        self._samples = {pid: samples for pid, samples in self._samples.items() if pid in pids}


MIN_RATE_SECONDS = 10.0
"""Minimum time between two readings of the CPU usage of a process."""


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


# -- as objects of the metrics API

NODE_METRICS, POD_METRICS = "NodeMetrics", "PodMetrics"
METRICS_API_VERSION = "metrics.k8s.io/v1beta1"
METRICS_WINDOW = "10s"


def node_metrics(node: Object, usages: Sequence[PodUsage], now: datetime) -> Object:
    """The usage of a node is that of its pods."""
    used = [each for usage in usages for each in usage.containers]
    return {**metrics_object(NODE_METRICS, node, now), "usage": usage_amounts(used)}


def pod_metrics(usage: PodUsage, now: datetime) -> Object:
    containers = [{"name": each.container, "usage": usage_amounts([each])} for each in usage.containers]
    return {**metrics_object(POD_METRICS, usage.pod, now), "containers": containers}


def metrics_object(kind: str, obj: Object, now: datetime) -> Object:
    metadata = {key: obj["metadata"][key] for key in ("name", "namespace", "labels") if obj["metadata"].get(key)}
    return {
        "kind": kind,
        "apiVersion": METRICS_API_VERSION,
        "metadata": {**metadata, "creationTimestamp": timestamp(now)},
        "timestamp": timestamp(now),
        "window": METRICS_WINDOW,
    }


def usage_amounts(usages: Sequence[ContainerUsage]) -> Object:
    cores, memory = sum(each.cores for each in usages), sum(each.memory for each in usages)
    return {"cpu": f"{round(cores * NANOS)}n", "memory": f"{memory >> 10}Ki"}
