"""Ingresses, network policies, and the addresses of services as objects."""

from collections.abc import Iterator
from typing import Any

from tapestry.apiserver.customs.structural import Fault
from tapestry.apiserver.validation import names
from tapestry.apiserver.validation.containers import port_number
from tapestry.apiserver.validation.faults import (
    IMMUTABLE,
    every,
    forbidden,
    invalid,
    matching,
    needs,
    one_of,
    required,
    struct,
    too_long,
    unchanged,
)
from tapestry.apiserver.validation.metadata import label_selector
from tapestry.apiserver.validation.services import INGRESS
from tapestry.kube.objects import Object, value_at

PATH_TYPES = ("Exact", "ImplementationSpecific", "Prefix")
CLASS_ANNOTATION = "kubernetes.io/ingress.class"
CONTROLLER_LIMIT = 250
BAD_SEQUENCES, BAD_ENDS = ("//", "/./", "/../", "%2f", "%2F"), ("/..", "/.")

is_subdomain = matching(names.subdomain)
segment = matching(names.path_segment)


# -- ingresses


def host(value: Any, path: str) -> Iterator[Fault]:
    yield from matching(names.wildcard_subdomain if "*" in value else names.subdomain)(value, path)


def rule_host(value: Any, path: str) -> Iterator[Fault]:
    if not names.ip(value):
        yield invalid(path, value, "must be a DNS name, not an IP address")
    yield from host(value, path)


reference = struct(("apiGroup", is_subdomain), needs("kind"), ("kind", segment), needs("name"), ("name", segment))


def backend(value: Any, path: str) -> Iterator[Fault]:
    resource, service = value.get("resource"), value.get("service")
    if resource is not None and service is not None:
        yield invalid(path, "", "cannot set both resource and service backends")
    elif resource is not None:
        yield from reference(resource, f"{path}.resource")
    elif service is not None:
        yield from service_backend(service, path)
    else:
        yield invalid(path, "", "resource or service backend is required")


def service_backend(service: Object, path: str) -> Iterator[Fault]:
    if name := service.get("name"):
        yield from matching(names.label_1035)(name, f"{path}.service.name")
    else:
        yield required(f"{path}.service.name")
    port = service.get("port") or {}
    if port.get("name") and port.get("number"):
        yield invalid(path, "", "cannot set both port name & port number")
    elif port.get("name"):
        yield from matching(names.port_name)(port["name"], f"{path}.service.port.name")
    elif port.get("number"):
        yield from port_number(port["number"], f"{path}.service.port.number")
    else:
        yield required(path, "port name or number is required")


def http_path(value: Any, path: str) -> Iterator[Fault]:
    kind, text = value.get("pathType"), value.get("path", "")
    if kind is None:
        yield required(f"{path}.pathType", "pathType must be specified")
        return
    yield from one_of(*PATH_TYPES)(kind, f"{path}.pathType")
    if kind in ("Exact", "Prefix"):
        if not text.startswith("/"):
            yield invalid(f"{path}.path", text, "must be an absolute path")
        yield from (
            invalid(f"{path}.path", text, f"must not contain '{each}'") for each in BAD_SEQUENCES if each in text
        )
        yield from (
            invalid(f"{path}.path", text, f"cannot end with '{each}'") for each in BAD_ENDS if text.endswith(each)
        )
    elif kind == "ImplementationSpecific" and text and not text.startswith("/"):
        yield invalid(f"{path}.path", text, "must be an absolute path")
    yield from backend(value.get("backend") or {}, f"{path}.backend")


def no_rules(spec: Any, path: str) -> Iterator[Fault]:
    if not spec.get("rules") and spec.get("defaultBackend") is None:
        yield invalid(path, spec.get("rules"), "either `defaultBackend` or `rules` must be specified")


ingress_spec = struct(
    ("", no_rules),
    ("defaultBackend", backend),
    ("rules", every(struct(("host", rule_host), ("http", struct(needs("paths"), ("paths", every(http_path))))))),
    ("tls", every(struct(("hosts", every(host)), ("secretName", is_subdomain)))),
    ("ingressClassName", is_subdomain),
)


def ingress(obj: Object, _: str = "") -> Iterator[Fault]:
    yield from ingress_spec(obj.get("spec") or {}, "spec")
    annotation = (obj["metadata"].get("annotations") or {}).get(CLASS_ANNOTATION)
    if annotation is not None and value_at(obj, "spec", "ingressClassName") not in (None, annotation):
        why = "must match `ingressClassName` when both are specified"
        yield invalid(f"annotations.{CLASS_ANNOTATION}", annotation, why)


def changed_ingress_status(_: Object, new: Object) -> Iterator[Fault]:
    found = value_at(new, "status", "loadBalancer", "ingress", default=())
    return every(INGRESS)(found, "status.loadBalancer.ingress")


def controller(spec: Any, path: str) -> Iterator[Fault]:
    value, at = spec.get("controller", ""), f"{path}.controller"
    if len(value) > CONTROLLER_LIMIT:
        yield too_long(at, CONTROLLER_LIMIT)
    domain, slash, rest = value.partition("/")
    if not value:
        yield required(at)
    elif not (domain and slash and rest):
        yield invalid(at, value, 'must be a domain-prefixed path (such as "acme.io/foo")')
    else:
        yield from (invalid(at, domain, why) for why in names.subdomain(domain))


