"""DNS of tenants: names follow the objects of their planes, and each tenant sees only its own names."""

import ipaddress
from pathlib import Path
from typing import Any

import pytest
from tests.unit.dns.dns_servers import ask, consecutive_ports, running_upstream

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.apis.planes import PLANES
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.dns.forwarding import Server
from tapestry.dns.messages import Code, Type, wire_name
from tapestry.dns.resolver_config import ResolverConfig
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, name_of, object_named, value_at
from tapestry.kube.resources import ENDPOINT_SLICES, NODES, PODS, SERVICES
from tapestry.local.kubernetes import free_ports
from tapestry.planes.plane_set import PlaneState
from tapestry.tenants.dns_metrics import COUNTS
from tapestry.tenants.tenant_dns import dns_rules

from .running_tenants import TIMEOUT, HostWorld, host_world, run_pod
from .tenant_bindings import tenant_binding

DOMAIN = "cluster.local"
SYSTEM = ResolverConfig((Server("192.0.2.53"),), (wire_name("host.example"),))


async def prepared(world: HostWorld, upstream: int, *planes: str, **spec: Any) -> list[str]:
    """Let the host cluster reach the resolver, and return the ids of new planes with tenants that have DNS."""
    fields = {"apiAddress": "192.0.2.10", "dnsUpstreams": [f"127.0.0.1:{upstream}"]}
    await world.management.patch(HOST_CLUSTERS, object_named("east"), {"spec": fields})
    ids = [await world.add_tenant(plane, **spec) for plane in planes]
    for plane in planes:
        await wait_for_reason(world, plane, "Available")
    return ids


async def wait_for_reason(world: HostWorld, plane: str, reason: str) -> None:
    def is_reached(binding: Object | None) -> bool:
        condition = find_condition(value_at(binding, "status", "conditions"), "DNSAvailable") or {}
        return condition.get("reason") == reason

    await world.wait_for_binding(plane, is_reached)


async def port_of(world: HostWorld, plane: str) -> int:
    port: int = (await world.management.get(PLANES, plane))["status"]["dnsPort"]
    return port


async def create_service(client: Client, name: str, **spec: Any) -> Object:
    """Create a Service, and return it when it has an address."""
    await client.create(SERVICES, {**object_named(name, "default"), "spec": spec})
    found = await wait_for(
        *(client, SERVICES, name, "default"),
        until=lambda each: (
            bool(value_at(each, "spec", "clusterIP")) or value_at(each, "spec", "type") == "ExternalName"
        ),
        timeout=TIMEOUT,
    )
    assert found is not None
    return found


async def test_each_tenant_resolves_its_own_names(tmp_path: Path) -> None:
    ports = f"{min(free := consecutive_ports(2))}-{max(free)}"
    async with (
        running_upstream({"example.com": ["192.0.2.7"]}) as upstream,
        host_world(tmp_path, dns_port_range=ports) as world,
    ):
        blue, green = await prepared(world, upstream.port, "blue", "green")
        first, second = await port_of(world, "blue"), await port_of(world, "green")
        assert {first, second} <= set(free)
        web = await create_service(world.tenant_client(blue), "web", ports=[{"port": 80}])
        name = f"web.default.svc.{DOMAIN}"
        assert await ask(first, name) == (Code.NOERROR, [web["spec"]["clusterIP"]])
        assert await ask(second, name) == (Code.NXDOMAIN, [])
        reverse = ipaddress.ip_address(web["spec"]["clusterIP"]).reverse_pointer
        assert (await ask(first, reverse, Type.PTR))[0] == Code.NOERROR
        assert (await ask(second, reverse, Type.PTR))[0] == Code.NXDOMAIN
        for port in (first, second):
            assert await ask(port, "example.com") == (Code.NOERROR, ["192.0.2.7"])
        assert upstream.names() == {"example.com"}
        assert {id: each.forwarded for id, each in COUNTS.items()} == {blue: 1, green: 1}
        await headless_service_has_addresses(world.tenant_client(blue), first)
        await twins_use_the_resolver(world, blue)
        await world.tenant_client(green).create(SERVICES, external_service("out"))
        assert await ask(second, f"out.default.svc.{DOMAIN}") == (Code.NXDOMAIN, [])


def external_service(name: str) -> Object:
    return {**object_named(name, "default"), "spec": {"type": "ExternalName", "externalName": "example.com"}}


