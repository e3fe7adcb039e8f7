"""Validation of Services, Endpoints and EndpointSlices."""

from collections.abc import Iterator
from typing import Any

from tapestry.apiserver.core import names
from tapestry.apiserver.core.faults import (
    Fault,
    between,
    duplicate_value,
    forbidden_field,
    format_validator,
    invalid_value,
    item_validator,
    one_of,
    required_value,
    struct_validator,
    too_many,
    unsupported_value,
    validate_immutable_field,
)
from tapestry.apiserver.core.metadata import validate_labels
from tapestry.apiserver.validation.containers import (
    validate_port_number,
    validate_port_number_or_name,
    validate_protocol,
)
from tapestry.kube.objects import Object

MAX_AFFINITY_SECONDS = 86400
IP_FAMILIES = ("IPv4", "IPv6")
SERVICE_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
EXTERNAL_SERVICE_TYPES = ("NodePort", "LoadBalancer")
ADDRESS_FIELDS = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")
LOAD_BALANCER_ONLY_MESSAGE = "may only be used when `type` is 'LoadBalancer'"
MAX_ENDPOINT_ADDRESSES, MAX_SLICE_ENDPOINTS, MAX_SLICE_PORTS = 100, 1000, 20000

validate_dns_label, validate_dns_subdomain = (
    format_validator(names.dns_label_errors),
    format_validator(names.dns_subdomain_errors),
)


def is_headless(spec: Object) -> bool:
    return spec.get("clusterIPs") == ["None"]


def needs_health_check(spec: Object) -> bool:
    return spec.get("type") == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local"


def validate_service_spec(spec: Any, path: str, old: Object | None = None) -> Iterator[Fault]:
    type, ports = spec.get("type", ""), spec.get("ports") or []
    if not ports and not is_headless(spec) and type != "ExternalName":
        yield required_value(f"{path}.ports")
    if is_headless(spec) and type in EXTERNAL_SERVICE_TYPES:
        yield invalid_value(f"{path}.clusterIPs[0]", "None", f"may not be set to 'None' for {type} services")
    if type == "ExternalName":
        yield from validate_external_name(spec, path)
    yield from validate_service_ports(ports, f"{path}.ports")
    yield from validate_selector_and_affinity(spec, path)
    if type != "ExternalName":
        yield from validate_cluster_ips(spec, path, old)
    for number, each in enumerate(spec.get("externalIPs") or ()):
        at = f"{path}.externalIPs[{number}]"
        yield from (
            format_validator(names.ip_errors)(each, at) if names.ip_errors(each) else validate_endpoint_ip(each, at)
        )
    yield from one_of(*SERVICE_TYPES)(type, f"{path}.type")
    yield from validate_port_uniqueness(ports, f"{path}.ports", type)
    yield from validate_load_balancer_fields(spec, path)
    yield from validate_traffic_policies(spec, path)


def validate_external_name(spec: Object, path: str) -> Iterator[Fault]:
    for field in ("clusterIPs", "ipFamilies", "ipFamilyPolicy"):
        if spec.get(field):
            yield forbidden_field(f"{path}.{field}", "may not be set for ExternalName services")
    if name := spec.get("externalName", "").removesuffix("."):
        yield from validate_dns_subdomain(name, f"{path}.externalName")
    else:
        yield required_value(f"{path}.externalName")


# -- ports


def validate_service_ports(ports: list[Object], path: str) -> Iterator[Fault]:
    seen: set[str] = set()
    for number, each in enumerate(ports):
        at, name = f"{path}[{number}]", each.get("name", "")
        if len(ports) > 1 and not name:
            yield required_value(f"{at}.name")
        elif name:
            yield from validate_dns_label(name, f"{at}.name")
            if name in seen:
                yield duplicate_value(f"{at}.name", name)
            seen.add(name)
        yield from validate_port_number(each.get("port", 0), f"{at}.port")
        yield from validate_service_port_fields(each, at)


validate_service_port_fields = struct_validator(
    ("protocol", validate_protocol),
    ("targetPort", validate_port_number_or_name),
    ("appProtocol", format_validator(names.qualified_name_errors)),
)


def validate_port_uniqueness(ports: list[Object], path: str, type: str) -> Iterator[Fault]:
    if type == "ClusterIP":
        for number, each in enumerate(ports):
            if each.get("nodePort"):
                yield forbidden_field(f"{path}[{number}].nodePort", "may not be used when `type` is 'ClusterIP'")
    node_ports = set()
    for number, each in enumerate(ports):
        if each.get("nodePort"):
            pair = each.get("protocol"), each["nodePort"]
            if pair in node_ports:
                yield duplicate_value(f"{path}[{number}].nodePort", each["nodePort"])
            node_ports.add(pair)
    port_keys = set()
    for number, each in enumerate(ports):
        key = each.get("protocol", ""), each.get("port", 0)
        if key in port_keys:
            yield duplicate_value(f"{path}[{number}]", go_service_port(*key))
        port_keys.add(key)


