"""Safety rule 8, its second half: what a forced unbinding left below goes when the cluster is back."""

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


async def put_below(world: World, name: str, labels: Object, server: str = EAST) -> None:
    """One object of each kind in the mount namespace."""
    client = Client(world.clusters[server].connect())
    for resource in OWNED_RESOURCES:
        place = "leased" if resource.namespaced else None
        await client.create(resource, specimen(resource, name, place, labels=labels))


def below(world: World, server: str = EAST) -> set[str]:
    """The names of what there is, but for namespaces."""
    return {name_of(obj) for obj in world.clusters[server].dump() if obj["kind"] != NAMESPACES.kind}


async def left_by_force(world: World, server: str = EAST) -> Object:
    """A binding `east` that had something below, and ended while its cluster was out of reach; as it was."""
    binding = await world.join("east", server)
    await put_below(world, "ours", await owner_labels(world, binding))
    await world.set_finalizers("east", *BOTH)
    world.silent = world.clusters.pop(server)
    await world.annotate("east", keys.FORCE_UNBIND, "true")
    await world.unbind("east")
    await world.is_gone("east")
    await world.wait(1)
    return binding  # type: ignore[no-any-return]


async def secret(world: World) -> Object:
    return await world.client.get(SECRETS, "east", SYSTEM)  # type: ignore[no-any-return]


async def test_safety_rule_8_what_was_left_behind_goes_when_the_cluster_returns(world: World) -> None:
    async with world.running():
        binding = await left_by_force(world)
        (leftover,) = leftovers_in(await secret(world))
        assert (leftover.binding, leftover.uid, leftover.mount_namespace) == ("east", uid_of(binding), "leased")
        assert leftover.identity == binding["status"]["identity"]
        world.clusters[EAST] = world.silent
        await put_below(world, "foreign", {keys.MANAGED_BY: keys.TAPESTRY})
        await world.wait(310)
        assert below(world) == {"foreign"}
        assert annotations_of(await secret(world)) == {}
        assert (await world.reasons())[-1] == "LeftoversRemoved"
        told = next(event for event in await world.client.list(EVENTS) if event["reason"] == "LeftoversRemoved")
        assert told["involvedObject"]["kind"] == "Secret"
        assert f"ClusterBinding east ({uid_of(binding)}) left in namespace leased" in told["message"]


async def test_safety_rule_8_a_silent_cluster_is_asked_less_and_less_but_every_five_minutes(world: World) -> None:
    async with world.running():
        await left_by_force(world)
        await world.wait(3600)
        world.asked.clear()
        await world.wait(3600)
        assert 10 <= len(world.asked) <= 13


async def test_safety_rule_8_it_is_remembered_by_whichever_manager_comes_next(world: World) -> None:
    async with world.running():
        await left_by_force(world)
    world.clusters[EAST] = world.silent
    async with world.running():
        await world.wait(10)
        assert below(world) == set()


async def test_safety_rule_8_another_cluster_under_the_same_address_is_left_alone(world: World) -> None:
    async with world.running():
        binding = await left_by_force(world)
        await world.add_cluster(EAST)
        await put_below(world, "ours", await owner_labels(world, binding))
        await world.wait(3600)
        assert below(world) == {"ours"}
        assert len(leftovers_in(await secret(world))) == 1
        world.clusters[EAST] = world.silent
        await world.wait(310)
        assert below(world) == set()


async def test_safety_rule_8_a_cluster_that_joined_again_keeps_what_it_has_now(world: World) -> None:
    async with world.running():
        await left_by_force(world)
        again = await world.add_binding("east")
        await world.reaches("east", "Failed", "ConnectivityFailed")
        world.clusters[EAST] = world.silent
        await put_below(world, "new", await owner_labels(world, again))
        await world.reaches("east", "Ready")
        await world.wait(310)
        assert below(world) == {"new"}
        assert annotations_of(await secret(world)) == {}


async def test_safety_rule_8_two_lives_of_one_binding_are_both_remembered(world: World) -> None:
    async with world.running():
        await left_by_force(world)
        east = world.clusters[EAST] = world.silent
        client = Client(east.connect())
        await client.patch(PODS, object_named("ours", "leased"), {"metadata": {"finalizers": ["example.com/theirs"]}})
        second = await world.add_binding("east")
        await world.reaches("east", "Ready")
        await put_below(world, "new", await owner_labels(world, second))
        del world.clusters[EAST]
        await world.annotate("east", keys.FORCE_UNBIND, "true")
        await world.unbind("east")
        await world.is_gone("east")
        assert [each.uid for each in leftovers_in(await secret(world))][1:] == [uid_of(second)]
        await client.patch(PODS, object_named("ours", "leased"), {"metadata": {"finalizers": []}})
        world.clusters[EAST] = east
        await world.wait(310)
        assert below(world) == set()
        assert annotations_of(await secret(world)) == {}


