"""Pods under faults at every call about a pod: the final state is the same, and no pod runs twice.

The driver compares the final state. In addition every replay counts the twins that each pod ever had: exactly one, and
none after one that has finished.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.ownership import MAX_GRACE_SECONDS
from tapestry.client.client import Client
from tapestry.client.options import PatchType
from tapestry.client.transport import Request, Transport
from tapestry.client.watch import wait_for
from tapestry.controller import Informer, Manager
from tapestry.controller.testing import Scenario, perturb, running_clock
from tapestry.controller.testing.clock import START
from tapestry.kube.errors import ApiError
from tapestry.kube.objects import Object, annotations_of, is_deleting, labels_of, name_of, object_named, uid_of
from tapestry.kube.resources import NODES, PODS
from tapestry.syncer.app import build_syncer
from tapestry.syncer.config import SyncerConfig, SyncerLeaderElection
from tapestry.syncer.lease_cache import SHORTAGE_TTL

from .world import A_DAY, MAPPED, MOUNT, NODE, SERVED, Clusters, forbidden, has_condition, phase

pytestmark = pytest.mark.timeout(600)  # hundreds of replays
CONFIG = SyncerConfig(
    binding="east",
    name="east",
    silence_seconds=3600,
    unschedulable_seconds=60,
    refusal_seconds=20,
    leader_election=SyncerLeaderElection(enabled=False),
)
LONG = A_DAY / 2

Story = Callable[[Clusters], Awaitable[None]]


async def setup(manager: Manager, physical: Transport) -> None:
    await wait_for(manager.reads, CLUSTER_BINDINGS, "east", until=bool, timeout=A_DAY)
    await build_syncer(CONFIG, manager, connect=lambda _: physical, monotonic=running_clock().monotonic)


def scenario(actions: Story) -> Callable[[Client, Client], Awaitable[None]]:
    """Return a scenario: two bound clusters with a virtual node, the actions, and a count of all twins."""

    async def world(virtual: Client, physical: Client) -> None:
        clusters = Clusters(virtual, physical)
        await clusters.populate("east")
        await wait_for(virtual, NODES, NODE, until=bool, timeout=A_DAY)
        async with every_twin(physical) as twins:
            await actions(clusters)
            await asyncio.sleep(60)
        again = {uid: found for uid, found in twins.items() if len(found) > 1}
        assert not again, f"run more than once: {again}"

    return world


@asynccontextmanager
async def every_twin(physical: Client) -> AsyncIterator[dict[str, set[str]]]:
    """Return the UIDs of all twins that ever existed, by the UIDs of their pods."""
    twins: dict[str, set[str]] = defaultdict(set)
    informer = Informer(physical, PODS, namespace=MOUNT)

    def count(old: Object | None, new: Object | None) -> None:
        if new is not None and keys.VIRTUAL_POD_UID in annotations_of(new):
            twins[annotations_of(new)[keys.VIRTUAL_POD_UID]].add(uid_of(new))

    informer.on_change(count)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(informer.run())
        yield twins
        following.cancel()


# -- scenarios


async def runs(world: Clusters, **options: Any) -> None:
    await world.add_pod(**options)
    await world.wait_for_pod(MAPPED, timeout=LONG)
    await world.start()
    await world.wait_for_pod(phase("Running"), timeout=LONG)


async def several_pods_are_created(world: Clusters) -> None:
    for name in ("a", "b", "c"):
        await world.add_pod(name)
    for name in ("a", "b", "c"):
        await world.wait_for_pod(MAPPED, name, timeout=LONG)
        await world.start(name)
    for name in ("a", "b", "c"):
        await world.wait_for_pod(phase("Running"), name, timeout=LONG)


async def labels_and_images_change(world: Clusters) -> None:
    await runs(world, metadata={"labels": {"old": "x"}})
    await world.set_twin({"metadata": {"labels": {"owner": "yes"}}})
    await world.change_pod({"metadata": {"labels": {"old": None, "new": "y"}}})
    await world.wait_for_twin(lambda twin: "new" in labels_of(twin) and "old" not in labels_of(twin), timeout=LONG)
    await world.change_pod({"spec": {"containers": [{"name": "c", "image": "busybox:2"}]}})
    await world.wait_for_twin(lambda twin: twin["spec"]["containers"][0]["image"] == "busybox:2", timeout=LONG)
    assert labels_of(await world.twin())["owner"] == "yes"


async def ephemeral_container_and_resize(world: Clusters) -> None:
    await runs(world, requests={"cpu": "1"})
    for subresource, spec in {
        "ephemeralcontainers": {"ephemeralContainers": [{"name": "debugger", "image": "busybox:1"}]},
        "resize": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]},
    }.items():
        where = object_named("work", "default")
        await world.virtual.patch(PODS, where, {"spec": spec}, type=PatchType.STRATEGIC, subresource=subresource)
    await world.wait_for_twin(
        lambda twin: (
            bool(twin["spec"].get("ephemeralContainers"))
            and twin["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "2"
        ),
        timeout=LONG,
    )


async def pod_is_deleted_with_grace(world: Clusters) -> None:
    await runs(world, terminationGracePeriodSeconds=60)
    await world.delete_pod()
    twin = await world.wait_for_twin(is_deleting, timeout=LONG)
    assert twin["metadata"]["deletionGracePeriodSeconds"] == 60
    await world.delete_pod(grace=20)
    await world.wait_for_twin(lambda twin: twin["metadata"]["deletionGracePeriodSeconds"] == 20, timeout=LONG)
    await world.stop()
    await world.wait_until_pod_is_gone(timeout=LONG)


async def pod_is_deleted_before_it_runs(world: Clusters) -> None:
    await world.add_pod()
    await world.delete_pod()
    await world.wait_until_pod_is_gone(timeout=LONG)
    await world.wait_until_twin_is_gone(timeout=LONG)


async def pod_is_deleted_by_force(world: Clusters) -> None:
    await runs(world)
    await world.delete_pod(grace=0)
    await world.wait_for_twin(is_deleting, timeout=LONG)
    await world.stop()


async def pods_are_reclaimed_at_a_deadline(world: Clusters) -> None:
    await runs(world, terminationGracePeriodSeconds=600)
    mark = {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
    await world.physical.patch(NODES, object_named("n1"), mark)
    twin = await world.wait_for_twin(is_deleting, timeout=LONG)
    assert twin["metadata"]["deletionGracePeriodSeconds"] == MAX_GRACE_SECONDS
    await world.wait_for_pod(has_condition("DisruptionTarget", "True", "Reclaimed"), timeout=LONG)
    await world.stop()
    await world.wait_until_pod_is_gone(timeout=LONG)


async def twin_finishes_and_is_deleted(world: Clusters) -> None:
    await runs(world)
    await world.end("Succeeded")
    await world.wait_for_pod(phase("Succeeded"), timeout=LONG)
    await world.stop()
    await asyncio.sleep(60)
    await world.change_pod({"metadata": {"labels": {"still": "here"}}})


async def twin_is_lost(world: Clusters) -> None:
    await runs(world)
    await world.physical.delete(PODS, await world.twin())
    await asyncio.sleep(20)
    await world.stop()
    await world.wait_for_pod(phase("Failed"), timeout=LONG)


async def pod_is_recreated_at_once(world: Clusters) -> None:
    await runs(world)
    await world.delete_pod(grace=0)
    await world.add_pod()
    await world.wait_for_twin(is_deleting, timeout=LONG)
    await asyncio.sleep(5)
    await world.stop()
    await world.wait_for_pod(MAPPED, timeout=LONG)
    await world.start()
    await world.wait_for_pod(phase("Running"), timeout=LONG)


async def twin_is_unschedulable(world: Clusters) -> None:
    await world.add_pod()
    await world.wait_for_pod(MAPPED, timeout=LONG)
    await world.mark_unschedulable()
    await world.wait_for_pod(phase("Failed"), timeout=LONG)
    await world.wait_until_twin_is_gone(timeout=LONG)
    await asyncio.sleep(SHORTAGE_TTL.total_seconds())  # until then a process that saw it leases less


async def closed_lease_opens(world: Clusters) -> None:
    mark = {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
    await world.physical.patch(NODES, object_named("n1"), mark)
    await asyncio.sleep(5)
    await world.add_pod(requests={"cpu": "3"}, tolerations=[{"operator": "Exists"}])
    await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "Reclaimed"), timeout=LONG)
    await asyncio.sleep(60)
    assert await world.twins() == []
    await world.physical.patch(NODES, object_named("n1"), {"metadata": {"annotations": {keys.RECLAIM: None}}})
    await world.wait_for_pod(MAPPED, timeout=LONG)


async def lease_is_full(world: Clusters) -> None:
    await runs(world, requests={"cpu": "3"})
    await world.add_pod("over", requests={"cpu": "2"})
    await world.wait_for_pod(phase("Failed"), "over", timeout=LONG)
    assert await world.phase_and_reason("over") == ("Failed", "OutOfcpu")
    where = object_named("work", "default")
    spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "5"}}}]}
    await world.virtual.patch(PODS, where, {"spec": spec}, type=PatchType.STRATEGIC, subresource="resize")
    await world.wait_for_pod(has_condition("PodResizePending", "True", "Infeasible"), timeout=LONG)
    assert (await world.twin())["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "3", "memory": "0"}


async def deleted_pod_is_reclaimed(world: Clusters) -> None:
    await runs(world, terminationGracePeriodSeconds=604800)
    await world.delete_pod()
    await world.wait_for_twin(is_deleting, timeout=LONG)
    await world.physical.patch(
        NODES, object_named("n1"), {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
    )
    await world.wait_for_twin(
        lambda twin: twin["metadata"]["deletionGracePeriodSeconds"] <= MAX_GRACE_SECONDS, timeout=LONG
    )
    await world.stop()
    await world.wait_until_pod_is_gone(timeout=LONG)


async def quota_is_full_for_a_while(world: Clusters) -> None:
    await runs(world)


async def quota_is_full_for_good(world: Clusters) -> None:
    await world.add_pod()
    await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "QuotaExceeded"), timeout=LONG)
    await asyncio.sleep(600)
    assert await world.phase_and_reason() == ("Pending", None)


async def foreign_pod_has_the_name(world: Clusters) -> None:
    place = await world.twin_ref()
    foreign = await world.physical.create(
        PODS, {**place, "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}}
    )
    await world.add_pod()
    await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "NameTaken"), timeout=LONG)
    await world.physical.delete(PODS, foreign)
    await world.wait_for_pod(MAPPED, timeout=LONG)


async def rejected_pod_is_accepted_later(world: Clusters) -> None:
    await world.add_pod(hostNetwork=True)
    await world.wait_for_pod(has_condition(keys.ACCEPTED_CONDITION, "False", "PodSecurity"), timeout=LONG)
    await world.set_binding(podSecurity="privileged")
    await world.wait_for_pod(MAPPED, timeout=LONG)


async def binding_is_deleted(world: Clusters) -> None:
    await runs(world)
    place = await world.twin_ref()
    await world.virtual.delete(CLUSTER_BINDINGS, object_named("east"))
    await wait_for(
        world.physical, PODS, name_of(place), MOUNT, until=lambda twin: bool(twin and is_deleting(twin)), timeout=LONG
    )
    await world.physical.delete(PODS, place, grace_seconds=0)
    await wait_for(world.virtual, CLUSTER_BINDINGS, "east", until=lambda obj: obj is None, timeout=LONG)


def full_for(seconds: float) -> Callable[[int, Request], ApiError | None]:
    """Return a rejection by a quota that is full at first."""

    def refusal(cluster: int, request: Request) -> ApiError | None:
        full = running_clock().now() < START + timedelta(seconds=seconds)
        if full and cluster == 1 and (request.method, request.path) == ("POST", PODS.path(MOUNT)):
            return forbidden("exceeded quota: all")
        return None

    return refusal


def is_about_a_pod(call: str) -> bool:
    return "/pods" in call and not call.startswith("watch")


STORIES: dict[Story, Callable[[int, Request], ApiError | None] | None] = {
    several_pods_are_created: None,
    labels_and_images_change: None,
    ephemeral_container_and_resize: None,
    pod_is_deleted_with_grace: None,
    pod_is_deleted_before_it_runs: None,
    pod_is_deleted_by_force: None,
    pods_are_reclaimed_at_a_deadline: None,
    twin_finishes_and_is_deleted: None,
    twin_is_lost: None,
    pod_is_recreated_at_once: None,
    twin_is_unschedulable: None,
    closed_lease_opens: None,
    lease_is_full: None,
    deleted_pod_is_reclaimed: None,
    quota_is_full_for_a_while: full_for(10),
    quota_is_full_for_good: full_for(2 * A_DAY),
    foreign_pod_has_the_name: None,
    rejected_pod_is_accepted_later: None,
    binding_is_deleted: None,
}


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_pod_reaches_same_state_and_runs_once(story: Story, record_property: Callable[[str, object], None]) -> None:
    name = story.__name__.replace("_", " ")
    rejection = STORIES[story]
    options = {"rejection": rejection} if rejection else {}
    report = perturb(
        Scenario(name, SERVED, setup, scenario(story), CONFIG, others=[SERVED], counts=is_about_a_pod, **options)
    )
    record_property("figure", f"perturbed pods: {report.cases} replays: {name}")
    assert not report.failures, str(report)
