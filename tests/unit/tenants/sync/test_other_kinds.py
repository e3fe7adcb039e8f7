"""Twins of Ingresses, network policies and disruption budgets, and what pods of a tenant get from them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.names import physical_name
from tapestry.client.client import Client
from tapestry.client.transport import Transport
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.testing import Scenario, in_virtual_time, perturb
from tapestry.kube.errors import Forbidden
from tapestry.kube.objects import Object, name_of, object_named, value_at
from tapestry.kube.resources import (
    DISRUPTION_BUDGETS,
    INGRESSES,
    NAMESPACES,
    NETWORK_POLICIES,
    NODES,
    PODS,
    SECRETS,
    Resource,
)
from tapestry.syncer.components import Syncer
from tapestry.syncer.current_binding import CurrentBinding
from tapestry.syncer.pod_wiring import wire_copies
from tapestry.tenants.leased_nodes import LeasedNodes
from tapestry.tenants.network_rules import Destination, Destinations
from tapestry.tenants.sync.disruption_budgets import wire_disruption_budgets
from tapestry.tenants.sync.ingresses import wire_ingresses
from tapestry.tenants.sync.network_policies import PolicyLabels, wire_network_policies
from tapestry.tenants.tenant_binding import TenantAddresses

from ...syncer.world import A_DAY, SERVED, rejecting
from ..effective_bindings import HOST as OFFER
from .twin_world import (
    BINDING,
    CONFIG,
    MOUNT,
    PLANE,
    TwinWorld,
    add_binding,
    build_twin_syncer,
    is_about,
    new_twin_world,
    the_binding,
)

NODE = f"vnode-{BINDING}-n1"
ON = {"ingresses": True, "networkPolicies": True, "disruptionBudgets": True}
HOST = f"shop.{PLANE}.apps.example.com"
DESTINATIONS = Destinations(Destination("10.1.1.1", 6444), Destination("10.1.1.1", 6053), ("10.1.1.1",))
QUOTA = Forbidden(403, "Forbidden", "exceeded quota: tapestry-tenant, requested: count/ingresses.networking.k8s.io=1")


class OfferedBinding(CurrentBinding):
    """The binding of a tenant whose HostCluster offers Ingresses."""

    def effective_binding(self, obj: Object, mount: Object | None) -> Binding:
        return replace(super().effective_binding(obj, mount), host=OFFER)


def wire(syncer: Syncer, *, is_synced: bool = True) -> PolicyLabels:
    syncer = replace(
        syncer,
        current_binding=OfferedBinding(syncer.identity, syncer.caches.bindings, syncer.caches.mount_namespaces),
    )
    leased_nodes, labels = LeasedNodes(syncer.caches.physical_nodes), PolicyLabels(syncer, is_synced=is_synced)
    copies, _ = wire_copies(syncer, lambda _: None)
    wire_ingresses(syncer, copies, leased_nodes, is_synced=is_synced)
    wire_network_policies(syncer, DESTINATIONS, TenantAddresses(), leased_nodes, is_synced=is_synced)
    wire_disruption_budgets(syncer, is_synced=is_synced)
    return labels


def wire_off(syncer: Syncer) -> PolicyLabels:
    return wire(syncer, is_synced=False)


async def world_with(**sync: bool) -> TwinWorld:
    return await new_twin_world(sync={**ON, **sync})


def ingress(host: str = HOST, name: str = "shop", **spec: Any) -> Object:
    backend = {"service": {"name": "shop", "port": {"number": 80}}}
    rule = {"host": host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}
    return {**object_named(name, "team-a"), "spec": {"rules": [rule], **spec}}


def network_policy(**spec: Any) -> Object:
    return {**object_named("rules", "team-a"), "spec": {"podSelector": {"matchLabels": {"app": "web"}}, **spec}}


def budget(**spec: Any) -> Object:
    return {**object_named("web", "team-a"), "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec}}


async def the_twin(world: TwinWorld, resource: Resource) -> Object:
    [twin] = await world.twins(resource)
    return twin


# -- Ingresses


@in_virtual_time
async def test_status_of_host_reaches_ingress() -> None:
    world = await world_with()
    await world.plane.create(INGRESSES, ingress())
    async with world.syncer(wire):
        ref = object_named(name_of(await the_twin(world, INGRESSES)), MOUNT)
        addresses = [{"ip": "203.0.113.9"}, {"ip": "127.0.0.1"}]
        await world.host.patch(
            INGRESSES, ref, {"status": {"loadBalancer": {"ingress": addresses}}}, subresource="status"
        )
        await asyncio.sleep(1)
        found = await world.plane.get(INGRESSES, "shop", "team-a")
        assert value_at(found, "status", "loadBalancer", "ingress") == [{"ip": "203.0.113.9"}]


@in_virtual_time
async def test_ingress_with_host_of_others_loses_its_twin() -> None:
    world = await world_with()
    await world.plane.create(INGRESSES, ingress())
    async with world.syncer(wire):
        assert len(await world.twins(INGRESSES)) == 1
        await world.plane.patch(
            INGRESSES, object_named("shop", "team-a"), {"spec": ingress("shop.example.com")["spec"]}
        )
        await asyncio.sleep(1)
        assert await world.twins(INGRESSES) == []
        assert "shop.example.com" in (await world.events("HostNotAllowed"))[0]


@in_virtual_time
async def test_certificate_is_copied_while_an_ingress_names_it() -> None:
    world = await world_with()
    secret = {
        **object_named("certificate", "team-a"),
        "type": "kubernetes.io/tls",
        "data": {"tls.crt": "YQ==", "tls.key": "Yg=="},
    }
    await world.plane.create(SECRETS, secret)
    await world.plane.create(INGRESSES, ingress(tls=[{"hosts": [HOST], "secretName": "certificate"}]))
    async with world.syncer(wire):
        await asyncio.sleep(5)
        copy, twin = await the_twin(world, SECRETS), await the_twin(world, INGRESSES)
        assert (copy["type"], copy["data"]) == (secret["type"], secret["data"])
        assert twin["spec"]["tls"][0]["secretName"] == name_of(copy)
        await world.plane.patch(SECRETS, object_named("certificate", "team-a"), {"data": {"tls.crt": "Yw=="}})
        await asyncio.sleep(5)
        assert (await the_twin(world, SECRETS))["data"]["tls.crt"] == "Yw=="
        await world.plane.delete(INGRESSES, object_named("shop", "team-a"))
        await asyncio.sleep(30)
        assert await world.twins(SECRETS) == []


@in_virtual_time
async def test_refused_ingress_gets_no_certificate() -> None:
    world = await world_with()
    await world.plane.create(SECRETS, {**object_named("certificate", "team-a"), "data": {"a": "YQ=="}})
    await world.plane.create(
        INGRESSES, ingress("shop.example.com", tls=[{"hosts": [HOST], "secretName": "certificate"}])
    )
    async with world.syncer(wire):
        await asyncio.sleep(30)
        assert await world.twins(SECRETS) == []


@in_virtual_time
async def test_quota_of_ingresses_is_reported() -> None:
    world = await world_with()
    world.down.rejection = rejecting("POST", "/ingresses", QUOTA)
    await world.plane.create(INGRESSES, ingress())
    async with world.syncer(wire):
        assert "count/ingresses" in (await world.events("HostRejected"))[0]


# -- network policies


@in_virtual_time
async def test_policy_follows_namespaces_of_the_plane() -> None:
    world = await world_with()
    peer = {"namespaceSelector": {"matchLabels": {"env": "prod"}}}
    await world.plane.create(NETWORK_POLICIES, network_policy(ingress=[{"from": [peer]}], policyTypes=["Ingress"]))
    async with world.syncer(wire):
        assert namespaces_of(await the_twin(world, NETWORK_POLICIES)) == [""]
        await world.plane.create(NAMESPACES, {"metadata": {"name": "team-b", "labels": {"env": "prod"}}})
        await asyncio.sleep(5)
        assert namespaces_of(await the_twin(world, NETWORK_POLICIES)) == ["team-b"]
        await world.plane.patch(NAMESPACES, object_named("team-b"), {"metadata": {"labels": {"env": "test"}}})
        await asyncio.sleep(5)
        assert namespaces_of(await the_twin(world, NETWORK_POLICIES)) == [""]


def namespaces_of(policy: Object) -> list[str]:
    [expression] = policy["spec"]["ingress"][0]["from"][0]["podSelector"]["matchExpressions"]
    values: list[str] = expression["values"]
    return values


@in_virtual_time
async def test_selector_of_policy_has_no_former_labels() -> None:
    world = await world_with()
    await world.plane.create(NETWORK_POLICIES, network_policy(policyTypes=["Egress"]))
    async with world.syncer(wire):
        selector = {"podSelector": {"matchLabels": {"app": None, "tier": "db"}}}
        await world.plane.patch(NETWORK_POLICIES, object_named("rules", "team-a"), {"spec": selector})
        await asyncio.sleep(1)
        labels = (await the_twin(world, NETWORK_POLICIES))["spec"]["podSelector"]["matchLabels"]
        assert (labels.get("app"), labels["tier"]) == (None, "db")


@in_virtual_time
async def test_changed_policies_requeue_the_pods_that_they_select() -> None:
    world, found, requeued = await world_with(), list[PolicyLabels](), list[str]()
    async with world.syncer(lambda syncer: found.append(wire(syncer))):
        found[0].requeue_pods(requeued.append)
        for name, namespace in (("web", "team-a"), ("db", "team-a"), ("web", "team-b")):
            spec = {"nodeName": NODE, "containers": [{"name": "c", "image": "i"}]}
            metadata = {"name": name, "namespace": namespace, "labels": {"app": name}}
            await world.plane.create(PODS, {"metadata": metadata, "spec": spec})
        await world.plane.create(NETWORK_POLICIES, network_policy(policyTypes=["Egress"]))
        await asyncio.sleep(1)
        assert requeued == ["team-a/web"]
        pod = {"metadata": {"name": "web", "namespace": "team-a", "labels": {"app": "web"}}}
        assert found[0].of_pod(pod) == {keys.EGRESS_DECIDED: "true"}
        requeued.clear()
        ref = object_named("rules", "team-a")
        await world.plane.patch(
            NETWORK_POLICIES, ref, {"spec": {"egress": [{"ports": [{"port": 1, "protocol": "TCP"}]}]}}
        )
        await asyncio.sleep(1)
        assert requeued == []


@in_virtual_time
async def test_hosts_with_leased_nodes_enforce_no_policy() -> None:
    world = await world_with()
    await world.plane.create(NETWORK_POLICIES, network_policy(policyTypes=["Egress"]))
    async with world.syncer(wire):
        assert len(await world.twins(NETWORK_POLICIES)) == 1
        node = object_named("vnode-far-n1")
        node["metadata"]["labels"] = {keys.NODE_TYPE: keys.NODE_TYPE_VIRTUAL}
        await world.host.create(NODES, node)
        await asyncio.sleep(1)
        assert await world.twins(NETWORK_POLICIES) == []
        assert await world.events("HostHasLeasedNodes")


# -- disruption budgets


@in_virtual_time
async def test_budget_requires_what_the_plane_computed() -> None:
    world = await world_with()
    await world.plane.create(DISRUPTION_BUDGETS, budget(maxUnavailable="25%"))
    async with world.syncer(wire):
        assert await world.twins(DISRUPTION_BUDGETS) == []
        status = {"desiredHealthy": 3, "currentHealthy": 4, "expectedPods": 4, "disruptionsAllowed": 1}
        status["observedGeneration"] = 1
        ref = object_named("web", "team-a")
        await world.plane.patch(DISRUPTION_BUDGETS, ref, {"status": status}, subresource="status")
        await asyncio.sleep(1)
        spec = (await the_twin(world, DISRUPTION_BUDGETS))["spec"]
        assert (spec["minAvailable"], spec.get("maxUnavailable")) == (3, None)
        labels = spec["selector"]["matchLabels"]
        assert keys.CLUSTER_BINDING_UID in labels
        assert spec["selector"]["matchExpressions"][0]["values"] == ["team-a"]


@in_virtual_time
async def test_budgets_without_selector_have_no_twin() -> None:
    world = await world_with()
    await world.plane.create(DISRUPTION_BUDGETS, budget(selector=None, minAvailable=1))
    async with world.syncer(wire):
        assert await world.twins(DISRUPTION_BUDGETS) == []


# -- switches

OBJECTS: dict[str, tuple[Resource, Object]] = {
    "ingresses": (INGRESSES, ingress()),
    "networkPolicies": (NETWORK_POLICIES, network_policy(policyTypes=["Egress"])),
    "disruptionBudgets": (DISRUPTION_BUDGETS, budget(minAvailable=1)),
}


@pytest.mark.parametrize("switch", OBJECTS)
@in_virtual_time
async def test_switched_off_kind_loses_its_twins(switch: str) -> None:
    world = await world_with()
    for resource, obj in OBJECTS.values():
        await world.plane.create(resource, obj)
    async with world.syncer(wire):
        assert [len(await world.twins(resource)) for resource, _ in OBJECTS.values()] == [1, 1, 1]
        await world.set_binding(sync={**ON, switch: False})
        assert [len(await world.twins(resource)) for resource, _ in OBJECTS.values()].count(0) == 1
        assert await world.twins(OBJECTS[switch][0]) == []


@in_virtual_time
async def test_syncer_without_kinds_watches_none_and_removes_twins() -> None:
    world = await world_with()
    for resource, obj in OBJECTS.values():
        await world.plane.create(resource, obj)
    async with world.syncer(wire):
        assert await world.twins(INGRESSES)
    await world.set_binding(sync=dict.fromkeys(ON, False))
    async with world.syncer(wire_off) as syncer:
        assert [await world.twins(resource) for resource, _ in OBJECTS.values()] == [[], [], []]
        watched = {each.resource for each in syncer.manager._informers.values()}
        assert not watched & {INGRESSES, NETWORK_POLICIES, NAMESPACES}


@in_virtual_time
async def test_unchanged_objects_cause_no_write() -> None:
    world = await world_with()
    rich = {"egress": [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}], "ports": [{"port": 1}]}, {}], "ingress": [{}]}
    await world.plane.create(NETWORK_POLICIES, network_policy(policyTypes=["Ingress", "Egress"], **rich))
    await world.plane.create(INGRESSES, ingress(tls=[{"hosts": [HOST]}]))
    await world.plane.create(DISRUPTION_BUDGETS, budget(minAvailable=1))
    async with world.syncer(wire):
        await asyncio.sleep(10)
    before = world.down.writes(), world.up.writes()
    assert len(before[0]) == 3
    async with world.syncer(wire):
        await asyncio.sleep(100)
    assert (world.down.writes(), world.up.writes()) == before


# -- faults


async def twin_until(
    plane: Client, host: Client, resource: Resource, source: Object, until: Callable[[Object | None], bool]
) -> None:
    binding = await the_binding(plane)
    name = physical_name(binding.virtual_cluster, binding.uid, "team-a", name_of(source))
    await wait_for(host, resource, name, MOUNT, until=until, timeout=A_DAY)


def kind_comes_and_goes(
    resource: Resource, source: Object, change: Object, is_changed: Callable[[Object], bool]
) -> Callable[[Client, Client], Awaitable[None]]:
    async def world(plane: Client, host: Client) -> None:
        await add_binding(plane, sync=ON)
        await plane.create(resource, source)
        await twin_until(plane, host, resource, source, bool)
        ref = object_named(name_of(source), "team-a")
        await plane.patch(resource, ref, change)
        await twin_until(plane, host, resource, source, lambda twin: twin is not None and is_changed(twin))
        await plane.delete(resource, ref)
        await twin_until(plane, host, resource, source, lambda twin: twin is None)
        await asyncio.sleep(400)

    return world


async def certificate_is_copied(plane: Client, host: Client) -> None:
    await add_binding(plane, sync=ON)
    secret = {**object_named("certificate", "team-a"), "data": {"tls.crt": "YQ=="}}
    source = ingress(tls=[{"hosts": [HOST], "secretName": "certificate"}])
    await plane.create(INGRESSES, source)
    await twin_until(plane, host, INGRESSES, source, bool)
    await plane.create(SECRETS, secret)
    await twin_until(plane, host, SECRETS, secret, bool)
    ref = object_named("certificate", "team-a")
    await plane.patch(SECRETS, ref, {"data": {"tls.crt": "Yg=="}})
    has_change = lambda copy: copy is not None and copy["data"]["tls.crt"] == "Yg=="  # noqa: E731
    await twin_until(plane, host, SECRETS, secret, has_change)
    await plane.patch(INGRESSES, object_named("shop", "team-a"), {"spec": {"tls": None}})
    await twin_until(plane, host, SECRETS, secret, lambda copy: copy is None)
    await asyncio.sleep(400)


def to_other_service(twin: Object) -> bool:
    path = twin["spec"]["rules"][0]["http"]["paths"][0]
    return bool(path["backend"]["service"]["port"] == {"name": "web"})


OTHER_RULE = ingress()["spec"]["rules"][0] | {
    "http": {
        "paths": [
            {"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "shop", "port": {"name": "web"}}}}
        ]
    }
}
WORLDS = {
    "an Ingress comes and goes": kind_comes_and_goes(
        INGRESSES, ingress(), {"spec": {"rules": [OTHER_RULE]}}, to_other_service
    ),
    "a network policy comes and goes": kind_comes_and_goes(
        NETWORK_POLICIES,
        network_policy(policyTypes=["Egress"]),
        {"spec": {"egress": [{}]}},
        lambda twin: bool(twin["spec"].get("egress")),
    ),
    "a certificate is copied": certificate_is_copied,
    "a disruption budget comes and goes": kind_comes_and_goes(
        DISRUPTION_BUDGETS,
        budget(minAvailable=1),
        {"spec": {"minAvailable": 2}},
        lambda twin: bool(twin["spec"]["minAvailable"] == 2),
    ),
}


async def setup(manager: Manager, host: Transport) -> None:
    await build_twin_syncer(manager, host, wire)


SCENARIOS = [
    Scenario(
        *(name, SERVED, setup, world, CONFIG),
        others=[SERVED],
        counts=is_about(INGRESSES, NETWORK_POLICIES, DISRUPTION_BUDGETS, SECRETS),
        is_plane=True,
    )
    for name, world in WORLDS.items()
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_other_kinds_reach_same_state_despite_faults(
    scenario: Scenario, record_property: Callable[[str, object], None]
) -> None:
    report = perturb(scenario)
    record_property("figure", f"perturbed other kinds: {report.cases} replays: {scenario.name}")
    report.check()
