"""Objects of a tenant in its host cluster: the namespace, its limits, its isolation, an account, and two Services.

If the binding has a host name for the API of the plane, they include an Ingress that leads to one of the Services.

All of them carry the owner labels of the binding. Those in the namespace also carry the label `tenant-setup`: the
account of the tenant may not change these.
"""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.hostclusters import HostClusterSpec, OfferedStorageClass
from tapestry.apis.mount_labels import stricter_level
from tapestry.kube.names import hashed_name, safe_label_value
from tapestry.kube.objects import Object
from tapestry.kube.quantity import QuantityError, ResourceList
from tapestry.kube.resources import (
    CLUSTER_ROLES,
    ENDPOINT_SLICES,
    INGRESSES,
    LIMIT_RANGES,
    NETWORK_POLICIES,
    RESOURCE_QUOTAS,
    ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Resource,
)
from tapestry.tenants.api_ingress import PASSTHROUGH_ANNOTATIONS, api_ingress_faults, ingress_spec
from tapestry.tenants.host_networks import named_policies
from tapestry.tenants.network_rules import Destination, Destinations, forbidden_ranges, plane_endpoints
from tapestry.tenants.tenant_binding import ISOLATION_LEVELS, KUBERNETES_PORT, ingress_suffix

NAMESPACE_PREFIX = "tapestry-tenant-"
"""Prefix of the namespaces of tenants in a host cluster. The process may write nothing in others."""
ACCOUNT = "tapestry-tenant"
"""ServiceAccount of a tenant in its namespace, its RoleBinding, and the ClusterRole with its rights there."""
OWN_ACCOUNTS = ("default", ACCOUNT)
"""Accounts in the namespace of a tenant that are not for its pods to choose."""
API_SERVICE = "kubernetes"
"""Service that leads to the API of the plane."""
DNS_SERVICE = "tapestry-dns"
"""Service that leads to the tenant's port of the DNS resolver."""
DNS_PORT = 53
QUOTA = LIMITS = "tapestry-tenant"
SETUP = {keys.TENANT_SETUP: "true"}

DEFAULT_REQUESTS = {"cpu": "100m", "memory": "128Mi", "ephemeral-storage": "1Gi"}
DEFAULT_LIMITS = {"cpu": "1", "memory": "512Mi", "ephemeral-storage": "2Gi"}
"""Resources of containers without any, if the quota counts them. Otherwise the host would reject these pods."""
DEFAULT_COUNTS = {
    "count/ingresses.networking.k8s.io": "100",
    "count/networkpolicies.networking.k8s.io": "500",
    "count/poddisruptionbudgets.policy": "200",
    "persistentvolumeclaims": "200",
}
"""Limits of objects on which controllers of the host cluster work, unless `quota` has others."""

SetupObject = tuple[Resource, Object]


class TenantSpecError(Exception):
    """A field of a binding or of its HostCluster that prevents the setup of the tenant. It names the field."""


@dataclass(frozen=True)
class HostFacts:
    """Values besides its binding that the objects of a tenant depend on."""

    api_servers: tuple[str, ...] = ()
    """Addresses of the host's API server."""
    api_port: int | None = None
    """Port of the process of the planes for the API of the plane."""
    dns_port: int | None = None
    """Port of the DNS resolver that is reserved for the plane."""
    priority_classes: frozenset[str] = frozenset()
    """PriorityClasses of the host cluster."""


def host_namespace(binding: Binding) -> str:
    """Return the name of the namespace of a tenant. Another binding of the same plane has another namespace."""
    plane = binding.spec.virtual_cluster or ""
    return hashed_name(f"{NAMESPACE_PREFIX}{plane}", plane, binding.uid)


def labels_of_tenant(binding: Binding) -> dict[str, str]:
    return {**binding.owner_labels(), keys.CLUSTER_BINDING: safe_label_value(binding.name)}


def namespace_object(binding: Binding, facts: HostFacts) -> Object:
    """Return the namespace of a tenant. Its labels and annotations hold what the admission policies allow there."""
    isolation, sync = binding.spec.isolation, binding.spec.sync
    allowed = {
        "network-policies": sync.network_policies,
        "disruption-budgets": sync.disruption_budgets,
        "node-ports": isolation.allows_node_ports,
        "external-ips": isolation.allows_external_ips,
        "external-names": isolation.allows_external_names,
    }
    level = stricter_level(binding.spec.pod_security, ISOLATION_LEVELS[isolation.mode])
    labels = {
        **labels_of_tenant(binding),
        **{f"{keys.ALLOWS_PREFIX}{name}": str(value).lower() for name, value in allowed.items()},
        keys.POD_SECURITY_ENFORCE: level,
        f"{keys.POD_SECURITY_ENFORCE}-version": "latest",
    }
    suffix, found = ingress_suffix(binding), destinations(binding, facts)
    annotations = {
        keys.INGRESS_CLASS: binding.host.ingress_class if binding.host is not None and suffix else "",
        keys.INGRESS_SUFFIX: suffix,
        keys.FORBIDDEN_RANGES: ",".join(map(str, forbidden_ranges(binding, found))),
        keys.PLANE_ENDPOINTS: ",".join(plane_endpoints(found)),
        keys.OFFERED_CLASSES: ",".join(each.name_in_host for each in offered_classes(binding)) or None,
        keys.POD_ACCOUNT: binding.spec.service_account_name or None,
        keys.PRIORITY_CLASSES: ",".join([default_priority_class(binding), *priority_classes(binding, facts)]),
    }
    return {"metadata": {"name": host_namespace(binding), "labels": labels, "annotations": annotations}}


