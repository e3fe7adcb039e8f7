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
from tapestry.apiserver.storage.store import Event, Store, Version
from tapestry.kube.budget import charge
from tapestry.kube.objects import Object, name_of

GROUP = "rbac.authorization.k8s.io"
KINDS = ("clusterroles", "clusterrolebindings", "roles", "rolebindings")
MASTERS = "system:masters"
ACCOUNT = "system:serviceaccount:"
LONG = 16
"""Texts of a rule from which on one is looked up among them."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One PolicyRule."""

    verbs: tuple[str, ...]
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()

    def allows(self, asked: Attributes) -> bool:
        if asked.verb not in self.verbs and "*" not in self.verbs:
            return False
        target = asked.target
        if target is None:
            return any(covers(path, asked.path) for path in self.paths)
        resource = target.row.resource
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
        return "{" + ", ".join(f"{name}:{quoted(values)}" for name, values in parts.items() if values) + "}"


def quoted(values: Iterable[str]) -> str:
    return "[" + " ".join(json.dumps(each, ensure_ascii=False) for each in values) + "]"


def covers(pattern: str, path: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else pattern == path


@dataclass(frozen=True, slots=True)
class Grant:
    """A role bound to somebody, in a namespace or everywhere."""

    role: tuple[str, str]
    """Its namespace, which a ClusterRole has none of, and its name."""
    origin: str
    """Which binding of which role to whom it is, in words."""


Whom = tuple[str, str, str]
"""The kind and the name of whom a grant is for, and the namespace where it holds, or nothing for everywhere."""


class Roles:
    """Roles and who is bound to them.  A change costs what the changed object has, whatever else there is."""

    def __init__(self, store: Store) -> None:
        self._rules: dict[tuple[str, str], tuple[Rule, ...]] = {}
        self._grants: dict[Whom, dict[Key, Grant]] = {}
        self._bound: dict[Key, list[Whom]] = {}
        """Whom each binding is for."""
        for kind in KINDS:
            for version in store.every(f"{kind}.{GROUP}"):
                self._put(version)
            store.on_change(f"{kind}.{GROUP}", self._changed)

    def grants(self, user: User, namespace: str) -> Iterator[Grant]:
        """What a user is bound to that holds in a namespace."""
        places = ("", namespace) if namespace else ("",)
        for kind, name in (("User", user.name), *(("Group", group) for group in user.groups)):
            for place in places:
                found = self._grants.get((kind, name, place))
                if found is not None:
                    yield from list(found.values())  # which a thread may ask for

    def rules(self, namespace: str, name: str) -> tuple[Rule, ...] | None:
        """The rules of a Role, or of the ClusterRole where there is no namespace; None where there is no such role."""
        return self._rules.get((namespace, name))

    def _changed(self, event: Event) -> None:
        if event.new is not None:
            self._put(event.new)
        elif event.old is not None:
            self._remove(event.old.key)

    def _put(self, version: Version) -> None:
        self._remove(version.key)
        obj: Object = msgspec.json.decode(version.raw)
        if is_binding(version.key):
            bound = self._bound[version.key] = []
            for whom, grant in grants_of(obj):
                self._grants.setdefault(whom, {}).setdefault(version.key, grant)
                bound.append(whom)
        else:
            self._rules[version.key.namespace, version.key.name] = rules_of(obj)

    def _remove(self, key: Key) -> None:
        if not is_binding(key):
            self._rules.pop((key.namespace, key.name), None)
            return
        for whom in self._bound.pop(key, ()):
            grants = self._grants.get(whom, {})
            grants.pop(key, None)
            if not grants:
                self._grants.pop(whom, None)


def is_binding(key: Key) -> bool:
    return key.resource.partition(".")[0].endswith("bindings")


def grants_of(binding: Object) -> Iterator[tuple[Whom, Grant]]:
    """Whom a binding gives what."""
    namespace, reference = binding["metadata"].get("namespace", ""), binding["roleRef"]
    role = (namespace if reference["kind"] == "Role" else "", reference["name"])
    head = f'RoleBinding "{name_of(binding)}/{namespace}"' if namespace else f'ClusterRoleBinding "{name_of(binding)}"'
    for subject in binding.get("subjects") or ():
        kind, name = subject.get("kind"), subject.get("name", "")
        whom = (kind, name, namespace)
        if kind == "ServiceAccount":
            home = subject.get("namespace") or namespace
            whom, name = ("User", f"{ACCOUNT}{home}:{name}", namespace), f"{name}/{home}"
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


def texts(values: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(values or ()) if not values or len(values) < LONG else LongTuple(values)


def rules_of(role: Object) -> tuple[Rule, ...]:
    return tuple(
        Rule(
            texts(rule.get("verbs")),
            texts(rule.get("apiGroups")),
            texts(rule.get("resources")),
            texts(rule.get("resourceNames")),
            texts(rule.get("nonResourceURLs")),
        )
        for rule in role.get("rules") or ()
    )


def nobody_is_a_node(_: Attributes) -> str | None:
    return ""


@dataclass(frozen=True)
class Authorizer:
    """Says who may do what."""

    roles: Roles
    node_objection: Callable[[Attributes], str | None] = nobody_is_a_node
    """None where the sender is a node and may do that as one; otherwise why not, or nothing."""

    def __call__(self, asked: Attributes) -> bool:
        return self.reason(asked) is not None

    def reason(self, asked: Attributes) -> str | None:
        """Why somebody may do that, in Kubernetes' words, which are none for masters; None where they may not."""
        if MASTERS in asked.user.groups or self.node_objection(asked) is None:
            return ""
        namespace = asked.target.namespace if asked.target is not None else ""
        for grant in self.roles.grants(asked.user, namespace):
            if any(rule.allows(asked) for rule in self.roles.rules(*grant.role) or ()):
                return f"RBAC: allowed by {grant.origin}"
        return None

    def objection(self, asked: Attributes) -> str:
        """Why somebody may not do that, as far as there is more to say than that no role allows it."""
        return self.node_objection(asked) or ""

    def rules(self, user: User, namespace: str) -> Iterator[Rule]:
        """The rules that hold for a user in a namespace; those of the whole cluster among them."""
        for grant in self.roles.grants(user, namespace):
            yield from self.roles.rules(*grant.role) or ()


class Box(NamedTuple):
    """A rule as the product of four sets, or of two where it is about paths; nobody's name is empty."""

    verbs: Collection[str]
    groups: Collection[str]
    resources: Collection[str]
    names: Collection[str]


def uncovered(wanted: Iterable[Rule], held: Iterable[Rule], most: int | None = None) -> list[Rule]:
    """What `held` does not cover of `wanted`, in its smallest parts, of which there may be very many: the first `most`.

    Rules are compared as products of sets, not part by part, so that this takes what the rules have and not what their
    parts are.
    """
    mine = list(held)
    parts = (part for rule in wanted for part in (*uncovered_resources(rule, mine, most), *uncovered_paths(rule, mine)))
    return list(islice(parts, most))


def uncovered_resources(rule: Rule, held: Sequence[Rule], most: int | None) -> list[Rule]:
    whole = Box(*(dict.fromkeys(each) for each in (rule.verbs, rule.groups, rule.resources, rule.names or ("",))))
    rest = [whole] if all(whole) else []
    for own in held:
        rest = [left for box in rest for left in without_rule(box, own)]
    cells = (each for box in rest for each in product(box.groups, box.resources, box.verbs, box.names))
    order = {(at, text): place for at, texts in enumerate(whole) for place, text in enumerate(texts)}
    found = sorted(
        islice(cells, most),
        key=lambda each: (order[1, each[0]], order[2, each[1]], order[0, each[2]], order[3, each[3]]),
    )
    return [Rule((verb,), (group,), (kind,), (name,) if name else ()) for group, kind, verb, name in found]


def without_rule(box: Box, own: Rule) -> Iterator[Box]:
    """What a rule does not cover of a box, as boxes that have nothing in common."""
    charge(4 + sum(map(len, box)))
    covered = Box(
        box.verbs if "*" in own.verbs else [each for each in box.verbs if each in own.verbs],
        box.groups if "*" in own.groups else [each for each in box.groups if each in own.groups],
        [each for each in box.resources if is_covered(each, own)],
        [each for each in box.names if each and each in own.names] if own.names else box.names,
    )
    if not all(covered):
        yield box
        return
    for at, had in enumerate(covered):
        known = set(had)
        if left := [each for each in box[at] if each not in known]:
            yield Box._make((*covered[:at], left, *box[at + 1 :]))


def is_covered(resource: str, own: Rule) -> bool:
    if resource in own.resources or "*" in own.resources:
        return True
    _, slash, subresource = resource.partition("/")
    return bool(slash) and f"*/{subresource}" in own.resources


def uncovered_paths(rule: Rule, held: Sequence[Rule]) -> Iterator[Rule]:
    for path in rule.paths:
        for verb in rule.verbs:
            charge(1 + len(held))
            if not any((verb in own.verbs or "*" in own.verbs) and reaches(own, path) for own in held):
                yield Rule((verb,), paths=(path,))


def reaches(own: Rule, path: str) -> bool:
    charge(len(own.paths))
    return any(covers(each, path) for each in own.paths)
