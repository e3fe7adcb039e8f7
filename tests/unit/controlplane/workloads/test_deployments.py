"""Tests of the Deployment and ReplicaSet controllers."""

from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.client.options import PatchType
from tapestry.controlplane.workloads import deployments, owned_pods, rollouts
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import (
    Object,
    annotations_of,
    labels_of,
    name_of,
    object_named,
    owner_reference,
    uid_of,
    value_at,
)
from tapestry.kube.resources import DEPLOYMENTS, EVENTS, PODS, REPLICA_SETS, REPLICATION_CONTROLLERS, RESOURCE_QUOTAS

from ..cluster import in_cluster, live_pods, pass_time, wait_until

WEB = object_named("web", "default")
REVISION = "deployment.kubernetes.io/revision"
NEVER_READY = {"simulated.tapestry.io/starts-after": "1000h"}


def new_deployment(
    replicas: int, image: str = "web:1", annotations: dict[str, str] | None = None, **spec: Any
) -> Object:
    template = {
        "metadata": {"labels": {"app": "web"}, "annotations": annotations or {}},
        "spec": {"containers": [{"name": "c", "image": image}]},
    }
    needed = {"selector": {"matchLabels": {"app": "web"}}, "template": template}
    return {"metadata": {"name": "web", "namespace": "default"}, "spec": {"replicas": replicas, **needed, **spec}}


def is_rolled_out(deployment: Object, replicas: int) -> bool:
    status = deployment.get("status") or {}
    keys = ("replicas", "updatedReplicas", "availableReplicas")
    is_new = status.get("observedGeneration") == deployment["metadata"]["generation"]
    return is_new and [status.get(key, 0) for key in keys] == [replicas] * 3


async def wait_until_rolled_out(client: Client, replicas: int) -> Object:
    return await wait_until(client, DEPLOYMENTS, "web", lambda found: is_rolled_out(found, replicas))


async def wait_for_reason(client: Client, type: str, reason: str) -> Object:
    def holds(found: Object) -> bool:
        return (find_condition(value_at(found, "status", "conditions"), type) or {}).get("reason") == reason

    found = find_condition((await wait_until(client, DEPLOYMENTS, "web", holds))["status"]["conditions"], type)
    assert found is not None
    return found


async def change(client: Client, **spec: Any) -> None:
    await client.patch(DEPLOYMENTS, WEB, {"spec": spec})


async def roll_to(client: Client, image: str, annotations: dict[str, str] | None = None) -> None:
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "c", "image": image}]}}
    await client.patch(DEPLOYMENTS, WEB, {"spec": {"template": template}}, type=PatchType.STRATEGIC)


async def images(client: Client) -> list[str]:
    return sorted(pod["spec"]["containers"][0]["image"] for pod in await live_pods(client))


async def sets(client: Client) -> dict[str, Object]:
    """Return ReplicaSets by revision."""
    return {annotations_of(each)[REVISION]: each for each in await client.list(REPLICA_SETS)}


async def messages(client: Client, kind: str = "Deployment") -> list[str]:
    await pass_time(1)
    events = [event for event in await client.list(EVENTS) if event["involvedObject"]["kind"] == kind]
    return [event["message"] for event in sorted(events, key=lambda each: int(each["metadata"]["resourceVersion"]))]


@in_cluster("deployments", "replicasets")
async def test_deployment_creates_pods(client: Client) -> None:
    await client.create(DEPLOYMENTS, new_deployment(6))
    found = await wait_until_rolled_out(client, 6)
    (only,) = await client.list(REPLICA_SETS)
    condition = find_condition(found["status"]["conditions"], "Progressing")
    assert condition is not None
    assert condition["reason"] == "NewReplicaSetAvailable"
    assert condition["message"] == f'ReplicaSet "{name_of(only)}" has successfully progressed.'
    assert {"lastUpdateTime", "lastTransitionTime"} <= condition.keys()
    assert annotations_of(found)[REVISION] == "1"
    for pod in await live_pods(client):
        assert labels_of(pod)["pod-template-hash"] == labels_of(only)["pod-template-hash"]
    assert await messages(client) == [f"Scaled up replica set {name_of(only)} from 0 to 6"]


@in_cluster("deployments", "replicasets")
async def test_excessive_replicas_can_be_corrected(client: Client) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owned_pods, "BURST_REPLICAS", 4)
        await client.create(DEPLOYMENTS, new_deployment(2**31 - 1))
        await wait_until(client, DEPLOYMENTS, "web", lambda each: value_at(each, "status", "replicas", default=0) >= 8)
        await change(client, replicas=2)
        await wait_until_rolled_out(client, 2)


