"""Tests of garbage collection."""

import asyncio

import pytest

from tapestry.client.client import Client
from tapestry.client.options import Propagation
from tapestry.client.watch import wait_for
from tapestry.kube.objects import Object, is_deleting, name_of, owner_reference
from tapestry.kube.resources import CONFIGMAPS, CRDS, DEPLOYMENTS, NAMESPACES, PODS, Resource

from .conftest import RunControllers
from .objects import FINALIZER, WIDGETS, define, new_map, new_namespace, new_pod, new_widget, wait_until_gone

REPLICA_SETS = Resource("apps", "v1", "ReplicaSet", "replicasets")
TEMPLATE = {
    "selector": {"matchLabels": {"app": "web"}},
    "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "nginx"}]}},
}


async def create_maps(client: Client, *maps: Object) -> list[Object]:
    return [await client.create(CONFIGMAPS, each) for each in maps]


async def wait_for_unowned(client: Client, name: str) -> None:
    def is_unowned(obj: Object | None) -> bool:
        return obj is not None and not obj["metadata"].get("ownerReferences")

    await wait_for(client, CONFIGMAPS, name, "default", until=is_unowned, timeout=10)


async def wait_for_collection(client: Client) -> None:
    """Wait until all previous changes are processed: a dependent created later is deleted."""
    [probe] = await create_maps(client, new_map("probe"))
    await create_maps(client, new_map("probed", probe))
    await client.delete(CONFIGMAPS, probe)
    await wait_until_gone(client, CONFIGMAPS, "probed", "default")


async def names(client: Client) -> set[str]:
    return {name_of(each) for each in await client.list(CONFIGMAPS, "default")} - {"kube-root-ca.crt"}


async def test_deployment_deletion_cascades_to_replica_sets_and_pods(
    client: Client, run_controllers: RunControllers
) -> None:
    async with run_controllers():
        metadata = {"name": "web", "namespace": "default"}
        deployment = await client.create(DEPLOYMENTS, {"metadata": metadata, "spec": TEMPLATE})
        owned = {**metadata, "ownerReferences": [owner_reference(deployment)]}
        replicas = await client.create(REPLICA_SETS, {"metadata": owned, "spec": TEMPLATE})
        pod = new_pod("web")
        pod["metadata"]["ownerReferences"] = [owner_reference(replicas)]
        await client.create(PODS, pod)
        await client.delete(DEPLOYMENTS, deployment)
        await wait_until_gone(client, PODS, "web", "default")
        assert await client.list(REPLICA_SETS) == []


async def test_dependents_orphaned_while_stopped_are_deleted(client: Client, run_controllers: RunControllers) -> None:
    [owner] = await create_maps(client, new_map("owner"))
    await create_maps(client, new_map("dependent", owner), new_map("free"))
    await client.delete(CONFIGMAPS, owner)
    async with run_controllers("garbage"):
        await wait_until_gone(client, CONFIGMAPS, "dependent", "default")
        assert await names(client) == {"free"}


async def test_object_with_remaining_owner_loses_absent_references(
    client: Client, run_controllers: RunControllers
) -> None:
    async with run_controllers("garbage"):
        one, two = await create_maps(client, new_map("one"), new_map("two"))
        await create_maps(client, new_map("shared", one, two))
        await client.delete(CONFIGMAPS, one)

        def is_owned_by_two(obj: Object | None) -> bool:
            return obj is not None and [each["name"] for each in obj["metadata"]["ownerReferences"]] == ["two"]

        await wait_for(client, CONFIGMAPS, "shared", "default", until=is_owned_by_two, timeout=10)
        assert await names(client) == {"two", "shared"}


async def test_recreated_owner_does_not_count(client: Client, run_controllers: RunControllers) -> None:
    [owner] = await create_maps(client, new_map("owner"))
    await create_maps(client, new_map("dependent", owner))
    await client.delete(CONFIGMAPS, owner)
    await create_maps(client, new_map("owner"))
    async with run_controllers("garbage"):
        await wait_until_gone(client, CONFIGMAPS, "dependent", "default")
        assert await names(client) == {"owner"}


