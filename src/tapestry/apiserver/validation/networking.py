"""Validation of Ingresses, IngressClasses, NetworkPolicies, IPAddresses and ServiceCIDRs."""

from collections.abc import Iterator
from typing import Any

from tapestry.apiserver.core import names
from tapestry.apiserver.core.faults import (
    IMMUTABLE_MESSAGE,
    Fault,
    forbidden_field,
    format_validator,
    invalid_value,
    item_validator,
    one_of,
    required_fields,
    required_value,
    struct_validator,
    too_long,
    validate_immutable_field,
)
from tapestry.apiserver.core.metadata import validate_label_selector
from tapestry.apiserver.validation.containers import validate_port_number
from tapestry.apiserver.validation.services import validate_load_balancer_ingress
from tapestry.kube.objects import Object, value_at

PATH_TYPES = ("Exact", "ImplementationSpecific", "Prefix")
INGRESS_CLASS_ANNOTATION = "kubernetes.io/ingress.class"
MAX_CONTROLLER_LENGTH = 250
FORBIDDEN_PATH_SEQUENCES, FORBIDDEN_PATH_SUFFIXES = ("//", "/./", "/../", "%2f", "%2F"), ("/..", "/.")

validate_dns_subdomain = format_validator(names.dns_subdomain_errors)
validate_path_segment = format_validator(names.path_segment_errors)


# -- ingresses


def validate_host(value: Any, path: str) -> Iterator[Fault]:
    yield from format_validator(names.wildcard_subdomain_errors if "*" in value else names.dns_subdomain_errors)(
        value, path
    )


def validate_rule_host(value: Any, path: str) -> Iterator[Fault]:
    if not names.ip_errors(value):
        yield invalid_value(path, value, "must be a DNS name, not an IP address")
    yield from validate_host(value, path)


validate_typed_reference = struct_validator(
    ("apiGroup", validate_dns_subdomain),
    required_fields("kind"),
    ("kind", validate_path_segment),
    required_fields("name"),
    ("name", validate_path_segment),
)


def validate_ingress_backend(value: Any, path: str) -> Iterator[Fault]:
    resource, service = value.get("resource"), value.get("service")
    if resource is not None and service is not None:
        yield invalid_value(path, "", "cannot set both resource and service backends")
    elif resource is not None:
        yield from validate_typed_reference(resource, f"{path}.resource")
    elif service is not None:
        yield from validate_service_backend(service, path)
    else:
        yield invalid_value(path, "", "resource or service backend is required")


def validate_service_backend(service: Object, path: str) -> Iterator[Fault]:
    if name := service.get("name"):
        yield from format_validator(names.dns_1035_label_errors)(name, f"{path}.service.name")
    else:
        yield required_value(f"{path}.service.name")
    port = service.get("port") or {}
    if port.get("name") and port.get("number"):
        yield invalid_value(path, "", "cannot set both port name & port number")
    elif port.get("name"):
        yield from format_validator(names.port_name_errors)(port["name"], f"{path}.service.port.name")
    elif port.get("number"):
        yield from validate_port_number(port["number"], f"{path}.service.port.number")
    else:
        yield required_value(path, "port name or number is required")


def validate_http_path(value: Any, path: str) -> Iterator[Fault]:
    kind, text = value.get("pathType"), value.get("path", "")
    if kind is None:
        yield required_value(f"{path}.pathType", "pathType must be specified")
        return
    yield from one_of(*PATH_TYPES)(kind, f"{path}.pathType")
    if kind in ("Exact", "Prefix"):
        if not text.startswith("/"):
            yield invalid_value(f"{path}.path", text, "must be an absolute path")
        yield from (
            invalid_value(f"{path}.path", text, f"must not contain '{each}'")
            for each in FORBIDDEN_PATH_SEQUENCES
            if each in text
        )
        yield from (
            invalid_value(f"{path}.path", text, f"cannot end with '{each}'")
            for each in FORBIDDEN_PATH_SUFFIXES
            if text.endswith(each)
        )
    elif kind == "ImplementationSpecific" and text and not text.startswith("/"):
        yield invalid_value(f"{path}.path", text, "must be an absolute path")
    yield from validate_ingress_backend(value.get("backend") or {}, f"{path}.backend")


