"""Deployments, ReplicaSets and the scheduler together: pods come, move to a new template, and go back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tapestry.apiserver import bootstrap
from tapestry.apiserver.server import Server
from tapestry.client.client import Client, PatchType
from tapestry.client.waiting import wait_for
from tapestry.client.watch import Changes, Page, Watch
from tapestry.controller import Manager
from tapestry.controller.app import new_identity
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controlplane.direct import Direct
from tapestry.controlplane.scheduler import scheduler
from tapestry.controlplane.workloads import deployments, replicasets
from tapestry.kube.conditions import find
from tapestry.kube.objects import Object, name_of, named, value_at
from tapestry.kube.resources import DEPLOYMENTS, NODES, PODS, REPLICA_SETS
from tapestry.kube.times import timestamp
from datetime import UTC, datetime


@pytest.fixture
async def cluster(server: Server, client: Client) -> AsyncIterator[Client]:
    """Three nodes on which pods run as soon as they come, and controllers that make them."""
    for number in range(3):
        node = {"metadata": {"name": f"n{number}", "labels": {"kubernetes.io/hostname": f"n{number}"}}}
        made = await client.create(NODES, node)
        room = {"cpu": "4", "memory": "8Gi", "pods": "20"}
        await client.patch(NODES, made, {"status": {"allocatable": room, "capacity": room}}, subresource="status")
        await client.create(
            __import__("tapestry.kube.resources", fromlist=["x"]).SERVICE_ACCOUNTS,
            {"metadata": {"name": "default", "namespace": "default"}},
        ) if number == 0 else None
    async with at_work(server):
        yield client


@asynccontextmanager
async def at_work(server: Server) -> AsyncIterator[None]:
    config = ManagerConfig(name="test", metrics=Metrics(address=""), probes=Probes(address=""))
    manager = Manager(config, lambda: Direct(server, bootstrap.SYSTEM), identity=new_identity())
    for name, install in {
        "scheduler": scheduler.install,
        "replicasets": replicasets.install,
        "deployments": deployments.install,
    }.items():
        manager.with_(name, install)
    async with asyncio.TaskGroup() as group:
        working = group.create_task(manager.run())
        kubelet = group.create_task(run_pods(Client(Direct(server, bootstrap.SYSTEM))))
        yield
        manager.stop()
        await asyncio.wait([working])
        kubelet.cancel()


async def run_pods(client: Client) -> None:
    """A kubelet for all nodes: what is bound runs, what is deleted goes."""
    async for event in Watch(client, PODS, fields="spec.nodeName!=").events():
        match event:
            case Page(objects):
                changes = [("ADDED", each) for each in objects]
            case Changes(found):
                changes = list(found)
            case _:
                continue
        for type, pod in changes:
            if type == "DELETED":
                continue
            try:
                await serve(client, pod)
            except Exception as error:  # noqa: BLE001
                print(error)


async def serve(client: Client, pod: Object) -> None:
    if "deletionTimestamp" in pod["metadata"]:
        await client.delete(PODS, pod, grace_seconds=0)
    elif value_at(pod, "status", "phase") != "Running" and "broken" not in str(pod["spec"]):
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": timestamp(datetime.now(UTC))}
        status = {"phase": "Running", "conditions": [ready]}
        await client.patch(PODS, pod, {"status": status}, type=PatchType.STRATEGIC, subresource="status")


def a_deployment(replicas: int, image: str = "nginx:1") -> Object:
    container = {"name": "c", "image": image, "resources": {"requests": {"cpu": "100m"}}}
    return {
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}},
        },
    }


def rolled_out(replicas: int) -> object:
    def until(obj: Object | None) -> bool:
        status = (obj or {}).get("status") or {}
        return (
            obj is not None
            and status.get("observedGeneration") == obj["metadata"]["generation"]
            and status.get("updatedReplicas", 0) == status.get("replicas", 0) == status.get("availableReplicas", 0) == replicas
        )

    return until


async def wait_until_rolled_out(client: Client, replicas: int) -> Object:
    return await wait_for(client, DEPLOYMENTS, "web", "default", until=rolled_out(replicas), timeout=10)


async def test_a_deployment_gets_its_pods_and_they_get_nodes(cluster: Client) -> None:
    await cluster.create(DEPLOYMENTS, a_deployment(6))
    found = await wait_until_rolled_out(cluster, 6)
    assert find(found["status"]["conditions"], "Progressing")["reason"] == "NewReplicaSetAvailable"
    pods = await cluster.list(PODS, "default")
    assert sorted(value_at(pod, "spec", "nodeName") for pod in pods) == ["n0", "n0", "n1", "n1", "n2", "n2"]


async def test_another_template_replaces_every_pod_and_can_be_taken_back(cluster: Client) -> None:
    await cluster.create(DEPLOYMENTS, a_deployment(5))
    await wait_until_rolled_out(cluster, 5)
    target = named("web", "default")
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "nginx:2"}]}}}}
    await cluster.patch(DEPLOYMENTS, target, patch, type=PatchType.STRATEGIC)
    await wait_until_rolled_out(cluster, 5)
    pods = await cluster.list(PODS, "default")
    assert {pod["spec"]["containers"][0]["image"] for pod in pods if "deletionTimestamp" not in pod["metadata"]} == {"nginx:2"}
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "nginx:1"}]}}}}
    await cluster.patch(DEPLOYMENTS, target, patch, type=PatchType.STRATEGIC)
    await wait_until_rolled_out(cluster, 5)
    sets = {each["metadata"]["annotations"]["deployment.kubernetes.io/revision"]: each for each in await cluster.list(REPLICA_SETS)}
    assert sorted(sets) == ["2", "3"]
    assert sets["3"]["spec"]["replicas"] == 5


@pytest.mark.parametrize("sizes", [(3, 9, 1, 0, 4)])
async def test_a_deployment_grows_and_shrinks(cluster: Client, sizes: tuple[int, ...]) -> None:
    await cluster.create(DEPLOYMENTS, a_deployment(sizes[0]))
    for size in sizes:
        await cluster.patch(DEPLOYMENTS, named("web", "default"), {"spec": {"replicas": size}})
        await wait_until_rolled_out(cluster, size)
        live = [each for each in await cluster.list(PODS, "default") if "deletionTimestamp" not in each["metadata"]]
        assert len(live) == size, [name_of(each) for each in live]
