"""Twins of Services and EndpointSlices, which pods on leased nodes call.

A twin Service has no selector: EndpointSlices of ours carry the addresses of the virtual ones. It is not reachable from
outside the physical cluster, because it has no node port, external address or load balancer. Labels and annotations of
the tenant are not copied: controllers of the owner act on them, and the label that joins a slice to a Service would add
the tenant's addresses to a Service of the owner.
"""

from collections.abc import Iterable, Iterator
from ipaddress import ip_address

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.names import physical_name, physical_service_name
from tapestry.kube.objects import Object, labels_of, name_of, namespace_of, value_at
from tapestry.kube.resources import ENDPOINT_SLICES, SERVICES, Resource
from tapestry.syncer.translate.metadata import source_metadata
from tapestry.syncer.translate.pods import HostAlias, service_names
from tapestry.syncer.translate.sanitize import is_ip_address, is_routable

SERVICE_NAME = "kubernetes.io/service-name"
"""Label of a slice that names its Service."""
SLICE_MANAGER = "endpointslice.kubernetes.io/managed-by"
HEADLESS = "None"
PORT = ("name", "protocol", "port", "targetPort", "appProtocol")
AFFINITY = ("sessionAffinity", "sessionAffinityConfig")
COUNTRY_CODE_LENGTH = 2
"""Length of the top-level domains of countries; no other domain is as short."""
TOP_LEVEL_DOMAINS = frozenset(
    {
        *("arpa", "biz", "com", "edu", "gov", "info", "int", "mil", "net", "org"),
        *("corp", "home", "internal", "intranet", "lan", "local", "localdomain", "localhost"),
    }
)
"""Namespace names that are also top-level domains: old domains, and those of private networks."""
ENDPOINT = ("conditions", "hostname")
"""Endpoint fields that are valid in both clusters; nodes, zones and pods differ."""
ServiceObjects = dict[tuple[Resource, str], Object]
"""Twins of one Service and its slices, by kind and name."""


def is_syncable(service: Object) -> bool:
    """Return whether the Service has addresses; one of type ExternalName has none."""
    return bool(service["spec"].get("type") != "ExternalName")


def service_key(slice: Object) -> list[str]:
    name = labels_of(slice).get(SERVICE_NAME)
    return [f"{namespace_of(slice)}/{name}"] if name else []


def twin_service_name(service: Object, binding: Binding) -> str:
    return physical_service_name(binding.virtual_cluster, binding.uid, namespace_of(service) or "", name_of(service))


def twin_service(service: Object, binding: Binding) -> Object:
    """Return the desired twin of `service`, for `Client.converge`."""
    spec = service["spec"]
    return {
        "apiVersion": SERVICES.api_version,
        "kind": SERVICES.kind,
        "metadata": service_metadata(service, twin_service_name(service, binding), binding),
        "spec": {
            "type": "ClusterIP",
            "selector": None,
            "ports": [pick_fields(port, PORT) for port in spec.get("ports") or ()] or None,
            "ipFamilyPolicy": "PreferDualStack",  # the virtual addresses may be of either family
            **({"clusterIP": HEADLESS} if is_headless(service) else {}),
            **pick_fields(spec, AFFINITY),
        },
    }


def twin_slice(slice: Object, service: Object, binding: Binding) -> Object | None:
    """Return the desired twin of a slice of `service`; None if the slice holds names instead of addresses."""
    if slice.get("addressType") not in ("IPv4", "IPv6"):
        return None
    name = physical_name(binding.virtual_cluster, binding.uid, namespace_of(slice) or "", name_of(slice))
    metadata = service_metadata(service, name, binding)
    owner_labels = {SERVICE_NAME: twin_service_name(service, binding), SLICE_MANAGER: keys.TAPESTRY}
    return {
        "apiVersion": ENDPOINT_SLICES.api_version,
        "kind": ENDPOINT_SLICES.kind,
        "metadata": {**metadata, "labels": {**metadata["labels"], **owner_labels}},
        "addressType": slice["addressType"],
        "endpoints": list(twin_endpoints(slice.get("endpoints") or ()))
        or None,  # the form in which a server returns an empty list
        "ports": [pick_fields(port, PORT) for port in slice.get("ports") or ()] or None,
    }


def twin_endpoints(endpoints: Iterable[Object]) -> Iterator[Object]:
    for endpoint in endpoints:
        if addresses := [each for each in endpoint.get("addresses") or () if is_routable(each)]:
            yield {"addresses": addresses, **pick_fields(endpoint, ENDPOINT)}


def service_metadata(service: Object, name: str, binding: Binding) -> Object:
    """Return the metadata of the twin of a Service or of its slices."""
    return {"name": name, "namespace": binding.spec.mount_namespace, **source_metadata(service, binding)}


def pick_fields(source: Object, fields: Iterable[str]) -> Object:
    return {field: source[field] for field in fields if source.get(field) is not None}


def service_needs_recreate(existing: Object, wanted: Object) -> bool:
    """Return whether they differ in an immutable field, so that the object has to be deleted and created again."""
    return is_headless(existing) != is_headless(wanted) or existing.get("addressType") != wanted.get("addressType")


def is_headless(service: Object) -> bool:
    return bool(value_at(service, "spec", "clusterIP") == HEADLESS)


def host_aliases(twin: Object, service: Object, namespace: str) -> list[HostAlias]:
    """Return aliases of the twin's addresses for pods of `namespace`, limited to the Service's address families."""
    names = names_from_namespace(namespace, service)
    families = service["spec"].get("ipFamilies")
    return [
        HostAlias(address, names)
        for address in twin["spec"].get("clusterIPs") or [twin["spec"].get("clusterIP")]
        if is_ip_address(address) and (not families or family_of(address) in families)
    ]


def names_from_namespace(namespace: str, service: Object) -> tuple[str, ...]:
    """Return the names of a Service for pods of `namespace`.

    Each name ends with the namespace of the Service, except the short one, which only its own namespace uses. So no
    Service has a name of another namespace. A name like `github.com` is left out because it may be that of a host.
    """
    own = namespace_of(service) or ""
    names = service_names(name_of(service), own)
    if namespace == own:
        return names
    return names[2:] if len(own) == COUNTRY_CODE_LENGTH or own in TOP_LEVEL_DOMAINS else names[1:]


def family_of(address: str) -> str:
    return f"IPv{ip_address(address).version}"


def desired_objects(service: Object | None, slices: Iterable[Object], binding: Binding) -> ServiceObjects:
    """Return the desired twins of a Service and its slices, the Service first."""
    if service is None or not is_syncable(service):
        return {}
    twins = (twin_slice(each, service, binding) for each in sorted(slices, key=name_of))
    objects = [(SERVICES, twin_service(service, binding)), *((ENDPOINT_SLICES, each) for each in twins if each)]
    return {(resource, name_of(obj)): obj for resource, obj in objects}


def stale_objects(existing: ServiceObjects, wanted: ServiceObjects) -> list[tuple[Resource, str]]:
    """Return the objects that must be deleted: unwanted ones, and those that differ in an immutable field."""
    return [ref for ref, obj in existing.items() if ref not in wanted or service_needs_recreate(obj, wanted[ref])]
