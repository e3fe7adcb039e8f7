"""Copies of Services in a physical cluster that runs its own controllers."""

from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, Binding, binding_of
from tapestry.kube.objects import Object, labels_of, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import ENDPOINT_SLICES, NAMESPACES, PODS, SERVICES
from tapestry.syncer.translate.services import SERVICE_NAME, SLICE_MANAGER, twin_service_name

from .bound_clusters import BoundClusters, give, new_object, new_pod, wait_for_all, wait_until, wait_until_gone
from .planes import Plane

PORT = {"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}


@pytest.fixture
def physical_plane(attended_plane: Plane) -> Plane:
    return attended_plane


async def binding_at(clusters: BoundClusters) -> Binding:
    system = await clusters.virtual.get(NAMESPACES, "kube-system")
    return binding_of(await clusters.virtual.get(CLUSTER_BINDINGS, clusters.name), uid_of(system))


async def add_namespace(clusters: BoundClusters, name: str = "team") -> str:
    namespace = f"{clusters.name}-{name}"
    await give(clusters.virtual, NAMESPACES, new_object("Namespace", {"name": namespace}))
    return namespace


async def add_service(clusters: BoundClusters, namespace: str, name: str = "shop", **spec: Any) -> Object:
    given = {"selector": {"app": name}, "ports": [PORT], **spec}
    return await clusters.virtual.create(SERVICES, {**object_named(name, namespace), "spec": given})


async def add_slice(clusters: BoundClusters, namespace: str, *addresses: str, name: str = "shop") -> Object:
    metadata = {"name": f"{name}-1", "namespace": namespace, "labels": {SERVICE_NAME: name}}
    content = {"addressType": "IPv4", "endpoints": endpoints(*addresses), "ports": [{"name": "http", "port": 8080}]}
    return await clusters.virtual.create(
        ENDPOINT_SLICES, new_object("EndpointSlice", metadata, ENDPOINT_SLICES.api_version, **content)
    )


def endpoints(*addresses: str) -> list[Object]:
    reference = {"kind": "Pod", "name": "shop-1", "namespace": "team"}
    return [
        {"addresses": [each], "conditions": {"ready": True}, "nodeName": "vnode", "zone": "a", "targetRef": reference}
        for each in addresses
    ]


async def wait_for_slices(clusters: BoundClusters, *addresses: str) -> list[Object]:
    """Wait until our EndpointSlices in the physical cluster have exactly these addresses."""

    def have(slices: list[Object]) -> bool:
        found = [each for slice in slices for endpoint in slice["endpoints"] or () for each in endpoint["addresses"]]
        return sorted(found) == sorted(addresses)

    return await wait_for_all(
        clusters.physical, ENDPOINT_SLICES, clusters.mount, have, labels=f"{SLICE_MANAGER}=tapestry"
    )


async def test_service_copy_is_cluster_internal_and_follows_changes(clusters: BoundClusters) -> None:
    namespace = await add_namespace(clusters)
    await clusters.set_binding(serviceNamespaces=[namespace])
    service = await add_service(clusters, namespace, type="LoadBalancer", externalIPs=["192.0.2.1"])
    assert service["spec"]["ports"][0]["nodePort"]
    await add_slice(clusters, namespace, "10.1.0.1", "10.1.0.2")
    name = twin_service_name(service, await binding_at(clusters))
    with clusters.syncer():
        twin = await wait_until(clusters.physical, SERVICES, name, bool, clusters.mount)
        assert twin["spec"]["type"] == "ClusterIP"
        assert twin["spec"]["ports"] == [PORT]
        assert not {"externalIPs", "selector", "loadBalancerClass", "healthCheckNodePort"} & twin["spec"].keys()
        [slice] = await wait_for_slices(clusters, "10.1.0.1", "10.1.0.2")
        assert labels_of(slice)[SERVICE_NAME] == name
        assert [sorted(each) for each in slice["endpoints"]] == [["addresses", "conditions"]] * 2

        await clusters.virtual.patch(
            ENDPOINT_SLICES, object_named("shop-1", namespace), {"endpoints": endpoints("10.1.0.3")}
        )
        await wait_for_slices(clusters, "10.1.0.3")
        await clusters.virtual.patch(ENDPOINT_SLICES, object_named("shop-1", namespace), {"endpoints": []})
        await wait_for_slices(clusters)
        other = {**PORT, "port": 81}
        await clusters.virtual.patch(SERVICES, object_named("shop", namespace), {"spec": {"ports": [other]}})
        await wait_until(
            clusters.physical, SERVICES, name, lambda found: found["spec"]["ports"] == [other], clusters.mount
        )
        await clusters.virtual.delete(SERVICES, object_named("shop", namespace))
        await wait_until_gone(clusters.physical, SERVICES, name, clusters.mount)
        await wait_for_slices(clusters)
    # Defaults that the server adds cause no further write.
    done = [each for each in clusters.writes() if each.get("namespace") == clusters.mount]
    made = [(each["verb"], each["resource"]) for each in done]
    slices = ENDPOINT_SLICES.name
    assert sorted(made) == sorted(
        [
            *(("create", "services"), ("patch", "services"), ("delete", "services")),
            *(("create", slices), ("patch", slices), ("patch", slices), ("delete", slices)),
        ]
    )


async def test_twin_host_aliases_have_physical_service_addresses(clusters: BoundClusters) -> None:
    namespace = await add_namespace(clusters)
    await clusters.set_binding(serviceNamespaces=[namespace])
    service = await add_service(clusters, namespace)
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_policy("all")
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        pod = new_pod("work", clusters.above(node))
        await clusters.virtual.create(PODS, {**pod, "metadata": {"name": "work", "namespace": namespace}})
        ours = f"{keys.VIRTUAL_NAMESPACE}={namespace}"
        [twin] = await wait_for_all(clusters.physical, PODS, clusters.mount, bool, labels=ours)
        below = await clusters.physical.get(
            SERVICES, twin_service_name(service, await binding_at(clusters)), clusters.mount
        )
        names = [f"shop{domain}" for domain in ("", f".{namespace}", f".{namespace}.svc")]
        assert below["spec"]["clusterIP"] != service["spec"]["clusterIP"]
        assert twin["spec"]["hostAliases"] == [
            {"ip": below["spec"]["clusterIP"], "hostnames": [*names, f"{names[-1]}.cluster.local"]}
        ]


async def test_service_copies_follow_namespaces_and_stay_headless(clusters: BoundClusters) -> None:
    first, second = [await add_namespace(clusters, name) for name in ("first", "second")]
    for namespace in (first, second):
        await add_service(clusters, namespace, clusterIP="None")
    selector = f"{keys.CLUSTER_BINDING}={clusters.name}"

    async def wait_for_namespaces(*namespaces: str) -> list[Object]:
        def have(found: list[Object]) -> bool:
            return sorted(labels_of(each)[keys.VIRTUAL_NAMESPACE] for each in found) == sorted(namespaces)

        return await wait_for_all(clusters.physical, SERVICES, clusters.mount, have, labels=selector)

    with clusters.syncer():
        await clusters.set_binding(serviceNamespaces=[first])
        [headless] = await wait_for_namespaces(first)
        assert headless["spec"]["clusterIP"] == "None"
        await clusters.set_binding(serviceNamespaces=[first, second])
        await wait_for_namespaces(first, second)
        await clusters.virtual.delete(SERVICES, object_named("shop", first))
        made = await add_service(clusters, first)
        name = twin_service_name(made, await binding_at(clusters))
        another = lambda found: value_at(found, "spec", "clusterIP") != "None"  # noqa: E731
        assert name_of(await wait_until(clusters.physical, SERVICES, name, another, clusters.mount)) == name_of(
            headless
        )
        await clusters.set_binding(serviceNamespaces=[])
        await wait_for_namespaces()
