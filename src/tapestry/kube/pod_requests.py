"""Pod resource requests as the scheduler counts them."""

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
    """Resources of a node that a pod uses, and the time since when."""

    amounts: ResourceList
    since: datetime


def pod_allocation(pod: Object) -> PodAllocation:
    return PodAllocation(effective_requests(pod), bound_at(pod))


def bound_at(pod: Object) -> datetime:
    """Return the time at which the pod was scheduled, or created if it was never scheduled."""
    scheduled = find_condition(value_at(pod, "status", "conditions"), "PodScheduled") or {}
    return parse_time(scheduled.get("lastTransitionTime") or pod["metadata"]["creationTimestamp"])


def effective_requests(pod: Object) -> ResourceList:
    """Return the resources that a pod occupies: the maximum of its init and running phases, plus overhead.

    Init containers run one after another. Sidecars (init containers that always restart) keep running beside all later
    containers.
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
    """Return the requests of a pod with one container that has these resources, as JSON. Most pods are replicas."""
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
    whole_pod = spec.get("resources") or {}  # pod-level resources: a request overrides, a limit is only a fallback
    limits, requests = ResourceList.parse(whole_pod.get("limits")), ResourceList.parse(whole_pod.get("requests"))
    total = ResourceList({**limits, **highest.larger(running), **requests})
    return total + ResourceList.parse(spec.get("overhead")) + ONE_POD


def container_requests(container: Object) -> ResourceList:
    """Return the requests of a container. A limit without a request counts as a request."""
    resources = container.get("resources") or {}
    return ResourceList.parse({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def container_allocation(container: Object, pod: Object) -> ResourceList:
    """Return the resources of a running container: during a resize the maximum of actual and desired."""
    desired, status = container_requests(container), pod.get("status") or {}
    statuses = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
    status_entry: Object = next((each for each in statuses if each["name"] == container["name"]), {})
    if status_entry.get("resources") is None:
        return desired
    actual = ResourceList.parse(status_entry["resources"].get("requests")).larger(
        ResourceList.parse(status_entry.get("allocatedResources"))
    )
    resize = find_condition(status.get("conditions"), "PodResizePending") or {}
    return actual if resize.get("reason") == "Infeasible" else desired.larger(actual)


def occupies_node(pod: Object) -> bool:
    """Return True if the pod uses resources of its node: it is bound and not terminated."""
    return bool(value_at(pod, "spec", "nodeName")) and not is_pod_terminal(pod)
