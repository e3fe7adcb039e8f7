"""Tests of the StatefulSet controller."""

from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.client.options import PatchType
from tapestry.controlplane.workloads.statefulset_steps import ordinal_of
from tapestry.kube.objects import Object, labels_of, name_of, object_named, value_at
from tapestry.kube.resources import CONTROLLER_REVISIONS, PERSISTENT_VOLUME_CLAIMS, PODS, STATEFUL_SETS
from tapestry.kube.times import parse_time

from ..cluster import in_cluster, live_pods, pass_time, wait_until

DB = object_named("db", "default")
SLOWLY = {"simulated.tapestry.io/starts-after": "5s"}
CLAIM = {
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


def new_set(replicas: int = 3, annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    template = {
        "metadata": {"labels": {"app": "db"}, "annotations": annotations or {}},
        "spec": {"containers": [{"name": "c", "image": "db:1"}]},
    }
    needed = {"serviceName": "db", "selector": {"matchLabels": {"app": "db"}}, "template": template}
    return {"metadata": {"name": "db", "namespace": "default"}, "spec": {"replicas": replicas, **needed, **spec}}


async def wait_until_ready(client: Client, replicas: int) -> Object:
    def holds(found: Object) -> bool:
        status = found.get("status") or {}
        counts = [status.get(key, 0) for key in ("replicas", "readyReplicas")]
        return status.get("observedGeneration") == found["metadata"]["generation"] and counts == [replicas] * 2

    return await wait_until(client, STATEFUL_SETS, "db", holds)


async def wait_until_updated(client: Client, replicas: int, updated: int) -> Object:
    def holds(found: Object) -> bool:
        status = found.get("status") or {}
        counts = [status.get(key, 0) for key in ("replicas", "readyReplicas", "updatedReplicas")]
        is_new = status.get("observedGeneration") == found["metadata"]["generation"]
        return is_new and counts == [replicas, replicas, updated]

    return await wait_until(client, STATEFUL_SETS, "db", holds)


async def update(client: Client, image: str) -> None:
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}}
    await client.patch(STATEFUL_SETS, DB, patch, type=PatchType.STRATEGIC)


async def images(client: Client) -> dict[str, str]:
    return {name_of(pod): pod["spec"]["containers"][0]["image"] for pod in await live_pods(client)}


async def names(client: Client) -> list[str]:
    return sorted(map(name_of, await live_pods(client)))


def created_at(pod: Object) -> float:
    return parse_time(pod["metadata"]["creationTimestamp"]).timestamp()


@in_cluster("statefulsets")
async def test_pods_are_created_in_order_with_identity(client: Client) -> None:
    await client.create(STATEFUL_SETS, new_set(annotations=SLOWLY))
    found = await wait_until_ready(client, 3)
    pods = sorted(await live_pods(client), key=name_of)
    assert [name_of(pod) for pod in pods] == ["db-0", "db-1", "db-2"]
    assert [created_at(pod) - created_at(pods[0]) for pod in pods] == [0, 5, 10]
    for number, pod in enumerate(pods):
        assert labels_of(pod)["statefulset.kubernetes.io/pod-name"] == f"db-{number}"
        assert labels_of(pod)["apps.kubernetes.io/pod-index"] == str(number)
        assert labels_of(pod)["controller-revision-hash"] == found["status"]["currentRevision"]
        assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == (f"db-{number}", "db")


@in_cluster("statefulsets")
async def test_parallel_set_scales_all_pods_together(client: Client) -> None:
    await client.create(STATEFUL_SETS, new_set(4, SLOWLY, podManagementPolicy="Parallel"))
    await wait_until_ready(client, 4)
    assert len({created_at(pod) for pod in await live_pods(client)}) == 1
    await client.patch(STATEFUL_SETS, DB, {"spec": {"replicas": 1}})
    await wait_until_ready(client, 1)
    assert await names(client) == ["db-0"]


@in_cluster("statefulsets")
async def test_ordinals_start_at_configured_value(client: Client) -> None:
    await client.create(STATEFUL_SETS, new_set(2, ordinals={"start": 5}))
    await wait_until_ready(client, 2)
    assert await names(client) == ["db-5", "db-6"]
    await client.patch(STATEFUL_SETS, DB, {"spec": {"ordinals": {"start": 6}}})
    await wait_until(client, PODS, "db-7", lambda pod: value_at(pod, "status", "phase") == "Running")
    await pass_time()
    assert await names(client) == ["db-6", "db-7"]


@in_cluster("statefulsets")
async def test_scale_down_deletes_highest_healthy_ordinal_first(client: Client) -> None:
    await client.create(STATEFUL_SETS, new_set(4, {"simulated.tapestry.io/stops-after": "7s"}))
    await wait_until_ready(client, 4)
    await client.patch(STATEFUL_SETS, DB, {"spec": {"replicas": 2}})
    await pass_time(3)
    assert await names(client) == ["db-0", "db-1", "db-2"]
    await pass_time(7)
    assert await names(client) == ["db-0", "db-1"]


