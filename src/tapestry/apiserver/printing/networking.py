"""Table columns of services, ingresses, endpoints, endpoint slices and network policies."""

from tapestry.apiserver.printing.table_columns import (
    AGE,
    MAX_LISTED,
    NAME,
    NONE,
    UNKNOWN,
    UNSET,
    ColumnsByResource,
    TableColumn,
    abbreviated_list,
    computed_cell,
    labels_text,
    selector_text,
    value_cell,
)
from tapestry.kube.objects import Object, value_at


def service_ports_text(service: Object) -> str:
    ports = value_at(service, "spec", "ports", default=[])
    texts = [
        f"{each['port']}{':' + str(each['nodePort']) if each.get('nodePort') else ''}/{each.get('protocol', 'TCP')}"
        for each in ports
    ]
    return ",".join(texts) or NONE


def external_addresses(service: Object) -> str:
    spec = service.get("spec") or {}
    external_ips: list[str] = spec.get("externalIPs") or []
    match spec.get("type"):
        case "ClusterIP" | "NodePort":
            return ",".join(external_ips) or NONE
        case "LoadBalancer":
            return ",".join([*load_balancer_addresses(service), *external_ips]) or "<pending>"
        case "ExternalName":
            return str(spec.get("externalName", ""))
    return UNKNOWN


def load_balancer_addresses(obj: Object) -> list[str]:
    ingress = value_at(obj, "status", "loadBalancer", "ingress", default=[])
    return sorted({each.get("ip") or each.get("hostname") or "" for each in ingress} - {""})


def endpoint_addresses(obj: Object) -> str:
    subsets = obj.get("subsets") or ()
    endpoints: list[str] = []
    for subset in subsets:
        addresses = [each["ip"] for each in subset.get("addresses") or ()]
        ports = [each["port"] for each in subset.get("ports") or ()]
        endpoints += [host_port(ip, port) for port in ports for ip in addresses] if ports else addresses
    return abbreviated_list(endpoints) if subsets else NONE


def host_port(ip: str, port: int) -> str:
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def slice_ports_text(obj: Object) -> str:
    return (
        abbreviated_list([str(each.get("port") or each.get("name") or "*") for each in obj.get("ports") or ()]) or UNSET
    )


def slice_addresses_text(obj: Object) -> str:
    return abbreviated_list([ip for each in obj.get("endpoints") or () for ip in each.get("addresses") or ()]) or UNSET


def ingress_hosts(obj: Object) -> str:
    """Return the first hosts. All further rules count as more, with or without a host."""
    rules = value_at(obj, "spec", "rules", default=[])
    indexes = [number for number, each in enumerate(rules) if each.get("host")][:MAX_LISTED]
    hosts = ",".join(rules[number]["host"] for number in indexes) or "*"
    is_more = len(indexes) == MAX_LISTED and indexes[-1] + 1 < len(rules)
    return f"{hosts} + {len(rules) - MAX_LISTED} more..." if is_more else hosts


def ingress_class_parameters(obj: Object) -> str:
    parameters = value_at(obj, "spec", "parameters")
    if parameters is None:
        return NONE
    group = f".{parameters['apiGroup']}" if parameters.get("apiGroup") else ""
    return f"{parameters['kind']}{group}/{parameters['name']}"


def parent_reference(obj: Object) -> str:
    parent = value_at(obj, "spec", "parentRef")
    if parent is None:
        return NONE
    resource = ".".join(filter(None, (parent.get("resource"), parent.get("group")))).lower()
    return "/".join([resource, *filter(None, [parent.get("namespace")]), parent.get("name", "")])


COLUMNS: ColumnsByResource = {
    "services": (
        NAME,
        TableColumn("Type", value_cell("spec", "type")),
        TableColumn("Cluster-IP", value_cell("spec", "clusterIPs", 0, default=NONE)),
        TableColumn("External-IP", computed_cell(external_addresses)),
        TableColumn("Port(s)", computed_cell(service_ports_text)),
        AGE,
        TableColumn("Selector", computed_cell(lambda obj: labels_text(value_at(obj, "spec", "selector"))), priority=1),
    ),
    "endpoints": (NAME, TableColumn("Endpoints", computed_cell(endpoint_addresses)), AGE),
    "endpointslices.discovery.k8s.io": (
        NAME,
        TableColumn("AddressType", value_cell("addressType")),
        TableColumn("Ports", computed_cell(slice_ports_text)),
        TableColumn("Endpoints", computed_cell(slice_addresses_text)),
        AGE,
    ),
    "ingresses.networking.k8s.io": (
        NAME,
        TableColumn("Class", value_cell("spec", "ingressClassName", default=NONE)),
        TableColumn("Hosts", computed_cell(ingress_hosts)),
        TableColumn("Address", computed_cell(lambda obj: ",".join(load_balancer_addresses(obj)))),
        TableColumn("Ports", computed_cell(lambda obj: "80, 443" if value_at(obj, "spec", "tls") else "80")),
        AGE,
    ),
    "ingressclasses.networking.k8s.io": (
        NAME,
        TableColumn("Controller", value_cell("spec", "controller")),
        TableColumn("Parameters", computed_cell(ingress_class_parameters)),
        AGE,
    ),
    "networkpolicies.networking.k8s.io": (
        NAME,
        TableColumn("Pod-Selector", computed_cell(lambda obj: selector_text(value_at(obj, "spec", "podSelector")))),
        AGE,
    ),
    "ipaddresses.networking.k8s.io": (NAME, TableColumn("ParentRef", computed_cell(parent_reference))),
    "servicecidrs.networking.k8s.io": (
        NAME,
        TableColumn("CIDRs", computed_cell(lambda obj: ",".join(value_at(obj, "spec", "cidrs", default=[])))),
        AGE,
    ),
}
