"""Rights: whether the roles that are bound to a user allow what it asks for.

Roles and bindings are ordinary objects of the store.  They are read again when one of them has changed, and not before.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from tapestry.apiserver.requests import User
from tapestry.apiserver.server import Attributes
from tapestry.apiserver.storage.store import Store
from tapestry.kube.objects import Object, name_of

GROUP = "rbac.authorization.k8s.io"
KINDS = ("clusterroles", "clusterrolebindings", "roles", "rolebindings")
MASTERS = "system:masters"
ACCOUNT = "system:serviceaccount:"


@dataclass(frozen=True, slots=True)
class Rule:
    """One PolicyRule."""

    verbs: frozenset[str]
    groups: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
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


def covers(pattern: str, path: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else pattern == path


@dataclass(frozen=True, slots=True)
class Grant:
    """A role bound to some, in a namespace or everywhere."""

    subjects: tuple[Object, ...]
    rules: tuple[Rule, ...]
    namespace: str = ""


class Roles:
    """Every grant there is, as of the last change of a role or a binding."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: tuple[int, ...] = ()
        self._grants: list[Grant] = []

    def grants(self) -> list[Grant]:
        latest = tuple(self._store.changed_at(f"{kind}.{GROUP}") for kind in KINDS)
        if latest != self._read:
            self._grants = list(self._all())
            self._read = latest
        return self._grants

    def _all(self) -> Iterator[Grant]:
        cluster_roles = {name_of(role): rules_of(role) for role in self._objects("clusterroles")}
        roles = {(role["metadata"]["namespace"], name_of(role)): rules_of(role) for role in self._objects("roles")}
        for binding in self._objects("clusterrolebindings"):
            yield Grant(subjects_of(binding), cluster_roles.get(binding["roleRef"]["name"], ()))
        for binding in self._objects("rolebindings"):
            reference, namespace = binding["roleRef"], binding["metadata"]["namespace"]
            if reference["kind"] == "ClusterRole":
                rules = cluster_roles.get(reference["name"], ())
            else:
                rules = roles.get((namespace, reference["name"]), ())
            yield Grant(subjects_of(binding), rules, namespace)

    def _objects(self, kind: str) -> Iterator[Any]:
        return (msgspec.json.decode(version.raw) for version in self._store.every(f"{kind}.{GROUP}"))


def subjects_of(binding: Object) -> tuple[Object, ...]:
    return tuple(binding.get("subjects") or ())


def rules_of(role: Object) -> tuple[Rule, ...]:
    return tuple(
        Rule(
            frozenset(rule.get("verbs") or ()),
            frozenset(rule.get("apiGroups") or ()),
            frozenset(rule.get("resources") or ()),
            frozenset(rule.get("resourceNames") or ()),
            tuple(rule.get("nonResourceURLs") or ()),
        )
        for rule in role.get("rules") or ()
    )


@dataclass(frozen=True)
class Authorizer:
    """Says who may do what."""

    roles: Roles

    def __call__(self, asked: Attributes) -> bool:
        if MASTERS in asked.user.groups:
            return True
        namespace = asked.target.namespace if asked.target is not None else ""
        return any(rule.allows(asked) for rule in self.rules(asked.user, namespace))

    def rules(self, user: User, namespace: str) -> Iterator[Rule]:
        """The rules that hold for a user in a namespace; those of the whole cluster among them."""
        for grant in self.roles.grants():
            if grant.namespace in ("", namespace) and concerns(user, grant):
                yield from grant.rules


def concerns(user: User, grant: Grant) -> bool:
    return any(is_meant(user, subject, grant.namespace) for subject in grant.subjects)


def is_meant(user: User, subject: Object, namespace: str) -> bool:
    match subject.get("kind"):
        case "User":
            return bool(subject.get("name") == user.name)
        case "Group":
            return subject.get("name") in user.groups
        case "ServiceAccount":
            return user.name == f"{ACCOUNT}{subject.get('namespace') or namespace}:{subject.get('name')}"
    return False


Allowed = Callable[[Attributes], bool]


def uncovered(wanted: Iterable[Rule], held: Iterable[Rule]) -> list[Rule]:
    """The rules of `wanted` that those of `held` do not cover: nobody may hand on what they do not have."""
    mine = list(held)
    return [rule for rule in wanted if not all(any(is_within(each, own) for own in mine) for each in single(rule))]


def single(rule: Rule) -> Iterator[Rule]:
    """The rule in its smallest parts."""
    for verb in rule.verbs:
        for path in rule.paths:
            yield Rule(frozenset({verb}), paths=(path,))
        for group in rule.groups:
            for resource in rule.resources:
                for name in rule.names or ("",):
                    names = frozenset({name}) if name else frozenset[str]()
                    yield Rule(frozenset({verb}), frozenset({group}), frozenset({resource}), names)


def is_within(part: Rule, whole: Rule) -> bool:
    if not (part.verbs <= whole.verbs or "*" in whole.verbs):
        return False
    if part.paths:
        return all(any(covers(own, path) for own in whole.paths) for path in part.paths)
    if not (part.groups <= whole.groups or "*" in whole.groups):
        return False
    [resource] = part.resources
    _, slash, subresource = resource.partition("/")
    known = {resource, "*", *({f"*/{subresource}"} if slash else ())}
    if not known & whole.resources:
        return False
    return not whole.names or (bool(part.names) and part.names <= whole.names)