async def headless_service_has_addresses(client: Client, port: int) -> None:
    pod = await run_pod(client, "db-0")
    address = pod["status"]["podIP"]
    ports = [{"port": 5432, "name": "db"}]
    await client.create(SERVICES, {**object_named("db", "default"), "spec": {"clusterIP": "None", "ports": ports}})
    endpoint = {"addresses": [address], "hostname": "db-0", "conditions": {"ready": True}}
    slice = object_named("db-0", "default")
    slice["metadata"]["labels"] = {"kubernetes.io/service-name": "db"}
    await client.create(ENDPOINT_SLICES, {**slice, "addressType": "IPv4", "endpoints": [endpoint], "ports": ports})
    assert await ask(port, f"db.default.svc.{DOMAIN}") == (Code.NOERROR, [address])
    assert await ask(port, f"db-0.db.default.svc.{DOMAIN}") == (Code.NOERROR, [address])


async def twins_use_the_resolver(world: HostWorld, plane: str) -> None:
    [service] = [
        each
        for each in await world.host.client.list(SERVICES, labels="tapestry.io/tenant-setup=true")
        if each["metadata"]["name"] == "tapestry-dns" and plane in each["metadata"]["namespace"]
    ]
    assert [each["port"] for each in service["spec"]["ports"]] == [53, 53]
    [twin] = await world.host.client.list(PODS, service["metadata"]["namespace"])
    assert twin["spec"]["dnsPolicy"] == "None"
    assert twin["spec"]["dnsConfig"] == {
        "nameservers": [service["spec"]["clusterIP"]],
        "searches": ["default.svc.cluster.local", "svc.cluster.local", "cluster.local"],
        "options": [{"name": "ndots", "value": "5"}],
    }


async def test_names_stay_while_the_plane_is_suspended(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    async with running_upstream() as upstream, host_world(tmp_path, dns_port_range=f"{port}-{port}") as world:
        (blue,) = await prepared(world, upstream.port, "blue", isolation={"mode": "lite"})
        web = await create_service(world.tenant_client(blue), "web", ports=[{"port": 80}])
        entry = world.process.plane_set.get(blue)
        assert entry is not None
        await world.process.plane_set.close(entry, PlaneState.SUSPENDED)
        assert await ask(port, f"web.default.svc.{DOMAIN}") == (Code.NOERROR, [web["spec"]["clusterIP"]])
        assert await ask(port, f"missing.default.svc.{DOMAIN}") == (Code.NXDOMAIN, [])


async def test_conditions_say_why_there_is_no_dns(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    async with host_world(tmp_path, dns_port_range=f"{port}-{port}") as world:
        await world.add_tenant("blue")
        await wait_for_reason(world, "blue", "HostHasNoDnsAddress")
        await world.add_tenant("green")
        await wait_for_reason(world, "green", "NoPort")
        await world.management.patch(HOST_CLUSTERS, object_named("east"), {"spec": {"dnsAddress": "192.0.2.10"}})
        await wait_for_reason(world, "blue", "Available")
        leased = {"metadata": {"labels": {"tapestry.io/node-type": "virtual"}}}
        node = object_named(name_of((await world.host.client.list(NODES))[0]))
        await world.host.client.patch(NODES, node, leased)
        await wait_for_reason(world, "blue", "HostHasLeasedNodes")
        services = await world.host.client.list(SERVICES, labels="tapestry.io/tenant-setup=true")
        assert services == []
        await world.management.delete(CLUSTER_BINDINGS, object_named("blue"))
        await world.wait_for_binding("blue", lambda each: each is None)
        await world.host.client.patch(NODES, node, {"metadata": {"labels": {"tapestry.io/node-type": None}}})
        await wait_for_reason(world, "green", "Available")


@pytest.mark.parametrize(
    ("mode", "refused", "returned"),
    [
        ("full", ["10.0.0.1", "192.168.1.1", "169.254.169.254", "192.0.2.10", "127.0.0.1", "fd00::1"], ["192.0.2.1"]),
        ("lite", ["169.254.169.254", "192.0.2.10", "127.0.0.1"], ["10.0.0.1", "192.0.2.1"]),
    ],
)
def test_addresses_that_pods_do_not_reach_are_refused(mode: str, refused: list[str], returned: list[str]) -> None:
    rules = dns_rules(tenant_binding(isolation={"mode": mode}), SYSTEM)
    assert [each for each in (*refused, *returned) if rules.refuses(each)] == refused
    assert rules.allows_external_names == (mode == "lite")
    assert rules.refused_domains == SYSTEM.cluster_domains
    assert rules.servers == SYSTEM.servers


def test_only_networks_of_the_host_are_clients() -> None:
    rules = dns_rules(tenant_binding(), SYSTEM)
    accepted = ["10.1.2.3", "192.168.0.1", "127.0.0.1", "::ffff:10.1.2.3", "fd00::1", "192.0.2.10"]
    assert [
        each for each in (*accepted, "8.8.8.8", "192.0.2.11", "2001:db8::1", "x") if rules.accepts(each)
    ] == accepted
