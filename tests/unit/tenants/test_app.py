"""Tenants whose pods run in a host cluster with simulated kubelets."""

from pathlib import Path

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.apis.ownership import MAX_GRACE_SECONDS
from tapestry.apis.planes import PLANES
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, is_deleting, object_named, uid_of, value_at
from tapestry.kube.resources import (
    CONFIGMAPS,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    SECRETS,
    SERVICES,
    STORAGE_CLASSES,
)
from tapestry.tenants.host_connection import SHARED_NAMESPACE

from .running_tenants import TIMEOUT, HostWorld, host_world, pod_named, run_pod, wait_for_pod


async def test_pod_of_plane_runs_in_host_cluster(tmp_path: Path) -> None:
    async with host_world(tmp_path) as world:
        client = world.tenant_client(await world.add_tenant("blue"))
        pod = await run_pod(client)
        node = pod["spec"]["nodeName"]
        assert [each["metadata"]["name"] for each in await client.list(NODES)] == [node]
        twins = await world.host.client.list(PODS, labels="tapestry.io/managed-by=tapestry")
        assert [value_at(each, "spec", "nodeName") for each in twins] == [node]


async def test_service_gets_address_of_host_cluster(tmp_path: Path) -> None:
    async with host_world(tmp_path) as world:
        client = world.tenant_client(await world.add_tenant("blue"))
        await client.create(SERVICES, {**object_named("web", "default"), "spec": {"ports": [{"port": 80}]}})
        found = await wait_for(
            *(client, SERVICES, "web", "default"),
            until=lambda each: bool(value_at(each, "spec", "clusterIP")),
            timeout=TIMEOUT,
        )
        twins = await world.host.client.list(SERVICES, labels="tapestry.io/managed-by=tapestry")
        assert value_at(found, "spec", "clusterIP") in [value_at(each, "spec", "clusterIP") for each in twins]


async def test_pod_with_configmap_secret_and_token_runs(tmp_path: Path) -> None:
    async with host_world(tmp_path) as world:
        client = world.tenant_client(await world.add_tenant("blue"))
        await client.create(CONFIGMAPS, {**object_named("settings", "default"), "data": {"a": "1"}})
        await client.create(SECRETS, {**object_named("keys", "default"), "stringData": {"b": "2"}})
        volumes = [
            {"name": "settings", "configMap": {"name": "settings"}},
            {"name": "keys", "secret": {"secretName": "keys"}},
        ]
        await run_pod(client, volumes=volumes)
        secrets = await world.host.client.list(SECRETS, labels="tapestry.io/managed-by=tapestry")
        assert len(secrets) == 2  # the copy, and the token of the pod


