"""Total limits of a binding: the share of each node, and its stability."""

import asyncio
from dataclasses import replace
from time import process_time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from tapestry.apis.policies import POLICIES, TotalLimit
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.objects import name_of, object_named, value_at
from tapestry.kube.quantity import ResourceList, parse_quantity
from tapestry.kube.resources import NODES
from tapestry.syncer.leasing import LeaseRules, PolicySide
from tapestry.syncer.total_limits import ShareRequest, combined_limits, node_shares

from .test_leasing import at, new_policy
from .world import MAPPED, World, new_world, phase

CLAIMS = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=3),
    st.builds(ShareRequest, st.integers(0, 50), st.none() | st.integers(0, 60), st.integers(0, 60)),
    max_size=12,
)


def changed(before: dict[str, int], after: dict[str, int]) -> int:
    return sum(before.get(name) != share for name, share in after.items())


def with_previous(shares: dict[str, int], weights: dict[str, int]) -> dict[str, ShareRequest]:
    return {name: ShareRequest(weight, shares.get(name)) for name, weight in weights.items()}


@given(st.integers(-5, 400), CLAIMS)
@example(-1, {"a": ShareRequest(0)})
def test_shares_sum_to_total_or_all_capacity(total: int, claims: dict[str, ShareRequest]) -> None:
    shares = node_shares(total, claims)
    assert sum(shares.values()) == min(max(total, 0), sum(claim.weight for claim in claims.values()))
    assert all(0 <= shares[name] <= claim.weight for name, claim in claims.items())


@given(st.integers(0, 400), CLAIMS)
def test_division_is_stable_without_changes(total: int, claims: dict[str, ShareRequest]) -> None:
    shares = node_shares(total, claims)
    again = {
        name: ShareRequest(claim.weight, shares[name], min(claim.used, shares[name])) for name, claim in claims.items()
    }
    assert node_shares(total, again) == shares


@given(st.integers(0, 400), CLAIMS)
def test_share_covers_held_amounts_within_total(total: int, claims: dict[str, ShareRequest]) -> None:
    if sum(claim.least for claim in claims.values()) <= total:
        shares = node_shares(total, claims)
        assert all(shares[name] >= claim.least for name, claim in claims.items())


def test_shares_use_largest_remainder() -> None:
    assert node_shares(10, {"a": ShareRequest(10), "b": ShareRequest(20), "c": ShareRequest(5)}) == {
        "a": 3,
        "b": 6,
        "c": 1,
    }
    assert node_shares(4, {name: ShareRequest(8) for name in "abcde"}) == {"a": 1, "b": 1, "c": 1, "d": 1, "e": 0}


@pytest.mark.parametrize("change", ["a node comes", "a node goes", "a foreign pod comes", "the policy changes little"])
def test_one_change_among_thousand_changes_few_shares(change: str) -> None:
    weights = {f"n{number}": 64_000 for number in range(1000)}
    total = 10_000_000
    shares = node_shares(total, {name: ShareRequest(weight) for name, weight in weights.items()})
    if change == "a node comes":
        weights["new"] = 64_000
    elif change == "a node goes":
        del weights["n7"]
    elif change == "a foreign pod comes":
        weights["n7"] -= 4_000
    else:
        total += 5_000
    start = process_time()
    after = node_shares(total, with_previous(shares, weights))
    assert process_time() - start < 1
    assert sum(after.values()) == total
    assert changed(shares, after) <= 15


def test_adding_nodes_one_by_one_writes_few() -> None:
    weights: dict[str, int] = {}
    shares: dict[str, int] = {}
    writes = 0
    for number in range(300):
        weights[f"n{number}"] = 64_000
        after = node_shares(640_000, with_previous(shares, weights))
        writes += changed(shares, after)
        shares = after
    assert writes <= 300 * 40


def test_generous_policy_and_smaller_side_count() -> None:
    def with_total(side: PolicySide, cpu: str, hours: str = "") -> object:
        found = new_policy(f"p{cpu}", hours, side=side)
        return replace(found, spec=structs.replace(found.spec, total_limits=(TotalLimit("cpu", cpu),)))

    operator = [with_total(PolicySide.OPERATOR, "10"), with_total(PolicySide.OPERATOR, "30", "22:00-06:00")]
    owner = [with_total(PolicySide.OWNER, "20"), new_policy("q", side=PolicySide.OWNER)]
    rules = LeaseRules(operator, owner, new_policy().selector)  # type: ignore[arg-type]
    assert combined_limits(rules, at("12:00")) == {"cpu": parse_quantity("10")}
    assert combined_limits(rules, at("23:00")) == {"cpu": parse_quantity("20")}


