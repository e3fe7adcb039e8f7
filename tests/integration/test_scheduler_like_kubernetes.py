"""Comparison of our scheduler with kube-scheduler."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controlplane.scheduler import scheduler
from tapestry.controlplane.scheduler.cache import SchedulerCache
from tapestry.controlplane.scheduler.node_fit import NodeFitCache
from tapestry.controlplane.scheduler.placement import (
    ScheduleResult,
    SchedulingContext,
    rejection_with_nominated,
    select_node,
)
from tapestry.controlplane.scheduler.pod_info import pod_info_of
from tapestry.controlplane.scheduler.preemption import PreemptionFailed, Victims, victims
from tapestry.controlplane.scheduler.scheduler import disruption_budget_of
from tapestry.controlplane.scheduler.volumes import StorageLister, UnresolvableClaim, volume_plan_of
from tapestry.controlplane.volume_matching import storage_class_of
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, key_of, labels_of, name_of, namespace_of, value_at
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
    Resource,
)
from tapestry.local.kubernetes import ControlPlane

from .scheduling import SITUATIONS, Situation, named, node, node_affinity, pod

CLASSES = Resource("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False)
KINDS = (
    *(PODS, NODES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES, DISRUPTION_BUDGETS, CSI_NODES),
    VOLUME_ATTACHMENTS,
)
CANARY = node("canary", taints=({"key": "canary", "effect": "NoSchedule"},), pods="1", cpu="0", memory="0")
SECONDS = 30.0
OURS = (
    "there is room",
    "no node is large enough in two ways",
    "two names at once",
    "a claim that nobody bound",
    "a volume that is reached from one node",
    "one zone is ahead",
    "kept away by another",
    "the least important goes",
    "a budget is kept",
    "it never pushes aside",
)


@pytest.fixture(scope="module")
def plane(kube_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A cluster with a kube-scheduler, some namespaces and priorities."""
    with ControlPlane(tmp_path_factory.mktemp("scheduling"), kube_assets, scheduler=True, fsync=False) as made:
        asyncio.run(create_prerequisites(made))
        yield made


@asynccontextmanager
async def connected(plane: ControlPlane) -> AsyncIterator[Client]:
    client = Client(HttpTransport(load_access([plane.kubeconfig], environ=os.environ)))
    try:
        yield client
    finally:
        await client.close()


async def create_prerequisites(plane: ControlPlane) -> None:
    async with connected(plane) as client:
        for name, team in (("here", "red"), ("there", "blue")):
            await client.create(NAMESPACES, {"metadata": {"name": name, "labels": {"team": team}}})
        for name, value in (("high", 1000), ("low", -10), ("lowest", -20)):
            await client.create(CLASSES, {"metadata": {"name": name}, "value": value})
        gentle = {"metadata": {"name": "gentle"}, "value": 1000, "preemptionPolicy": "Never"}
        await client.create(CLASSES, gentle)


# -- the situation


async def create_situation(client: Client, situation: Situation) -> None:
    """Create all objects except the probe and wait until the scheduler has seen them."""
    for resource, obj in situation.others:
        made = await client.create(resource, obj)
        if resource == PERSISTENT_VOLUMES:
            await client.patch(resource, made, {"status": {"phase": "Available"}}, subresource="status")
        elif resource == DISRUPTION_BUDGETS:
            await client.patch(resource, made, {"status": {"disruptionsAllowed": 0}}, subresource="status")
    for each in situation.pods:
        await client.create(PODS, each)
    for each in (*situation.nodes, CANARY):
        made = await client.create(NODES, each)  # the server adds a taint
        await client.patch(NODES, made, {"spec": {"taints": each["spec"]["taints"] or None}})
    canary = pod("canary", affinity=node_affinity(named("canary")), tolerations=[{"operator": "Exists"}])
    await client.create(PODS, canary)
    seen = await wait_for(client, PODS, "canary", "here", until=is_placed, timeout=SECONDS)
    assert seen is not None
    await client.delete(PODS, seen, grace_seconds=0)


async def clear(client: Client) -> None:
    for resource in KINDS:
        for each in await client.list(resource):
            if each["metadata"].get("finalizers"):
                await client.patch(resource, each, {"metadata": {"finalizers": None, "resourceVersion": None}})
            try:
                await client.delete(
                    resource, {"metadata": {**each["metadata"], "resourceVersion": ""}}, grace_seconds=0
                )
            except NotFound:
                continue


def is_placed(obj: Object | None) -> bool:
    return bool(value_at(obj, "spec", "nodeName"))


# -- our decision


@dataclass(frozen=True)
class Answer:
    """Nodes that fit the pod, or the message and the preemption victims if none fits."""

    nodes: frozenset[str] = frozenset()
    message: str = ""
    victims: Victims | None = None


async def ours(client: Client, probe: Object) -> Answer:
    found = {resource: await client.list(resource) for resource in (*KINDS, NAMESPACES)}
    cache = SchedulerCache()
    cache.namespace_labels = {name_of(each): labels_of(each) for each in found[NAMESPACES]}
    for each in found[NODES]:
        cache.set_node(each)
    for each in found[PODS]:
        if is_placed(each):
            cache.add_pod(pod_info_of(each), each["spec"]["nodeName"])
    info = pod_info_of(probe)
    try:
        context = SchedulingContext(info, volume_plan_of(probe, storage_of(found, cache)))
        choice = select_node(context, cache, NodeFitCache())
    except UnresolvableClaim as error:
        context, choice = SchedulingContext(info), ScheduleResult(blocked_reason=str(error))
    if choice.node is not None:
        return Answer(frozenset(each.name for each in cache if rejection_with_nominated(context, each, cache) is None))
    return no_fit(context, choice, cache, found[DISRUPTION_BUDGETS])