def default_priority_class(binding: Binding) -> str:
    offered = binding.host.priority_class_name if binding.host is not None else keys.PRIORITY_CLASS
    return binding.spec.pod_priority_class_name or offered


def priority_classes(binding: Binding, facts: HostFacts) -> tuple[str, ...]:
    """Return the classes for the priorities of a tenant's pods, as far as they exist; empty if all have the same."""
    if not binding.spec.sync.priority_classes or binding.host is None:
        return ()
    return tuple(each for each in binding.host.priority_range.classes if each in facts.priority_classes)


def offered_classes(binding: Binding) -> tuple[OfferedStorageClass, ...]:
    return binding.host.storage_classes if binding.host is not None else ()


def setup_objects(binding: Binding, facts: HostFacts) -> list[SetupObject]:
    """Return the objects in the namespace of a tenant, in the order in which they are created: the limits first.

    Raise TenantSpecError if a field does not allow it.
    """
    if binding.spec.mount_namespace is not None:
        raise TenantSpecError("spec.mountNamespace: a tenant has a namespace of its own; omit the field")
    default, offered = binding.spec.default_storage_class, [each.name for each in offered_classes(binding)]
    if default and default not in offered:
        choice = f"choose from {', '.join(offered)}" if offered else "it offers none"
        raise TenantSpecError(f"spec.defaultStorageClass: the HostCluster does not offer {default!r}; {choice}")
    return [
        *quota_objects(binding),
        *network_objects(binding, facts),
        *service_objects(binding, facts),
        *ingress_objects(binding, facts),
        *account_objects(binding),
    ]


def metadata(binding: Binding, name: str, labels: dict[str, str] | None = None) -> Object:
    own = {**labels_of_tenant(binding), **SETUP, **(labels or {})}
    return {"name": name, "namespace": host_namespace(binding), "labels": own}


# -- limits


def quota_objects(binding: Binding) -> Iterator[SetupObject]:
    quota = binding.spec.quota
    try:
        hard = ResourceList.parse({**DEFAULT_COUNTS, **quota}, "spec.quota").texts()
    except QuantityError as error:
        raise TenantSpecError(str(error)) from error
    yield RESOURCE_QUOTAS, {"metadata": metadata(binding, QUOTA), "spec": {"hard": hard}}
    requests = {name: amount for name, amount in DEFAULT_REQUESTS.items() if is_counted(name, quota, "requests")}
    limits = {name: amount for name, amount in DEFAULT_LIMITS.items() if is_counted(name, quota, "limits")}
    if requests or limits:
        item: Object = {"type": "Container", "defaultRequest": requests | limited_requests(limits)}
        item |= {"default": limits} if limits else {}
        yield LIMIT_RANGES, {"metadata": metadata(binding, LIMITS), "spec": {"limits": [item]}}


def is_counted(resource: str, quota: dict[str, str], field: str) -> bool:
    """Return whether a quota rejects pods without this request or limit."""
    return f"{field}.{resource}" in quota or (field == "requests" and resource in quota)


def limited_requests(limits: dict[str, str]) -> dict[str, str]:
    """Return default requests of the resources with default limits; otherwise the limits would be requested."""
    return {name: DEFAULT_REQUESTS[name] for name in limits}


# -- network


def network_objects(binding: Binding, facts: HostFacts) -> Iterator[SetupObject]:
    """Yield the NetworkPolicies of a tenant with full isolation."""
    if binding.spec.isolation.mode != "full":
        return
    found = destinations(binding, facts)
    callers = [*facts.api_servers, *filter(None, (process_address(binding, "api_address"), dns_address(binding)))]
    for name, spec in named_policies(binding, found, callers):
        yield NETWORK_POLICIES, {"metadata": metadata(binding, name), "spec": spec}


def destinations(binding: Binding, facts: HostFacts) -> Destinations:
    """Return what the pods of a tenant need besides each other. Raise TenantSpecError."""
    api, dns = process_address(binding, "api_address"), dns_address(binding)
    return Destinations(
        api=Destination(api, facts.api_port) if api and facts.api_port else None,
        dns=Destination(dns, facts.dns_port) if dns and facts.dns_port else None,
        forbidden=(*facts.api_servers, *filter(None, (api, dns))),
    )


