"""Services, ingresses and what they are made of, in a table."""

from tapestry.apiserver.printing.prints import (
    AGE,
    MOST_SHOWN,
    NAME,
    NONE,
    UNKNOWN,
    UNSET,
    Columns,
    Print,
    of,
    pairs,
    path,
    selector,
    some,
)
from tapestry.kube.objects import Object, value_at


def service_ports(service: Object) -> str:
    ports = value_at(service, "spec", "ports", default=[])
    shown = [
        f"{each['port']}{':' + str(each['nodePort']) if each.get('nodePort') else ''}/{each.get('protocol', 'TCP')}"
        for each in ports
    ]
    return ",".join(shown) or NONE


def service_external(service: Object) -> str:
    spec = service.get("spec") or {}
    own: list[str] = spec.get("externalIPs") or []
    match spec.get("type"):
        case "ClusterIP" | "NodePort":
            return ",".join(own) or NONE
        case "LoadBalancer":
            return ",".join([*entrances(service), *own]) or "<pending>"
        case "ExternalName":
            return str(spec.get("externalName", ""))
    return UNKNOWN


def entrances(obj: Object) -> list[str]:
    """Where a load balancer lets traffic in."""
    points = value_at(obj, "status", "loadBalancer", "ingress", default=[])
    return sorted({each.get("ip") or each.get("hostname") or "" for each in points} - {""})


def endpoints(obj: Object) -> str:
    subsets = obj.get("subsets") or ()
    found: list[str] = []
    for subset in subsets:
        addresses = [each["ip"] for each in subset.get("addresses") or ()]
        ports = [each["port"] for each in subset.get("ports") or ()]
        found += [host_port(ip, port) for port in ports for ip in addresses] if ports else addresses
    return some(found) if subsets else NONE


def host_port(ip: str, port: int) -> str:
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def slice_ports(obj: Object) -> str:
    return some([str(each.get("port") or each.get("name") or "*") for each in obj.get("ports") or ()]) or UNSET


def slice_addresses(obj: Object) -> str:
    return some([ip for each in obj.get("endpoints") or () for ip in each.get("addresses") or ()]) or UNSET


def ingress_hosts(obj: Object) -> str:
    """The first hosts; all rules after them count as more, with a host of their own or not."""
    rules = value_at(obj, "spec", "rules", default=[])
    places = [number for number, each in enumerate(rules) if each.get("host")][:MOST_SHOWN]
    shown = ",".join(rules[number]["host"] for number in places) or "*"
    is_more = len(places) == MOST_SHOWN and places[-1] + 1 < len(rules)
    return f"{shown} + {len(rules) - MOST_SHOWN} more..." if is_more else shown


def ingress_parameters(obj: Object) -> str:
    found = value_at(obj, "spec", "parameters")
    if found is None:
        return NONE
    group = f".{found['apiGroup']}" if found.get("apiGroup") else ""
    return f"{found['kind']}{group}/{found['name']}"


def parent(obj: Object) -> str:
    found = value_at(obj, "spec", "parentRef")
    if found is None:
        return NONE
    resource = ".".join(filter(None, (found.get("resource"), found.get("group")))).lower()
    return "/".join([resource, *filter(None, [found.get("namespace")]), found.get("name", "")])


COLUMNS: Columns = {
    "services": (
        NAME,
        Print("Type", path("spec", "type")),
        Print("Cluster-IP", path("spec", "clusterIPs", 0, default=NONE)),
        Print("External-IP", of(service_external)),
        Print("Port(s)", of(service_ports)),
        AGE,
        Print("Selector", of(lambda obj: pairs(value_at(obj, "spec", "selector"))), priority=1),
    ),
    "endpoints": (NAME, Print("Endpoints", of(endpoints)), AGE),
    "endpointslices.discovery.k8s.io": (
        NAME,
        Print("AddressType", path("addressType")),
        Print("Ports", of(slice_ports)),
        Print("Endpoints", of(slice_addresses)),
        AGE,
    ),
    "ingresses.networking.k8s.io": (
        NAME,
        Print("Class", path("spec", "ingressClassName", default=NONE)),
        Print("Hosts", of(ingress_hosts)),
        Print("Address", of(lambda obj: ",".join(entrances(obj)))),
        Print("Ports", of(lambda obj: "80, 443" if value_at(obj, "spec", "tls") else "80")),
        AGE,
    ),
    "ingressclasses.networking.k8s.io": (
        NAME,
        Print("Controller", path("spec", "controller")),
        Print("Parameters", of(ingress_parameters)),
        AGE,
    ),
    "networkpolicies.networking.k8s.io": (
        NAME,
        Print("Pod-Selector", of(lambda obj: selector(value_at(obj, "spec", "podSelector")))),
        AGE,
    ),
    "ipaddresses.networking.k8s.io": (NAME, Print("ParentRef", of(parent))),
    "servicecidrs.networking.k8s.io": (
        NAME,
        Print("CIDRs", of(lambda obj: ",".join(value_at(obj, "spec", "cidrs", default=[])))),
        AGE,
    ),
}
