"""Twins of the Services of a tenant, and what its host cluster decides about them.

A twin selects the twins of the tenant's pods, so that the controllers of the host cluster make its EndpointSlices. The
host cluster allocates addresses and node ports. Labels and annotations of the tenant are not copied, because
controllers of the owner act on them. Nor are `loadBalancerIP` and `loadBalancerClass`: the owner decides about these.

The twin of a Service of type ExternalName is a headless Service with the name in an annotation, which the tenant's DNS
reads. No controller of the host cluster sends anything to that name.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.names import physical_name
from tapestry.kube.names import dns_label_error, dns_subdomain_error
from tapestry.kube.objects import Object, labels_of, name_of, namespace_of, value_at, without_field
from tapestry.kube.resources import ENDPOINT_SLICES, SERVICES
from tapestry.syncer.translate.metadata import source_metadata
from tapestry.syncer.translate.sanitize import as_list, as_object, is_int32, routable_address, sanitized_text
from tapestry.syncer.translate.services import (
    ENDPOINT,
    HEADLESS,
    PORT,
    SERVICE_NAME,
    SLICE_MANAGER,
    family_of,
    is_headless,
    pick_fields,
    twin_service_name,
)
from tapestry.syncer.translate.tenant_labels import twin_match_labels
from tapestry.tenants.sync.twin_objects import NotSynced, NoTwin

API_SERVICE = "default/kubernetes"
"""Key of the Service that leads to the plane itself. Its address is that of the Service in the host namespace."""
EXTERNAL_NAME, NODE_PORT, LOAD_BALANCER, CLUSTER_IP = "ExternalName", "NodePort", "LoadBalancer", "ClusterIP"
ALWAYS_COPIED = ("sessionAffinity", "sessionAffinityConfig", "internalTrafficPolicy", "trafficDistribution")
ADDRESS_FIELDS = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")
FAMILY_POLICIES = ("SingleStack", "PreferDualStack", "RequireDualStack")
MAX_INGRESSES = 32
"""Addresses of a load balancer that are copied to the plane."""
PROTOCOLS = ("TCP", "UDP", "SCTP")


def is_api_service(service: Object) -> bool:
    return f"{namespace_of(service)}/{name_of(service)}" == API_SERVICE


def selects_pods(service: Object) -> bool:
    return bool(service["spec"].get("selector")) and service["spec"].get("type") != EXTERNAL_NAME


# -- twins of Services


def desired_service(service: Object, binding: Binding) -> Object:
    """Return the desired twin of a Service. Raises NoTwin."""
    if is_api_service(service):
        raise NoTwin
    spec = service["spec"]
    metadata = {
        "name": twin_service_name(service, binding),
        "namespace": binding.spec.mount_namespace,
        **source_metadata(service, binding),
    }
    twin: Object = {"apiVersion": SERVICES.api_version, "kind": SERVICES.kind, "metadata": metadata}
    if spec.get("type") == EXTERNAL_NAME:
        if not binding.spec.isolation.allows_external_names:
            raise NotSynced("ExternalNameNotAllowed", "spec.type: the host cluster allows no type ExternalName")
        name = {keys.EXTERNAL_NAME: spec.get("externalName") or ""}
        with_name = {**metadata, "annotations": {**metadata["annotations"], **name}}
        no_pods = {"type": CLUSTER_IP, "clusterIP": HEADLESS, "selector": None, "ports": None}
        return {**twin, "metadata": with_name, "spec": no_pods}
    without_name = {**metadata, "annotations": {**metadata["annotations"], keys.EXTERNAL_NAME: None}}
    return {**twin, "metadata": without_name, "spec": desired_spec(service, binding)}


def desired_spec(service: Object, binding: Binding) -> Object:
    spec, isolation, type = service["spec"], binding.spec.isolation, twin_type(service, binding)
    external_ips = list(spec.get("externalIPs") or ()) if isolation.allows_external_ips else []
    is_external = type != CLUSTER_IP or bool(external_ips)
    policy = spec.get("externalTrafficPolicy") or "Cluster"
    if type == LOAD_BALANCER and not isolation.allows_node_ports:
        policy = "Cluster"  # Local needs a node port for health checks
    return {
        "type": type,
        "selector": twin_selector(service, binding),
        "ports": [pick_fields(port, PORT) for port in spec.get("ports") or ()] or None,
        "ipFamilyPolicy": family_policy(spec),
        **({"clusterIP": HEADLESS} if is_headless(service) else {}),
        **{field: spec.get(field) for field in ALWAYS_COPIED},
        "publishNotReadyAddresses": spec.get("publishNotReadyAddresses") or None,
        "externalIPs": external_ips or None,
        "externalTrafficPolicy": policy if is_external else None,
        "loadBalancerIP": None,
        "loadBalancerSourceRanges": list(spec.get("loadBalancerSourceRanges") or ()) or None
        if type == LOAD_BALANCER
        else None,
        "allocateLoadBalancerNodePorts": isolation.allows_node_ports and spec.get("allocateLoadBalancerNodePorts", True)
        if type == LOAD_BALANCER
        else None,
    }


def twin_selector(service: Object, binding: Binding) -> Object | None:
    """Return the selector of a twin; None if the Service selects nothing."""
    if not selects_pods(service):
        return None
    return twin_match_labels(service["spec"]["selector"], binding, namespace_of(service) or "")


def twin_type(service: Object, binding: Binding) -> str:
    type: str = service["spec"].get("type") or CLUSTER_IP
    return CLUSTER_IP if type == NODE_PORT and not binding.spec.isolation.allows_node_ports else type


def family_policy(spec: Object) -> str:
    policy = spec.get("ipFamilyPolicy")
    return policy if policy in FAMILY_POLICIES else "SingleStack"


def service_limitation(service: Object, binding: Binding) -> NotSynced | None:
    """Return which part of a Service its twin lacks; None if it lacks none."""
    spec, isolation = service["spec"], binding.spec.isolation
    if spec.get("type") == NODE_PORT and not isolation.allows_node_ports:
        message = "spec.type: the host cluster allows no node ports; only pods reach the Service"
        return NotSynced("NodePortsNotAllowed", message)
    if spec.get("externalIPs") and not isolation.allows_external_ips:
        message = "spec.externalIPs: the host cluster allows no external addresses; they lead nowhere"
        return NotSynced("ExternalIPsNotAllowed", message)
    if spec.get("loadBalancerClass") and spec.get("type") == LOAD_BALANCER:
        message = "spec.loadBalancerClass: the host cluster uses the load balancer that it offers to tenants"
        return NotSynced("LoadBalancerClassIgnored", message)
    if spec.get("loadBalancerIP") and spec.get("type") == LOAD_BALANCER:
        message = "spec.loadBalancerIP: the host cluster chooses the address of the load balancer"
        return NotSynced("LoadBalancerIPIgnored", message)
    return None


def with_allocated_values(desired: Object, existing: Object) -> Object:
    """Return the desired twin with what the host cluster allocated: node ports, and the keys of a former selector."""
    spec, current = desired["spec"], existing["spec"]
    has_node_ports = spec.get("type") == NODE_PORT or spec.get("allocateLoadBalancerNodePorts")
    if has_node_ports and spec.get("ports"):
        numbers = node_ports(existing)
        spec = {**spec, "ports": [with_node_port(each, numbers) for each in spec["ports"]]}
    if spec.get("selector") is not None:
        former = dict.fromkeys(as_object(current.get("selector")))
        spec = {**spec, "selector": {**former, **spec["selector"]}}
    return {**desired, "spec": spec}


def node_ports(service: Object) -> dict[tuple[Any, Any], int]:
    """Return the node ports of a Service, which is untrusted, by protocol and port."""
    ports = map(as_object, as_list(service["spec"].get("ports")))
    return {
        (each.get("protocol"), each.get("port")): number
        for each in ports
        if is_int32(number := each.get("nodePort")) and 0 < number < 65536
    }


def with_node_port(port: Object, numbers: Mapping[tuple[Any, Any], int]) -> Object:
    """Return a port with the node port that it has in `numbers`, or without one."""
    rest = without_field(port, "nodePort")
    number = numbers.get((port.get("protocol"), port.get("port")))
    return rest if number is None else {**rest, "nodePort": number}


def needs_recreate(existing: Object, desired: Object) -> bool:
    """Return whether they differ in an immutable field."""
    return is_headless(existing) != is_headless(desired)


# -- what the host cluster decides


def reported_service(service: Object, twin: Object | None) -> Object:
    """Return the fields of a Service that its host cluster decides. The twin is untrusted."""
    spec = service["spec"]
    if spec.get("type") == EXTERNAL_NAME:
        return {}
    fields: Object = {} if is_headless(service) else {"spec": reported_addresses(twin)}
    if spec.get("type") == LOAD_BALANCER:
        fields["status"] = {"loadBalancer": {"ingress": reported_ingress(twin) or None}}
    if twin is not None and spec.get("type") in (NODE_PORT, LOAD_BALANCER):
        ports = [with_node_port(each, node_ports(twin)) for each in spec.get("ports") or ()]
        fields["spec"] = {**fields.get("spec", {}), "ports": ports}
    return fields


def reported_addresses(twin: Object | None) -> Object:
    """Return the address fields of a Service; None removes them."""
    spec = twin["spec"] if twin is not None else {}
    listed = as_list(spec.get("clusterIPs"))[:2] or [spec.get("clusterIP")]
    addresses = [address for each in listed if (address := routable_address(each))]
    families = list(map(family_of, addresses))
    if not addresses or len(set(families)) < len(families):
        return {"clusterIP": None, "clusterIPs": None}
    policy = family_policy(spec)
    return {
        "clusterIP": addresses[0],
        "clusterIPs": addresses,
        "ipFamilies": families,
        "ipFamilyPolicy": policy if len(families) == 1 or policy != "SingleStack" else "PreferDualStack",
    }


def api_addresses(address: str) -> Object:
    """Return the address fields of the Service that leads to the plane."""
    if not routable_address(address):
        return {}
    return {"spec": reported_addresses({"spec": {"clusterIP": address}})}


def reported_ingress(twin: Object | None) -> list[Object]:
    """Return the sanitized addresses of a load balancer."""
    listed = as_list(value_at(twin, "status", "loadBalancer", "ingress")) if twin is not None else []
    return [entry for each in listed[:MAX_INGRESSES] if (entry := sanitized_ingress(as_object(each)))]


def sanitized_ingress(entry: Mapping[str, Any]) -> Object:
    """Return an address of a load balancer; empty if it has neither a valid address nor a valid name."""
    address, hostname = routable_address(entry.get("ip")), sanitized_text(entry.get("hostname"))
    result: Object = {}
    if address:
        mode = entry.get("ipMode")
        result |= {"ip": address, "ipMode": mode if mode in ("VIP", "Proxy") else "VIP"}
    if hostname and dns_subdomain_error(hostname) is None and not routable_address(hostname):
        result["hostname"] = hostname
    ports = [port for each in as_list(entry.get("ports"))[:MAX_INGRESSES] if (port := sanitized_port(as_object(each)))]
    return {**result, "ports": ports} if result and ports else result


def sanitized_port(port: Mapping[str, Any]) -> Object:
    number, protocol = port.get("port"), port.get("protocol")
    return {"port": number, "protocol": protocol} if is_int32(number) and protocol in PROTOCOLS else {}


# -- twins of EndpointSlices that users wrote


def desired_slice(slice: Object, service: Object | None, own_addresses: frozenset[str], binding: Binding) -> Object:
    """Return the desired twin of a slice of a Service without a selector. Raises NoTwin.

    It has only addresses of the tenant's own pods: others may belong to the owner or to another tenant.
    """
    if service is None or is_api_service(service) or selects_pods(service):
        raise NoTwin
    if service["spec"].get("type") == EXTERNAL_NAME or slice.get("addressType") not in ("IPv4", "IPv6"):
        raise NoTwin
    endpoints = list(own_endpoints(slice, own_addresses))
    if not endpoints:
        if limitation := slice_limitation(slice, own_addresses):
            raise limitation
        raise NoTwin
    name = physical_name(binding.virtual_cluster, binding.uid, namespace_of(slice) or "", name_of(slice))
    metadata = source_metadata(slice, binding)
    owner_labels = {SERVICE_NAME: twin_service_name(service, binding), SLICE_MANAGER: keys.TAPESTRY}
    return {
        "apiVersion": ENDPOINT_SLICES.api_version,
        "kind": ENDPOINT_SLICES.kind,
        "metadata": {
            "name": name,
            "namespace": binding.spec.mount_namespace,
            **metadata,
            "labels": {**metadata["labels"], **owner_labels},
        },
        "addressType": slice["addressType"],
        "endpoints": endpoints,
        "ports": [pick_fields(port, PORT) for port in slice.get("ports") or ()] or None,
    }


def own_endpoints(slice: Object, own_addresses: frozenset[str]) -> Iterator[Object]:
    for endpoint in slice.get("endpoints") or ():
        if addresses := [each for each in endpoint.get("addresses") or () if each in own_addresses]:
            fields = pick_fields(endpoint, ENDPOINT)
            if dns_label_error(fields.get("hostname", "a")) is not None:
                del fields["hostname"]
            yield {"addresses": addresses, **fields}


def slice_limitation(slice: Object, own_addresses: frozenset[str]) -> NotSynced | None:
    """Return the first address of a slice that is not of the tenant; None if all are."""
    for number, endpoint in enumerate(slice.get("endpoints") or ()):
        for address in endpoint.get("addresses") or ():
            if address not in own_addresses:
                message = f"endpoints[{number}].addresses: {address} is no address of a pod of this cluster"
                return NotSynced("AddressNotAllowed", message)
    return None


def slice_needs_recreate(existing: Object, desired: Object) -> bool:
    return bool(existing.get("addressType") != desired.get("addressType"))


def service_of_slice(slice: Object) -> str:
    """Return the key of the Service of a slice; empty if it has none."""
    name = labels_of(slice).get(SERVICE_NAME)
    return f"{namespace_of(slice)}/{name}" if name else ""