@in_cluster("statefulsets")
async def test_deleted_or_failed_pod_is_recreated(client: Client) -> None:
    await client.create(STATEFUL_SETS, new_set())
    await wait_until_ready(client, 3)
    before = {name_of(pod): pod for pod in await live_pods(client)}
    await client.delete(PODS, before["db-1"])
    await client.patch(PODS, before["db-2"], {"status": {"phase": "Failed"}}, subresource="status")
    await pass_time()
    await wait_until_ready(client, 3)
    after = {name_of(pod): pod for pod in await live_pods(client)}
    assert sorted(after) == sorted(before)
    assert {name for name, pod in after.items() if pod["metadata"]["uid"] != before[name]["metadata"]["uid"]} == {
        "db-1",
        "db-2",
    }


@in_cluster("statefulsets")
async def test_update_runs_in_descending_order(client: Client) -> None:
    await client.create(STATEFUL_SETS, new_set(annotations=SLOWLY))
    before = await wait_until_ready(client, 3)
    await update(client, "db:2")
    found = await wait_until_updated(client, 3, 3)
    pods = sorted(await live_pods(client), key=created_at)
    assert [name_of(pod) for pod in pods] == ["db-2", "db-1", "db-0"]
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {"db:2"}
    status = found["status"]
    assert status["currentRevision"] == status["updateRevision"] != before["status"]["currentRevision"]
    assert status["currentReplicas"] == 3


@in_cluster("statefulsets")
async def test_partition_excludes_lower_ordinals(client: Client) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
    await client.create(STATEFUL_SETS, new_set(updateStrategy=strategy))
    await wait_until_ready(client, 3)
    await update(client, "db:2")
    found = await wait_until_updated(client, 3, 1)
    assert await images(client) == {"db-0": "db:1", "db-1": "db:1", "db-2": "db:2"}
    assert found["status"]["currentRevision"] != found["status"]["updateRevision"]
    assert found["status"]["currentReplicas"] == 2
    await client.delete(PODS, object_named("db-0", "default"))
    await pass_time()
    assert (await images(client))["db-0"] == "db:1"  # recreated from the current revision
    await client.patch(STATEFUL_SETS, DB, {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}})
    await wait_until_updated(client, 3, 3)
    assert set((await images(client)).values()) == {"db:2"}


@in_cluster("statefulsets")
async def test_max_unavailable_updates_pods_in_parallel(client: Client) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}}
    await client.create(STATEFUL_SETS, new_set(5, SLOWLY, updateStrategy=strategy, podManagementPolicy="Parallel"))
    await wait_until_ready(client, 5)
    await update(client, "db:2")
    await wait_until_updated(client, 5, 5)
    creation_times = {name_of(pod): created_at(pod) for pod in await live_pods(client)}
    assert (
        creation_times["db-4"]
        == creation_times["db-3"]
        < creation_times["db-2"]
        == creation_times["db-1"]
        < creation_times["db-0"]
    )


@in_cluster("statefulsets")
async def test_on_delete_updates_only_deleted_pods(client: Client) -> None:
    await client.create(STATEFUL_SETS, new_set(2, updateStrategy={"type": "OnDelete"}))
    await wait_until_ready(client, 2)
    await update(client, "db:2")
    await pass_time()
    assert set((await images(client)).values()) == {"db:1"}
    await client.delete(PODS, object_named("db-0", "default"))
    await pass_time()
    assert await images(client) == {"db-0": "db:2", "db-1": "db:1"}


@in_cluster("statefulsets")
async def test_revision_history_allows_rollback(client: Client) -> None:
    await client.create(STATEFUL_SETS, new_set(1, revisionHistoryLimit=2))
    first = (await wait_until_ready(client, 1))["status"]["currentRevision"]
    for number in (2, 3, 4):
        await update(client, f"db:{number}")
        await wait_until_updated(client, 1, 1)
    await pass_time()
    revisions = {name_of(each): each["revision"] for each in await client.list(CONTROLLER_REVISIONS)}
    assert sorted(revisions.values()) == [2, 3, 4]
    assert first not in revisions
    third = next(name for name, number in revisions.items() if number == 3)
    await update(client, "db:3")
    found = await wait_until_updated(client, 1, 1)
    assert found["status"]["updateRevision"] == third
    assert (await client.get(CONTROLLER_REVISIONS, third, "default"))["revision"] == 5


# -- volumes


async def claims(client: Client) -> dict[str, list[str]]:
    """Return the names of claims with the kinds of their owners."""
    return {
        name_of(each): [owner["kind"] for owner in each["metadata"].get("ownerReferences") or ()]
        for each in await client.list(PERSISTENT_VOLUME_CLAIMS)
    }


def with_claims(replicas: int, scaled: str = "Retain", deleted: str = "Retain") -> Object:
    policy = {"whenScaled": scaled, "whenDeleted": deleted}
    return new_set(replicas, volumeClaimTemplates=[CLAIM], persistentVolumeClaimRetentionPolicy=policy)


