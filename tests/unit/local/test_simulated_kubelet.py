"""Simulated nodes and their pods, in virtual time."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tapestry.client.client import Client
from tapestry.client.watch import Changes, Watch, wait_for
from tapestry.controller import Manager
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controller.testing import InProcessApi, Scenario, perturb, run, running_clock
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object, name_of, value_at
from tapestry.kube.resources import EVENTS, LEASES, NODE_LEASE_NAMESPACE, NODES, PODS
from tapestry.kube.times import parse_time
from tapestry.local import simulated_kubelet
from tapestry.local.nodes import internal_ip
from tapestry.local.simulated_kubelet import simulated_node

from .pods import new_pod, simulated

AN_HOUR = 3600.0
PORT = 10250
CAPACITY = {"cpu": "8", "memory": "16Gi", "pods": "110"}

ScenarioSteps = Callable[[Client], Awaitable[None]]


@asynccontextmanager
async def new_cluster(nodes: int = 1) -> AsyncIterator[Client]:
    """Cluster with simulated nodes."""
    clock = running_clock()
    api = InProcessApi([NODES, PODS, LEASES, EVENTS], now=clock.now)
    config = ManagerConfig(name="kubelets", metrics=Metrics(address=""), probes=Probes(address=""))
    manager = Manager(config, api.connect, identity="test", now=clock.now, monotonic=clock.monotonic)
    manager.register("kubelets", lambda each: simulated_kubelet.install(each, lambda: PORT))
    client = Client(api.connect())
    for number in range(nodes):
        await client.create(NODES, simulated_node(f"n{number or ''}", CAPACITY))
    async with asyncio.TaskGroup() as group:
        working = group.create_task(manager.run())
        yield client
        manager.stop()
        await asyncio.wait([working])


def run_scenario(scenario: ScenarioSteps, nodes: int = 1) -> None:
    async def world() -> None:
        async with new_cluster(nodes) as client:
            await scenario(client)

    run(world())


async def wait_for_node(client: Client, until: Callable[[Object], bool], name: str = "n") -> Object:
    found = await wait_for(client, NODES, name, until=lambda obj: obj is not None and until(obj), timeout=AN_HOUR)
    assert found is not None
    return found


async def wait_for_pod(client: Client, until: Callable[[Object], bool], name: str = "web") -> Object:
    found = await wait_for(
        client, PODS, name, "default", until=lambda obj: obj is not None and until(obj), timeout=AN_HOUR
    )
    assert found is not None
    return found


async def wait_until_gone(client: Client, name: str = "web") -> None:
    await wait_for(client, PODS, name, "default", until=lambda obj: obj is None, timeout=AN_HOUR)


def is_ready(obj: Object) -> bool:
    return is_condition_true(obj, "Ready")


# -- nodes


def test_node_reports_kubelet_status() -> None:
    async def scenario(client: Client) -> None:
        node = await wait_for_node(client, is_ready)
        status = node["status"]
        assert status["capacity"] == status["allocatable"] == CAPACITY
        assert status["daemonEndpoints"] == {"kubeletEndpoint": {"Port": PORT}}
        assert {each["type"] for each in status["addresses"]} == {"InternalIP", "Hostname"}
        assert internal_ip(node).startswith("127.")
        assert status["nodeInfo"]["kubeletVersion"].startswith("v1.")
        assert {each["type"]: each["status"] for each in status["conditions"]} == {
            "MemoryPressure": "False",
            "DiskPressure": "False",
            "PIDPressure": "False",
            "Ready": "True",
        }

    run_scenario(scenario)


def test_node_marked_unknown_becomes_ready_again() -> None:
    async def scenario(client: Client) -> None:
        node = await wait_for_node(client, is_ready)
        unknown = [{**each, "status": "Unknown"} for each in node["status"]["conditions"]]
        await client.patch(NODES, node, {"status": {"conditions": unknown}}, subresource="status")
        await wait_for_node(client, is_ready)

    run_scenario(scenario)


def test_every_node_has_own_address() -> None:
    async def scenario(client: Client) -> None:
        for number in range(50):
            await wait_for_node(client, is_ready, f"n{number or ''}")
        addresses = {internal_ip(node) for node in await client.list(NODES)}
        assert len(addresses) == 50

    run_scenario(scenario, nodes=50)


def test_leases_are_renewed_every_ten_seconds_spread() -> None:
    async def scenario(client: Client) -> None:
        await asyncio.sleep(20)  # all nodes have started
        renewals: Counter[str] = Counter()
        moments: Counter[float] = Counter()
        try:
            async with asyncio.timeout(30):
                async for event in Watch(client, LEASES, NODE_LEASE_NAMESPACE).events():
                    if isinstance(event, Changes):
                        for _, lease in event.changes:
                            renewals[name_of(lease)] += 1
                            moments[parse_time(lease["spec"]["renewTime"]).timestamp()] += 1
        except TimeoutError:
            pass
        assert len(renewals) == 200
        assert set(renewals.values()) <= {2, 3, 4}
        assert max(moments.values()) <= 10  # of 200 nodes, in 100 slots

    run_scenario(scenario, nodes=200)


def test_deleted_lease_is_created_again() -> None:
    async def scenario(client: Client) -> None:
        await wait_for_node(client, is_ready)
        lease = await wait_for(client, LEASES, "n", NODE_LEASE_NAMESPACE, until=lambda obj: obj is not None)
        assert lease is not None
        assert lease["metadata"]["ownerReferences"][0]["name"] == "n"
        await client.delete(LEASES, lease)
        again = await wait_for(client, LEASES, "n", NODE_LEASE_NAMESPACE, until=lambda obj: obj is not None, timeout=60)
        assert again is not None

    run_scenario(scenario)


def test_lease_of_deleted_node_is_not_renewed() -> None:
    async def scenario(client: Client) -> None:
        node = await wait_for_node(client, is_ready)
        await wait_for(client, LEASES, "n", NODE_LEASE_NAMESPACE, until=lambda obj: obj is not None)
        await client.delete(NODES, node)
        await asyncio.sleep(11)
        lease = await client.get(LEASES, "n", NODE_LEASE_NAMESPACE)
        await asyncio.sleep(60)
        assert await client.get(LEASES, "n", NODE_LEASE_NAMESPACE) == lease

    run_scenario(scenario)


# -- pods


def test_pod_runs_ends_and_stays() -> None:
    async def scenario(client: Client) -> None:
        annotations = simulated(starts_after="3s", ready_after="3s", ends_after="20s")
        await client.create(PODS, new_pod(annotations=annotations, restartPolicy="Never"))
        await wait_for_pod(client, is_ready)
        ended = await wait_for_pod(client, lambda pod: value_at(pod, "status", "phase") == "Succeeded")
        await asyncio.sleep(60)
        assert await client.get(PODS, "web", "default") == ended

    run_scenario(scenario)


def test_pods_have_own_addresses_except_host_network() -> None:
    async def scenario(client: Client) -> None:
        for number in range(20):
            await client.create(PODS, {**new_pod(f"p{number}")})
        await client.create(PODS, new_pod("host", hostNetwork=True))
        for number in range(20):
            await wait_for_pod(client, is_ready, f"p{number}")
        host = await wait_for_pod(client, is_ready, "host")
        assert host["status"]["podIP"] == internal_ip(await client.get(NODES, "n"))
        assert len({pod["status"]["podIP"] for pod in await client.list(PODS)}) == 21

    run_scenario(scenario)


def test_pod_starts_when_its_node_appears() -> None:
    async def scenario(client: Client) -> None:
        await client.create(PODS, {**new_pod(), "spec": {**new_pod()["spec"], "nodeName": "late"}})
        await asyncio.sleep(5)
        assert value_at(await client.get(PODS, "web", "default"), "status", "startTime") is None
        await client.create(NODES, simulated_node("late", CAPACITY))
        await wait_for_pod(client, is_ready)

    run_scenario(scenario)


def test_pods_of_other_nodes_are_ignored() -> None:
    async def scenario(client: Client) -> None:
        await client.create(NODES, {"metadata": {"name": "another"}})
        await client.create(PODS, {**new_pod(), "spec": {**new_pod()["spec"], "nodeName": "another"}})
        await asyncio.sleep(60)
        assert value_at(await client.get(PODS, "web", "default"), "status", "startTime") is None

    run_scenario(scenario)


@pytest.mark.parametrize(("grace", "least"), [(None, 4), (2, 2)])
def test_deleted_pod_is_removed_when_due(grace: int | None, least: float) -> None:
    async def scenario(client: Client) -> None:
        await client.create(PODS, new_pod(annotations=simulated(stops_after="4s")))
        pod = await wait_for_pod(client, is_ready)
        began = asyncio.get_running_loop().time()
        await client.delete(PODS, pod, grace_seconds=grace)
        await wait_until_gone(client)
        assert least - 1 <= asyncio.get_running_loop().time() - began <= least + 1

    run_scenario(scenario)


def test_deleted_pod_with_finalizer_has_failed() -> None:
    async def scenario(client: Client) -> None:
        pod = new_pod(restartPolicy="Never", annotations=simulated(ends_after="never"))
        await client.create(PODS, {**pod, "metadata": {**pod["metadata"], "finalizers": ["example.com/counted"]}})
        pod = await wait_for_pod(client, is_ready)
        await client.delete(PODS, pod)
        held = await wait_for_pod(client, lambda pod: pod["metadata"].get("deletionGracePeriodSeconds") == 0)
        assert held["status"]["phase"] == "Failed"
        await client.patch(PODS, held, {"metadata": {"finalizers": None}})
        await wait_until_gone(client)

    run_scenario(scenario)


# -- perturbations


async def create_and_delete_pods(client: Client) -> None:
    await client.create(NODES, simulated_node("n", CAPACITY))
    await wait_for_node(client, is_ready)
    await client.create(PODS, new_pod("long"))
    await client.create(PODS, new_pod("job", simulated(ends_after="3s", exit_code="1"), restartPolicy="Never"))
    await client.create(PODS, new_pod("brief", simulated(starts_after="2s", stops_after="5s")))
    await wait_for_pod(client, lambda pod: value_at(pod, "status", "phase") == "Failed", "job")
    await wait_for_pod(client, is_ready, "long")
    brief = await wait_for_pod(client, is_ready, "brief")
    await client.delete(PODS, brief)
    await wait_until_gone(client, "brief")


def test_nodes_and_pods_converge_under_perturbations() -> None:
    def set_up(manager: Manager) -> None:
        simulated_kubelet.install(manager, lambda: PORT)

    def counts(call: str) -> bool:
        return "/leases" not in call

    report = perturb(Scenario("kubelets", [NODES, PODS], set_up, create_and_delete_pods, counts=counts))
    assert report.calls > 0
    assert not report.failures, report
