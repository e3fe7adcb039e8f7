"""Tests of disruption budgets."""

from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controlplane.disruption import BudgetTarget, budget_status, healthy_count
from tapestry.kube.errors import TooManyRequests
from tapestry.kube.objects import Object, owner_reference, value_at
from tapestry.kube.resources import CRDS, DEPLOYMENTS, DISRUPTION_BUDGETS, PODS, Resource
from tapestry.kube.times import parse_time

from .conftest import RunControllers
from .objects import WIDGETS, new_pod, new_widget, widget_definition

REPLICA_SETS = Resource("apps", "v1", "ReplicaSet", "replicasets")
LABELS = {"app": "web"}
NOW = parse_time("2030-01-01T00:00:00Z")


def new_budget(**spec: Any) -> Object:
    metadata = {"name": "b", "namespace": "default"}
    return {"metadata": metadata, "spec": {"selector": {"matchLabels": LABELS}, **spec}}


def new_workload(name: str, replicas: int, *owners: Object) -> Object:
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": LABELS}, "template": template}
    references = [owner_reference(each) for each in owners]
    return {"metadata": {"name": name, "namespace": "default", "ownerReferences": references}, "spec": spec}


async def new_running_pod(client: Client, name: str, owner: Object | None = None) -> Object:
    pod = new_pod(name, nodeName="n")
    references = [owner_reference(owner)] if owner is not None else []
    pod["metadata"] |= {"labels": LABELS, "ownerReferences": references}
    created = await client.create(PODS, pod)
    status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    return await client.patch(PODS, created, status, subresource="status")


async def wait_for_counts(client: Client, *counts: int) -> Object:
    """Wait for counts of healthy, desired and expected pods and of allowed disruptions."""
    fields = ("currentHealthy", "desiredHealthy", "expectedPods", "disruptionsAllowed")
    found = await wait_for(
        client,
        DISRUPTION_BUDGETS,
        "b",
        "default",
        until=lambda obj: tuple(value_at(obj, "status", each) for each in fields) == counts,
        timeout=10,
    )
    assert found is not None
    return found


async def test_healthy_surplus_may_be_evicted(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("disruption", "accounts"):
        await client.create(DISRUPTION_BUDGETS, new_budget(minAvailable=2))
        await wait_for_counts(client, 0, 2, 0, 0)
        pods = [await new_running_pod(client, name) for name in ("a", "b", "c")]
        budget = await wait_for_counts(client, 3, 2, 3, 1)
        assert budget["status"]["observedGeneration"] == 1
        await client.evict(pods[0])
        with pytest.raises(TooManyRequests):
            await client.evict(pods[1])
        budget = await wait_for_counts(client, 2, 2, 3, 0)
        (condition,) = budget["status"]["conditions"]
        assert (condition["status"], condition["reason"]) == ("False", "InsufficientPods")


async def test_expected_pods_follow_owners(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("disruption", "accounts"):
        deployment = await client.create(DEPLOYMENTS, new_workload("d", 6))
        first = await client.create(REPLICA_SETS, new_workload("r1", 4, deployment))
        second = await client.create(REPLICA_SETS, new_workload("r2", 2, deployment))
        alone = await client.create(REPLICA_SETS, new_workload("r3", 4))
        await client.create(DISRUPTION_BUDGETS, new_budget(maxUnavailable="25%"))
        for name, owner in (("a", first), ("b", second), ("c", alone)):
            await new_running_pod(client, name, owner)
        await wait_for_counts(client, 3, 7, 10, 0)
        await client.patch(DEPLOYMENTS, deployment, {"spec": {"replicas": 0}})
        await wait_for_counts(client, 3, 3, 4, 0)
        await client.patch(REPLICA_SETS, alone, {"spec": {"replicas": 2}})
        await wait_for_counts(client, 3, 1, 2, 2)


async def test_unknown_scale_allows_no_disruption(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("disruption", "accounts"):
        await client.create(CRDS, widget_definition())
        owner = await client.create(WIDGETS, new_widget("w"))
        await client.create(DISRUPTION_BUDGETS, new_budget(maxUnavailable=1))
        await new_running_pod(client, "a", owner)
        budget = await wait_for(
            client,
            DISRUPTION_BUDGETS,
            "b",
            "default",
            until=lambda obj: value_at(obj, "status", "conditions", 0, "reason") == "SyncFailed",
            timeout=10,
        )
        assert value_at(budget, "status", "disruptionsAllowed") == 0
        message = value_at(budget, "status", "conditions", 0, "message")
        assert message == "widgets.example.com does not implement the scale subresource"


async def test_custom_owner_is_read_through_scale(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("disruption", "accounts"):
        definition = widget_definition()
        (version,) = definition["spec"]["versions"]
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        paths = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
        definition["spec"]["versions"] = [
            {**version, "schema": {"openAPIV3Schema": schema}, "subresources": {"scale": paths, "status": {}}}
        ]
        await client.create(CRDS, definition)
        owner = await client.create(WIDGETS, {**new_widget("w"), "spec": {"replicas": 4}})
        await client.create(DISRUPTION_BUDGETS, new_budget(maxUnavailable=1))
        await new_running_pod(client, "a", owner)
        await wait_for_counts(client, 1, 3, 4, 0)


def test_evicted_pod_is_not_healthy() -> None:
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    pods = [{"metadata": {"name": name}, "status": ready} for name in ("a", "b")]
    assert healthy_count(pods, {}) == 2
    assert healthy_count(pods, {"a": "2030-01-01T00:00:00Z"}) == 1


def test_zero_expected_pods_allow_no_disruption() -> None:
    status = budget_status({"metadata": {"generation": 1}}, BudgetTarget(0, 0), 3, {}, NOW)
    assert status["disruptionsAllowed"] == 0
