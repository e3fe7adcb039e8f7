"""Which writes a rule is about: what webhooks and admission policies share.

A write is an `Attempt`.  `Criteria` are compiled once, of a webhook or of the `matchConstraints` or `matchResources` of
a policy, and then asked of every attempt; the answer is the resource that they know the object as, which is another
version than the one that is written where they say so (`matchPolicy: Equivalent`).  What they may ask of an attempt in
expressions (`matchConditions`) is in `conditions`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tapestry.apiserver.requests import User
from tapestry.apiserver.rows import Row, Rows
from tapestry.apiserver.verbs import Request
from tapestry.kube.objects import Object, labels_of
from tapestry.kube.resources import NAMESPACES, Resource
from tapestry.kube.selectors import LabelSelector, label_selector

Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]
OPERATIONS: Mapping[str, Operation] = {"create": "CREATE", "update": "UPDATE", "patch": "UPDATE", "delete": "DELETE"}

GROUP = "admissionregistration.k8s.io"
EXEMPT = frozenset(
    {
        *("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
        *("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"),
    }
)
"""Kinds that no rule is about: one that refused every write could not be taken back."""

EVERYTHING = LabelSelector(())
NamespaceLabels = Callable[[str], Mapping[str, str]]
"""The labels of a namespace by its name; those of one that is not there are none."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A write, as rules see it."""

    operation: Operation
    resource: Resource
    subresource: str
    kind: Resource
    """What the body is: the resource itself, or that of a subresource with a kind of its own (`Scale`)."""
    namespace: str
    """A Namespace is in itself."""
    name: str
    """Empty where the server is still to choose it."""
    user: User
    dry: bool
    new: Object | None
    old: Object | None

    @property
    def is_exempt(self) -> bool:
        return self.resource.group == GROUP and self.resource.kind in EXEMPT


def attempt_of(request: Request, old: Object | None, new: Object | None) -> Attempt:
    """What a request attempts; steps of the pipeline are told of it as (old, new)."""
    target = request.target
    resource = target.row.resource
    found = new if new is not None else old or {}
    name = target.name or found.get("metadata", {}).get("name", "")
    return Attempt(
        OPERATIONS[request.verb],
        resource,
        target.subresource,
        kind_of(target.row, target.subresource),
        name if resource.name == NAMESPACES.name else target.namespace,
        name,
        request.user,
        request.is_dry,
        new,
        old,
    )


def kind_of(row: Row, subresource: str) -> Resource:
    found = row.subresources.get(subresource)
    if found is None:
        return row.resource
    return replace(row.resource, group=found.group, version=found.version, kind=found.kind)


@dataclass(frozen=True, slots=True)
class Rule:
    """One RuleWithOperations; `*` is anything, of resources `*` is without their subresources and `*/*` with them."""

    operations: frozenset[str]
    groups: frozenset[str]
    versions: frozenset[str]
    resources: tuple[tuple[str, str], ...]
    """Plural and subresource."""
    scope: str = "*"
    names: frozenset[str] = frozenset()

    def matches(self, attempt: Attempt, resource: Resource) -> bool:
        return (
            covers(self.operations, attempt.operation)
            and covers(self.groups, resource.group)
            and covers(self.versions, resource.version)
            and any(
                plural in ("*", resource.plural) and subresource in ("*", attempt.subresource)
                for plural, subresource in self.resources
            )
            and (self.scope == "*" or self.scope == ("Namespaced" if is_within_namespace(attempt) else "Cluster"))
            and (not self.names or attempt.name in self.names)
        )


def covers(wanted: frozenset[str], found: str) -> bool:
    return found in wanted or "*" in wanted


def is_within_namespace(attempt: Attempt) -> bool:
    return bool(attempt.namespace) and attempt.resource.name != NAMESPACES.name


def rule_of(spec: Object) -> Rule:
    split = [each.partition("/") for each in spec.get("resources") or ()]
    return Rule(
        frozenset(spec.get("operations") or ()),
        frozenset(spec.get("apiGroups") or ()),
        frozenset(spec.get("apiVersions") or ()),
        tuple((plural, subresource) for plural, _, subresource in split),
        spec.get("scope") or "*",
        frozenset(spec.get("resourceNames") or ()),
    )


class Equivalents:
    """Under which other groups and versions the objects of a resource are served."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._edition = -1
        self._found: dict[str, list[Resource]] = {}

    def of(self, resource: Resource) -> Iterable[Resource]:
        """The others, and perhaps the resource itself among them."""
        if self._edition != self._rows.edition:
            self._found = {}
            for row in self._rows:
                self._found.setdefault(row.storage, []).append(row.resource)
            self._edition = self._rows.edition
        return self._found.get(resource.name, ())


@dataclass(frozen=True, slots=True)
class Criteria:
    """Which attempts are meant: by rules, unless an exception holds, by the namespace's labels and the object's own."""

    rules: tuple[Rule, ...] | None
    """None for any resource."""
    exceptions: tuple[Rule, ...] = ()
    namespaces: LabelSelector = EVERYTHING
    objects: LabelSelector = EVERYTHING
    by_equivalents: bool = True

    def matches(self, attempt: Attempt, equivalents: Equivalents, labels: NamespaceLabels) -> Resource | None:
        """What the criteria know the attempt's object as; None where it is not meant."""
        found = attempt.resource if self.rules is None else self._known_as(self.rules, attempt, equivalents)
        if found is None or not self._selects(attempt, labels):
            return None
        return found if self._known_as(self.exceptions, attempt, equivalents) is None else None

    def _known_as(self, rules: tuple[Rule, ...], attempt: Attempt, equivalents: Equivalents) -> Resource | None:
        if any(rule.matches(attempt, attempt.resource) for rule in rules):
            return attempt.resource
        if self.by_equivalents and rules:
            for other in equivalents.of(attempt.resource):
                if any(rule.matches(attempt, other) for rule in rules):
                    return other
        return None

    def _selects(self, attempt: Attempt, labels: NamespaceLabels) -> bool:
        if self.objects.requirements and not any(
            obj is not None and self.objects.matches(labels_of(obj)) for obj in (attempt.new, attempt.old)
        ):
            return False
        if not self.namespaces.requirements or not attempt.namespace:
            return True
        is_own = attempt.resource.name == NAMESPACES.name and not attempt.subresource and attempt.new is not None
        own = labels_of(attempt.new) if is_own and attempt.new is not None else labels(attempt.namespace)
        return self.namespaces.matches(own)


def webhook_criteria(webhook: Object) -> Criteria:
    """Of one webhook of a configuration; raises SelectorError."""
    return Criteria(
        tuple(map(rule_of, webhook.get("rules") or ())),
        namespaces=label_selector(webhook.get("namespaceSelector") or {}),
        objects=label_selector(webhook.get("objectSelector") or {}),
        by_equivalents=webhook.get("matchPolicy", "Equivalent") == "Equivalent",
    )


def policy_criteria(match: Object | None) -> Criteria:
    """Of the `matchConstraints` of a policy or the `matchResources` of a binding; raises SelectorError."""
    match = match or {}
    return Criteria(
        tuple(map(rule_of, match["resourceRules"])) if match.get("resourceRules") else None,
        tuple(map(rule_of, match.get("excludeResourceRules") or ())),
        label_selector(match.get("namespaceSelector") or {}),
        label_selector(match.get("objectSelector") or {}),
        match.get("matchPolicy", "Equivalent") == "Equivalent",
    )
