"""What does it cost to find places for 2,000 pods on 1,000 nodes?  The pure core of the scheduler, no API server."""

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


def a_node(number: int) -> Object:
    labels = {HOST: f"n{number}", ZONE: f"z{number % 5}"}
    room = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    return {"metadata": {"name": f"n{number}", "labels": labels}, "spec": {}, "status": {"allocatable": room}}


def a_pod(number: int, labels: dict[str, str], **spec: Any) -> Object:
    requests = {"resources": {"requests": {"cpu": "100m", "memory": "100Mi"}}}
    owner = {"kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}
    metadata = {"name": f"p{number}", "namespace": "default", "labels": labels, "ownerReferences": [owner]}
    return {"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "i", **requests}], **spec}}


def plain(number: int) -> Object:
    pod = a_pod(number, {"app": "web"})
    del pod["metadata"]["ownerReferences"]
    return pod


def of_a_set(number: int) -> Object:
    return a_pod(number, {"app": "web"})


def spread(number: int) -> Object:
    rule = {"maxSkew": 1, "labelSelector": {"matchLabels": {"app": "web"}}}
    hard = {**rule, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
    soft = {**rule, "topologyKey": HOST, "whenUnsatisfiable": "ScheduleAnyway"}
    return a_pod(number, {"app": "web"}, topologySpreadConstraints=[hard, soft])


def apart(number: int) -> Object:
    """Two sets, each with a pod on every node."""
    labels = {"app": f"web-{number // NODES}"}
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": labels}}
    return a_pod(number, labels, affinity={"podAntiAffinity": {REQUIRED: [term]}})


KINDS = {"alike": plain, "of one ReplicaSet": of_a_set, "spread over zones and nodes": spread, "kept apart": apart}


def rows() -> Iterator[Row]:
    for kind, made in KINDS.items():
        say(f"placing: {PODS} pods, {kind}")
        pods = [made(number) for number in range(PODS)]
        rooms, verdicts, start = SchedulerCache(), NodeFitCache(), 0
        for number in range(NODES):
            rooms.set_node(a_node(number))
        begun = time.process_time()
        for pod in pods:
            asked = pod_info_of(pod)
            choice = select_node(SchedulingContext(asked), rooms, verdicts, start)
            start += choice.evaluated_nodes
            if choice.node is not None:
                rooms.add_pod(asked, choice.node)
        spent = time.process_time() - begun
        what = f"{PODS:,} pods on {NODES:,} nodes, {kind}"
        yield Row(what, spent, "s of CPU", at_most=SECONDS, detail=f"{len(rooms.assignments)} placed")


if __name__ == "__main__":
    alone(rows)
