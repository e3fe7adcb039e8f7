"""Twins of the Services of a tenant, and the addresses that the host cluster gives them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.names import physical_name
from tapestry.client.client import Client
from tapestry.client.transport import Transport
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.testing import Scenario, in_virtual_time, perturb
from tapestry.kube.errors import Forbidden, KubeError
from tapestry.kube.objects import Object, labels_of, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import ENDPOINT_SLICES, NODES, PODS, SERVICES
from tapestry.syncer.components import Syncer
from tapestry.syncer.translate.services import SERVICE_NAME
from tapestry.tenants.leased_nodes import services_condition
from tapestry.tenants.sync.service_translation import desired_service
from tapestry.tenants.sync.services import TenantServices, wire_tenant_services
from tapestry.tenants.tenant_binding import TenantAddresses

from ...syncer.world import A_DAY, SERVED, rejecting
from .twin_world import (
    CONFIG,
    MOUNT,
    TwinWorld,
    add_binding,
    build_twin_syncer,
    condition,
    is_about,
    new_twin_world,
    the_binding,
)

API_ADDRESS = "10.96.0.7"
HTTP = {"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}
QUOTA = Forbidden(403, "Forbidden", "exceeded quota: tapestry, requested: services.loadbalancers=1")


def wire(syncer: Syncer) -> TenantServices:
    return wire_tenant_services(syncer, TenantAddresses(api=API_ADDRESS))


def new_service(name: str = "shop", namespace: str = "team-a", **spec: Any) -> Object:
    return {**object_named(name, namespace), "spec": {"selector": {"app": name}, "ports": [HTTP], **spec}}


async def service_of(world: TwinWorld, name: str = "shop", namespace: str = "team-a") -> Object:
    return await world.plane.get(SERVICES, name, namespace)


async def the_twin(world: TwinWorld) -> Object:
    [twin] = await world.twins(SERVICES)
    return twin


async def change(world: TwinWorld, patch: Object, name: str = "shop") -> None:
    await world.plane.patch(SERVICES, object_named(name, "team-a"), patch)
    await asyncio.sleep(1)


# -- addresses


@in_virtual_time
async def test_address_of_host_reaches_service() -> None:
    world = await new_twin_world()
    await world.plane.create(SERVICES, new_service())
    assert "clusterIP" not in (await service_of(world))["spec"]
    async with world.syncer(wire):
        address = (await the_twin(world))["spec"]["clusterIP"]
        spec = (await service_of(world))["spec"]
        assert (spec["clusterIP"], spec["clusterIPs"]) == (address, [address])
        assert (spec["ipFamilies"], spec["ipFamilyPolicy"]) == (["IPv4"], "SingleStack")


@in_virtual_time
async def test_tenant_cannot_change_address() -> None:
    world = await new_twin_world()
    await world.plane.create(SERVICES, new_service())
    async with world.syncer(wire):
        before = (await service_of(world))["spec"]["clusterIPs"]
        with pytest.raises(KubeError):
            await change(world, {"spec": {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"]}})
        await change(world, {"spec": {"clusterIP": None, "clusterIPs": None}})
        assert (await service_of(world))["spec"]["clusterIPs"] == before


@in_virtual_time
async def test_service_follows_address_of_new_twin() -> None:
    world = await new_twin_world()
    await world.plane.create(SERVICES, new_service())
    async with world.syncer(wire):
        twin = await the_twin(world)
        await world.host.delete(SERVICES, object_named(name_of(twin), MOUNT))
        other = {**twin, "spec": {**twin["spec"], "clusterIP": "10.77.0.1", "clusterIPs": ["10.77.0.1"]}}
        other["metadata"] = {key: twin["metadata"][key] for key in ("name", "namespace", "labels", "annotations")}
        await world.host.create(SERVICES, other)
        await asyncio.sleep(5)
        assert (await service_of(world))["spec"]["clusterIPs"] == ["10.77.0.1"]


@in_virtual_time
async def test_service_of_plane_gets_address_in_host() -> None:
    world = await new_twin_world()
    await world.plane.create(SERVICES, new_service("kubernetes", "default", selector=None))
    async with world.syncer(wire):
        assert (await service_of(world, "kubernetes", "default"))["spec"]["clusterIP"] == API_ADDRESS
        assert await world.twins(SERVICES) == []
        assert condition(await service_of(world, "kubernetes", "default"), keys.SYNCED_CONDITION) is None


@in_virtual_time
async def test_recreated_service_may_become_headless() -> None:
    world = await new_twin_world()
    await world.plane.create(SERVICES, new_service())
    async with world.syncer(wire):
        before = await the_twin(world)
        await world.plane.delete(SERVICES, object_named("shop", "team-a"))
        await world.plane.create(SERVICES, new_service(clusterIP="None"))
        await asyncio.sleep(1)
        after = await the_twin(world)
        assert after["spec"]["clusterIP"] == "None"
        assert uid_of(after) != uid_of(before)
        assert (await service_of(world))["spec"]["clusterIP"] == "None"


@in_virtual_time
async def test_unchanged_services_cause_no_write() -> None:
    world = await new_twin_world(isolation={"mode": "lite"})
    for type in ("ClusterIP", "NodePort", "LoadBalancer"):
        await world.plane.create(SERVICES, new_service(type.lower(), type=type))
    await world.plane.create(SERVICES, new_service("headless", clusterIP="None"))
    named = {"type": "ExternalName", "externalName": "example.com", "selector": None, "ports": []}
    await world.plane.create(SERVICES, new_service("named", **named))
    async with world.syncer(wire):
        await asyncio.sleep(10)
        assert len(await world.twins(SERVICES)) == 5
    writes = world.down.writes(), world.up.writes()
    assert len(writes[0]) == 5
    async with world.syncer(wire):
        await change(world, {"metadata": {"annotations": {"a": "b"}}}, "nodeport")
        await asyncio.sleep(100)
    assert (world.down.writes(), world.up.writes()) == writes


# -- types


@in_virtual_time
async def test_status_of_load_balancer_reaches_service() -> None:
    world = await new_twin_world()
    await world.plane.create(SERVICES, new_service(type="LoadBalancer"))
    async with world.syncer(wire):
        ref = object_named(name_of(await the_twin(world)), MOUNT)
        ingress = [{"ip": "203.0.113.9"}, {"ip": "127.0.0.1"}]
        await world.host.patch(SERVICES, ref, {"status": {"loadBalancer": {"ingress": ingress}}}, subresource="status")
        await asyncio.sleep(1)
        reported = value_at(await service_of(world), "status", "loadBalancer", "ingress")
        assert reported == [{"ip": "203.0.113.9", "ipMode": "VIP"}]
        await change(world, {"spec": {"type": "ClusterIP"}})
        assert (await the_twin(world))["spec"]["type"] == "ClusterIP"
        assert not value_at(await service_of(world), "status", "loadBalancer", "ingress")


@in_virtual_time
async def test_quota_of_load_balancers_is_reported() -> None:
    world = await new_twin_world()
    world.down.rejection = rejecting("POST", "/services", QUOTA)
    await world.plane.create(SERVICES, new_service(type="LoadBalancer"))
    async with world.syncer(wire):
        assert condition(await service_of(world), keys.SYNCED_CONDITION) == ("False", "HostRejected")
        assert "services.loadbalancers" in (await world.events("HostRejected"))[0]


@in_virtual_time
async def test_node_ports_follow_isolation() -> None:
    world = await new_twin_world(isolation={"mode": "lite"})
    await world.plane.create(SERVICES, new_service(type="NodePort", ports=[{**HTTP, "nodePort": 30500}]))
    async with world.syncer(wire):
        number = (await the_twin(world))["spec"]["ports"][0]["nodePort"]
        assert (await service_of(world))["spec"]["ports"][0]["nodePort"] == number
        await world.set_binding(isolation={"mode": "full"})
        twin = await the_twin(world)
        assert twin["spec"]["type"] == "ClusterIP"
        assert "nodePort" not in twin["spec"]["ports"][0]
        assert "nodePort" not in (await service_of(world))["spec"]["ports"][0]
        assert condition(await service_of(world), keys.SYNCED_CONDITION) == ("False", "NodePortsNotAllowed")
        assert len(await world.events("NodePortsNotAllowed")) == 1


@in_virtual_time
async def test_external_name_without_permission_has_no_twin() -> None:
    world = await new_twin_world()
    named = {"type": "ExternalName", "externalName": "example.com", "selector": None, "ports": []}
    await world.plane.create(SERVICES, new_service(**named))
    async with world.syncer(wire):
        assert await world.twins(SERVICES) == []
        assert condition(await service_of(world), keys.SYNCED_CONDITION) == ("False", "ExternalNameNotAllowed")


# -- hosts with leased nodes


@in_virtual_time
async def test_services_are_rejected_on_leased_nodes() -> None:
    world, wired = await new_twin_world(), list[TenantServices]()
    await world.plane.create(SERVICES, new_service())
    async with world.syncer(lambda syncer: wired.append(wire(syncer))):
        assert services_condition(wired[0].leased_nodes)["status"] == "True"
        node = object_named("vnode-far-n1")
        node["metadata"]["labels"] = {keys.NODE_TYPE: keys.NODE_TYPE_VIRTUAL}
        await world.host.create(NODES, node)
        await asyncio.sleep(1)
        assert await world.twins(SERVICES) == []
        assert "clusterIP" not in (await service_of(world))["spec"]
        assert condition(await service_of(world), keys.SYNCED_CONDITION) == ("False", "HostHasLeasedNodes")
        assert services_condition(wired[0].leased_nodes)["reason"] == "HostHasLeasedNodes"
        await world.host.delete(NODES, node)
        await asyncio.sleep(1)
        assert len(await world.twins(SERVICES)) == 1


# -- slices that users wrote


def new_slice(*addresses: str, name: str = "shop-1") -> Object:
    endpoints = [{"addresses": [each], "conditions": {"ready": True}} for each in addresses]
    metadata = {"name": name, "namespace": "team-a", "labels": {SERVICE_NAME: "shop"}}
    port = {"name": "http", "protocol": "TCP", "port": 8080}
    return {"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints, "ports": [port]}


async def add_twin_of_pod(world: TwinWorld, name: str, *, pod: str, node: str) -> None:
    """Create the twin of a pod with its address and that of its node."""
    labels = (await the_binding(world.plane)).owner_labels()
    spec = {"nodeName": "n1", "containers": [{"name": "c", "image": "busybox:1"}]}
    status = {"phase": "Running", "podIP": pod, "podIPs": [{"ip": pod}], "hostIP": node, "hostIPs": [{"ip": node}]}
    metadata = {"name": name, "namespace": MOUNT, "labels": labels}
    await world.host.create(PODS, {"metadata": metadata, "spec": spec})
    await world.host.patch(PODS, object_named(name, MOUNT), {"status": status}, subresource="status")


async def addresses(world: TwinWorld) -> list[str]:
    slices = await world.twins(ENDPOINT_SLICES)
    return sorted(address for each in slices for endpoint in each["endpoints"] for address in endpoint["addresses"])


@in_virtual_time
async def test_slice_leads_only_to_own_pods() -> None:
    world = await new_twin_world()
    await world.plane.create(SERVICES, new_service(selector=None))
    await world.plane.create(ENDPOINT_SLICES, new_slice("10.2.0.1", "10.2.0.2", "192.168.0.1", "10.2.0.9"))
    async with world.syncer(wire):
        assert await world.twins(ENDPOINT_SLICES) == []
        await add_twin_of_pod(world, "one", pod="10.2.0.1", node="192.168.0.1")
        await add_twin_of_pod(world, "node-network", pod="192.168.0.1", node="192.168.0.1")
        await asyncio.sleep(5)
        assert await addresses(world) == ["10.2.0.1"]
        [slice] = await world.twins(ENDPOINT_SLICES)
        assert labels_of(slice)[SERVICE_NAME] == name_of(await the_twin(world))
        await add_twin_of_pod(world, "two", pod="10.2.0.2", node="192.168.0.1")
        await asyncio.sleep(5)
        assert await addresses(world) == ["10.2.0.1", "10.2.0.2"]
        await world.host.delete(PODS, object_named("one", MOUNT), grace_seconds=0)
        await asyncio.sleep(5)
        assert await addresses(world) == ["10.2.0.2"]
        assert any("192.168.0.1" in each for each in await world.events("AddressNotAllowed"))


@in_virtual_time
async def test_slice_goes_when_service_gets_selector() -> None:
    world = await new_twin_world()
    await world.plane.create(SERVICES, new_service(selector=None))
    await world.plane.create(ENDPOINT_SLICES, new_slice("10.2.0.1"))
    async with world.syncer(wire):
        await add_twin_of_pod(world, "one", pod="10.2.0.1", node="192.168.0.1")
        await asyncio.sleep(5)
        assert await addresses(world) == ["10.2.0.1"]
        await change(world, {"spec": {"selector": {"app": "shop"}}})
        assert await world.twins(ENDPOINT_SLICES) == []


@in_virtual_time
async def test_slices_of_host_controllers_stay() -> None:
    world = await new_twin_world()
    await world.plane.create(SERVICES, new_service())
    async with world.syncer(wire):
        slice = new_slice("10.2.0.1", name="made-by-host")
        twin_labels = {**labels_of(await the_twin(world)), SERVICE_NAME: name_of(await the_twin(world))}
        slice["metadata"] = {"name": "made-by-host", "namespace": MOUNT, "labels": twin_labels}
        await world.host.create(ENDPOINT_SLICES, slice)
        await asyncio.sleep(100)
        assert len(await world.twins(ENDPOINT_SLICES)) == 1


@in_virtual_time
async def test_pods_wait_for_no_service() -> None:
    world, wired = await new_twin_world(), list[TenantServices]()
    async with world.syncer(lambda syncer: wired.append(wire(syncer))):
        assert wired[0].aliases("team-a") == []


# -- faults


async def service_comes_and_goes(plane: Client, host: Client) -> None:
    await add_binding(plane, isolation={"mode": "lite"})
    await plane.create(SERVICES, new_service())
    ref, twin = object_named("shop", "team-a"), await twin_name(plane)
    await service_until(plane, lambda service: bool(value_at(service, "spec", "clusterIP")))
    await plane.patch(SERVICES, ref, {"spec": {"type": "LoadBalancer"}})
    await wait_for(host, SERVICES, twin, MOUNT, until=has_type("LoadBalancer"), timeout=A_DAY)
    status = {"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}]}}}
    await host.patch(SERVICES, object_named(twin, MOUNT), status, subresource="status")
    await service_until(plane, lambda service: bool(value_at(service, "status", "loadBalancer", "ingress")))
    await plane.delete(SERVICES, ref)
    await wait_for(host, SERVICES, twin, MOUNT, until=lambda each: each is None, timeout=A_DAY)
    await asyncio.sleep(400)


async def service_becomes_headless(plane: Client, host: Client) -> None:
    await add_binding(plane)
    await plane.create(SERVICES, new_service())
    await service_until(plane, lambda service: bool(value_at(service, "spec", "clusterIP")))
    await plane.delete(SERVICES, object_named("shop", "team-a"))
    await plane.create(SERVICES, new_service(clusterIP="None"))
    twin = await twin_name(plane)
    await wait_for(host, SERVICES, twin, MOUNT, until=is_headless, timeout=A_DAY)
    await asyncio.sleep(400)


async def slice_follows_pods(plane: Client, host: Client) -> None:
    await add_binding(plane)
    await plane.create(SERVICES, new_service(selector=None))
    await plane.create(ENDPOINT_SLICES, new_slice("10.2.0.1", "10.2.0.2"))
    world = TwinWorld(plane, host, up=None, down=None)  # type: ignore[arg-type]
    binding = await the_binding(plane)
    twin = physical_name(binding.virtual_cluster, binding.uid, "team-a", "shop-1")
    for number in (1, 2):
        await add_twin_of_pod(world, f"pod-{number}", pod=f"10.2.0.{number}", node="192.168.0.1")
        await wait_for(host, ENDPOINT_SLICES, twin, MOUNT, until=has_endpoints(number), timeout=A_DAY)
    await plane.delete(ENDPOINT_SLICES, object_named("shop-1", "team-a"))
    await wait_for(host, ENDPOINT_SLICES, twin, MOUNT, until=lambda each: each is None, timeout=A_DAY)
    await service_until(plane, lambda service: bool(value_at(service, "spec", "clusterIP")))
    await asyncio.sleep(400)


async def twin_name(plane: Client) -> str:
    return name_of(desired_service(new_service(), await the_binding(plane)))


async def service_until(plane: Client, until: Callable[[Object], bool]) -> None:
    is_reached = lambda service: service is not None and until(service)  # noqa: E731
    await wait_for(plane, SERVICES, "shop", "team-a", until=is_reached, timeout=A_DAY)


def has_endpoints(number: int) -> Callable[[Object | None], bool]:
    return lambda slice: slice is not None and len(slice["endpoints"]) == number


def has_type(type: str) -> Callable[[Object | None], bool]:
    return lambda service: service is not None and service["spec"]["type"] == type


def is_headless(service: Object | None) -> bool:
    return service is not None and service["spec"].get("clusterIP") == "None"


async def setup(manager: Manager, host: Transport) -> None:
    await build_twin_syncer(manager, host, wire)


SCENARIOS = [
    Scenario(
        *(name, SERVED, setup, world, CONFIG),
        others=[SERVED],
        counts=is_about(SERVICES, ENDPOINT_SLICES),
        is_plane=True,
    )
    for name, world in {
        "a service comes and goes": service_comes_and_goes,
        "a service becomes headless": service_becomes_headless,
        "a slice follows its pods": slice_follows_pods,
    }.items()
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_services_reach_same_state_despite_faults(
    scenario: Scenario, record_property: Callable[[str, object], None]
) -> None:
    report = perturb(scenario)
    record_property("figure", f"perturbed services: {report.cases} replays: {scenario.name}")
    report.check()