def go_service_port(protocol: str, port: int) -> Object:
    """Return a service port as Go prints it in a duplicate-port message."""
    return {"Name": "", "Protocol": protocol, "AppProtocol": None, "Port": port, "TargetPort": 0, "NodePort": 0}


# -- session affinity


def validate_session_affinity(spec: Any, path: str) -> Iterator[Fault]:
    kind, config = spec.get("sessionAffinity", ""), spec.get("sessionAffinityConfig")
    yield from one_of("ClientIP", "None")(kind, f"{path}.sessionAffinity")
    at = f"{path}.sessionAffinityConfig"
    if kind == "ClientIP":
        seconds = ((config or {}).get("clientIP") or {}).get("timeoutSeconds")
        if seconds is None:
            yield required_value(at, "when session affinity type is ClientIP")
        else:
            msg = f"must be greater than 0 and less than {MAX_AFFINITY_SECONDS}"
            yield from between(1, MAX_AFFINITY_SECONDS, msg)(seconds, f"{at}.clientIP.timeoutSeconds")
    elif kind == "None" and config is not None:
        yield forbidden_field(at, "must not be set when session affinity is None")


validate_selector_and_affinity = struct_validator(("selector", validate_labels), ("", validate_session_affinity))


# -- addresses


def validate_cluster_ips(spec: Object, path: str, old: Object | None) -> Iterator[Fault]:
    ips, first = spec.get("clusterIPs") or [], spec.get("clusterIP", "")
    if first and not ips:
        yield required_value(f"{path}.clusterIPs")
    elif first and ips[0] != first:
        yield invalid_value(f"{path}.clusterIPs", ips, "first value must match `clusterIP`")
    elif ips and not first:
        yield invalid_value(f"{path}.clusterIPs", ips, "must be empty when `clusterIP` is not specified")
    yield from validate_ip_families(spec, path)
    old_ips = (old or {}).get("clusterIPs") or []
    has_faults = False
    for number, each in enumerate(ips):
        if number == 0 and each == "None":
            if len(ips) > 1:
                has_faults = True
                yield invalid_value(f"{path}.clusterIPs", ips, "'None' must be the first and only value")
            continue
        if each not in old_ips and names.ip_errors(each):
            has_faults = True
            yield from format_validator(names.ip_errors)(each, f"{path}.clusterIPs[{number}]")
    if len(ips) > 2:
        yield invalid_value(f"{path}.clusterIPs", ips, "may only hold up to 2 values")
    if not has_faults:
        yield from validate_ips_match_families(spec, ips, path)


def validate_ip_families(spec: Object, path: str) -> Iterator[Fault]:
    seen = set()
    for number, each in enumerate(spec.get("ipFamilies") or ()):
        if each not in IP_FAMILIES:
            yield unsupported_value(f"{path}.ipFamilies[{number}]", each, IP_FAMILIES)
        if each in seen:
            yield duplicate_value(f"{path}.ipFamilies[{number}]", each)
        seen.add(each)
    if policy := spec.get("ipFamilyPolicy"):
        allowed = ("PreferDualStack", "RequireDualStack", "SingleStack")
        yield from one_of(*allowed)(policy, f"{path}.ipFamilyPolicy")


def ip_family_of(ip: str) -> str:
    return "IPv6" if ":" in ip else "IPv4"


def validate_ips_match_families(spec: Object, ips: list[str], path: str) -> Iterator[Fault]:
    if len(ips) > 1 and len({ip_family_of(each) for each in ips}) != len(ips):
        yield invalid_value(f"{path}.clusterIPs", ips, "may specify no more than one IP for each IP family")
    if is_headless(spec):
        return
    for number, (ip, family) in enumerate(zip(ips, spec.get("ipFamilies") or (), strict=False)):
        if family in IP_FAMILIES and ip_family_of(ip) != family:
            msg = f"expected an {family} value as indicated by `ipFamilies[{number}]`"
            yield invalid_value(f"{path}.clusterIPs[{number}]", ip, msg)


# -- load balancers and traffic policies


def validate_load_balancer_fields(spec: Object, path: str) -> Iterator[Fault]:
    is_balanced = spec.get("type") == "LoadBalancer"
    if ranges := spec.get("loadBalancerSourceRanges"):
        at = f"{path}.LoadBalancerSourceRanges"
        if not is_balanced:
            yield forbidden_field(at, LOAD_BALANCER_ONLY_MESSAGE)
        yield from item_validator(format_validator(names.cidr_errors))([each.strip() for each in ranges], at)
    if spec.get("allocateLoadBalancerNodePorts") is not None and not is_balanced:
        yield forbidden_field(f"{path}.allocateLoadBalancerNodePorts", LOAD_BALANCER_ONLY_MESSAGE)
    if (kind := spec.get("loadBalancerClass")) is not None:
        if is_balanced:
            yield from format_validator(names.qualified_name_errors)(kind, f"{path}.loadBalancerClass")
        else:
            yield forbidden_field(f"{path}.loadBalancerClass", LOAD_BALANCER_ONLY_MESSAGE)