@in_cluster("deployments", "replicasets")
async def test_new_template_replaces_pods_and_can_be_reverted(client: Client) -> None:
    await client.create(DEPLOYMENTS, new_deployment(5))
    await wait_until_rolled_out(client, 5)
    first = (await sets(client))["1"]
    await roll_to(client, "web:2")
    await wait_until_rolled_out(client, 5)
    assert await images(client) == ["web:2"] * 5
    await roll_to(client, "web:1")
    await wait_until_rolled_out(client, 5)
    found = await sets(client)
    assert sorted(found) == ["2", "3"]
    assert uid_of(found["3"]) == uid_of(first)
    assert annotations_of(found["3"])["deployment.kubernetes.io/revision-history"] == "1"
    assert (found["2"]["spec"]["replicas"], found["3"]["spec"]["replicas"]) == (0, 5)


@in_cluster("deployments", "replicasets")
async def test_deployment_scales_up_and_down(client: Client) -> None:
    await client.create(DEPLOYMENTS, new_deployment(3))
    for size in (3, 9, 1, 0, 4):
        await change(client, replicas=size)
        await wait_until_rolled_out(client, size)
        assert len(await live_pods(client)) == size


@in_cluster("deployments", "replicasets")
async def test_rollout_respects_surge_and_availability(client: Client) -> None:
    slowly = {"simulated.tapestry.io/starts-after": "3s", "simulated.tapestry.io/stops-after": "2s"}
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2, "maxUnavailable": 1}}
    await client.create(DEPLOYMENTS, new_deployment(6, annotations=slowly, strategy=strategy))
    await wait_until_rolled_out(client, 6)
    await roll_to(client, "web:2", slowly)
    for _ in range(30):
        await pass_time(0.5)
        pods = await live_pods(client)
        assert len(pods) <= 8
        assert sum(value_at(pod, "status", "phase") == "Running" for pod in pods) >= 5
    assert await images(client) == ["web:2"] * 6


@in_cluster("deployments", "replicasets")
async def test_stalled_rollout_fails_and_can_be_reverted(client: Client) -> None:
    await client.create(DEPLOYMENTS, new_deployment(4, progressDeadlineSeconds=60))
    await wait_until_rolled_out(client, 4)
    await roll_to(client, "web:2", NEVER_READY)
    condition = await wait_for_reason(client, "Progressing", "ProgressDeadlineExceeded")
    broken = (await sets(client))["2"]
    assert (condition["status"], condition["message"]) == (
        "False",
        f'ReplicaSet "{name_of(broken)}" has timed out progressing.',
    )
    available = await wait_for_reason(client, "Available", "MinimumReplicasAvailable")
    assert available["status"] == "True"
    assert await images(client) == ["web:1"] * 3 + ["web:2"] * 2
    await roll_to(client, "web:1", {"simulated.tapestry.io/starts-after": None})  # type: ignore[dict-item]
    await wait_until_rolled_out(client, 4)
    assert await images(client) == ["web:1"] * 4
    assert (await wait_for_reason(client, "Progressing", "NewReplicaSetAvailable"))["status"] == "True"


@in_cluster("deployments", "replicasets")
async def test_completed_rollout_stays_complete(client: Client) -> None:
    await client.create(DEPLOYMENTS, new_deployment(3, progressDeadlineSeconds=10))
    await wait_until_rolled_out(client, 3)
    (pod, *_) = await live_pods(client)
    unready = {"type": "Ready", "status": "False", "lastTransitionTime": "2024-01-01T00:00:00Z"}
    status = {"conditions": [unready], "containerStatuses": []}
    await client.patch(PODS, pod, {"status": status}, type=PatchType.STRATEGIC, subresource="status")
    await change(client, replicas=5)
    await pass_time()
    assert (await wait_for_reason(client, "Progressing", "NewReplicaSetAvailable"))["status"] == "True"


@in_cluster("deployments", "replicasets")
async def test_short_progress_deadline_is_respected(client: Client) -> None:
    await client.create(DEPLOYMENTS, new_deployment(6))
    await wait_until_rolled_out(client, 6)
    await change(client, progressDeadlineSeconds=2)
    await pass_time(3.7)
    await roll_to(client, "web:2", NEVER_READY)
    await pass_time(6)
    await wait_for_reason(client, "Progressing", "ProgressDeadlineExceeded")


