"""Rights: whether the roles that are bound to a user allow what it asks for.

Roles and bindings are ordinary objects of the store, each of which is read when it has changed.  Who is bound is looked
up by name and namespace, so that what a thousand others may do costs nothing.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import NamedTuple

import msgspec

from tapestry.apiserver.requests import User
from tapestry.apiserver.server import Attributes
from tapestry.apiserver.storage.log import Key
from tapestry.apiserver.storage.store import ObjectVersion, Store, WatchEvent
from tapestry.kube.budget import charge
from tapestry.kube.objects import Object, name_of

GROUP = "rbac.authorization.k8s.io"
RBAC_PLURALS = ("clusterroles", "clusterrolebindings", "roles", "rolebindings")
MASTERS_GROUP = "system:masters"
SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"
LONG_TUPLE_LENGTH = 16
"""Texts of a rule from which on one is looked up among them."""


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One PolicyRule."""

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
        wanted = (f"{resource.plural}/{target.subresource}", f"*/{target.subresource}", "*")
        return any(each in self.resources for each in wanted)

    def __str__(self) -> str:
        """As Kubernetes shows a rule to people: in the syntax of Go."""
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
    """A role bound to somebody, in a namespace or everywhere."""

    role: tuple[str, str]
    """Its namespace, which a ClusterRole has none of, and its name."""
    origin: str
    """Which binding of which role to whom it is, in words."""


GrantKey = tuple[str, str, str]
"""The kind and the name of whom a grant is for, and the namespace where it holds, or nothing for everywhere."""


class RoleIndex:
    """Roles and who is bound to them.  A change costs what the changed object has, whatever else there is."""

    def __init__(self, store: Store) -> None:
        self._rules: dict[tuple[str, str], tuple[PolicyRule, ...]] = {}
        self._grants: dict[GrantKey, dict[Key, Grant]] = {}
        self._keys_by_binding: dict[Key, list[GrantKey]] = {}
        """Whom each binding is for."""
        for kind in RBAC_PLURALS:
            for version in store.list_objects(f"{kind}.{GROUP}"):
                self._index(version)
            store.on_change(f"{kind}.{GROUP}", self._on_change)

    def grants(self, user: User, namespace: str) -> Iterator[Grant]:
        """What a user is bound to that holds in a namespace."""
        places = ("", namespace) if namespace else ("",)
        for kind, name in (("User", user.name), *(("Group", group) for group in user.groups)):
            for place in places:
                found = self._grants.get((kind, name, place))
                if found is not None:
                    yield from list(found.values())  # which a thread may ask for

    def rules(self, namespace: str, name: str) -> tuple[PolicyRule, ...] | None:
        """The rules of a Role, or of the ClusterRole where there is no namespace; None where there is no such role."""
        return self._rules.get((namespace, name))

    def _on_change(self, event: WatchEvent) -> None:
        if event.new is not None:
            self._index(event.new)
        elif event.old is not None:
            self._unindex(event.old.key)

    def _index(self, version: ObjectVersion) -> None:
        self._unindex(version.key)
        obj: Object = msgspec.json.decode(version.raw)
        if is_binding(version.key):
            bound = self._keys_by_binding[version.key] = []
            for whom, grant in grants_of(obj):
                self._grants.setdefault(whom, {}).setdefault(version.key, grant)
                bound.append(whom)
        else:
            self._rules[version.key.namespace, version.key.name] = rules_of(obj)

    def _unindex(self, key: Key) -> None:
        if not is_binding(key):
            self._rules.pop((key.namespace, key.name), None)
            return
        for whom in self._keys_by_binding.pop(key, ()):
            grants = self._grants.get(whom, {})
            grants.pop(key, None)
            if not grants:
                self._grants.pop(whom, None)


def is_binding(key: Key) -> bool:
    return key.resource.partition(".")[0].endswith("bindings")


def grants_of(binding: Object) -> Iterator[tuple[GrantKey, Grant]]:
    """Whom a binding gives what."""
    namespace, reference = binding["metadata"].get("namespace", ""), binding["roleRef"]
    role = (namespace if reference["kind"] == "Role" else "", reference["name"])
    head = f'RoleBinding "{name_of(binding)}/{namespace}"' if namespace else f'ClusterRoleBinding "{name_of(binding)}"'
    for subject in binding.get("subjects") or ():
        kind, name = subject.get("kind"), subject.get("name", "")
        whom = (kind, name, namespace)
        if kind == "ServiceAccount":
            home = subject.get("namespace") or namespace
            whom, name = ("User", f"{SERVICE_ACCOUNT_PREFIX}{home}:{name}", namespace), f"{name}/{home}"
        yield whom, Grant(role, f'{head} of {reference["kind"]} "{reference["name"]}" to {kind} "{name}"')