def no_fit(context: SchedulingContext, choice: ScheduleResult, cache: SchedulerCache, budgets: list[Object]) -> Answer:
    message = choice.message(len(cache))
    if choice.blocked_reason:
        return Answer(message=message)
    try:
        leaving = victims(context, choice, cache, [disruption_budget_of(each) for each in budgets])
    except PreemptionFailed as error:
        return Answer(message=f"{message} {error}")
    return Answer(message=message, victims=leaving)


def storage_of(found: dict[Resource, list[Object]], cache: SchedulerCache) -> StorageLister:
    by_key = {resource: {key_of(each): each for each in found[resource]} for resource in found}
    volumes = found[PERSISTENT_VOLUMES]
    return StorageLister(
        by_key[PERSISTENT_VOLUME_CLAIMS].get,
        by_key[PERSISTENT_VOLUMES].get,
        lambda name: [each for each in volumes if storage_class_of(each) == name],
        by_key[STORAGE_CLASSES].get,
        by_key[CSI_NODES].get,
        lambda name: [each for each in found[VOLUME_ATTACHMENTS] if each["spec"]["nodeName"] == name],
        lambda key: cache.claim_users.get(key, ()),
    )


# -- the comparison


@pytest.mark.parametrize("name", SITUATIONS)
async def test_both_schedulers_decide_and_report_alike(plane: ControlPlane, name: str) -> None:
    async with connected(plane) as client:
        await check(client, SITUATIONS[name])


async def test_our_scheduler_carries_out_its_decisions(plane: ControlPlane) -> None:
    plane.kill("kube-scheduler")
    try:
        async with connected(plane) as client, our_scheduler(plane):
            for name in OURS:
                await check(client, SITUATIONS[name])
    finally:
        plane.launch("kube-scheduler")


@asynccontextmanager
async def our_scheduler(plane: ControlPlane) -> AsyncIterator[None]:
    config = ManagerConfig(name="ours", metrics=Metrics(address=""), probes=Probes(address=""))
    access = load_access([plane.kubeconfig], environ=os.environ)
    manager = Manager(config, lambda: HttpTransport(access), identity="ours").register("scheduler", scheduler.install)
    async with asyncio.TaskGroup() as group:
        working = group.create_task(manager.run())
        yield
        manager.stop()
        await asyncio.wait([working])


async def check(client: Client, situation: Situation) -> None:
    """Check that the running scheduler makes the decision that our code computes."""
    try:
        await create_situation(client, situation)
        probe = await client.create(PODS, {**situation.probe, "spec": gated(situation.probe)})
        answer = await ours(client, probe)
        await client.patch(PODS, named_only(probe), {"spec": {"schedulingGates": None}})
        if answer.nodes:
            placed = await wait_for(client, PODS, "probe", "here", until=is_placed, timeout=SECONDS)
            assert value_at(placed, "spec", "nodeName") in answer.nodes
            return
        judged = await wait_for(client, PODS, "probe", "here", until=has_outcome, timeout=SECONDS)
        if message_of(judged) != answer.message:  # the scheduler may have decided before it saw all objects
            judged = await wait_for(client, PODS, "probe", "here", until=has_message(answer.message), timeout=SECONDS)
        leaving = answer.victims
        assert value_at(judged, "status", "nominatedNodeName") == (leaving.node if leaving is not None else None)
        await check_victims(client, answer)
    finally:
        await clear(client)


def named_only(pod: Object) -> Object:
    """Reference to the pod in any version, because a scheduler may have updated its status."""
    return {"metadata": {"name": name_of(pod), "namespace": namespace_of(pod)}}


def gated(probe: Object) -> Object:
    """Spec with a scheduling gate, which lets our code decide before the scheduler acts."""
    return {**probe["spec"], "schedulingGates": [{"name": "example.com/ours-first"}]}


def message_of(obj: Object | None) -> str | None:
    condition = find_condition(value_at(obj, "status", "conditions"), "PodScheduled") or {}
    return condition.get("message") if condition.get("reason") == "Unschedulable" else None


def has_outcome(obj: Object | None) -> bool:
    return message_of(obj) is not None or is_placed(obj)


def has_message(message: str) -> Callable[[Object | None], bool]:
    return lambda obj: message_of(obj) == message


async def check_victims(client: Client, answer: Answer) -> None:
    for each in answer.victims.pods if answer.victims is not None else ():
        await wait_for(client, PODS, name_of(each.pod), namespace_of(each.pod), until=is_leaving, timeout=SECONDS)
    leaving = {key_of(each) for each in await client.list(PODS) if is_leaving(each)}
    assert leaving == {each.key for each in (answer.victims.pods if answer.victims is not None else ())}


def is_leaving(obj: Object | None) -> bool:
    return obj is None or find_condition(value_at(obj, "status", "conditions"), "DisruptionTarget") is not None
