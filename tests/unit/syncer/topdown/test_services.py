"""Twins of Services in the namespaces that a binding names, and their names for pods."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, Binding, binding_of
from tapestry.client.client import Client
from tapestry.client.transport import Request, Transport
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.testing import Scenario, in_virtual_time, perturb, running_clock
from tapestry.kube.errors import ApiError, Forbidden
from tapestry.kube.objects import Object, annotations_of, labels_of, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import ENDPOINT_SLICES, NAMESPACES, SERVICES, Resource
from tapestry.syncer.app import build_syncer
from tapestry.syncer.cache_transforms import virtual_pod
from tapestry.syncer.config import SyncerConfig, SyncerLeaderElection
from tapestry.syncer.topdown.dependencies import DependencyNotReady
from tapestry.syncer.topdown.namespace_informers import owned_informer
from tapestry.syncer.topdown.services import ServiceReconciler
from tapestry.syncer.translate.services import SERVICE_NAME, twin_service, twin_service_name

from ..world import A_DAY, MOUNT, NODE, SERVED, Clusters, has_condition, new_world

HTTP = {"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}
SERVED_PORT = {"name": "http", "protocol": "TCP", "port": 8080}


def new_service(name: str = "shop", namespace: str = "team-a", **spec: Any) -> Object:
    given = {"type": "ClusterIP", "selector": {"app": name}, "ports": [HTTP], **spec}
    return {**object_named(name, namespace), "spec": given}


def new_slice(*addresses: str, name: str = "shop-1", service: str = "shop", namespace: str = "team-a") -> Object:
    metadata = {"name": name, "namespace": namespace, "labels": {SERVICE_NAME: service}}
    endpoints = [{"addresses": [each], "conditions": {"ready": True}, "nodeName": NODE} for each in addresses]
    return {"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints, "ports": [SERVED_PORT]}


async def add_service(virtual: Client, *addresses: str, name: str = "shop", namespace: str = "team-a") -> None:
    await virtual.create(SERVICES, new_service(name, namespace))
    slice = new_slice(*addresses, name=f"{name}-1", service=name, namespace=namespace)
    await virtual.create(ENDPOINT_SLICES, slice)


async def physical_objects(world: Clusters, resource: Resource = SERVICES) -> list[Object]:
    return await world.physical.list(resource, MOUNT)


async def wait_for_address(
    world: Clusters, name: str = "shop", namespace: str = "team-a", *, timeout: float = 60
) -> str:
    """Return the twin address of a Service, which it gets at its creation."""
    twin = twin_service_name(new_service(name, namespace), await the_binding(world))
    found = await wait_for(world.physical, SERVICES, twin, MOUNT, until=bool, timeout=timeout)
    assert found is not None
    address: str = found["spec"]["clusterIP"]
    return address


async def the_binding(world: Clusters) -> Binding:
    system = await world.virtual.get(NAMESPACES, "kube-system")
    return binding_of(await world.virtual.get(CLUSTER_BINDINGS, "east"), uid_of(system))


def addresses(slices: list[Object]) -> list[str]:
    return sorted(address for slice in slices for each in slice["endpoints"] for address in each["addresses"])


# -- syncing


@in_virtual_time
async def test_service_and_addresses_are_synced_until_deleted() -> None:
    world = await new_world(serviceNamespaces=["team-a"])
    await add_service(world.virtual, "10.1.0.1", "10.1.0.2")
    async with world.syncer():
        await asyncio.sleep(1)
        [service], [slice] = await physical_objects(world), await physical_objects(world, ENDPOINT_SLICES)
        assert (await the_binding(world)).owns(service)
        assert service["spec"]["ports"] == [HTTP]
        assert "selector" not in service["spec"]
        assert labels_of(slice)[SERVICE_NAME] == name_of(service)
        assert addresses([slice]) == ["10.1.0.1", "10.1.0.2"]

        more = {"port": 443, "name": "tls", "protocol": "TCP", "targetPort": 8443}
        await world.virtual.patch(SERVICES, object_named("shop", "team-a"), {"spec": {"ports": [HTTP, more]}})
        scaled = new_slice("10.1.0.2", "10.1.0.3")["endpoints"]
        await world.virtual.patch(ENDPOINT_SLICES, object_named("shop-1", "team-a"), {"endpoints": scaled})
        await asyncio.sleep(1)
        [service], slices = await physical_objects(world), await physical_objects(world, ENDPOINT_SLICES)
        assert service["spec"]["ports"] == [HTTP, more]
        assert addresses(slices) == ["10.1.0.2", "10.1.0.3"]

        await world.virtual.delete(ENDPOINT_SLICES, object_named("shop-1", "team-a"))
        await asyncio.sleep(1)
        assert await physical_objects(world, ENDPOINT_SLICES) == []
        await world.virtual.delete(SERVICES, object_named("shop", "team-a"))
        await asyncio.sleep(1)
        assert await physical_objects(world) == []


@in_virtual_time
async def test_unchanged_service_causes_no_write() -> None:
    world = await new_world(serviceNamespaces=["team-a"])
    await add_service(world.virtual, "10.1.0.1")
    async with world.syncer():
        await asyncio.sleep(1)
        assert len(world.down.writes(f"/{MOUNT}/")) == 2
        annotation = {"metadata": {"annotations": {"a": "b"}}}
        await world.virtual.patch(SERVICES, object_named("shop", "team-a"), annotation)
        await world.virtual.patch(ENDPOINT_SLICES, object_named("shop-1", "team-a"), annotation)
    async with world.syncer():
        await asyncio.sleep(100)
        assert len(world.down.writes(f"/{MOUNT}/")) == 2


@in_virtual_time
async def test_other_namespaces_and_external_names_are_not_synced() -> None:
    world = await new_world(serviceNamespaces=["team-a"])
    await add_service(world.virtual, "10.1.0.1", namespace="team-b")
    await world.virtual.create(SERVICES, new_service("other", type="ExternalName", externalName="example.com"))
    async with world.syncer():
        await asyncio.sleep(10)
        assert await physical_objects(world) == await physical_objects(world, ENDPOINT_SLICES) == []
        assert not [each for each in world.up.requests if "team-b/" in each.path and "services" in each.path]


@in_virtual_time
async def test_namespaces_follow_the_binding_without_restart() -> None:
    world = await new_world()
    for namespace in ("team-a", "team-b"):
        await add_service(world.virtual, "10.1.0.1", namespace=namespace)
    async with world.syncer():
        for namespaces in (["team-a"], ["team-a", "team-b"], ["team-b"], [], ["team-b"]):
            await world.set_binding(serviceNamespaces=namespaces)
            await asyncio.sleep(2)
            for resource in (SERVICES, ENDPOINT_SLICES):
                found = [labels_of(each)[keys.VIRTUAL_NAMESPACE] for each in await physical_objects(world, resource)]
                assert sorted(found) == namespaces


@in_virtual_time
async def test_unlisted_services_are_removed_after_downtime() -> None:
    world = await new_world(serviceNamespaces=["team-a", "team-b"])
    for namespace in ("team-a", "team-b"):
        await add_service(world.virtual, "10.1.0.1", namespace=namespace)
    async with world.syncer():
        await asyncio.sleep(1)
        assert len(await physical_objects(world)) == 2
    await world.virtual.delete(SERVICES, object_named("shop", "team-a"))
    await world.set_binding(serviceNamespaces=["team-a"])
    async with world.syncer():
        await asyncio.sleep(5)
        assert await physical_objects(world) == await physical_objects(world, ENDPOINT_SLICES) == []


@in_virtual_time
async def test_service_recreated_as_headless_is_headless() -> None:
    world = await new_world(serviceNamespaces=["team-a"])
    await add_service(world.virtual, "10.1.0.1")
    async with world.syncer():
        await wait_for_address(world)
        await world.virtual.delete(SERVICES, object_named("shop", "team-a"))
        await world.virtual.create(SERVICES, new_service(clusterIP="None"))
        [before] = await physical_objects(world)
        await asyncio.sleep(5)
        [service] = await physical_objects(world)
        assert service["spec"]["clusterIP"] == "None"
        assert uid_of(service) != uid_of(before)  # a server rejects the change


@in_virtual_time
async def test_unbinding_removes_all_services() -> None:
    world = await new_world(serviceNamespaces=["team-a"])
    await add_service(world.virtual, "10.1.0.1")
    async with world.syncer():
        await asyncio.sleep(1)
        await world.virtual.delete(CLUSTER_BINDINGS, object_named("east"))
        await wait_for(world.virtual, CLUSTER_BINDINGS, "east", until=lambda obj: obj is None, timeout=60)
        assert await physical_objects(world) == await physical_objects(world, ENDPOINT_SLICES) == []


# -- ownership


@in_virtual_time
async def test_own_fields_are_reset_and_additions_stay() -> None:
    world = await new_world(serviceNamespaces=["team-a"])
    await add_service(world.virtual, "10.1.0.1")
    async with world.syncer():
        await asyncio.sleep(1)
        [service] = await physical_objects(world)
        edit = {
            "metadata": {"labels": {"owner": "me"}},
            "spec": {"selector": {"app": "mine"}, "ports": [{**HTTP, "port": 81}]},
        }
        await world.physical.patch(SERVICES, service, edit)
        await asyncio.sleep(1)
        [service] = await physical_objects(world)
        assert labels_of(service)["owner"] == "me"
        assert service["spec"]["ports"] == [HTTP]
        assert "selector" not in service["spec"]


@in_virtual_time
async def test_safety_rule_1_foreign_service_keeps_its_name() -> None:
    world = await new_world(serviceNamespaces=["team-a"])
    name = twin_service_name(new_service(), await the_binding(world))
    foreign = {**object_named(name, MOUNT), "spec": {"selector": {"app": "theirs"}, "ports": [HTTP]}}
    before = await world.physical.create(SERVICES, foreign)
    await add_service(world.virtual, "10.1.0.1")
    async with world.syncer():
        await asyncio.sleep(600)
        await world.virtual.delete(SERVICES, object_named("shop", "team-a"))
        await asyncio.sleep(600)
    assert await physical_objects(world) == [before]


@in_virtual_time
async def test_copy_of_twin_under_another_name_is_deleted() -> None:
    world = await new_world(serviceNamespaces=["team-a"])
    await add_service(world.virtual, "10.1.0.1")
    async with world.syncer():
        await asyncio.sleep(1)
        [twin] = await physical_objects(world)
        metadata = {"name": "mine", "namespace": MOUNT}
        metadata |= {field: twin["metadata"][field] for field in ("labels", "annotations")}
        await world.physical.create(SERVICES, {"metadata": metadata, "spec": {"ports": [HTTP]}})
        await asyncio.sleep(1)
        assert [name_of(each) for each in await physical_objects(world)] == [name_of(twin)]


@in_virtual_time
async def test_twin_with_forged_source_is_recreated() -> None:
    world = await new_world(serviceNamespaces=["team-a"])
    await add_service(world.virtual, "10.1.0.1")
    async with world.syncer():
        await asyncio.sleep(1)
        [before] = await physical_objects(world)
        for nonsense in ("../../secrets/x", "a/b", "A=b,c"):
            [twin] = await physical_objects(world)
            await world.physical.patch(SERVICES, twin, {"metadata": {"annotations": {keys.VIRTUAL_NAME: nonsense}}})
            await asyncio.sleep(1)
            await world.virtual.patch(SERVICES, object_named("shop", "team-a"), {"metadata": {"labels": {"n": "1"}}})
            await asyncio.sleep(600)
            assert [name_of(twin) for twin in await physical_objects(world)] == [name_of(before)]
            assert [annotations_of(twin)[keys.VIRTUAL_NAME] for twin in await physical_objects(world)] == ["shop"]


@in_virtual_time
async def test_safety_rule_2_service_missing_in_cache_stays() -> None:
    world = await new_world(serviceNamespaces=["team-a"])
    async with world.syncer():
        await asyncio.sleep(1)
        world.up.api.freeze()
        await world.virtual.create(SERVICES, new_service())
        created = await world.physical.create(SERVICES, twin_service(new_service(), await the_binding(world)))
        await asyncio.sleep(10)
        assert [uid_of(each) for each in await physical_objects(world)] == [uid_of(created)]
        await world.virtual.delete(SERVICES, object_named("shop", "team-a"))
        await world.physical.patch(SERVICES, created, {"metadata": {"labels": {"look": "again"}}})
        await asyncio.sleep(10)
        assert await physical_objects(world) == []


# -- pods


@in_virtual_time
async def test_pods_of_listed_namespaces_resolve_services() -> None:
    world = await new_world(serviceNamespaces=["team-a", "team-b"])
    await add_service(world.virtual, "10.1.0.1")
    async with world.syncer():
        address = await wait_for_address(world)
        for namespace in ("team-a", "team-b", "team-c"):
            await world.add_pod(namespace=namespace)
        await asyncio.sleep(5)
        aliases = {
            namespace: value_at(await world.twin(namespace=namespace), "spec", "hostAliases")
            for namespace in ("team-a", "team-b", "team-c")
        }
    names = ["shop", "shop.team-a", "shop.team-a.svc", "shop.team-a.svc.cluster.local"]
    assert aliases == {
        "team-a": [{"ip": address, "hostnames": names}],
        "team-b": [{"ip": address, "hostnames": names[1:]}],
        "team-c": None,
    }


@in_virtual_time
async def test_pod_waits_ten_seconds_for_other_namespaces() -> None:
    world = await new_world(serviceNamespaces=["default", "team-a"])
    world.down.rejection = unavailable
    await add_service(world.virtual, "10.1.0.1")
    async with world.syncer():
        await world.add_pod()
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "ServiceNotMapped"))
        await asyncio.sleep(5)
        assert await world.twins() == []
        await asyncio.sleep(7)
        [twin] = await world.twins()
        assert "hostAliases" not in twin["spec"]


@in_virtual_time
async def test_large_namespace_leaves_aliases_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tapestry.syncer.topdown.services.MAX_ALIASES", 5)
    world = await new_world(serviceNamespaces=["a", "b", "default"])
    for number in range(6):
        await add_service(world.virtual, "10.1.0.1", name=f"many-{number}", namespace="a")
    await add_service(world.virtual, "10.1.0.1", name="few", namespace="b")
    await add_service(world.virtual, "10.1.0.1", name="own", namespace="default")
    async with world.syncer():
        await wait_for_address(world, "own", "default")
        await asyncio.sleep(5)
        await world.add_pod()
        twin = await world.wait_for_twin()
    assert [each["hostnames"][0] for each in twin["spec"]["hostAliases"]] == ["own", "many-0.a", "many-1.a", "few.b"]


def unavailable(request: Request) -> ApiError | None:
    return ApiError(500, "InternalError", "not now") if "services" in request.path else None


@in_virtual_time
async def test_pod_waits_for_services_of_its_namespace() -> None:
    world = await new_world(serviceNamespaces=["default"])
    world.down.rejection = unavailable
    await add_service(world.virtual, "10.1.0.1", namespace="default")
    async with world.syncer():
        await world.add_pod()
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "ServiceNotMapped"))
        await asyncio.sleep(5)
        world.down.rejection = lambda _: None
        await wait_for_address(world, namespace="default", timeout=600)
        await asyncio.sleep(2)
        assert await world.twins()


def quota(request: Request) -> ApiError | None:
    is_refused = request.method == "POST" and request.path.endswith(f"/{MOUNT}/services")
    return Forbidden(403, "Forbidden", "exceeded quota: services") if is_refused else None


@in_virtual_time
async def test_rejected_service_blocks_no_pod() -> None:
    world = await new_world(serviceNamespaces=["default"])
    world.down.rejection = quota
    await add_service(world.virtual, "10.1.0.1", namespace="default")
    async with world.syncer():
        await world.add_pod()
        twin = await world.wait_for_twin()
        assert "hostAliases" not in twin["spec"]
        world.down.rejection = lambda _: None
        await asyncio.sleep(600)
        assert len(await physical_objects(world)) == 1


@in_virtual_time
async def test_waiting_pod_continues_when_service_is_rejected() -> None:
    world = await new_world(serviceNamespaces=["default"])
    world.down.rejection = unavailable
    await add_service(world.virtual, "10.1.0.1", namespace="default")
    async with world.syncer():
        await world.add_pod()
        await world.wait_for_pod(has_condition(keys.MAPPED_CONDITION, "False", "ServiceNotMapped"))
        await asyncio.sleep(5)
        world.down.rejection = quota
        await world.wait_for_twin(timeout=600)


@in_virtual_time
async def test_pods_wait_until_services_are_known() -> None:
    world = await new_world(serviceNamespaces=["team-a"])
    await add_service(world.virtual, "10.1.0.1")
    async with world.syncer() as parts, asyncio.TaskGroup() as group:
        await wait_for_address(world)
        requeued: list[str] = []
        requeued_pods: list[str] = []
        twins, twin_slices = (
            owned_informer(parts.identity, parts.clients.physical_reads, each) for each in (SERVICES, ENDPOINT_SLICES)
        )
        services = ServiceReconciler(
            *(parts.current_binding, parts.clients, parts.manager.now, twins, twin_slices),
            *(requeued.append, requeued_pods.append),
        )
        pod = virtual_pod({**object_named("work", "team-a"), "spec": {"nodeName": "n"}})
        binding = await the_binding(world)
        running = [group.create_task(informer.run()) for informer in (twins, twin_slices)]
        await asyncio.sleep(1)
        with pytest.raises(DependencyNotReady, match="the Services of team-a have no twin address yet"):
            await services.ensure(pod, binding)
        requeued.clear()
        services.follow_namespaces(await world.virtual.get(CLUSTER_BINDINGS, "east"))
        assert requeued == ["team-a/shop"]
        await world.virtual.delete(SERVICES, object_named("shop", "team-a"))
        await world.virtual.delete(ENDPOINT_SLICES, object_named("shop-1", "team-a"))
        requeued.clear()
        requeued_pods.clear()
        with pytest.raises(DependencyNotReady):
            await services.ensure(pod, binding)
        world.down.api.freeze()  # otherwise the deletion of the twins would requeue them
        running += [
            group.create_task(following.run()) for following in (services.virtual_services, services.virtual_slices)
        ]
        await asyncio.sleep(1)
        assert set(requeued) == {"team-a/shop"}
        assert set(requeued_pods) == {"team-a/work"}
        await services.ensure(pod, binding)
        for task in running:
            task.cancel()


# -- faults

ENOUGH = 120.0
"""Seconds for caches to catch up and failed calls to be retried."""
CONFIG = SyncerConfig(
    binding="east", name="east", silence_seconds=3600, leader_election=SyncerLeaderElection(enabled=False)
)


async def setup(manager: Manager, physical: Transport) -> None:
    await wait_for(manager.reads, CLUSTER_BINDINGS, "east", until=bool, timeout=A_DAY)
    await build_syncer(CONFIG, manager, connect=lambda _: physical, monotonic=running_clock().monotonic)


def concerns_services(call: str) -> bool:
    """Return whether faults are injected into the call."""
    return not call.startswith("watch") and ("/services" in call or "/endpointslices" in call)


async def service_is_created_changed_and_deleted(virtual: Client, physical: Client) -> None:
    world = Clusters(virtual, physical)
    await world.populate("east", serviceNamespaces=["team-a", "team-b"])
    await add_service(virtual, "10.1.0.1")
    await add_service(virtual, "10.1.0.9", name="bank", namespace="team-b")
    await wait_for_address(world, timeout=A_DAY)
    await wait_for_address(world, "bank", "team-b", timeout=A_DAY)
    await virtual.patch(
        ENDPOINT_SLICES, object_named("shop-1", "team-a"), {"endpoints": new_slice("10.1.0.2")["endpoints"]}
    )
    await virtual.patch(SERVICES, object_named("shop", "team-a"), {"spec": {"ports": [{**HTTP, "port": 81}]}})
    await asyncio.sleep(ENOUGH)
    await virtual.delete(ENDPOINT_SLICES, object_named("shop-1", "team-a"))
    await virtual.delete(SERVICES, object_named("bank", "team-b"))
    await virtual.create(ENDPOINT_SLICES, new_slice("10.1.0.3", name="shop-2"))
    await asyncio.sleep(ENOUGH)
    assert addresses(await physical_objects(world, ENDPOINT_SLICES)) == ["10.1.0.3"]
    [service] = await physical_objects(world)
    assert service["spec"]["ports"] == [{**HTTP, "port": 81}]


async def namespace_is_removed_from_binding(virtual: Client, physical: Client) -> None:
    world = Clusters(virtual, physical)
    await world.populate("east", serviceNamespaces=["default"])
    await add_service(virtual, "10.1.0.1", namespace="default")
    address = await wait_for_address(world, namespace="default", timeout=A_DAY)
    await world.add_pod()
    twin = await world.wait_for_twin(timeout=A_DAY)
    assert value_at(twin, "spec", "hostAliases", 0, "ip") == address
    await world.set_binding(serviceNamespaces=[])
    await world.delete_pod()
    await world.wait_until_pod_is_gone(timeout=A_DAY)
    await asyncio.sleep(ENOUGH)
    assert await physical_objects(world) == await physical_objects(world, ENDPOINT_SLICES) == []


@pytest.mark.timeout(600)  # hundreds of replays
@pytest.mark.parametrize("world", [service_is_created_changed_and_deleted, namespace_is_removed_from_binding])
def test_services_reach_same_state_despite_faults(
    world: Callable[..., Awaitable[None]], record_property: Callable[[str, object], None]
) -> None:
    report = perturb(Scenario("Services", SERVED, setup, world, CONFIG, others=[SERVED], counts=concerns_services))
    record_property("figure", f"perturbed Services: {report.cases} replays")
    assert not report.failures, report
