"""Evictions of pods and their PodDisruptionBudgets."""

import asyncio
from typing import Any

import msgspec
import pytest

from tapestry.apiserver.core.responses import ApiResponse
from tapestry.kube.objects import Object

from ..conftest import ServerClient

PODS = "/api/v1/namespaces/default/pods"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
MERGE = "application/merge-patch+json"


async def create_pod(call: ServerClient, name: str = "p", phase: str = "Running", ready: bool = True) -> Object:
    """Create a pod with a status as a kubelet reports it."""
    labels = {"app": "web"}
    spec = {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}
    await call.made(PODS, {"metadata": {"name": name, "labels": labels}, "spec": spec})
    conditions = [{"type": "Ready", "status": str(ready)}]
    status = {"status": {"phase": phase, "conditions": conditions}}
    pod: Object = (await call("PATCH", f"{PODS}/{name}/status", status, kind=MERGE))[1]
    return pod


async def create_budget(
    call: ServerClient, allowed: int, name: str = "b", observed: int = 1, spec: Any = None, **status: Any
) -> None:
    """Create a budget with a status as the controller counts it."""
    selector = {"matchLabels": {"app": "web"}}
    await call.made(
        BUDGETS, {"metadata": {"name": name}, "spec": {"selector": selector, "minAvailable": 1, **(spec or {})}}
    )
    counts = {"currentHealthy": 2, "desiredHealthy": 2, "expectedPods": 2, "disruptionsAllowed": allowed}
    body = {"status": {**counts, "observedGeneration": observed, **status}}
    assert (await call("PATCH", f"{BUDGETS}/{name}/status", body, kind=MERGE))[0] == 200


def eviction_body(name: str = "p", **options: Any) -> Object:
    eviction: Object = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return {**eviction, "deleteOptions": options} if options else eviction


async def evict(call: ServerClient, name: str = "p", **options: Any) -> tuple[int, Any]:
    return await call("POST", f"{PODS}/{name}/eviction", eviction_body(name, **options))


async def is_deleted(call: ServerClient, name: str = "p") -> bool:
    status, pod = await call("GET", f"{PODS}/{name}")
    return status == 404 or "deletionTimestamp" in pod["metadata"]


async def test_eviction_without_budget_deletes_pod(call: ServerClient) -> None:
    await create_pod(call)
    status, response = await evict(call)
    assert (status, response["status"]) == (201, "Success")
    pod = (await call("GET", f"{PODS}/p"))[1]
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 30
    (condition,) = [each for each in pod["status"]["conditions"] if each["type"] == "DisruptionTarget"]
    assert (condition["status"], condition["reason"]) == ("True", "EvictionByEvictionAPI")


async def test_eviction_takes_allowed_disruption(call: ServerClient) -> None:
    await create_pod(call)
    await create_budget(call, 1)
    assert (await evict(call))[0] == 201
    assert await is_deleted(call)
    status = (await call("GET", f"{BUDGETS}/b"))[1]["status"]
    assert (status["disruptionsAllowed"], list(status["disruptedPods"])) == (0, ["p"])
    assert [(each["status"], each["reason"]) for each in status["conditions"]] == [("False", "InsufficientPods")]


async def test_eviction_fails_without_allowed_disruptions(call: ServerClient) -> None:
    await create_pod(call)
    await create_budget(call, 0)
    status, response = await evict(call)
    assert (status, response["reason"]) == (429, "TooManyRequests")
    assert response["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    (cause,) = response["details"]["causes"]
    assert cause == {
        "reason": "DisruptionBudget",
        "message": "The disruption budget b needs 2 healthy pods and has 2 currently",
    }
    assert not await is_deleted(call)


async def test_unobserved_budget_responds_with_retry_after(call: ServerClient) -> None:
    await create_pod(call)
    await create_budget(call, 1, observed=0)
    response = await call.answer("POST", f"{PODS}/p/eviction", eviction_body())
    assert isinstance(response, ApiResponse)
    assert (response.status, response.headers["Retry-After"]) == (429, "10")
    (cause,) = msgspec.json.decode(response.body)["details"]["causes"]
    assert cause["message"] == "The disruption budget b is still being processed by the server."


async def test_concurrent_evictions_take_separate_disruptions(call: ServerClient) -> None:
    for number in range(6):
        await create_pod(call, f"p{number}")
    await create_budget(call, 2)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(evict(call, f"p{number}")) for number in range(6)]
    assert sorted(task.result()[0] for task in tasks) == [201, 201, 429, 429, 429, 429]


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed"])
async def test_pending_or_finished_pod_ignores_budget(call: ServerClient, phase: str) -> None:
    await create_pod(call, phase=phase)
    await create_budget(call, 0)
    await create_budget(call, 0, "another")
    assert (await evict(call))[0] == 201
    assert await is_deleted(call)


@pytest.mark.parametrize(
    ("healthy", "policy", "is_evicted"),
    [(2, None, True), (1, None, False), (1, "IfHealthyBudget", False), (1, "AlwaysAllow", True)],
)
async def test_unready_pod_follows_unhealthy_pod_policy(
    call: ServerClient, healthy: int, policy: str | None, is_evicted: bool
) -> None:
    await create_pod(call, ready=False)
    spec = {"unhealthyPodEvictionPolicy": policy} if policy else {}
    await create_budget(call, 0, spec=spec, currentHealthy=healthy)
    assert (await evict(call))[0] == (201 if is_evicted else 429)
    assert await is_deleted(call) is is_evicted


async def test_pod_with_two_budgets_is_server_error(call: ServerClient) -> None:
    await create_pod(call)
    await create_budget(call, 1)
    await create_budget(call, 1, "another")
    status, response = await evict(call)
    assert status == 500
    assert response["message"] == (
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    )


async def test_dry_run_deletes_nothing(call: ServerClient) -> None:
    await create_pod(call)
    await create_budget(call, 1)
    assert (await evict(call, dryRun=["All"]))[0] == 201
    assert not await is_deleted(call)
    assert (await call("GET", f"{BUDGETS}/b"))[1]["status"]["disruptionsAllowed"] == 1


async def test_eviction_uses_delete_options(call: ServerClient) -> None:
    pod = await create_pod(call)
    status, response = await evict(call, preconditions={"uid": "another"})
    assert (status, "the UID in the precondition (another)" in response["message"]) == (409, True)
    version = pod["metadata"]["resourceVersion"]
    assert (await evict(call, preconditions={"resourceVersion": version}, gracePeriodSeconds=7))[0] == 201
    assert (await call("GET", f"{PODS}/p"))[1]["metadata"]["deletionGracePeriodSeconds"] == 7


async def test_eviction_with_other_name_is_rejected(call: ServerClient) -> None:
    await create_pod(call)
    status, response = await call("POST", f"{PODS}/p/eviction", eviction_body("q"))
    assert (status, response["message"]) == (400, "name in URL does not match name in Eviction object")
