"""What is said to be behind Services."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.client.client import Client
from tapestry.controlplane.endpoints import (
    ENDPOINT_SLICE_MANAGER,
    MANAGED_BY,
    MAX_ENDPOINTS,
    MAX_ENDPOINTS_PER_SLICE,
    MIRRORING_MANAGER,
    OVER_CAPACITY,
    SERVICE_NAME,
    SliceSource,
    backends_from_endpoints,
    backends_from_pods,
    desired_slices,
    endpoints_of,
)
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, labels_of, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import ENDPOINT_SLICES, ENDPOINTS, NAMESPACES, NODES, PODS, SERVICES

from .worlds import in_a_world, settled

ANYBODY = {"app": "web"}


def nowhere(_: str) -> str:
    return ""


def a_service(selector: Object | None = ANYBODY, **spec: Any) -> Object:
    ports = [{"name": "http", "port": 80, "targetPort": "web", "protocol": "TCP"}]
    chosen = {"selector": selector} if selector is not None else {}
    return {
        "metadata": {"name": "s", "namespace": "default", "uid": "1", "labels": {"team": "a"}},
        "apiVersion": "v1",
        "kind": "Service",
        "spec": {"clusterIP": "10.0.0.1", "ipFamilies": ["IPv4"], "ports": ports, **chosen, **spec},
    }


def a_pod(number: int = 1, *, port: int = 8080, ready: bool = True, leaving: bool = False, **spec: Any) -> Object:
    ports = [{"name": "web", "containerPort": port, "protocol": "TCP"}]
    leave = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if leaving else {}
    said = {"type": "Ready", "status": str(ready), "lastTransitionTime": "2026-01-01T00:00:00Z"}
    address = f"10.128.{number // 250}.{number % 250 + 1}"
    return {
        "metadata": {"name": f"p{number}", "namespace": "default", "uid": f"u{number}", "labels": ANYBODY, **leave},
        "spec": {"nodeName": "n0", "containers": [{"name": "c", "image": "web", "ports": ports}], **spec},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": [said]},
    }


def told(service: Object, *pods: Object) -> list[tuple[Any, ...]]:
    """Who is in the slices, and how they are."""
    found = desired_slices(SliceSource(service, ENDPOINT_SLICE_MANAGER), backends_from_pods(service, pods, nowhere), [])
    return [
        (value_at(each, "targetRef", "name"), *each["conditions"].values())
        for part in found
        for each in part["endpoints"]
    ]


def subsets(service: Object, *pods: Object) -> Any:
    return endpoints_of(service, backends_from_pods(service, pods, nowhere))["subsets"]


# -- pure


def test_a_backend_is_as_its_pod_is() -> None:
    pods = (a_pod(1), a_pod(2, ready=False), a_pod(3, leaving=True))
    assert told(a_service(), *pods) == [
        ("p1", True, True, False),
        ("p2", False, False, False),
        ("p3", False, True, True),
    ]
    anyway = a_service(publishNotReadyAddresses=True)
    assert [ready for _, ready, *_ in told(anyway, *pods)] == [True, True, True]


def test_a_pod_that_is_over_or_has_no_address_is_behind_nothing() -> None:
    over = {**a_pod(1), "status": {**a_pod(1)["status"], "phase": "Succeeded"}}
    nowhere = {**a_pod(2), "status": {"phase": "Pending"}}
    assert told(a_service(), over, nowhere) == []


def test_endpoints_leave_out_who_is_leaving_and_tell_apart_who_is_not_ready() -> None:
    (only,) = subsets(a_service(), a_pod(1), a_pod(2, ready=False), a_pod(3, leaving=True))
    assert [each["ip"] for each in only["addresses"]] == ["10.128.0.2"]
    assert [each["targetRef"]["name"] for each in only["notReadyAddresses"]] == ["p2"]
    assert only["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]


def test_pods_that_mean_other_ports_by_a_name_are_told_apart() -> None:
    service, pods = a_service(), [a_pod(1), a_pod(2, port=9090), a_pod(3)]
    found = desired_slices(SliceSource(service, ENDPOINT_SLICE_MANAGER), backends_from_pods(service, pods, nowhere), [])
    assert sorted((part["ports"][0]["port"], len(part["endpoints"])) for part in found) == [(8080, 2), (9090, 1)]
    assert len({name_of(each) for each in found}) == 2
    assert [(each["ports"][0]["port"], len(each["addresses"])) for each in subsets(service, *pods)] == [
        (8080, 2),
        (9090, 1),
    ]


def test_a_pod_without_the_port_is_behind_a_service_without_it() -> None:
    (only,) = subsets(a_service(ports=[{"name": "x", "port": 1, "targetPort": "other", "protocol": "TCP"}]), a_pod(1))
    assert "ports" not in only
    assert len(only["addresses"]) == 1


def test_a_pod_is_known_by_its_name_in_the_domain_of_its_service_only() -> None:
    for domain, known in (("s", "p"), ("other", None)):
        (backend,) = backends_from_pods(
            a_service(), [a_pod(1, hostname="p", subdomain=domain)], {"n0": "z"}.__getitem__
        )
        assert backend.attributes.get("hostname") == known
        assert backend.zone == "z"


def test_a_service_that_loses_its_last_endpoint_keeps_its_slice() -> None:
    service = a_service()
    origin = SliceSource(service, ENDPOINT_SLICE_MANAGER)
    held = desired_slices(origin, backends_from_pods(service, [a_pod(1)], nowhere), [])
    (empty,) = desired_slices(origin, [], held)
    assert (empty["metadata"]["name"], empty["endpoints"]) == (held[0]["metadata"]["name"], [])
    (again,) = desired_slices(origin, backends_from_pods(service, [a_pod(2)], nowhere), [empty])
    assert again["metadata"]["name"] == empty["metadata"]["name"]
    (other,) = desired_slices(origin, backends_from_pods(service, [a_pod(2, port=9090)], nowhere), [again])
    assert other["metadata"]["name"] == again["metadata"]["name"]


def test_a_slice_never_takes_the_name_of_one_of_another_family() -> None:
    service = a_service()
    theirs = {"metadata": {"name": "six"}, "addressType": "IPv6", "endpoints": [], "ports": []}
    (found,) = desired_slices(
        SliceSource(service, ENDPOINT_SLICE_MANAGER), backends_from_pods(service, [a_pod(1)], nowhere), [theirs]
    )
    assert found["metadata"]["name"] != "six"


def test_a_service_with_nothing_behind_it_has_one_empty_slice() -> None:
    (only,) = desired_slices(SliceSource(a_service(), ENDPOINT_SLICE_MANAGER), [], [])
    assert only["endpoints"] == only["ports"] == []
    assert only["metadata"]["labels"] == {"team": "a", SERVICE_NAME: "s", MANAGED_BY: ENDPOINT_SLICE_MANAGER}


def test_endpoints_name_a_thousand_at_most_and_say_so() -> None:
    service = a_service()
    found = endpoints_of(
        service, backends_from_pods(service, [a_pod(number) for number in range(MAX_ENDPOINTS + 1)], nowhere)
    )
    assert len(found["subsets"][0]["addresses"]) == MAX_ENDPOINTS
    assert found["metadata"]["annotations"][OVER_CAPACITY] == "truncated"


def test_what_is_written_into_endpoints_is_behind_a_service_without_a_selector() -> None:
    subset = {"addresses": [{"ip": "10.1.2.3"}], "notReadyAddresses": [{"ip": "fd00::1"}], "ports": [{"port": 80}]}
    metadata = {"name": "s", "namespace": "default", "uid": "1"}
    theirs = {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": [subset]}
    found = desired_slices(SliceSource(theirs, MIRRORING_MANAGER), backends_from_endpoints(theirs), [])
    assert [(each["addressType"], each["endpoints"][0]["conditions"]["ready"]) for each in found] == [
        ("IPv4", True),
        ("IPv6", False),
    ]
    assert found[0]["ports"] == [{"name": "", "port": 80, "protocol": "TCP"}]
    assert desired_slices(SliceSource(theirs, MIRRORING_MANAGER), [], found) == []


@given(st.lists(st.sets(st.integers(0, 400), max_size=350), min_size=1, max_size=4))
def test_whoever_comes_and_goes_everybody_is_in_one_slice_and_those_who_stay_stay_in_theirs(
    crowds: list[set[int]],
) -> None:
    service, held, where = a_service(), list[Object](), dict[str, str]()
    for crowd in crowds:
        pods = [a_pod(number) for number in sorted(crowd)]
        held = desired_slices(
            SliceSource(service, ENDPOINT_SLICE_MANAGER), backends_from_pods(service, pods, nowhere), held
        )
        sizes = [len(part["endpoints"]) for part in held]
        assert max(sizes) <= MAX_ENDPOINTS_PER_SLICE
        assert min(sizes) > 0 or not crowd
        now = {each["targetRef"]["name"]: name_of(part) for part in held for each in part["endpoints"]}
        assert now.keys() == {f"p{number}" for number in crowd}
        assert sum(sizes) == len(crowd)
        assert all(now[name] == place for name, place in where.items() if name in now)
        assert len({name_of(part) for part in held}) == len(held)
        where = now


# -- at work


def web(name: str, labels: Object = ANYBODY) -> Object:
    ports = [{"name": "web", "containerPort": 8080}]
    spec = {"containers": [{"name": "c", "image": "web", "ports": ports}]}
    return {"metadata": {"name": name, "namespace": "default", "labels": labels}, "spec": spec}


def plain(selector: Object | None = ANYBODY) -> Object:
    chosen = {"selector": selector} if selector is not None else {}
    ports = [{"name": "http", "port": 80, "targetPort": "web"}]
    return {"metadata": {"name": "s", "namespace": "default"}, "spec": {**chosen, "ports": ports}}


async def in_slices(client: Client) -> list[str]:
    found = await client.list(ENDPOINT_SLICES, "default", labels=f"{SERVICE_NAME}=s")
    return sorted(value_at(each, "targetRef", "name") for part in found for each in part.get("endpoints") or ())


async def in_endpoints(client: Client) -> list[str]:
    found = await client.get(ENDPOINTS, "s", "default")
    every = [each for subset in found.get("subsets") or () for each in subset.get("addresses") or ()]
    return sorted(value_at(each, "targetRef", "name") for each in every)


@in_a_world("services")
async def test_a_service_is_followed_through_its_life(client: Client) -> None:
    await client.create(SERVICES, plain())
    await settled()
    assert await in_slices(client) == await in_endpoints(client) == []
    for name in ("a", "b"):
        await client.create(PODS, web(name))
    await client.create(PODS, web("c", {"app": "other"}))
    await settled()
    assert await in_slices(client) == await in_endpoints(client) == ["a", "b"]
    await client.patch(PODS, object_named("c", "default"), {"metadata": {"labels": ANYBODY}})
    await client.delete(PODS, object_named("a", "default"))
    await settled()
    assert await in_slices(client) == await in_endpoints(client) == ["b", "c"]
    [before] = await client.list(ENDPOINT_SLICES, "default")
    for name in ("b", "c"):
        await client.delete(PODS, object_named(name, "default"))
    await settled()
    [after] = await client.list(ENDPOINT_SLICES, "default")
    assert (uid_of(after), after.get("endpoints") or []) == (uid_of(before), [])
    await client.delete(SERVICES, object_named("s", "default"))
    await settled()
    assert await in_slices(client) == []
    with pytest.raises(NotFound):
        await client.get(ENDPOINTS, "s", "default")


@in_a_world("services")
async def test_what_is_behind_a_service_has_its_labels_and_no_others(client: Client) -> None:
    await client.create(SERVICES, plain())
    for labels in ({"a": "1", "b": "1"}, {"b": None}):
        await client.patch(SERVICES, object_named("s", "default"), {"metadata": {"labels": labels}})
        await settled()
    for resource in (ENDPOINTS, ENDPOINT_SLICES):
        (found,) = [each for each in await client.list(resource, "default") if name_of(each).startswith("s")]
        assert {key: value for key, value in labels_of(found).items() if "/" not in key} == {"a": "1"}


@in_a_world("services", "namespaces")
async def test_a_namespace_that_goes_takes_its_services_along(client: Client) -> None:
    await client.create(NAMESPACES, {"metadata": {"name": "brief"}})
    elsewhere = {**plain(), "metadata": {"name": "s", "namespace": "brief"}}
    await client.create(SERVICES, elsewhere)
    await settled()
    assert await client.list(ENDPOINTS, "brief")
    await client.delete(NAMESPACES, object_named("brief"))
    await settled()
    with pytest.raises(NotFound):
        await client.get(NAMESPACES, "brief")


@in_a_world("services")
async def test_slices_that_somebody_deletes_or_changes_come_back(client: Client) -> None:
    await client.create(SERVICES, plain())
    await client.create(PODS, web("a"))
    await settled()
    (first,) = await client.list(ENDPOINT_SLICES, "default", labels=f"{SERVICE_NAME}=s")
    await client.delete(ENDPOINT_SLICES, first)
    await client.patch(ENDPOINTS, object_named("s", "default"), {"subsets": None})
    await settled()
    (second,) = await client.list(ENDPOINT_SLICES, "default", labels=f"{SERVICE_NAME}=s")
    assert uid_of(second) != uid_of(first)
    assert await in_slices(client) == await in_endpoints(client) == ["a"]


@in_a_world("services")
async def test_what_is_said_already_is_not_written_again(client: Client) -> None:
    await client.create(SERVICES, plain())
    await client.create(PODS, web("a"))
    await settled()
    before = [*await client.list(ENDPOINT_SLICES, "default"), *await client.list(ENDPOINTS, "default")]
    await client.patch(PODS, object_named("a", "default"), {"metadata": {"annotations": {"of": "no interest"}}})
    await client.patch(SERVICES, object_named("s", "default"), {"spec": {"sessionAffinity": "ClientIP"}})
    await settled()
    assert before == [*await client.list(ENDPOINT_SLICES, "default"), *await client.list(ENDPOINTS, "default")]


@in_a_world("services")
async def test_slices_follow_what_others_write_into_endpoints(client: Client) -> None:
    await client.create(SERVICES, plain(selector=None))
    theirs = {"metadata": {"name": "s", "namespace": "default", "labels": {"of": "ours"}}}
    subsets = [{"addresses": [{"ip": "10.1.2.3"}], "ports": [{"port": 80}]}]
    await client.create(ENDPOINTS, {**theirs, "subsets": subsets})
    await settled()
    (found,) = await client.list(ENDPOINT_SLICES, "default", labels=f"{MANAGED_BY}={MIRRORING_MANAGER}")
    assert found["endpoints"][0]["addresses"] == ["10.1.2.3"]
    assert labels_of(found)["of"] == "ours"
    await client.patch(
        ENDPOINTS, object_named("s", "default"), {"subsets": [{**subsets[0], "addresses": [{"ip": "10.2.3.4"}]}]}
    )
    await settled()
    (found,) = await client.list(ENDPOINT_SLICES, "default", labels=f"{MANAGED_BY}={MIRRORING_MANAGER}")
    assert found["endpoints"][0]["addresses"] == ["10.2.3.4"]
    await client.delete(SERVICES, object_named("s", "default"))
    await settled()
    assert await client.list(ENDPOINT_SLICES, "default", labels=f"{SERVICE_NAME}=s") == []
    assert await client.get(ENDPOINTS, "s", "default")  # it is not ours


@in_a_world("services")
async def test_endpoints_that_do_not_want_slices_have_none(client: Client) -> None:
    await client.create(SERVICES, plain(selector=None))
    quiet = {"endpointslice.kubernetes.io/skip-mirror": "true"}
    subsets = [{"addresses": [{"ip": "10.1.2.3"}], "ports": [{"port": 80}]}]
    await client.create(
        ENDPOINTS, {"metadata": {"name": "s", "namespace": "default", "labels": quiet}, "subsets": subsets}
    )
    await settled()
    assert await client.list(ENDPOINT_SLICES, "default", labels=f"{SERVICE_NAME}=s") == []


@in_a_world("services")
async def test_a_backend_is_in_the_zone_of_its_node(client: Client) -> None:
    for node in await client.list(NODES):
        zone = {"topology.kubernetes.io/zone": "east"}
        await client.patch(NODES, object_named(name_of(node)), {"metadata": {"labels": zone}})
    await client.create(SERVICES, plain())
    await client.create(PODS, web("a"))
    await settled()
    (found,) = await client.list(ENDPOINT_SLICES, "default", labels=f"{SERVICE_NAME}=s")
    assert found["endpoints"][0]["zone"] == "east"
