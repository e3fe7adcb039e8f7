"""Tests of endpoints and of the service endpoints controller."""

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

from .cluster import in_cluster, pass_time

SELECTOR = {"app": "web"}


def nowhere(_: str) -> str:
    return ""


def new_service(selector: Object | None = SELECTOR, **spec: Any) -> Object:
    ports = [{"name": "http", "port": 80, "targetPort": "web", "protocol": "TCP"}]
    selector_field = {"selector": selector} if selector is not None else {}
    return {
        "metadata": {"name": "s", "namespace": "default", "uid": "1", "labels": {"team": "a"}},
        "apiVersion": "v1",
        "kind": "Service",
        "spec": {"clusterIP": "10.0.0.1", "ipFamilies": ["IPv4"], "ports": ports, **selector_field, **spec},
    }


def new_pod(number: int = 1, *, port: int = 8080, ready: bool = True, terminating: bool = False, **spec: Any) -> Object:
    ports = [{"name": "web", "containerPort": port, "protocol": "TCP"}]
    leave = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if terminating else {}
    ready_condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": "2026-01-01T00:00:00Z"}
    address = f"10.128.{number // 250}.{number % 250 + 1}"
    return {
        "metadata": {"name": f"p{number}", "namespace": "default", "uid": f"u{number}", "labels": SELECTOR, **leave},
        "spec": {"nodeName": "n0", "containers": [{"name": "c", "image": "web", "ports": ports}], **spec},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": [ready_condition]},
    }


def slice_endpoints(service: Object, *pods: Object) -> list[tuple[Any, ...]]:
    """Return the pods in the slices, with their conditions."""
    found = desired_slices(SliceSource(service, ENDPOINT_SLICE_MANAGER), backends_from_pods(service, pods, nowhere), [])
    return [
        (value_at(each, "targetRef", "name"), *each["conditions"].values())
        for part in found
        for each in part["endpoints"]
    ]


def subsets(service: Object, *pods: Object) -> Any:
    return endpoints_of(service, backends_from_pods(service, pods, nowhere))["subsets"]


# -- pure


def test_backend_conditions_follow_pod() -> None:
    pods = (new_pod(1), new_pod(2, ready=False), new_pod(3, terminating=True))
    assert slice_endpoints(new_service(), *pods) == [
        ("p1", True, True, False),
        ("p2", False, False, False),
        ("p3", False, True, True),
    ]
    publishing = new_service(publishNotReadyAddresses=True)
    assert [ready for _, ready, *_ in slice_endpoints(publishing, *pods)] == [True, True, True]


def test_terminated_or_unaddressed_pod_is_no_endpoint() -> None:
    terminated = {**new_pod(1), "status": {**new_pod(1)["status"], "phase": "Succeeded"}}
    nowhere = {**new_pod(2), "status": {"phase": "Pending"}}
    assert slice_endpoints(new_service(), terminated, nowhere) == []