@pytest.mark.parametrize("placement", ["host", "virtual"])
async def test_claim_gets_volume_of_host_cluster(placement: str, tmp_path: Path) -> None:
    """The class waits for the first pod of the claim, whose node the scheduler of the host or of the plane selects."""
    async with host_world(tmp_path) as world:
        offer = {"spec": {"storageClasses": [{"name": "fast", "hostName": "standard"}]}}
        await world.management.patch(HOST_CLUSTERS, object_named("east"), offer)
        controllers = ("volumes", "scheduler", "nodes") if placement == "virtual" else ("volumes",)
        spec = {"defaultStorageClass": "fast", "placement": placement}
        client = world.tenant_client(await world.add_tenant("blue", controllers=controllers, **spec))
        await wait_for(client, STORAGE_CLASSES, "fast", until=bool, timeout=TIMEOUT)
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        await client.create(PERSISTENT_VOLUME_CLAIMS, {**object_named("data", "default"), "spec": claim})
        await run_pod(client, volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
        found = await wait_for(
            *(client, PERSISTENT_VOLUME_CLAIMS, "data", "default"),
            until=lambda each: value_at(each, "status", "phase") == "Bound",
            timeout=TIMEOUT,
        )
        assert value_at(found, "spec", "storageClassName") == "fast"
        await world.wait_for_binding(
            "blue", lambda each: value_at(each, "status", "usage", "requests.storage") == "1Gi"
        )


async def test_unschedulable_pod_shows_message_of_host(tmp_path: Path) -> None:
    async with host_world(tmp_path) as world:
        client = world.tenant_client(await world.add_tenant("blue"))
        pod = pod_named("large")
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1000"}}
        await client.create(PODS, pod)

        def is_reported(each: object) -> bool:
            condition = find_condition(value_at(each, "status", "conditions"), "PodScheduled")
            return condition is not None and "Insufficient cpu" in condition.get("message", "")

        assert not (await wait_for_pod(client, "large", is_reported))["spec"].get("nodeName")


async def test_kill_switch_reclaims_pods_of_suspended_plane(tmp_path: Path) -> None:
    async with host_world(tmp_path) as world:
        client = world.tenant_client(await world.add_tenant("blue"))
        await run_pod(client)
        await world.management.patch(PLANES, object_named("blue"), {"spec": {"state": "Suspended"}})
        await wait_for(
            *(world.management, PLANES, "blue"),
            until=lambda each: value_at(each, "status", "phase") == "Suspended",
            timeout=TIMEOUT,
        )
        [twin] = await world.host.client.list(PODS, labels="tapestry.io/managed-by=tapestry")
        assert not is_deleting(twin)
        reclaim_now = {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
        await world.host.client.patch(NAMESPACES, object_named(SHARED_NAMESPACE), reclaim_now)
        name, namespace = twin["metadata"]["name"], twin["metadata"]["namespace"]
        gone = await wait_for(
            *(world.host.client, PODS, name, namespace),
            until=lambda each: each is None or is_deleting(each),
            timeout=TIMEOUT,
        )
        assert gone is None or gone["metadata"]["deletionGracePeriodSeconds"] <= MAX_GRACE_SECONDS


async def test_copy_of_plane_runs_its_own_pods(tmp_path: Path) -> None:
    async with host_world(tmp_path) as world:
        first_id = await world.add_tenant("blue", in_plane={"backend": "file"})
        first = world.tenant_client(first_id)
        await first.create(SERVICES, {**object_named("web", "default"), "spec": {"ports": [{"port": 80}]}})
        pod = await run_pod(first)
        service = await wait_for_address(first)
        [twin] = await twins_of(world, "blue")

        second_id = await world.add_tenant("green", in_plane={"backend": "file", "copyOf": "blue"})
        second = world.tenant_client(second_id)
        copied = await wait_for_pod(second, "work", lambda each: value_at(each, "status", "phase") == "Running")
        assert value_at(copied, "status", "podIP") != value_at(pod, "status", "podIP")
        assert value_at(await wait_for_address(second), "spec", "clusterIP") != value_at(service, "spec", "clusterIP")
        [other] = await twins_of(world, "green")
        assert other["metadata"]["namespace"] != twin["metadata"]["namespace"]

        await second.delete(PODS, object_named("work", "default"))
        await wait_for(
            world.host.client,
            PODS,
            other["metadata"]["name"],
            other["metadata"]["namespace"],
            until=lambda each: each is None,
            timeout=TIMEOUT,
        )
        assert [uid_of(each) for each in await twins_of(world, "blue")] == [uid_of(twin)]
        assert not is_deleting((await twins_of(world, "blue"))[0])
        still = await first.get(PODS, "work", "default")
        assert (uid_of(still), value_at(still, "status", "phase")) == (uid_of(pod), "Running")


async def twins_of(world: HostWorld, binding: str) -> list[Object]:
    uid = uid_of(await world.management.get(CLUSTER_BINDINGS, binding))
    return await world.host.client.list(PODS, labels=f"{keys.CLUSTER_BINDING_UID}={uid}")


async def wait_for_address(client: Client) -> Object:
    found = await wait_for(
        *(client, SERVICES, "web", "default"),
        until=lambda each: bool(value_at(each, "spec", "clusterIP")),
        timeout=TIMEOUT,
    )
    assert found is not None
    return found
