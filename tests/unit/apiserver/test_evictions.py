"""Evictions: a pod goes where its disruption budget can spare it, and else stays."""

import asyncio
from typing import Any

import msgspec
import pytest

from tapestry.apiserver.server import ApiResponse
from tapestry.kube.objects import Object

from .conftest import Hand

PODS = "/api/v1/namespaces/default/pods"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
MERGE = "application/merge-patch+json"


async def a_pod(call: Hand, name: str = "p", phase: str = "Running", ready: bool = True) -> Object:
    """A pod that a kubelet has reported of."""
    labels = {"app": "web"}
    spec = {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}
    await call.made(PODS, {"metadata": {"name": name, "labels": labels}, "spec": spec})
    conditions = [{"type": "Ready", "status": str(ready)}]
    status = {"status": {"phase": phase, "conditions": conditions}}
    found: Object = (await call("PATCH", f"{PODS}/{name}/status", status, kind=MERGE))[1]
    return found


async def a_budget(
    call: Hand, allowed: int, name: str = "b", observed: int = 1, spec: Any = None, **status: Any
) -> None:
    """A budget that somebody has counted for."""
    selector = {"matchLabels": {"app": "web"}}
    await call.made(
        BUDGETS, {"metadata": {"name": name}, "spec": {"selector": selector, "minAvailable": 1, **(spec or {})}}
    )
    counts = {"currentHealthy": 2, "desiredHealthy": 2, "expectedPods": 2, "disruptionsAllowed": allowed}
    body = {"status": {**counts, "observedGeneration": observed, **status}}
    assert (await call("PATCH", f"{BUDGETS}/{name}/status", body, kind=MERGE))[0] == 200


def an_eviction(name: str = "p", **options: Any) -> Object:
    eviction: Object = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return {**eviction, "deleteOptions": options} if options else eviction


async def evict(call: Hand, name: str = "p", **options: Any) -> tuple[int, Any]:
    return await call("POST", f"{PODS}/{name}/eviction", an_eviction(name, **options))


async def is_going(call: Hand, name: str = "p") -> bool:
    status, found = await call("GET", f"{PODS}/{name}")
    return status == 404 or "deletionTimestamp" in found["metadata"]


async def test_a_pod_of_no_budget_goes(call: Hand) -> None:
    await a_pod(call)
    status, found = await evict(call)
    assert (status, found["status"]) == (201, "Success")
    pod = (await call("GET", f"{PODS}/p"))[1]
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 30
    (mark,) = [each for each in pod["status"]["conditions"] if each["type"] == "DisruptionTarget"]
    assert (mark["status"], mark["reason"]) == ("True", "EvictionByEvictionAPI")


async def test_a_pod_that_a_budget_can_spare_is_taken_from_it(call: Hand) -> None:
    await a_pod(call)
    await a_budget(call, 1)
    assert (await evict(call))[0] == 201
    assert await is_going(call)
    status = (await call("GET", f"{BUDGETS}/b"))[1]["status"]
    assert (status["disruptionsAllowed"], list(status["disruptedPods"])) == (0, ["p"])
    assert [(each["status"], each["reason"]) for each in status["conditions"]] == [("False", "InsufficientPods")]


async def test_a_pod_that_a_budget_cannot_spare_stays(call: Hand) -> None:
    await a_pod(call)
    await a_budget(call, 0)
    status, found = await evict(call)
    assert (status, found["reason"]) == (429, "TooManyRequests")
    assert found["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    (cause,) = found["details"]["causes"]
    assert cause == {
        "reason": "DisruptionBudget",
        "message": "The disruption budget b needs 2 healthy pods and has 2 currently",
    }
    assert not await is_going(call)


async def test_a_budget_that_nobody_has_looked_at_yet_asks_for_patience(call: Hand) -> None:
    await a_pod(call)
    await a_budget(call, 1, observed=0)
    answer = await call.answer("POST", f"{PODS}/p/eviction", an_eviction())
    assert isinstance(answer, ApiResponse)
    assert (answer.status, answer.headers["Retry-After"]) == (429, "10")
    (cause,) = msgspec.json.decode(answer.body)["details"]["causes"]
    assert cause["message"] == "The disruption budget b is still being processed by the server."


async def test_evictions_at_the_same_moment_do_not_take_the_same_disruption(call: Hand) -> None:
    for number in range(6):
        await a_pod(call, f"p{number}")
    await a_budget(call, 2)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(evict(call, f"p{number}")) for number in range(6)]
    assert sorted(task.result()[0] for task in tasks) == [201, 201, 429, 429, 429, 429]


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed"])
async def test_a_pod_that_nobody_would_miss_goes_without_asking(call: Hand, phase: str) -> None:
    await a_pod(call, phase=phase)
    await a_budget(call, 0)
    await a_budget(call, 0, "another")
    assert (await evict(call))[0] == 201
    assert await is_going(call)


@pytest.mark.parametrize(
    ("healthy", "policy", "goes"),
    [(2, None, True), (1, None, False), (1, "IfHealthyBudget", False), (1, "AlwaysAllow", True)],
)
async def test_a_pod_that_is_not_ready_goes_where_the_budget_says(
    call: Hand, healthy: int, policy: str | None, goes: bool
) -> None:
    await a_pod(call, ready=False)
    spec = {"unhealthyPodEvictionPolicy": policy} if policy else {}
    await a_budget(call, 0, spec=spec, currentHealthy=healthy)
    assert (await evict(call))[0] == (201 if goes else 429)
    assert await is_going(call) is goes


async def test_two_budgets_of_one_pod_are_a_mistake(call: Hand) -> None:
    await a_pod(call)
    await a_budget(call, 1)
    await a_budget(call, 1, "another")
    status, found = await evict(call)
    assert status == 500
    assert found["message"] == (
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    )


async def test_a_dry_run_takes_nothing(call: Hand) -> None:
    await a_pod(call)
    await a_budget(call, 1)
    assert (await evict(call, dryRun=["All"]))[0] == 201
    assert not await is_going(call)
    assert (await call("GET", f"{BUDGETS}/b"))[1]["status"]["disruptionsAllowed"] == 1


async def test_preconditions_and_grace_are_those_of_the_deletion(call: Hand) -> None:
    pod = await a_pod(call)
    status, found = await evict(call, preconditions={"uid": "another"})
    assert (status, "the UID in the precondition (another)" in found["message"]) == (409, True)
    version = pod["metadata"]["resourceVersion"]
    assert (await evict(call, preconditions={"resourceVersion": version}, gracePeriodSeconds=7))[0] == 201
    assert (await call("GET", f"{PODS}/p"))[1]["metadata"]["deletionGracePeriodSeconds"] == 7


async def test_an_eviction_of_another_name_is_refused(call: Hand) -> None:
    await a_pod(call)
    status, found = await call("POST", f"{PODS}/p/eviction", an_eviction("q"))
    assert (status, found["message"]) == (400, "name in URL does not match name in Eviction object")