class LongTuple(tuple[str, ...]):
    """A tuple of many texts in which one is found at once."""

    _members: frozenset[str]

    def __new__(cls, values: Iterable[str]) -> "LongTuple":
        found = super().__new__(cls, values)
        found._members = frozenset(found)
        return found

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
    """Says who may do what."""

    roles: RoleIndex
    node_denial_reason: Callable[[Attributes], str | None] = no_node_authorizer
    """None where the sender is a node and may do that as one; otherwise why not, or nothing."""

    def __call__(self, attributes: Attributes) -> bool:
        return self.allow_reason(attributes) is not None

    def allow_reason(self, attributes: Attributes) -> str | None:
        """Why somebody may do that, in Kubernetes' words, which are none for masters; None where they may not."""
        if MASTERS_GROUP in attributes.user.groups or self.node_denial_reason(attributes) is None:
            return ""
        namespace = attributes.target.namespace if attributes.target is not None else ""
        for grant in self.roles.grants(attributes.user, namespace):
            if any(rule.allows(attributes) for rule in self.roles.rules(*grant.role) or ()):
                return f"RBAC: allowed by {grant.origin}"
        return None

    def denial_reason(self, attributes: Attributes) -> str:
        """Why somebody may not do that, as far as there is more to say than that no role allows it."""
        return self.node_denial_reason(attributes) or ""

    def rules(self, user: User, namespace: str) -> Iterator[PolicyRule]:
        """The rules that hold for a user in a namespace; those of the whole cluster among them."""
        for grant in self.roles.grants(user, namespace):
            yield from self.roles.rules(*grant.role) or ()


class RuleProduct(NamedTuple):
    """A rule as the product of four sets, or of two where it is about paths; nobody's name is empty."""

    verbs: Collection[str]
    groups: Collection[str]
    resources: Collection[str]
    names: Collection[str]


def uncovered_rules(
    required: Iterable[PolicyRule], held: Iterable[PolicyRule], limit: int | None = None
) -> list[PolicyRule]:
    """What `held` does not cover of `wanted`, in its smallest parts, of which there may be very many: the first `most`.

    Rules are compared as products of sets, not part by part, so that this takes what the rules have and not what their
    parts are.
    """
    mine = list(held)
    parts = (
        part for rule in required for part in (*uncovered_resources(rule, mine, limit), *uncovered_paths(rule, mine))
    )
    return list(islice(parts, limit))


def uncovered_resources(rule: PolicyRule, held: Sequence[PolicyRule], limit: int | None) -> list[PolicyRule]:
    whole = RuleProduct(
        *(dict.fromkeys(each) for each in (rule.verbs, rule.groups, rule.resources, rule.names or ("",)))
    )
    rest = [whole] if all(whole) else []
    for own in held:
        rest = [left for box in rest for left in subtract_rule(box, own)]
    cells = (each for box in rest for each in product(box.groups, box.resources, box.verbs, box.names))
    order = {(at, text): place for at, texts in enumerate(whole) for place, text in enumerate(texts)}
    found = sorted(
        islice(cells, limit),
        key=lambda each: (order[1, each[0]], order[2, each[1]], order[0, each[2]], order[3, each[3]]),
    )
    return [PolicyRule((verb,), (group,), (kind,), (name,) if name else ()) for group, kind, verb, name in found]


def subtract_rule(remaining: RuleProduct, held: PolicyRule) -> Iterator[RuleProduct]:
    """What a rule does not cover of a box, as boxes that have nothing in common."""
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
    for at, had in enumerate(covered):
        known = set(had)
        if left := [each for each in remaining[at] if each not in known]:
            yield RuleProduct._make((*covered[:at], left, *remaining[at + 1 :]))


def is_resource_covered(resource: str, held: PolicyRule) -> bool:
    if resource in held.resources or "*" in held.resources:
        return True
    _, slash, subresource = resource.partition("/")
    return bool(slash) and f"*/{subresource}" in held.resources


def uncovered_paths(rule: PolicyRule, held: Sequence[PolicyRule]) -> Iterator[PolicyRule]:
    for path in rule.paths:
        for verb in rule.verbs:
            charge(1 + len(held))
            if not any((verb in own.verbs or "*" in own.verbs) and is_path_covered(own, path) for own in held):
                yield PolicyRule((verb,), paths=(path,))


def is_path_covered(held: PolicyRule, path: str) -> bool:
    charge(len(held.paths))
    return any(matches_path(each, path) for each in held.paths)