def validate_rules_or_default_backend(spec: Any, path: str) -> Iterator[Fault]:
    if not spec.get("rules") and spec.get("defaultBackend") is None:
        yield invalid_value(path, spec.get("rules"), "either `defaultBackend` or `rules` must be specified")


validate_ingress_spec = struct_validator(
    ("", validate_rules_or_default_backend),
    ("defaultBackend", validate_ingress_backend),
    (
        "rules",
        item_validator(
            struct_validator(
                ("host", validate_rule_host),
                ("http", struct_validator(required_fields("paths"), ("paths", item_validator(validate_http_path)))),
            )
        ),
    ),
    (
        "tls",
        item_validator(
            struct_validator(("hosts", item_validator(validate_host)), ("secretName", validate_dns_subdomain))
        ),
    ),
    ("ingressClassName", validate_dns_subdomain),
)


def validate_ingress(obj: Object, _: str = "") -> Iterator[Fault]:
    yield from validate_ingress_spec(obj.get("spec") or {}, "spec")
    annotation = (obj["metadata"].get("annotations") or {}).get(INGRESS_CLASS_ANNOTATION)
    if annotation is not None and value_at(obj, "spec", "ingressClassName") not in (None, annotation):
        msg = "must match `ingressClassName` when both are specified"
        yield invalid_value(f"annotations.{INGRESS_CLASS_ANNOTATION}", annotation, msg)


def validate_ingress_status_update(_: Object, new: Object) -> Iterator[Fault]:
    ingress = value_at(new, "status", "loadBalancer", "ingress", default=())
    return item_validator(validate_load_balancer_ingress)(ingress, "status.loadBalancer.ingress")


def validate_ingress_controller(spec: Any, path: str) -> Iterator[Fault]:
    value, at = spec.get("controller", ""), f"{path}.controller"
    if len(value) > MAX_CONTROLLER_LENGTH:
        yield too_long(at, MAX_CONTROLLER_LENGTH)
    domain, slash, rest = value.partition("/")
    if not value:
        yield required_value(at)
    elif not (domain and slash and rest):
        yield invalid_value(at, value, 'must be a domain-prefixed path (such as "acme.io/foo")')
    else:
        yield from (invalid_value(at, domain, msg) for msg in names.dns_subdomain_errors(domain))


def validate_ingress_class_parameters(value: Any, path: str) -> Iterator[Fault]:
    yield from validate_typed_reference(value, path)
    scope, namespace = value.get("scope"), value.get("namespace")
    if scope is None:
        yield required_value(f"{path}.scope")
        return
    yield from one_of("Cluster", "Namespace")(scope, f"{path}.scope")
    if scope == "Namespace":
        if namespace is None:
            yield required_value(f"{path}.namespace", "`parameters.scope` is set to 'Namespace'")
        else:
            yield from format_validator(names.dns_label_errors)(namespace, f"{path}.namespace")
    elif scope == "Cluster" and namespace is not None:
        yield forbidden_field(f"{path}.namespace", "`parameters.scope` is set to 'Cluster'")


validate_ingress_class_spec = struct_validator(
    ("", validate_ingress_controller), ("parameters", validate_ingress_class_parameters)
)


def validate_ingress_class_update(old: Object, new: Object) -> Iterator[Fault]:
    before, after = old.get("spec") or {}, new.get("spec") or {}
    yield from validate_immutable_field(before.get("controller"), after.get("controller"), "spec.controller")
    yield from validate_ingress_class_spec(after, "spec")


# -- network policies


def validate_network_policy_port(value: Any, path: str) -> Iterator[Fault]:
    yield from struct_validator(("protocol", one_of("TCP", "UDP", "SCTP")))(value, path)
    port, end = value.get("port"), value.get("endPort")
    if isinstance(port, int):
        yield from validate_port_number(port, f"{path}.port")
        if end is not None:
            if end < port:
                yield invalid_value(f"{path}.endPort", port, "must be greater than or equal to `port`")
            yield from validate_port_number(end, f"{path}.endPort")
        return
    if end is not None:
        msg = "non-numeric" if port is not None else "not specified"
        yield invalid_value(f"{path}.endPort", end, f"may not be specified when `port` is {msg}")
    if port is not None:
        yield from format_validator(names.port_name_errors)(port, f"{path}.port")