@in_cluster("deployments", "replicasets")
async def test_paused_deployment_scales_but_does_not_roll(client: Client) -> None:
    await client.create(DEPLOYMENTS, new_deployment(3))
    await wait_until_rolled_out(client, 3)
    await change(client, paused=True)
    condition = await wait_for_reason(client, "Progressing", "DeploymentPaused")
    assert (condition["status"], condition["message"]) == ("Unknown", "Deployment is paused")
    await roll_to(client, "web:2")
    await change(client, replicas=5)
    await pass_time()
    assert await images(client) == ["web:1"] * 5
    await change(client, paused=False)
    await wait_until_rolled_out(client, 5)
    assert await images(client) == ["web:2"] * 5


@in_cluster("deployments", "replicasets")
async def test_scaling_during_rollout_is_proportional(client: Client) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2, "maxUnavailable": 2}}
    await client.create(DEPLOYMENTS, new_deployment(10, strategy=strategy))
    await wait_until_rolled_out(client, 10)
    await roll_to(client, "web:2", NEVER_READY)
    await pass_time()
    assert [each["spec"]["replicas"] for _, each in sorted((await sets(client)).items())] == [8, 4]
    await change(client, replicas=30)
    await pass_time()
    assert [each["spec"]["replicas"] for _, each in sorted((await sets(client)).items())] == [21, 11]


@in_cluster("deployments", "replicasets")
async def test_recreate_never_runs_both_versions(client: Client) -> None:
    slowly = {"simulated.tapestry.io/stops-after": "10s"}
    await client.create(DEPLOYMENTS, new_deployment(3, annotations=slowly, strategy={"type": "Recreate"}))
    await wait_until_rolled_out(client, 3)
    await roll_to(client, "web:2", slowly)
    await pass_time(5)
    assert len(await client.list(PODS)) == 3
    assert await live_pods(client) == []
    assert (await wait_for_reason(client, "Available", "MinimumReplicasUnavailable"))["status"] == "False"
    await wait_until_rolled_out(client, 3)
    assert await images(client) == ["web:2"] * 3


@in_cluster("deployments", "replicasets")
async def test_pods_become_available_after_min_ready_seconds(client: Client) -> None:
    await client.create(DEPLOYMENTS, new_deployment(2, minReadySeconds=30))
    await pass_time(20)
    status = (await client.get(DEPLOYMENTS, "web", "default"))["status"]
    assert (status["readyReplicas"], status.get("availableReplicas", 0), status["unavailableReplicas"]) == (2, 0, 2)
    await wait_until_rolled_out(client, 2)


@in_cluster("deployments", "replicasets")
async def test_old_replica_sets_over_limit_are_deleted(client: Client) -> None:
    await client.create(DEPLOYMENTS, new_deployment(1, revisionHistoryLimit=1))
    for number in range(1, 5):
        await roll_to(client, f"web:{number}")
        await wait_until_rolled_out(client, 1)
    await pass_time()
    assert sorted(await sets(client)) == ["3", "4"]


@in_cluster("deployments", "replicasets")
async def test_annotations_are_copied_to_new_replica_set(client: Client) -> None:
    deployment = new_deployment(1)
    deployment["metadata"]["annotations"] = {"kubernetes.io/change-cause": "first"}
    await client.create(DEPLOYMENTS, deployment)
    await wait_until_rolled_out(client, 1)
    assert annotations_of((await sets(client))["1"])["kubernetes.io/change-cause"] == "first"


@in_cluster("deployments", "replicasets")
async def test_name_collision_is_resolved(client: Client) -> None:
    await client.create(DEPLOYMENTS, new_deployment(1, paused=True))
    await pass_time(5)
    deployment = await client.get(DEPLOYMENTS, "web", "default")
    taken_name = deployments.replica_set_name(deployment, rollouts.new_replica_set(deployment, 0))
    other = new_deployment(0)["spec"]
    other["selector"] = {"matchLabels": {"app": "other"}}
    other["template"]["metadata"]["labels"] = {"app": "other"}
    await client.create(REPLICA_SETS, {"metadata": {"name": taken_name, "namespace": "default"}, "spec": other})
    await change(client, paused=False)
    found = await wait_until_rolled_out(client, 1)
    assert found["status"]["collisionCount"] == 1


