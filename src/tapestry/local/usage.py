"""Resource usage of local pods.

`requested_usage` is the usage of simulated pods: their requests, all the time.  `CpuRates` computes that of processes.
"""

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

from tapestry.kube.objects import Object, value_at
from tapestry.kube.pod_requests import container_requests
from tapestry.kube.pods import containers_of
from tapestry.kube.quantity import NANOS, parse_quantity
from tapestry.kube.times import parse_time
from tapestry.kube.usage import ContainerUsage, PodUsage

ZERO = parse_quantity(0)


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