def parameters(value: Any, path: str) -> Iterator[Fault]:
    yield from reference(value, path)
    scope, namespace = value.get("scope"), value.get("namespace")
    if scope is None:
        yield required(f"{path}.scope")
        return
    yield from one_of("Cluster", "Namespace")(scope, f"{path}.scope")
    if scope == "Namespace":
        if namespace is None:
            yield required(f"{path}.namespace", "`parameters.scope` is set to 'Namespace'")
        else:
            yield from matching(names.label)(namespace, f"{path}.namespace")
    elif scope == "Cluster" and namespace is not None:
        yield forbidden(f"{path}.namespace", "`parameters.scope` is set to 'Cluster'")


ingress_class = struct(("", controller), ("parameters", parameters))


def changed_ingress_class(old: Object, new: Object) -> Iterator[Fault]:
    before, after = old.get("spec") or {}, new.get("spec") or {}
    yield from unchanged(before.get("controller"), after.get("controller"), "spec.controller")
    yield from ingress_class(after, "spec")


# -- network policies


def policy_port(value: Any, path: str) -> Iterator[Fault]:
    yield from struct(("protocol", one_of("TCP", "UDP", "SCTP")))(value, path)
    port, end = value.get("port"), value.get("endPort")
    if isinstance(port, int):
        yield from port_number(port, f"{path}.port")
        if end is not None:
            if end < port:
                yield invalid(f"{path}.endPort", port, "must be greater than or equal to `port`")
            yield from port_number(end, f"{path}.endPort")
        return
    if end is not None:
        why = "non-numeric" if port is not None else "not specified"
        yield invalid(f"{path}.endPort", end, f"may not be specified when `port` is {why}")
    if port is not None:
        yield from matching(names.port_name)(port, f"{path}.port")


def block(value: Any, path: str) -> Iterator[Fault]:
    if not value.get("cidr"):
        yield required(f"{path}.cidr")
        return
    yield from matching(names.cidr)(value["cidr"], f"{path}.cidr")
    if (whole := names.network(value["cidr"])) is None:
        return
    for number, each in enumerate(value.get("except") or ()):
        at = f"{path}.except[{number}]"
        yield from matching(names.cidr)(each, at)
        part = names.network(each)
        if part is not None and (
            part.version != whole.version or part.network_address not in whole or part.prefixlen <= whole.prefixlen
        ):
            yield invalid(at, each, "must be a strict subset of `cidr`")


def peer(value: Any, path: str) -> Iterator[Fault]:
    found = [field for field in ("podSelector", "namespaceSelector", "ipBlock") if value.get(field) is not None]
    for field in found:
        yield from (block if field == "ipBlock" else label_selector)(value[field], f"{path}.{field}")
    if not found:
        yield required(path, "must specify a peer")
    elif len(found) > 1 and "ipBlock" in found:
        yield forbidden(path, "may not specify both ipBlock and another peer")


def policy_types(value: Any, path: str) -> Iterator[Fault]:
    if len(value) > 2:
        yield invalid(path, value, "may not specify more than two policyTypes")
    else:
        yield from every(one_of("Ingress", "Egress"))(value, path)


network_policy = struct(
    ("podSelector", label_selector),
    ("ingress", every(struct(("ports", every(policy_port)), ("from", every(peer))))),
    ("egress", every(struct(("ports", every(policy_port)), ("to", every(peer))))),
    ("policyTypes", policy_types),
)


# -- addresses of services


parent = struct(
    ("group", is_subdomain),
    needs("resource"),
    ("resource", segment),
    needs("name"),
    ("name", segment),
    ("namespace", segment),
)


def parent_of(spec: Any, path: str) -> Iterator[Fault]:
    if spec.get("parentRef") is None:
        yield required(f"{path}.parentRef")
    else:
        yield from parent(spec["parentRef"], f"{path}.parentRef")


ip_address = struct(("", parent_of))


def changed_ip_address(old: Object, new: Object) -> Iterator[Fault]:
    return unchanged(value_at(old, "spec", "parentRef"), value_at(new, "spec", "parentRef"), "spec.parentRef")


def service_cidr(spec: Any, path: str) -> Iterator[Fault]:
    found, at = spec.get("cidrs") or [], f"{path}.cidrs"
    if not found:
        yield required(at, "at least one CIDR required")
    elif len(found) > 2:
        yield invalid(at, {"CIDRs": found}, "may only hold up to 2 values")
    else:
        yield from every(matching(names.canonical_cidr))(found, at)
        if len(found) == 2 and (":" in found[0]) == (":" in found[1]):
            why = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"
            yield invalid(at, found, why)


def changed_service_cidr(old: Object, new: Object) -> Iterator[Fault]:
    before, after = (value_at(each, "spec", "cidrs", default=[]) for each in (old, new))
    if len(after) not in (len(before), 2) or (len(before) == 2 and len(after) != 2):
        yield invalid("spec.cidrs", after, IMMUTABLE)
        return
    for number, (then, now) in enumerate(zip(before, after, strict=False)):
        if then != now:
            yield invalid(f"spec.cidrs[{number}]", now, IMMUTABLE)
    if len(after) > len(before):
        yield from service_cidr(new["spec"], "spec")
