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
from tapestry.apiserver.resource_registry import ResourceInfo, ResourceRegistry
from tapestry.apiserver.verbs import WriteRequest
from tapestry.kube.objects import Object, labels_of
from tapestry.kube.resources import NAMESPACES, Resource
from tapestry.kube.selectors import LabelSelector, label_selector

Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]
OPERATIONS: Mapping[str, Operation] = {"create": "CREATE", "update": "UPDATE", "patch": "UPDATE", "delete": "DELETE"}

GROUP = "admissionregistration.k8s.io"
EXEMPT_KINDS = frozenset(
    {
        *("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
        *("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"),
    }
)
"""Kinds that no rule is about: one that refused every write could not be taken back."""

MATCH_ALL = LabelSelector(())
NamespaceLabels = Callable[[str], Mapping[str, str]]
"""The labels of a namespace by its name; those of one that is not there are none."""


@dataclass(frozen=True, slots=True)
class AdmissionAttributes:
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
    is_dry_run: bool
    new: Object | None
    old: Object | None

    @property
    def is_exempt(self) -> bool:
        return self.resource.group == GROUP and self.resource.kind in EXEMPT_KINDS


def admission_attributes(request: WriteRequest, old: Object | None, new: Object | None) -> AdmissionAttributes:
    """What a request attempts; steps of the pipeline are told of it as (old, new)."""
    target = request.target
    resource = target.info.resource
    found = new if new is not None else old or {}
    name = target.name or found.get("metadata", {}).get("name", "")
    return AdmissionAttributes(
        OPERATIONS[request.verb],
        resource,
        target.subresource,
        subresource_kind(target.info, target.subresource),
        name if resource.name == NAMESPACES.name else target.namespace,
        name,
        request.user,
        request.is_dry_run,
        new,
        old,
    )


def subresource_kind(info: ResourceInfo, subresource: str) -> Resource:
    found = info.subresources.get(subresource)
    if found is None:
        return info.resource
    return replace(info.resource, group=found.group, version=found.version, kind=found.kind)


@dataclass(frozen=True, slots=True)
class RuleWithOperations:
    """One RuleWithOperations; `*` is anything, of resources `*` is without their subresources and `*/*` with them."""

    operations: frozenset[str]
    groups: frozenset[str]
    versions: frozenset[str]
    resources: tuple[tuple[str, str], ...]
    """Plural and subresource."""
    scope: str = "*"
    names: frozenset[str] = frozenset()

    def matches(self, attributes: AdmissionAttributes, resource: Resource) -> bool:
        return (
            has_or_wildcard(self.operations, attributes.operation)
            and has_or_wildcard(self.groups, resource.group)
            and has_or_wildcard(self.versions, resource.version)
            and any(
                plural in ("*", resource.plural) and subresource in ("*", attributes.subresource)
                for plural, subresource in self.resources
            )
            and (self.scope == "*" or self.scope == ("Namespaced" if is_within_namespace(attributes) else "Cluster"))
            and (not self.names or attributes.name in self.names)
        )


def has_or_wildcard(allowed: frozenset[str], value: str) -> bool:
    return value in allowed or "*" in allowed


def is_within_namespace(attributes: AdmissionAttributes) -> bool:
    return bool(attributes.namespace) and attributes.resource.name != NAMESPACES.name


def rule_with_operations(spec: Object) -> RuleWithOperations:
    split = [each.partition("/") for each in spec.get("resources") or ()]
    return RuleWithOperations(
        frozenset(spec.get("operations") or ()),
        frozenset(spec.get("apiGroups") or ()),
        frozenset(spec.get("apiVersions") or ()),
        tuple((plural, subresource) for plural, _, subresource in split),
        spec.get("scope") or "*",
        frozenset(spec.get("resourceNames") or ()),
    )


class EquivalentResources:
    """Under which other groups and versions the objects of a resource are served."""

    def __init__(self, registry: ResourceRegistry) -> None:
        self._rows = registry
        self._edition = -1
        self._equivalents: dict[str, list[Resource]] = {}

    def equivalents_of(self, resource: Resource) -> Iterable[Resource]:
        """The others, and perhaps the resource itself among them."""
        if self._edition != self._rows.generation:
            self._equivalents = {}
            for row in self._rows:
                self._equivalents.setdefault(row.storage, []).append(row.resource)
            self._edition = self._rows.generation
        return self._equivalents.get(resource.name, ())


@dataclass(frozen=True, slots=True)
class MatchCriteria:
    """Which attempts are meant: by rules, unless an exception holds, by the namespace's labels and the object's own."""

    rules: tuple[RuleWithOperations, ...] | None
    """None for any resource."""
    exclude_rules: tuple[RuleWithOperations, ...] = ()
    namespace_selector: LabelSelector = MATCH_ALL
    object_selector: LabelSelector = MATCH_ALL
    matches_equivalent: bool = True

    def matches(
        self, attributes: AdmissionAttributes, equivalents: EquivalentResources, labels: NamespaceLabels
    ) -> Resource | None:
        """What the criteria know the attempt's object as; None where it is not meant."""
        found = (
            attributes.resource if self.rules is None else self._matched_resource(self.rules, attributes, equivalents)
        )
        if found is None or not self._selects(attributes, labels):
            return None
        return found if self._matched_resource(self.exclude_rules, attributes, equivalents) is None else None

    def _matched_resource(
        self, rules: tuple[RuleWithOperations, ...], attributes: AdmissionAttributes, equivalents: EquivalentResources
    ) -> Resource | None:
        if any(rule.matches(attributes, attributes.resource) for rule in rules):
            return attributes.resource
        if self.matches_equivalent and rules:
            for other in equivalents.equivalents_of(attributes.resource):
                if any(rule.matches(attributes, other) for rule in rules):
                    return other
        return None

    def _selects(self, attributes: AdmissionAttributes, labels: NamespaceLabels) -> bool:
        if self.object_selector.requirements and not any(
            obj is not None and self.object_selector.matches(labels_of(obj)) for obj in (attributes.new, attributes.old)
        ):
            return False
        if not self.namespace_selector.requirements or not attributes.namespace:
            return True
        is_own = (
            attributes.resource.name == NAMESPACES.name and not attributes.subresource and attributes.new is not None
        )
        own = labels_of(attributes.new) if is_own and attributes.new is not None else labels(attributes.namespace)
        return self.namespace_selector.matches(own)


def webhook_criteria(webhook: Object) -> MatchCriteria:
    """Of one webhook of a configuration; raises SelectorError."""
    return MatchCriteria(
        tuple(map(rule_with_operations, webhook.get("rules") or ())),
        namespace_selector=label_selector(webhook.get("namespaceSelector") or {}),
        object_selector=label_selector(webhook.get("objectSelector") or {}),
        matches_equivalent=webhook.get("matchPolicy", "Equivalent") == "Equivalent",
    )


def policy_criteria(match: Object | None) -> MatchCriteria:
    """Of the `matchConstraints` of a policy or the `matchResources` of a binding; raises SelectorError."""
    match = match or {}
    return MatchCriteria(
        tuple(map(rule_with_operations, match["resourceRules"])) if match.get("resourceRules") else None,
        tuple(map(rule_with_operations, match.get("excludeResourceRules") or ())),
        label_selector(match.get("namespaceSelector") or {}),
        label_selector(match.get("objectSelector") or {}),
        match.get("matchPolicy", "Equivalent") == "Equivalent",
    )
