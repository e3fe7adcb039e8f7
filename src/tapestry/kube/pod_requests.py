"""What a pod asks of its node, as the scheduler counts it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

import msgspec

from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, value_at
from tapestry.kube.pods import is_pod_terminal, is_sidecar
from tapestry.kube.quantity import ResourceList, parse_quantity
from tapestry.kube.times import parse_time

ONE_POD = ResourceList(pods=parse_quantity(1))
ENCODE = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class PodAllocation:
    """What a pod holds of its node, and since when."""

    amounts: ResourceList
    since: datetime


def pod_allocation(pod: Object) -> PodAllocation:
    return PodAllocation(effective_requests(pod), bound_at(pod))


def bound_at(pod: Object) -> datetime:
    """When the pod came to its node: it was scheduled then, or made for it."""
    scheduled = find_condition(value_at(pod, "status", "conditions"), "PodScheduled") or {}
    return parse_time(scheduled.get("lastTransitionTime") or pod["metadata"]["creationTimestamp"])


def effective_requests(pod: Object) -> ResourceList:
    """What the pod holds of its node: the larger of its init phase and its running phase, and its overhead.

    Init containers run one after the other; those that restart for ever are sidecars and go on beside everything later.
    """
    spec = pod["spec"]
    containers: Sequence[Object] = spec.get("containers") or ()
    is_plain = len(containers) == 1 and not (
        spec.get("initContainers") or spec.get("resources") or spec.get("overhead")
    )
    statuses = value_at(pod, "status", "containerStatuses", default=())
    if is_plain and all(each.get("resources") is None for each in statuses):
        return cached_single_container_requests(ENCODE(containers[0].get("resources")))
    return compute_requests(pod)


@lru_cache(maxsize=1024)
def cached_single_container_requests(resources: bytes) -> ResourceList:
    """What a pod of one container with these resources, as JSON, holds: most pods are replicas of a few."""
    return container_requests({"resources": msgspec.json.decode(resources)}) + ONE_POD


def compute_requests(pod: Object) -> ResourceList:
    spec = pod["spec"]
    sidecars, highest = ResourceList(), ResourceList()
    for container in spec.get("initContainers") or ():
        if is_sidecar(container):
            sidecars = sidecars + container_allocation(container, pod)
        else:
            highest = highest.larger(sidecars + container_requests(container))
    running = sidecars
    for container in spec.get("containers") or ():
        running = running + container_allocation(container, pod)
    stated = spec.get("resources") or {}  # for the pod as a whole: a request counts, a limit where nothing else does
    limits, requests = ResourceList.parse(stated.get("limits")), ResourceList.parse(stated.get("requests"))
    total = ResourceList({**limits, **highest.larger(running), **requests})
    return total + ResourceList.parse(spec.get("overhead")) + ONE_POD


def container_requests(container: Object) -> ResourceList:
    """A container's requests; a limit without a request is a request."""
    resources = container.get("resources") or {}
    return ResourceList.parse({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def container_allocation(container: Object, pod: Object) -> ResourceList:
    """What a running container holds: while it is resized, the larger of what it has and what it asks for."""
    asked, status = container_requests(container), pod.get("status") or {}
    reports = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
    report: Object = next((each for each in reports if each["name"] == container["name"]), {})
    if report.get("resources") is None:
        return asked
    has = ResourceList.parse(report["resources"].get("requests")).larger(
        ResourceList.parse(report.get("allocatedResources"))
    )
    resize = find_condition(status.get("conditions"), "PodResizePending") or {}
    return has if resize.get("reason") == "Infeasible" else asked.larger(has)


def occupies_node(pod: Object) -> bool:
    """Whether the pod still counts: it is bound and neither succeeded nor failed."""
    return bool(value_at(pod, "spec", "nodeName")) and not is_pod_terminal(pod)
