"""Setup of tenants in a host cluster, and its removal."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from msgspec import structs

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.field_types import SecretReference
from tapestry.apis.hostclusters import HostClusterSpec, OfferedStorageClass, PriorityRange
from tapestry.client.client import Client
from tapestry.controller.testing import InProcessApi, in_virtual_time, running_clock
from tapestry.kube.objects import Object, annotations_of, labels_of, name_of
from tapestry.kube.resources import (
    INGRESSES,
    NAMESPACES,
    NETWORK_POLICIES,
    RESOURCE_QUOTAS,
    ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
    SERVICES,
)
from tapestry.tenants.host_objects import (
    API_SERVICE,
    DEFAULT_COUNTS,
    SETUP_KINDS,
    HostFacts,
    TenantSpecError,
    host_namespace,
    namespace_object,
)
from tapestry.tenants.host_setup import HostSetupError, apply_tenant, remove_tenant

from .tenant_bindings import tenant_binding

PASSTHROUGH = {"nginx.ingress.kubernetes.io/ssl-passthrough": "true"}
FACTS = HostFacts(api_servers=("192.0.2.1",), api_port=20001, dns_port=20002)


def host_cluster() -> tuple[InProcessApi, Client]:
    api = InProcessApi([NAMESPACES, *SETUP_KINDS], now=running_clock().now)
    return api, Client(api.connect())


def with_api_ingress(binding: Binding, annotations: Mapping[str, str] | None = None) -> Binding:
    """Return a binding whose HostCluster has Ingresses to planes."""
    assert binding.host is not None
    offer = structs.replace(
        binding.host,
        ingress_class="nginx",
        api_ingress_domain="api.example.com",
        api_ingress_annotations=dict(annotations or {}),
    )
    return replace(binding, host=offer)


def versions(api: InProcessApi) -> list[str]:
    return [each["metadata"]["resourceVersion"] for each in api.dump()]


@in_virtual_time
async def test_setup_creates_labelled_objects() -> None:
    api, client = host_cluster()
    binding = with_api_ingress(tenant_binding(quota={"cpu": "2"}, apiHost="blue.api.example.com"))
    namespace = await apply_tenant(client, binding, FACTS)
    assert namespace == host_namespace(binding)
    found = [each for each in api.dump() if namespace in (name_of(each), each["metadata"].get("namespace"))]
    assert {"Namespace", *(kind.kind for kind in SETUP_KINDS)} == {each["kind"] for each in found}
    assert all(binding.owns(each) for each in found)


@in_virtual_time
async def test_second_setup_writes_nothing() -> None:
    api, client = host_cluster()
    binding = tenant_binding(quota={"cpu": "2000m", "limits.memory": "1024Mi"}, dns={"serviceIp": "10.96.0.53"})
    await apply_tenant(client, binding, FACTS)
    before = versions(api)
    await apply_tenant(client, binding, FACTS)
    assert versions(api) == before


@in_virtual_time
async def test_setup_follows_the_spec() -> None:
    _, client = host_cluster()
    await apply_tenant(client, tenant_binding(quota={"cpu": "2", "pods": "5"}), FACTS)
    lite = tenant_binding(quota={"cpu": "3"}, isolation={"mode": "lite"})
    namespace = await apply_tenant(client, lite, FACTS)
    assert (await client.list(RESOURCE_QUOTAS, namespace))[0]["spec"]["hard"] == {**DEFAULT_COUNTS, "cpu": "3"}
    assert await client.list(NETWORK_POLICIES, namespace) == []
    assert labels_of(await client.get(NAMESPACES, namespace))[keys.POD_SECURITY_ENFORCE] == "baseline"


def test_namespace_names_what_admission_policies_allow() -> None:
    offer = HostClusterSpec(
        SecretReference("east", "tapestry-hosts"),
        ingress_class="public",
        ingress_domain="apps.example.com",
        api_address="192.0.2.10",
        priority_range=PriorityRange(("low", "missing", "high")),
    )
    facts = replace(FACTS, priority_classes=frozenset({"low", "high"}))
    plain = annotations_of(namespace_object(replace(tenant_binding(), host=offer), facts))
    assert (plain[keys.INGRESS_SUFFIX], plain[keys.INGRESS_CLASS]) == ("", "")
    assert plain[keys.PRIORITY_CLASSES] == "tapestry-leased"
    sync = {"ingresses": True, "networkPolicies": True, "priorityClasses": True}
    found = namespace_object(replace(tenant_binding(sync=sync), host=offer), facts)
    annotations = annotations_of(found)
    assert (annotations[keys.INGRESS_SUFFIX], annotations[keys.INGRESS_CLASS]) == (".blue.apps.example.com", "public")
    assert annotations[keys.PRIORITY_CLASSES] == "tapestry-leased,low,high"
    assert annotations[keys.PLANE_ENDPOINTS] == "192.0.2.10/32:20001,192.0.2.10/32:20002"
    assert {"192.0.2.1/32", "169.254.0.0/16", "10.0.0.0/8"} <= {*annotations[keys.FORBIDDEN_RANGES].split(",")}
    allowed = {key: value for key, value in labels_of(found).items() if key.startswith(keys.ALLOWS_PREFIX)}
    assert allowed["allows.tapestry.io/network-policies"] == "true"
    assert allowed["allows.tapestry.io/disruption-budgets"] == "false"


@in_virtual_time
async def test_namespace_names_the_offered_storage_classes() -> None:
    _, client = host_cluster()
    offers = ((), (OfferedStorageClass("fast", "ssd"), OfferedStorageClass("standard")), ())
    for classes, expected in zip(offers, (None, "ssd,standard", None), strict=True):
        namespace = await apply_tenant(client, offering(*classes), FACTS)
        found = await client.get(NAMESPACES, namespace)
        assert annotations_of(found).get(keys.OFFERED_CLASSES) == expected


@in_virtual_time
async def test_default_storage_class_has_to_be_offered() -> None:
    _, client = host_cluster()
    with pytest.raises(TenantSpecError, match="'fast'; it offers none"):
        await apply_tenant(client, offering(default="fast"), FACTS)
    with pytest.raises(TenantSpecError, match="'ssd'; choose from fast"):
        await apply_tenant(client, offering(OfferedStorageClass("fast", "ssd"), default="ssd"), FACTS)
    assert await apply_tenant(client, offering(OfferedStorageClass("fast", "ssd"), default="fast"), FACTS)


def offering(*classes: OfferedStorageClass, default: str = "") -> Binding:
    """Return the binding of a tenant to which its host cluster offers storage classes."""
    binding = tenant_binding(defaultStorageClass=default)
    assert binding.host is not None
    return replace(binding, host=structs.replace(binding.host, storage_classes=classes))


@in_virtual_time
async def test_setup_repairs_drift() -> None:
    _, client = host_cluster()
    namespace = await apply_tenant(client, tenant_binding(quota={"cpu": "2"}), FACTS)
    quota = (await client.list(RESOURCE_QUOTAS, namespace))[0]
    await client.patch(RESOURCE_QUOTAS, quota, {"spec": {"hard": {"cpu": "200"}}})
    for each in await client.list(NETWORK_POLICIES, namespace):
        await client.delete(NETWORK_POLICIES, each)
    await apply_tenant(client, tenant_binding(quota={"cpu": "2"}), FACTS)
    assert (await client.list(RESOURCE_QUOTAS, namespace))[0]["spec"]["hard"] == {**DEFAULT_COUNTS, "cpu": "2"}
    assert await client.list(NETWORK_POLICIES, namespace)


@pytest.mark.parametrize("labels", [{}, tenant_binding(plane="green").owner_labels()])
@in_virtual_time
async def test_a_foreign_namespace_is_not_adopted(labels: Object) -> None:
    api, client = host_cluster()
    binding = tenant_binding()
    await client.create(NAMESPACES, {"metadata": {"name": host_namespace(binding), "labels": labels}})
    before = versions(api)
    with pytest.raises(HostSetupError, match="does not belong to this tenant"):
        await apply_tenant(client, binding, FACTS)
    await remove_tenant(client, binding)
    assert versions(api) == before


@in_virtual_time
async def test_a_foreign_service_is_not_adopted() -> None:
    _, client = host_cluster()
    binding = tenant_binding()
    namespace = await apply_tenant(client, binding, HostFacts())
    await client.create(
        SERVICES, {"metadata": {"name": API_SERVICE, "namespace": namespace}, "spec": {"ports": [{"port": 1}]}}
    )
    with pytest.raises(HostSetupError, match=r"Service .* is not ours"):
        await apply_tenant(client, binding, FACTS)


@in_virtual_time
async def test_removal_spares_other_tenants() -> None:
    _, client = host_cluster()
    mine, other = tenant_binding(), tenant_binding(plane="green", uid="99999999-2222-4333-8444-555555555555")
    await apply_tenant(client, mine, FACTS)
    remaining = await apply_tenant(client, other, FACTS)
    assert (await remove_tenant(client, mine)).references == (f"Namespace {host_namespace(mine)}",)
    names = {name_of(each) for each in await client.list(NAMESPACES) if "deletionTimestamp" not in each["metadata"]}
    assert remaining in names
    assert host_namespace(mine) not in names


@in_virtual_time
async def test_ingress_to_the_api_follows_the_binding() -> None:
    _, client = host_cluster()
    binding = with_api_ingress(tenant_binding(apiHost="blue.api.example.com"), PASSTHROUGH)
    namespace = await apply_tenant(client, binding, FACTS)
    [ingress] = await client.list(INGRESSES, namespace)
    assert annotations_of(ingress) == PASSTHROUGH
    [rule] = ingress["spec"]["rules"]
    assert rule["host"] == binding.spec.api_host
    assert rule["http"]["paths"][0]["backend"]["service"]["name"] == API_SERVICE
    await apply_tenant(client, with_api_ingress(binding), FACTS)
    assert annotations_of((await client.list(INGRESSES, namespace))[0]) == {}
    await apply_tenant(client, with_api_ingress(tenant_binding()), FACTS)
    assert await client.list(INGRESSES, namespace) == []


@in_virtual_time
async def test_host_name_not_allowed_is_rejected() -> None:
    _, client = host_cluster()
    with pytest.raises(TenantSpecError, match=r"spec\.apiHost: the HostCluster has no Ingresses"):
        await apply_tenant(client, tenant_binding(apiHost="blue.api.example.com"), FACTS)


@in_virtual_time
async def test_account_of_pods_has_no_rights() -> None:
    _, client = host_cluster()
    binding = tenant_binding(serviceAccountName="builder")
    with pytest.raises(TenantSpecError, match=r"spec\.serviceAccountName: must be empty"):
        await apply_tenant(client, binding, FACTS)
    assert binding.host is not None
    offer = structs.replace(binding.host, service_accounts=("builder", "tapestry-tenant"))
    namespace = await apply_tenant(client, replace(binding, host=offer), FACTS)
    accounts = {name_of(each): each for each in await client.list(SERVICE_ACCOUNTS, namespace)}
    assert {*accounts} == {"builder", "tapestry-tenant"}
    assert accounts["builder"]["automountServiceAccountToken"] is False
    [rights] = await client.list(ROLE_BINDINGS, namespace)
    assert [each["name"] for each in rights["subjects"]] == ["tapestry-tenant"]
    assert annotations_of(await client.get(NAMESPACES, namespace))[keys.POD_ACCOUNT] == "builder"
    await apply_tenant(client, replace(tenant_binding(), host=offer), FACTS)
    assert [name_of(each) for each in await client.list(SERVICE_ACCOUNTS, namespace)] == ["tapestry-tenant"]
    own = tenant_binding(serviceAccountName="tapestry-tenant")
    with pytest.raises(TenantSpecError, match="must be one of builder"):
        await apply_tenant(client, replace(own, host=offer), FACTS)
