"""Situations of autoscalers, and a metrics API that reports the usage of their pods.

Each situation is a ReplicaSet, or another target, with pods whose number does not follow it, because no workload
controller runs. So the number of replicas becomes stable.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aiohttp import web

from tapestry.apiserver.access.certificates import CertificateAuthority, server_ssl_context
from tapestry.client.client import Client
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, name_of, value_at
from tapestry.kube.resources import (
    AUTOSCALERS,
    DEPLOYMENTS,
    POD_METRICS,
    PODS,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    SERVICES,
    STATEFUL_SETS,
    Resource,
)
from tapestry.kube.times import timestamp
from tapestry.local.kubernetes import free_ports

API_SERVICES = Resource("apiregistration.k8s.io", "v1", "APIService", "apiservices", namespaced=False)
FINALIZER = "example.com/test"

Usage = Mapping[str, str]
"""Usage of the container `app` by resource."""


@dataclass(frozen=True)
class PodState:
    """A pod, and what the metrics API reports about it."""

    usage: Usage | None = field(default_factory=dict)
    """None: the metrics API does not know the pod."""
    proxy_usage: Usage | None = None
    """Usage of a second container, which the pod has only if this is set."""
    requests: Usage = field(default_factory=lambda: {"cpu": "1", "memory": "1Gi"})
    phase: str = "Running"
    ready: bool = True
    started: float = 3600
    changed: float = 3500
    """Seconds since the pod started, and since its readiness changed."""
    deleting: bool = False
    spec: Mapping[str, Any] = field(default_factory=dict)


def cpu(amount: str, **state: Any) -> PodState:
    return PodState({"cpu": amount, "memory": "512Mi"}, **state)


def resource_metric(name: str = "cpu", container: str | None = None, **target: Any) -> Object:
    kind = "Utilization" if "averageUtilization" in target else "AverageValue"
    source = {"name": name, "target": {"type": kind, **target}}
    if container is None:
        return {"type": "Resource", "resource": source}
    return {"type": "ContainerResource", "containerResource": {**source, "container": container}}


HALF = resource_metric(averageUtilization=50)
AT_ONCE = {"stabilizationWindowSeconds": 0}
HALF_HOUR = 1800
READY, STABILIZED = ("AbleToScale", "ReadyForNewScale"), ("AbleToScale", "ScaleDownStabilized")
FAILED = ("ScalingActive", "FailedGetResourceMetric")


def policy(type: str, value: int) -> Object:
    return {"type": type, "value": value, "periodSeconds": HALF_HOUR}


@dataclass(frozen=True)
class Situation:
    """Pods, the spec of their autoscaler, and the expected replicas and condition (type and reason)."""

    name: str
    pods: Sequence[PodState]
    expected: int
    condition: tuple[str, str] = READY
    replicas: int | None = None
    """Replicas at the start; None: as many as pods."""
    metrics: Sequence[Object] = (HALF,)
    bounds: tuple[int, int] = (1, 10)
    behavior: Object | None = None
    target: Resource = REPLICA_SETS
    autoscalers: int = 1
    then: tuple[Sequence[PodState], int, tuple[str, str]] | None = None
    """New usage, and the replicas and the condition that it leads to."""
    has_target: bool = True


def down(**rules: Any) -> Object:
    return {"scaleDown": {**AT_ONCE, **rules}}


PODS_METRIC = {
    "type": "Pods",
    "pods": {"metric": {"name": "requests"}, "target": {"type": "AverageValue", "averageValue": "1"}},
}
SIDECAR = {"name": "log", "image": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}
SITUATIONS = (
    Situation("on-target", [cpu("500m")] * 2, 2),
    Situation("up", [cpu("900m")] * 2, 4),
    Situation("missing-up", [cpu("900m"), cpu("900m"), cpu("900m"), PodState(None)], 6),
    Situation("down-at-once", [cpu("100m")] * 4, 1, behavior=down()),
    Situation("policy-up", [cpu("2")] * 2, 4, ("ScalingLimited", "ScaleUpLimit"),
              behavior={"scaleUp": {"policies": [policy("Pods", 2)]}}),
    Situation("within-tolerance", [cpu("545m")] * 2, 2),
    Situation("outside-tolerance", [cpu("560m")] * 2, 3),
    Situation("own-tolerance", [cpu("545m")] * 2, 3, behavior={"scaleUp": {"tolerance": "50m"}}),
    Situation("up-to-maximum", [cpu("9")] * 2, 10, ("ScalingLimited", "TooManyReplicas")),
    Situation("down-stabilized", [cpu("100m")] * 4, 4, STABILIZED),
    Situation("down-to-minimum", [cpu("100m")] * 4, 2, ("ScalingLimited", "TooFewReplicas"),
              bounds=(2, 10), behavior=down()),
    Situation("average-value", [cpu("500m")] * 3, 5, metrics=[resource_metric(averageValue="300m")]),
    Situation("memory-value", [cpu("1")] * 3, 6, metrics=[resource_metric("memory", averageValue="256Mi")]),
    Situation("memory-utilization", [cpu("1")] * 3, 6, metrics=[resource_metric("memory", averageUtilization=25)]),
    Situation("container-utilization", [cpu("900m", proxy_usage={"cpu": "0"})] * 2, 4,
              metrics=[resource_metric(container="app", averageUtilization=50)]),
    Situation("container-value", [cpu("900m", proxy_usage={"cpu": "300m"})] * 2, 6,
              metrics=[resource_metric(container="proxy", averageValue="100m")]),
    Situation("missing-down", [cpu("100m"), cpu("100m"), cpu("100m"), PodState(None)], 3, behavior=down()),
    Situation("missing-turns", [cpu("600m"), PodState(None)], 2),
    Situation("no-metrics", [PodState(None)] * 2, 2, FAILED),
    Situation("incomplete-metrics", [cpu("900m", proxy_usage={})] * 2, 2, FAILED),
    Situation("pending-up", [cpu("900m"), cpu("900m"), cpu("900m"), PodState(None, phase="Pending")], 6),
    Situation("pending-down", [cpu("100m"), cpu("100m"), PodState(None, phase="Pending")], 1, behavior=down()),
    Situation("failed-pod", [cpu("900m"), cpu("900m"), cpu("9", phase="Failed", ready=False)], 4),
    Situation("deleting-pod", [cpu("900m"), cpu("900m"), cpu("9", deleting=True)], 4),
    Situation("starting", [cpu("100m"), cpu("9", ready=False, started=60, changed=60)], 1, behavior=down()),
    Situation("just-ready", [cpu("100m"), cpu("9", started=60, changed=5)], 1, behavior=down()),
    Situation("ready-for-a-window", [cpu("500m"), cpu("900m", started=200, changed=150)], 3),
    Situation("was-ready", [cpu("500m"), cpu("900m", ready=False, changed=60)], 3),
    Situation("never-ready", [cpu("500m"), cpu("900m", ready=False, changed=3595)], 2),
    Situation("no-requests", [cpu("500m", requests={"memory": "1Gi"})] * 2, 2, FAILED),
    Situation("highest-metric", [cpu("900m")] * 2, 8,
              metrics=[HALF, resource_metric("memory", averageValue="128Mi")]),
    Situation("invalid-metric-up", [cpu("900m")] * 2, 4, metrics=[PODS_METRIC, HALF]),
    Situation("invalid-metric-down", [cpu("100m")] * 2, 2, ("ScalingActive", "FailedGetPodsMetric"),
              metrics=[PODS_METRIC, HALF], behavior=down()),
    Situation("least-policy-up", [cpu("4")] * 4, 5, ("ScalingLimited", "ScaleUpLimit"),
              behavior={"scaleUp": {"selectPolicy": "Min", "policies": [policy("Pods", 1), policy("Percent", 100)]}}),
    Situation("percent-up", [cpu("4")] * 3, 5, ("ScalingLimited", "ScaleUpLimit"),
              behavior={"scaleUp": {"policies": [policy("Percent", 50)]}}),
    Situation("percent-down", [cpu("100m")] * 5, 2, ("ScalingLimited", "ScaleDownLimit"),
              behavior=down(policies=[policy("Percent", 50)])),
    Situation("pods-down", [cpu("100m")] * 5, 4, ("ScalingLimited", "ScaleDownLimit"),
              behavior=down(policies=[policy("Pods", 1)])),
    Situation("no-down", [cpu("100m")] * 4, 4, ("ScalingLimited", "ScaleDownLimit"),
              behavior=down(selectPolicy="Disabled")),
    Situation("up-stabilized", [cpu("900m")] * 2, 2, ("AbleToScale", "ScaleUpStabilized"),
              behavior={"scaleUp": {"stabilizationWindowSeconds": HALF_HOUR}}),
    Situation("disabled", [], 0, ("ScalingActive", "ScalingDisabled"), replicas=0),
    Situation("above-maximum", [cpu("500m")] * 4, 3, STABILIZED, bounds=(1, 3)),
    Situation("below-minimum", [cpu("500m")] * 2, 4, bounds=(4, 9)),
    Situation("no-target", [], 0, ("AbleToScale", "FailedGetScale"), has_target=False),
    Situation("ambiguous", [cpu("500m")] * 2, 2, ("ScalingActive", "AmbiguousSelector"), autoscalers=2),
    Situation("sidecar", [cpu("900m", spec={"initContainers": [SIDECAR]})] * 2, 2, behavior=down()),
    Situation("pod-level", [cpu("900m", spec={"resources": {"requests": {"cpu": "2"}}})] * 2, 2, behavior=down()),
    Situation("deployment", [cpu("900m")] * 2, 4, target=DEPLOYMENTS),
    Situation("stateful-set", [cpu("900m")] * 2, 4, target=STATEFUL_SETS),
    Situation("replication-controller", [cpu("900m")] * 2, 4, target=REPLICATION_CONTROLLERS),
    Situation("up-and-down", [cpu("900m")] * 2, 4, behavior=down(), then=([cpu("100m")] * 2, 1, READY)),
    Situation("up-then-stabilized", [cpu("900m")] * 2, 4, then=([cpu("100m")] * 2, 4, STABILIZED)),
    Situation("policy-counts-changes", [cpu("750m")] * 2, 3,
              then=([cpu("2")] * 2, 4, ("ScalingLimited", "ScaleUpLimit")),
              behavior={"scaleUp": {"policies": [policy("Pods", 2)]}}),
)  # fmt: skip
"""The first five run in every test run."""


class MetricsApi:
    """Server of `metrics.k8s.io` for an APIService. `usage` has the pods by namespace and label `app`."""

    def __init__(self) -> None:
        self.port = free_ports(1)[0]
        self.timestamp = timestamp(datetime.now(UTC))
        """Constant, so that the situations of starting pods last."""
        self.usage: dict[tuple[str, str], Sequence[PodState]] = {}
        self.requests: Counter[tuple[str, str]] = Counter()
        self.requested = asyncio.Condition()

    @asynccontextmanager
    async def serve(self, folder: Path) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get(POD_METRICS.group_version_path, self.discovery)
        app.router.add_get(f"{POD_METRICS.group_version_path}/namespaces/{{namespace}}/pods", self.pods)
        runner = web.AppRunner(app)
        await runner.setup()
        certificate, key = CertificateAuthority(folder).server_certificate(["127.0.0.1"])
        await web.TCPSite(runner, "127.0.0.1", self.port, ssl_context=server_ssl_context(certificate, key, [])).start()
        try:
            yield
        finally:
            await runner.cleanup()

    async def register(self, client: Client) -> None:
        name = {"name": "metrics", "namespace": "default"}
        spec: Object = {"type": "ExternalName", "externalName": "127.0.0.1"}
        await client.create(SERVICES, {"metadata": name, "spec": spec})
        spec = {
            "group": POD_METRICS.group,
            "version": POD_METRICS.version,
            "service": {**name, "port": self.port},
            "insecureSkipTLSVerify": True,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
        }
        await client.create(
            API_SERVICES, {"metadata": {"name": f"{POD_METRICS.version}.{POD_METRICS.group}"}, "spec": spec}
        )

    async def discovery(self, _: web.Request) -> web.Response:
        pods = {"name": "pods", "singularName": "", "namespaced": True, "kind": "PodMetrics", "verbs": ["get", "list"]}
        document = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": POD_METRICS.api_version}
        return web.json_response({**document, "resources": [pods]})

    async def pods(self, request: web.Request) -> web.Response:
        app = request.query["labelSelector"].removeprefix("app=")
        key = (request.match_info["namespace"], app)
        async with self.requested:
            self.requests[key] += 1
            self.requested.notify_all()
        items = [self.item(f"{app}-{number}", *key, state) for number, state in enumerate(self.usage.get(key, ()))]
        document = {"kind": "PodMetricsList", "apiVersion": POD_METRICS.api_version, "metadata": {}}
        return web.json_response({**document, "items": [each for each in items if each is not None]})

    def item(self, name: str, namespace: str, app: str, state: PodState) -> Object | None:
        if state.usage is None:
            return None
        containers = [{"name": "app", "usage": state.usage}]
        if state.proxy_usage is not None:
            containers.append({"name": "proxy", "usage": state.proxy_usage})
        return {
            "metadata": {"name": name, "namespace": namespace, "labels": {"app": app}},
            "timestamp": self.timestamp,
            "window": "20s",
            "containers": containers,
        }

    async def wait_for_requests(self, namespace: str, app: str, count: int) -> None:
        """Wait for that many further requests."""
        key = (namespace, app)
        goal = self.requests[key] + count
        async with asyncio.timeout(60), self.requested:
            await self.requested.wait_for(lambda: self.requests[key] >= goal)


async def create_situation(client: Client, namespace: str, situation: Situation) -> None:
    labels = {"app": situation.name}
    for number, state in enumerate(situation.pods):
        await create_pod(client, f"{situation.name}-{number}", namespace, labels, state)
    metadata = {"name": situation.name, "namespace": namespace}
    if situation.has_target:
        selector: Object = {"matchLabels": labels} if situation.target.group else labels
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "app", "image": "i"}]}}
        count = len(situation.pods) if situation.replicas is None else situation.replicas
        spec: Object = {"replicas": count, "selector": selector, "template": template}
        await client.create(situation.target, {"metadata": metadata, "spec": spec})
    reference = {"apiVersion": situation.target.api_version, "kind": situation.target.kind, "name": situation.name}
    minimum, maximum = situation.bounds
    spec = {
        "scaleTargetRef": reference,
        "minReplicas": minimum,
        "maxReplicas": maximum,
        "metrics": list(situation.metrics),
        **({"behavior": situation.behavior} if situation.behavior else {}),
    }
    for number in range(situation.autoscalers):
        name = situation.name if number == 0 else f"{situation.name}-{number}"
        await client.create(AUTOSCALERS, {"metadata": {**metadata, "name": name}, "spec": spec})


async def create_pod(client: Client, name: str, namespace: str, labels: Mapping[str, str], state: PodState) -> None:
    containers = [{"name": "app", "image": "i", "resources": {"requests": state.requests}}]
    if state.proxy_usage is not None:
        containers.append({**containers[0], "name": "proxy"})
    metadata = {"name": name, "namespace": namespace, "labels": labels, "finalizers": [FINALIZER]}
    pod = await client.create(PODS, {"metadata": metadata, "spec": {"containers": containers, **state.spec}})
    now = datetime.now(UTC)
    started, changed = (timestamp(now - timedelta(seconds=each)) for each in (state.started, state.changed))
    ready = {"type": "Ready", "status": str(state.ready), "lastTransitionTime": changed}
    status = {"phase": state.phase, "startTime": started, "conditions": [ready]}
    pod = await client.patch(PODS, pod, {"status": status}, subresource="status")
    if state.deleting:
        await client.delete(PODS, pod, grace_seconds=0)


async def observed_replicas(client: Client, namespace: str, situation: Situation) -> int:
    try:
        scale = await client.get(situation.target, situation.name, namespace, subresource="scale")
    except NotFound:
        return 0
    return int(value_at(scale, "spec", "replicas", default=0))


def comparable_message(condition: Object) -> str:
    """Return the message of a condition, or an empty text if it contains an error of a server or client."""
    has_error = condition["status"] == "False" and condition["type"] != "ScalingLimited"
    return "" if has_error else str(condition["message"])


async def observed_states(client: Client, namespace: str, situations: Sequence[Situation]) -> dict[str, Object]:
    """Return what the autoscalers did: replicas, conditions and metrics, by situation."""
    found = {name_of(each): each for each in await client.list(AUTOSCALERS, namespace)}
    states = {}
    for situation in situations:
        status = found[situation.name].get("status") or {}
        states[situation.name] = {
            "replicas": await observed_replicas(client, namespace, situation),
            "conditions": sorted(
                (each["type"], each["status"], each["reason"], comparable_message(each))
                for each in status.get("conditions") or ()
            ),
            "metrics": status.get("currentMetrics"),
            "desired": status.get("desiredReplicas"),
            "scaled": "lastScaleTime" in status,
        }
    return states
