"""Services get unique addresses and ports, keep them, and release them on deletion."""

import asyncio
import ipaddress
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from msgspec import structs

from tapestry.apiserver import kubernetes_service
from tapestry.apiserver.core.requests import Call, CallOrigin
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.apiserver.core.store import Store
from tapestry.apiserver.service_allocator import (
    ServiceAllocator,
    allocated_values,
    drop_type_dependent_fields,
    patch_allocated_values,
)
from tapestry.apiserver.storage.local_store import LocalStore
from tapestry.apiserver.storage.log import Entry, MemoryLog
from tapestry.kube.objects import Object

from .conftest import ADMIN, ServerClient

SERVICES = "/api/v1/namespaces/default/services"
MERGE = "application/merge-patch+json"
RANGE = ipaddress.ip_network("10.0.0.0/24")


def new_service(name: str = "s", **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}


async def test_service_gets_address_from_range(call: ServerClient) -> None:
    spec = (await call.made(SERVICES, new_service()))["spec"]
    assert ipaddress.ip_address(spec["clusterIP"]) in RANGE
    assert (spec["clusterIPs"], spec["ipFamilies"]) == ([spec["clusterIP"]], ["IPv4"])
    assert spec["ipFamilyPolicy"] == "SingleStack"


async def test_concurrent_services_get_distinct_addresses(call: ServerClient) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(call.made(SERVICES, new_service(f"s{number}"))) for number in range(100)]
    assert len({task.result()["spec"]["clusterIP"] for task in tasks}) == 100


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"clusterIP": "10.0.0.7"}, "provided IP is already allocated"),
        ({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]}, "provided port is already allocated"),
        (
            {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30081},
            "provided port is already allocated",
        ),
    ],
)
async def test_one_of_concurrent_requests_gets_the_value(call: ServerClient, spec: Object, words: str) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(call("POST", SERVICES, new_service(f"s{number}", **spec))) for number in range(10)]
    result = [task.result() for task in tasks]
    assert sorted(status for status, _ in result) == [201] + [422] * 9
    assert all(words in response["message"] for status, response in result if status == 422)


async def test_rejected_request_does_not_keep_its_address(call: ServerClient) -> None:
    invalid = new_service("a", clusterIP="10.0.0.7", sessionAffinity="Sometimes")
    assert (await call("POST", SERVICES, invalid))[0] == 422
    await call.made(SERVICES, new_service("b", clusterIP="10.0.0.7"))


async def test_headless_service_has_no_address(call: ServerClient) -> None:
    spec = (await call.made(SERVICES, new_service(clusterIP="None", selector={"a": "b"})))["spec"]
    assert (spec["clusterIP"], spec["clusterIPs"]) == ("None", ["None"])


async def test_taken_or_outside_address_is_rejected(call: ServerClient) -> None:
    await call.made(SERVICES, new_service(clusterIP="10.0.0.7"))
    status, result = await call("POST", SERVICES, new_service("t", clusterIP="10.0.0.7"))
    assert (status, result["message"].endswith("provided IP is already allocated")) == (422, True)
    status, result = await call("POST", SERVICES, new_service("t", clusterIP="10.9.0.7"))
    assert (status, result["message"].endswith("The range of valid IPs is 10.0.0.0/24")) == (422, True)


async def test_address_is_free_after_deletion(call: ServerClient) -> None:
    await call.made(SERVICES, new_service(clusterIP="10.0.0.7"))
    await call("DELETE", f"{SERVICES}/s")
    assert (await call("POST", SERVICES, new_service("t", clusterIP="10.0.0.7")))[0] == 201


async def test_update_without_address_keeps_it(call: ServerClient) -> None:
    before = (await call.made(SERVICES, new_service()))["spec"]["clusterIP"]
    status, result = await call("PUT", f"{SERVICES}/s", new_service(ports=[{"port": 81}]))
    assert (status, result["spec"]["clusterIP"]) == (200, before)


async def test_address_is_immutable(call: ServerClient) -> None:
    await call.made(SERVICES, new_service())
    status, result = await call("PATCH", f"{SERVICES}/s", {"spec": {"clusterIP": "10.0.0.9"}}, kind=MERGE)
    assert (status, "may not change once set" in result["message"]) == (422, True)


async def test_node_port_follows_the_service_type(call: ServerClient) -> None:
    created = await call.made(SERVICES, new_service(type="NodePort"))
    assert 30000 <= created["spec"]["ports"][0]["nodePort"] <= 32767
    _, result = await call("PATCH", f"{SERVICES}/s", {"spec": {"type": "ClusterIP"}}, kind=MERGE)
    assert "nodePort" not in result["spec"]["ports"][0]
    assert "externalTrafficPolicy" not in result["spec"]


