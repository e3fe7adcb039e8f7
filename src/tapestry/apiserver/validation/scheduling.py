"""Validation of tolerations, affinity, topology spread constraints and node taints."""

from collections.abc import Iterator
from typing import Any

from tapestry.apiserver.core import names
from tapestry.apiserver.core.faults import (
    Fault,
    Validator,
    between,
    duplicate_value,
    format_validator,
    invalid_value,
    item_validator,
    one_of,
    required_fields,
    required_value,
    struct_validator,
    unsupported_value,
    validate_positive,
)
from tapestry.apiserver.core.metadata import validate_label_selector, validate_operator_and_key

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
REQUIRED, PREFERRED = (f"{each}DuringSchedulingIgnoredDuringExecution" for each in ("required", "preferred"))

validate_taint_effect = one_of(*EFFECTS)
validate_label_key = format_validator(names.qualified_name_errors)
validate_weight = between(1, 100, "must be in the range 1-100")


def validate_tolerations(value: Any, path: str) -> Iterator[Fault]:
    for number, each in enumerate(value):
        yield from validate_toleration(each, f"{path}[{number}]")


def validate_toleration(value: Any, path: str) -> Iterator[Fault]:
    operator, text = value.get("operator", ""), value.get("value", "")
    if value.get("key"):
        yield from validate_label_key(value["key"], f"{path}.key")
    elif operator != "Exists":
        msg = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        yield invalid_value(f"{path}.operator", operator, msg)
    if value.get("tolerationSeconds") is not None and value.get("effect") != "NoExecute":
        msg = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield invalid_value(f"{path}.effect", value.get("effect", ""), msg)
    if operator in ("", "Equal"):
        if errors := names.label_value_errors(text):
            yield invalid_value(f"{path}.operator", text, ";".join(errors))
    elif operator != "Exists":
        yield unsupported_value(f"{path}.operator", operator, ("Equal", "Exists"))
    elif text:
        yield invalid_value(f"{path}.operator", text, "value must be empty when `operator` is 'Exists'")
    if value.get("effect"):
        yield from validate_taint_effect(value["effect"], f"{path}.effect")


def validate_taints(value: Any, path: str) -> Iterator[Fault]:
    seen = set()
    for number, each in enumerate(value):
        at = f"{path}[{number}]"
        yield from validate_label_key(each.get("key", ""), f"{at}.key")
        if errors := names.label_value_errors(each.get("value", "")):
            yield invalid_value(f"{at}.value", each["value"], ";".join(errors))
        yield from (
            validate_taint_effect(each["effect"], f"{at}.effect")
            if each.get("effect")
            else (required_value(f"{at}.effect"),)
        )
        identity = each.get("key"), each.get("effect")
        if identity in seen:
            reported = {
                "Key": identity[0],
                "Value": each.get("value", ""),
                "Effect": identity[1],
                "TimeAdded": each.get("timeAdded"),
            }
            yield duplicate_value(at, reported, "taints must be unique by key and effect pair")
        seen.add(identity)


# -- affinity