@in_cluster("statefulsets")
async def test_recreated_pod_reuses_its_claims(client: Client) -> None:
    await client.create(STATEFUL_SETS, with_claims(2))
    await wait_until_ready(client, 2)
    assert await claims(client) == {"data-db-0": [], "data-db-1": []}
    pod = await client.get(PODS, "db-1", "default")
    (volume,) = [each for each in pod["spec"]["volumes"] if each["name"] == "data"]
    assert volume["persistentVolumeClaim"]["claimName"] == "data-db-1"
    claim = await client.get(PERSISTENT_VOLUME_CLAIMS, "data-db-1", "default")
    assert labels_of(claim) == {"app": "db"}
    await client.patch(STATEFUL_SETS, DB, {"spec": {"replicas": 1}})
    await wait_until_ready(client, 1)
    await client.patch(STATEFUL_SETS, DB, {"spec": {"replicas": 2}})
    await wait_until_ready(client, 2)
    assert (await client.get(PERSISTENT_VOLUME_CLAIMS, "data-db-1", "default"))["metadata"]["uid"] == claim["metadata"][
        "uid"
    ]


@in_cluster("statefulsets", "protection")
async def test_claims_are_deleted_on_scale_down_if_configured(client: Client) -> None:
    await client.create(STATEFUL_SETS, with_claims(3, scaled="Delete"))
    await wait_until_ready(client, 3)
    old = await client.get(PERSISTENT_VOLUME_CLAIMS, "data-db-2", "default")
    await client.patch(STATEFUL_SETS, DB, {"spec": {"replicas": 1}})
    await wait_until_ready(client, 1)
    await pass_time()
    assert await claims(client) == {"data-db-0": []}
    await client.patch(STATEFUL_SETS, DB, {"spec": {"replicas": 3}})
    await wait_until_ready(client, 3)
    assert (await client.get(PERSISTENT_VOLUME_CLAIMS, "data-db-2", "default"))["metadata"]["uid"] != old["metadata"][
        "uid"
    ]


@in_cluster("statefulsets", "protection")
async def test_claims_are_deleted_with_set_if_configured(client: Client) -> None:
    await client.create(STATEFUL_SETS, with_claims(2, deleted="Delete"))
    await wait_until_ready(client, 2)
    assert await claims(client) == {"data-db-0": ["StatefulSet"], "data-db-1": ["StatefulSet"]}
    await client.patch(STATEFUL_SETS, DB, {"spec": {"replicas": 1}})
    await wait_until_ready(client, 1)
    assert sorted(await claims(client)) == ["data-db-0", "data-db-1"]
    await client.delete(STATEFUL_SETS, DB)
    await pass_time()
    assert await claims(client) == {}
    assert await live_pods(client) == []


@in_cluster("statefulsets")
async def test_retention_policy_change_updates_claim_owners(client: Client) -> None:
    await client.create(STATEFUL_SETS, with_claims(1))
    await wait_until_ready(client, 1)
    policy = {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"}}
    await client.patch(STATEFUL_SETS, DB, {"spec": policy})
    await pass_time()
    assert await claims(client) == {"data-db-0": ["StatefulSet"]}
    await client.patch(STATEFUL_SETS, DB, {"spec": {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain"}}})
    await pass_time()
    assert await claims(client) == {"data-db-0": []}


# -- adoption


@in_cluster("statefulsets")
async def test_only_pods_with_matching_name_are_adopted(client: Client) -> None:
    for name in ("db-1", "other-name"):
        pod = {"metadata": {"name": name, "namespace": "default", "labels": {"app": "db"}}}
        await client.create(PODS, {**pod, "spec": {"containers": [{"name": "c", "image": "db:0"}]}})
    await client.create(STATEFUL_SETS, new_set(2, updateStrategy={"type": "OnDelete"}))
    await wait_until(client, STATEFUL_SETS, "db", lambda found: value_at(found, "status", "readyReplicas") == 2)
    adopted = await client.get(PODS, "db-1", "default")
    assert [each["name"] for each in adopted["metadata"]["ownerReferences"]] == ["db"]
    assert labels_of(adopted)["apps.kubernetes.io/pod-index"] == "1"
    assert "ownerReferences" not in (await client.get(PODS, "other-name", "default"))["metadata"]


@in_cluster("statefulsets")
async def test_pod_is_available_after_min_ready_seconds(client: Client) -> None:
    await client.create(STATEFUL_SETS, new_set(2, minReadySeconds=20))
    await pass_time(10)
    assert await names(client) == ["db-0"]
    await wait_until(client, STATEFUL_SETS, "db", lambda found: value_at(found, "status", "availableReplicas") == 2)
    first, second = sorted(await live_pods(client), key=name_of)
    assert created_at(second) - created_at(first) >= 20


@pytest.mark.parametrize(
    ("name", "number"), [("db-0", 0), ("db-12", 12), ("db-01", None), ("db-x", None), ("a-1", None)]
)
def test_ordinal_is_parsed_from_name(name: str, number: int | None) -> None:
    assert ordinal_of(new_set(), object_named(name)) == number