def validate_traffic_policies(spec: Object, path: str) -> Iterator[Fault]:
    policy, port = spec.get("externalTrafficPolicy"), spec.get("healthCheckNodePort", 0)
    is_external = spec.get("type") in EXTERNAL_SERVICE_TYPES or (
        spec.get("type") == "ClusterIP" and spec.get("externalIPs")
    )
    if not is_external:
        if policy:
            msg = "may only be set for externally-accessible services"
            yield invalid_value(f"{path}.externalTrafficPolicy", policy, msg)
    elif not policy:
        yield required_value(f"{path}.externalTrafficPolicy")
    else:
        yield from one_of("Cluster", "Local")(policy, f"{path}.externalTrafficPolicy")
    if port and not needs_health_check(spec):
        msg = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        yield invalid_value(f"{path}.healthCheckNodePort", port, msg)
    yield from validate_internal_traffic_fields(spec, path)


validate_internal_traffic_fields = struct_validator(
    ("internalTrafficPolicy", one_of("Cluster", "Local")),
    ("trafficDistribution", one_of("PreferClose")),
)


# -- updates


def validate_service_update(old: Object, new: Object) -> Iterator[Fault]:
    before, after = old["spec"], new["spec"]
    if "ExternalName" not in (before.get("type"), after.get("type")):
        if ip_faults := list(validate_cluster_ips(after, "spec", before)):
            yield from ip_faults
            return
        yield from validate_cluster_ips_update(before, after)
        yield from validate_ip_families_update(before, after)
    is_balanced = before.get("type") == after.get("type") == "LoadBalancer"
    if is_balanced and before.get("loadBalancerClass") != after.get("loadBalancerClass"):
        yield invalid_value("spec.loadBalancerClass", after.get("loadBalancerClass"), "may not change once set")
    is_checked = needs_health_check(before) and needs_health_check(after)
    if is_checked and before.get("healthCheckNodePort") != after.get("healthCheckNodePort"):
        yield forbidden_field("spec.healthCheckNodePort", "field is immutable")
    yield from validate_service_spec(after, "spec", before)


def validate_cluster_ips_update(before: Object, after: Object) -> Iterator[Fault]:
    old_ips, new_ips = before.get("clusterIPs") or [], after.get("clusterIPs") or []
    if old_ips == new_ips == ["None"]:
        return
    if old_ips and not new_ips:
        yield invalid_value("spec.clusterIPs[0]", None, "primary clusterIP can not be unset")
    for number, (old, new) in enumerate(zip(old_ips, new_ips, strict=False)):
        if old != new and (number == 0 or len(old_ips) == len(new_ips)):
            yield invalid_value(f"spec.clusterIPs[{number}]", new_ips, "may not change once set")


def without_addresses(service: Object) -> Object:
    """Return a Service as if it had no addresses yet. The syncer replaces them when the host cluster changes."""
    spec = {key: each for key, each in service["spec"].items() if key not in ADDRESS_FIELDS}
    return {**service, "spec": spec}


def validate_ip_families_update(before: Object, after: Object) -> Iterator[Fault]:
    old_families, new_families = before.get("ipFamilies") or [], after.get("ipFamilies") or []
    if is_headless(before) or is_headless(after):
        return
    if old_families and new_families and old_families[0] != new_families[0]:
        yield invalid_value("spec.ipFamilies[0]", new_families, "may not change once set")


