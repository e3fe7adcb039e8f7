"""Network partition from a physical cluster, with a kube-controller-manager that evicts pods.

The physical API server is stopped with SIGSTOP, so its connections stay open and silent.  It does not have our kinds,
which an owner need not install.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.kube.objects import Object, annotations_of, object_named, value_at
from tapestry.kube.resources import PODS, SERVICE_ACCOUNTS

from .bound_clusters import (
    BoundClusters,
    bound_clusters,
    client_of,
    has_deletion_timestamp,
    install_kinds,
    readiness,
    untainted,
    wait_for_exit,
    wait_until,
    wait_until_gone,
)
from .planes import NODE_LIFECYCLE, Plane, Start, only_on_kubernetes

UNREACHABLE = "node.kubernetes.io/unreachable"
NOT_READY = "node.kubernetes.io/not-ready"


@pytest.fixture(scope="module")
def watchful_plane(start: Start) -> Iterator[Plane]:
    """A virtual cluster with node controllers."""
    with start("watchful", controllers=True) as plane:
        asyncio.run(prepared(plane))
        yield plane


async def prepared(plane: Plane) -> None:
    await install_kinds(plane)
    async with client_of(plane) as client:
        await wait_until(client, SERVICE_ACCOUNTS, "default", bool, "default")


@pytest.fixture
def frail_plane(start: Start) -> Iterator[Plane]:
    """A physical cluster for one test, which may leave it paused."""
    with start("frail") as plane:
        yield plane


def tolerations_for(seconds: int) -> list[Object]:
    return [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        for key in (NOT_READY, UNREACHABLE)
    ]


def toleration_seconds_of(pod: Object) -> dict[str, int | None]:
    return {each["key"]: each.get("tolerationSeconds") for each in pod["spec"]["tolerations"]}


def evicts(node: Object) -> bool:
    """Report whether the node has the NoExecute taint for unreachable nodes."""
    taints = value_at(node, "spec", "taints", default=[])
    return any((taint["key"], taint["effect"]) == (UNREACHABLE, "NoExecute") for taint in taints)


async def trusted_node(clusters: BoundClusters) -> str:
    """Wait until the virtual cluster considers the virtual node ready and return its name."""
    node = f"{clusters.name}-n1"
    await clusters.wait_for_virtual_node(
        node,
        lambda found: readiness(found) == "True" and untainted(NOT_READY)(found) and untainted(UNREACHABLE)(found),
    )
    return node


async def bind_pods(clusters: BoundClusters, node: str, toleration_seconds: dict[str, int]) -> None:
    """Create pods with the given toleration seconds and no grace period."""
    for name, seconds in toleration_seconds.items():
        await clusters.bind_pod(name, node, tolerations=tolerations_for(seconds), terminationGracePeriodSeconds=0)
    await clusters.wait_for_binding(lambda found: value_at(found, "status", "pods") == len(toleration_seconds))


@only_on_kubernetes(NODE_LIFECYCLE)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("silence", "toleration_seconds", "lasting"),
    [
        pytest.param(4, 1, 8, id="short"),
        pytest.param(20, 20, 120, id="two minutes", marks=pytest.mark.long),
    ],
)
async def test_safety_rule_3_silent_cluster_loses_pods_only_under_evict(
    watchful_plane: Plane,
    physical_plane: Plane,
    frail_plane: Plane,
    tmp_path_factory: pytest.TempPathFactory,
    silence: int,
    toleration_seconds: int,
    lasting: int,
) -> None:
    """Pods under Evict are evicted, which proves that pods under Hold were exposed long enough."""
    folders = [tmp_path_factory.mktemp(name) for name in ("held", "evicted", "reachable")]
    settings = {"silence_seconds": str(silence)}
    names = [f"c{silence}-hold", f"c{silence}-hold-not", f"c{silence}"]  # some names are prefixes of others
    async with (
        bound_clusters(watchful_plane, frail_plane, folders[0], name=names[0]) as held,
        bound_clusters(watchful_plane, frail_plane, folders[1], name=names[1], onPartition="Evict") as evicted,
        bound_clusters(watchful_plane, physical_plane, folders[2], name=names[2]) as reachable,
    ):
        for clusters in (held, evicted, reachable):
            await clusters.add_node(f"{clusters.name}-n1")
            await clusters.add_policy("all")
        # kube-controller-manager evicts no pod if all nodes are unreachable.
        with reachable.syncer(), evicted.syncer(**settings):
            await trusted_node(reachable)
            with held.syncer(**settings):
                node = await trusted_node(held)
                await bind_pods(held, node, {"one": toleration_seconds, "two": toleration_seconds})
                await bind_pods(evicted, await trusted_node(evicted), {"one": toleration_seconds})
                frail_plane.pause()
                await held.wait_for_virtual_node(
                    node, lambda found: readiness(found) == "Unknown", timeout=3 * silence + 20
                )
                for name in ("one", "two"):  # the tolerations are extended before the node becomes Unknown
                    pod = await held.wait_for_pod(name, bool)
                    assert toleration_seconds_of(pod) == {NOT_READY: None, UNREACHABLE: None}
                await held.wait_for_virtual_node(node, evicts, timeout=60)
                await held.bind_pod("late", node, tolerations=tolerations_for(lasting))
                await held.wait_for_pod("late", lambda found: keys.HELD_TOLERATIONS in annotations_of(found))
            with held.syncer(**settings):  # a new process that never reached the physical cluster
                limits = {"tolerations": tolerations_for(lasting), "terminationGracePeriodSeconds": 0}
                await evicted.bind_pod("witness", f"{evicted.name}-n1", **limits)
                for name in ("one", "witness"):
                    await wait_until_gone(
                        evicted.virtual, PODS, f"{evicted.name}-{name}", "default", timeout=60 + lasting
                    )
                for name in ("one", "two", "late"):
                    assert not has_deletion_timestamp(await held.wait_for_pod(name, bool))
                assert evicts(await held.wait_for_virtual_node(node))
                frail_plane.resume()
                await trusted_node(held)
                for name, seconds in {"one": toleration_seconds, "two": toleration_seconds, "late": lasting}.items():
                    pod = await held.wait_for_pod(
                        name, lambda found: keys.HELD_TOLERATIONS not in annotations_of(found)
                    )
                    assert toleration_seconds_of(pod) == {NOT_READY: seconds, UNREACHABLE: seconds}
                    assert not has_deletion_timestamp(pod)
                    assert not has_deletion_timestamp(await held.wait_for_twin(name))
                await evicted.wait_for_virtual_node(f"{evicted.name}-n1", lambda found: readiness(found) == "True")


async def test_safety_rule_8_unbinding_waits_for_cleanup_of_a_silent_cluster(
    watchful_plane: Plane, frail_plane: Plane, tmp_path: Path
) -> None:
    """A cluster that never answers again needs a forced unbinding, which the manager tests cover."""
    await install_kinds(frail_plane)
    async with bound_clusters(watchful_plane, frail_plane, tmp_path, unbindGraceSeconds=0) as clusters:
        await clusters.add_node(f"{clusters.name}-n1")
        await clusters.add_policy("all")
        await clusters.add_policy("owners", below=True)
        with clusters.syncer(silence_seconds="4") as process:
            await bind_pods(clusters, await trusted_node(clusters), {"one": 3600})
            await clusters.wait_for_twin("one")
            await clusters.wait_for_policy("owners", lambda found: value_at(found, "status", "nodes") == 1, below=True)
            frail_plane.pause()
            await clusters.virtual.delete(CLUSTER_BINDINGS, object_named(clusters.name))
            await wait_until_gone(clusters.virtual, PODS, f"{clusters.name}-one", "default")
            await clusters.wait_until_virtual_node_is_gone(f"{clusters.name}-n1")
            assert has_deletion_timestamp(await clusters.wait_for_binding(bool))
            frail_plane.resume()
            await wait_until_gone(clusters.virtual, CLUSTER_BINDINGS, clusters.name, timeout=60)
            assert await wait_for_exit(process) == 0
        assert await clusters.physical.list(PODS, clusters.mount) == []
