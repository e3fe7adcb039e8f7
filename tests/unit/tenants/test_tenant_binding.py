"""The effective binding of a tenant: its HostCluster, its least Pod Security, and the owner's kill switch."""

import asyncio
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, Binding
from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.apis.names import virtual_cluster_label
from tapestry.controller import ObjectCache
from tapestry.controller.store import Store
from tapestry.kube.objects import Object
from tapestry.kube.resources import NAMESPACES, Resource
from tapestry.syncer.identity import Identity
from tapestry.tenants.tenant_binding import TenantAddresses, TenantBinding, with_kill_switch

IDENTITY = Identity(
    binding_name="blue",
    binding_uid="uid-1",
    virtual_cluster_uid="blue",
    mount_namespace="tapestry-blue",
    manager_namespace="",
    is_tenant=True,
    schedules_on_host=True,
)


def cache_of(resource: Resource, *objects: Object) -> ObjectCache:
    synced = asyncio.Event()
    synced.set()
    cache: ObjectCache = ObjectCache(resource, Store(), synced)
    for each in objects:
        cache.store.put(each["metadata"]["name"], each)
    return cache


def new_object(name: str = "blue", uid: str = "uid-1", **spec: Any) -> Object:
    content = {"clusterID": "blue", "virtualCluster": "blue", "hostCluster": "east", **spec}
    return {"metadata": {"name": name, "uid": uid}, "spec": content}


def new_namespace(name: str, **annotations: str) -> Object:
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    found = {f"tapestry.io/{key}": value for key, value in annotations.items()}
    return {"metadata": {"name": name, "uid": name, "labels": labels, "annotations": found}}


def new_host(**spec: Any) -> Object:
    content = {"secretRef": {"name": "east", "namespace": "tapestry-hosts"}, **spec}
    return {"metadata": {"name": "east", "uid": "host"}, "spec": content}


def current_binding(
    obj: Object | None = None,
    *,
    host: Object | None = None,
    own: Object | None = None,
    shared: Object | None = None,
    addresses: TenantAddresses = TenantAddresses(),  # noqa: B008  it is frozen
) -> TenantBinding:
    namespaces = (own or new_namespace("tapestry-blue"),)
    return TenantBinding(
        *(IDENTITY, cache_of(CLUSTER_BINDINGS, obj or new_object()), cache_of(NAMESPACES, *namespaces)),
        host_name="east",
        hosts=cache_of(HOST_CLUSTERS, host or new_host()),
        shared_namespace=cache_of(NAMESPACES, *((shared,) if shared else ())),
        addresses=addresses,
    )


def binding_of(current: TenantBinding) -> Binding:
    found = current.get()
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("mode", "chosen", "level"),
    [
        ("full", "baseline", "restricted"),
        ("full", "privileged", "restricted"),
        ("full", "restricted", "restricted"),
        ("lite", "privileged", "baseline"),
        ("lite", "baseline", "baseline"),
        ("lite", "restricted", "restricted"),
    ],
)
def test_isolation_sets_the_least_pod_security(mode: str, chosen: str, level: str) -> None:
    found = binding_of(current_binding(new_object(isolation={"mode": mode}, podSecurity=chosen)))
    assert found.spec.pod_security == level


def test_tenants_have_values_of_their_host() -> None:
    host = new_host(priorityClassName="tenants", ingressClass="shared")
    found = binding_of(current_binding(host=host))
    assert found.host is not None
    assert (found.spec.pod_priority_class_name, found.host.ingress_class) == ("tenants", "shared")
    assert (found.spec.mount_namespace, found.spec.running_daemonset_by_default) == ("tapestry-blue", True)
    own = binding_of(current_binding(new_object(podPriorityClassName="own"), host=host))
    assert own.spec.pod_priority_class_name == "own"


def test_names_below_derive_from_the_plane() -> None:
    found = binding_of(current_binding())
    assert found.virtual_cluster == virtual_cluster_label("blue")
    assert found.owner_labels()[keys.CLUSTER_BINDING_UID] == "uid-1"


@pytest.mark.parametrize(
    ("addresses", "endpoints"),
    [
        (TenantAddresses(), (None, None)),
        (TenantAddresses("10.96.0.5", "10.96.0.6"), ("10.96.0.5:443", "10.96.0.6")),
        (TenantAddresses("fd00::5", "fd00::6"), ("[fd00::5]:443", "fd00::6")),
    ],
)
def test_pods_reach_the_plane_at_addresses_of_the_host(
    addresses: TenantAddresses, endpoints: tuple[str | None, str | None]
) -> None:
    found = binding_of(current_binding(addresses=addresses)).spec.virtual_endpoints
    assert (found.api, found.dns) == endpoints


def test_binding_of_missing_host_is_none() -> None:
    current = current_binding()
    current.hosts.store.remove("east")
    assert current.get() is None


def test_binding_is_decoded_again_only_after_a_change() -> None:
    current = current_binding()
    first = current.get()
    assert current.get() is first
    current.hosts.store.put("east", new_host(priorityClassName="other"))
    assert binding_of(current).spec.pod_priority_class_name == "other"


@pytest.mark.parametrize(
    ("own", "shared", "is_reclaimed"),
    [
        (new_namespace("n"), None, False),
        (new_namespace("n"), new_namespace("s"), False),
        (new_namespace("n"), new_namespace("s", reclaim="later"), False),
        (new_namespace("n"), new_namespace("s", reclaim="now"), True),
        (new_namespace("n", reclaim="now"), None, True),
        (new_namespace("n", reclaim="now"), new_namespace("s"), True),
    ],
)
def test_owner_reclaims_from_one_tenant_or_all(own: Object, shared: Object | None, is_reclaimed: bool) -> None:
    found = with_kill_switch(own, shared)
    assert found is not None
    assert (found["metadata"]["annotations"].get(keys.RECLAIM) == "now") is is_reclaimed
    assert found["metadata"]["labels"] == own["metadata"]["labels"]


def test_kill_switch_creates_no_namespace() -> None:
    assert with_kill_switch(None, new_namespace("s", reclaim="now")) is None


def test_kill_switch_for_all_reaches_the_binding() -> None:
    current = current_binding()
    calm = current.mount_namespace()
    assert current.mount_namespace() is calm
    current.shared_namespace.store.put("tapestry-tenants", new_namespace("tapestry-tenants", reclaim="now"))
    mount = current.mount_namespace()
    assert mount is not None
    assert mount["metadata"]["annotations"][keys.RECLAIM] == keys.RECLAIM_NOW
    assert current.mount_namespace() is mount
    current.shared_namespace.store.remove("tapestry-tenants")
    assert current.mount_namespace() == calm
