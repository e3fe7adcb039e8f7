"""Cost of placing 2,000 pods on 1,000 nodes: the pure core of the scheduler, without an API server."""

import time
from collections.abc import Iterator
from typing import Any

from benchmarks.table import Row, alone, say
from tapestry.controlplane.scheduler.cache import SchedulerCache
from tapestry.controlplane.scheduler.node_fit import NodeFitCache
from tapestry.controlplane.scheduler.placement import SchedulingContext, select_node
from tapestry.controlplane.scheduler.pod_info import pod_info_of
from tapestry.kube.objects import Object

NODES, PODS = 1_000, 2_000
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
SECONDS = 4.0


def new_node(number: int) -> Object:
    labels = {HOST: f"n{number}", ZONE: f"z{number % 5}"}
    capacity = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    return {"metadata": {"name": f"n{number}", "labels": labels}, "spec": {}, "status": {"allocatable": capacity}}


def new_pod(number: int, labels: dict[str, str], **spec: Any) -> Object:
    requests = {"resources": {"requests": {"cpu": "100m", "memory": "100Mi"}}}
    owner = {"kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}
    metadata = {"name": f"p{number}", "namespace": "default", "labels": labels, "ownerReferences": [owner]}
    return {"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "i", **requests}], **spec}}


def plain(number: int) -> Object:
    pod = new_pod(number, {"app": "web"})
    del pod["metadata"]["ownerReferences"]
    return pod


def of_a_set(number: int) -> Object:
    return new_pod(number, {"app": "web"})


def spread(number: int) -> Object:
    rule = {"maxSkew": 1, "labelSelector": {"matchLabels": {"app": "web"}}}
    hard = {**rule, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
    soft = {**rule, "topologyKey": HOST, "whenUnsatisfiable": "ScheduleAnyway"}
    return new_pod(number, {"app": "web"}, topologySpreadConstraints=[hard, soft])


def apart(number: int) -> Object:
    """Return a pod of one of two sets, each with one pod per node."""
    labels = {"app": f"web-{number // NODES}"}
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": labels}}
    return new_pod(number, labels, affinity={"podAntiAffinity": {REQUIRED: [term]}})


KINDS = {"alike": plain, "of one ReplicaSet": of_a_set, "spread over zones and nodes": spread, "kept apart": apart}


def rows() -> Iterator[Row]:
    for kind, create in KINDS.items():
        say(f"placing: {PODS} pods, {kind}")
        pods = [create(number) for number in range(PODS)]
        cache, node_fits, start = SchedulerCache(), NodeFitCache(), 0
        for number in range(NODES):
            cache.set_node(new_node(number))
        started = time.process_time()
        for pod in pods:
            pod_info = pod_info_of(pod)
            result = select_node(SchedulingContext(pod_info), cache, node_fits, start)
            start += result.evaluated_nodes
            if result.node is not None:
                cache.add_pod(pod_info, result.node)
        seconds = time.process_time() - started
        what = f"{PODS:,} pods on {NODES:,} nodes, {kind}"
        yield Row(what, seconds, "s of CPU", at_most=SECONDS, detail=f"{len(cache.assignments)} placed")


if __name__ == "__main__":
    alone(rows)
