"""Objects for tests of autoscalers: a ReplicaSet, its pods and their metrics."""

from datetime import datetime
from typing import Any

from tapestry.client.client import Client
from tapestry.kube.objects import Object, object_named
from tapestry.kube.resources import AUTOSCALERS, POD_METRICS, PODS, REPLICA_SETS
from tapestry.kube.times import timestamp

LABELS = {"app": "web"}
CPU_50 = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}


def new_set(replicas: int, name: str = "web", namespace: str = "default") -> Object:
    containers = [{"name": "app", "image": "i", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]
    spec = {
        "replicas": replicas,
        "selector": {"matchLabels": LABELS},
        "template": {"metadata": {"labels": LABELS}, "spec": {"containers": containers}},
    }
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


def new_autoscaler(name: str = "web", target: str = "web", namespace: str = "default", **spec: Any) -> Object:
    reference = {"apiVersion": REPLICA_SETS.api_version, "kind": REPLICA_SETS.kind, "name": target}
    defaults = {"minReplicas": 1, "maxReplicas": 10, "metrics": [CPU_50], "scaleTargetRef": reference}
    return {**object_named(name, namespace), "spec": {**defaults, **spec}}


async def create_running_pod(client: Client, name: str, now: datetime, namespace: str = "default") -> Object:
    template = new_set(1)["spec"]["template"]
    pod = {"metadata": {"name": name, "namespace": namespace, "labels": LABELS}, "spec": template["spec"]}
    created = await client.create(PODS, pod)
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": timestamp(now)}
    status = {"phase": "Running", "startTime": timestamp(now), "conditions": [ready]}
    return await client.patch(PODS, created, {"status": status}, subresource="status")


def pod_metrics(name: str, cpu: str, now: datetime, namespace: str = "default") -> Object:
    metadata = {"name": name, "namespace": namespace, "labels": LABELS}
    usage = {"cpu": cpu, "memory": "512Mi"}
    return {
        "apiVersion": POD_METRICS.api_version,
        "kind": POD_METRICS.kind,
        "metadata": metadata,
        "timestamp": timestamp(now),
        "window": "10s",
        "containers": [{"name": "app", "usage": usage}],
    }


async def set_usage(client: Client, cpu: str, now: datetime) -> None:
    """Set the usage of all pods."""
    for pod in await client.list(PODS, "default"):
        metrics = pod_metrics(pod["metadata"]["name"], cpu, now)
        if (found := await client.find(POD_METRICS, pod["metadata"]["name"], "default")) is None:
            await client.create(POD_METRICS, metrics)
        else:
            await client.patch(POD_METRICS, found, {key: metrics[key] for key in ("timestamp", "containers")})


RESOURCES = [AUTOSCALERS, POD_METRICS, PODS, REPLICA_SETS]
