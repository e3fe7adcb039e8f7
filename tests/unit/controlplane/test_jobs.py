"""Jobs: pods that are to end."""

from collections.abc import AsyncIterator
import asyncio
from contextlib import asynccontextmanager

import pytest

from tapestry.apiserver import bootstrap
from tapestry.apiserver.server import Server
from tapestry.client.client import Client
from tapestry.client.waiting import wait_for
from tapestry.controller import Manager
from tapestry.controller.app import new_identity
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controlplane.direct import Direct
from tapestry.controlplane.scheduler import scheduler
from tapestry.controlplane.workloads import jobs
from tapestry.kube.conditions import is_true
from tapestry.kube.objects import Object
from tapestry.kube.resources import JOBS, NODES, PODS, SERVICE_ACCOUNTS
from tapestry.local import kubelets


@pytest.fixture
async def cluster(server: Server, client: Client) -> AsyncIterator[Client]:
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default", "namespace": "default"}})
    for number in range(2):
        await client.create(NODES, kubelets.simulated_node(f"n{number}", {"cpu": "8", "memory": "8Gi", "pods": "20"}))
    async with at_work(server):
        yield client


@asynccontextmanager
async def at_work(server: Server) -> AsyncIterator[None]:
    config = ManagerConfig(name="test", metrics=Metrics(address=""), probes=Probes(address=""))
    manager = Manager(config, lambda: Direct(server, bootstrap.SYSTEM), identity=new_identity())
    manager.with_("scheduler", scheduler.install)
    manager.with_("jobs", jobs.install)
    manager.with_("kubelets", lambda each: kubelets.install(each, lambda: 0))
    async with asyncio.TaskGroup() as group:
        group.create_task(manager.run())
        yield
        manager.stop()


def a_job(annotations: dict[str, str] | None = None, policy: str = "Never", **spec: object) -> Object:
    template = {
        "metadata": {"annotations": {"simulated.tapestry.io/ends-after": "100ms", **(annotations or {})}},
        "spec": {"restartPolicy": policy, "containers": [{"name": "c", "image": "busybox"}]},
    }
    return {"metadata": {"name": "work", "namespace": "default"}, "spec": {"template": template, **spec}}


async def wait_for_job(client: Client, type: str) -> Object:
    return await wait_for(
        client, JOBS, "work", "default", until=lambda job: job is not None and is_true(job, type), timeout=20
    )


async def test_a_job_is_complete_after_as_many_pods_as_it_wants(cluster: Client) -> None:
    await cluster.create(JOBS, a_job(completions=6, parallelism=3))
    job = await wait_for_job(cluster, "Complete")
    assert job["status"]["succeeded"] == 6
    pods = await cluster.list(PODS, "default")
    assert len(pods) == 6
    assert not any(pod["metadata"].get("finalizers") for pod in pods)


async def test_an_indexed_job_has_one_pod_for_each_index(cluster: Client) -> None:
    await cluster.create(JOBS, a_job(completions=4, parallelism=4, completionMode="Indexed"))
    job = await wait_for_job(cluster, "Complete")
    assert (job["status"]["succeeded"], job["status"]["completedIndexes"]) == (4, "0-3")


async def test_a_job_whose_pods_fail_gives_up(cluster: Client) -> None:
    await cluster.create(JOBS, a_job({"simulated.tapestry.io/exit-code": "3"}, backoffLimit=0))
    job = await wait_for_job(cluster, "Failed")
    assert job["status"]["failed"] == 1
