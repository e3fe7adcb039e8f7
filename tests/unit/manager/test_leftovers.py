"""Safety rule 8, second half: leftovers of a forced unbinding are deleted when the cluster is reachable again."""

from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, binding_of
from tapestry.apis.ownership import OWNED_RESOURCES
from tapestry.client.client import Client
from tapestry.controller.testing import specimen
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, annotations_of, name_of, object_named, uid_of
from tapestry.kube.resources import EVENTS, NAMESPACES, PODS, SECRETS
from tapestry.manager.leftovers import leftovers_in, leftovers_patch

EAST = "https://east.example"
SYSTEM = keys.SYSTEM_NAMESPACE
BOTH = (keys.MANAGER_FINALIZER, keys.SYNCER_FINALIZER)

World = Any  # of conftest.py


async def owner_labels(world: World, binding: Object) -> dict[str, str]:
    system = await world.client.get(NAMESPACES, "kube-system")
    return binding_of(binding, uid_of(system)).owner_labels()


async def add_physical_objects(world: World, name: str, labels: Object, server: str = EAST) -> None:
    """Create one object of each kind in the mount namespace."""
    client = Client(world.clusters[server].connect())
    for resource in OWNED_RESOURCES:
        place = "leased" if resource.namespaced else None
        await client.create(resource, specimen(resource, name, place, labels=labels))


def physical_names(world: World, server: str = EAST) -> set[str]:
    """Return the names of all objects except namespaces."""
    return {name_of(obj) for obj in world.clusters[server].dump() if obj["kind"] != NAMESPACES.kind}


async def force_unbind(world: World, server: str = EAST) -> Object:
    """Force the unbinding of `east` while its cluster is unreachable and has objects.  Return the binding as it was."""
    binding = await world.join("east", server)
    await add_physical_objects(world, "ours", await owner_labels(world, binding))
    await world.set_finalizers("east", *BOTH)
    world.silent = world.clusters.pop(server)
    await world.annotate("east", keys.FORCE_UNBIND, "true")
    await world.unbind("east")
    await world.is_gone("east")
    await world.wait(1)
    return binding  # type: ignore[no-any-return]


async def secret(world: World) -> Object:
    return await world.client.get(SECRETS, "east", SYSTEM)  # type: ignore[no-any-return]


async def test_safety_rule_8_leftovers_are_deleted_when_cluster_returns(world: World) -> None:
    async with world.running():
        binding = await force_unbind(world)
        (leftover,) = leftovers_in(await secret(world))
        assert (leftover.binding, leftover.uid, leftover.mount_namespace) == ("east", uid_of(binding), "leased")
        assert leftover.identity == binding["status"]["identity"]
        world.clusters[EAST] = world.silent
        await add_physical_objects(world, "foreign", {keys.MANAGED_BY: keys.TAPESTRY})
        await world.wait(310)
        assert physical_names(world) == {"foreign"}
        assert annotations_of(await secret(world)) == {}
        assert (await world.reasons())[-1] == "LeftoversRemoved"
        removal = next(event for event in await world.client.list(EVENTS) if event["reason"] == "LeftoversRemoved")
        assert removal["involvedObject"]["kind"] == "Secret"
        assert f"ClusterBinding east ({uid_of(binding)}) in namespace leased" in removal["message"]


async def test_safety_rule_8_unreachable_cluster_is_retried_with_backoff(world: World) -> None:
    async with world.running():
        await force_unbind(world)
        await world.wait(3600)
        world.connected_servers.clear()
        await world.wait(3600)
        assert 10 <= len(world.connected_servers) <= 13


async def test_safety_rule_8_leftovers_survive_a_manager_restart(world: World) -> None:
    async with world.running():
        await force_unbind(world)
    world.clusters[EAST] = world.silent
    async with world.running():
        await world.wait(10)
        assert physical_names(world) == set()


async def test_safety_rule_8_different_cluster_at_same_address_is_untouched(world: World) -> None:
    async with world.running():
        binding = await force_unbind(world)
        await world.add_cluster(EAST)
        await add_physical_objects(world, "ours", await owner_labels(world, binding))
        await world.wait(3600)
        assert physical_names(world) == {"ours"}
        assert len(leftovers_in(await secret(world))) == 1
        world.clusters[EAST] = world.silent
        await world.wait(310)
        assert physical_names(world) == set()


async def test_safety_rule_8_rejoined_cluster_keeps_its_new_objects(world: World) -> None:
    async with world.running():
        await force_unbind(world)
        again = await world.add_binding("east")
        await world.reaches("east", "Failed", "ConnectivityFailed")
        world.clusters[EAST] = world.silent
        await add_physical_objects(world, "new", await owner_labels(world, again))
        await world.reaches("east", "Ready")
        await world.wait(310)
        assert physical_names(world) == {"new"}
        assert annotations_of(await secret(world)) == {}