async def test_what_join_made_for_the_binding_alone_goes_with_the_mark(world: World) -> None:
    async with world.running():
        binding = await left_by_force(world)
        made_by_join = {**await owner_labels(world, binding), keys.CLUSTER_BINDING: "east"}
        await world.client.patch(SECRETS, object_named("east", SYSTEM), {"metadata": {"labels": made_by_join}})
        world.clusters[EAST] = world.silent
        await world.wait(310)
        with pytest.raises(NotFound):
            await secret(world)


async def test_a_secret_that_join_made_stays_where_a_binding_uses_it(world: World) -> None:
    async with world.running():
        binding = await left_by_force(world)
        made_by_join = {**await owner_labels(world, binding), keys.CLUSTER_BINDING: "east"}
        await world.client.patch(SECRETS, object_named("east", SYSTEM), {"metadata": {"labels": made_by_join}})
        await world.add_binding("again", secretRef={"name": "east", "namespace": SYSTEM})
        world.clusters[EAST] = world.silent
        await world.wait(310)
        assert below(world) == set()
        assert annotations_of(await secret(world)) == {}


async def test_nothing_is_removed_before_the_binding_is_gone(world: World) -> None:
    async with world.running():
        binding = await world.join("east")
        await put_below(world, "ours", await owner_labels(world, binding))
        await world.set_finalizers("east", *BOTH, "example.com/theirs")
        await world.annotate("east", keys.FORCE_UNBIND, "true")
        await world.unbind("east")
        await world.wait(3600)
        assert len(leftovers_in(await secret(world))) == 1
        assert below(world) == {"ours"}
        await world.set_finalizers("east")
        await world.wait(10)
        assert below(world) == set()


async def test_what_lingers_is_looked_at_until_it_is_gone(world: World) -> None:
    async with world.running():
        binding = await world.join("east")
        await put_below(world, "ours", await owner_labels(world, binding))
        client = Client(world.clusters[EAST].connect())
        await client.patch(PODS, object_named("ours", "leased"), {"metadata": {"finalizers": ["example.com/theirs"]}})
        await world.annotate("east", keys.FORCE_UNBIND, "true")
        await world.unbind("east")
        await world.wait(600)
        assert [obj["kind"] for obj in world.clusters[EAST].dump() if name_of(obj) == "ours"] == ["Pod"]
        await client.patch(PODS, object_named("ours", "leased"), {"metadata": {"finalizers": []}})
        await world.wait(10)
        assert annotations_of(await secret(world)) == {}


async def test_a_binding_that_never_knew_its_cluster_leaves_nothing(world: World) -> None:
    async with world.running():
        await world.add_secret("east", {"kubeconfig": world.kubeconfig(EAST)})
        await world.add_binding("east")
        await world.reaches("east", "Failed", "ConnectivityFailed")
        await world.annotate("east", keys.FORCE_UNBIND, "true")
        await world.unbind("east")
        await world.is_gone("east")
        assert annotations_of(await secret(world)) == {}


async def test_an_unbinding_by_force_ends_without_its_secret_too(world: World) -> None:
    async with world.running():
        await world.join("east")
        await world.client.delete(SECRETS, object_named("east", SYSTEM))
        await world.annotate("east", keys.FORCE_UNBIND, "true")
        await world.unbind("east")
        await world.is_gone("east")
        assert await world.client.list(CLUSTER_BINDINGS) == []


@pytest.mark.parametrize("text", ["", "nonsense", "{}", '["east"]', '[{"binding": "east"}]'])
def test_a_mark_that_nobody_can_read_says_nothing(text: str) -> None:
    assert leftovers_in({"metadata": {"annotations": {keys.LEFT_BEHIND: text}}}) == []


def test_nothing_left_is_no_mark() -> None:
    assert leftovers_patch([]) == {"metadata": {"annotations": {keys.LEFT_BEHIND: None}}}
    assert leftovers_in(None) == []
