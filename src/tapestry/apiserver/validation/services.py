"""Services, and the endpoints behind them."""

from collections.abc import Iterator
from typing import Any

from tapestry.apiserver.customs.structural import Fault
from tapestry.apiserver.validation import names
from tapestry.apiserver.validation.containers import port_number, port_number_or_name, protocol
from tapestry.apiserver.validation.faults import (
    between,
    duplicate,
    every,
    forbidden,
    invalid,
    matching,
    one_of,
    required,
    struct,
    too_many,
    unchanged,
    unsupported,
)
from tapestry.apiserver.validation.metadata import labels
from tapestry.kube.objects import Object

AFFINITY_SECONDS = 86400
FAMILIES = ("IPv4", "IPv6")
TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
EXTERNAL = ("NodePort", "LoadBalancer")
ONLY_BALANCED = "may only be used when `type` is 'LoadBalancer'"
ADDRESSES, ENDPOINTS, PORTS = 100, 1000, 20000

is_label, is_subdomain = matching(names.label), matching(names.subdomain)


def is_headless(spec: Object) -> bool:
    return spec.get("clusterIPs") == ["None"]


def needs_health_check(spec: Object) -> bool:
    return spec.get("type") == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local"


def service(spec: Any, path: str, old: Object | None = None) -> Iterator[Fault]:
    type, ports = spec.get("type", ""), spec.get("ports") or []
    if not ports and not is_headless(spec) and type != "ExternalName":
        yield required(f"{path}.ports")
    if is_headless(spec) and type in EXTERNAL:
        yield invalid(f"{path}.clusterIPs[0]", "None", f"may not be set to 'None' for {type} services")
    if type == "ExternalName":
        yield from external_name(spec, path)
    yield from service_ports(ports, f"{path}.ports")
    yield from HEAD(spec, path)
    if type != "ExternalName":
        yield from addresses(spec, path, old)
    for number, each in enumerate(spec.get("externalIPs") or ()):
        at = f"{path}.externalIPs[{number}]"
        yield from matching(names.ip)(each, at) if names.ip(each) else reachable(each, at)
    yield from one_of(*TYPES)(type, f"{path}.type")
    yield from port_uses(ports, f"{path}.ports", type)
    yield from balancing(spec, path)
    yield from policies(spec, path)


def external_name(spec: Object, path: str) -> Iterator[Fault]:
    for field in ("clusterIPs", "ipFamilies", "ipFamilyPolicy"):
        if spec.get(field):
            yield forbidden(f"{path}.{field}", "may not be set for ExternalName services")
    if name := spec.get("externalName", "").removesuffix("."):
        yield from is_subdomain(name, f"{path}.externalName")
    else:
        yield required(f"{path}.externalName")


# -- ports


def service_ports(ports: list[Object], path: str) -> Iterator[Fault]:
    seen: set[str] = set()
    for number, each in enumerate(ports):
        at, name = f"{path}[{number}]", each.get("name", "")
        if len(ports) > 1 and not name:
            yield required(f"{at}.name")
        elif name:
            yield from is_label(name, f"{at}.name")
            if name in seen:
                yield duplicate(f"{at}.name", name)
            seen.add(name)
        yield from port_number(each.get("port", 0), f"{at}.port")
        yield from PORT(each, at)


PORT = struct(("protocol", protocol), ("targetPort", port_number_or_name), ("appProtocol", matching(names.qualified)))


def port_uses(ports: list[Object], path: str, type: str) -> Iterator[Fault]:
    if type == "ClusterIP":
        for number, each in enumerate(ports):
            if each.get("nodePort"):
                yield forbidden(f"{path}[{number}].nodePort", "may not be used when `type` is 'ClusterIP'")
    taken = set()
    for number, each in enumerate(ports):
        if each.get("nodePort"):
            pair = each.get("protocol"), each["nodePort"]
            if pair in taken:
                yield duplicate(f"{path}[{number}].nodePort", each["nodePort"])
            taken.add(pair)
    used = set()
    for number, each in enumerate(ports):
        key = each.get("protocol", ""), each.get("port", 0)
        if key in used:
            yield duplicate(f"{path}[{number}]", go_port(*key))
        used.add(key)


