"""Kill each process of a world: no object is lost, no process is left, and everything restarts."""

import asyncio
import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object, key_of, name_of, uid_of, value_at
from tapestry.kube.resources import CONFIGMAPS, DEPLOYMENTS, NODES, PODS, REPLICA_SETS, SECRETS, SERVICE_ACCOUNTS
from tapestry.local.cluster_processes import open_client
from tapestry.local.world import World, wait_for_nodes

from .worlds import READY_MESSAGE, WorldProcess, expect_processes_to_end, running_world, starting_world

SYSTEM = "tapestry-system"
REPLICAS = 6
FLAGS = ("--clusters", "2", "--nodes", "2")
TIMEOUT_SECONDS = 90.0
LASTING_RESOURCES = (CLUSTER_BINDINGS, NODES, DEPLOYMENTS, REPLICA_SETS, PODS, SECRETS, CONFIGMAPS, SERVICE_ACCOUNTS)


async def lasting_objects(virtual: Client) -> set[tuple[str, str, str]]:
    """Return kind, key and UID of every object that must survive."""
    return {(each.kind, key_of(obj), uid_of(obj)) for each in LASTING_RESOURCES for obj in await virtual.list(each)}


async def run_deployment(virtual: Client) -> None:
    """Create a Deployment and wait until all of its pods run."""
    pod = {"containers": [{"name": "c", "image": "nginx"}]}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": pod}
    spec = {"replicas": REPLICAS, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    await virtual.create(DEPLOYMENTS, {"metadata": {"name": "web", "namespace": "default"}, "spec": spec})
    await wait_until_available(virtual)


async def wait_until_available(virtual: Client) -> None:
    await wait_for_deployment(
        virtual, "web", "default", lambda found: value_at(found, "status", "availableReplicas") == REPLICAS
    )


async def wait_for_deployment(virtual: Client, name: str, namespace: str, until: Callable[[Object], bool]) -> None:
    await wait_for(
        virtual, DEPLOYMENTS, name, namespace, until=lambda obj: obj is not None and until(obj), timeout=TIMEOUT_SECONDS
    )


async def pod_of(virtual: Client, deployment: str) -> Object:
    (found,) = [pod for pod in await virtual.list(PODS, SYSTEM) if name_of(pod).startswith(f"{deployment}-")]
    return found


def restarts(pod: Object) -> int:
    count: int = value_at(pod, "status", "containerStatuses", 0, "restartCount", default=0)
    return count


async def kill_pod(virtual: Client, deployment: str, victim: int) -> None:
    """Kill a process of Tapestry, or its guard, and wait until its pod has restarted it."""
    before = await pod_of(virtual, deployment)
    os.kill(victim, signal.SIGKILL)
    await wait_for(
        virtual,
        PODS,
        name_of(before),
        SYSTEM,
        until=lambda pod: pod is not None and restarts(pod) > restarts(before) and is_condition_true(pod, "Ready"),
        timeout=TIMEOUT_SECONDS,
    )


async def kill_cluster(world: WorldProcess, name: str, victim: int) -> None:
    """Kill the process of a cluster, or its guard, and wait until the cluster answers again."""
    os.kill(victim, signal.SIGKILL)
    output = await asyncio.to_thread(world.read_until, "restarting")
    assert f"{name} was killed by SIGKILL" in output
    await World(world.folder).wait_for_cluster(name)


def guard_pid(pid: int) -> int:
    """Return the guard of a process: the leader of its process group."""
    return os.getpgid(pid)


async def wait_for_recovery(virtual: Client, since: datetime) -> None:
    """Wait until syncers lead, virtual nodes are up to date and pods run. Leases of killed leaders expire first."""
    assert await wait_for_nodes(virtual, 4, since) == 4
    for name in ("tapestry-manager", "tapestry-syncer-cluster-1", "tapestry-syncer-cluster-2"):
        await wait_for_deployment(virtual, name, SYSTEM, lambda found: value_at(found, "status", "readyReplicas") == 1)
    await wait_until_available(virtual)


async def kill_each(world: WorldProcess, virtual: Client) -> None:
    """Kill every process, or its guard, one after the other."""

    def cluster(name: str) -> int:
        return world.pid_of("cluster", "--data", str(world.folder / name))

    before = await lasting_objects(virtual)
    syncers = [world.pid_of("syncer", "--binding", name) for name in ("cluster-1", "cluster-2")]
    await kill_pod(virtual, "tapestry-syncer-cluster-1", syncers[0])
    await kill_pod(virtual, "tapestry-syncer-cluster-2", guard_pid(syncers[1]))
    await kill_pod(virtual, "tapestry-manager", world.pid_of("manager"))
    await kill_cluster(world, "cluster-1", cluster("cluster-1"))
    await kill_cluster(world, "cluster-2", guard_pid(cluster("cluster-2")))
    await kill_cluster(world, "virtual", cluster("virtual"))
    await wait_for_recovery(virtual, datetime.now(UTC))
    assert await lasting_objects(virtual) == before


@pytest.mark.timeout(500)
async def test_world_recovers_after_any_process_is_killed(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "world"
    with starting_world(folder, *FLAGS) as world:
        world.read_until(READY_MESSAGE)
        async with open_client(world.kubeconfig) as virtual:
            await run_deployment(virtual)
            await kill_each(world, virtual)
            before = await lasting_objects(virtual)
        with expect_processes_to_end(world):
            world.process.kill()
            world.process.communicate()
    with running_world(folder) as world:
        async with open_client(world.kubeconfig) as virtual:
            await wait_for_recovery(virtual, datetime.now(UTC))
            assert await lasting_objects(virtual) == before


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_world_survives_many_rounds_of_kills(tmp_path: Path) -> None:
    with running_world(tmp_path / "world", *FLAGS) as world:
        async with open_client(world.kubeconfig) as virtual:
            await run_deployment(virtual)
            before = await lasting_objects(virtual)
            for _ in range(10):
                await kill_each(world, virtual)
            assert await lasting_objects(virtual) == before
