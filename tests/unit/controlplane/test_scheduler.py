"""The scheduler at work on a cluster in this process, on virtual time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.client.client import Client
from tapestry.client.transport import Request, Response, Stream
from tapestry.client.waiting import wait_for
from tapestry.controller import Manager
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controller.testing import Connection, InProcessApi, in_virtual_time, run, running_clock, specimen
from tapestry.controlplane.scheduler import scheduler
from tapestry.controlplane.scheduler.volumes import SELECTED_NODE
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import TransportError
from tapestry.kube.objects import Object, annotations_of, name_of, object_named, value_at, with_value
from tapestry.kube.resources import (
    DISRUPTION_BUDGETS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STORAGE_CLASSES,
)

from .places import HOST, REQUIRED, a_node, a_pod

SERVED = [PODS, NODES, NAMESPACES, DISRUPTION_BUDGETS, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES]
CONFIG = ManagerConfig(name="scheduling", metrics=Metrics(address=""), probes=Probes(address=""))
AN_HOUR = 3600.0

Story = Callable[[Client], Awaitable[None]]


def scheduled(story: Story) -> Callable[[], None]:
    """A test that plays in a cluster with a scheduler."""

    def test() -> None:
        async def told() -> None:
            api = InProcessApi([*SERVED, EVENTS, LEASES], now=running_clock().now)
            async with at_work(api.connect):
                await story(Client(api.connect()))

        run(told())

    test.__name__ = story.__name__
    return test


@asynccontextmanager
async def at_work(connect: Callable[[], Any]) -> AsyncIterator[None]:
    clock = running_clock()
    manager = Manager(CONFIG, connect, identity="scheduling", now=clock.now, monotonic=clock.monotonic)
    manager.register("scheduler", scheduler.install)
    async with asyncio.TaskGroup() as group:
        working = group.create_task(manager.run())
        yield
        manager.stop()
        await asyncio.wait([working])


async def wait_for_node(client: Client, name: str) -> str:
    found = await wait_for(client, PODS, name, "x", until=lambda pod: place(pod) is not None, timeout=AN_HOUR)
    return str(place(found))


async def wait_for_word(client: Client, name: str, reason: str = "Unschedulable") -> str:
    found = await wait_for(
        client, PODS, name, "x", until=lambda pod: said(pod).get("reason") == reason, timeout=AN_HOUR
    )
    return str(said(found)["message"])


def place(pod: Object | None) -> str | None:
    node: str | None = value_at(pod, "spec", "nodeName")
    return node


def said(pod: Object | None) -> Object:
    return find_condition(value_at(pod, "status", "conditions"), "PodScheduled") or {}


async def events(client: Client, name: str) -> list[tuple[str, str, str]]:
    await asyncio.sleep(1)  # of virtual time: they are written beside the work
    found = [each for each in await client.list(EVENTS) if each["involvedObject"]["name"] == name]
    return [(each["source"]["component"], each["reason"], each["message"]) for each in found]


@scheduled
async def test_a_pod_gets_a_node_and_an_event_says_so(client: Client) -> None:
    await client.create(NODES, a_node("n"))
    await client.create(PODS, a_pod("p", cpu="1"))
    assert await wait_for_node(client, "p") == "n"
    assert await events(client, "p") == [("default-scheduler", "Scheduled", "Successfully assigned x/p to n")]


@scheduled
async def test_a_pod_without_a_place_is_told_why_and_goes_when_there_is_one(client: Client) -> None:
    await client.create(PODS, a_pod("p", cpu="1"))
    assert await wait_for_word(client, "p") == "no nodes available to schedule pods"
    node = await client.create(NODES, a_node("n", cpu="0"))
    full = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: "
    full += "0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    await wait_for(client, PODS, "p", "x", until=lambda pod: said(pod).get("message") == full, timeout=AN_HOUR)
    await client.patch(NODES, node, {"status": {"allocatable": {"cpu": "2"}}}, subresource="status")
    assert await wait_for_node(client, "p") == "n"
    assert sorted(reason for _, reason, _ in await events(client, "p")) == [
        "FailedScheduling",
        "FailedScheduling",
        "Scheduled",
    ]


@in_virtual_time
async def test_one_that_cannot_be_read_does_not_stop_others() -> None:
    api = InProcessApi([*SERVED, EVENTS, LEASES], now=running_clock().now)
    client = Client(api.connect())
    await api.insert_unvalidated(NODES, a_node("bad", cpu="plenty"))
    await api.insert_unvalidated(PODS, a_pod("bound", "n", cpu="many"))
    await api.insert_unvalidated(PODS, a_pod("bad", cpu="some"))
    async with at_work(api.connect):
        await client.create(NODES, a_node("n"))
        await client.create(PODS, a_pod("good", cpu="1"))
        assert await wait_for_node(client, "good") == "n"
        assert "x/bad" in await wait_for_word(client, "bad", "SchedulerError")


@scheduled
async def test_a_gate_keeps_a_pod_back_until_it_is_taken_away(client: Client) -> None:
    await client.create(NODES, a_node("n"))
    pod = await client.create(PODS, a_pod("p", schedulingGates=[{"name": "g"}]))
    assert (
        await wait_for_word(client, "p", "SchedulingGated") == "Scheduling is blocked due to non-empty scheduling gates"
    )
    await client.patch(PODS, object_named(name_of(pod), "x"), {"spec": {"schedulingGates": None}})
    assert await wait_for_node(client, "p") == "n"


@scheduled
async def test_pods_of_another_scheduler_are_left_alone(client: Client) -> None:
    await client.create(NODES, a_node("n"))
    await client.create(PODS, a_pod("theirs", schedulerName="other"))
    await client.create(PODS, a_pod("ours"))
    await wait_for_node(client, "ours")
    theirs = await client.get(PODS, "theirs", "x")
    assert (place(theirs), said(theirs)) == (None, {})


@scheduled
async def test_the_more_important_goes_first(client: Client) -> None:
    for name, priority in (("low", 1), ("high", 10), ("middle", 5)):
        await client.create(PODS, a_pod(name, cpu="2", priority=priority))
        await wait_for_word(client, name)
    await client.create(NODES, a_node("n", cpu="4"))
    assert await wait_for_node(client, "high") == "n"
    assert await wait_for_node(client, "middle") == "n"
    assert place(await client.get(PODS, "low", "x")) is None


@scheduled
async def test_room_is_made_for_the_more_important(client: Client) -> None:
    await client.create(NODES, a_node("n", cpu="2"))
    await client.create(PODS, a_pod("low", cpu="2", terminationGracePeriodSeconds=30))
    await wait_for_node(client, "low")
    high = await client.create(PODS, a_pod("high", cpu="2", priority=10))
    found = await wait_for(client, PODS, "low", "x", until=is_leaving, timeout=AN_HOUR)
    assert found is not None
    target = find_condition(found["status"]["conditions"], "DisruptionTarget") or {}
    assert target["reason"] == "PreemptionByScheduler"
    assert target["message"] == "default-scheduler: preempting to accommodate a higher priority pod"
    waiting = await client.get(PODS, "high", "x")
    assert value_at(waiting, "status", "nominatedNodeName") == "n"
    await client.delete(PODS, found, grace_seconds=0)
    await client.create(PODS, a_pod("sneaky", cpu="2", priority=9))  # it is looked at first, and the room is kept
    assert await wait_for_node(client, "high") == "n"
    await wait_for_word(client, "sneaky")
    uid = high["metadata"]["uid"]
    assert ("default-scheduler", "Preempted", f"Preempted by pod {uid} on node n") in await events(client, "low")


def is_leaving(pod: Object | None) -> bool:
    return pod is not None and "deletionTimestamp" in pod["metadata"]


@scheduled
async def test_the_right_to_a_room_goes_to_the_more_important(client: Client) -> None:
    await client.create(NODES, a_node("n", cpu="2"))
    await client.create(PODS, a_pod("low", "n", cpu="2", terminationGracePeriodSeconds=30))
    for name, priority in (("middle", 5), ("high", 10)):
        await client.create(PODS, a_pod(name, cpu="2", priority=priority))
        await wait_for(client, PODS, name, "x", until=lambda pod: right(pod) == "n", timeout=AN_HOUR)
    await wait_for(client, PODS, "middle", "x", until=lambda pod: right(pod) is None, timeout=AN_HOUR)
    assert right(await client.get(PODS, "high", "x")) == "n"


def right(pod: Object | None) -> str | None:
    node: str | None = value_at(pod, "status", "nominatedNodeName")
    return node


@in_virtual_time
async def test_the_right_to_a_room_outlives_the_process() -> None:
    api = InProcessApi([*SERVED, EVENTS, LEASES], now=running_clock().now)
    client = Client(api.connect())
    await client.create(NODES, a_node("n", cpu="2"))
    await client.create(PODS, a_pod("low", "n", cpu="2", terminationGracePeriodSeconds=30))
    await client.create(PODS, a_pod("high", cpu="2", priority=10))
    async with at_work(api.connect):
        await wait_for(client, PODS, "low", "x", until=is_leaving, timeout=AN_HOUR)
    await client.create(NODES, a_node("m", cpu="2"))
    await client.create(PODS, a_pod("lower", "m", cpu="2", priority=-5))  # it would have been a better choice
    async with at_work(api.connect):
        await asyncio.sleep(60)
        await client.delete(PODS, object_named("low", "x"), grace_seconds=0)
        assert await wait_for_node(client, "high") == "n"
        assert not is_leaving(await client.get(PODS, "lower", "x"))


@scheduled
async def test_a_node_that_is_gone_is_no_place(client: Client) -> None:
    await client.create(NODES, a_node("n"))
    await client.create(PODS, a_pod("first"))
    await wait_for_node(client, "first")
    await client.delete(NODES, object_named("n"))
    await asyncio.sleep(1)
    await client.create(PODS, a_pod("second"))
    assert await wait_for_word(client, "second") == "no nodes available to schedule pods"


@scheduled
async def test_while_room_is_made_nobody_else_has_to_go(client: Client) -> None:
    for name in ("n", "m"):
        await client.create(NODES, a_node(name, cpu="2"))
        await client.create(PODS, a_pod(f"low-{name}", name, cpu="2", terminationGracePeriodSeconds=30))
    await client.create(PODS, a_pod("high", cpu="2", priority=10))
    await wait_for(
        client, PODS, "high", "x", until=lambda pod: bool(value_at(pod, "status", "nominatedNodeName")), timeout=AN_HOUR
    )
    await asyncio.sleep(30)
    for number in range(3):  # each change has the scheduler look again
        await client.create(PODS, a_pod(f"odd{number}", "elsewhere"))
        await asyncio.sleep(30)
    assert "not eligible due to a terminating pod on the nominated node." in await wait_for_word(client, "high")
    assert sum(is_leaving(each) for each in await client.list(PODS)) == 1


def of_class(storage: Object) -> Object:
    """A claim or a volume as one of the class `late`."""
    return with_value(storage, ("spec", "storageClassName"), "late")


@scheduled
async def test_a_volume_is_made_for_the_node_before_the_pod_goes_there(client: Client) -> None:
    maker = {"metadata": {"name": "late"}, "provisioner": "maker", "volumeBindingMode": "WaitForFirstConsumer"}
    await client.create(STORAGE_CLASSES, maker)
    await client.create(PERSISTENT_VOLUME_CLAIMS, of_class(specimen(PERSISTENT_VOLUME_CLAIMS, "c", "x")))
    await client.create(NODES, a_node("n", cpu="2"))
    await client.create(PODS, a_pod("p", cpu="2", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]))
    claim = await wait_for(
        client,
        PERSISTENT_VOLUME_CLAIMS,
        "c",
        "x",
        until=lambda obj: SELECTED_NODE in annotations_of(obj or object_named("c")),
        timeout=AN_HOUR,
    )
    assert claim is not None
    assert annotations_of(claim)[SELECTED_NODE] == "n"
    await client.create(PODS, a_pod("q", cpu="1"))  # the room is taken, though the pod is not there yet
    await wait_for_word(client, "q")
    assert place(await client.get(PODS, "p", "x")) is None
    await client.create(PERSISTENT_VOLUMES, of_class(specimen(PERSISTENT_VOLUMES, "v")))
    bound = await client.patch(PERSISTENT_VOLUME_CLAIMS, claim, {"spec": {"volumeName": "v"}})
    await client.patch(PERSISTENT_VOLUME_CLAIMS, bound, {"status": {"phase": "Bound"}}, subresource="status")
    assert await wait_for_node(client, "p") == "n"


@scheduled
async def test_a_node_that_cannot_provide_is_given_up(client: Client) -> None:
    maker = {"metadata": {"name": "late"}, "provisioner": "maker", "volumeBindingMode": "WaitForFirstConsumer"}
    await client.create(STORAGE_CLASSES, maker)
    claim = specimen(PERSISTENT_VOLUME_CLAIMS, "c", "x", annotations={SELECTED_NODE: "gone"})
    await client.create(PERSISTENT_VOLUME_CLAIMS, of_class(claim))
    await client.create(NODES, a_node("n"))
    await client.create(PODS, a_pod("p", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]))
    assert "didn't find available persistent volumes to bind" in await wait_for_word(client, "p")
    await client.patch(
        PERSISTENT_VOLUME_CLAIMS, object_named("c", "x"), {"metadata": {"annotations": {SELECTED_NODE: None}}}
    )
    await wait_for(
        client,
        PERSISTENT_VOLUME_CLAIMS,
        "c",
        "x",
        until=lambda obj: annotations_of(obj or {}).get(SELECTED_NODE) == "n",
        timeout=AN_HOUR,
    )


@scheduled
async def test_a_new_neighbour_helps_those_that_wait_for_one(client: Client) -> None:
    await client.create(NODES, a_node("n"))
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "a"}}}
    await client.create(PODS, a_pod("p", affinity={"podAffinity": {REQUIRED: [term]}}))
    await wait_for_word(client, "p")
    await client.create(PODS, a_pod("friend", "n", app="a"))
    assert await wait_for_node(client, "p") == "n"


@dataclass
class Flaky:
    """Loses answers to bindings, or the requests themselves, as it is told."""

    below: Connection
    fates: list[str]

    async def send(self, request: Request) -> Response:
        fate = self.fates.pop(0) if request.path.endswith("/binding") and self.fates else "arrives"
        if fate == "lost":
            raise TransportError("the request was lost", maybe_sent=True)
        answer = await self.below.send(request)
        if fate == "unanswered":
            raise TransportError("the answer was lost", maybe_sent=True)
        return answer

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        return self.below.stream(request)

    def abort(self) -> None:
        self.below.abort()

    async def close(self) -> None:
        await self.below.close()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from(["arrives", "lost", "unanswered"]), max_size=12),
    st.lists(st.integers(1, 3), min_size=4, max_size=10),
)
@in_virtual_time
async def test_no_node_is_ever_given_more_than_it_has(fates: list[str], sizes: list[int]) -> None:
    """Bindings are lost, or take place though nobody hears of it: the room they may have taken stays taken."""
    api = InProcessApi([*SERVED, EVENTS, LEASES], now=running_clock().now)
    left = list(fates)
    client = Client(api.connect())
    for name in ("n", "m"):
        await client.create(NODES, a_node(name, cpu="4", pods="3"))
    async with at_work(lambda: Flaky(api.connect(), left)):
        for number, size in enumerate(sizes):
            await client.create(PODS, a_pod(f"p{number}", cpu=str(size)))
        for number in range(len(sizes)):
            name = f"p{number}"
            await wait_for(client, PODS, name, "x", until=lambda pod: place(pod) or said(pod), timeout=AN_HOUR)
        await asyncio.sleep(600)
        check(await client.list(PODS))


def check(pods: list[Object]) -> None:
    for node in ("n", "m"):
        there = [
            int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"]) for pod in pods if place(pod) == node
        ]
        assert sum(there) <= 4
        assert len(there) <= 3
    free = {node: 4 - sum(size(pod) for pod in pods if place(pod) == node) for node in ("n", "m")}
    slots = {node: 3 - sum(place(pod) == node for pod in pods) for node in ("n", "m")}
    for pod in pods:  # and whoever still waits has a reason to
        assert place(pod) or all(size(pod) > free[node] or not slots[node] for node in free)


def size(pod: Object) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])
