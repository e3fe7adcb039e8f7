"""Comparison of our HorizontalPodAutoscaler controller with that of kube-controller-manager.

Both work on the same kube-apiserver and get the same metrics, one after the other.
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.watch import Watch, wait_for
from tapestry.controller import Manager
from tapestry.controller.config import Filter, ManagerConfig, Metrics, Probes
from tapestry.controlplane.autoscaling import horizontal_pod_autoscalers
from tapestry.controlplane.autoscaling.replica_calculator import AutoscalerSettings
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object, object_named
from tapestry.kube.resources import AUTOSCALERS, NAMESPACES, POD_METRICS
from tapestry.local.kubernetes import ControlPlane

from .autoscaling import API_SERVICES, SITUATIONS, MetricsApi, Situation, create_situation, observed_states

TIMEOUT = 40.0
GATE = "HPAConfigurableTolerance=true"
CONTROLLER_FLAGS = {
    "controllers": "horizontal-pod-autoscaler-controller",
    "horizontal-pod-autoscaler-sync-period": "1s",
    "concurrent-horizontal-pod-autoscaler-syncs": "5",
    "feature-gates": GATE,
}
CANARY = SITUATIONS[0].name


@pytest.fixture
def plane(kube_assets: Path, tmp_path: Path) -> Iterator[ControlPlane]:
    flags = {"disable-admission-plugins": "ServiceAccount", "feature-gates": GATE}
    with ControlPlane(
        tmp_path / "plane",
        kube_assets,
        controller_manager=CONTROLLER_FLAGS,
        fsync=False,
        flags=flags,
    ) as made:
        yield made


def connect(plane: ControlPlane) -> HttpTransport:
    return HttpTransport(load_access([plane.kubeconfig], environ=os.environ))


async def final_states(
    client: Client, api: MetricsApi, namespace: str, situations: Sequence[Situation]
) -> dict[str, Object]:
    """Wait until all situations are as expected, and return their states one reconcile later."""

    states: dict[str, Object] = {}

    def unexpected_states() -> dict[str, object]:
        return {
            each.name: (states[each.name], each.expected, each.condition)
            for each in situations
            if states[each.name]["replicas"] != each.expected
            or each.condition not in [(type, reason) for type, _, reason, _ in states[each.name]["conditions"]]
        }

    try:
        async with asyncio.timeout(TIMEOUT):
            async for _ in Watch(client, AUTOSCALERS, namespace=namespace).events():
                states = await observed_states(client, namespace, situations)
                if not unexpected_states():
                    break
    except TimeoutError:
        raise AssertionError(f"{namespace}: state, expected replicas and condition: {unexpected_states()}") from None
    await api.wait_for_requests(namespace, CANARY, 2)
    return await observed_states(client, namespace, situations)


async def run_situations(
    client: Client, api: MetricsApi, namespace: str, situations: Sequence[Situation]
) -> list[dict[str, Object]]:
    """Return the states of all situations with their first and with their last usage."""
    await client.create(NAMESPACES, object_named(namespace))
    for each in situations:
        api.usage[namespace, each.name] = each.pods
    async with asyncio.TaskGroup() as group:
        for each in situations:
            group.create_task(create_situation(client, namespace, each))
    states = [await final_states(client, api, namespace, situations)]
    changed = [
        replace(each, pods=each.then[0], expected=each.then[1], condition=each.then[2])
        for each in situations
        if each.then is not None
    ]
    for each in changed:
        api.usage[namespace, each.name] = each.pods
    if changed:
        await api.wait_for_requests(namespace, changed[-1].name, 2)
        states.append(await final_states(client, api, namespace, changed))
    return states


async def both_results(
    plane: ControlPlane, folder: Path, situations: Sequence[Situation]
) -> tuple[list[dict[str, Object]], list[dict[str, Object]]]:
    """Return the states that our controller reaches, and those that the controller of Kubernetes reaches."""
    api = MetricsApi()
    async with api.serve(folder), Client(connect(plane)) as client:
        await api.register(client)
        await wait_for(
            client,
            API_SERVICES,
            f"{POD_METRICS.version}.{POD_METRICS.group}",
            until=lambda obj: obj is not None and is_condition_true(obj, "Available"),
            timeout=TIMEOUT,
        )
        theirs = await run_situations(client, api, "theirs", situations)
        plane.kill("kube-controller-manager")
        config = ManagerConfig(
            name="autoscaling",
            filter=Filter(namespaces=["ours"]),
            controllers=["h"],
            metrics=Metrics(address=""),
            probes=Probes(address=""),
        )
        manager = Manager(config, lambda: connect(plane), identity="test")
        settings = AutoscalerSettings(sync_period=1.0)
        manager.register("h", lambda each: horizontal_pod_autoscalers.install(each, settings))
        async with asyncio.TaskGroup() as group:
            group.create_task(manager.run())
            ours = await run_situations(client, api, "ours", situations)
            manager.stop()
    return ours, theirs


@pytest.mark.parametrize(
    "situations", [pytest.param(SITUATIONS[:5], id="five"), pytest.param(SITUATIONS, id="all", marks=pytest.mark.long)]
)
@pytest.mark.timeout(180)
async def test_autoscalers_reach_same_replicas(
    plane: ControlPlane, tmp_path: Path, situations: Sequence[Situation]
) -> None:
    ours, theirs = await both_results(plane, tmp_path, situations)
    assert ours == theirs
