"""Tests of the scheduler in a cluster in this process, on virtual time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.client.client import Client
from tapestry.client.transport import Request, Response, Stream
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controller.testing import Connection, InProcessApi, in_virtual_time, run, running_clock, specimen
from tapestry.controlplane.scheduler import scheduler
from tapestry.controlplane.volume_matching import SELECTED_NODE
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import TransportError
from tapestry.kube.objects import Object, annotations_of, name_of, object_named, value_at, with_value
from tapestry.kube.resources import (
    CSI_NODES,
    DISRUPTION_BUDGETS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
)

from .scheduling_reference import HOST, REQUIRED, new_node, new_pod

SERVED = [
    PODS,
    NODES,
    NAMESPACES,
    DISRUPTION_BUDGETS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    CSI_NODES,
    VOLUME_ATTACHMENTS,
]
CONFIG = ManagerConfig(name="scheduling", metrics=Metrics(address=""), probes=Probes(address=""))
AN_HOUR = 3600.0

SchedulerTest = Callable[[Client], Awaitable[None]]


def with_scheduler(test_body: SchedulerTest) -> Callable[[], None]:
    """Run a test in a cluster with a scheduler."""

    def test() -> None:
        async def run_test() -> None:
            api = InProcessApi([*SERVED, EVENTS, LEASES], now=running_clock().now)
            async with run_scheduler(api.connect):
                await test_body(Client(api.connect()))

        run(run_test())

    test.__name__ = test_body.__name__
    return test


@asynccontextmanager
async def run_scheduler(connect: Callable[[], Any]) -> AsyncIterator[None]:
    clock = running_clock()
    manager = Manager(CONFIG, connect, identity="scheduling", now=clock.now, monotonic=clock.monotonic)
    manager.register("scheduler", scheduler.install)
    async with asyncio.TaskGroup() as group:
        working = group.create_task(manager.run())
        yield
        manager.stop()
        await asyncio.wait([working])


async def wait_for_node(client: Client, name: str) -> str:
    found = await wait_for(client, PODS, name, "x", until=lambda pod: node_of(pod) is not None, timeout=AN_HOUR)
    return str(node_of(found))


async def wait_for_message(client: Client, name: str, reason: str = "Unschedulable") -> str:
    found = await wait_for(
        client, PODS, name, "x", until=lambda pod: scheduled_condition(pod).get("reason") == reason, timeout=AN_HOUR
    )
    return str(scheduled_condition(found)["message"])


def node_of(pod: Object | None) -> str | None:
    node: str | None = value_at(pod, "spec", "nodeName")
    return node


def scheduled_condition(pod: Object | None) -> Object:
    return find_condition(value_at(pod, "status", "conditions"), "PodScheduled") or {}


async def events(client: Client, name: str) -> list[tuple[str, str, str]]:
    await asyncio.sleep(1)  # of virtual time: events are written asynchronously
    found = [each for each in await client.list(EVENTS) if each["involvedObject"]["name"] == name]
    return [(each["source"]["component"], each["reason"], each["message"]) for each in found]


@with_scheduler
async def test_pod_is_bound_with_event(client: Client) -> None:
    await client.create(NODES, new_node("n"))
    await client.create(PODS, new_pod("p", cpu="1"))
    assert await wait_for_node(client, "p") == "n"
    assert await events(client, "p") == [("default-scheduler", "Scheduled", "Successfully assigned x/p to n")]


@with_scheduler
async def test_unschedulable_pod_reports_reason_and_is_retried(client: Client) -> None:
    await client.create(PODS, new_pod("p", cpu="1"))
    assert await wait_for_message(client, "p") == "no nodes available to schedule pods"
    node = await client.create(NODES, new_node("n", cpu="0"))
    full = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: "
    full += "0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    await wait_for(
        client, PODS, "p", "x", until=lambda pod: scheduled_condition(pod).get("message") == full, timeout=AN_HOUR
    )
    await client.patch(NODES, node, {"status": {"allocatable": {"cpu": "2"}}}, subresource="status")
    assert await wait_for_node(client, "p") == "n"
    assert sorted(reason for _, reason, _ in await events(client, "p")) == [
        "FailedScheduling",
        "FailedScheduling",
        "Scheduled",
    ]


@in_virtual_time
async def test_invalid_objects_do_not_block_others() -> None:
    api = InProcessApi([*SERVED, EVENTS, LEASES], now=running_clock().now)
    client = Client(api.connect())
    await api.insert_unvalidated(NODES, new_node("bad", cpu="plenty"))
    await api.insert_unvalidated(PODS, new_pod("bound", "n", cpu="many"))
    await api.insert_unvalidated(PODS, new_pod("bad", cpu="some"))
    async with run_scheduler(api.connect):
        await client.create(NODES, new_node("n"))
        await client.create(PODS, new_pod("good", cpu="1"))
        assert await wait_for_node(client, "good") == "n"
        assert "x/bad" in await wait_for_message(client, "bad", "SchedulerError")


@with_scheduler
async def test_gated_pod_waits_until_gate_is_removed(client: Client) -> None:
    await client.create(NODES, new_node("n"))
    pod = await client.create(PODS, new_pod("p", schedulingGates=[{"name": "g"}]))
    assert (
        await wait_for_message(client, "p", "SchedulingGated")
        == "Scheduling is blocked due to non-empty scheduling gates"
    )
    await client.patch(PODS, object_named(name_of(pod), "x"), {"spec": {"schedulingGates": None}})
    assert await wait_for_node(client, "p") == "n"


@with_scheduler
async def test_pods_of_other_schedulers_are_ignored(client: Client) -> None:
    await client.create(NODES, new_node("n"))
    await client.create(PODS, new_pod("other", schedulerName="other"))
    await client.create(PODS, new_pod("own"))
    await wait_for_node(client, "own")
    other = await client.get(PODS, "other", "x")
    assert (node_of(other), scheduled_condition(other)) == (None, {})


@with_scheduler
async def test_higher_priority_is_scheduled_first(client: Client) -> None:
    for name, priority in (("low", 1), ("high", 10), ("middle", 5)):
        await client.create(PODS, new_pod(name, cpu="2", priority=priority))
        await wait_for_message(client, name)
    await client.create(NODES, new_node("n", cpu="4"))
    assert await wait_for_node(client, "high") == "n"
    assert await wait_for_node(client, "middle") == "n"
    assert node_of(await client.get(PODS, "low", "x")) is None


@with_scheduler
async def test_lower_priority_pod_is_preempted(client: Client) -> None:
    await client.create(NODES, new_node("n", cpu="2"))
    await client.create(PODS, new_pod("low", cpu="2", terminationGracePeriodSeconds=30))
    await wait_for_node(client, "low")
    high = await client.create(PODS, new_pod("high", cpu="2", priority=10))
    found = await wait_for(client, PODS, "low", "x", until=is_terminating, timeout=AN_HOUR)
    assert found is not None
    target = find_condition(found["status"]["conditions"], "DisruptionTarget") or {}
    assert target["reason"] == "PreemptionByScheduler"
    assert target["message"] == "default-scheduler: preempting to accommodate a higher priority pod"
    waiting = await client.get(PODS, "high", "x")
    assert value_at(waiting, "status", "nominatedNodeName") == "n"
    await client.delete(PODS, found, grace_seconds=0)
    await client.create(PODS, new_pod("late", cpu="2", priority=9))  # scheduled first, but the capacity is reserved
    assert await wait_for_node(client, "high") == "n"
    await wait_for_message(client, "late")
    uid = high["metadata"]["uid"]
    assert ("default-scheduler", "Preempted", f"Preempted by pod {uid} on node n") in await events(client, "low")


def is_terminating(pod: Object | None) -> bool:
    return pod is not None and "deletionTimestamp" in pod["metadata"]


@with_scheduler
async def test_higher_priority_takes_over_nomination(client: Client) -> None:
    await client.create(NODES, new_node("n", cpu="2"))
    await client.create(PODS, new_pod("low", "n", cpu="2", terminationGracePeriodSeconds=30))
    for name, priority in (("middle", 5), ("high", 10)):
        await client.create(PODS, new_pod(name, cpu="2", priority=priority))
        await wait_for(client, PODS, name, "x", until=lambda pod: nominated_node(pod) == "n", timeout=AN_HOUR)
    await wait_for(client, PODS, "middle", "x", until=lambda pod: nominated_node(pod) is None, timeout=AN_HOUR)
    assert nominated_node(await client.get(PODS, "high", "x")) == "n"


def nominated_node(pod: Object | None) -> str | None:
    node: str | None = value_at(pod, "status", "nominatedNodeName")
    return node


@in_virtual_time
async def test_nomination_survives_restart() -> None:
    api = InProcessApi([*SERVED, EVENTS, LEASES], now=running_clock().now)
    client = Client(api.connect())
    await client.create(NODES, new_node("n", cpu="2"))
    await client.create(PODS, new_pod("low", "n", cpu="2", terminationGracePeriodSeconds=30))
    await client.create(PODS, new_pod("high", cpu="2", priority=10))
    async with run_scheduler(api.connect):
        await wait_for(client, PODS, "low", "x", until=is_terminating, timeout=AN_HOUR)
    await client.create(NODES, new_node("m", cpu="2"))
    await client.create(PODS, new_pod("lower", "m", cpu="2", priority=-5))  # it would be the cheaper victim
    async with run_scheduler(api.connect):
        await asyncio.sleep(60)
        await client.delete(PODS, object_named("low", "x"), grace_seconds=0)
        assert await wait_for_node(client, "high") == "n"
        assert not is_terminating(await client.get(PODS, "lower", "x"))


@with_scheduler
async def test_deleted_node_is_not_used(client: Client) -> None:
    await client.create(NODES, new_node("n"))
    await client.create(PODS, new_pod("first"))
    await wait_for_node(client, "first")
    await client.delete(NODES, object_named("n"))
    await asyncio.sleep(1)
    await client.create(PODS, new_pod("second"))
    assert await wait_for_message(client, "second") == "no nodes available to schedule pods"


@with_scheduler
async def test_terminating_victims_prevent_further_preemption(client: Client) -> None:
    for name in ("n", "m"):
        await client.create(NODES, new_node(name, cpu="2"))
        await client.create(PODS, new_pod(f"low-{name}", name, cpu="2", terminationGracePeriodSeconds=30))
    await client.create(PODS, new_pod("high", cpu="2", priority=10))
    await wait_for(
        client, PODS, "high", "x", until=lambda pod: bool(value_at(pod, "status", "nominatedNodeName")), timeout=AN_HOUR
    )
    await asyncio.sleep(30)
    for number in range(3):  # each change triggers a retry
        await client.create(PODS, new_pod(f"odd{number}", "elsewhere"))
        await asyncio.sleep(30)
    assert "not eligible due to a terminating pod on the nominated node." in await wait_for_message(client, "high")
    assert sum(is_terminating(each) for each in await client.list(PODS)) == 1


def with_late_class(storage: Object) -> Object:
    """Return a claim or a volume with the storage class `late`."""
    return with_value(storage, ("spec", "storageClassName"), "late")


@with_scheduler
async def test_volume_is_provisioned_before_binding(client: Client) -> None:
    storage_class = {"metadata": {"name": "late"}, "provisioner": "maker", "volumeBindingMode": "WaitForFirstConsumer"}
    await client.create(STORAGE_CLASSES, storage_class)
    await client.create(PERSISTENT_VOLUME_CLAIMS, with_late_class(specimen(PERSISTENT_VOLUME_CLAIMS, "c", "x")))
    await client.create(NODES, new_node("n", cpu="2"))
    await client.create(
        PODS, new_pod("p", cpu="2", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}])
    )
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
    await client.create(PODS, new_pod("q", cpu="1"))  # the capacity is reserved, although the pod is not bound yet
    await wait_for_message(client, "q")
    assert node_of(await client.get(PODS, "p", "x")) is None
    await client.create(PERSISTENT_VOLUMES, with_late_class(specimen(PERSISTENT_VOLUMES, "v")))
    bound = await client.patch(PERSISTENT_VOLUME_CLAIMS, claim, {"spec": {"volumeName": "v"}})
    await client.patch(PERSISTENT_VOLUME_CLAIMS, bound, {"status": {"phase": "Bound"}}, subresource="status")
    assert await wait_for_node(client, "p") == "n"


@with_scheduler
async def test_node_without_volume_is_rejected(client: Client) -> None:
    storage_class = {"metadata": {"name": "late"}, "provisioner": "maker", "volumeBindingMode": "WaitForFirstConsumer"}
    await client.create(STORAGE_CLASSES, storage_class)
    claim = specimen(PERSISTENT_VOLUME_CLAIMS, "c", "x", annotations={SELECTED_NODE: "missing"})
    await client.create(PERSISTENT_VOLUME_CLAIMS, with_late_class(claim))
    await client.create(NODES, new_node("n"))
    await client.create(PODS, new_pod("p", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]))
    assert "didn't find available persistent volumes to bind" in await wait_for_message(client, "p")
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


@with_scheduler
async def test_new_matching_pod_satisfies_affinity(client: Client) -> None:
    await client.create(NODES, new_node("n"))
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "a"}}}
    await client.create(PODS, new_pod("p", affinity={"podAffinity": {REQUIRED: [term]}}))
    await wait_for_message(client, "p")
    await client.create(PODS, new_pod("neighbour", "n", app="a"))
    assert await wait_for_node(client, "p") == "n"


@dataclass
class LossyTransport:
    """Loses binding requests or their responses, as given by `outcomes`."""

    inner: Connection
    outcomes: list[str]

    async def send(self, request: Request) -> Response:
        outcome = self.outcomes.pop(0) if request.path.endswith("/binding") and self.outcomes else "arrives"
        if outcome == "lost":
            raise TransportError("the request was lost", maybe_sent=True)
        response = await self.inner.send(request)
        if outcome == "unanswered":
            raise TransportError("the response was lost", maybe_sent=True)
        return response

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        return self.inner.stream(request)

    def abort(self) -> None:
        self.inner.abort()

    async def close(self) -> None:
        await self.inner.close()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from(["arrives", "lost", "unanswered"]), max_size=12),
    st.lists(st.integers(1, 3), min_size=4, max_size=10),
)
@in_virtual_time
async def test_lost_bindings_never_overcommit_nodes(outcomes: list[str], sizes: list[int]) -> None:
    """Bindings are lost, or succeed without a response: capacity that they may use stays reserved."""
    api = InProcessApi([*SERVED, EVENTS, LEASES], now=running_clock().now)
    remaining = list(outcomes)
    client = Client(api.connect())
    for name in ("n", "m"):
        await client.create(NODES, new_node(name, cpu="4", pods="3"))
    async with run_scheduler(lambda: LossyTransport(api.connect(), remaining)):
        for number, size in enumerate(sizes):
            await client.create(PODS, new_pod(f"p{number}", cpu=str(size)))
        for number in range(len(sizes)):
            name = f"p{number}"
            await wait_for(
                client, PODS, name, "x", until=lambda pod: node_of(pod) or scheduled_condition(pod), timeout=AN_HOUR
            )
        await asyncio.sleep(600)
        check(await client.list(PODS))


def check(pods: list[Object]) -> None:
    for node in ("n", "m"):
        on_node = [
            int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"]) for pod in pods if node_of(pod) == node
        ]
        assert sum(on_node) <= 4
        assert len(on_node) <= 3
    free = {node: 4 - sum(size(pod) for pod in pods if node_of(pod) == node) for node in ("n", "m")}
    slots = {node: 3 - sum(node_of(pod) == node for pod in pods) for node in ("n", "m")}
    for pod in pods:  # a pending pod fits on no node
        assert node_of(pod) or all(size(pod) > free[node] or not slots[node] for node in free)


def size(pod: Object) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])
