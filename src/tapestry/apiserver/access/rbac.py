"""Rights: whether the roles that are bound to a user allow what it asks for.

Roles and bindings are ordinary objects of the store.  They are read again when one of them has changed, and not before;
who is bound is looked up by name, so that what a thousand others may do costs nothing.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tapestry.apiserver.requests import User
from tapestry.apiserver.server import Attributes
from tapestry.apiserver.storage.log import Key
from tapestry.apiserver.storage.store import Store, Version
from tapestry.kube.objects import Object, name_of

GROUP = "rbac.authorization.k8s.io"
KINDS = ("clusterroles", "clusterrolebindings", "roles", "rolebindings")
MASTERS = "system:masters"
ACCOUNT = "system:serviceaccount:"


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

    rules: tuple[Rule, ...]
    namespace: str
    origin: str
    """Which binding of which role to whom it is, in words."""


@dataclass(slots=True)
class Reading:
    """Everything there is, as of some moment."""

    grants: dict[tuple[str, str], list[Grant]] = field(default_factory=dict)
    """By the kind of whom they are for, and the name: `("User", "jane")`."""
    roles: dict[tuple[str, str], tuple[Rule, ...]] = field(default_factory=dict)
    """By namespace and name; a ClusterRole is in none."""


class Roles:
    """Roles and who is bound to them, as of the last change of any."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: tuple[int, ...] = ()
        self._reading = Reading()
        self._decoded: dict[Key, tuple[Version, Any]] = {}

    def grants(self, user: User) -> Iterator[Grant]:
        grants = self._now().grants
        yield from grants.get(("User", user.name), ())
        for group in user.groups:
            yield from grants.get(("Group", group), ())

    def rules(self, namespace: str, name: str) -> tuple[Rule, ...] | None:
        """The rules of a Role, or of the ClusterRole where there is no namespace; None where there is no such role."""
        return self._now().roles.get((namespace, name))

    def _now(self) -> Reading:
        latest = tuple(self._store.changed_at(f"{kind}.{GROUP}") for kind in KINDS)
        if latest != self._read:
            self._reading = self._all()
            self._read = latest
        return self._reading

    def _all(self) -> Reading:
        before, self._decoded = self._decoded, {}
        found = Reading()
        for kind in ("clusterroles", "roles"):
            for role in self._objects(kind, before):
                found.roles[role["metadata"].get("namespace", ""), name_of(role)] = rules_of(role)
        for kind in ("clusterrolebindings", "rolebindings"):
            for binding in self._objects(kind, before):
                bind(found, binding)
        return found

    def _objects(self, kind: str, before: dict[Key, tuple[Version, Any]]) -> Iterator[Any]:
        for version in self._store.every(f"{kind}.{GROUP}"):
            known = before.get(version.key)
            if known is None or known[0] is not version:
                known = version, msgspec.json.decode(version.raw)
            self._decoded[version.key] = known
            yield known[1]


def bind(reading: Reading, binding: Object) -> None:
    """Note whom a binding gives what."""
    namespace, reference = binding["metadata"].get("namespace", ""), binding["roleRef"]
    place = namespace if reference["kind"] == "Role" else ""
    rules = reading.roles.get((place, reference["name"]), ())
    head = f'RoleBinding "{name_of(binding)}/{namespace}"' if namespace else f'ClusterRoleBinding "{name_of(binding)}"'
    for subject in binding.get("subjects") or ():
        kind, name = subject.get("kind"), subject.get("name", "")
        whom = (kind, name)
        if kind == "ServiceAccount":
            home = subject.get("namespace") or namespace
            whom, name = ("User", f"{ACCOUNT}{home}:{name}"), f"{name}/{home}"
        origin = f'{head} of {reference["kind"]} "{reference["name"]}" to {kind} "{name}"'
        reading.grants.setdefault(whom, []).append(Grant(rules, namespace, origin))


def rules_of(role: Object) -> tuple[Rule, ...]:
    return tuple(
        Rule(
            tuple(rule.get("verbs") or ()),
            tuple(rule.get("apiGroups") or ()),
            tuple(rule.get("resources") or ()),
            tuple(rule.get("resourceNames") or ()),
            tuple(rule.get("nonResourceURLs") or ()),
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
        for grant in self.roles.grants(asked.user):
            if grant.namespace in ("", namespace) and any(rule.allows(asked) for rule in grant.rules):
                return f"RBAC: allowed by {grant.origin}"
        return None

    def objection(self, asked: Attributes) -> str:
        """Why somebody may not do that, as far as there is more to say than that no role allows it."""
        return self.node_objection(asked) or ""

    def rules(self, user: User, namespace: str) -> Iterator[Rule]:
        """The rules that hold for a user in a namespace; those of the whole cluster among them."""
        for grant in self.roles.grants(user):
            if grant.namespace in ("", namespace):
                yield from grant.rules


def uncovered(wanted: Iterable[Rule], held: Iterable[Rule]) -> list[Rule]:
    """What `held` does not cover of `wanted`, in its smallest parts."""
    mine = list(held)
    return [part for rule in wanted for part in single(rule) if not any(is_within(part, own) for own in mine)]


def single(rule: Rule) -> Iterator[Rule]:
    """The rule in its smallest parts."""
    for group in rule.groups:
        for resource in rule.resources:
            for verb in rule.verbs:
                for name in rule.names or ("",):
                    yield Rule((verb,), (group,), (resource,), (name,) if name else ())
    for path in rule.paths:
        for verb in rule.verbs:
            yield Rule((verb,), paths=(path,))


def is_within(part: Rule, whole: Rule) -> bool:
    if part.verbs[0] not in whole.verbs and "*" not in whole.verbs:
        return False
    if part.paths:
        return any(covers(own, part.paths[0]) for own in whole.paths)
    if part.groups[0] not in whole.groups and "*" not in whole.groups:
        return False
    [resource] = part.resources
    _, slash, subresource = resource.partition("/")
    known = (resource, "*", *((f"*/{subresource}",) if slash else ()))
    if not any(each in whole.resources for each in known):
        return False
    return not whole.names or (bool(part.names) and part.names[0] in whole.names)