def validate_node_requirement(value: Any, path: str) -> Iterator[Fault]:
    if value.get("operator") not in ("Gt", "Lt"):
        yield from validate_operator_and_key(value, path)
        return
    if len(value.get("values") or ()) != 1:
        yield required_value(f"{path}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
    yield from validate_label_key(value.get("key", ""), f"{path}.key")


def validate_node_requirement_and_values(value: Any, path: str) -> Iterator[Fault]:
    yield from validate_node_requirement(value, path)
    yield from item_validator(format_validator(names.label_value_errors))(value.get("values") or (), f"{path}.values")


def validate_node_field_requirement(value: Any, path: str) -> Iterator[Fault]:
    if value.get("operator") not in ("In", "NotIn"):
        yield invalid_value(f"{path}.operator", value.get("operator", ""), "not a valid selector operator")
    elif len(value.get("values") or ()) != 1:
        msg = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        yield required_value(f"{path}.values", msg)
    if value.get("key") != "metadata.name":
        yield invalid_value(f"{path}.key", value.get("key", ""), "not a valid field selector key")
    else:
        yield from item_validator(format_validator(names.dns_subdomain_errors))(
            value.get("values") or (), f"{path}.values"
        )


def node_term_validator(validator: Validator) -> Validator:
    return struct_validator(
        ("matchExpressions", item_validator(validator)),
        ("matchFields", item_validator(validate_node_field_requirement)),
    )


validate_node_selector = struct_validator(
    required_fields("nodeSelectorTerms", detail="must have at least one node selector term"),
    ("nodeSelectorTerms", item_validator(node_term_validator(validate_node_requirement_and_values))),
)
validate_node_affinity = struct_validator(
    (REQUIRED, validate_node_selector),
    (
        PREFERRED,
        item_validator(
            struct_validator(
                ("weight", validate_weight), ("preference", node_term_validator(validate_node_requirement))
            )
        ),
    ),
)


def validate_affinity_namespaces(value: Any, path: str) -> Iterator[Fault]:
    for each in value.get("namespaces") or ():
        yield from format_validator(names.dns_label_errors)(each, f"{path}.namespace")


def validate_topology_key(value: Any, path: str) -> Iterator[Fault]:
    if not value.get("topologyKey"):
        yield required_value(f"{path}.topologyKey", "can not be empty")
    yield from validate_label_key(value.get("topologyKey", ""), f"{path}.topologyKey")


validate_pod_affinity_term = struct_validator(
    ("labelSelector", validate_label_selector), ("", validate_affinity_namespaces), ("", validate_topology_key)
)
validate_pod_affinity = struct_validator(
    (REQUIRED, item_validator(validate_pod_affinity_term)),
    (
        PREFERRED,
        item_validator(struct_validator(("weight", validate_weight), ("podAffinityTerm", validate_pod_affinity_term))),
    ),
)
validate_affinity = struct_validator(
    ("nodeAffinity", validate_node_affinity),
    ("podAffinity", validate_pod_affinity),
    ("podAntiAffinity", validate_pod_affinity),
)


# -- spreading


def validate_topology_spread_constraints(value: Any, path: str) -> Iterator[Fault]:
    pairs = [(each.get("topologyKey", ""), each.get("whenUnsatisfiable", "")) for each in value]
    for number, each in enumerate(value):
        at = f"{path}[{number}]"
        yield from validate_spread_required_fields(each, at)
        if pairs[number] in pairs[number + 1 :]:
            yield duplicate_value(
                f"{at}.{{topologyKey, whenUnsatisfiable}}", f"{{{pairs[number][0]}, {pairs[number][1]}}}"
            )
        yield from validate_min_domains(each, f"{at}.minDomains")
        yield from validate_spread_optional_fields(each, at)


def validate_min_domains(constraint: Any, path: str) -> Iterator[Fault]:
    minimum, action = constraint.get("minDomains"), constraint.get("whenUnsatisfiable", "")
    if minimum is not None:
        yield from validate_positive(minimum, path)
        if action != "DoNotSchedule":
            msg = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
            yield invalid_value(path, minimum, msg)


def present_or_default(name: str, validator: Validator, default: Any = "") -> tuple[str, Validator]:
    """Return an entry of a struct validator that validates `default` if the field is absent."""

    def faults(value: Any, path: str) -> Iterator[Fault]:
        return validator(value.get(name, default), f"{path}.{name}")

    return "", faults


validate_spread_required_fields = struct_validator(
    present_or_default("maxSkew", validate_positive, 0),
    required_fields("topologyKey", detail="can not be empty"),
    present_or_default("whenUnsatisfiable", one_of("DoNotSchedule", "ScheduleAnyway")),
)
validate_spread_optional_fields = struct_validator(
    ("nodeAffinityPolicy", one_of("Honor", "Ignore")),
    ("nodeTaintsPolicy", one_of("Honor", "Ignore")),
    ("labelSelector", validate_label_selector),
)
