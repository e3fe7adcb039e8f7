"""Where pods may run: tolerations, affinity, spreading, and the taints of nodes."""

from collections.abc import Iterator
from typing import Any

from tapestry.apiserver.customs.structural import Fault
from tapestry.apiserver.validation import names
from tapestry.apiserver.validation.faults import (
    Rule,
    between,
    duplicate,
    every,
    invalid,
    matching,
    needs,
    one_of,
    positive,
    required,
    struct,
    unsupported,
)
from tapestry.apiserver.validation.metadata import label_selector, requirement

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
REQUIRED, PREFERRED = (f"{each}DuringSchedulingIgnoredDuringExecution" for each in ("required", "preferred"))

effect = one_of(*EFFECTS)
key = matching(names.qualified)
weight = between(1, 100, "must be in the range 1-100")


def tolerations(value: Any, path: str) -> Iterator[Fault]:
    for number, each in enumerate(value):
        yield from toleration(each, f"{path}[{number}]")


def toleration(value: Any, path: str) -> Iterator[Fault]:
    operator, text = value.get("operator", ""), value.get("value", "")
    if value.get("key"):
        yield from key(value["key"], f"{path}.key")
    elif operator != "Exists":
        why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        yield invalid(f"{path}.operator", operator, why)
    if value.get("tolerationSeconds") is not None and value.get("effect") != "NoExecute":
        why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield invalid(f"{path}.effect", value.get("effect", ""), why)
    if operator in ("", "Equal"):
        if complaints := names.label_value(text):
            yield invalid(f"{path}.operator", text, ";".join(complaints))
    elif operator != "Exists":
        yield unsupported(f"{path}.operator", operator, ("Equal", "Exists"))
    elif text:
        yield invalid(f"{path}.operator", text, "value must be empty when `operator` is 'Exists'")
    if value.get("effect"):
        yield from effect(value["effect"], f"{path}.effect")


def taints(value: Any, path: str) -> Iterator[Fault]:
    seen = set()
    for number, each in enumerate(value):
        at = f"{path}[{number}]"
        yield from key(each.get("key", ""), f"{at}.key")
        if complaints := names.label_value(each.get("value", "")):
            yield invalid(f"{at}.value", each["value"], ";".join(complaints))
        yield from effect(each["effect"], f"{at}.effect") if each.get("effect") else (required(f"{at}.effect"),)
        pair = each.get("key"), each.get("effect")
        if pair in seen:
            shown = {
                "Key": pair[0],
                "Value": each.get("value", ""),
                "Effect": pair[1],
                "TimeAdded": each.get("timeAdded"),
            }
            yield duplicate(at, shown, "taints must be unique by key and effect pair")
        seen.add(pair)


# -- affinity


def node_requirement(value: Any, path: str) -> Iterator[Fault]:
    if value.get("operator") not in ("Gt", "Lt"):
        yield from requirement(value, path)
        return
    if len(value.get("values") or ()) != 1:
        yield required(f"{path}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
    yield from key(value.get("key", ""), f"{path}.key")


def strict_node_requirement(value: Any, path: str) -> Iterator[Fault]:
    yield from node_requirement(value, path)
    yield from every(matching(names.label_value))(value.get("values") or (), f"{path}.values")


def node_field(value: Any, path: str) -> Iterator[Fault]:
    if value.get("operator") not in ("In", "NotIn"):
        yield invalid(f"{path}.operator", value.get("operator", ""), "not a valid selector operator")
    elif len(value.get("values") or ()) != 1:
        why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        yield required(f"{path}.values", why)
    if value.get("key") != "metadata.name":
        yield invalid(f"{path}.key", value.get("key", ""), "not a valid field selector key")
    else:
        yield from every(matching(names.subdomain))(value.get("values") or (), f"{path}.values")


def node_term(expression: Rule) -> Rule:
    return struct(("matchExpressions", every(expression)), ("matchFields", every(node_field)))


node_selector = struct(
    needs("nodeSelectorTerms", why="must have at least one node selector term"),
    ("nodeSelectorTerms", every(node_term(strict_node_requirement))),
)
node_affinity = struct(
    (REQUIRED, node_selector),
    (PREFERRED, every(struct(("weight", weight), ("preference", node_term(node_requirement))))),
)


def namespaces(value: Any, path: str) -> Iterator[Fault]:
    for each in value.get("namespaces") or ():
        yield from matching(names.label)(each, f"{path}.namespace")


def topology_key(value: Any, path: str) -> Iterator[Fault]:
    if not value.get("topologyKey"):
        yield required(f"{path}.topologyKey", "can not be empty")
    yield from key(value.get("topologyKey", ""), f"{path}.topologyKey")


pod_term = struct(("labelSelector", label_selector), ("", namespaces), ("", topology_key))
pod_affinity = struct(
    (REQUIRED, every(pod_term)),
    (PREFERRED, every(struct(("weight", weight), ("podAffinityTerm", pod_term)))),
)
affinity = struct(("nodeAffinity", node_affinity), ("podAffinity", pod_affinity), ("podAntiAffinity", pod_affinity))


# -- spreading


def spread(value: Any, path: str) -> Iterator[Fault]:
    pairs = [(each.get("topologyKey", ""), each.get("whenUnsatisfiable", "")) for each in value]
    for number, each in enumerate(value):
        at = f"{path}[{number}]"
        yield from SPREAD(each, at)
        if pairs[number] in pairs[number + 1 :]:
            yield duplicate(f"{at}.{{topologyKey, whenUnsatisfiable}}", f"{{{pairs[number][0]}, {pairs[number][1]}}}")
        yield from domains(each, f"{at}.minDomains")
        yield from SPREAD_REST(each, at)


def domains(constraint: Any, path: str) -> Iterator[Fault]:
    least, action = constraint.get("minDomains"), constraint.get("whenUnsatisfiable", "")
    if least is not None:
        yield from positive(least, path)
        if action != "DoNotSchedule":
            why = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
            yield invalid(path, least, why)


def always(name: str, rule: Rule, default: Any = "") -> tuple[str, Rule]:
    """A part of a struct whose rule counts for what is absent, too."""

    def faults(value: Any, path: str) -> Iterator[Fault]:
        return rule(value.get(name, default), f"{path}.{name}")

    return "", faults


SPREAD = struct(
    always("maxSkew", positive, 0),
    needs("topologyKey", why="can not be empty"),
    always("whenUnsatisfiable", one_of("DoNotSchedule", "ScheduleAnyway")),
)
SPREAD_REST = struct(
    ("nodeAffinityPolicy", one_of("Honor", "Ignore")),
    ("nodeTaintsPolicy", one_of("Honor", "Ignore")),
    ("labelSelector", label_selector),
)
