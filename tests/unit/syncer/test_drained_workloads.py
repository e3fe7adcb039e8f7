"""Draining beside the controllers of the virtual cluster, and under faults at every call."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.client.client import Client
from tapestry.client.options import PatchType
from tapestry.client.transport import Transport
from tapestry.client.watch import wait_for
from tapestry.controller import Informer, Manager
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controller.testing import Scenario, in_virtual_time, perturb, running_clock
from tapestry.controlplane import node_lifecycle, service_endpoints
from tapestry.controlplane.workloads import deployments, jobs, replicasets, statefulsets
from tapestry.kube.errors import Conflict, NotFound
from tapestry.kube.objects import Object, annotations_of, is_deleting, name_of, uid_of, value_at
from tapestry.kube.resources import DEPLOYMENTS, ENDPOINT_SLICES, JOBS, NODES, PODS, SERVICES, STATEFUL_SETS
from tapestry.syncer.app import build_syncer
from tapestry.syncer.config import SyncerConfig, SyncerLeaderElection
from tapestry.syncer.translate.pod_status import is_suspended

from .world import A_DAY, MAPPED, MOUNT, NODE, SERVED, Clusters, World, new_world, phase

CONFIG = SyncerConfig(
    binding="east", name="east", silence_seconds=3600, leader_election=SyncerLeaderElection(enabled=False)
)
LABELS = {"app": "web"}


@asynccontextmanager
async def kubelet(physical: Client) -> AsyncIterator[None]:
    """Start the twins, and remove those that are being deleted."""
    pods = Informer(physical, PODS, namespace=MOUNT)
    addresses = iter(f"10.1.{high}.{low}" for high in range(200) for low in range(1, 250))
    changed: asyncio.Queue[Object] = asyncio.Queue()

    def on_change(_: Object | None, new: Object | None) -> None:
        if new is not None:
            changed.put_nowait(new)

    async def follow() -> None:
        while True:
            pod = await changed.get()
            with suppress(Conflict, NotFound):
                if is_deleting(pod):
                    await physical.delete(PODS, pod, grace_seconds=0)
                elif value_at(pod, "status", "phase") == "Pending":
                    ready = {"type": "Ready", "status": "True"}
                    status = {"phase": "Running", "podIP": next(addresses), "conditions": [ready]}
                    await physical.patch(PODS, pod, {"status": status}, type=PatchType.STRATEGIC, subresource="status")

    pods.on_change(on_change)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(pods.run()), group.create_task(follow())]
        yield
        for each in tasks:
            each.cancel()


@asynccontextmanager
async def controllers(world: World) -> AsyncIterator[None]:
    """Run the controllers of the virtual cluster, and bind pods to the virtual node."""
    config = ManagerConfig(name="controllers", metrics=Metrics(address=""), probes=Probes(address=""))
    clock = running_clock()
    manager = Manager(config, world.up.api.connect, identity="x", now=clock.now, monotonic=clock.monotonic)
    for install in (deployments.install, replicasets.install, statefulsets.install, jobs.install):
        manager.register(install.__module__, install)
    manager.register("services", service_endpoints.install)
    manager.register("nodes", lambda each: node_lifecycle.install(each, lambda: False))
    pods = manager.informer(PODS)

    async def bind(key: str) -> None:
        pod = pods.store.get(key)
        if pod is not None and not pod["spec"].get("nodeName"):
            target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": pod["metadata"], "target": target}
            await manager.client.create(PODS, binding, subresource="binding")

    manager.register("binder", lambda each: each.controller("binder", bind).watch(pods))
    async with asyncio.TaskGroup() as group:
        group.create_task(manager.run())
        yield
        manager.stop()


def template(**spec: Any) -> Object:
    return {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "c", "image": "busybox:1"}], **spec}}


def workload(name: str, **spec: Any) -> Object:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


async def pods_by_uid(world: World) -> dict[str, Object]:
    return {uid_of(pod): pod for pod in await world.virtual.list(PODS, "default")}


async def wait_for_pods(world: World, until: Callable[[Object], bool], number: int) -> dict[str, Object]:
    async with asyncio.timeout(600):
        while True:
            pods = await pods_by_uid(world)
            if len(pods) == number and all(until(pod) for pod in pods.values()):
                return pods
            await asyncio.sleep(1)


async def ready_addresses(world: World) -> list[str]:
    slices = await world.virtual.list(ENDPOINT_SLICES, "default")
    endpoints = [each for slice in slices for each in slice.get("endpoints") or ()]
    return [each["addresses"][0] for each in endpoints if value_at(each, "conditions", "ready")]


@in_virtual_time
async def test_controllers_keep_their_pods_while_drained() -> None:
    world = await new_world(disableNodeDefaultTaint=True)
    selector = {"matchLabels": LABELS}
    async with world.syncer(), controllers(world), kubelet(world.physical):
        await world.virtual.create(DEPLOYMENTS, workload("d", replicas=3, selector=selector, template=template()))
        ordered = workload("s", replicas=2, selector=selector, template=template(), serviceName="s")
        await world.virtual.create(STATEFUL_SETS, ordered)
        await world.virtual.create(
            JOBS, workload("j", completions=2, parallelism=2, template=template(restartPolicy="Never"))
        )
        await world.virtual.create(SERVICES, workload("web", selector=LABELS, ports=[{"port": 80}]))
        await world.add_pod("bare")
        before = await wait_for_pods(world, phase("Running"), 8)
        await asyncio.sleep(10)
        assert len(await ready_addresses(world)) == 7
        await world.set_binding(workloads="Drained")
        suspended = await wait_for_pods(world, is_suspended, 8)
        await asyncio.sleep(A_DAY)  # longer than all deadlines of controllers
        assert suspended.keys() == before.keys() == (await pods_by_uid(world)).keys()
        assert (await world.twins(), await ready_addresses(world)) == ([], [])
        job = await world.virtual.get(JOBS, "j", "default")
        assert (job["status"].get("failed"), job["status"].get("active")) == (None, 2)
        await world.set_binding(workloads="Run")
        after = await wait_for_pods(world, phase("Running"), 8)
        assert after.keys() == before.keys()
        for uid, pod in after.items():
            assert pod["status"]["podIP"] != before[uid]["status"]["podIP"]
        await asyncio.sleep(10)
        assert len(await ready_addresses(world)) == 7


@in_virtual_time
async def test_job_goes_on_after_resume() -> None:
    world = await new_world(disableNodeDefaultTaint=True)
    async with world.syncer(), controllers(world), kubelet(world.physical):
        job = workload("j", completions=2, parallelism=2, backoffLimit=0, template=template(restartPolicy="Never"))
        await world.virtual.create(JOBS, job)
        await wait_for_pods(world, phase("Running"), 2)
        done, left = sorted(name_of(pod) for pod in (await pods_by_uid(world)).values())
        await world.end("Succeeded", done)
        await world.wait_for_pod(phase("Succeeded"), done)
        await world.set_binding(workloads="Drained")
        await world.wait_for_pod(is_suspended, left)
        await world.wait_until_twin_is_gone(left)
        await asyncio.sleep(3600)
        await world.set_binding(workloads="Run")
        await world.wait_for_pod(phase("Running"), left)
        await world.end("Succeeded", left)
        finished = await wait_for(
            world.virtual, JOBS, "j", "default", until=lambda job: value_at(job, "status", "succeeded") == 2
        )
        assert not value_at(finished, "status", "failed")


@in_virtual_time
async def test_statefulset_starts_new_pods_only_after_resume() -> None:
    world = await new_world(disableNodeDefaultTaint=True, workloads="Drained")
    async with world.syncer(), controllers(world), kubelet(world.physical):
        spec = {"replicas": 2, "selector": {"matchLabels": LABELS}, "template": template(), "serviceName": "s"}
        await world.virtual.create(STATEFUL_SETS, workload("s", **spec))
        await wait_for_pods(world, is_suspended, 1)
        await asyncio.sleep(3600)
        assert len(await pods_by_uid(world)) == 1
        await world.set_binding(workloads="Run")
        await wait_for_pods(world, phase("Running"), 2)


# -- faults


async def setup(manager: Manager, physical: Transport) -> None:
    await wait_for(manager.reads, CLUSTER_BINDINGS, "east", until=bool, timeout=A_DAY)
    await build_syncer(CONFIG, manager, connect=lambda _: physical, monotonic=running_clock().monotonic)


async def pods_are_drained_and_resumed(virtual: Client, physical: Client) -> None:
    clusters, twins = Clusters(virtual, physical), Counter[str]()
    await clusters.populate("east", drainTimeoutSeconds=20)
    await wait_for(virtual, NODES, NODE, until=bool, timeout=A_DAY)
    informer = Informer(physical, PODS, namespace=MOUNT)
    informer.on_change(lambda old, new: twins.update([annotations_of(new)[keys.VIRTUAL_POD_UID]]) if not old else None)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(informer.run())
        for name in ("done", "work"):
            await clusters.add_pod(name)
            await clusters.wait_for_pod(MAPPED, name, timeout=A_DAY)
            await clusters.start(name)
            await clusters.wait_for_pod(phase("Running"), name, timeout=A_DAY)
        await clusters.end("Succeeded", "done")
        await clusters.wait_for_pod(phase("Succeeded"), "done", timeout=A_DAY)
        uid = uid_of(await clusters.pod())
        await clusters.set_binding(workloads="Drained")
        await clusters.wait_until_twin_is_gone(timeout=A_DAY)
        await clusters.wait_for_pod(is_suspended, timeout=A_DAY)
        await clusters.add_pod("late")
        await clusters.wait_for_pod(is_suspended, "late", timeout=A_DAY)
        await clusters.set_binding(workloads="Run")
        for name in ("work", "late"):
            await clusters.wait_for_pod(MAPPED, name, timeout=A_DAY)
            await clusters.start(name)
            await clusters.wait_for_pod(phase("Running"), name, timeout=A_DAY)
        await asyncio.sleep(60)
        task.cancel()
    assert uid_of(await clusters.pod()) == uid
    assert sorted(twins.values()) == [1, 1, 2], twins
    assert [name_of(pod) for pod in await virtual.list(PODS, "default")] == [
        "done",
        "late",
        "work",
    ]


@pytest.mark.timeout(600)
def test_drain_and_resume_reach_same_state_despite_faults(record_property: Callable[[str, object], None]) -> None:
    def is_about_pods(call: str) -> bool:
        return "/pods" in call and not call.startswith("watch")

    report = perturb(
        Scenario("a drain and a resume", SERVED, setup, pods_are_drained_and_resumed, CONFIG, [SERVED], is_about_pods)
    )
    record_property("figure", f"perturbed drain: {report.cases} replays")
    assert not report.failures, str(report)
