"""Tests of the HorizontalPodAutoscaler controller on virtual time, also with perturbations."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import pytest

from tapestry.client.client import Client
from tapestry.client.transport import Request
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controller.testing import InProcessApi, Scenario, perturb, run, running_clock, specimen
from tapestry.controller.testing.perturbation import RejectingTransport
from tapestry.controlplane.autoscaling import horizontal_pod_autoscalers
from tapestry.kube.errors import ApiError, Unavailable
from tapestry.kube.objects import Object, object_named, value_at
from tapestry.kube.resources import AUTOSCALERS, DEPLOYMENTS, EVENTS, LEASES, POD_METRICS, REPLICA_SETS, Resource

from ..cluster import in_cluster, live_pods, wait_until
from .objects import RESOURCES, create_running_pod, new_autoscaler, new_set, set_usage

AN_HOUR = 3600.0
WIDGETS = Resource("example.com", "v1", "Widget", "widgets")
Act = Callable[[Client], Awaitable[None]]


def now() -> datetime:
    return running_clock().now()


def autoscaled(act: Act, *, unavailable: bool = False) -> None:
    """Run `act` while the controller runs. `unavailable` makes the metrics API fail."""

    async def body() -> None:
        clock = running_clock()
        api = InProcessApi([*RESOURCES, WIDGETS, EVENTS, LEASES], now=clock.now)

        def rejection(_: int, request: Request) -> ApiError | None:
            is_rejected = unavailable and POD_METRICS.group in str(request)
            return Unavailable(503, "ServiceUnavailable", "the metrics server is down") if is_rejected else None

        def connect() -> RejectingTransport:
            return RejectingTransport(api.connect(), rejection, 0)

        config = ManagerConfig(controllers=["h"], metrics=Metrics(address=""), probes=Probes(address=""))
        manager = Manager(config, connect, identity="test", now=clock.now, monotonic=clock.monotonic)
        manager.register("h", horizontal_pod_autoscalers.install)
        async with asyncio.TaskGroup() as group:
            group.create_task(manager.run())
            await act(Client(api.connect()))
            manager.stop()

    run(body())


async def wait_for_replicas(client: Client, replicas: int) -> None:
    await wait_for(
        client,
        REPLICA_SETS,
        "web",
        "default",
        until=lambda obj: value_at(obj, "spec", "replicas") == replicas,
        timeout=AN_HOUR,
    )


async def wait_for_reason(client: Client, type: str, reason: str, name: str = "web") -> Object:
    def holds(obj: Object | None) -> bool:
        conditions = value_at(obj, "status", "conditions", default=())
        return any((each["type"], each["reason"]) == (type, reason) for each in conditions)

    found = await wait_for(client, AUTOSCALERS, name, "default", until=holds, timeout=AN_HOUR)
    assert found is not None
    return found


async def create_workload(client: Client, replicas: int = 2, cpu: str = "500m") -> None:
    await client.create(REPLICA_SETS, new_set(replicas))
    for number in range(replicas):
        await create_running_pod(client, f"web-{number}", now() - timedelta(hours=1))
    await set_usage(client, cpu, now())


async def event_reasons(client: Client) -> set[str]:
    return {each["reason"] for each in await client.list(EVENTS, "default")}


async def usage_changes(client: Client) -> None:
    await create_workload(client, cpu="900m")
    rules = {"stabilizationWindowSeconds": 30, "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}
    await client.create(AUTOSCALERS, new_autoscaler(behavior={"scaleDown": rules}))
    await wait_for_replicas(client, 4)
    await set_usage(client, "100m", now())
    await wait_for_replicas(client, 1)
    await set_usage(client, "500m", now())
    await client.patch(REPLICA_SETS, object_named("web", "default"), {"spec": {"replicas": 2}})
    await wait_for(
        client,
        AUTOSCALERS,
        "web",
        "default",
        until=lambda obj: (
            value_at(obj, "status", "currentReplicas") == 2
            and value_at(obj, "status", "currentMetrics", 0, "resource", "current", "averageUtilization") == 50
            and value_at(obj, "status", "conditions", 0, "reason") == "ReadyForNewScale"
        ),
        timeout=AN_HOUR,
    )


def test_perturbed_autoscaler_reaches_same_replicas() -> None:
    report = perturb(Scenario("autoscalers", RESOURCES, horizontal_pod_autoscalers.install, usage_changes))
    assert report.calls > 10
    assert not report.failures, report


def test_usage_changes_replicas_and_status() -> None:
    async def act(client: Client) -> None:
        await create_workload(client, cpu="1")
        await client.create(AUTOSCALERS, new_autoscaler())
        begin = now()
        await wait_for_replicas(client, 4)
        assert now() - begin == timedelta(seconds=15)
        status = (await wait_for_reason(client, "AbleToScale", "SucceededRescale"))["status"]
        assert (status["currentReplicas"], status["desiredReplicas"]) == (2, 4)
        assert value_at(status, "currentMetrics", 0, "resource", "current") == {
            "averageUtilization": 100,
            "averageValue": "1",
        }
        assert status["lastScaleTime"]
        await wait_for_reason(client, "AbleToScale", "ReadyForNewScale")
        (event,) = await client.list(EVENTS, "default")
        reason = "cpu resource utilization (percentage of request) above target"
        assert (event["reason"], event["message"]) == ("SuccessfulRescale", f"New size: 4; reason: {reason}")

    autoscaled(act)


def test_scaling_down_waits_five_minutes() -> None:
    async def act(client: Client) -> None:
        await create_workload(client, replicas=4, cpu="100m")
        begin = now()
        await client.create(AUTOSCALERS, new_autoscaler())
        await wait_for_reason(client, "AbleToScale", "ScaleDownStabilized")
        await wait_for_replicas(client, 1)
        assert timedelta(minutes=5) <= now() - begin <= timedelta(minutes=5, seconds=45)

    autoscaled(act)


def test_policies_count_earlier_changes() -> None:
    async def act(client: Client) -> None:
        await create_workload(client, cpu="1")
        policies = [{"type": "Pods", "value": 1, "periodSeconds": 60}]
        await client.create(AUTOSCALERS, new_autoscaler(behavior={"scaleUp": {"policies": policies}}))
        await wait_for_replicas(client, 3)
        begin = now()
        await wait_for_replicas(client, 4)
        assert now() - begin == timedelta(seconds=60)

    autoscaled(act)


def test_unchanged_usage_writes_nothing() -> None:
    async def act(client: Client) -> None:
        await create_workload(client)
        await client.create(AUTOSCALERS, new_autoscaler())
        before = await wait_for_reason(client, "AbleToScale", "ReadyForNewScale")
        await asyncio.sleep(600)
        after = await client.get(AUTOSCALERS, "web", "default")
        assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]

    autoscaled(act)


def test_unavailable_metrics_change_nothing() -> None:
    async def act(client: Client) -> None:
        await create_workload(client)
        await client.create(AUTOSCALERS, new_autoscaler())
        found = await wait_for_reason(client, "ScalingActive", "FailedGetResourceMetric")
        (active,) = [each for each in found["status"]["conditions"] if each["type"] == "ScalingActive"]
        assert "unable to fetch metrics from resource metrics API" in active["message"]
        assert found["status"]["currentMetrics"] == [{"type": ""}]
        await asyncio.sleep(60)
        assert (await client.get(REPLICA_SETS, "web", "default"))["spec"]["replicas"] == 2
        assert {"FailedGetResourceMetric", "FailedComputeMetricsReplicas"} <= await event_reasons(client)

    autoscaled(act, unavailable=True)


def test_two_autoscalers_of_the_same_pods_change_nothing() -> None:
    async def act(client: Client) -> None:
        await create_workload(client)
        for name in ("one", "two"):
            await client.create(AUTOSCALERS, new_autoscaler(name))
        for name in ("one", "two"):
            await wait_for_reason(client, "ScalingActive", "AmbiguousSelector", name)
        await set_usage(client, "900m", now())
        await asyncio.sleep(60)
        assert (await client.get(REPLICA_SETS, "web", "default"))["spec"]["replicas"] == 2
        begin = now()
        await client.delete(AUTOSCALERS, await client.get(AUTOSCALERS, "two", "default"))
        await wait_for_replicas(client, 4)
        assert now() - begin <= timedelta(seconds=15)

    autoscaled(act)


@pytest.mark.parametrize(
    ("version", "kind", "message"),
    [
        ("apps/v1", "ReplicaSet", '"missing" not found'),
        ("apps/v1", "Odd", 'no matches for kind "Odd" in group "apps"'),
        ("example.com/v1", "Widget", "with a scale"),
        ("../v1", "Pod", "no matches"),
    ],
)
def test_missing_target_is_reported(version: str, kind: str, message: str) -> None:
    async def act(client: Client) -> None:
        reference = {"apiVersion": version, "kind": kind, "name": "missing"}
        await client.create(AUTOSCALERS, new_autoscaler(scaleTargetRef=reference))
        found = await wait_for_reason(client, "AbleToScale", "FailedGetScale")
        assert message in found["status"]["conditions"][0]["message"]
        assert await event_reasons(client) == {"FailedGetScale"}

    autoscaled(act)


def test_replicas_out_of_bounds_are_corrected_without_metrics() -> None:
    async def act(client: Client) -> None:
        await client.create(REPLICA_SETS, new_set(20))
        await client.create(AUTOSCALERS, new_autoscaler())
        await wait_for_replicas(client, 10)
        await client.patch(REPLICA_SETS, object_named("web", "default"), {"spec": {"replicas": 0}})
        await wait_for_reason(client, "ScalingActive", "ScalingDisabled")

    autoscaled(act)


def test_many_autoscalers_are_reconciled_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(client: Client) -> None:
        await create_workload(client)
        await client.create(AUTOSCALERS, new_autoscaler())
        await wait_for_reason(client, "AbleToScale", "ReadyForNewScale")
        begin = now()
        await set_usage(client, "900m", begin)
        await wait_for_replicas(client, 4)
        assert now() - begin == timedelta(seconds=100)

    monkeypatch.setattr(horizontal_pod_autoscalers, "MAX_RATE", 0.01)
    autoscaled(act)


@in_cluster("deployments", "replicasets", "services", "horizontalpodautoscalers")
async def test_deployment_is_scaled_with_its_pods(client: Client) -> None:
    await client.create(DEPLOYMENTS, specimen(DEPLOYMENTS, "web", "default"))
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    await client.create(AUTOSCALERS, new_autoscaler(scaleTargetRef=reference, minReplicas=3))
    await wait_until(client, DEPLOYMENTS, "web", lambda obj: value_at(obj, "status", "readyReplicas") == 3)
    assert len(await live_pods(client)) == 3
