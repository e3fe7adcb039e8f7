"""Services get addresses and ports that no other has, keep them, and give them back."""

import asyncio
import ipaddress
import random
from typing import Any

import pytest

from tapestry.apiserver import kubernetes_service
from tapestry.apiserver.service_allocator import (
    ServiceAllocator,
    allocated_values,
    drop_type_dependent_fields,
    patch_allocated_values,
)
from tapestry.kube.objects import Object

from .conftest import Hand

SERVICES = "/api/v1/namespaces/default/services"
MERGE = "application/merge-patch+json"
RANGE = ipaddress.ip_network("10.0.0.0/24")


def a_service(name: str = "s", **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}


async def test_a_service_gets_an_address_of_the_range(call: Hand) -> None:
    spec = (await call.made(SERVICES, a_service()))["spec"]
    assert ipaddress.ip_address(spec["clusterIP"]) in RANGE
    assert (spec["clusterIPs"], spec["ipFamilies"]) == ([spec["clusterIP"]], ["IPv4"])
    assert spec["ipFamilyPolicy"] == "SingleStack"


async def test_no_two_services_share_an_address_even_when_made_at_once(call: Hand) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(call.made(SERVICES, a_service(f"s{number}"))) for number in range(100)]
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
async def test_of_many_services_that_ask_at_once_for_the_same_one_gets_it(call: Hand, spec: Object, words: str) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(call("POST", SERVICES, a_service(f"s{number}", **spec))) for number in range(10)]
    found = [task.result() for task in tasks]
    assert sorted(status for status, _ in found) == [201] + [422] * 9
    assert all(words in answer["message"] for status, answer in found if status == 422)


async def test_what_was_asked_for_in_vain_is_free_to_whoever_asks_next(call: Hand) -> None:
    wrong = a_service("a", clusterIP="10.0.0.7", sessionAffinity="Sometimes")
    assert (await call("POST", SERVICES, wrong))[0] == 422
    await call.made(SERVICES, a_service("b", clusterIP="10.0.0.7"))


async def test_a_headless_service_has_none(call: Hand) -> None:
    spec = (await call.made(SERVICES, a_service(clusterIP="None", selector={"a": "b"})))["spec"]
    assert (spec["clusterIP"], spec["clusterIPs"]) == ("None", ["None"])


async def test_an_address_that_is_taken_or_out_of_range_is_refused(call: Hand) -> None:
    await call.made(SERVICES, a_service(clusterIP="10.0.0.7"))
    status, found = await call("POST", SERVICES, a_service("t", clusterIP="10.0.0.7"))
    assert (status, found["message"].endswith("provided IP is already allocated")) == (422, True)
    status, found = await call("POST", SERVICES, a_service("t", clusterIP="10.9.0.7"))
    assert (status, found["message"].endswith("The range of valid IPs is 10.0.0.0/24")) == (422, True)


async def test_an_address_is_free_again_after_its_service(call: Hand) -> None:
    await call.made(SERVICES, a_service(clusterIP="10.0.0.7"))
    await call("DELETE", f"{SERVICES}/s")
    assert (await call("POST", SERVICES, a_service("t", clusterIP="10.0.0.7")))[0] == 201


async def test_an_update_that_is_silent_about_the_address_keeps_it(call: Hand) -> None:
    before = (await call.made(SERVICES, a_service()))["spec"]["clusterIP"]
    status, found = await call("PUT", f"{SERVICES}/s", a_service(ports=[{"port": 81}]))
    assert (status, found["spec"]["clusterIP"]) == (200, before)


async def test_an_address_does_not_change(call: Hand) -> None:
    await call.made(SERVICES, a_service())
    status, found = await call("PATCH", f"{SERVICES}/s", {"spec": {"clusterIP": "10.0.0.9"}}, kind=MERGE)
    assert (status, "may not change once set" in found["message"]) == (422, True)


async def test_a_node_port_comes_with_the_type_and_goes_with_it(call: Hand) -> None:
    made = await call.made(SERVICES, a_service(type="NodePort"))
    assert 30000 <= made["spec"]["ports"][0]["nodePort"] <= 32767
    _, found = await call("PATCH", f"{SERVICES}/s", {"spec": {"type": "ClusterIP"}}, kind=MERGE)
    assert "nodePort" not in found["spec"]["ports"][0]
    assert "externalTrafficPolicy" not in found["spec"]


async def test_a_service_that_is_only_a_name_has_neither(call: Hand) -> None:
    await call.made(SERVICES, a_service())
    patch = {"spec": {"type": "ExternalName", "externalName": "example.com"}}
    _, found = await call("PATCH", f"{SERVICES}/s", patch, kind=MERGE)
    assert not list(allocated_values(found))


async def test_a_dry_run_takes_nothing(call: Hand) -> None:
    for _ in range(600):
        status, found = await call("POST", SERVICES, a_service(type="NodePort"), dryRun="All")
        assert status == 201, found


async def test_what_is_in_use_is_known_after_a_restart(call: Hand) -> None:
    made = await call.made(SERVICES, a_service(type="NodePort"))
    again = ServiceAllocator(call.server.verbs.store, RANGE, random.Random(1))
    again.load()
    assert not any(again.is_free(value) for value in allocated_values(made))


async def test_a_full_range_says_so(call: Hand) -> None:
    for number in range(2, 255):
        await call.made(SERVICES, a_service(f"s{number}", clusterIP=f"10.0.0.{number}"))
    status, found = await call("POST", SERVICES, a_service())
    assert (status, "range is full" in found["message"]) == (500, True)


def test_ports_keep_their_node_ports_wherever_they_stand() -> None:
    before = {"type": "NodePort", "ports": [{"port": 1, "nodePort": 30001}, {"port": 2, "nodePort": 30002}]}
    after = {"type": "NodePort", "ports": [{"port": 2}, {"port": 3}, {"port": 1}]}
    found = drop_type_dependent_fields(before, patch_allocated_values(before, after))
    assert [each.get("nodePort") for each in found["ports"]] == [30002, None, 30001]


async def test_the_server_is_a_service_itself(call: Hand) -> None:
    await kubernetes_service.publish_service(call.server, RANGE, "10.1.2.3", 6443)
    await kubernetes_service.publish_service(call.server, RANGE, "10.1.2.4", 7443)  # it came back at another place
    _, service = await call("GET", f"{SERVICES}/kubernetes")
    assert service["spec"]["clusterIP"] == "10.0.0.1"
    _, endpoints = await call("GET", "/api/v1/namespaces/default/endpoints/kubernetes")
    assert endpoints["subsets"][0]["addresses"] == [{"ip": "10.1.2.4"}]
    _, found = await call("GET", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes")
    assert (found["endpoints"][0]["addresses"], found["ports"][0]["port"]) == (["10.1.2.4"], 7443)
    _, cidr = await call("GET", "/apis/networking.k8s.io/v1/servicecidrs/kubernetes")
    assert (cidr["spec"]["cidrs"], cidr["status"]["conditions"][0]["status"]) == (["10.0.0.0/24"], "True")


@pytest.mark.parametrize("host", ["10.1.2.3", "fd00::1"])
def test_an_address_that_others_reach_is_told_as_it_is(host: str) -> None:
    assert kubernetes_service.advertise_address(host) == host


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_loopback_is_told_to_nobody(host: str) -> None:
    found = kubernetes_service.advertise_address(host)
    assert found is None or not ipaddress.ip_address(found).is_loopback