def process_address(binding: Binding, field: str) -> str:
    """Return an address of the process of the planes; empty if the HostCluster has none. Raise TenantSpecError."""
    text: str = getattr(binding.host, field) if binding.host is not None else ""
    if not text:
        return ""
    name = "apiAddress" if field == "api_address" else "dnsAddress"
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise TenantSpecError(f"HostCluster spec.{name}: {text!r} is not an IP address") from None
    if address.is_unspecified or address.is_multicast or address.is_loopback or address.is_link_local:
        raise TenantSpecError(f"HostCluster spec.{name}: pods cannot reach {text}; give an address of the network")
    return str(address)


def dns_address(binding: Binding) -> str:
    return process_address(binding, "dns_address") or process_address(binding, "api_address")


def service_objects(binding: Binding, facts: HostFacts) -> Iterator[SetupObject]:
    """Yield the Services that lead to the process of the planes, with their addresses."""
    if (api := process_address(binding, "api_address")) and facts.api_port:
        port = {"name": "https", "protocol": "TCP", "port": KUBERNETES_PORT, "targetPort": KUBERNETES_PORT}
        yield from routed_service(binding, API_SERVICE, api, facts.api_port, [port])
    if (dns := dns_address(binding)) and facts.dns_port:
        ports = [
            {"name": f"dns-{protocol.lower()}", "protocol": protocol, "port": DNS_PORT, "targetPort": DNS_PORT}
            for protocol in ("UDP", "TCP")
        ]
        yield from routed_service(binding, DNS_SERVICE, dns, facts.dns_port, ports, binding.spec.dns.service_ip)


def routed_service(
    binding: Binding, name: str, address: str, port: int, ports: list[Object], service_ip: str = ""
) -> Iterator[SetupObject]:
    """Yield a Service without selector and its EndpointSlice with one address."""
    spec: Object = {"type": "ClusterIP", "ports": ports}
    if service_ip:
        try:
            spec["clusterIP"] = str(ipaddress.ip_address(service_ip))
        except ValueError:
            raise TenantSpecError(f"spec.dns.serviceIp: {service_ip!r} is not an IP address") from None
    yield SERVICES, {"metadata": metadata(binding, name), "spec": spec}
    labels = {
        "kubernetes.io/service-name": name,
        "endpointslice.kubernetes.io/managed-by": "tapestry.io",
    }
    yield (
        ENDPOINT_SLICES,
        {
            "metadata": metadata(binding, name, labels),
            "addressType": f"IPv{ipaddress.ip_address(address).version}",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": [{"name": each["name"], "protocol": each["protocol"], "port": port} for each in ports],
        },
    )


def ingress_objects(binding: Binding, facts: HostFacts) -> Iterator[SetupObject]:
    """Yield the Ingress that leads to the Service of the API, if the binding has a host name and there is a Service."""
    if not binding.spec.api_host or binding.host is None:
        return
    for fault in api_ingress_faults(binding.host, binding.spec.api_host):
        raise TenantSpecError(f"spec.apiHost: {fault.message}")
    if facts.api_port is None:
        return
    annotations = {**dict.fromkeys(sorted(PASSTHROUGH_ANNOTATIONS)), **binding.host.api_ingress_annotations}
    spec = ingress_spec(binding.spec.api_host, binding.host.ingress_class, API_SERVICE, KUBERNETES_PORT)
    yield INGRESSES, {"metadata": {**metadata(binding, API_SERVICE), "annotations": annotations}, "spec": spec}


# -- account


def pod_account_fault(host: HostClusterSpec, name: str) -> str:
    """Return why the pods of tenants may not have an account; empty if they may."""
    if name in host.service_accounts and name not in OWN_ACCOUNTS:
        return ""
    offered = ", ".join(each for each in host.service_accounts if each not in OWN_ACCOUNTS)
    return f"must be one of {offered} in this host cluster" if offered else "must be empty in this host cluster"


def account_objects(binding: Binding) -> Iterator[SetupObject]:
    """Yield the account that the syncer writes with, its rights in the namespace, and the account of the pods."""
    if (name := binding.spec.service_account_name) and binding.host is not None:
        if fault := pod_account_fault(binding.host, name):
            raise TenantSpecError(f"spec.serviceAccountName: {fault}")
        yield SERVICE_ACCOUNTS, {"metadata": metadata(binding, name), "automountServiceAccountToken": False}
    yield SERVICE_ACCOUNTS, {"metadata": metadata(binding, ACCOUNT), "automountServiceAccountToken": False}
    yield (
        ROLE_BINDINGS,
        {
            "metadata": metadata(binding, ACCOUNT),
            "roleRef": {"apiGroup": CLUSTER_ROLES.group, "kind": CLUSTER_ROLES.kind, "name": ACCOUNT},
            "subjects": [{"kind": SERVICE_ACCOUNTS.kind, "name": ACCOUNT, "namespace": host_namespace(binding)}],
        },
    )


SETUP_KINDS = (
    *(RESOURCE_QUOTAS, LIMIT_RANGES, NETWORK_POLICIES, SERVICES, ENDPOINT_SLICES, INGRESSES),
    *(SERVICE_ACCOUNTS, ROLE_BINDINGS),
)
"""Kinds of `setup_objects`. What is not among these objects any more is deleted."""
