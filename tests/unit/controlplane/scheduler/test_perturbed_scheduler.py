"""Perturbation tests of the scheduler: all pods are placed, and no node is overcommitted."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from tapestry.client.client import Client
from tapestry.client.watch import Watch, wait_for
from tapestry.controller.testing import Scenario, perturb, specimen
from tapestry.controlplane.scheduler import scheduler
from tapestry.controlplane.volume_matching import SELECTED_NODE
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, annotations_of, name_of, object_named, value_at, with_value
from tapestry.kube.resources import (
    CSI_NODES,
    DISRUPTION_BUDGETS,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
)

from .scheduling_reference import HOST, REQUIRED, new_node, new_pod

SERVED = [
    PODS,
    NODES,
    NAMESPACES,
    DISRUPTION_BUDGETS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    CSI_NODES,
    VOLUME_ATTACHMENTS,
]
A_DAY = 24 * 3600.0


def is_placed(pod: Object | None) -> bool:
    return bool(value_at(pod, "spec", "nodeName"))


def is_reported(pod: Object | None) -> bool:
    condition = find_condition(value_at(pod, "status", "conditions"), "PodScheduled") or {}
    return condition.get("reason") == "Unschedulable" or is_placed(pod)


def is_terminating(pod: Object | None) -> bool:
    return pod is not None and "deletionTimestamp" in pod["metadata"]


async def overload(client: Client) -> None:
    """The number of placed pods is checked, not which ones they are."""
    for name in ("m", "n"):
        await client.create(NODES, new_node(name, cpu="2"))
    names = [f"p{number}" for number in range(6)]
    for name in names:
        await client.create(PODS, new_pod(name, cpu="1"))
    for name in names:
        await wait_for(client, PODS, name, "x", until=is_reported, timeout=A_DAY)
    for pending in (2, 1, 0):
        await wait_until_placed(client, 4)
        pods = await client.list(PODS)
        assert sorted(value_at(pod, "spec", "nodeName", default="") for pod in pods) == [
            *[""] * pending,
            "m",
            "m",
            "n",
            "n",
        ]
        deleted = next(pod for pod in pods if is_placed(pod))
        await client.delete(PODS, object_named(name_of(deleted), "x"), grace_seconds=0)
    for pod in await client.list(PODS):
        await client.delete(PODS, object_named(name_of(pod), "x"), grace_seconds=0)


async def wait_until_placed(client: Client, number: int) -> None:
    async with asyncio.timeout(A_DAY), aclosing(Watch(client, PODS, "x").events()) as events:
        async for _ in events:
            if sum(map(is_placed, await client.list(PODS, "x"))) == number:
                return


async def preemption(client: Client) -> None:
    await client.create(NODES, new_node("n", cpu="2"))
    await client.create(PODS, new_pod("low", cpu="2", terminationGracePeriodSeconds=30))
    await wait_for(client, PODS, "low", "x", until=is_placed, timeout=A_DAY)
    await client.create(PODS, new_pod("high", cpu="2", priority=10))
    await wait_for(client, PODS, "low", "x", until=is_terminating, timeout=A_DAY)
    await client.delete(PODS, object_named("low", "x"), grace_seconds=0)
    await wait_for(client, PODS, "high", "x", until=is_placed, timeout=A_DAY)


async def anti_affinity(client: Client) -> None:
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "a"}}}
    for number in range(3):
        await client.create(NODES, new_node(f"n{number}"))
        affinity = {"podAntiAffinity": {REQUIRED: [term]}}
        await client.create(PODS, new_pod(f"p{number}", app="a", affinity=affinity, nodeSelector={HOST: f"n{number}"}))
    for number in range(3):
        await wait_for(client, PODS, f"p{number}", "x", until=is_placed, timeout=A_DAY)
    await client.create(PODS, new_pod("late", app="a", affinity={"podAntiAffinity": {REQUIRED: [term]}}))
    await wait_for(client, PODS, "late", "x", until=is_reported, timeout=A_DAY)
    await client.create(NODES, new_node("n3"))
    await wait_for(client, PODS, "late", "x", until=is_placed, timeout=A_DAY)
    pods = await client.list(PODS)
    assert len({value_at(pod, "spec", "nodeName") for pod in pods}) == 4
    for pod in pods:
        await client.delete(PODS, object_named(name_of(pod), "x"), grace_seconds=0)


async def first_consumer_binding(client: Client) -> None:
    late = {"metadata": {"name": "late"}, "provisioner": "maker", "volumeBindingMode": "WaitForFirstConsumer"}
    await client.create(STORAGE_CLASSES, late)
    claim = with_value(specimen(PERSISTENT_VOLUME_CLAIMS, "c", "x"), ("spec", "storageClassName"), "late")
    await client.create(PERSISTENT_VOLUME_CLAIMS, claim)
    await client.create(NODES, new_node("n"))
    await client.create(PODS, new_pod("p", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]))
    await wait_for(
        client,
        PERSISTENT_VOLUME_CLAIMS,
        "c",
        "x",
        until=lambda obj: annotations_of(obj or object_named("c")).get(SELECTED_NODE) == "n",
        timeout=A_DAY,
    )
    volume = with_value(specimen(PERSISTENT_VOLUMES, "v"), ("spec", "storageClassName"), "late")
    await client.create(PERSISTENT_VOLUMES, volume)
    await client.patch(PERSISTENT_VOLUME_CLAIMS, object_named("c", "x"), {"spec": {"volumeName": "v"}})
    bound = {"status": {"phase": "Bound"}}
    await client.patch(PERSISTENT_VOLUME_CLAIMS, object_named("c", "x"), bound, subresource="status")
    await wait_for(client, PODS, "p", "x", until=is_placed, timeout=A_DAY)


async def gate_and_late_node(client: Client) -> None:
    await client.create(PODS, new_pod("p", schedulingGates=[{"name": "g"}]))
    await wait_for(client, PODS, "p", "x", until=is_gated, timeout=A_DAY)
    await client.patch(PODS, object_named("p", "x"), {"spec": {"schedulingGates": None}})
    await wait_for(client, PODS, "p", "x", until=is_reported, timeout=A_DAY)
    await client.create(NODES, new_node("n"))
    await wait_for(client, PODS, "p", "x", until=is_placed, timeout=A_DAY)


def is_gated(pod: Object | None) -> bool:
    condition = find_condition(value_at(pod, "status", "conditions"), "PodScheduled") or {}
    return condition.get("reason") == "SchedulingGated"


def check(scenario: Callable[[Client], Awaitable[None]]) -> None:
    report = perturb(Scenario("scheduler", SERVED, scheduler.install, scenario, counts=is_no_event))
    assert report.calls > 0
    assert not report.failures, report


def is_no_event(call: str) -> bool:
    return "/events" not in call


def test_perturbation_never_overcommits_nodes() -> None:
    check(overload)


def test_perturbed_preemption_succeeds() -> None:
    check(preemption)


def test_perturbed_anti_affinity_holds() -> None:
    check(anti_affinity)


def test_perturbed_volume_binding_succeeds() -> None:
    check(first_consumer_binding)


def test_perturbed_gate_removal_succeeds() -> None:
    check(gate_and_late_node)