def validate_service_status_update(_: Object, new: Object) -> Iterator[Fault]:
    ingress = ((new.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    if ingress and new["spec"].get("type") != "LoadBalancer":
        yield forbidden_field("status.loadBalancer.ingress", "may only be used when `spec.type` is 'LoadBalancer'")
    else:
        yield from item_validator(validate_load_balancer_ingress)(ingress, "status.loadBalancer.ingress")


def validate_hostname_not_ip(value: Any, path: str) -> Iterator[Fault]:
    yield from validate_dns_subdomain(value, path)
    if not names.ip_errors(value):
        yield invalid_value(path, value, "must be a DNS name, not an IP address")


validate_load_balancer_ingress = struct_validator(
    ("ip", format_validator(names.ip_errors)), ("hostname", validate_hostname_not_ip)
)


# -- endpoints


def validate_endpoint_ip(value: Any, path: str) -> Iterator[Fault]:
    """Validate an endpoint address: not loopback, link-local or unspecified."""
    ip = names.parsed_ip(value)
    if ip is None:
        yield invalid_value(path, value, "must be a valid IP address")
        return
    if ip.is_unspecified:
        yield invalid_value(path, value, f"may not be unspecified ({value})")
    if ip.is_loopback:
        yield invalid_value(path, value, "may not be in the loopback range (127.0.0.0/8, ::1/128)")
    if ip.is_link_local:
        yield invalid_value(path, value, "may not be in the link-local range (169.254.0.0/16, fe80::/10)")
    if str(ip).startswith(("224.0.0.", "ff02:")):
        yield invalid_value(path, value, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")


def validate_endpoint_address(value: Any, path: str) -> Iterator[Fault]:
    ip = value.get("ip", "")
    yield from format_validator(names.ip_errors)(ip, f"{path}.ip")
    yield from struct_validator(("hostname", validate_dns_label), ("nodeName", validate_dns_subdomain))(value, path)
    yield from validate_endpoint_ip(ip, f"{path}.ip")


def validate_endpoint_subset(value: Any, path: str) -> Iterator[Fault]:
    if not value.get("addresses") and not value.get("notReadyAddresses"):
        yield required_value(path, "must specify `addresses` or `notReadyAddresses`")
    for field in ("addresses", "notReadyAddresses"):
        yield from item_validator(validate_endpoint_address)(value.get(field) or (), f"{path}.{field}")
    ports = value.get("ports") or ()
    for number, each in enumerate(ports):
        at = f"{path}.ports[{number}]"
        if len(ports) > 1 and not each.get("name"):
            yield required_value(f"{at}.name")
        yield from struct_validator(("name", validate_dns_label))(each, at)
        yield from validate_port_number(each.get("port", 0), f"{at}.port")
        yield from struct_validator(
            ("protocol", validate_protocol), ("appProtocol", format_validator(names.qualified_name_errors))
        )(each, at)


validate_endpoints = struct_validator(("subsets", item_validator(validate_endpoint_subset)))


# -- endpoint slices


def validate_slice_ports(value: Any, path: str) -> Iterator[Fault]:
    if len(value) > MAX_SLICE_PORTS:
        yield too_many(path, len(value), MAX_SLICE_PORTS)
        return
    seen = set()
    for number, each in enumerate(value):
        at, name = f"{path}[{number}]", each.get("name", "")
        yield from struct_validator(("name", validate_dns_label))(each, at)
        if name in seen:
            yield duplicate_value(f"{at}.name", name)
        seen.add(name)
        yield from struct_validator(
            ("protocol", validate_protocol), ("appProtocol", format_validator(names.qualified_name_errors))
        )(each, at)


def validate_slice_address(kind: str, value: str, path: str, number: int) -> Iterator[Fault]:
    at = f"{path}[{number}]"
    if kind not in IP_FAMILIES:
        yield from validate_dns_subdomain(value, at) if kind == "FQDN" else ()
        return
    errors = names.ip_errors(value) if kind == "IPv4" else names.canonical_ip_errors(value)
    yield from (invalid_value(at, value, msg) for msg in errors)
    if not errors:
        if ip_family_of(value) != kind:
            yield invalid_value(path, value, f"must be an {kind} address")
        yield from validate_endpoint_ip(value, at)


def validate_slice_endpoints(obj: Any, _: str) -> Iterator[Fault]:
    endpoints, kind = obj.get("endpoints") or (), obj.get("addressType", "")
    if len(endpoints) > MAX_SLICE_ENDPOINTS:
        yield too_many("endpoints", len(endpoints), MAX_SLICE_ENDPOINTS)
        return
    for number, each in enumerate(endpoints):
        at = f"endpoints[{number}]"
        ips = each.get("addresses") or ()
        if not ips:
            yield required_value(f"{at}.addresses", "must contain at least 1 address")
        elif len(ips) > MAX_ENDPOINT_ADDRESSES:
            yield too_many(f"{at}.addresses", len(ips), MAX_ENDPOINT_ADDRESSES)
        for index, ip in enumerate(ips):
            yield from validate_slice_address(kind, ip, f"{at}.addresses", index)
        yield from struct_validator(("nodeName", validate_dns_subdomain), ("hostname", validate_dns_label))(each, at)


def validate_address_type(obj: Any, _: str) -> Iterator[Fault]:
    if not obj.get("addressType"):
        yield required_value("addressType")
    else:
        yield from one_of("FQDN", "IPv4", "IPv6")(obj["addressType"], "addressType")


validate_endpoint_slice = struct_validator(
    ("", validate_address_type), ("ports", validate_slice_ports), ("", validate_slice_endpoints)
)


def validate_endpoint_slice_update(old: Object, new: Object) -> Iterator[Fault]:
    yield from validate_endpoint_slice(new, "")
    yield from validate_immutable_field(old.get("addressType"), new.get("addressType"), "addressType")