async def test_safety_rule_8_leftovers_of_two_bindings_are_recorded(world: World) -> None:
    async with world.running():
        await force_unbind(world)
        east = world.clusters[EAST] = world.silent
        client = Client(east.connect())
        await client.patch(PODS, object_named("ours", "leased"), {"metadata": {"finalizers": ["example.com/theirs"]}})
        second = await world.add_binding("east")
        await world.reaches("east", "Ready")
        await add_physical_objects(world, "new", await owner_labels(world, second))
        del world.clusters[EAST]
        await world.annotate("east", keys.FORCE_UNBIND, "true")
        await world.unbind("east")
        await world.is_gone("east")
        assert [each.uid for each in leftovers_in(await secret(world))][1:] == [uid_of(second)]
        await client.patch(PODS, object_named("ours", "leased"), {"metadata": {"finalizers": []}})
        world.clusters[EAST] = east
        await world.wait(310)
        assert physical_names(world) == set()
        assert annotations_of(await secret(world)) == {}


async def test_secret_created_by_join_is_deleted_with_annotation(world: World) -> None:
    async with world.running():
        binding = await force_unbind(world)
        made_by_join = {**await owner_labels(world, binding), keys.CLUSTER_BINDING: "east"}
        await world.client.patch(SECRETS, object_named("east", SYSTEM), {"metadata": {"labels": made_by_join}})
        world.clusters[EAST] = world.silent
        await world.wait(310)
        with pytest.raises(NotFound):
            await secret(world)


async def test_secret_used_by_a_binding_remains(world: World) -> None:
    async with world.running():
        binding = await force_unbind(world)
        made_by_join = {**await owner_labels(world, binding), keys.CLUSTER_BINDING: "east"}
        await world.client.patch(SECRETS, object_named("east", SYSTEM), {"metadata": {"labels": made_by_join}})
        await world.add_binding("again", secretRef={"name": "east", "namespace": SYSTEM})
        world.clusters[EAST] = world.silent
        await world.wait(310)
        assert physical_names(world) == set()
        assert annotations_of(await secret(world)) == {}


async def test_nothing_is_deleted_while_the_binding_exists(world: World) -> None:
    async with world.running():
        binding = await world.join("east")
        await add_physical_objects(world, "ours", await owner_labels(world, binding))
        await world.set_finalizers("east", *BOTH, "example.com/theirs")
        await world.annotate("east", keys.FORCE_UNBIND, "true")
        await world.unbind("east")
        await world.wait(3600)
        assert len(leftovers_in(await secret(world))) == 1
        assert physical_names(world) == {"ours"}
        await world.set_finalizers("east")
        await world.wait(10)
        assert physical_names(world) == set()


async def test_terminating_leftovers_are_checked_until_deleted(world: World) -> None:
    async with world.running():
        binding = await world.join("east")
        await add_physical_objects(world, "ours", await owner_labels(world, binding))
        client = Client(world.clusters[EAST].connect())
        await client.patch(PODS, object_named("ours", "leased"), {"metadata": {"finalizers": ["example.com/theirs"]}})
        await world.annotate("east", keys.FORCE_UNBIND, "true")
        await world.unbind("east")
        await world.wait(600)
        assert [obj["kind"] for obj in world.clusters[EAST].dump() if name_of(obj) == "ours"] == ["Pod"]
        await client.patch(PODS, object_named("ours", "leased"), {"metadata": {"finalizers": []}})
        await world.wait(10)
        assert annotations_of(await secret(world)) == {}


async def test_binding_without_identity_leaves_nothing(world: World) -> None:
    async with world.running():
        await world.add_secret("east", {"kubeconfig": world.kubeconfig(EAST)})
        await world.add_binding("east")
        await world.reaches("east", "Failed", "ConnectivityFailed")
        await world.annotate("east", keys.FORCE_UNBIND, "true")
        await world.unbind("east")
        await world.is_gone("east")
        assert annotations_of(await secret(world)) == {}


async def test_forced_unbind_works_without_the_secret(world: World) -> None:
    async with world.running():
        await world.join("east")
        await world.client.delete(SECRETS, object_named("east", SYSTEM))
        await world.annotate("east", keys.FORCE_UNBIND, "true")
        await world.unbind("east")
        await world.is_gone("east")
        assert await world.client.list(CLUSTER_BINDINGS) == []


@pytest.mark.parametrize("text", ["", "nonsense", "{}", '["east"]', '[{"binding": "east"}]'])
def test_invalid_annotation_counts_as_empty(text: str) -> None:
    assert leftovers_in({"metadata": {"annotations": {keys.LEFT_BEHIND: text}}}) == []


def test_no_leftovers_remove_the_annotation() -> None:
    assert leftovers_patch([]) == {"metadata": {"annotations": {keys.LEFT_BEHIND: None}}}
    assert leftovers_in(None) == []
