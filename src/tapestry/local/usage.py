"""What nodes and pods use, in the two forms that kubelets show it in.  Pure.

requested      what a simulated pod is taken to use: all that it asked for, all the time
metrics_page   `/metrics/resource`, for Prometheus and metrics-server
summary        `/stats/summary`
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from tapestry.kube.objects import Object, name_of, namespace_of, uid_of, value_at
from tapestry.kube.pods import containers_of
from tapestry.kube.quantity import NANOS, parse
from tapestry.kube.requests import requests_of
from tapestry.kube.times import parse_time, timestamp

NOTHING = parse(0)


class Use(NamedTuple):
    """What one container uses."""

    container: str
    since: datetime
    cores: float
    core_seconds: float
    memory: int


class PodUse(NamedTuple):
    """What a running pod uses."""

    pod: Object
    containers: Sequence[Use]

    def total(self) -> Use:
        return added(self.containers, value_at(self.pod, "status", "startTime"))


def added(uses: Sequence[Use], since: str | None = None) -> Use:
    started = parse_time(since) if since else min(each.since for each in uses)
    cores, seconds = sum(each.cores for each in uses), sum(each.core_seconds for each in uses)
    return Use("", started, cores, seconds, sum(each.memory for each in uses))


def requested(pods: Iterable[Object], now: datetime) -> list[PodUse]:
    """What simulated pods use."""
    found = [PodUse(pod, [*requested_by(pod, now)]) for pod in pods]
    return [each for each in found if each.containers]


def requested_by(pod: Object, now: datetime) -> Iterator[Use]:
    specs = {each["name"]: each for each in containers_of(pod)}
    status = pod.get("status") or {}
    for said in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        started = value_at(said, "state", "running", "startedAt")
        if started is None:
            continue
        asked, since = requests_of(specs[said["name"]]), parse_time(started)
        cores = asked.get("cpu", NOTHING).nano / NANOS
        seconds = cores * max((now - since).total_seconds(), 0)
        yield Use(said["name"], since, cores, seconds, asked.get("memory", NOTHING).value())


# -- for Prometheus


class Series(NamedTuple):
    name: str
    type: str
    help: str


NODE_CPU = Series("node_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the node in core-seconds")
NODE_MEMORY = Series("node_memory_working_set_bytes", "gauge", "Current working set of the node in bytes")
POD_CPU = Series("pod_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the pod in core-seconds")
POD_MEMORY = Series("pod_memory_working_set_bytes", "gauge", "Current working set of the pod in bytes")
CPU = Series(
    "container_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the container in core-seconds"
)
MEMORY = Series("container_memory_working_set_bytes", "gauge", "Current working set of the container in bytes")
STARTED = Series("container_start_time_seconds", "gauge", "Start time of the container since unix epoch in seconds")
ERROR = Series("resource_scrape_error", "gauge", "1 if there was an error while getting container metrics, 0 otherwise")


def metrics_page(uses: Sequence[PodUse], now: datetime) -> str:
    """All series of a node and its pods."""
    moment = int(now.timestamp() * 1000)
    totals = [(labels_of(each.pod), each.total()) for each in uses]
    of_containers = [
        (f'container="{use.container}",{labels_of(each.pod)}', use) for each in uses for use in each.containers
    ]
    seconds = sum(use.core_seconds for _, use in totals)
    lines = [
        *series(CPU, ((labels, use.core_seconds) for labels, use in of_containers), moment),
        *series(MEMORY, ((labels, use.memory) for labels, use in of_containers), moment),
        *series(STARTED, ((labels, use.since.timestamp()) for labels, use in of_containers), None),
        *series(NODE_CPU, [("", seconds)], moment),
        *series(NODE_MEMORY, [("", sum(use.memory for _, use in totals))], moment),
        *series(POD_CPU, ((labels, use.core_seconds) for labels, use in totals), moment),
        *series(POD_MEMORY, ((labels, use.memory) for labels, use in totals), moment),
        *series(ERROR, [("", 0)], None),
    ]
    return "\n".join(lines) + "\n"


def labels_of(pod: Object) -> str:
    return f'namespace="{namespace_of(pod)}",pod="{name_of(pod)}"'


def series(about: Series, values: Iterable[tuple[str, float]], moment: int | None) -> Iterator[str]:
    yield f"# HELP {about.name} [STABLE] {about.help}"
    yield f"# TYPE {about.name} {about.type}"
    for labels, value in values:
        at = "" if moment is None else f" {moment}"
        yield f"{about.name}{'{' + labels + '}' if labels else ''} {value:.9g}{at}"


# -- as a document


def summary(node: Object, uses: Sequence[PodUse], now: datetime) -> Object:
    """What there is to say of a node and its pods."""
    capacity = value_at(node, "status", "capacity", "memory", default="0")
    since = node["metadata"]["creationTimestamp"]
    total = added([each.total() for each in uses], since) if uses else Use("", parse_time(since), 0.0, 0.0, 0)
    memory = memory_of(total, now) | {"availableBytes": max(parse(capacity).value() - total.memory, 0)}
    about = {"nodeName": name_of(node), "startTime": since, "cpu": cpu_of(total, now), "memory": memory}
    return {"node": about, "pods": [pod_summary(each, now) for each in uses]}


def pod_summary(use: PodUse, now: datetime) -> Object:
    total = use.total()
    return {
        "podRef": {"name": name_of(use.pod), "namespace": namespace_of(use.pod), "uid": uid_of(use.pod)},
        "startTime": timestamp(total.since),
        "cpu": cpu_of(total, now),
        "memory": memory_of(total, now),
        "containers": [
            {
                "name": each.container,
                "startTime": timestamp(each.since),
                "cpu": cpu_of(each, now),
                "memory": memory_of(each, now),
            }
            for each in use.containers
        ],
    }


def cpu_of(use: Use, now: datetime) -> Object:
    return {
        "time": timestamp(now),
        "usageNanoCores": round(use.cores * NANOS),
        "usageCoreNanoSeconds": round(use.core_seconds * NANOS),
    }


def memory_of(use: Use, now: datetime) -> Object:
    return {"time": timestamp(now), **dict.fromkeys(("usageBytes", "workingSetBytes", "rssBytes"), use.memory)}