async def test_owner_in_another_namespace_does_not_count(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("garbage"):
        await client.create(NAMESPACES, new_namespace("x"))
        [owner] = await create_maps(client, new_map("owner", namespace="x"))
        await create_maps(client, new_map("stray", owner))
        await wait_until_gone(client, CONFIGMAPS, "stray", "default")
        assert name_of(await client.get(CONFIGMAPS, "owner", "x")) == "owner"


async def test_owner_of_unserved_kind_counts_as_present(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("garbage"):
        unknown = {"apiVersion": "nowhere.example.com/v1", "kind": "Thing", "name": "t", "uid": "u"}
        await create_maps(client, new_map("unknown-owner", ownerReferences=[unknown]))
        await wait_for_collection(client)
        assert await names(client) == {"unknown-owner"}


async def test_foreground_deletion_waits_for_blocking_dependents(
    client: Client, run_controllers: RunControllers
) -> None:
    async with run_controllers("garbage"):
        [owner] = await create_maps(client, new_map("owner"))
        [middle] = await create_maps(client, new_map("middle", owner))
        await create_maps(client, new_map("low", middle, finalizers=[FINALIZER]))
        await client.delete(CONFIGMAPS, owner, propagation=Propagation.FOREGROUND)
        await wait_for(
            client, CONFIGMAPS, "low", "default", until=lambda obj: obj is not None and is_deleting(obj), timeout=10
        )
        await wait_for_collection(client)
        assert await names(client) == {"owner", "middle", "low"}
        low = await client.get(CONFIGMAPS, "low", "default")
        await client.patch(CONFIGMAPS, low, {"metadata": {"finalizers": None}})
        await wait_until_gone(client, CONFIGMAPS, "owner", "default")
        assert await names(client) == set()


async def test_foreground_deletion_ignores_nonblocking_dependents(
    client: Client, run_controllers: RunControllers
) -> None:
    async with run_controllers("garbage"):
        [owner] = await create_maps(client, new_map("owner"))
        await create_maps(client, new_map("low", owner, blocking=False, finalizers=[FINALIZER]))
        await client.delete(CONFIGMAPS, owner, propagation=Propagation.FOREGROUND)
        await wait_until_gone(client, CONFIGMAPS, "owner", "default")
        assert await names(client) == {"low"}


async def test_orphans_remain_without_owner(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("garbage"):
        [owner] = await create_maps(client, new_map("owner"))
        await create_maps(client, new_map("a", owner), new_map("b", owner))
        await client.delete(CONFIGMAPS, owner, propagation=Propagation.ORPHAN)
        await wait_until_gone(client, CONFIGMAPS, "owner", "default")
        await wait_for_unowned(client, "a")
        await wait_for_unowned(client, "b")
        await wait_for_collection(client)
        assert await names(client) == {"a", "b"}


async def test_foreground_deletion_breaks_owner_cycle(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("garbage"):
        [one] = await create_maps(client, new_map("one"))
        [two] = await create_maps(client, new_map("two", one))
        cycle = {"metadata": {"ownerReferences": [owner_reference(two, controller=False)]}}
        one = await client.patch(CONFIGMAPS, one, cycle)
        await wait_for_collection(client)
        await client.delete(CONFIGMAPS, one, propagation=Propagation.FOREGROUND)
        await wait_until_gone(client, CONFIGMAPS, "two", "default")
        await wait_until_gone(client, CONFIGMAPS, "one", "default")
        assert await names(client) == set()


async def test_custom_resources_take_part_once_defined(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers():
        definition = await define(client)
        widget = await client.create(WIDGETS, new_widget("w"))
        await create_maps(client, new_map("a", widget), new_map("b", definition))
        await client.delete(WIDGETS, widget)
        await wait_until_gone(client, CONFIGMAPS, "a", "default")
        widget = await client.create(WIDGETS, new_widget("w"))
        await create_maps(client, new_map("a", widget))
        await client.delete(CRDS, definition)
        await wait_until_gone(client, CONFIGMAPS, "a", "default")
        await wait_until_gone(client, CONFIGMAPS, "b", "default")
        assert await names(client) == set()


@pytest.mark.parametrize("policy", [Propagation.BACKGROUND, Propagation.FOREGROUND])
async def test_large_tree_is_deleted_completely(
    client: Client, run_controllers: RunControllers, policy: Propagation
) -> None:
    async with run_controllers("garbage"):
        [owner] = await create_maps(client, new_map("owner"))
        async with asyncio.TaskGroup() as group:
            for number in range(100):
                group.create_task(client.create(CONFIGMAPS, new_map(f"m{number}", owner)))
        await client.delete(CONFIGMAPS, owner, propagation=policy)
        async with asyncio.TaskGroup() as group:
            for number in range(100):
                group.create_task(wait_until_gone(client, CONFIGMAPS, f"m{number}", "default"))
        await wait_until_gone(client, CONFIGMAPS, "owner", "default")
        assert await names(client) == set()