def validate_ip_block(value: Any, path: str) -> Iterator[Fault]:
    if not value.get("cidr"):
        yield required_value(f"{path}.cidr")
        return
    yield from format_validator(names.cidr_errors)(value["cidr"], f"{path}.cidr")
    if (block := names.parsed_cidr(value["cidr"])) is None:
        return
    for number, each in enumerate(value.get("except") or ()):
        at = f"{path}.except[{number}]"
        yield from format_validator(names.cidr_errors)(each, at)
        part = names.parsed_cidr(each)
        if part is not None and (
            part.version != block.version or part.network_address not in block or part.prefixlen <= block.prefixlen
        ):
            yield invalid_value(at, each, "must be a strict subset of `cidr`")


def validate_network_policy_peer(value: Any, path: str) -> Iterator[Fault]:
    fields = [field for field in ("podSelector", "namespaceSelector", "ipBlock") if value.get(field) is not None]
    for field in fields:
        yield from (validate_ip_block if field == "ipBlock" else validate_label_selector)(
            value[field], f"{path}.{field}"
        )
    if not fields:
        yield required_value(path, "must specify a peer")
    elif len(fields) > 1 and "ipBlock" in fields:
        yield forbidden_field(path, "may not specify both ipBlock and another peer")


def validate_policy_types(value: Any, path: str) -> Iterator[Fault]:
    if len(value) > 2:
        yield invalid_value(path, value, "may not specify more than two policyTypes")
    else:
        yield from item_validator(one_of("Ingress", "Egress"))(value, path)


validate_network_policy_spec = struct_validator(
    ("podSelector", validate_label_selector),
    (
        "ingress",
        item_validator(
            struct_validator(
                ("ports", item_validator(validate_network_policy_port)),
                ("from", item_validator(validate_network_policy_peer)),
            )
        ),
    ),
    (
        "egress",
        item_validator(
            struct_validator(
                ("ports", item_validator(validate_network_policy_port)),
                ("to", item_validator(validate_network_policy_peer)),
            )
        ),
    ),
    ("policyTypes", validate_policy_types),
)


# -- IP addresses and service CIDRs


validate_parent_reference = struct_validator(
    ("group", validate_dns_subdomain),
    required_fields("resource"),
    ("resource", validate_path_segment),
    required_fields("name"),
    ("name", validate_path_segment),
    ("namespace", validate_path_segment),
)


def validate_parent_reference_present(spec: Any, path: str) -> Iterator[Fault]:
    if spec.get("parentRef") is None:
        yield required_value(f"{path}.parentRef")
    else:
        yield from validate_parent_reference(spec["parentRef"], f"{path}.parentRef")


validate_ip_address_spec = struct_validator(("", validate_parent_reference_present))


def validate_ip_address_update(old: Object, new: Object) -> Iterator[Fault]:
    return validate_immutable_field(
        value_at(old, "spec", "parentRef"), value_at(new, "spec", "parentRef"), "spec.parentRef"
    )


def validate_service_cidr_spec(spec: Any, path: str) -> Iterator[Fault]:
    cidrs, at = spec.get("cidrs") or [], f"{path}.cidrs"
    if not cidrs:
        yield required_value(at, "at least one CIDR required")
    elif len(cidrs) > 2:
        yield invalid_value(at, {"CIDRs": cidrs}, "may only hold up to 2 values")
    else:
        yield from item_validator(format_validator(names.canonical_cidr_errors))(cidrs, at)
        if len(cidrs) == 2 and (":" in cidrs[0]) == (":" in cidrs[1]):
            msg = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"
            yield invalid_value(at, cidrs, msg)


def validate_service_cidr_update(old: Object, new: Object) -> Iterator[Fault]:
    before, after = (value_at(each, "spec", "cidrs", default=[]) for each in (old, new))
    if len(after) not in (len(before), 2) or (len(before) == 2 and len(after) != 2):
        yield invalid_value("spec.cidrs", after, IMMUTABLE_MESSAGE)
        return
    for number, (old_cidr, new_cidr) in enumerate(zip(before, after, strict=False)):
        if old_cidr != new_cidr:
            yield invalid_value(f"spec.cidrs[{number}]", new_cidr, IMMUTABLE_MESSAGE)
    if len(after) > len(before):
        yield from validate_service_cidr_spec(new["spec"], "spec")