def go_port(protocol: str, port: int) -> Object:
    """A port as Kubernetes shows it when two are the same."""
    return {"Name": "", "Protocol": protocol, "AppProtocol": None, "Port": port, "TargetPort": 0, "NodePort": 0}


# -- sessions


def affinity(spec: Any, path: str) -> Iterator[Fault]:
    kind, config = spec.get("sessionAffinity", ""), spec.get("sessionAffinityConfig")
    yield from one_of("ClientIP", "None")(kind, f"{path}.sessionAffinity")
    at = f"{path}.sessionAffinityConfig"
    if kind == "ClientIP":
        seconds = ((config or {}).get("clientIP") or {}).get("timeoutSeconds")
        if seconds is None:
            yield required(at, "when session affinity type is ClientIP")
        else:
            why = f"must be greater than 0 and less than {AFFINITY_SECONDS}"
            yield from between(1, AFFINITY_SECONDS, why)(seconds, f"{at}.clientIP.timeoutSeconds")
    elif kind == "None" and config is not None:
        yield forbidden(at, "must not be set when session affinity is None")


HEAD = struct(("selector", labels), ("", affinity))


# -- addresses


def addresses(spec: Object, path: str, old: Object | None) -> Iterator[Fault]:
    ips, first = spec.get("clusterIPs") or [], spec.get("clusterIP", "")
    if first and not ips:
        yield required(f"{path}.clusterIPs")
    elif first and ips[0] != first:
        yield invalid(f"{path}.clusterIPs", ips, "first value must match `clusterIP`")
    elif ips and not first:
        yield invalid(f"{path}.clusterIPs", ips, "must be empty when `clusterIP` is not specified")
    yield from families(spec, path)
    known = (old or {}).get("clusterIPs") or []
    bad = False
    for number, each in enumerate(ips):
        if number == 0 and each == "None":
            if len(ips) > 1:
                bad = True
                yield invalid(f"{path}.clusterIPs", ips, "'None' must be the first and only value")
            continue
        if each not in known and names.ip(each):
            bad = True
            yield from matching(names.ip)(each, f"{path}.clusterIPs[{number}]")
    if len(ips) > 2:
        yield invalid(f"{path}.clusterIPs", ips, "may only hold up to 2 values")
    if not bad:
        yield from matched_families(spec, ips, path)


def families(spec: Object, path: str) -> Iterator[Fault]:
    seen = set()
    for number, each in enumerate(spec.get("ipFamilies") or ()):
        if each not in FAMILIES:
            yield unsupported(f"{path}.ipFamilies[{number}]", each, FAMILIES)
        if each in seen:
            yield duplicate(f"{path}.ipFamilies[{number}]", each)
        seen.add(each)
    if policy := spec.get("ipFamilyPolicy"):
        allowed = ("PreferDualStack", "RequireDualStack", "SingleStack")
        yield from one_of(*allowed)(policy, f"{path}.ipFamilyPolicy")


def family_of(ip: str) -> str:
    return "IPv6" if ":" in ip else "IPv4"


def matched_families(spec: Object, ips: list[str], path: str) -> Iterator[Fault]:
    if len(ips) > 1 and len({family_of(each) for each in ips}) != len(ips):
        yield invalid(f"{path}.clusterIPs", ips, "may specify no more than one IP for each IP family")
    if is_headless(spec):
        return
    for number, (ip, family) in enumerate(zip(ips, spec.get("ipFamilies") or (), strict=False)):
        if family in FAMILIES and family_of(ip) != family:
            why = f"expected an {family} value as indicated by `ipFamilies[{number}]`"
            yield invalid(f"{path}.clusterIPs[{number}]", ip, why)


# -- load balancers and policies