# -- a whole syncer


async def allocatable(world: World, resource: str = "cpu") -> dict[str, str]:
    return {
        name_of(node): value_at(node, "status", "allocatable", resource) for node in await world.virtual.list(NODES)
    }


async def set_total(world: World, cpu: str | None) -> None:
    limits = [{"resource": "cpu", "quantity": cpu}] if cpu else []
    policy = await world.virtual.get(POLICIES, "east-all")
    await world.virtual.patch(POLICIES, policy, {"spec": {"totalLimits": limits}})
    await asyncio.sleep(5)


def amounts_written(world: World) -> int:
    """Return how often the amounts of a virtual node were written."""
    return sum("/nodes/" in each.path and b"allocatable" in (each.body or b"") for each in world.up.requests)


TOTAL = {"totalLimits": [{"resource": "cpu", "quantity": "4"}, {"resource": "pods", "quantity": 5}]}


@in_virtual_time
async def test_total_is_divided_among_virtual_nodes() -> None:
    world = await new_world(policy=TOTAL)
    await world.add_node("n2", cpu="12")
    async with world.syncer():
        await asyncio.sleep(5)
        assert await allocatable(world) == {"vnode-east-n1": "1", "vnode-east-n2": "3"}
        assert sorted((await allocatable(world, "pods")).values()) == ["2", "3"]
        await world.add_node("n3", cpu="16")
        await asyncio.sleep(5)
        found = await allocatable(world)
        assert sum(parse_quantity(amount).nano for amount in found.values()) == parse_quantity("4").nano
        assert parse_quantity(found["vnode-east-n3"]) >= parse_quantity("1800m")


@in_virtual_time
async def test_pods_stay_within_total_without_evictions() -> None:
    world = await new_world(policy=TOTAL)
    await world.add_node("n2")
    async with world.syncer():
        await asyncio.sleep(5)
        for name, node in {"a": "vnode-east-n1", "b": "vnode-east-n1", "c": "vnode-east-n2"}.items():
            await world.add_pod(name, node=node, requests={"cpu": "1"})
            await world.wait_for_pod(MAPPED, name)
        await world.add_node("n3", cpu="32")
        await asyncio.sleep(5)
        found = await allocatable(world)
        assert found["vnode-east-n1"] == "2"
        assert sum(parse_quantity(amount).nano for amount in found.values()) == parse_quantity("4").nano
        await world.add_pod("over", node="vnode-east-n1", requests={"cpu": "1"})
        await world.wait_for_pod(phase("Failed"), "over")
        assert sorted(await world.remaining_pods()) == ["a", "b", "c", "over"]


@in_virtual_time
async def test_changed_total_counts_at_once_and_survives_restart() -> None:
    world = await new_world(policy=TOTAL)
    await world.add_node("n2")
    async with world.syncer():
        await asyncio.sleep(5)
        await set_total(world, "2")
        assert sorted((await allocatable(world)).values()) == ["1", "1"]
        writes = amounts_written(world)
    async with world.syncer():
        await asyncio.sleep(30)
        assert amounts_written(world) == writes
        await set_total(world, None)
        assert sorted((await allocatable(world)).values()) == ["4", "4"]


@in_virtual_time
async def test_foreign_pod_rewrites_few_virtual_nodes() -> None:
    world = await new_world(policy={"totalLimits": [{"resource": "cpu", "quantity": "40"}]})
    for number in range(2, 41):
        await world.add_node(f"n{number}")
    async with world.syncer():
        await asyncio.sleep(10)
        assert len(await allocatable(world)) == 40
        before = amounts_written(world)
        await world.add_foreign_pod("shop", "n7", requests={"cpu": "3500m"})
        await asyncio.sleep(10)
        assert (
            sum(parse_quantity(amount).nano for amount in (await allocatable(world)).values())
            == parse_quantity("40").nano
        )
        assert amounts_written(world) - before <= 10
        await world.physical.delete(NODES, object_named("n9"))
        await asyncio.sleep(10)
        total = sum((ResourceList.parse({"cpu": each}) for each in (await allocatable(world)).values()), ResourceList())
        assert total == {"cpu": parse_quantity("40")}
