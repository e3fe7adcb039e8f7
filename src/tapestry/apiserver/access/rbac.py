"""RBAC authorizer: allows a request if a role that is bound to its user allows it.

Roles and bindings are objects in the store and are parsed when they change. Bindings are indexed by subject and
namespace, so that the number of other users does not matter.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from typing import NamedTuple

import msgspec

from tapestry.apiserver.core.requests import MASTERS_GROUP, Attributes, User
from tapestry.apiserver.core.store import Key, ObjectVersion, Store, WatchEvent
from tapestry.kube.budget import charge
from tapestry.kube.objects import Object, name_of

GROUP = "rbac.authorization.k8s.io"
RBAC_PLURALS = ("clusterroles", "clusterrolebindings", "roles", "rolebindings")
SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"
FIELDS_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
LONG_TUPLE_LENGTH = 16
"""Number of values from which a rule field uses a set for lookups."""


@dataclass(frozen=True, slots=True)
class PolicyRule:
    verbs: tuple[str, ...]
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()

    def allows(self, attributes: Attributes) -> bool:
        if attributes.verb not in self.verbs and "*" not in self.verbs:
            return False
        target = attributes.target
        if target is None:
            return any(matches_path(path, attributes.path) for path in self.paths)
        resource = target.info.resource
        if resource.group not in self.groups and "*" not in self.groups:
            return False
        if self.names and target.name not in self.names:
            return False
        if not target.subresource:
            return resource.plural in self.resources or "*" in self.resources
        patterns = (f"{resource.plural}/{target.subresource}", f"*/{target.subresource}", "*")
        return any(each in self.resources for each in patterns)

    def __str__(self) -> str:
        """Return the rule in Go syntax, as Kubernetes prints it."""
        parts = {
            "APIGroups": self.groups,
            "Resources": self.resources,
            "NonResourceURLs": self.paths,
            "ResourceNames": self.names,
            "Verbs": self.verbs,
        }
        return "{" + ", ".join(f"{name}:{quoted_list(values)}" for name, values in parts.items() if values) + "}"


def quoted_list(values: Iterable[str]) -> str:
    return "[" + " ".join(json.dumps(each, ensure_ascii=False) for each in values) + "]"


def matches_path(pattern: str, path: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else pattern == path


@dataclass(frozen=True, slots=True)
class Grant:
    """A role that is bound to a subject, in a namespace or in the whole cluster."""

    role: tuple[str, str]
    """Namespace (empty for a ClusterRole) and name of the role."""
    origin: str
    """Description of the binding, for audit annotations."""


GrantKey = tuple[str, str, str]
"""Kind and name of the subject, and the namespace of the binding; empty for the whole cluster."""


@dataclass(frozen=True)
class ParsedObjects:
    """Parsed roles and bindings by their key and content, which all indexes with the same objects share."""

    rules: dict[tuple[Key, bytes], tuple[PolicyRule, ...]] = field(default_factory=dict)
    grants: dict[tuple[Key, bytes], Sequence[tuple[GrantKey, Grant]]] = field(default_factory=dict)

    def add(self, key: Key, raw: bytes) -> None:
        if is_binding(key):
            self.grants[key, binding_content(raw)] = self.parse_grants(key, raw)
        else:
            self.rules[key, role_content(raw)] = self.parse_rules(key, raw)

    def parse_rules(self, key: Key, raw: bytes) -> tuple[PolicyRule, ...]:
        known = self.rules.get((key, role_content(raw)))
        return known if known is not None else rules_of(msgspec.json.decode(raw))

    def parse_grants(self, key: Key, raw: bytes) -> Sequence[tuple[GrantKey, Grant]]:
        known = self.grants.get((key, binding_content(raw)))
        return known if known is not None else tuple(grants_of(msgspec.json.decode(raw)))


def role_content(raw: bytes) -> bytes:
    """Return the encoded fields of a role that are parsed."""
    return bytes(FIELDS_DECODER.decode(raw).get("rules", b""))


def binding_content(raw: bytes) -> bytes:
    """Return the encoded fields of a binding that are parsed, except those in its key."""
    fields = FIELDS_DECODER.decode(raw)
    return b"\n".join((fields["roleRef"], fields.get("subjects", b"")))


class RoleIndex:
    """Index of roles and bindings. The cost of an update depends only on the changed object."""

    def __init__(self, store: Store, parsed: ParsedObjects) -> None:
        self._parsed = parsed
        self._rules: dict[tuple[str, str], tuple[PolicyRule, ...]] = {}
        self._grants: dict[GrantKey, dict[Key, Grant]] = {}
        self._grants_by_binding: dict[Key, Sequence[tuple[GrantKey, Grant]]] = {}
        for kind in RBAC_PLURALS:
            store.on_change(f"{kind}.{GROUP}", self._on_change)

    def grants(self, user: User, namespace: str) -> Iterator[Grant]:
        """Yield the grants of a user that apply in a namespace."""
        scopes = ("", namespace) if namespace else ("",)
        for kind, name in (("User", user.name), *(("Group", group) for group in user.groups)):
            for scope in scopes:
                result = self._grants.get((kind, name, scope))
                if result is not None:
                    yield from list(result.values())  # copied, because a thread may iterate over it

    def rules(self, namespace: str, name: str) -> tuple[PolicyRule, ...] | None:
        """Return the rules of a Role, or of a ClusterRole if `namespace` is empty; None if there is no such role."""
        return self._rules.get((namespace, name))

    def _on_change(self, event: WatchEvent) -> None:
        if event.new is not None:
            self._index(event.new)
        elif event.old is not None:
            self._unindex(event.old.key)

    def _index(self, version: ObjectVersion) -> None:
        self._unindex(version.key)
        if is_binding(version.key):
            grants = self._grants_by_binding[version.key] = self._parsed.parse_grants(version.key, version.raw)
            for grant_key, grant in grants:
                self._grants.setdefault(grant_key, {}).setdefault(version.key, grant)
        else:
            rules = self._parsed.parse_rules(version.key, version.raw)
            self._rules[version.key.namespace, version.key.name] = rules

    def _unindex(self, key: Key) -> None:
        if not is_binding(key):
            self._rules.pop((key.namespace, key.name), None)
            return
        for grant_key, _ in self._grants_by_binding.pop(key, ()):
            grants = self._grants.get(grant_key, {})
            grants.pop(key, None)
            if not grants:
                self._grants.pop(grant_key, None)


def is_binding(key: Key) -> bool:
    return key.resource.partition(".")[0].endswith("bindings")


def grants_of(binding: Object) -> Iterator[tuple[GrantKey, Grant]]:
    """Yield the grants of a binding."""
    namespace, reference = binding["metadata"].get("namespace", ""), binding["roleRef"]
    role = (namespace if reference["kind"] == "Role" else "", reference["name"])
    text = f'RoleBinding "{name_of(binding)}/{namespace}"' if namespace else f'ClusterRoleBinding "{name_of(binding)}"'
    for subject in binding.get("subjects") or ():
        kind, name = subject.get("kind"), subject.get("name", "")
        grant_key = (kind, name, namespace)
        if kind == "ServiceAccount":
            owner = subject.get("namespace") or namespace
            grant_key, name = (("User", f"{SERVICE_ACCOUNT_PREFIX}{owner}:{name}", namespace), f"{name}/{owner}")
        yield grant_key, Grant(role, f'{text} of {reference["kind"]} "{reference["name"]}" to {kind} "{name}"')


class LongTuple(tuple[str, ...]):
    """A tuple of many strings with a set for fast lookups."""

    _members: frozenset[str]

    def __new__(cls, values: Iterable[str]) -> "LongTuple":
        result = super().__new__(cls, values)
        result._members = frozenset(result)
        return result

    def __contains__(self, value: object) -> bool:
        return value in self._members


def string_tuple(values: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(values or ()) if not values or len(values) < LONG_TUPLE_LENGTH else LongTuple(values)


def rules_of(role: Object) -> tuple[PolicyRule, ...]:
    return tuple(
        PolicyRule(
            string_tuple(rule.get("verbs")),
            string_tuple(rule.get("apiGroups")),
            string_tuple(rule.get("resources")),
            string_tuple(rule.get("resourceNames")),
            string_tuple(rule.get("nonResourceURLs")),
        )
        for rule in role.get("rules") or ()
    )


def no_node_authorizer(_: Attributes) -> str | None:
    return ""


@dataclass(frozen=True)
class RbacAuthorizer:
    roles: RoleIndex
    node_denial_reason: Callable[[Attributes], str | None] = no_node_authorizer
    """Return None if the user is a node and may do this; otherwise the reason, which may be empty."""

    def __call__(self, attributes: Attributes) -> bool:
        return self.allow_reason(attributes) is not None

    def allow_reason(self, attributes: Attributes) -> str | None:
        """Return the reason why a request is allowed, as in Kubernetes (empty for masters), or None if it is not."""
        if MASTERS_GROUP in attributes.user.groups or self.node_denial_reason(attributes) is None:
            return ""
        namespace = attributes.target.namespace if attributes.target is not None else ""
        for grant in self.roles.grants(attributes.user, namespace):
            if any(rule.allows(attributes) for rule in self.roles.rules(*grant.role) or ()):
                return f"RBAC: allowed by {grant.origin}"
        return None

    def denial_reason(self, attributes: Attributes) -> str:
        """Return the reason why a request is denied, if there is more to say than that no role allows it."""
        return self.node_denial_reason(attributes) or ""

    def rules(self, user: User, namespace: str) -> Iterator[PolicyRule]:
        """Yield the rules that apply to a user in a namespace, including cluster-wide ones."""
        for grant in self.roles.grants(user, namespace):
            yield from self.roles.rules(*grant.role) or ()


class RuleProduct(NamedTuple):
    """A rule as the product of its sets; an empty name stands for all names."""

    verbs: Collection[str]
    groups: Collection[str]
    resources: Collection[str]
    names: Collection[str]


def uncovered_rules(
    required: Iterable[PolicyRule], held: Iterable[PolicyRule], limit: int | None = None
) -> list[PolicyRule]:
    """Return the smallest parts of `required` that `held` does not cover, at most `limit` of them.

    Rules are compared as products of sets instead of part by part, so the cost depends on the size of the rules and
    not on the number of combinations.
    """
    rules = list(held)
    parts = (
        part for rule in required for part in (*uncovered_resources(rule, rules, limit), *uncovered_paths(rule, rules))
    )
    return list(islice(parts, limit))


def uncovered_resources(rule: PolicyRule, held: Sequence[PolicyRule], limit: int | None) -> list[PolicyRule]:
    whole = RuleProduct(
        *(dict.fromkeys(each) for each in (rule.verbs, rule.groups, rule.resources, rule.names or ("",)))
    )
    remaining = [whole] if all(whole) else []
    for held_rule in held:
        remaining = [part for box in remaining for part in subtract_rule(box, held_rule)]
    cells = (each for box in remaining for each in product(box.groups, box.resources, box.verbs, box.names))
    order = {(axis, text): position for axis, texts in enumerate(whole) for position, text in enumerate(texts)}
    result = sorted(
        islice(cells, limit),
        key=lambda each: (order[1, each[0]], order[2, each[1]], order[0, each[2]], order[3, each[3]]),
    )
    return [PolicyRule((verb,), (group,), (kind,), (name,) if name else ()) for group, kind, verb, name in result]


def subtract_rule(remaining: RuleProduct, held: PolicyRule) -> Iterator[RuleProduct]:
    """Yield the parts of a product that a rule does not cover, as disjoint products."""
    charge(4 + sum(map(len, remaining)))
    covered = RuleProduct(
        remaining.verbs if "*" in held.verbs else [each for each in remaining.verbs if each in held.verbs],
        remaining.groups if "*" in held.groups else [each for each in remaining.groups if each in held.groups],
        [each for each in remaining.resources if is_resource_covered(each, held)],
        [each for each in remaining.names if each and each in held.names] if held.names else remaining.names,
    )
    if not all(covered):
        yield remaining
        return
    for axis, covered_values in enumerate(covered):
        known = set(covered_values)
        if uncovered := [each for each in remaining[axis] if each not in known]:
            yield RuleProduct._make((*covered[:axis], uncovered, *remaining[axis + 1 :]))


def is_resource_covered(resource: str, held: PolicyRule) -> bool:
    if resource in held.resources or "*" in held.resources:
        return True
    _, slash, subresource = resource.partition("/")
    return bool(slash) and f"*/{subresource}" in held.resources


def uncovered_paths(rule: PolicyRule, held: Sequence[PolicyRule]) -> Iterator[PolicyRule]:
    for path in rule.paths:
        for verb in rule.verbs:
            charge(1 + len(held))
            if not any((verb in each.verbs or "*" in each.verbs) and is_path_covered(each, path) for each in held):
                yield PolicyRule((verb,), paths=(path,))


def is_path_covered(held: PolicyRule, path: str) -> bool:
    charge(len(held.paths))
    return any(matches_path(each, path) for each in held.paths)