async def test_external_name_has_no_address_or_port(call: ServerClient) -> None:
    await call.made(SERVICES, new_service())
    patch = {"spec": {"type": "ExternalName", "externalName": "example.com"}}
    _, result = await call("PATCH", f"{SERVICES}/s", patch, kind=MERGE)
    assert not list(allocated_values(result))


async def test_dry_run_allocates_nothing(call: ServerClient) -> None:
    for _ in range(600):
        status, result = await call("POST", SERVICES, new_service(type="NodePort"), dryRun="All")
        assert status == 201, result


class FullLog(MemoryLog):
    """A log that has the objects of a store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def load(self) -> tuple[int, Iterator[Entry]]:
        versions = (each for resource in self.store.resources() for each in self.store.list_objects(resource))
        return self.store.revision, (Entry(each.revision, each.key, each.raw) for each in versions)


async def test_allocations_are_loaded_after_restart(call: ServerClient) -> None:
    created = await call.made(SERVICES, new_service(type="NodePort"))
    store = LocalStore(FullLog(call.server.verbs.store), ThreadPoolExecutor(1))
    again = ServiceAllocator(store, RANGE, random.Random(1))
    await store.load()
    assert not any(again.is_free(value) for value in allocated_values(created))


async def test_full_range_is_reported(call: ServerClient) -> None:
    for number in range(2, 255):
        await call.made(SERVICES, new_service(f"s{number}", clusterIP=f"10.0.0.{number}"))
    status, result = await call("POST", SERVICES, new_service())
    assert (status, "range is full" in result["message"]) == (500, True)


def test_reordered_ports_keep_their_node_ports() -> None:
    before = {"type": "NodePort", "ports": [{"port": 1, "nodePort": 30001}, {"port": 2, "nodePort": 30002}]}
    after = {"type": "NodePort", "ports": [{"port": 2}, {"port": 3}, {"port": 1}]}
    result = drop_type_dependent_fields(before, patch_allocated_values(before, after))
    assert [each.get("nodePort") for each in result["ports"]] == [30002, None, 30001]


# -- in a plane whose pods run in a host cluster


@pytest.fixture
def tenant(call: ServerClient) -> ServerClient:
    """A client of a plane in which the syncer of its tenant writes addresses."""
    call.server.syncer_restriction.enable(())
    return call


async def as_syncer(call: ServerClient, path: str, patch: Object) -> tuple[int, Object]:
    """Send a merge patch of the syncer."""
    api_call = Call("PATCH", path, {}, {"content-type": MERGE}, msgspec.json.encode(patch), ADMIN)
    response = await call.server.handle(structs.replace(api_call, origin=CallOrigin.SYNCER))
    assert isinstance(response, ApiResponse)
    return response.status, msgspec.json.decode(response.body)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"type": "NodePort"},
        {"type": "LoadBalancer", "externalTrafficPolicy": "Local"},
        {"ports": [{"port": 80}, {"port": 81, "name": "b"}]},
    ],
    ids=str,
)
async def test_tenants_get_no_address_from_the_plane(tenant: ServerClient, spec: Object) -> None:
    if len(spec.get("ports", ())) > 1:
        spec["ports"][0]["name"] = "a"
    found = (await tenant.made(SERVICES, new_service(**spec)))["spec"]
    assert not found.get("clusterIP")
    assert not found.get("clusterIPs")
    assert not any(each.get("nodePort") for each in found["ports"])
    assert not found.get("healthCheckNodePort")


async def test_syncer_writes_and_replaces_addresses(tenant: ServerClient) -> None:
    await tenant.made(SERVICES, new_service())
    for address in ("172.20.0.9", "172.20.0.10"):  # outside the range of the plane
        patch = {"spec": {"clusterIP": address, "clusterIPs": [address]}}
        status, found = await as_syncer(tenant, f"{SERVICES}/s", patch)
        assert (status, found["spec"].get("clusterIP")) == (200, address), found


async def test_syncer_writes_addresses_of_either_family(tenant: ServerClient) -> None:
    await tenant.made(SERVICES, new_service())
    both = {"clusterIP": "fd00::7", "clusterIPs": ["fd00::7", "10.3.0.7"], "ipFamilies": ["IPv6", "IPv4"]}
    status, found = await as_syncer(tenant, f"{SERVICES}/s", {"spec": {**both, "ipFamilyPolicy": "PreferDualStack"}})
    assert (status, found["spec"]["clusterIPs"]) == (200, both["clusterIPs"]), found
    one = {"clusterIP": "10.3.0.8", "clusterIPs": ["10.3.0.8"], "ipFamilies": ["IPv4"]}
    status, found = await as_syncer(tenant, f"{SERVICES}/s", {"spec": {**one, "ipFamilyPolicy": "SingleStack"}})
    assert (status, found["spec"]["ipFamilies"]) == (200, ["IPv4"]), found


@pytest.mark.parametrize("address", ["10.3.0", "not-an-address", "10.3.0.256", ""])
async def test_syncer_writes_only_valid_addresses(tenant: ServerClient, address: str) -> None:
    await tenant.made(SERVICES, new_service())
    patch = {"spec": {"clusterIP": address, "clusterIPs": [address]}}
    status, found = await as_syncer(tenant, f"{SERVICES}/s", patch)
    assert status == 422, found


async def test_update_keeps_the_addresses_of_the_host(tenant: ServerClient) -> None:
    body = await tenant.made(SERVICES, new_service())
    await as_syncer(tenant, f"{SERVICES}/s", {"spec": {"clusterIP": "10.3.0.7", "clusterIPs": ["10.3.0.7"]}})
    replaced = {**new_service(ports=[{"port": 81}]), "metadata": {"name": "s"}}
    status, found = await tenant("PUT", f"{SERVICES}/s", replaced)
    assert (status, found["spec"]["clusterIP"], found["spec"]["ports"][0]["port"]) == (200, "10.3.0.7", 81), found
    assert body["spec"]["ipFamilies"] == found["spec"]["ipFamilies"]


async def test_headless_and_external_services_stay_so(tenant: ServerClient) -> None:
    headless = (await tenant.made(SERVICES, new_service("h", clusterIP="None")))["spec"]
    assert (headless["clusterIP"], headless["clusterIPs"]) == ("None", ["None"])
    external = {"metadata": {"name": "e"}, "spec": {"type": "ExternalName", "externalName": "example.com"}}
    assert "clusterIP" not in (await tenant.made(SERVICES, external))["spec"]


async def test_two_services_may_get_the_same_address(tenant: ServerClient) -> None:
    """The host cluster decides; two planes or two of its clusters may use the same range."""
    for name in ("a", "b"):
        await tenant.made(SERVICES, new_service(name))
        patch = {"spec": {"clusterIP": "10.3.0.7", "clusterIPs": ["10.3.0.7"]}}
        status, found = await as_syncer(tenant, f"{SERVICES}/{name}", patch)
        assert status == 200, found


async def test_tenant_has_its_own_service_without_address(tenant: ServerClient) -> None:
    await kubernetes_service.publish_service(tenant.server, RANGE, "10.1.2.3", 6443)
    _, service = await tenant("GET", f"{SERVICES}/kubernetes")
    assert not service["spec"].get("clusterIP")
    assert service["spec"]["ports"][0]["port"] == 443


async def test_server_publishes_its_own_service(call: ServerClient) -> None:
    await kubernetes_service.publish_service(call.server, RANGE, "10.1.2.3", 6443)
    await kubernetes_service.publish_service(call.server, RANGE, "10.1.2.4", 7443)  # restarted at another address
    _, service = await call("GET", f"{SERVICES}/kubernetes")
    assert service["spec"]["clusterIP"] == "10.0.0.1"
    _, endpoints = await call("GET", "/api/v1/namespaces/default/endpoints/kubernetes")
    assert endpoints["subsets"][0]["addresses"] == [{"ip": "10.1.2.4"}]
    _, result = await call("GET", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes")
    assert (result["endpoints"][0]["addresses"], result["ports"][0]["port"]) == (["10.1.2.4"], 7443)
    _, cidr = await call("GET", "/apis/networking.k8s.io/v1/servicecidrs/kubernetes")
    assert (cidr["spec"]["cidrs"], cidr["status"]["conditions"][0]["status"]) == (["10.0.0.0/24"], "True")


@pytest.mark.parametrize("host", ["10.1.2.3", "fd00::1"])
def test_reachable_address_is_advertised(host: str) -> None:
    assert kubernetes_service.advertise_address(host) == host


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_loopback_is_not_advertised(host: str) -> None:
    result = kubernetes_service.advertise_address(host)
    assert result is None or not ipaddress.ip_address(result).is_loopback
