"""Garbage: what no owner is left for goes, and nothing else."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.client.client import Client
from tapestry.client.options import Propagation
from tapestry.client.waiting import wait_for
from tapestry.controlplane.metadata_informers import metadata_only
from tapestry.kube.objects import Object, is_deleting, name_of, owner_reference
from tapestry.kube.resources import CONFIGMAPS, CRDS, DEPLOYMENTS, NAMESPACES, PODS, Resource

from .conftest import Beside
from .objects import HELD, WIDGETS, a_map, a_namespace, a_pod, a_widget, define, wait_until_gone

REPLICA_SETS = Resource("apps", "v1", "ReplicaSet", "replicasets")
TEMPLATE = {
    "selector": {"matchLabels": {"app": "web"}},
    "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "nginx"}]}},
}


async def made(client: Client, *maps: Object) -> list[Object]:
    return [await client.create(CONFIGMAPS, each) for each in maps]


async def wait_for_unowned(client: Client, name: str) -> None:
    def is_unowned(obj: Object | None) -> bool:
        return obj is not None and not obj["metadata"].get("ownerReferences")

    await wait_for(client, CONFIGMAPS, name, "default", until=is_unowned, timeout=10)


async def settled(client: Client) -> None:
    """Everything that was there before has been judged: a chain that came later is gone."""
    [probe] = await made(client, a_map("probe"))
    await made(client, a_map("probed", probe))
    await client.delete(CONFIGMAPS, probe)
    await wait_until_gone(client, CONFIGMAPS, "probed", "default")


async def names(client: Client) -> set[str]:
    return {name_of(each) for each in await client.list(CONFIGMAPS, "default")} - {"kube-root-ca.crt"}


async def test_a_replica_set_and_its_pods_go_after_their_deployment(client: Client, beside: Beside) -> None:
    async with beside():
        metadata = {"name": "web", "namespace": "default"}
        deployment = await client.create(DEPLOYMENTS, {"metadata": metadata, "spec": TEMPLATE})
        owned = {**metadata, "ownerReferences": [owner_reference(deployment)]}
        replicas = await client.create(REPLICA_SETS, {"metadata": owned, "spec": TEMPLATE})
        pod = a_pod("web")
        pod["metadata"]["ownerReferences"] = [owner_reference(replicas)]
        await client.create(PODS, pod)
        await client.delete(DEPLOYMENTS, deployment)
        await wait_until_gone(client, PODS, "web", "default")
        assert await client.list(REPLICA_SETS) == []


async def test_what_was_left_behind_while_nobody_looked_goes(client: Client, beside: Beside) -> None:
    [owner] = await made(client, a_map("owner"))
    await made(client, a_map("left", owner), a_map("free"))
    await client.delete(CONFIGMAPS, owner)
    async with beside("garbage"):
        await wait_until_gone(client, CONFIGMAPS, "left", "default")
        assert await names(client) == {"free"}


async def test_an_object_with_an_owner_left_stays_and_forgets_the_others(client: Client, beside: Beside) -> None:
    async with beside("garbage"):
        one, two = await made(client, a_map("one"), a_map("two"))
        await made(client, a_map("shared", one, two))
        await client.delete(CONFIGMAPS, one)

        def forgot(obj: Object | None) -> bool:
            return obj is not None and [each["name"] for each in obj["metadata"]["ownerReferences"]] == ["two"]

        await wait_for(client, CONFIGMAPS, "shared", "default", until=forgot, timeout=10)
        assert await names(client) == {"two", "shared"}


async def test_a_namesake_of_an_owner_is_none(client: Client, beside: Beside) -> None:
    [owner] = await made(client, a_map("owner"))
    await made(client, a_map("left", owner))
    await client.delete(CONFIGMAPS, owner)
    await made(client, a_map("owner"))
    async with beside("garbage"):
        await wait_until_gone(client, CONFIGMAPS, "left", "default")
        assert await names(client) == {"owner"}


async def test_nobody_owns_across_namespaces(client: Client, beside: Beside) -> None:
    async with beside("garbage"):
        await client.create(NAMESPACES, a_namespace("x"))
        [owner] = await made(client, a_map("owner", namespace="x"))
        await made(client, a_map("stray", owner))
        await wait_until_gone(client, CONFIGMAPS, "stray", "default")
        assert name_of(await client.get(CONFIGMAPS, "owner", "x")) == "owner"


async def test_an_owner_of_a_kind_that_nobody_serves_is_not_known_to_be_gone(client: Client, beside: Beside) -> None:
    async with beside("garbage"):
        unknown = {"apiVersion": "nowhere.example.com/v1", "kind": "Thing", "name": "t", "uid": "u"}
        await made(client, a_map("kept", ownerReferences=[unknown]))
        await settled(client)
        assert await names(client) == {"kept"}


async def test_in_the_foreground_an_owner_goes_after_what_blocks_it(client: Client, beside: Beside) -> None:
    async with beside("garbage"):
        [owner] = await made(client, a_map("owner"))
        [middle] = await made(client, a_map("middle", owner))
        await made(client, a_map("low", middle, finalizers=[HELD]))
        await client.delete(CONFIGMAPS, owner, propagation=Propagation.FOREGROUND)
        await wait_for(
            client, CONFIGMAPS, "low", "default", until=lambda obj: obj is not None and is_deleting(obj), timeout=10
        )
        await settled(client)
        assert await names(client) == {"owner", "middle", "low"}
        low = await client.get(CONFIGMAPS, "low", "default")
        await client.patch(CONFIGMAPS, low, {"metadata": {"finalizers": None}})
        await wait_until_gone(client, CONFIGMAPS, "owner", "default")
        assert await names(client) == set()


async def test_what_does_not_block_its_owner_is_not_waited_for(client: Client, beside: Beside) -> None:
    async with beside("garbage"):
        [owner] = await made(client, a_map("owner"))
        await made(client, a_map("low", owner, blocking=False, finalizers=[HELD]))
        await client.delete(CONFIGMAPS, owner, propagation=Propagation.FOREGROUND)
        await wait_until_gone(client, CONFIGMAPS, "owner", "default")
        assert await names(client) == {"low"}


async def test_orphans_stay_and_name_no_owner(client: Client, beside: Beside) -> None:
    async with beside("garbage"):
        [owner] = await made(client, a_map("owner"))
        await made(client, a_map("a", owner), a_map("b", owner))
        await client.delete(CONFIGMAPS, owner, propagation=Propagation.ORPHAN)
        await wait_until_gone(client, CONFIGMAPS, "owner", "default")
        await wait_for_unowned(client, "a")
        await wait_for_unowned(client, "b")
        await settled(client)
        assert await names(client) == {"a", "b"}


async def test_a_circle_of_owners_can_be_deleted_in_the_foreground(client: Client, beside: Beside) -> None:
    async with beside("garbage"):
        [one] = await made(client, a_map("one"))
        [two] = await made(client, a_map("two", one))
        closed = {"metadata": {"ownerReferences": [owner_reference(two, controller=False)]}}
        one = await client.patch(CONFIGMAPS, one, closed)
        await settled(client)
        await client.delete(CONFIGMAPS, one, propagation=Propagation.FOREGROUND)
        await wait_until_gone(client, CONFIGMAPS, "two", "default")
        await wait_until_gone(client, CONFIGMAPS, "one", "default")
        assert await names(client) == set()


async def test_custom_resources_own_and_are_owned_as_soon_as_they_are_defined(client: Client, beside: Beside) -> None:
    async with beside():
        definition = await define(client)
        widget = await client.create(WIDGETS, a_widget("w"))
        await made(client, a_map("a", widget), a_map("b", definition))
        await client.delete(WIDGETS, widget)
        await wait_until_gone(client, CONFIGMAPS, "a", "default")
        widget = await client.create(WIDGETS, a_widget("w"))
        await made(client, a_map("a", widget))
        await client.delete(CRDS, definition)
        await wait_until_gone(client, CONFIGMAPS, "a", "default")
        await wait_until_gone(client, CONFIGMAPS, "b", "default")
        assert await names(client) == set()


@pytest.mark.parametrize("policy", [Propagation.BACKGROUND, Propagation.FOREGROUND])
async def test_a_large_family_goes_whole(client: Client, beside: Beside, policy: Propagation) -> None:
    async with beside("garbage"):
        [owner] = await made(client, a_map("owner"))
        async with asyncio.TaskGroup() as group:
            for number in range(100):
                group.create_task(client.create(CONFIGMAPS, a_map(f"m{number}", owner)))
        await client.delete(CONFIGMAPS, owner, propagation=policy)
        async with asyncio.TaskGroup() as group:
            for number in range(100):
                group.create_task(wait_until_gone(client, CONFIGMAPS, f"m{number}", "default"))
        await wait_until_gone(client, CONFIGMAPS, "owner", "default")
        assert await names(client) == set()


@given(st.dictionaries(st.text(min_size=1, max_size=8), st.integers(), max_size=5))
@settings(max_examples=20)
def test_of_an_object_only_what_ownership_is_about_is_kept(data: dict[str, int]) -> None:
    metadata = {"name": "a", "namespace": "b", "uid": "c", "resourceVersion": "1"}
    owners = {"ownerReferences": [{"uid": "o"}], "finalizers": ["f"], "deletionTimestamp": "t"}
    bulk = {f"x{key}": value for key, value in data.items()}
    assert metadata_only({"metadata": {**metadata, **owners, **bulk}, "spec": data}) == {
        "metadata": {**metadata, **owners}
    }
