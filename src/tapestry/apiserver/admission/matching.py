"""Matching of writes by rules and selectors, shared by webhooks and admission policies.

`AdmissionAttributes` describe a write. `MatchCriteria` are compiled once, from a webhook or from the `matchConstraints`
or `matchResources` of a policy, and evaluated for each write. The result is the resource that matched, which may be
another version than the one written (`matchPolicy: Equivalent`). `match_conditions` evaluates the expressions of
`matchConditions`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tapestry.apiserver.core.request_bodies import decoded_body
from tapestry.apiserver.core.requests import Call, Target, User, WriteRequest
from tapestry.apiserver.core.resource_registry import ResourceInfo, ResourceRegistry
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
"""Kinds that no rule applies to: a rule that rejects every write could otherwise not be removed."""

MATCH_ALL = LabelSelector(())
NamespaceLabels = Callable[[str], Mapping[str, str]]
"""Return the labels of a namespace by name; empty if it does not exist."""


@dataclass(frozen=True, slots=True)
class AdmissionAttributes:
    """A write as rules and webhooks see it."""

    operation: Operation
    resource: Resource
    subresource: str
    kind: Resource
    """Kind of the body: that of the resource, or that of the subresource if it has its own (`Scale`)."""
    namespace: str
    """For a Namespace, its own name."""
    name: str
    """Empty if the server is to generate it."""
    user: User
    is_dry_run: bool
    new: Object | None
    old: Object | None

    @property
    def is_exempt(self) -> bool:
        return self.resource.group == GROUP and self.resource.kind in EXEMPT_KINDS


def admission_attributes(request: WriteRequest, old: Object | None, new: Object | None) -> AdmissionAttributes:
    target = request.target
    resource = target.info.resource
    obj = new if new is not None else old or {}
    name = target.name or obj.get("metadata", {}).get("name", "")
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


def posted_attributes(call: Call, target: Target) -> tuple[WriteRequest, AdmissionAttributes]:
    """The request and the attributes of a post to a subresource."""
    posted = decoded_body(call) or {}
    kind = subresource_kind(target.info, target.subresource)
    metadata = {**(posted.get("metadata") or {}), "namespace": target.namespace}
    body = {"kind": kind.kind, "apiVersion": kind.api_version, **posted, "metadata": metadata}
    request = WriteRequest(
        *("create", target, call.user, call.query),
        audit_annotations=call.audit_annotations,
        origin=call.origin,
    )
    return request, admission_attributes(request, None, body)


def subresource_kind(info: ResourceInfo, subresource: str) -> Resource:
    own = info.subresources.get(subresource)
    if own is None:
        return info.resource
    return replace(info.resource, group=own.group, version=own.version, kind=own.kind)


@dataclass(frozen=True, slots=True)
class RuleWithOperations:
    """A rule. `*` matches everything; of resources, `*` excludes subresources and `*/*` includes them."""

    operations: frozenset[str]
    groups: frozenset[str]
    versions: frozenset[str]
    resources: tuple[tuple[str, str], ...]
    """Pairs of plural and subresource."""
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
    parts = [each.partition("/") for each in spec.get("resources") or ()]
    return RuleWithOperations(
        frozenset(spec.get("operations") or ()),
        frozenset(spec.get("apiGroups") or ()),
        frozenset(spec.get("apiVersions") or ()),
        tuple((plural, subresource) for plural, _, subresource in parts),
        spec.get("scope") or "*",
        frozenset(spec.get("resourceNames") or ()),
    )


class EquivalentResources:
    """The other groups and versions under which the objects of a resource are served."""

    def __init__(self, registry: ResourceRegistry) -> None:
        self._registry = registry
        self._generation = -1
        self._equivalents: dict[str, list[Resource]] = {}

    def equivalents_of(self, resource: Resource) -> Iterable[Resource]:
        """All resources with the same storage, possibly including the resource itself."""
        if self._generation != self._registry.generation:
            self._equivalents = {}
            for info in self._registry:
                self._equivalents.setdefault(info.storage, []).append(info.resource)
            self._generation = self._registry.generation
        return self._equivalents.get(resource.name, ())


@dataclass(frozen=True, slots=True)
class MatchCriteria:
    """Selection of writes by rules, excluded rules, namespace labels and object labels."""

    rules: tuple[RuleWithOperations, ...] | None
    """None matches any resource."""
    exclude_rules: tuple[RuleWithOperations, ...] = ()
    namespace_selector: LabelSelector = MATCH_ALL
    object_selector: LabelSelector = MATCH_ALL
    matches_equivalent: bool = True

    def matches(
        self, attributes: AdmissionAttributes, equivalents: EquivalentResources, labels: NamespaceLabels
    ) -> Resource | None:
        """Return the resource that matched, or None."""
        resource = (
            attributes.resource if self.rules is None else self._matched_resource(self.rules, attributes, equivalents)
        )
        if resource is None or not self._selects(attributes, labels):
            return None
        return resource if self._matched_resource(self.exclude_rules, attributes, equivalents) is None else None

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
        is_namespace = (
            attributes.resource.name == NAMESPACES.name and not attributes.subresource and attributes.new is not None
        )
        matched_labels = (
            labels_of(attributes.new) if is_namespace and attributes.new is not None else labels(attributes.namespace)
        )
        return self.namespace_selector.matches(matched_labels)


def webhook_criteria(webhook: Object) -> MatchCriteria:
    """The criteria of one webhook. Raises SelectorError."""
    return MatchCriteria(
        tuple(map(rule_with_operations, webhook.get("rules") or ())),
        namespace_selector=label_selector(webhook.get("namespaceSelector") or {}),
        object_selector=label_selector(webhook.get("objectSelector") or {}),
        matches_equivalent=webhook.get("matchPolicy", "Equivalent") == "Equivalent",
    )


def policy_criteria(match: Object | None) -> MatchCriteria:
    """The criteria of a policy's `matchConstraints` or a binding's `matchResources`. Raises SelectorError."""
    match = match or {}
    return MatchCriteria(
        tuple(map(rule_with_operations, match["resourceRules"])) if match.get("resourceRules") else None,
        tuple(map(rule_with_operations, match.get("excludeResourceRules") or ())),
        label_selector(match.get("namespaceSelector") or {}),
        label_selector(match.get("objectSelector") or {}),
        match.get("matchPolicy", "Equivalent") == "Equivalent",
    )