def test_endpoints_exclude_terminating_and_separate_unready() -> None:
    (only,) = subsets(new_service(), new_pod(1), new_pod(2, ready=False), new_pod(3, terminating=True))
    assert [each["ip"] for each in only["addresses"]] == ["10.128.0.2"]
    assert [each["targetRef"]["name"] for each in only["notReadyAddresses"]] == ["p2"]
    assert only["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]


def test_pods_are_grouped_by_resolved_ports() -> None:
    service, pods = new_service(), [new_pod(1), new_pod(2, port=9090), new_pod(3)]
    found = desired_slices(SliceSource(service, ENDPOINT_SLICE_MANAGER), backends_from_pods(service, pods, nowhere), [])
    assert sorted((part["ports"][0]["port"], len(part["endpoints"])) for part in found) == [(8080, 2), (9090, 1)]
    assert len({name_of(each) for each in found}) == 2
    assert [(each["ports"][0]["port"], len(each["addresses"])) for each in subsets(service, *pods)] == [
        (8080, 2),
        (9090, 1),
    ]


def test_pod_without_named_port_has_no_ports() -> None:
    (only,) = subsets(
        new_service(ports=[{"name": "x", "port": 1, "targetPort": "other", "protocol": "TCP"}]), new_pod(1)
    )
    assert "ports" not in only
    assert len(only["addresses"]) == 1


def test_hostname_is_set_only_in_own_subdomain() -> None:
    for domain, known in (("s", "p"), ("other", None)):
        (backend,) = backends_from_pods(
            new_service(), [new_pod(1, hostname="p", subdomain=domain)], {"n0": "z"}.__getitem__
        )
        assert backend.attributes.get("hostname") == known
        assert backend.zone == "z"


def test_slice_remains_without_endpoints() -> None:
    service = new_service()
    origin = SliceSource(service, ENDPOINT_SLICE_MANAGER)
    slices = desired_slices(origin, backends_from_pods(service, [new_pod(1)], nowhere), [])
    (empty,) = desired_slices(origin, [], slices)
    assert (empty["metadata"]["name"], empty["endpoints"]) == (slices[0]["metadata"]["name"], [])
    (reused,) = desired_slices(origin, backends_from_pods(service, [new_pod(2)], nowhere), [empty])
    assert reused["metadata"]["name"] == empty["metadata"]["name"]
    (other,) = desired_slices(origin, backends_from_pods(service, [new_pod(2, port=9090)], nowhere), [reused])
    assert other["metadata"]["name"] == reused["metadata"]["name"]


def test_slice_name_is_not_reused_across_families() -> None:
    service = new_service()
    user_written = {"metadata": {"name": "six"}, "addressType": "IPv6", "endpoints": [], "ports": []}
    (found,) = desired_slices(
        SliceSource(service, ENDPOINT_SLICE_MANAGER), backends_from_pods(service, [new_pod(1)], nowhere), [user_written]
    )
    assert found["metadata"]["name"] != "six"


def test_service_without_endpoints_has_one_slice() -> None:
    (only,) = desired_slices(SliceSource(new_service(), ENDPOINT_SLICE_MANAGER), [], [])
    assert only["endpoints"] == only["ports"] == []
    assert only["metadata"]["labels"] == {"team": "a", SERVICE_NAME: "s", MANAGED_BY: ENDPOINT_SLICE_MANAGER}


def test_endpoints_are_truncated_at_a_thousand() -> None:
    service = new_service()
    found = endpoints_of(
        service, backends_from_pods(service, [new_pod(number) for number in range(MAX_ENDPOINTS + 1)], nowhere)
    )
    assert len(found["subsets"][0]["addresses"]) == MAX_ENDPOINTS
    assert found["metadata"]["annotations"][OVER_CAPACITY] == "truncated"


def test_user_written_endpoints_become_slices() -> None:
    subset = {"addresses": [{"ip": "10.1.2.3"}], "notReadyAddresses": [{"ip": "fd00::1"}], "ports": [{"port": 80}]}
    metadata = {"name": "s", "namespace": "default", "uid": "1"}
    user_written = {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": [subset]}
    found = desired_slices(SliceSource(user_written, MIRRORING_MANAGER), backends_from_endpoints(user_written), [])
    assert [(each["addressType"], each["endpoints"][0]["conditions"]["ready"]) for each in found] == [
        ("IPv4", True),
        ("IPv6", False),
    ]
    assert found[0]["ports"] == [{"name": "", "port": 80, "protocol": "TCP"}]
    assert desired_slices(SliceSource(user_written, MIRRORING_MANAGER), [], found) == []


@given(st.lists(st.sets(st.integers(0, 400), max_size=350), min_size=1, max_size=4))
def test_pods_stay_in_their_slice_across_changes(
    pod_sets: list[set[int]],
) -> None:
    service, slices, assigned = new_service(), list[Object](), dict[str, str]()
    for pod_numbers in pod_sets:
        pods = [new_pod(number) for number in sorted(pod_numbers)]
        slices = desired_slices(
            SliceSource(service, ENDPOINT_SLICE_MANAGER), backends_from_pods(service, pods, nowhere), slices
        )
        sizes = [len(part["endpoints"]) for part in slices]
        assert max(sizes) <= MAX_ENDPOINTS_PER_SLICE
        assert min(sizes) > 0 or not pod_numbers
        now = {each["targetRef"]["name"]: name_of(part) for part in slices for each in part["endpoints"]}
        assert now.keys() == {f"p{number}" for number in pod_numbers}
        assert sum(sizes) == len(pod_numbers)
        assert all(now[name] == place for name, place in assigned.items() if name in now)
        assert len({name_of(part) for part in slices}) == len(slices)
        assigned = now


# -- in a cluster


def web(name: str, labels: Object = SELECTOR) -> Object:
    ports = [{"name": "web", "containerPort": 8080}]
    spec = {"containers": [{"name": "c", "image": "web", "ports": ports}]}
    return {"metadata": {"name": name, "namespace": "default", "labels": labels}, "spec": spec}


def plain(selector: Object | None = SELECTOR) -> Object:
    selector_field = {"selector": selector} if selector is not None else {}
    ports = [{"name": "http", "port": 80, "targetPort": "web"}]
    return {"metadata": {"name": "s", "namespace": "default"}, "spec": {**selector_field, "ports": ports}}


async def in_slices(client: Client) -> list[str]:
    found = await client.list(ENDPOINT_SLICES, "default", labels=f"{SERVICE_NAME}=s")
    return sorted(value_at(each, "targetRef", "name") for part in found for each in part.get("endpoints") or ())


async def in_endpoints(client: Client) -> list[str]:
    found = await client.get(ENDPOINTS, "s", "default")
    every = [each for subset in found.get("subsets") or () for each in subset.get("addresses") or ()]
    return sorted(value_at(each, "targetRef", "name") for each in every)


@in_cluster("services")
async def test_endpoints_follow_service_lifecycle(client: Client) -> None:
    await client.create(SERVICES, plain())
    await pass_time()
    assert await in_slices(client) == await in_endpoints(client) == []
    for name in ("a", "b"):
        await client.create(PODS, web(name))
    await client.create(PODS, web("c", {"app": "other"}))
    await pass_time()
    assert await in_slices(client) == await in_endpoints(client) == ["a", "b"]
    await client.patch(PODS, object_named("c", "default"), {"metadata": {"labels": SELECTOR}})
    await client.delete(PODS, object_named("a", "default"))
    await pass_time()
    assert await in_slices(client) == await in_endpoints(client) == ["b", "c"]
    [before] = await client.list(ENDPOINT_SLICES, "default")
    for name in ("b", "c"):
        await client.delete(PODS, object_named(name, "default"))
    await pass_time()
    [after] = await client.list(ENDPOINT_SLICES, "default")
    assert (uid_of(after), after.get("endpoints") or []) == (uid_of(before), [])
    await client.delete(SERVICES, object_named("s", "default"))
    await pass_time()
    assert await in_slices(client) == []
    with pytest.raises(NotFound):
        await client.get(ENDPOINTS, "s", "default")


@in_cluster("services")
async def test_endpoints_have_exactly_the_service_labels(client: Client) -> None:
    await client.create(SERVICES, plain())
    for labels in ({"a": "1", "b": "1"}, {"b": None}):
        await client.patch(SERVICES, object_named("s", "default"), {"metadata": {"labels": labels}})
        await pass_time()
    for resource in (ENDPOINTS, ENDPOINT_SLICES):
        (found,) = [each for each in await client.list(resource, "default") if name_of(each).startswith("s")]
        assert {key: value for key, value in labels_of(found).items() if "/" not in key} == {"a": "1"}


@in_cluster("services", "namespaces")
async def test_terminating_namespace_deletes_endpoints(client: Client) -> None:
    await client.create(NAMESPACES, {"metadata": {"name": "brief"}})
    elsewhere = {**plain(), "metadata": {"name": "s", "namespace": "brief"}}
    await client.create(SERVICES, elsewhere)
    await pass_time()
    assert await client.list(ENDPOINTS, "brief")
    await client.delete(NAMESPACES, object_named("brief"))
    await pass_time()
    with pytest.raises(NotFound):
        await client.get(NAMESPACES, "brief")


@in_cluster("services")
async def test_deleted_or_changed_slices_are_restored(client: Client) -> None:
    await client.create(SERVICES, plain())
    await client.create(PODS, web("a"))
    await pass_time()
    (first,) = await client.list(ENDPOINT_SLICES, "default", labels=f"{SERVICE_NAME}=s")
    await client.delete(ENDPOINT_SLICES, first)
    await client.patch(ENDPOINTS, object_named("s", "default"), {"subsets": None})
    await pass_time()
    (second,) = await client.list(ENDPOINT_SLICES, "default", labels=f"{SERVICE_NAME}=s")
    assert uid_of(second) != uid_of(first)
    assert await in_slices(client) == await in_endpoints(client) == ["a"]


@in_cluster("services")
async def test_unchanged_endpoints_are_not_rewritten(client: Client) -> None:
    await client.create(SERVICES, plain())
    await client.create(PODS, web("a"))
    await pass_time()
    before = [*await client.list(ENDPOINT_SLICES, "default"), *await client.list(ENDPOINTS, "default")]
    await client.patch(PODS, object_named("a", "default"), {"metadata": {"annotations": {"of": "no interest"}}})
    await client.patch(SERVICES, object_named("s", "default"), {"spec": {"sessionAffinity": "ClientIP"}})
    await pass_time()
    assert before == [*await client.list(ENDPOINT_SLICES, "default"), *await client.list(ENDPOINTS, "default")]


@in_cluster("services")
async def test_slices_mirror_user_written_endpoints(client: Client) -> None:
    await client.create(SERVICES, plain(selector=None))
    user_written = {"metadata": {"name": "s", "namespace": "default", "labels": {"of": "ours"}}}
    subsets = [{"addresses": [{"ip": "10.1.2.3"}], "ports": [{"port": 80}]}]
    await client.create(ENDPOINTS, {**user_written, "subsets": subsets})
    await pass_time()
    (found,) = await client.list(ENDPOINT_SLICES, "default", labels=f"{MANAGED_BY}={MIRRORING_MANAGER}")
    assert found["endpoints"][0]["addresses"] == ["10.1.2.3"]
    assert labels_of(found)["of"] == "ours"
    await client.patch(
        ENDPOINTS, object_named("s", "default"), {"subsets": [{**subsets[0], "addresses": [{"ip": "10.2.3.4"}]}]}
    )
    await pass_time()
    (found,) = await client.list(ENDPOINT_SLICES, "default", labels=f"{MANAGED_BY}={MIRRORING_MANAGER}")
    assert found["endpoints"][0]["addresses"] == ["10.2.3.4"]
    await client.delete(SERVICES, object_named("s", "default"))
    await pass_time()
    assert await client.list(ENDPOINT_SLICES, "default", labels=f"{SERVICE_NAME}=s") == []
    assert await client.get(ENDPOINTS, "s", "default")  # written by a user


@in_cluster("services")
async def test_excluded_endpoints_are_not_mirrored(client: Client) -> None:
    await client.create(SERVICES, plain(selector=None))
    quiet = {"endpointslice.kubernetes.io/skip-mirror": "true"}
    subsets = [{"addresses": [{"ip": "10.1.2.3"}], "ports": [{"port": 80}]}]
    await client.create(
        ENDPOINTS, {"metadata": {"name": "s", "namespace": "default", "labels": quiet}, "subsets": subsets}
    )
    await pass_time()
    assert await client.list(ENDPOINT_SLICES, "default", labels=f"{SERVICE_NAME}=s") == []


@in_cluster("services")
async def test_endpoint_has_zone_of_its_node(client: Client) -> None:
    for node in await client.list(NODES):
        zone = {"topology.kubernetes.io/zone": "east"}
        await client.patch(NODES, object_named(name_of(node)), {"metadata": {"labels": zone}})
    await client.create(SERVICES, plain())
    await client.create(PODS, web("a"))
    await pass_time()
    (found,) = await client.list(ENDPOINT_SLICES, "default", labels=f"{SERVICE_NAME}=s")
    assert found["endpoints"][0]["zone"] == "east"