@in_cluster("deployments", "replicasets", "quota")
async def test_failed_pod_creation_is_reported(client: Client) -> None:
    metadata = {"name": "q", "namespace": "default"}
    await client.create(RESOURCE_QUOTAS, {"metadata": metadata, "spec": {"hard": {"pods": "2"}}})
    await pass_time()
    await client.create(DEPLOYMENTS, new_deployment(3))
    condition = await wait_for_reason(client, "ReplicaFailure", "FailedCreate")
    assert "exceeded quota: q" in condition["message"]
    await client.delete(RESOURCE_QUOTAS, object_named("q", "default"))
    found = await wait_until_rolled_out(client, 3)
    assert find_condition(found["status"]["conditions"], "ReplicaFailure") is None


@in_cluster("deployments", "replicasets")
async def test_replica_sets_and_pods_are_deleted_with_deployment(client: Client) -> None:
    await client.create(DEPLOYMENTS, new_deployment(2))
    await wait_until_rolled_out(client, 2)
    await client.delete(DEPLOYMENTS, WEB)
    await pass_time()
    assert await client.list(REPLICA_SETS) == []
    assert await client.list(PODS) == []


# -- ReplicaSets without a Deployment


def new_replica_set(replicas: int, name: str = "own") -> Object:
    spec = new_deployment(replicas)["spec"]
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


async def wait_until_has(client: Client, replicas: int) -> Object:
    return await wait_until(
        client, REPLICA_SETS, "own", lambda found: value_at(found, "status", "availableReplicas", default=0) == replicas
    )


@in_cluster("replicasets")
async def test_matching_orphan_is_adopted_and_mismatch_released(client: Client) -> None:
    metadata = {"name": "stray", "namespace": "default", "labels": {"app": "web"}}
    await client.create(PODS, {"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "x"}]}})
    replica_set = await client.create(REPLICA_SETS, new_replica_set(2))
    await wait_until_has(client, 2)
    stray = await client.get(PODS, "stray", "default")
    assert stray["metadata"]["ownerReferences"] == [owner_reference(replica_set)]
    await client.patch(PODS, stray, {"metadata": {"labels": {"app": "debug"}}})
    await pass_time()
    assert "ownerReferences" not in (await client.get(PODS, "stray", "default"))["metadata"]
    assert len(await live_pods(client)) == 3


@in_cluster("replicasets")
async def test_terminated_or_deleted_pod_is_replaced(client: Client) -> None:
    await client.create(REPLICA_SETS, new_replica_set(3))
    await wait_until_has(client, 3)
    first, second, _ = await live_pods(client)
    await client.delete(PODS, first)
    await client.patch(PODS, second, {"status": {"phase": "Failed"}}, subresource="status")
    await pass_time()
    await wait_until_has(client, 3)
    assert uid_of(first) not in map(uid_of, await live_pods(client))


@in_cluster("replicasets")
async def test_scale_down_deletes_in_deletion_order(client: Client) -> None:
    await client.create(REPLICA_SETS, new_replica_set(3))
    await wait_until_has(client, 3)
    cheap, dear, _ = await live_pods(client)
    cost = "controller.kubernetes.io/pod-deletion-cost"
    await client.patch(PODS, cheap, {"metadata": {"annotations": {cost: "-1"}}})
    await client.patch(PODS, dear, {"metadata": {"annotations": {cost: "10"}}})
    await pass_time(1)
    await client.patch(REPLICA_SETS, object_named("own", "default"), {"spec": {"replicas": 1}})
    await wait_until_has(client, 1)
    await pass_time()
    assert [name_of(pod) for pod in await live_pods(client)] == [name_of(dear)]


@in_cluster("replicationcontrollers")
async def test_replication_controllers_behave_like_replica_sets(client: Client) -> None:
    spec = new_deployment(2)["spec"]
    spec["selector"] = {"app": "web"}
    await client.create(REPLICATION_CONTROLLERS, {"metadata": {"name": "old", "namespace": "default"}, "spec": spec})

    def has(count: int) -> Any:
        return lambda found: value_at(found, "status", "availableReplicas", default=0) == count

    await wait_until(client, REPLICATION_CONTROLLERS, "old", has(2))
    (pod, _) = await live_pods(client)
    await client.delete(PODS, pod)
    await pass_time()
    await wait_until(client, REPLICATION_CONTROLLERS, "old", has(2))
    await client.patch(REPLICATION_CONTROLLERS, object_named("old", "default"), {"spec": {"replicas": 0}})
    await wait_until(client, REPLICATION_CONTROLLERS, "old", has(0))
