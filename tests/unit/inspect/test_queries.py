"""Queries on two clusters, including unreadable ones."""

import asyncio
import base64
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.policies import POLICIES
from tapestry.client.client import Client
from tapestry.client.transport import Request, Response
from tapestry.controller.testing import InProcessApi, run, running_clock
from tapestry.inspect.doctor import Doctor
from tapestry.inspect.queries import Queries
from tapestry.inspect.snapshots import ClusterUnreadable, QueryError
from tapestry.kube.objects import Object, object_named, with_type_meta
from tapestry.kube.resources import DEPLOYMENTS, LEASES, NAMESPACES, NODES, PODS, SECRETS
from tapestry.syncer.leasing import PolicySide

KUBECONFIG = {
    "clusters": [{"name": "c", "cluster": {"server": "https://east.example"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "c",
}


@dataclass
class World:
    virtual: Client
    physical: Client
    queries: Queries
    identity: str
    """Identity of the physical cluster."""

    async def bind(self, *, secret: bool = True, identity: str | None = None) -> None:
        if secret:
            data = {"kubeconfig": base64.b64encode(json.dumps(KUBECONFIG).encode()).decode()}
            await self.virtual.create(SECRETS, {**object_named("east", keys.SYSTEM_NAMESPACE), "data": data})
        reference = {"name": "east", "namespace": keys.SYSTEM_NAMESPACE}
        spec = {"clusterID": "e1", "secretRef": reference, "mountNamespace": "leased"}
        binding = {**object_named("east"), "spec": spec}
        created = await self.virtual.create(CLUSTER_BINDINGS, with_type_meta(CLUSTER_BINDINGS, binding))
        status = {"status": {"identity": identity or self.identity}}
        await self.virtual.patch(CLUSTER_BINDINGS, created, status, subresource="status")
        labels = {keys.NODE_TYPE: keys.NODE_TYPE_VIRTUAL, keys.CLUSTER_BINDING_UID: created["metadata"]["uid"]}
        annotations = {keys.PHYSICAL_NODE_NAME: "n1", keys.POLICIES_APPLIED: "owner/half"}
        node = {"metadata": {"name": "vnode-e1-n1", "labels": labels, "annotations": annotations}}
        await self.virtual.create(NODES, {**node, "status": {"allocatable": {"cpu": "2"}}})

    async def add_owner(self, name: str, **spec: Any) -> None:
        policy = {**object_named(name), "spec": {"cluster": "east", **spec}}
        await self.physical.create(POLICIES, with_type_meta(POLICIES, policy))


Scenario = Callable[[World], Coroutine[Any, Any, None]]


def in_a_world(scenario: Scenario, *kinds_of_physical: Any) -> None:
    async def main() -> None:
        clock = running_clock()
        kinds = kinds_of_physical or (NAMESPACES, NODES, PODS, POLICIES)
        physical_api = InProcessApi(kinds, now=clock.now)
        virtual = Client(
            InProcessApi(
                [CLUSTER_BINDINGS, POLICIES, NAMESPACES, NODES, PODS, SECRETS, LEASES, DEPLOYMENTS], now=clock.now
            ).connect()
        )
        physical = Client(physical_api.connect())
        identities = [await each.create(NAMESPACES, object_named("kube-system")) for each in (virtual, physical)]
        for name in ("n1", "n2"):
            await physical.create(NODES, {**object_named(name), "status": {"allocatable": {"cpu": "4"}}})
        queries = Queries(virtual, lambda _: physical_api.connect(), clock.now())
        await scenario(World(virtual, physical, queries, identities[1]["metadata"]["uid"]))

    run(main())


def new_pod(name: str, node: str, **metadata: Any) -> Object:
    requests = {"requests": {"cpu": "1"}}
    spec = {"nodeName": node, "containers": [{"name": "c", "image": "busybox:1", "resources": requests}]}
    return {"metadata": {"name": name, "namespace": "default", **metadata}, "spec": spec}


@pytest.mark.parametrize("name", ["vnode-e1-n1", "n1"])
def test_node_is_found_by_either_name(name: str) -> None:
    async def scenario(world: World) -> None:
        await world.bind()
        await world.add_owner("half", resourceLimits=[{"resource": "cpu", "percent": 50}])
        await world.physical.create(PODS, new_pod("shop", "n1"))
        await world.physical.create(PODS, new_pod("other", "n2"))
        (explanation,) = await world.queries.node(name)
        (cpu,) = explanation.resources
        assert (cpu.foreign, cpu.leased, cpu.decided_by) == ("1", "1500m", "owner/half")
        assert (explanation.node, explanation.behind) == ("vnode-e1-n1", ("cpu",))

    in_a_world(scenario)


@pytest.mark.parametrize("name", ["vnode-e1-n2", "n2"])
def test_unleased_physical_node_is_explained(name: str) -> None:
    async def scenario(world: World) -> None:
        await world.bind()
        (explanation,) = await world.queries.node(name)
        assert (explanation.node, explanation.physical_node, explanation.reason) == ("", "n2", "NoPolicy")

    in_a_world(scenario)


def test_missing_node_is_an_error() -> None:
    async def scenario(world: World) -> None:
        await world.bind()
        with pytest.raises(QueryError, match=r"has a node n9, virtual or not$"):
            await world.queries.node("n9")

    in_a_world(scenario)


def test_node_is_explained_from_virtual_without_secret() -> None:
    async def scenario(world: World) -> None:
        await world.bind(secret=False)
        (explanation,) = await world.queries.node("n1")
        assert (explanation.reason, explanation.resources[0].leased) == ("AsShown", "2")
        assert 'secrets "east" not found' in explanation.unseen
        with pytest.raises(QueryError, match="east could not be read"):
            await world.queries.node("n2")

    in_a_world(scenario)


def test_other_cluster_than_bound_is_not_read() -> None:
    async def scenario(world: World) -> None:
        await world.bind(identity="another")
        (explanation,) = await world.queries.node("n1")
        assert explanation.unseen.endswith("another was bound")

    in_a_world(scenario)


def test_policies_of_both_sides_are_listed() -> None:
    async def scenario(world: World) -> None:
        await world.bind()
        await world.add_owner("half")
        await world.add_owner("not-ours", cluster="somebody-elses")
        await world.virtual.create(
            POLICIES, with_type_meta(POLICIES, {**object_named("all"), "spec": {"cluster": "e1"}})
        )
        found, unread = await world.queries.policies()
        assert [(each.side, each.name) for each in found] == [("operator", "all"), ("owner", "half")]
        assert unread == []

    in_a_world(scenario)


def test_unreadable_owners_are_reported() -> None:
    async def scenario(world: World) -> None:
        await world.bind(secret=False)
        found, (sentence,) = await world.queries.policies()
        assert found == []
        assert sentence.startswith("the owner's policies of east are not shown: ")
        with pytest.raises(QueryError, match=r"there is no policy half .*are not shown"):
            await world.queries.policy("half")

    in_a_world(scenario)


def test_cluster_without_policy_kind_has_no_policies() -> None:
    async def scenario(world: World) -> None:
        await world.bind()
        assert await world.queries.policies() == ([], [])

    in_a_world(scenario, NAMESPACES, NODES, PODS)


def test_policy_is_found_by_name_or_side_and_name() -> None:
    async def scenario(world: World) -> None:
        await world.bind()
        await world.add_owner("half")
        spec = {"cluster": "nobody"}
        await world.virtual.create(POLICIES, with_type_meta(POLICIES, {**object_named("half"), "spec": spec}))
        both = await world.queries.policy("half")
        assert [(each.policy, each.binding) for each in both] == [("operator/half", ""), ("owner/half", "east")]
        (owners,) = await world.queries.policy("owner/half")
        assert [each.node for each in owners.nodes] == ["vnode-e1-n1"]

    in_a_world(scenario)


def test_nodes_count_pods_but_not_placeholders() -> None:
    async def scenario(world: World) -> None:
        await world.bind()
        await world.virtual.create(PODS, new_pod("work", "vnode-e1-n1"))
        await world.virtual.create(PODS, new_pod("elsewhere", "n7"))
        hidden = new_pod("ports", "vnode-e1-n1", namespace=keys.HOST_PORTS_NAMESPACE, labels={keys.HOST_PORTS: "x"})
        await world.virtual.create(PODS, hidden)
        (node,) = await world.queries.nodes()
        assert (node.name, node.pods, node.used["cpu"]) == ("vnode-e1-n1", 1, "1")

    in_a_world(scenario)


def test_cluster_without_our_kinds_gets_install_hint() -> None:
    async def main() -> None:
        api = InProcessApi([NODES], now=running_clock().now)
        queries = Queries(Client(api.connect()), lambda _: api.connect(), running_clock().now())
        with pytest.raises(QueryError, match="tapestry manifests --image"):
            await queries.bindings()

    run(main())


def test_windows_without_zone_use_zone_of_syncer() -> None:
    async def scenario(world: World) -> None:
        await world.bind()
        await world.add_owner("night", timeWindows=[{"start": "22:00", "end": "06:00"}])
        (policy,), _ = await world.queries.policies()
        assert policy.windows == ["22:00-06:00 UTC"]
        status_patch = {"status": {"timeZone": "Asia/Shanghai"}}
        await world.virtual.patch(CLUSTER_BINDINGS, object_named("east"), status_patch, subresource="status")
        (policy,), _ = await world.queries.policies()
        (explained,) = await world.queries.policy("night")
        (explanation,) = await world.queries.node("n1")
        expected = ["22:00-06:00 Asia/Shanghai"]
        assert (policy.windows, explained.windows, explanation.policies[0].windows) == (expected, expected, expected)
        (explained,) = await replace(world.queries, time_zone="Europe/Berlin").policy("night")
        assert explained.windows == ["22:00-06:00 Europe/Berlin"]

    in_a_world(scenario)


# -- unreachable clusters


@dataclass(frozen=True)
class FrozenTransport:
    """Transport to a server that accepts connections and never answers."""

    async def send(self, _: Request) -> Response:
        await asyncio.sleep(3600)
        raise AssertionError("unreachable")

    def abort(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


def frozen(world: World) -> Queries:
    return replace(world.queries, connect=lambda _: FrozenTransport())


def test_unreachable_cluster_is_detected_within_two_seconds() -> None:
    async def scenario(world: World) -> None:
        await world.bind()
        began, now = running_clock().monotonic(), running_clock().now
        (explanation,) = await frozen(world).node("n1")
        assert (explanation.state, explanation.reason) == ("Unknown", "PhysicalClusterUnreachable")
        assert running_clock().monotonic() - began < 2
        began = running_clock().monotonic()
        found = await Doctor(frozen(world), now).findings()
        assert "its cluster does not answer" in next(each.found for each in found if each.about == "binding east")
        assert running_clock().monotonic() - began < 2

    in_a_world(scenario)


def test_plan_fails_for_unreachable_cluster() -> None:
    async def scenario(world: World) -> None:
        await world.bind()
        with pytest.raises(ClusterUnreadable, match="idle resources of the cluster of east are unknown: no answer"):
            await frozen(world).plan(
                with_type_meta(POLICIES, {**object_named("new"), "spec": {"cluster": "east"}}), None
            )

    in_a_world(scenario)


# -- proposed policies


def test_policy_file_belongs_to_side_with_same_name() -> None:
    async def scenario(world: World) -> None:
        await world.bind()
        await world.add_owner("half", resourceLimits=[{"resource": "cpu", "percent": 50}])
        limit = [{"resource": "cpu", "quantity": "1"}]
        proposed = with_type_meta(
            POLICIES, {**object_named("half"), "spec": {"cluster": "east", "resourceLimits": limit}}
        )
        (plan,) = await world.queries.plan(proposed, None)
        assert (plan.policy, plan.is_new, plan.leased_now["cpu"], plan.leased_then["cpu"]) == (
            *("owner/half", False),
            *("4", "2"),
        )
        (plan,) = await world.queries.plan(proposed, PolicySide.OPERATOR)
        assert (plan.policy, plan.is_new) == ("operator/half", True)
        stray = with_type_meta(POLICIES, {**object_named("x"), "spec": {"cluster": "west"}})
        with pytest.raises(QueryError, match=r"spec.cluster: no ClusterBinding .* west; known are: east"):
            await world.queries.plan(stray, None)

    in_a_world(scenario)