def balancing(spec: Object, path: str) -> Iterator[Fault]:
    is_balanced = spec.get("type") == "LoadBalancer"
    if ranges := spec.get("loadBalancerSourceRanges"):
        at = f"{path}.LoadBalancerSourceRanges"
        if not is_balanced:
            yield forbidden(at, ONLY_BALANCED)
        yield from every(matching(names.cidr))([each.strip() for each in ranges], at)
    if spec.get("allocateLoadBalancerNodePorts") is not None and not is_balanced:
        yield forbidden(f"{path}.allocateLoadBalancerNodePorts", ONLY_BALANCED)
    if (kind := spec.get("loadBalancerClass")) is not None:
        if is_balanced:
            yield from matching(names.qualified)(kind, f"{path}.loadBalancerClass")
        else:
            yield forbidden(f"{path}.loadBalancerClass", ONLY_BALANCED)


def policies(spec: Object, path: str) -> Iterator[Fault]:
    policy, port = spec.get("externalTrafficPolicy"), spec.get("healthCheckNodePort", 0)
    is_external = spec.get("type") in EXTERNAL or (spec.get("type") == "ClusterIP" and spec.get("externalIPs"))
    if not is_external:
        if policy:
            why = "may only be set for externally-accessible services"
            yield invalid(f"{path}.externalTrafficPolicy", policy, why)
    elif not policy:
        yield required(f"{path}.externalTrafficPolicy")
    else:
        yield from one_of("Cluster", "Local")(policy, f"{path}.externalTrafficPolicy")
    if port and not needs_health_check(spec):
        why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        yield invalid(f"{path}.healthCheckNodePort", port, why)
    yield from POLICIES(spec, path)


POLICIES = struct(
    ("internalTrafficPolicy", one_of("Cluster", "Local")),
    ("trafficDistribution", one_of("PreferClose")),
)


# -- changes


def changed_service(old: Object, new: Object) -> Iterator[Fault]:
    before, after = old["spec"], new["spec"]
    if "ExternalName" not in (before.get("type"), after.get("type")):
        if unsound := list(addresses(after, "spec", before)):
            yield from unsound
            return
        yield from same_addresses(before, after)
        yield from same_families(before, after)
    stays = before.get("type") == after.get("type") == "LoadBalancer"
    if stays and before.get("loadBalancerClass") != after.get("loadBalancerClass"):
        yield invalid("spec.loadBalancerClass", after.get("loadBalancerClass"), "may not change once set")
    checked = needs_health_check(before) and needs_health_check(after)
    if checked and before.get("healthCheckNodePort") != after.get("healthCheckNodePort"):
        yield forbidden("spec.healthCheckNodePort", "field is immutable")
    yield from service(after, "spec", before)


def same_addresses(before: Object, after: Object) -> Iterator[Fault]:
    then, now = before.get("clusterIPs") or [], after.get("clusterIPs") or []
    if then == now == ["None"]:
        return
    if then and not now:
        yield invalid("spec.clusterIPs[0]", None, "primary clusterIP can not be unset")
    for number, (old, new) in enumerate(zip(then, now, strict=False)):
        if old != new and (number == 0 or len(then) == len(now)):
            yield invalid(f"spec.clusterIPs[{number}]", now, "may not change once set")


def same_families(before: Object, after: Object) -> Iterator[Fault]:
    then, now = before.get("ipFamilies") or [], after.get("ipFamilies") or []
    if is_headless(before) or is_headless(after):
        return
    if then and now and then[0] != now[0]:
        yield invalid("spec.ipFamilies[0]", now, "may not change once set")


def changed_balancer(_: Object, new: Object) -> Iterator[Fault]:
    """Faults of a service's status."""
    ingress = ((new.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    if ingress and new["spec"].get("type") != "LoadBalancer":
        yield forbidden("status.loadBalancer.ingress", "may only be used when `spec.type` is 'LoadBalancer'")
    else:
        yield from every(INGRESS)(ingress, "status.loadBalancer.ingress")


def no_ip(value: Any, path: str) -> Iterator[Fault]:
    yield from is_subdomain(value, path)
    if not names.ip(value):
        yield invalid(path, value, "must be a DNS name, not an IP address")


INGRESS = struct(("ip", matching(names.ip)), ("hostname", no_ip))


# -- endpoints


def reachable(value: Any, path: str) -> Iterator[Fault]:
    """Faults of an address that traffic is sent to."""
    found = names.address(value)
    if found is None:
        yield invalid(path, value, "must be a valid IP address")
        return
    if found.is_unspecified:
        yield invalid(path, value, f"may not be unspecified ({value})")
    if found.is_loopback:
        yield invalid(path, value, "may not be in the loopback range (127.0.0.0/8, ::1/128)")
    if found.is_link_local:
        yield invalid(path, value, "may not be in the link-local range (169.254.0.0/16, fe80::/10)")
    if str(found).startswith(("224.0.0.", "ff02:")):
        yield invalid(path, value, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")


def endpoint_address(value: Any, path: str) -> Iterator[Fault]:
    ip = value.get("ip", "")
    yield from matching(names.ip)(ip, f"{path}.ip")
    yield from struct(("hostname", is_label), ("nodeName", is_subdomain))(value, path)
    yield from reachable(ip, f"{path}.ip")


def subset(value: Any, path: str) -> Iterator[Fault]:
    if not value.get("addresses") and not value.get("notReadyAddresses"):
        yield required(path, "must specify `addresses` or `notReadyAddresses`")
    for field in ("addresses", "notReadyAddresses"):
        yield from every(endpoint_address)(value.get(field) or (), f"{path}.{field}")
    ports = value.get("ports") or ()
    for number, each in enumerate(ports):
        at = f"{path}.ports[{number}]"
        if len(ports) > 1 and not each.get("name"):
            yield required(f"{at}.name")
        yield from struct(("name", is_label))(each, at)
        yield from port_number(each.get("port", 0), f"{at}.port")
        yield from struct(("protocol", protocol), ("appProtocol", matching(names.qualified)))(each, at)


endpoints = struct(("subsets", every(subset)))


# -- slices


def slice_ports(value: Any, path: str) -> Iterator[Fault]:
    if len(value) > PORTS:
        yield too_many(path, len(value), PORTS)
        return
    seen = set()
    for number, each in enumerate(value):
        at, name = f"{path}[{number}]", each.get("name", "")
        yield from struct(("name", is_label))(each, at)
        if name in seen:
            yield duplicate(f"{at}.name", name)
        seen.add(name)
        yield from struct(("protocol", protocol), ("appProtocol", matching(names.qualified)))(each, at)


def slice_address(kind: str, value: str, path: str, number: int) -> Iterator[Fault]:
    at = f"{path}[{number}]"
    if kind not in FAMILIES:
        yield from is_subdomain(value, at) if kind == "FQDN" else ()
        return
    complaints = names.ip(value) if kind == "IPv4" else names.canonical_ip(value)
    yield from (invalid(at, value, why) for why in complaints)
    if not complaints:
        if family_of(value) != kind:
            yield invalid(path, value, f"must be an {kind} address")
        yield from reachable(value, at)


def slice_endpoints(obj: Any, _: str) -> Iterator[Fault]:
    found, kind = obj.get("endpoints") or (), obj.get("addressType", "")
    if len(found) > ENDPOINTS:
        yield too_many("endpoints", len(found), ENDPOINTS)
        return
    for number, each in enumerate(found):
        at = f"endpoints[{number}]"
        ips = each.get("addresses") or ()
        if not ips:
            yield required(f"{at}.addresses", "must contain at least 1 address")
        elif len(ips) > ADDRESSES:
            yield too_many(f"{at}.addresses", len(ips), ADDRESSES)
        for index, ip in enumerate(ips):
            yield from slice_address(kind, ip, f"{at}.addresses", index)
        yield from struct(("nodeName", is_subdomain), ("hostname", is_label))(each, at)


def address_type(obj: Any, _: str) -> Iterator[Fault]:
    if not obj.get("addressType"):
        yield required("addressType")
    else:
        yield from one_of("FQDN", "IPv4", "IPv6")(obj["addressType"], "addressType")


endpoint_slice = struct(("", address_type), ("ports", slice_ports), ("", slice_endpoints))


def changed_slice(old: Object, new: Object) -> Iterator[Fault]:
    yield from endpoint_slice(new, "")
    yield from unchanged(old.get("addressType"), new.get("addressType"), "addressType")
